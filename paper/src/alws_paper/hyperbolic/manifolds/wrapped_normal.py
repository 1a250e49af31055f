"""The wrapped normal distribution on the Poincaré ball (Nagano et al. 2019; Mathieu et al. 2019).

    v ~ N(0, diag σ²) in the tangent space at the origin, carried to μ, and z = exp_μ(v):

    log p(z) = log N(v; 0, σ²) − (d − 1) log(sinh(√c r)/(√c r)),   v = log_μ(z),  r = ‖v‖

is its density in hyperbolic volume; the second term is the Jacobian of the exponential map.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Key

from alws_paper.hyperbolic.manifolds.checks import (
    check_curvature,
    check_in_ball,
    check_positive,
    check_vector,
)
from alws_paper.hyperbolic.manifolds.poincare import exponential, logarithm


class WrappedNormal(eqx.Module):
    """A normal distribution around `location`, with `scale` one number or one for each axis.

    To learn it, keep unconstrained parameters in the model and build it where it is used, as
    `WrappedNormal(exponential(jnp.zeros(2), self.tangent), jnp.exp(self.log_scale))`.

    Example: `WrappedNormal(jnp.zeros(2), 1.0).sample(key)`.
    """

    location: Float[Array, " dim"]
    scale: Float[Array, " dim"]
    curvature: float = eqx.field(static=True)

    def __init__(self, location: ArrayLike, scale: ArrayLike, curvature: float = -1.0):
        self.curvature = check_curvature(curvature)
        self.location = jnp.asarray(location, float)
        check_vector("location", self.location)
        check_in_ball("location", self.location, self.curvature)
        scale = jnp.asarray(scale, self.location.dtype)
        if scale.shape not in ((), self.location.shape):
            raise ValueError(
                f"`scale` must be one number or have the shape of `location`, {self.location.shape}"
                f"; got {scale.shape}."
            )
        check_positive("scale", scale)
        self.scale = jnp.broadcast_to(scale, self.location.shape)

    @property
    def dim(self) -> int:
        """How many entries z has."""
        return self.location.shape[0]

    def sample(self, key: Key[Array, ""]) -> Float[Array, " dim"]:
        """One draw z = exp_μ(v)."""
        v = self.scale * jax.random.normal(key, (self.dim,), self.location.dtype)
        return exponential(self.location, v, self.curvature)

    def log_prob(self, z: ArrayLike) -> Float[Array, ""]:
        """log p(z) in hyperbolic volume; add `poincare.log_volume(z)` for that in coordinates."""
        z = jnp.asarray(z, float)
        check_vector("z", z, self.dim)
        check_in_ball("z", z, self.curvature)
        v = logarithm(self.location, z, self.curvature)
        normal = jax.scipy.stats.norm.logpdf(v, 0.0, self.scale).sum()
        return normal - (self.dim - 1) * log_sinh_ratio(-self.curvature * jnp.sum(v**2))


def log_sinh_ratio(square: Float[Array, ""]) -> Float[Array, ""]:
    """log(sinh(r)/r) from r², smooth at 0: r²/6 − r⁴/180 there, r − log 2r far away."""
    small = square < 0.01
    r = jnp.sqrt(jnp.where(small, 1.0, square))
    far = r + jnp.log1p(-jnp.exp(-2 * r)) - jnp.log(2 * r)
    return jnp.where(small, square / 6 - square**2 / 180, far)
