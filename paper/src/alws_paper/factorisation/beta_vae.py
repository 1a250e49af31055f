"""A variational autoencoder with latents in the unit cube and a Beta posterior.

The decoder is any model with `likelihood(z)`, z uniform on (0, 1)^K; the encoder gives the two
parameters of a Beta for each latent. The ELBO

    E_q[log p_θ(x | z)] − KL(q ‖ uniform),   KL = −entropy of q,

is climbed with reparameterised draws: a Beta variable is a function of two Gamma variables, whose
draws are differentiated implicitly in their shapes (Figurnov et al., 2018).
"""

from collections.abc import Callable, Hashable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from alws_paper.factorisation.grep import Beta
from alws_paper.shared.training import climb
from alws_paper.shared.vae import Decoder

Model = TypeVar("Model", bound=Decoder)

LEAST = 0.02
"""Added to the parameters of the Beta posteriors: far below 1, densities pile up at 0 and 1."""


class BetaEncoder(eqx.Module):
    """x ↦ q(z | x) = Π_k Beta(z_k; α_k(x), β_k(x)), a ReLU network with softplus outputs.

    Example: `BetaEncoder(784, 100, hidden=300, key=key)(x).entropy()`.
    """

    network: eqx.nn.MLP

    def __init__(self, inputs: int, latents: int, *, hidden: int, key: Key[Array, ""]):
        self.network = eqx.nn.MLP(inputs, 2 * latents, hidden, 2, key=key)

    def __call__(self, x: Float[Array, "..."]) -> Beta:
        alpha, beta = jnp.split(jax.nn.softplus(self.network(jnp.ravel(x)) + 0.5) + LEAST, 2)
        return Beta(alpha, beta)


def fit_and_divergence(
    model: Decoder,
    encoder: BetaEncoder,
    x: Float[Array, "batch ..."],
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """E_q[log p(x | z)], from one draw of z for each observation, and the KL; means over a batch.

    The ELBO is their difference.
    """
    q = jax.vmap(encoder)(x)
    z = jax.nn.sigmoid(q.sample(key))
    fit = jax.vmap(lambda z, x: model.likelihood(z).log_prob(x))(z, x)
    return fit.mean(), -q.entropy().sum(axis=1).mean()


def train_beta_vae(
    model: Model,
    encoder: BetaEncoder,
    data: Float[Array, "data ..."],
    *,
    key: Key[Array, ""],
    steps: int,
    batch_size: int,
    learning_rate: float,
    encoder_learning_rate: float,
    log_prior: Callable[[Model], Array],
) -> tuple[Model, BetaEncoder, Float[Array, " steps"]]:
    """Maximise Σ ELBO + log p(θ) by Adam with a cosine decay; the ELBO of every step comes back.

    Example: `train_beta_vae(model, encoder, data, key=key, steps=5000, batch_size=100, ...)`.
    """
    rates = {"model": learning_rate, "encoder": encoder_learning_rate}
    adam: dict[Hashable, optax.GradientTransformation] = {
        n: optax.adam(optax.cosine_decay_schedule(r, steps)) for n, r in rates.items()
    }

    def objective(
        module: tuple[Model, BetaEncoder], x: Array, key: Key[Array, ""]
    ) -> tuple[Array, Array]:
        model, encoder = module
        fit, divergence = fit_and_divergence(model, encoder, x, key)
        bound = fit - divergence
        return bound + log_prior(model) / len(data), bound

    (model, encoder), bounds = climb(
        objective,
        (model, encoder),
        data,
        optax.multi_transform(adam, ("model", "encoder")),
        key=key,
        steps=steps,
        batch_size=batch_size,
        every=steps,
    )
    return model, encoder, jnp.asarray(bounds[0])
