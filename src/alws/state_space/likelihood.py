"""The log likelihood of sequences under a model, with its error, by the filter that fits the model.

| the latent | filter | error |
|---|---|---|
| takes few values, and is all that is remembered | the forward algorithm | none |
| moves and is seen linearly, with normal noise | the Kalman filter | none |
| is one continuous number, and all that is remembered | a grid | half the step, twice the range |
| anything else | particles | from independent repeats |

    found = alws.state_space.sequence_log_likelihood(result.model, x, given, key=key)
    found.value.sum(), (found.error**2).sum() ** 0.5
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from alws.state_space.filters import increments
from alws.state_space.grid import place
from alws.state_space.kinds import NAMES, Filter, find_filter
from alws.state_space.model import Given, StateSpace
from alws.state_space.particles import particle_increments
from alws.validation import (
    as_arrays,
    at_least,
    check_data,
    check_key,
    check_log_joint,
    check_model,
    instance,
    match_conditions,
    match_data,
)

ENOUGH = 0.3
"""The standard deviation of log p̂ below which no more particles are taken."""

MOST_MOVES = 4e8
"""How many moves of particles, in all repeats of a sequence, are made before that is given up."""

FEWEST, MOST = 512, 2**17
"""Particles to begin with, and the most that are taken."""


STRETCH = 64
"""How many times of a long sequence are taken together where its variance is judged."""


class LogLikelihood(NamedTuple):
    """log p(x) of every sequence, its standard error, and the filter it comes from.

    The error is 0 where the filter is exact, half the difference that a finer grid makes, and of
    particles the standard error of independent repeats. Where no particle explains a sequence the
    value is −∞ and the error ∞.

    Example: `found.value.sum()` is the log likelihood of all sequences together.
    """

    value: Float[np.ndarray, " sequences"]
    error: Float[np.ndarray, " sequences"]
    method: str


def sequence_log_likelihood(
    model: StateSpace,
    x: PyTree,
    given: Given | None = None,
    *,
    key: Key[Array, ""],
    particles: int | None = None,
    repeats: int = 16,
) -> LogLikelihood:
    """log p(x) of each sequence with its error, by the filter that fits the model.

    Arguments:
        model: a state-space model.
        x: the sequences as leading axis, time next, as `alws.fit` takes them.
        given: their conditions, as `alws.sequences` makes them.
        key: for the draws that show what the model is, and for the particles.
        particles: use this many, whatever the model; by default as many as bring the standard
            deviation of log p̂(x) below 0.3, where no other filter serves.
        repeats: of the particle filter, from which the error is judged.

    Example:
        >>> x, given = alws.sequences([first, second])
        >>> sequence_log_likelihood(result.model, x, given, key=key).value
    """
    example = "Write it as `class MyModel(alws.StateSpace)`."
    instance("model", model, StateSpace, "a state-space model", example)
    check_key(key)
    at_least("repeats", repeats, 4, " The error is judged from them.")
    if particles is not None:
        at_least("particles", particles, 10)
    check_model(model, parameters=False)
    size = check_data(x, "x")
    with jax.enable_x64(True):
        model, given = doubled((model, match_conditions(given, size)))
        first = None if given is None else jax.tree.map(lambda a: a[0], given)
        x = match_data(model, jax.tree.map(_doubled_numbers, as_arrays(x)), key, first, name="x")
        check_observed(given)
        check_log_joint(model, key, 16, first)
        if particles is not None:
            return _by_particles(model, x, given, key, particles, repeats)
        kind = find_filter(model, key, Given() if first is None else first)
        if kind.kind in ("forward", "kalman"):
            value = np.asarray(_each(model, kind, x, given))
            return LogLikelihood(value, np.zeros(size), NAMES[kind.kind])
        if kind.kind == "grid":
            found = _by_grid(model, kind, x, given, key)
            if found is not None:
                return found
        return _by_particles(model, x, given, key, None, repeats)


def doubled(tree: PyTree) -> PyTree:
    """All floating-point arrays as long as JAX has them now, everything else as it is.

    Example: `with jax.enable_x64(True): model = doubled(model)`.
    """
    return jax.tree.map(lambda a: jnp.asarray(a, float) if eqx.is_inexact_array(a) else a, tree)


def _doubled_numbers(a: Any) -> Any:
    a = np.asarray(a)
    return a.astype(float) if np.issubdtype(a.dtype, np.floating) else a


def check_observed(given: Given | None) -> None:
    """Refuse sequences of which nothing was observed.

    Example: `check_observed(Given(observed=jnp.ones((3, 50), bool)))`.
    """
    if given is None or given.observed is None:
        return
    empty = np.flatnonzero(~np.asarray(given.observed).any(axis=1))
    if len(empty):
        raise ValueError(
            f"every sequence must have an observed time; {len(empty)} have none, the first of them "
            f"at index {empty[0]}. Leave them out."
        )


@eqx.filter_jit
def _each(
    model: StateSpace, kind: Filter, x: PyTree, given: Given | None
) -> Float[Array, " sequences"]:
    given = Given() if given is None else given
    return jax.vmap(lambda x, g: increments(model, kind, x, g).sum())(x, given)


def _by_grid(
    model: StateSpace, kind: Filter, x: PyTree, given: Given | None, key: Key[Array, ""]
) -> LogLikelihood | None:
    placed = place(model, x, given, key)
    if placed.reason:
        return None
    values = [
        np.asarray(_each(model, kind._replace(values=jnp.asarray(nodes)), x, given))
        for nodes in (placed.nodes, placed.fine)
    ]
    error = np.maximum(np.abs(values[1] - values[0]), placed.error / len(values[0]))
    return LogLikelihood(values[1], error, f"{NAMES['grid']} of {placed.fine.shape[1]} nodes")


def _by_particles(
    model: StateSpace,
    x: PyTree,
    given: Given | None,
    key: Key[Array, ""],
    particles: int | None,
    repeats: int,
) -> LogLikelihood:
    size, times = len(jax.tree.leaves(x)[0]), jax.tree.leaves(x)[0].shape[1]
    first = int(np.clip(MOST_MOVES / (times * repeats), FEWEST / 8, FEWEST))
    values, errors, most = np.zeros(size), np.zeros(size), 0
    for i, one_key in enumerate(jax.random.split(key, size)):
        one, its = jax.tree.map(lambda a: a[i], (x, Given() if given is None else given))  # noqa: B023
        number = particles or first
        while True:
            found = np.asarray(_repeated(model, one, its, one_key, number, repeats))
            values[i], errors[i], spread = combined(found)
            most = max(most, number)
            enough = particles is not None or spread < ENOUGH or number >= MOST
            if enough or 4 * number * times * repeats > MOST_MOVES:
                break
            number *= 4
    return LogLikelihood(values, errors, f"particles, up to {most} of them, {repeats} times")


@eqx.filter_jit
def _repeated(
    model: StateSpace, x: PyTree, given: Given, key: Key[Array, ""], particles: int, repeats: int
) -> Float[Array, "repeats times"]:
    keys = jax.random.split(key, repeats)
    return jax.lax.map(
        lambda key: particle_increments(model, x, given, key=key, particles=particles), keys
    )


def combined(found: Float[np.ndarray, "repeats times"]) -> tuple[float, float, float]:
    """log p(x), its standard error and the standard deviation of log p̂, from increments.

    Of a long sequence the variance is the sum of those of stretches, and of twice the covariances
    of neighbours: filters forget, and many small variances are known better than one large one.
    What a third moment would add to the logarithm of a mean counts as error.

    Example: `combined(np.zeros((4, 100)))` is (0, 0, 0).
    """
    repeats, times = found.shape
    totals = found.sum(axis=1)
    if not np.isfinite(totals).all():
        return -np.inf, np.inf, np.inf
    whole = totals.var(ddof=1)
    variance, doubt = whole, whole**2 / (2 * (repeats - 1))
    third = ((totals - totals.mean()) ** 3).mean()
    stretches = times // STRETCH
    if whole > 1 and stretches >= 8:
        parts = np.add.reduceat(found, np.arange(stretches) * STRETCH, axis=1)
        parts = parts - parts.mean(axis=0)
        each = (parts**2).sum(axis=0) / (repeats - 1)
        neighbours = (parts[:, 1:] * parts[:, :-1]).sum() / (repeats - 1)
        variance = max(each.sum() + 2 * neighbours, 0.0)
        doubt = 1.5 * (each**2).sum() / (repeats - 1)
        third = (parts**3).mean(axis=0).sum()
    error = (variance / repeats + doubt + (third / 6) ** 2) ** 0.5
    return float(totals.mean() + variance / 2), float(error), float(whole**0.5)


__all__ = ["LogLikelihood", "check_observed", "combined", "doubled", "sequence_log_likelihood"]
