"""Distributions on the unit sphere of ℝ^d, the uniform and the von Mises–Fisher.

A latent is a vector z with ‖z‖ = 1; a density is one in the area of the sphere. S² has dim 3.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Key

from alws_paper.hyperbolic.manifolds.bessel import log_scaled_bessel
from alws_paper.hyperbolic.manifolds.checks import (
    check_dimension,
    check_on_sphere,
    check_positive,
    check_vector,
)

PROPOSALS = 24
"""Each is accepted with probability 0.65 or more: all are refused once in 10¹¹ draws."""


def log_area(dim: int) -> float:
    """The logarithm of the area of the unit sphere of ℝ^dim, 2 π^(d/2)/Γ(d/2).

    Example: `log_area(3) == math.log(4 * math.pi)` up to rounding.
    """
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)


class UniformSphere(eqx.Module):
    """The uniform distribution on the unit sphere of ℝ^dim: log p(z) = −log area.

    Example: `UniformSphere(3).sample(key)` is a point on S².
    """

    dim: int = eqx.field(static=True)

    def __init__(self, dim: int):
        self.dim = check_dimension(dim)

    def sample(self, key: Key[Array, ""]) -> Float[Array, " dim"]:
        """One draw: a standard normal vector divided by its length."""
        normal = jax.random.normal(key, (self.dim,))
        return normal / jnp.linalg.norm(normal)

    def log_prob(self, z: ArrayLike) -> Float[Array, ""]:
        """log p(z), the same everywhere."""
        z = jnp.asarray(z, float)
        check_vector("z", z, self.dim)
        check_on_sphere("z", z)
        return jnp.full((), -log_area(self.dim), z.dtype)


class VonMisesFisher(eqx.Module):
    """p(z) = exp(κ μ·z)/(H(κ)·area): a bump around `mean` = μ, sharper for a larger κ.

    `concentration` is κ > 0.

    To learn it, keep unconstrained parameters in the model and build it where it is used, as
    `VonMisesFisher.from_natural(self.natural)`: the vector κμ is free in ℝ^d but for 0.

    Example: `VonMisesFisher(jnp.array([0.0, 0.0, 1.0]), 10.0).log_prob(z)`.
    """

    mean: Float[Array, " dim"]
    concentration: Float[Array, ""]

    def __init__(self, mean: ArrayLike, concentration: ArrayLike):
        self.mean = jnp.asarray(mean, float)
        self.concentration = jnp.asarray(concentration, self.mean.dtype)
        check_vector("mean", self.mean)
        check_on_sphere("mean", self.mean)
        if self.concentration.shape != ():
            raise ValueError(
                "`concentration` must be one number, got an array of shape "
                f"{self.concentration.shape}. For several distributions, `jax.vmap` over them."
            )
        check_positive("concentration", self.concentration)

    @classmethod
    def from_natural(cls, natural: ArrayLike) -> "VonMisesFisher":
        """The distribution whose natural parameter κμ is this vector, not 0."""
        natural = jnp.asarray(natural, float)
        concentration = jnp.linalg.norm(natural)
        check_positive("concentration", concentration)
        return cls(natural / concentration, concentration)

    @property
    def dim(self) -> int:
        """How many entries z has."""
        return self.mean.shape[0]

    def log_prob(self, z: ArrayLike) -> Float[Array, ""]:
        """log p(z) = −κ‖z − μ‖²/2 − (log H(κ) − κ) − log area; 1 − μ·z keeps its digits so."""
        z = jnp.asarray(z, float)
        check_vector("z", z, self.dim)
        check_on_sphere("z", z)
        bump = -self.concentration * jnp.sum((z - self.mean) ** 2) / 2
        return bump - log_scaled_bessel(self.dim / 2 - 1, self.concentration) - log_area(self.dim)

    def sample(self, key: Key[Array, ""]) -> Float[Array, " dim"]:
        """One exact draw: by inversion on S², by Wood's (1994) rejection in other dimensions.

        The height h = 1 − μ·z and the direction around μ are independent, the latter uniform.
        """
        height, direction = self._by_inversion(key) if self.dim == 3 else self._by_rejection(key)
        sine = jnp.sqrt(height * (2 - height))
        return _turn_first_axis_to(self.mean, jnp.append(1 - height, sine * direction))

    def _by_inversion(self, key: Key[Array, ""]) -> tuple[Array, Array]:
        """On S² the height is exponential, cut off at 2."""
        height_key, turn_key = jax.random.split(key)
        u = jax.random.uniform(height_key, (), self.mean.dtype)
        decay = jnp.expm1(-2 * self.concentration)
        height = jnp.minimum(-jnp.log1p(u * decay) / self.concentration, 2.0)
        angle = 2 * jnp.pi * jax.random.uniform(turn_key, (), self.mean.dtype)
        return height, jnp.stack([jnp.cos(angle), jnp.sin(angle)])

    def _by_rejection(self, key: Key[Array, ""]) -> tuple[Array, Array]:
        """Propose h = 2bβ/(1 − (1−b)β), β = (1 − v₁)/2 with v uniform on the sphere.

        All proposals are drawn at once and the first accepted is taken: no loop whose length
        depends on the numbers drawn.
        """
        n, kappa = self.dim - 1, self.concentration
        b = n / (2 * kappa + jnp.sqrt(4 * kappa**2 + n**2))
        low = 2 * b / (1 + b)  # the height 1 − x₀ of Wood's x₀ = (1 − b)/(1 + b)
        bound = -kappa * low + n * jnp.log(low * (2 - low))
        point_key, test_key = jax.random.split(key)
        v = jax.random.normal(point_key, (PROPOSALS, self.dim), kappa.dtype)
        v = v / jnp.linalg.norm(v, axis=1, keepdims=True)
        beta = (1 - v[:, 0]) / 2
        height = 2 * b * beta / (1 - (1 - b) * beta)
        log_ratio = -kappa * height + n * jnp.log(low + (1 - low) * height) - bound
        u = jax.random.uniform(test_key, (PROPOSALS,), kappa.dtype)
        first = jnp.argmax(jnp.log(1 - u) <= log_ratio)
        direction = v[first, 1:] / jnp.linalg.norm(v[first, 1:])
        return jnp.clip(height[first], 0.0, 2.0), direction


def _turn_first_axis_to(mean: Float[Array, " dim"], z: Float[Array, " dim"]) -> Array:
    """z reflected so that the first axis goes to `mean`; stable wherever `mean` points."""
    sign = jnp.where(mean[0] < 0, -1.0, 1.0).astype(mean.dtype)
    normal = (sign * mean).at[0].add(1.0)
    return sign * (2 * normal * (normal @ z) / (normal @ normal) - z)
