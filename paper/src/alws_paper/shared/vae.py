"""Variational autoencoders: a model with `likelihood(z)`, and an encoder x ↦ q(z | x).

    ELBO(x) = E_q[log p_θ(x | z)] − KL(q(z | x) ‖ p(z)) ≤ log p_θ(x)

θ and the encoder climb it together by stochastic gradients with one draw of z for each observation.
A posterior family gives the expectation with a gradient, and the divergence from its prior.
"""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from alws import checkpoint as checkpoints
from alws.likelihoods import Likelihood
from alws_paper.shared.bounds import Proposals
from alws_paper.shared.training import climb


@runtime_checkable
class Decoder(Protocol):
    """What an autoencoder asks of its model."""

    def likelihood(self, z: PyTree, /) -> Likelihood:
        """p(x | z)."""
        ...


Model = TypeVar("Model", bound=Decoder)


class Posterior(eqx.Module):
    """q(z | x) for one x."""

    @abstractmethod
    def expect(self, function: Callable[[Array], Array], key: Key[Array, ""]) -> Float[Array, ""]:
        """An estimate of E_q[f(z)] from one draw, whose gradient in q and f is unbiased too."""

    @abstractmethod
    def divergence(self) -> Float[Array, ""]:
        """KL(q ‖ prior)."""


class DiagonalGaussian(Posterior):
    """q = N(μ, diag σ²) against the prior N(0, I), z = μ + σ·ε.

    Example: `DiagonalGaussian(mean, log_scale).divergence()`.
    """

    mean: Float[Array, " latents"]
    log_scale: Float[Array, " latents"]

    def expect(self, function: Callable[[Array], Array], key: Key[Array, ""]) -> Float[Array, ""]:
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return function(self.mean + jnp.exp(self.log_scale) * noise)

    def propose(self, key: Key[Array, ""], number: int) -> Proposals:
        """`number` draws and log q of each."""
        noise = jax.random.normal(key, (number, *self.mean.shape), self.mean.dtype)
        z = self.mean + jnp.exp(self.log_scale) * noise
        return Proposals(z, jax.vmap(self.log_density)(z))

    def log_density(self, z: Float[Array, " latents"]) -> Float[Array, ""]:
        """log q(z)."""
        return jax.scipy.stats.norm.logpdf(z, self.mean, jnp.exp(self.log_scale)).sum()

    def divergence(self) -> Float[Array, ""]:
        """Σ (μ² + σ² − 1)/2 − log σ."""
        squares = self.mean**2 + jnp.exp(2 * self.log_scale)
        return jnp.sum((squares - 1) / 2 - self.log_scale)


class Autoencoder(eqx.Module, Generic[Model]):
    """A model and the encoder that infers its latent.

    Example: `Autoencoder(encoder, model).elbo(x, key)`.
    """

    encoder: Callable[[PyTree], Posterior]
    model: Model

    def elbo(self, x: PyTree, key: Key[Array, ""]) -> Float[Array, ""]:
        """An unbiased estimate of the ELBO of one observation."""
        q = self.encoder(x)
        fit = q.expect(lambda z: self.model.likelihood(z).log_prob(x), key)
        return fit - q.divergence()


def mean_elbo(autoencoder: Autoencoder, x: PyTree, key: Key[Array, ""]) -> Float[Array, ""]:
    """The mean ELBO of a batch, one draw for each observation."""
    keys = jax.random.split(key, len(jax.tree.leaves(x)[0]))
    return jax.vmap(autoencoder.elbo)(x, keys).mean()


def train(
    autoencoder: Autoencoder[Model],
    data: PyTree[Array],
    *,
    key: Key[Array, ""],
    steps: int,
    learning_rate: float = 1e-3,
    batch_size: int = 100,
    clip: float = 100.0,
    every: int = 100,
    checkpoint: Path | None = None,
) -> tuple[Autoencoder[Model], Float[np.ndarray, " blocks"]]:
    """Adam with a cosine decay on the mean ELBO of random minibatches, gradients cut at `clip`.

    Returns the trained autoencoder, and the mean ELBO over each block of `every` steps. Both are
    kept in the file `checkpoint`, if given; where it exists already they are read from it.

    Example: `trained, elbos = train(Autoencoder(encoder, model), data, key=key, steps=3000)`.
    """
    if not learning_rate > 0:
        raise ValueError(f"`learning_rate` must be positive, got {learning_rate}.")
    if checkpoint is not None and checkpoint.exists():
        header = checkpoints.header(checkpoint)
        return checkpoints.load(checkpoint, autoencoder), np.array(header["elbo"])
    schedule = optax.cosine_decay_schedule(learning_rate, steps)

    def objective(autoencoder: Autoencoder, x: PyTree, key: Array) -> tuple[Array, Array]:
        elbo = mean_elbo(autoencoder, x, key)
        return elbo, elbo

    autoencoder, blocks = climb(
        objective,
        autoencoder,
        data,
        optax.chain(optax.clip_by_global_norm(clip), optax.adam(schedule)),
        key=key,
        steps=steps,
        batch_size=batch_size,
        every=every,
    )
    history = [float(block.mean()) for block in blocks]
    if checkpoint is not None:
        checkpoints.save(checkpoint, autoencoder, {"steps": steps, "elbo": history})
    return autoencoder, np.array(history)


__all__ = ["Autoencoder", "Decoder", "DiagonalGaussian", "Posterior", "mean_elbo", "train"]
