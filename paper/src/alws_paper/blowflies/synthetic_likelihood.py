"""Synthetic likelihood (Wood 2010): summary statistics taken as Gaussian, fitted at each θ.

    log p(s* | θ) ≈ log N(s*; μ̂_θ, Σ̂_θ),   μ̂, Σ̂ from statistics simulated at θ,

explored with the prior by Markov chains. The chains propose from each other's differences
(differential evolution, ter Braak 2006), so that no proposal has to be tuned. Each keeps the
estimate of the likelihood that its present θ was accepted with.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key


class Chains(NamedTuple):
    """θ of every chain after every step, the log posterior, and the share of proposals accepted."""

    parameters: Float[Array, "steps chains parameters"]
    log_posterior: Float[Array, "steps chains"]
    accepted: Float[Array, ""]

    def after(self, steps: int) -> Float[Array, "draws parameters"]:
        """The draws of all chains after the first `steps`."""
        return self.parameters[steps:].reshape(-1, self.parameters.shape[-1])


def gaussian_log_likelihood(
    simulated: Float[Array, "simulations statistics"], observed: Float[Array, " statistics"]
) -> Float[Array, ""]:
    """log N(s*; μ̂, Σ̂) with mean and covariance of the simulated statistics; −∞ if not finite.

    Statistics are measured in their standard deviations, so that their units do not matter.
    """
    mean, deviation = simulated.mean(axis=0), simulated.std(axis=0)
    unit = jnp.where(deviation > 0, deviation, 1.0)
    rows, off = (simulated - mean) / unit, (observed - mean) / unit
    covariance = rows.T @ rows / (len(rows) - 1) + 1e-6 * jnp.eye(len(observed))
    lower = jnp.linalg.cholesky(covariance)
    white = jax.scipy.linalg.solve_triangular(lower, off, lower=True)
    log_determinant = jnp.log(jnp.diagonal(lower)).sum() + jnp.log(unit).sum()
    value = -(white @ white) / 2 - log_determinant - len(off) * np.log(2 * np.pi) / 2
    return jnp.where(jnp.isfinite(value), value, -jnp.inf)


def _log_posteriors(
    simulate: Callable[[Key[Array, ""], Array], Float[Array, " statistics"]],
    log_prior: Callable[[Array], Float[Array, ""]],
    observed: Float[Array, " statistics"],
    simulations: int,
    keys: Key[Array, " points"],
    parameters: Float[Array, "points parameters"],
) -> Float[Array, " points"]:
    """Estimates of the log posterior, one point after the other."""

    def one(item: tuple[Key[Array, ""], Array]) -> Array:
        key, theta = item
        statistics = jax.vmap(simulate, (0, None))(jax.random.split(key, simulations), theta)
        return gaussian_log_likelihood(statistics, observed) + log_prior(theta)

    return jax.lax.map(one, (keys, parameters))


def synthetic_likelihood(
    simulate: Callable[[Key[Array, ""], Array], Float[Array, " statistics"]],
    log_prior: Callable[[Array], Float[Array, ""]],
    observed: Float[Array, " statistics"],
    start: Float[Array, "chains parameters"],
    *,
    key: Key[Array, ""],
    steps: int,
    simulations: int = 500,
) -> Chains:
    """Sample the posterior under the synthetic likelihood, from one row of `start` for each chain.

    `simulate(key, θ)` gives the statistics of one simulation; `simulations` of them make one
    estimate. Take several times as many chains as parameters.

    Example: `synthetic_likelihood(simulate, log_prior, observed, start, key=key, steps=500)`.
    """
    chains, size = start.shape
    if chains < 4 or chains % 2:
        raise ValueError(
            f"`start` must have an even number of chains, at least 4, got {chains}: each half "
            "proposes from the differences in the other."
        )
    if simulations < len(observed) + 2:
        raise ValueError(
            f"`simulations` must be at least {len(observed) + 2}, two more than there are "
            f"statistics, for their covariance; got {simulations}."
        )
    half = chains // 2

    log_posteriors = partial(_log_posteriors, simulate, log_prior, observed, simulations)

    def move(theta: Array, now: Array, others: Array, jump: Array, key: Key[Array, ""]) -> tuple:
        """One half moves by differences of pairs of the other."""
        pair_key, noise_key, estimate_key, accept_key = jax.random.split(key, 4)
        pairs = jax.vmap(lambda k: jax.random.choice(k, half, (2,), replace=False))(
            jax.random.split(pair_key, half)
        )
        difference = others[pairs[:, 0]] - others[pairs[:, 1]]
        proposed = theta + jump * difference + 1e-3 * jax.random.normal(noise_key, theta.shape)
        value = log_posteriors(jax.random.split(estimate_key, half), proposed)
        taken = jnp.log(jax.random.uniform(accept_key, (half,))) < value - now
        return jnp.where(taken[:, None], proposed, theta), jnp.where(taken, value, now), taken

    def step(state: tuple[Array, Array], item: tuple[Array, Array]) -> tuple[tuple, tuple]:
        theta, now = state
        key, number = item
        jump = jnp.where(number % 10 == 9, 1.0, 2.38 / np.sqrt(2 * size))
        keys = jax.random.split(key)
        first, first_now, first_taken = move(theta[:half], now[:half], theta[half:], jump, keys[0])
        second, second_now, second_taken = move(theta[half:], now[half:], first, jump, keys[1])
        state = jnp.concatenate([first, second]), jnp.concatenate([first_now, second_now])
        return state, (*state, jnp.concatenate([first_taken, second_taken]))

    @jax.jit
    def run(start: Array, key: Key[Array, ""]) -> tuple[Array, Array, Array]:
        first_key, steps_key = jax.random.split(key)
        now = log_posteriors(jax.random.split(first_key, chains), start)
        items = jax.random.split(steps_key, steps), jnp.arange(steps)
        return jax.lax.scan(step, (start, now), items)[1]

    parameters, values, taken = run(start, key)
    return Chains(parameters, values, taken.mean())


def pilot(
    simulate: Callable[[Key[Array, ""], Array], Float[Array, " statistics"]],
    sample_prior: Callable[[Key[Array, ""]], Float[Array, " parameters"]],
    log_prior: Callable[[Array], Float[Array, ""]],
    observed: Float[Array, " statistics"],
    *,
    key: Key[Array, ""],
    draws: int,
    chains: int,
    simulations: int,
) -> Float[Array, "chains parameters"]:
    """Where to start: of many draws from the prior, those with the highest log posterior.

    One simulation of each draw tells which ten times as many as there are chains come nearest to
    the observed statistics, in median absolute deviations; the log posterior is estimated at these.
    """
    prior_key, first_key, second_key = jax.random.split(key, 3)

    @jax.jit
    def nearest(parameters: Array, keys: Array) -> Array:
        def one(item: tuple[Array, Array]) -> Array:
            return simulate(*item)

        statistics = jax.lax.map(one, (keys, parameters), batch_size=500)
        centre = jnp.nanmedian(statistics, axis=0)
        spread = jnp.nanmedian(jnp.abs(statistics - centre), axis=0)
        distance = jnp.linalg.norm((statistics - observed) / (spread + 1e-12), axis=1)
        order = jnp.argsort(jnp.where(jnp.isfinite(distance), distance, jnp.inf))
        return parameters[order[: 10 * chains]]

    parameters = jax.vmap(sample_prior)(jax.random.split(prior_key, draws))
    candidates = nearest(parameters, jax.random.split(first_key, draws))
    keys = jax.random.split(second_key, len(candidates))
    values = jax.jit(partial(_log_posteriors, simulate, log_prior, observed, simulations))(
        keys, candidates
    )
    return candidates[jnp.argsort(-values)[:chains]]
