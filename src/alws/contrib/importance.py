"""Importance sampling from the prior, a rival of the regression under its interface.

The sleep latents are draws from p_θ(z), so with w_mn ∝ p_θ(x*_m | z_n), held at θ_t,

    J̄ = (1/M) Σ_mn w_mn log p_θ(z_n, x*_m),   ∇_θ J̄ ≈ (1/M) Σ_m E[∇_θ log p_θ(z, x*_m) | x*_m].

Self-normalised weights sum to one for each x*. Plain ones are p(x* | z_n)/(N p̂(x*)), where p̂(x*)
is the mean of p(x* | z) over draws other than z_n: each half of the sleep samples has that of the
other half, so that numerator and denominator are independent and each numerator unbiased.

Both need a likelihood: a model with `likelihood(z)`, or `log_prior(z)` beside `log_joint(z, x)`.
They need about exp KL(p(z | x*) ‖ p(z)) samples (Chatterjee & Diaconis, 2018) where the regression,
which compares x* with x_n, can do with fewer.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.estimates import Cross, Estimate, Weights
from alws.model import (
    AnyModel,
    Density,
    Draws,
    Prior,
    condition_arguments,
    has_likelihood,
    log_joint,
)
from alws.regressions.base import Smoother
from alws.values import yes_or_no


class Importance(Estimate):
    """Weigh the sleep latents by p(x* | z): M×N densities, and no regression.

    Arguments:
        normalised: whether the weights of each x* sum to one.

    Example: `alws.Settings(estimate=alws.contrib.Importance())`.
    """

    regresses: ClassVar[bool] = False

    normalised: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        yes_or_no("normalised", self.normalised)

    def weights(
        self, model: AnyModel, sleep: Draws, x: PyTree, condition: PyTree | None = None
    ) -> Float[Array, "points sleep"]:
        """w, one row for each point; rows sum to one if normalised, to about one if not."""
        values = log_likelihoods(model, sleep, x, condition)
        if self.normalised:
            return jax.nn.softmax(values, axis=1)
        n = values.shape[1]
        first, second = values[:, : n // 2], values[:, n // 2 :]
        log_means = [
            jax.nn.logsumexp(half, axis=1, keepdims=True) - jnp.log(half.shape[1])
            for half in (first, second)
        ]
        swapped = [first - log_means[1], second - log_means[0]]
        return jnp.exp(jnp.concatenate(swapped, axis=1)) / n

    def weigh(
        self,
        model: AnyModel,
        smoother: Smoother | None,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> Weights:
        """w at θ_t and the wake points."""
        weights = self.weights(model, sleep, x, condition)
        return Weights(weights.mean(axis=0), (weights / weights.shape[0], x))

    def objective(
        self, model: AnyModel, sleep: Draws, weights: Weights, condition: PyTree | None
    ) -> Float[Array, ""]:
        """Σ_mn w_mn log p_θ(z_n, x*_m) / M."""
        return Cross().objective(model, sleep, weights, condition)

    def predict(
        self,
        model: AnyModel,
        smoother: Smoother | None,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
    ) -> Float[Array, " points"]:
        """Σ_n w_mn log p(z_n, x_m)."""
        weights = self.weights(model, sleep, x, condition)
        of_points = Weights(weights.mean(axis=0), (weights, x))
        return Cross().sums(model, sleep, of_points, condition)


def log_likelihoods(
    model: AnyModel, sleep: Draws, x: PyTree, condition: PyTree | None = None
) -> Float[Array, "points sleep"]:
    """log p(x_m | z_n) of every pair.

    Example: `jax.nn.logsumexp(log_likelihoods(model, sleep, x), axis=1)` is log N p̂(x).
    """
    args = condition_arguments(condition)
    if not has_likelihood(model) and not (isinstance(model, Prior) and isinstance(model, Density)):
        raise TypeError(
            f"importance sampling needs p(x | z), and {type(model).__name__} gives only log p(z, x)"
            ". Give it `log_prior(z)` beside `log_joint(z, x)`, or `sample_latent`, `log_prior` and"
            " `likelihood`."
        )

    def one(z: PyTree, point: PyTree) -> Array:
        if has_likelihood(model):
            return model.likelihood(z, *args).log_prob(point)
        assert isinstance(model, Prior)
        return log_joint(model, z, point, condition) - model.log_prior(z, *args)

    return jax.lax.map(lambda point: jax.vmap(lambda z: one(z, point))(sleep.z), x)
