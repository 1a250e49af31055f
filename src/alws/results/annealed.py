"""Held-out log likelihood of a model with continuous latents, by annealed importance sampling.

From z₀ ~ p(z) a chain moves towards p(z | x) through the densities

    f_β(z) = p(z) p(x | z)^β,   0 = β₀ < β₁ < … < β_T = 1,

by Hamiltonian transitions that leave each f_β as it is, and gathers the weight

    log w = Σ_t (β_t − β_{t−1}) log p(x | z_{t−1}),   E[w] = p(x)   (Neal 2001).

log of the mean of w over chains is therefore a lower bound on average, the tighter the more
temperatures. Run backwards from an exact posterior draw, which simulated data have, the same chain
gives an upper bound: the two enclose log p(x) (Grosse et al. 2015).

The step size of every image at every temperature comes from a pilot run with chains of its own, so
that it does not depend on the chains that are counted.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.model import AnyModel, Prior, in_own_precision, sample
from alws.results.hamiltonian import (
    Chains,
    Densities,
    evaluate,
    from_prior,
    path_densities,
    transition,
    unconstrained,
)
from alws.validation import (
    at_least,
    check_data,
    check_key,
    check_model,
    check_support,
    match_data,
    transforms_of,
)

SLOPE = 4.0
"""β_t is a sigmoid over [−4, 4], brought to [0, 1]: small steps at both ends."""
WANTED = 0.75
"""The acceptance that the step sizes are adapted to."""
GAIN = 0.3
"""How far the log step size moves in the pilot run for each unit of acceptance."""
FIRST = 0.1
PILOT_CHAINS = 4


class Annealed(NamedTuple):
    """log p(x) of each observation, how many chains carry its weight, and the acceptance."""

    log_likelihood: Float[Array, " observations"]
    effective_chains: Float[Array, " observations"]
    acceptance: Float[Array, " observations"]


class Enclosed(NamedTuple):
    """Lower and upper bounds, on average, of log p(x) for simulated observations."""

    lower: Float[Array, " observations"]
    upper: Float[Array, " observations"]


@in_own_precision
def annealed_log_likelihood(
    model: AnyModel,
    x: PyTree,
    *,
    key: Key[Array, ""],
    temperatures: int = 500,
    chains: int = 16,
    leapfrog: int = 10,
    batch_size: int = 100,
    support: Any = None,
) -> Annealed:
    """Estimate log p_θ(x) of every observation by annealed importance sampling.

    The model has `log_prior`, and `likelihood` or `log_joint`; its latents are any pytree of
    floats.

    Arguments:
        model: the model.
        x: the observations, as leading axis.
        key: a JAX key.
        temperatures: how many steps lead from the prior to the posterior.
        chains: how many run for each observation.
        leapfrog: how many steps a move of a chain has.
        batch_size: how many observations are treated at a time.
        support: where latents are bounded, as in `alws.posterior_mode`.

    Example: `annealed_log_likelihood(result.model, test, key=key).log_likelihood.mean()`.
    """
    at_least("temperatures", temperatures, 1)
    at_least("chains", chains, 1)
    at_least("leapfrog", leapfrog, 1)
    at_least("batch_size", batch_size, 1)
    check_key(key)
    check_model(model, parameters=False)
    size = check_data(x, "x")
    x = match_data(model, x, key, name="x")
    check_support(model, x, key, name="x")
    transforms = _transforms(model, support, key)
    parts = []
    for first in range(0, size, batch_size):
        part = jax.tree.map(lambda a: a[first : first + batch_size], x)  # noqa: B023
        part_key = jax.random.fold_in(key, first)
        parts.append(_forward(model, part, transforms, part_key, temperatures, chains, leapfrog))
    return jax.tree.map(lambda *a: jnp.concatenate(a), *parts)


@in_own_precision
def enclosed_log_likelihood(
    model: AnyModel,
    *,
    key: Key[Array, ""],
    number: int = 100,
    temperatures: int = 500,
    chains: int = 16,
    leapfrog: int = 10,
    support: Any = None,
) -> Enclosed:
    """Both bounds for observations simulated by the model: how far to trust the estimate.

    Arguments:
        model, key, temperatures, chains, leapfrog, support: as `annealed_log_likelihood` takes
            them.
        number: how many observations are simulated.

    Example: `lower, upper = enclosed_log_likelihood(model, key=key)`; `(upper - lower).mean()`.
    """
    at_least("number", number, 1)
    at_least("temperatures", temperatures, 1)
    at_least("chains", chains, 1)
    at_least("leapfrog", leapfrog, 1)
    check_key(key)
    check_model(model, parameters=False)
    transforms = _transforms(model, support, key)
    draw_key, forward_key, reverse_key = jax.random.split(key, 3)
    z, x = jax.vmap(partial(sample, model))(jax.random.split(draw_key, number))
    lower = _forward(model, x, transforms, forward_key, temperatures, chains, leapfrog)
    upper = _reverse(model, z, x, transforms, reverse_key, temperatures, chains, leapfrog)
    return Enclosed(lower.log_likelihood, upper)


def schedule(temperatures: int) -> Float[Array, " times"]:
    """β₀ = 0 to β_T = 1 along a sigmoid.

    Example: `schedule(2)` is `[0, 0.5, 1]`.
    """
    raw = jax.nn.sigmoid(jnp.linspace(-SLOPE, SLOPE, temperatures + 1))
    return (raw - raw[0]) / (raw[-1] - raw[0])


@eqx.filter_jit
def _forward(
    model: AnyModel,
    x: PyTree,
    transforms: list[Any],
    key: Key[Array, ""],
    temperatures: int,
    chains: int,
    leapfrog: int,
) -> Annealed:
    beta = schedule(temperatures)
    density = path_densities(model, transforms, key)
    start_key, pilot_start, pilot_key, sweep_key = jax.random.split(key, 4)
    start = partial(from_prior, model, density, transforms, x)
    pilot = start(pilot_start, min(PILOT_CHAINS, chains))
    steps = _sweep(density, x, pilot, beta, None, pilot_key, leapfrog).steps
    found = _sweep(density, x, start(start_key, chains), beta, steps, sweep_key, leapfrog)
    weight = jax.nn.softmax(found.log_weight, axis=1)
    value = jax.nn.logsumexp(found.log_weight, axis=1) - jnp.log(chains)
    return Annealed(value, 1 / jnp.sum(weight**2, axis=1), found.acceptance)


@eqx.filter_jit
def _reverse(
    model: AnyModel,
    z: PyTree,
    x: PyTree,
    transforms: list[Any],
    key: Key[Array, ""],
    temperatures: int,
    chains: int,
    leapfrog: int,
) -> Float[Array, " observations"]:
    """The same backwards, every chain from the exact posterior draw z."""
    beta = schedule(temperatures)
    density = path_densities(model, transforms, key)
    pilot_start, pilot_key, sweep_key = jax.random.split(key, 3)
    pilot = from_prior(model, density, transforms, x, pilot_start, min(PILOT_CHAINS, chains))
    steps = _sweep(density, x, pilot, beta, None, pilot_key, leapfrog).steps
    u = jax.vmap(partial(unconstrained, transforms))(z)
    u = jnp.repeat(u[:, None], chains, axis=1)
    at = evaluate(density, x, u)
    found = _sweep(density, x, at, beta, steps, sweep_key, leapfrog, reverse=True)
    return jnp.log(chains) - jax.nn.logsumexp(-found.log_weight, axis=1)


class Sweep(NamedTuple):
    """log w of every chain, the mean acceptance, and the step size at every temperature."""

    log_weight: Float[Array, "observations chains"]
    acceptance: Float[Array, " observations"]
    steps: Float[Array, "temperatures observations"]


def _sweep(
    density: Densities,
    x: PyTree,
    at: Chains,
    beta: Float[Array, " times"],
    steps: Float[Array, "temperatures observations"] | None,
    key: Key[Array, ""],
    leapfrog: int,
    reverse: bool = False,
) -> Sweep:
    """Take all chains through the temperatures, adapting the step size if none are given."""
    shape, dtype = at.u.shape, at.u.dtype
    temperatures = len(beta) - 1
    adapt = steps is None
    numbers = jnp.arange(temperatures)
    given = jnp.zeros((temperatures, shape[0]), dtype) if steps is None else steps

    def one(carry: tuple, item: tuple) -> tuple[tuple, tuple]:
        at, log_weight, log_step = carry
        number, before, now, step = item
        step = jnp.exp(log_step) if adapt else step
        momentum_key, accept_key = jax.random.split(jax.random.fold_in(key, number))
        momentum = jax.random.normal(momentum_key, shape, dtype)
        chance = jax.random.uniform(accept_key, shape[:2], dtype)
        gathered = log_weight + (now - before) * at.likelihood
        moved, accepted = transition(density, x, at, now, step, momentum, chance, leapfrog)
        if reverse:
            gathered = log_weight + (now - before) * moved.likelihood
        rate = accepted.mean(axis=1)
        log_step = log_step + GAIN * (rate - WANTED)
        return (moved, gathered, log_step), (rate, step)

    first = (at, jnp.zeros(shape[:2], dtype), jnp.full(shape[0], jnp.log(FIRST), dtype))
    items = (numbers, beta[:-1].astype(dtype), beta[1:].astype(dtype), given)
    (_, log_weight, _), (rates, used) = jax.lax.scan(one, first, items, reverse=reverse)
    return Sweep(log_weight, rates.mean(axis=0), used)


def _transforms(model: AnyModel, support: Any, key: Key[Array, ""]) -> list[Any]:
    """One transform for each leaf of z; refuse models that the path cannot be had for."""
    if not isinstance(model, Prior):
        raise TypeError(
            f"{type(model).__name__} must have `log_prior(z)` beside `log_joint(z, x)`, as the "
            "path goes from the prior to the posterior. Add that method."
        )
    latent = jax.eval_shape(lambda k: sample(model, k).z, key)
    for path, leaf in jax.tree_util.tree_flatten_with_path(latent)[0]:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                "annealed importance sampling follows gradients, so z must be floating point; z"
                f"{jax.tree_util.keystr(path)} is {leaf.dtype}. If it has few values use "
                "`enumerated_log_likelihood`, else `importance_log_likelihood`."
            )
    return transforms_of(support, latent)


__all__ = ["Annealed", "Enclosed", "annealed_log_likelihood", "enclosed_log_likelihood"]
