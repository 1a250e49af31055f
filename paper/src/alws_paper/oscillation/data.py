"""Images of a rotating latent, of which only one coordinate is seen.

z_t = R_α z_{t−1} r(‖z_{t−1}‖)/‖z_{t−1}‖ + noise,   r(a) = sigmoid(4 (a − 0.3)),
x_t = exp(−½ (z_{t,1} − c_i)²/0.3²) + noise,   centres c_i from −1.5 to 1.5
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

ANGLE = jnp.pi / 6
"""Radians from one time to the next: a period of twelve steps."""
PIXELS = 20
LATENT_NOISE, PIXEL_NOISE = 0.1, 0.05


def rotate(z: Float[Array, "2"]) -> Float[Array, "2"]:
    """One turn by the angle, with the length drawn towards its fixed point."""
    length = jnp.linalg.norm(z)
    cos, sin = jnp.cos(ANGLE), jnp.sin(ANGLE)
    turned = jnp.stack([cos * z[0] - sin * z[1], sin * z[0] + cos * z[1]])
    return turned * jax.nn.sigmoid(4 * (length - 0.3)) / length


def image(position: Float[Array, ""]) -> Float[Array, " pixels"]:
    """A bump of light where the first coordinate is."""
    centres = jnp.linspace(-1.5, 1.5, PIXELS)
    return jnp.exp(-0.5 * ((position - centres) / 0.3) ** 2)


def oscillations(
    key: Key[Array, ""], number: int, times: int
) -> tuple[Float[Array, "number times pixels"], Float[Array, "number times 2"]]:
    """Sequences of images, and the latents behind them.

    Example: `images, latents = oscillations(jax.random.key(0), number=3, times=30)`.
    """

    def step(z: Array, key: Array) -> tuple[Array, tuple[Array, Array]]:
        latent_key, pixel_key = jax.random.split(key)
        seen = image(z[0]) + PIXEL_NOISE * jax.random.normal(pixel_key, (PIXELS,))
        return rotate(z) + LATENT_NOISE * jax.random.normal(latent_key, (2,)), (seen, z)

    def sequence(key: Array) -> tuple[Array, Array]:
        return jax.lax.scan(step, jnp.array([0.8, 0.0]), jax.random.split(key, times))[1]

    return jax.vmap(sequence)(jax.random.split(key, number))
