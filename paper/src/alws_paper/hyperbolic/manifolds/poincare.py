"""The Poincaré ball: hyperbolic space of curvature −c as the points ‖z‖ < 1/√c.

Lengths are scaled by λ_z = 2/(1 − c‖z‖²). A point at hyperbolic distance r from the origin has
‖z‖ = tanh(√c r/2)/√c. Möbius addition z ↦ a ⊕ z is the isometry that takes the origin to a without
turning it, so distances, exponential and logarithm at any point come from those at the origin.

Tangent vectors are in orthonormal coordinates: `exponential(a, v)` lies at distance ‖v‖ from a.
Carrying v from the origin to a by parallel transport leaves these coordinates as they are.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

TINY = 1e-30
"""Under the root of a length, so that its derivative at 0 is 0."""


def _length(v: Float[Array, " dim"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum(v**2) + TINY)


def inside(z: Float[Array, " dim"], curvature: float = -1.0) -> Float[Array, " dim"]:
    """z, moved into the ball if rounding put it on or beyond the edge."""
    edge = (1 - 10 * jnp.finfo(z.dtype).eps) / (-curvature) ** 0.5
    return z * jnp.minimum(1.0, edge / _length(z))


def mobius_add(
    a: Float[Array, " dim"], b: Float[Array, " dim"], curvature: float = -1.0
) -> Float[Array, " dim"]:
    """a ⊕ b = ((1 + 2c a·b + c‖b‖²) a + (1 − c‖a‖²) b) / (1 + 2c a·b + c²‖a‖²‖b‖²).

    Example: `mobius_add(-a, a)` is 0.
    """
    c = -curvature
    product, aa, bb = a @ b, a @ a, b @ b
    top = (1 + 2 * c * product + c * bb) * a + (1 - c * aa) * b
    return inside(top / (1 + 2 * c * product + c**2 * aa * bb), curvature)


def exponential(
    a: Float[Array, " dim"], v: Float[Array, " dim"], curvature: float = -1.0
) -> Float[Array, " dim"]:
    """The end of the geodesic from a in the direction v, of length ‖v‖: a ⊕ tanh(√c‖v‖/2) v/√c‖v‖.

    Example: `exponential(jnp.zeros(2), jnp.array([2.0, 0.0]))` is (tanh 1, 0).
    """
    root, length = (-curvature) ** 0.5, _length(v)
    step = inside(jnp.tanh(root * length / 2) / (root * length) * v, curvature)
    return mobius_add(a, step, curvature)


def logarithm(
    a: Float[Array, " dim"], z: Float[Array, " dim"], curvature: float = -1.0
) -> Float[Array, " dim"]:
    """The v with `exponential(a, v)` = z: the inverse of the exponential map."""
    root = (-curvature) ** 0.5
    step = mobius_add(-a, z, curvature)
    length = _length(step)
    return 2 * jnp.arctanh(root * length) / (root * length) * step


def distance(
    a: Float[Array, " dim"], b: Float[Array, " dim"], curvature: float = -1.0
) -> Float[Array, ""]:
    """The hyperbolic distance, 2 artanh(√c ‖(−a) ⊕ b‖)/√c.

    Example: `distance(jnp.zeros(2), jnp.array([0.5, 0.0]))` is log 3.
    """
    root = (-curvature) ** 0.5
    step = mobius_add(-a, b, curvature)
    return 2 * jnp.arctanh(root * jnp.sqrt(jnp.sum(step**2) + TINY)) / root


def log_volume(z: Float[Array, " dim"], curvature: float = -1.0) -> Float[Array, ""]:
    """log λ_z^d: what turns a density in hyperbolic volume into one in the ball's coordinates."""
    return z.shape[0] * jnp.log(2 / (1 + curvature * (z @ z)))


class Gyroplanes(eqx.Module):
    """A first layer for networks on the ball: ‖a_k‖ times the signed distance to hyperplane k.

    The hyperplane goes through `points[k]` across the direction a_k = `normals[k]`. Signed distance
    to a hyperplane is what an affine map gives in flat space. After Ganea et al. (2018) and Mathieu
    et al. (2019). The points are kept as tangent vectors at the origin, free in ℝ^d.

    Example: `Gyroplanes(2, 32, key=key)(z)` has shape (32,).
    """

    points: Float[Array, "planes dim"]
    normals: Float[Array, "planes dim"]
    curvature: float = eqx.field(static=True)

    def __init__(
        self,
        dim: int,
        planes: int,
        *,
        key: Key[Array, ""],
        scale: float = 1.0,
        curvature: float = -1.0,
    ):
        """Random directions of length about 1, points at distances of about `scale`."""
        point_key, normal_key = jax.random.split(key)
        self.points = scale * jax.random.normal(point_key, (planes, dim)) / dim**0.5
        self.normals = jax.random.normal(normal_key, (planes, dim)) / dim**0.5
        self.curvature = curvature

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, " planes"]:
        """‖a‖ asinh(2√c u·a / ((1 − c‖u‖²)‖a‖))/√c with u = (−p) ⊕ z, for every plane (p, a)."""
        c, root = -self.curvature, (-self.curvature) ** 0.5

        def signed(point: Array, normal: Array) -> Array:
            p = exponential(jnp.zeros_like(point), point, self.curvature)
            u = mobius_add(-p, z, self.curvature)
            size = _length(normal)
            return size * jnp.arcsinh(2 * root * (u @ normal) / ((1 - c * u @ u) * size)) / root

        return jax.vmap(signed)(self.points, self.normals)
