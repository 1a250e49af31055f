"""The pinwheel distribution: five arms of distorted Gaussians around a centre."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key


def pinwheel(
    key: Key[Array, ""],
    *,
    arms: int = 5,
    points_per_arm: int = 500,
    radial_std: float = 0.3,
    tangential_std: float = 0.1,
    rate: float = 0.2,
) -> tuple[Float[Array, "points 2"], Int[Array, " points"]]:
    """Points and the arm of each: Gaussian blobs at radius 1, turned by arm + rate·exp(radius).

    Example: `data, arm = pinwheel(jax.random.key(0))`; `data.shape == (2500, 2)`.
    """
    arm = jnp.repeat(jnp.arange(arms), points_per_arm)
    noise = jax.random.normal(key, (arms * points_per_arm, 2))
    radial = 1 + radial_std * noise[:, 0]
    tangential = tangential_std * noise[:, 1]
    angle = 2 * jnp.pi * arm / arms + rate * jnp.exp(radial)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    points = jnp.stack(
        [radial * cosine - tangential * sine, radial * sine + tangential * cosine], axis=1
    )
    return points - points.mean(axis=0), arm
