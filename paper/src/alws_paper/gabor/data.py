"""Gabor wavelets: a plane wave under a Gaussian envelope, turned to any orientation."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


def gabor(
    orientation: Float[Array, "*batch"],
    *,
    side: int = 16,
    envelope: float = 0.3,
    wavelength: float = 1.0,
    aspect: float = 0.8,
) -> Float[Array, "*batch side side"]:
    """exp(−(u² + aspect²·v²)/2σ²)·cos(2πu/wavelength) on [−1, 1]², (u, v) turned by θ.

    σ is `envelope`. The wavelet is even, so a turn by π gives it back. Rows are y, columns x.

    Example: `gabor(jnp.linspace(0, jnp.pi, 12, endpoint=False)).shape == (12, 16, 16)`.
    """
    axis = jnp.linspace(-1, 1, side)
    y, x = jnp.meshgrid(axis, axis, indexing="ij")
    cosine = jnp.cos(orientation)[..., None, None]
    sine = jnp.sin(orientation)[..., None, None]
    u, v = cosine * x + sine * y, cosine * y - sine * x
    bump = jnp.exp(-(u**2 + (aspect * v) ** 2) / (2 * envelope**2))
    return bump * jnp.cos(2 * jnp.pi * u / wavelength)


def gabor_wavelets(
    key: Key[Array, ""], number: int
) -> tuple[Float[Array, "number 16 16"], Float[Array, " number"]]:
    """Wavelets of 16×16 pixels without noise, and their orientations, uniform on [0, π).

    Example: `data, orientation = gabor_wavelets(jax.random.key(0), 10_000)`.
    """
    orientation = jnp.pi * jax.random.uniform(key, (number,))
    return gabor(orientation), orientation
