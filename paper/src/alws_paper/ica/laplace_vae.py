"""Laplace posteriors for a variational autoencoder (see `alws_paper.shared.vae`): prior Lap(0, 1).

The encoder gives a location m and a scale b for every latent, independent given x. With one draw
z = m + b ε, ε ~ Lap(0, 1), the bound on log p(x) is

    log p(x | z) − Σ_i KL_i,   KL_i = |m_i| + b_i exp(−|m_i|/b_i) − log b_i − 1,

the divergence of Lap(m_i, b_i) from Lap(0, 1).
"""

import math
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from alws_paper.shared.vae import Autoencoder, Posterior, train


class Laplace(Posterior):
    """q = Π_i Lap(m_i, b_i) against the prior Lap(0, 1), z = m + b·ε.

    Example: `Laplace(jnp.zeros(3), jnp.zeros(3)).divergence() == 0`.
    """

    location: Float[Array, " latents"]
    log_scale: Float[Array, " latents"]

    def expect(self, function: Callable[[Array], Array], key: Key[Array, ""]) -> Float[Array, ""]:
        noise = jax.random.laplace(key, self.location.shape, self.location.dtype)
        return function(self.location + jnp.exp(self.log_scale) * noise)

    def divergence(self) -> Float[Array, ""]:
        """Σ |m| + b exp(−|m|/b) − log b − 1."""
        size = jnp.abs(self.location)
        tail = jnp.exp(self.log_scale - size * jnp.exp(-self.log_scale))
        return jnp.sum(size + tail - self.log_scale - 1)


class LaplaceEncoder(eqx.Module):
    """x ↦ Lap(m, b): a linear map plus a network with two hidden layers, for both.

    Example: `Autoencoder(LaplaceEncoder(256, 36, hidden=200, key=key), model)`.
    """

    linear: eqx.nn.Linear
    network: eqx.nn.MLP

    def __init__(self, inputs: int, latents: int, *, hidden: int, key: Key[Array, ""]):
        linear_key, network_key = jax.random.split(key)
        self.linear = eqx.nn.Linear(inputs, 2 * latents, key=linear_key)
        self.network = eqx.nn.MLP(inputs, 2 * latents, hidden, 2, key=network_key)

    def __call__(self, x: Float[Array, " inputs"]) -> Laplace:
        return Laplace(*jnp.split(self.linear(x) + self.network(x), 2))


def train_lowering_noise(
    vae: Autoencoder,
    data: Float[Array, "observations inputs"],
    held_noise: tuple[float, ...],
    directory: Path,
    *,
    key: Key[Array, ""],
    steps: int,
    learning_rate: float,
) -> tuple[Autoencoder, list[float]]:
    """Train with the model's noise held at one level after the other, and then learnt.

    `steps` are taken at each level; each is kept in `directory` once it is done. The ELBO of every
    200 steps comes back too.

    Example: `train_lowering_noise(vae, data, (1.5, 0.5), path, key=key, steps=1000, ...)`.
    """
    elbos: list[float] = []
    for noise in (*held_noise, None):
        level = jnp.asarray(vae.model.log_noise) if noise is None else math.log(noise)
        vae, more = train(
            eqx.tree_at(lambda v: v.model.log_noise, vae, level),
            data,
            key=key,
            steps=steps,
            learning_rate=learning_rate,
            clip=1000.0,
            every=200,
            checkpoint=directory / f"vae-{noise or 'learnt'}.npz",
        )
        elbos.extend(more.tolist())
    return vae, elbos


__all__ = ["Laplace", "LaplaceEncoder", "train_lowering_noise"]
