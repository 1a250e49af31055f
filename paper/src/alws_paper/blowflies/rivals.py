"""The blowfly model that ABC methods were tried on: Park et al. (2016), after Wood (2010).

    x_t = P x_{t−τ} exp(−x_{t−τ}/N0) e_t + x_{t−1} exp(−δ ε_t),
    e_t ~ Gamma(mean 1, deviation σ_p),   ε_t ~ Gamma(mean 1, deviation σ_d),

on the scale of the counts, one step from each count to the next, without observation noise. The
first 50 steps are dropped. Parameters are in logarithms, in the order P, δ, N0, σ_d, σ_p, τ, with
the independent normal priors of Meeds & Welling (2014) and Park et al.

K2-ABC takes ε as its authors did: the last quarter of the counts is held out, and its histogram
compared with those of simulations at the posterior mean.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from alws_paper.blowflies.closeness import summary_statistics, wood_statistics
from alws_paper.blowflies.k2_abc import K2ABC, k2_abc
from alws_paper.blowflies.synthetic_likelihood import pilot, synthetic_likelihood
from alws_paper.shared.gamma_draws import log_gamma

PRIOR_MEAN = (2.0, -1.0, 5.0, -0.5, -0.5, 2.0)
PRIOR_DEVIATION = (2.0, 0.4, 0.5, 1.0, 1.0, 1.0)
BURN_IN = 50
START = 180.0
"""How many flies there are before the first step."""
LONGEST_DELAY = 64
HINDSIGHT = "in hindsight"
EPSILONS = tuple(float(e) for e in np.logspace(-5, -1, 9))


class Posterior(NamedTuple):
    """Log parameters drawn from a posterior, and their mean."""

    draws: Float[Array, "draws 6"]
    mean: Float[Array, "6"]


class K2Posterior(NamedTuple):
    """The posterior at the ε that was chosen, and the posterior means at every ε of the grid."""

    chosen: Posterior
    epsilon: float
    means: Float[Array, "epsilons 6"]


def sample_prior(key: Key[Array, ""]) -> Float[Array, "6"]:
    """Log parameters from the prior."""
    return jnp.array(PRIOR_MEAN) + jnp.array(PRIOR_DEVIATION) * jax.random.normal(key, (6,))


def log_prior(log_parameters: Float[Array, "6"]) -> Float[Array, ""]:
    """The log density of the prior."""
    density = jax.scipy.stats.norm.logpdf
    return density(log_parameters, jnp.array(PRIOR_MEAN), jnp.array(PRIOR_DEVIATION)).sum()


def simulate(
    key: Key[Array, ""], log_parameters: Float[Array, "6"], times: int = 180
) -> Float[Array, " times"]:
    """Counts from the model; the delay is rounded, and kept between 1 and 64 steps.

    Example: `simulate(key, sample_prior(key))`.
    """
    births, deaths, capacity, death_noise, birth_noise, delay = jnp.exp(log_parameters)
    lag = jnp.clip(jnp.round(delay), 1, LONGEST_DELAY).astype(int)
    steps = BURN_IN + times
    shapes = jnp.repeat(jnp.stack([birth_noise, death_noise]) ** -2, steps)
    noise = (jnp.exp(log_gamma(key, shapes)) / shapes).reshape(2, steps)

    def step(state: tuple[Array, Array], item: tuple) -> tuple[tuple[Array, Array], Array]:
        line, last = state
        t, (born, died) = item
        old = line[(t - lag) % LONGEST_DELAY]
        new = births * old * jnp.exp(-old / capacity) * born + last * jnp.exp(-deaths * died)
        return (line.at[t % LONGEST_DELAY].set(new), new), new

    first = jnp.full(LONGEST_DELAY, START), jnp.array(START)
    _, counts = jax.lax.scan(step, first, (jnp.arange(steps), tuple(noise)))
    return counts[BURN_IN:]


@partial(jax.jit, static_argnames="times")
def simulate_each(
    key: Key[Array, ""], log_parameters: Float[Array, "draws 6"], times: int = 180
) -> Float[Array, "draws times"]:
    """One sequence of counts for each set of parameters."""
    keys = jax.random.split(key, len(log_parameters))
    return jax.vmap(lambda k, p: simulate(k, p, times))(keys, log_parameters)


def fit_k2(
    counts: Float[Array, " times"], *, key: Key[Array, ""], draws: int, kept: int = 1000
) -> K2Posterior:
    """`kept` draws from the posterior of K2-ABC, which compares the distributions of the counts."""
    train_key, loss_key, key, choice_key = jax.random.split(key, 4)

    def posterior(data: Array, key: Key[Array, ""]) -> K2ABC:
        def sample(key: Key[Array, ""], log_parameters: Array) -> Array:
            return simulate(key, log_parameters, len(data))[:, None]

        return k2_abc(sample, sample_prior, data[:, None], key=key, number=draws)

    seen, held_out = jnp.split(counts, [3 * len(counts) // 4])
    trained = posterior(seen, train_key)
    epsilon = min(EPSILONS, key=lambda e: histogram_distance(held_out, trained.mean(e), loss_key))
    found = posterior(counts, key)
    chosen = Posterior(found.sample(choice_key, epsilon, kept), found.mean(epsilon))
    return K2Posterior(chosen, epsilon, jnp.stack([found.mean(e) for e in EPSILONS]))


def histogram_distance(
    counts: Float[Array, " times"],
    log_parameters: Float[Array, "6"],
    key: Key[Array, ""],
    simulations: int = 200,
) -> float:
    """The mean Euclidean distance of histograms in ten bins over the range of the counts."""
    edges = jnp.linspace(counts.min(), counts.max(), 11)[1:-1]

    def histogram(x: Array) -> Int[Array, "10"]:
        return jnp.bincount(jnp.searchsorted(edges, x), length=10)

    again = simulate_each(key, jnp.tile(log_parameters, (simulations, 1)), len(counts))
    off = jax.vmap(histogram)(again) - histogram(counts)
    return float(jnp.sqrt((off**2).sum(axis=1)).mean())


def fit_synthetic_likelihood(
    counts: Float[Array, " times"],
    statistics: Callable[[Array], Float[Array, " statistics"]],
    *,
    key: Key[Array, ""],
    pilot_draws: int,
    chains: int,
    steps: int,
    chain_simulations: int,
    kept: int = 1000,
) -> Posterior:
    """`kept` draws from the second half of Markov chains, which start as `pilot` says."""
    pilot_key, chain_key, choice_key = jax.random.split(key, 3)
    observed = statistics(counts)

    def simulated(key: Key[Array, ""], log_parameters: Array) -> Array:
        return statistics(simulate(key, log_parameters, len(counts)))

    start = pilot(
        simulated,
        sample_prior,
        log_prior,
        observed,
        key=pilot_key,
        draws=pilot_draws,
        chains=chains,
        simulations=chain_simulations,
    )
    found = synthetic_likelihood(
        simulated,
        log_prior,
        observed,
        start,
        key=chain_key,
        steps=steps,
        simulations=chain_simulations,
    )
    draws = found.after(steps // 2)
    return Posterior(jax.random.choice(choice_key, draws, (kept,)), draws.mean(axis=0))


def by_k2(
    counts: Float[Array, " times"], *, key: Key[Array, ""], draws: int, simulations: int
) -> dict[str, Float[Array, "simulations times"]]:
    """Counts simulated from the posterior of K2-ABC, from its mean, and from the mean at every ε.

    The last, named "in hindsight", show what the method could do if the best ε were known.
    """
    fit_key, key = jax.random.split(key)
    found = fit_k2(counts, key=fit_key, draws=draws, kept=simulations)
    simulated = _from_posterior("", found.chosen, key, len(counts))
    for epsilon, mean in zip(EPSILONS, found.means, strict=True):
        name = f"posterior mean, {HINDSIGHT} ε = {epsilon:.1e}"
        simulated[name] = simulate_each(key, jnp.tile(mean, (simulations, 1)), len(counts))
    return simulated


def by_synthetic_likelihood(
    counts: Float[Array, " times"], *, key: Key[Array, ""], simulations: int, **chains: int
) -> dict[str, Float[Array, "simulations times"]]:
    """Counts simulated from the posterior and from its mean, with each of two sets of statistics.

    `chains` are the settings of `fit_synthetic_likelihood`.
    """
    kinds = {
        "Wood's statistics, ": lambda x: wood_statistics(x, counts),
        "the ten statistics, ": summary_statistics,
    }
    simulated = {}
    for name, statistics in kinds.items():
        key, fit_key, draw_key = jax.random.split(key, 3)
        found = fit_synthetic_likelihood(
            counts, statistics, key=fit_key, kept=simulations, **chains
        )
        simulated |= _from_posterior(name, found, draw_key, len(counts))
    return simulated


def _from_posterior(
    name: str, posterior: Posterior, key: Key[Array, ""], times: int
) -> dict[str, Float[Array, "simulations times"]]:
    """A sequence from each draw, and as many from the mean."""
    mean = jnp.tile(posterior.mean, (len(posterior.draws), 1))
    return {
        f"{name}posterior": simulate_each(key, posterior.draws, times),
        f"{name}posterior mean": simulate_each(key, mean, times),
    }
