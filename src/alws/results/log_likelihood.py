"""The log likelihood of a model as it is, with its Monte-Carlo standard error, for any model.

What a model allows is found by asking it, the exact before the estimated:

1. sequences: the forward algorithm, the Kalman filter, or whatever filter there is;
2. latents of few values, whose combinations are not too many: the sum over all of these;
3. continuous latents, and others that take few values together: weighted points under each
   posterior (`alws.maximum.weighted`);
4. continuous latents of a model with `log_prior`: annealed importance sampling;
5. any others: importance sampling from proposals that begin with what a regression on simulations
   says of the latents and learn from their weights (`alws.maximum.proposals`).

An estimate that cannot be trusted says so, and where there is none it is refused.
"""

import math
import warnings
from collections.abc import Callable
from time import process_time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree
from numpyro.distributions import constraints

from alws.fit import Result, opened
from alws.maximum import NotIntegrable, precise_data
from alws.maximum.proposals import (
    Entries,
    Marginals,
    learn_and_weigh,
    prior_marginals,
    split_entries,
)
from alws.maximum.weighted import log_means, weighted_log_likelihood
from alws.model import AnyModel, Draws, Prior, in_own_precision, log_joint
from alws.results.annealed import annealed_log_likelihood, enclosed_log_likelihood
from alws.results.held_out import enumerated_log_likelihood
from alws.results.posterior import expectation
from alws.state_space import StateSpace, sequence_log_likelihood
from alws.validation import (
    check_data,
    check_key,
    check_log_joint,
    check_model,
    check_support,
    match_conditions,
    match_data,
    positive,
    warn_of_extrapolation,
)

LOOK = 4096
"""How many draws show what the latents are."""

MOST_COMBINATIONS, MOST_TERMS = 2**16, 1e9
"""How many combinations of values are summed over, and how many terms in all."""

CHAINS, TEMPERATURES = 16, (100, 400, 1600)
"""Of annealed importance sampling; more temperatures while the error is too large."""

DRAWS = 2000
"""How many draws weigh an observation's latents at a time, in importance sampling."""

MOST_TARGETS = 300
"""How many numbers of the latents are regressed; for more the proposals begin with the prior."""

FEWEST = 5.0
"""The effective number of draws an observation needs for its error to be believed."""


class LogLikelihood(NamedTuple):
    """Σ_i log p_θ(x_i) with its standard error, that of every observation with its own, and how.

    `why` says why the estimate cannot be trusted, and is empty where it can. An error of 0 is that
    of an exact likelihood.

    Example: `print(alws.log_likelihood(model, data, key=key))` is "-123.46 ± 0.02, by …".
    """

    total: float
    error: float
    each: Float[np.ndarray, " observations"]
    errors: Float[np.ndarray, " observations"]
    method: str
    why: str = ""

    @property
    def trusted(self) -> bool:
        """Whether the standard error can be believed."""
        return not self.why

    def __str__(self) -> str:
        digits = 1 - math.floor(math.log10(max(self.error, 1e-5))) if self.error < 0.1 else 2
        exact = f"{self.total:.4f}"
        number = f"{self.total:.{digits}f} ± {self.error:.{digits}f}" if self.error else exact
        told = f"{number}, by {self.method}"
        return f"{told}; not to be trusted, because {self.why}" if self.why else told


class NoLikelihood(ValueError):
    """The log likelihood cannot be had; the message says why, way by way."""


class _Question(NamedTuple):
    """What the ways to a likelihood are asked."""

    model: Any
    x: PyTree
    precise: PyTree
    conditions: PyTree | None
    draws: Draws
    key: Key[Array, ""]
    tolerance: float
    late: Callable[[], bool]
    seconds: float


class _No(Exception):
    """A way to the likelihood is not open; the message says why."""


@in_own_precision
def log_likelihood(
    model: AnyModel | Result,
    data: PyTree,
    *,
    key: Key[Array, ""],
    conditions: PyTree | None = None,
    tolerance: float = 0.1,
    seconds: float = 60.0,
) -> LogLikelihood:
    """Σ_i log p_θ(x_i) of any model, with its Monte-Carlo standard error.

    Sums are exact where latents take few values, filters where sequences have one. What has to be
    estimated is, until its standard error is below `tolerance` or the time is up. One that cannot
    be trusted, as few draws carry its weight or simulations show that places are missed, says why
    in `why` and in a warning; where there is no estimate at all, `NoLikelihood` is raised.

    Arguments:
        model: a model as `alws.fit` takes it, or the result of a fit, which warns of conditions
            outside those it had.
        data: an array or a pytree of arrays, the observations as leading axis.
        key: a JAX key, on which all random numbers depend.
        conditions: one entry for each observation, if the model takes a condition.
        tolerance: the standard error, in nats over all data, that is small enough.
        seconds: of the processor, about the most that this takes.

    Example:
        >>> found = alws.log_likelihood(result.model, held_out, key=jax.random.key(1))
        >>> print(found.total, found.error)
    """
    check_key(key)
    model, seen = opened(model)
    check_model(model, parameters=False)
    positive("tolerance", tolerance, " 0.1 nats is usual.")
    positive("seconds", seconds)
    size = check_data(data)
    conditions = match_conditions(conditions, size)
    warn_of_extrapolation(seen, conditions)
    condition = jax.tree.map(lambda c: c[0], conditions)
    x = match_data(model, data, key, condition)
    check_support(model, x, key, condition, conditions=conditions)
    draws = check_log_joint(model, key, LOOK, condition)
    began = process_time()
    question = _Question(
        model, x, precise_data(data, x), conditions, draws, key, tolerance,
        lambda: process_time() - began > seconds, seconds,
    )  # fmt: skip
    reasons, found = [], None
    for way in (_filtered, _combined, _weighted, _annealed, _by_importance):
        try:
            other = way(question)
        except (_No, NotIntegrable) as error:
            reasons.append(str(error))
            continue
        found = other if found is None or _better(other, found) else found
        if found.trusted or question.late():
            break
    if found is None:
        raise NoLikelihood(
            f"the log likelihood of {type(model).__name__} cannot be had: {'; '.join(reasons)}. "
            "Give the model a `log_prior(z)`, or latents of fewer values."
        )
    if found.why:
        warnings.warn(
            f"the log likelihood should be known to its standard error, but {found.why}. More "
            "`seconds` may help.",
            RuntimeWarning,
            stacklevel=3,
        )
    return found


def _better(other: LogLikelihood, found: LogLikelihood) -> bool:
    """Whether another estimate is to be preferred to the one there is."""
    if other.trusted != found.trusted:
        return other.trusted
    return other.error < found.error


def _filtered(q: _Question) -> LogLikelihood:
    if not isinstance(q.model, StateSpace):
        raise _No("it is no state-space model")
    found = sequence_log_likelihood(q.model, q.x, q.conditions, key=q.key)
    lost = int(np.isinf(found.error).sum())
    why = f"no particle explains {lost} of {len(found.error)} sequences" if lost else ""
    return _total(found.value, np.where(np.isinf(found.error), 0.0, found.error), found.method, why)


def _weighted(q: _Question) -> LogLikelihood:
    found = weighted_log_likelihood(
        q.model,
        q.precise,
        key=q.key,
        conditions=q.conditions,
        tolerance=q.tolerance,
        seconds=0.6 * q.seconds,
    )
    why = _doubt(found.each, found.errors)
    if not why and found.unseen > max(q.tolerance, 3 * found.error):
        why = f"points may miss {found.unseen:.2g} nats of what simulations show"
    return _total(found.each, found.errors, found.method, why)._replace(error=found.error)


def _combined(q: _Question) -> LogLikelihood:
    """The sum over all combinations of the values of every entry."""
    if q.conditions is not None:
        raise _No("all combinations of values are summed without conditions only")
    entries = split_entries(q.draws.z)
    if len(entries.continuous):
        raise _No("some latents are continuous, which no sum is exact for")
    sizes = (entries.share > 0).sum(axis=1)
    number = float(np.prod(sizes.astype(float)))
    size = len(jax.tree.leaves(q.x)[0])
    if number > MOST_COMBINATIONS or number * size > MOST_TERMS:
        raise _No(f"its latents have {number:.3g} combinations of values, too many to sum over")
    at = np.indices(sizes).reshape(len(sizes), -1)
    flat = np.take_along_axis(entries.values, at, axis=1).T
    leaves, start = [], 0
    for shape, dtype in entries.shapes[1]:
        width = int(np.prod(shape))
        leaves.append(flat[:, start : start + width].reshape(-1, *shape).astype(dtype))
        start += width
    values = entries.shapes[0].unflatten(leaves)
    try:
        each = np.asarray(enumerated_log_likelihood(q.model, q.x, values), np.float64)
    except ValueError as error:
        raise _No(f"not all values of its latents were seen: {error}") from error
    if np.isnan(each).any():
        raise _No("not every combination of values has a log joint")
    return _total(each, np.zeros_like(each), _in_words(int(number), len(sizes)))


def _in_words(values: int, entries: int) -> str:
    if entries == 1:
        return f"sums over the {values} values that the latents take"
    return f"sums over {values} combinations of the latents' values"


def _annealed(q: _Question) -> LogLikelihood:
    """Annealed importance sampling, with more temperatures until the error is small enough."""
    if q.conditions is not None:
        raise _No("annealed importance sampling takes no conditions")
    model: AnyModel = q.model
    if not isinstance(q.model, Prior):
        raise _No("it has no `log_prior(z)`, from which annealed importance sampling starts")
    for leaf in jax.tree.leaves(q.draws.z):
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or len(np.unique(leaf)) < 0.5 * leaf.size:
            raise _No("some latents are not continuous, as annealed importance sampling needs")
    support = jax.tree.map(_support, q.draws.z)
    found, temperatures = None, TEMPERATURES[0]
    for i, temperatures in enumerate(TEMPERATURES):
        part = annealed_log_likelihood(
            model, q.x, key=jax.random.fold_in(q.key, i), temperatures=temperatures,
            chains=CHAINS, support=support,
        )  # fmt: skip
        each = np.asarray(part.log_likelihood, np.float64)
        carry = np.asarray(part.effective_chains, np.float64)
        square = np.maximum(1 / carry - 1 / CHAINS, 0.0) * CHAINS / (CHAINS - 1)
        method = f"annealed importance sampling, {CHAINS} chains of {temperatures} temperatures"
        found = _total(each + square / 2, np.sqrt(square), method, _few(carry))
        if (found.error < q.tolerance and found.trusted) or q.late():
            break
    assert found is not None
    if found.why:
        return found
    bounds = enclosed_log_likelihood(
        model, key=q.key, number=32, temperatures=temperatures, chains=CHAINS, support=support
    )
    apart = np.asarray(bounds.upper - bounds.lower, np.float64)
    if apart.mean() > 0.3 + 3 * apart.std() / math.sqrt(len(apart)):
        why = f"bounds on simulated data are {apart.mean():.2g} nats apart for each"
        return found._replace(why=why)
    return found


def _support(leaf: Any) -> Any:
    """Where draws of a leaf lie: all numbers, positive ones, or those between 0 and 1."""
    low, high = float(np.min(leaf)), float(np.max(leaf))
    if low > 0 and high < 1:
        return constraints.unit_interval
    return constraints.positive if low > 0 else constraints.real


def _by_importance(q: _Question) -> LogLikelihood:
    """Importance sampling from proposals that learn."""
    entries = split_entries(q.draws.z)
    size = len(jax.tree.leaves(q.x)[0])
    first = _first_proposals(q, entries, size)
    run = eqx.filter_jit(_weights)
    runs: list[np.ndarray] = []
    found, effective = None, np.zeros(0)
    for i in range(20):
        keys = jax.random.split(jax.random.fold_in(q.key, i), size)
        obs = (q.x, q.conditions)
        runs.append(np.asarray(run(q.model, entries, first, obs, keys), np.float64).T)
        log_w = np.concatenate(runs)
        means = log_means(log_w)
        square = means.errors**2
        effective = len(log_w) / (1 + square * (len(log_w) - 1))
        method = f"importance sampling, {len(log_w)} draws for each"
        found = _total(means.each, means.errors, method, _few(effective))
        hopeless = i == 2 and np.median(effective) < 2
        if (found.error < q.tolerance and found.trusted) or q.late() or hopeless:
            break
    assert found is not None
    if (effective < FEWEST).mean() > 0.5:
        raise _No(f"in importance sampling {found.why}")
    return found


def _weights(
    model: AnyModel, entries: Entries, first: Marginals, obs: tuple, keys: Array
) -> Float[Array, "observations draws"]:
    def log_p(z: PyTree, o: tuple) -> Array:
        return log_joint(model, z, o[0], o[1])

    return learn_and_weigh(log_p, entries, first, obs, keys, DRAWS)


def _first_proposals(q: _Question, entries: Entries, size: int) -> Marginals:
    """What a regression on simulations says of the latents; with conditions, the prior."""
    prior = jax.tree.map(lambda a: jnp.broadcast_to(a, (size, *a.shape)), prior_marginals(entries))
    number = entries.values.size + 2 * len(entries.continuous)
    if q.conditions is not None or number > MOST_TARGETS:
        return prior

    def targets(z: PyTree) -> dict[str, Array]:
        flat = jnp.concatenate([jnp.ravel(a).astype(float) for a in jax.tree.leaves(z)])
        c = (flat[entries.continuous] - entries.location) / entries.scale
        one_hot = flat[entries.discrete][:, None] == entries.values
        first = jnp.argmax(one_hot, axis=1)[:, None] == jnp.arange(one_hot.shape[1])
        return {"c": c, "square": c**2, "values": (one_hot & first).astype(float)}

    try:
        said = expectation(q.model, targets, q.x, key=q.key, sleep_samples=1000)
    except (ValueError, TypeError, MemoryError):
        return prior
    p = jnp.clip(said["values"], 0.0, 1.0) + 0.05 * prior.probabilities
    p = jnp.where(prior.probabilities > 0, p, 0.0)
    p = p / jnp.maximum(p.sum(axis=2, keepdims=True), 1e-30)
    c = jnp.clip(said["c"], -4, 4)
    spread = jnp.sqrt(jnp.clip(said["square"] - c**2, 0.01, 4.0))
    return Marginals(p, prior.location + prior.scale * c, prior.scale * spread)


def _few(effective: np.ndarray) -> str:
    """Why an estimate with these effective numbers of draws cannot be trusted."""
    poor = int((effective < FEWEST).sum())
    if poor <= 0.01 * len(effective):
        return ""
    return (
        f"fewer than {FEWEST:g} draws carry the weight of {poor} of {len(effective)} observations"
    )


def _doubt(each: np.ndarray, errors: np.ndarray) -> str:
    """Why estimates with these errors cannot be trusted."""
    if np.isnan(each).any():
        return f"it is not a number for {int(np.isnan(each).sum())} of {len(each)} observations"
    if (errors > 0.5).any():
        return f"it is off by half a nat or more for {int((errors > 0.5).sum())} observations"
    return ""


def _total(each: np.ndarray, errors: np.ndarray, method: str, why: str = "") -> LogLikelihood:
    impossible = int(np.isneginf(each).sum())
    if impossible and errors.any() and not why:
        why = f"no draw gives {impossible} of {len(each)} observations any density"
    error = float(np.sqrt((errors**2).sum()))
    return LogLikelihood(
        float(each.sum()), error, each, errors, method, why or _doubt(each, errors)
    )


__all__ = ["LogLikelihood", "NoLikelihood", "log_likelihood"]
