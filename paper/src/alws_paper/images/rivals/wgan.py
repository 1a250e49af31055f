"""Wasserstein GAN with gradient penalty (Gulrajani et al., 2017).

A critic D climbs

    E_x D(x) − E_z D(G(z)) − ρ E (‖∇D(x̂)‖ − 1)²,   x̂ = u x + (1 − u) G(z),  u ~ U(0, 1),

and the generator G climbs E_z D(G(z)). G(z) is the model's picture without noise, `model.mean(z)`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from alws_paper.images.generators import Pictured

Critic = Callable[[Array], Float[Array, ""]]

PENALTY = 10.0
"""ρ, the weight of the gradient penalty."""


def gradient_penalty(
    critic: Critic,
    real: Float[Array, "*batch"],
    fake: Float[Array, "*batch"],
    key: Key[Array, ""],
) -> Float[Array, ""]:
    """The mean of (‖∇D(x̂)‖ − 1)² at random points between pairs.

    Example: `gradient_penalty(lambda x: 3 * x[0], real, fake, key)` is 4.
    """
    u = jax.random.uniform(key, (len(real), *[1] * (real.ndim - 1)), real.dtype)
    slopes = jax.vmap(jax.grad(critic))(u * real + (1 - u) * fake)
    norms = jnp.sqrt(jnp.sum(slopes.reshape(len(real), -1) ** 2, axis=1) + 1e-12)
    return jnp.mean((norms - 1) ** 2)


def fakes(model: Pictured, key: Key[Array, ""], number: int) -> Float[Array, "number ..."]:
    """G(z) for `number` latents from the prior.

    Example: `fakes(model, key, 100)`.
    """
    return jax.vmap(lambda k: model.mean(model.sample_latent(k)))(jax.random.split(key, number))


def critic_objective(
    critic: Critic,
    model: Pictured,
    x: Float[Array, "batch ..."],
    key: Key[Array, ""],
    penalty: float = PENALTY,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """What the critic climbs on a batch, and the distance E D(x) − E D(G(z)) alone.

    Example: `critic_objective(critic, model, x, key)`.
    """
    draw_key, between_key = jax.random.split(key)
    generated = jax.lax.stop_gradient(fakes(model, draw_key, len(x)))
    distance = jax.vmap(critic)(x).mean() - jax.vmap(critic)(generated).mean()
    return distance - penalty * gradient_penalty(critic, x, generated, between_key), distance


def generator_objective(
    model: Pictured, critic: Critic, key: Key[Array, ""], number: int
) -> Float[Array, ""]:
    """What the generator climbs, E D(G(z)).

    Example: `generator_objective(model, critic, key, 100)`.
    """
    return jax.vmap(critic)(fakes(model, key, number)).mean()


__all__ = ["critic_objective", "fakes", "generator_objective", "gradient_penalty"]
