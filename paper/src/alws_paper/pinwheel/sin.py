"""Structured inference network for a latent Gaussian mixture (Lin & Khan 2018).

The model, with a Bayesian mixture under a neural decoder:

    π ~ Dir(α₀),  (μ_k, Σ_k) ~ NIW,  z₁ ~ Cat(π),  z₂ | z₁=k ~ N(μ_k, Σ_k),
    x | z₂ ~ N(NN_w(z₂), diag σ²).

The posterior of the latents is a recognition network's Gaussian potential times a mixture whose
parameters φ = (π̃, μ̃, Σ̃) belong to the inference network:

    q(z₁=k, z₂ | x) ∝ N(z₂; m(x), diag v(x)) · π̃_k N(z₂; μ̃_k, Σ̃_k),

a mixture again, so z₁ is summed over and z₂ | z₁ is reparameterised. The networks, φ and σ climb
the gradient of the evidence lower bound

    Σ_n E_q [log p(x_n | z₂) + E_q(θ) log p(z₁, z₂ | θ) − log q(z₁, z₂ | x_n)] − KL(q(θ) ‖ p(θ)),

and q(θ), Dirichlet and normal-inverse-Wishart with natural parameters λ, takes natural-gradient
steps: λ ← (1 − ρ) λ + ρ (λ₀ + Σ_n E_q t(z)), the conjugate update when ρ = 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, Key

from alws.validation import at_least, check_data
from alws_paper.pinwheel.conjugate import (
    LOG_TWO_PI,
    Mixture,
    divergence,
    expected_statistics,
    inner,
    natural_step,
)


class Posterior(NamedTuple):
    """q(z₁, z₂ | x) of one observation: log r_k, and N(mean_k, L_k L_kᵀ) for z₂ given z₁ = k."""

    log_weights: Float[Array, " components"]
    means: Float[Array, "components d"]
    factors: Float[Array, "components d d"]

    def statistics(self) -> Mixture:
        """E t(z)."""
        r = jnp.exp(self.log_weights)
        outer = self.means[:, :, None] * self.means[:, None, :]
        covariances = self.factors @ self.factors.mT
        return Mixture(r, r[:, None] * self.means, r[:, None, None] * (covariances + outer), r, r)

    def entropy(self) -> Float[Array, ""]:
        """−E log q."""
        d = self.means.shape[1]
        diagonal = jnp.diagonal(self.factors, axis1=1, axis2=2)
        normal = jnp.log(diagonal).sum(axis=1) + d / 2 * (1 + LOG_TWO_PI)
        return jnp.sum(jnp.exp(self.log_weights) * (normal - self.log_weights))


class StructuredInference(eqx.Module):
    """The decoder with its noise, the recognition network x → (m, log v), and the mixture φ.

    Example: `StructuredInference.start(key, decoder, components=10, latents=2, entries=2)`.
    """

    decoder: Callable[[Array], Array]
    log_noise: Float[Array, " entries"]
    recognition: Callable[[Array], Array]
    logits: Float[Array, " components"]
    means: Float[Array, "components d"]
    factors: Float[Array, "components d d"]

    @classmethod
    def start(
        cls,
        key: Key[Array, ""],
        decoder: Callable[[Array], Array],
        *,
        components: int,
        latents: int,
        entries: int,
        width: int = 50,
        spread: float = 1.0,
    ) -> "StructuredInference":
        """Start values: recognition with two hidden layers, means from N(0, spread²)."""
        at_least("components", components, 1)
        network_key, mean_key = jax.random.split(key)
        return cls(
            decoder,
            -jnp.ones(entries),
            eqx.nn.MLP(entries, 2 * latents, width, 2, jnp.tanh, key=network_key),
            jnp.zeros(components),
            spread * jax.random.normal(mean_key, (components, latents)),
            jnp.tile(0.3 * jnp.eye(latents), (components, 1, 1)),
        )

    def posterior(self, x: Float[Array, " entries"]) -> Posterior:
        """q(z₁, z₂ | x): potential times mixture, component by component."""
        potential, log_variance = jnp.split(self.recognition(x), 2)
        lower = jnp.tril(self.factors)
        covariances = lower @ lower.mT
        sums = jnp.linalg.cholesky(covariances + jnp.diag(jnp.exp(log_variance)))
        white = solve_triangular(sums, (potential - self.means)[:, :, None], lower=True)[:, :, 0]
        log_evidence = -(white**2).sum(axis=1) / 2 - _log_diagonal(sums)
        gain = solve_triangular(sums, covariances, lower=True)
        means = self.means + (gain * white[:, :, None]).sum(axis=1)
        # Σ̃ − Σ̃(Σ̃ + V)⁻¹Σ̃, written as V(Σ̃ + V)⁻¹Σ̃ so that nothing cancels.
        right = solve_triangular(sums, gain, lower=True, trans=1)
        posterior = jnp.exp(log_variance)[:, None] * right
        factors = jnp.linalg.cholesky((posterior + posterior.mT) / 2)
        return Posterior(jax.nn.log_softmax(self.logits + log_evidence), means, factors)

    def log_likelihood(
        self, x: Float[Array, " entries"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """log p(x | z₂)."""
        white = (x - self.decoder(z)) * jnp.exp(-self.log_noise)
        return -jnp.sum(white**2 / 2 + self.log_noise + LOG_TWO_PI / 2)

    def bound(
        self,
        x: Float[Array, " entries"],
        expected: Mixture,
        noise: Float[Array, "draws components d"],
    ) -> tuple[Float[Array, ""], Mixture]:
        """The terms of one observation in the lower bound, and E t(z).

        `noise` is standard normal; z₂ | z₁=k is mean_k + L_k noise, and only log p(x | z₂) is
        averaged over draws, all else is exact.
        """
        q = self.posterior(x)
        z = q.means + jnp.einsum("kde,ske->skd", q.factors, noise)
        fits = jax.vmap(jax.vmap(lambda z: self.log_likelihood(x, z)))(z).mean(axis=0)
        statistics = q.statistics()
        prior = inner(statistics, expected) - self.means.shape[1] / 2 * LOG_TWO_PI
        return jnp.sum(jnp.exp(q.log_weights) * fits) + prior + q.entropy(), statistics

    def reconstruct(
        self, x: Float[Array, " entries"], key: Key[Array, ""]
    ) -> tuple[Int[Array, ""], Float[Array, " d"], Float[Array, " entries"]]:
        """(z₁, z₂) ~ q(· | x), and x̂ ~ p(x | z₂)."""
        component_key, place_key, noise_key = jax.random.split(key, 3)
        q = self.posterior(x)
        k = jax.random.categorical(component_key, q.log_weights)
        z = q.means[k] + q.factors[k] @ jax.random.normal(place_key, q.means[k].shape)
        noise = jax.random.normal(noise_key, self.log_noise.shape)
        return k, z, self.decoder(z) + jnp.exp(self.log_noise) * noise


def _log_diagonal(lower: Float[Array, "components d d"]) -> Float[Array, " components"]:
    return jnp.log(jnp.abs(jnp.diagonal(lower, axis1=1, axis2=2))).sum(axis=1)


class Fitted(NamedTuple):
    """Networks and φ, q(θ) as natural parameters, and each step's lower bound per observation."""

    model: StructuredInference
    natural: Mixture
    bounds: Float[Array, " steps"]


def fit_sin(
    model: StructuredInference,
    data: Float[Array, "n entries"],
    *,
    key: Key[Array, ""],
    steps: int,
    prior: Mixture,
    learning_rate: float = 3e-3,
    natural_rate: float = 0.05,
    batch_size: int = 200,
) -> Fitted:
    """Train by Adam (cosine decay) and natural-gradient steps at once, on minibatches.

    Example: `fit_sin(model, data, key=key, steps=5000, prior=mixture_prior(10, 2))`.
    """
    at_least("steps", steps, 1)
    at_least("batch_size", batch_size, 1)
    size = check_data(data)
    if not 0 < natural_rate <= 1:
        raise ValueError(f"`natural_rate` must be in (0, 1], got {natural_rate}.")
    if prior.first.shape != model.means.shape:
        raise ValueError(
            "`prior` must have the components and dimensions of the model, "
            f"{model.means.shape}; got {prior.first.shape}."
        )
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    optimiser = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule))
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)

    def step(state: tuple, key: Key[Array, ""]) -> tuple[tuple, Array]:
        parameters, natural, memory = state
        batch_key, noise_key = jax.random.split(key)
        x = data[jax.random.randint(batch_key, (batch_size,), 0, size)]
        noise = jax.random.normal(noise_key, (batch_size, 1, *prior.first.shape))
        expected = expected_statistics(natural)

        def loss(parameters: StructuredInference) -> tuple[Array, Mixture]:
            bound = eqx.combine(parameters, rest).bound
            bounds, statistics = jax.vmap(lambda x, e: bound(x, expected, e))(x, noise)
            return -bounds.mean(), jax.tree.map(lambda s: size * s.mean(axis=0), statistics)

        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(parameters)
        updates, memory = optimiser.update(gradient, memory)
        state = (
            optax.apply_updates(parameters, updates),
            natural_step(natural, prior, statistics, natural_rate),
            memory,
        )
        return state, -value - divergence(natural, prior) / size

    start = (parameters, _as_observed(model, prior, size), optimiser.init(parameters))
    train = jax.jit(lambda state, key: jax.lax.scan(step, state, jax.random.split(key, steps)))
    (parameters, natural, _), bounds = train(start, key)
    return Fitted(eqx.combine(parameters, rest), natural, bounds)


def _as_observed(model: StructuredInference, prior: Mixture, size: int) -> Mixture:
    """λ as if the data were spread evenly over the components of φ."""
    components = len(model.logits)
    start = Posterior(jnp.full(components, -jnp.log(components)), model.means, model.factors)
    return natural_step(prior, prior, jax.tree.map(lambda s: size * s, start.statistics()), 1.0)
