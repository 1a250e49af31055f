"""The log likelihood of a model as it is, by the weighted points that a climb uses.

    p̂_r(x_m) = Σ_d (1/K) Σ_k p_θ(d, c_mdk, x_m) / q_md(c_mdk),    E[p̂_r(x_m)] = p_θ(x_m),

on independent sets of points r. Their mean is without bias, its logarithm nearly so, and their
spread gives the standard error. What an estimate cannot see by itself, a place that no point
reaches, is looked for on simulations: their own z is an exact draw from the posterior. The same
points give the posterior's expectations.
"""

from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from alws.maximum.latents import flat_rows, from_line, position_of, to_line
from alws.maximum.maximise import MISSED, Climber, NotIntegrable
from alws.maximum.points import Points, log_density
from alws.model import AnyModel, log_joint

FIRST, MOST = 8, 512
"""How many sets of points are drawn at first, and at most."""

LOOK = 1000
"""About how many simulations are looked at for places that no point reaches."""

FEW_MISSED = 3
"""How many simulations may be missed by chance."""


class LogMeans(NamedTuple):
    """log of the mean weight of each row's draws, almost without bias, and its standard error."""

    each: Float[np.ndarray, " rows"]
    errors: Float[np.ndarray, " rows"]


def log_means(log_weights: Float[np.ndarray, "draws rows"]) -> LogMeans:
    """log (1/R) Σ_r w_r with + ½ε², as E[log of a mean] is log E[w] − ½ε²; ε its relative error.

    Example: `log_means(np.zeros((8, 3))).errors` are zeros.
    """
    number = len(log_weights)
    top = log_weights.max(axis=0)
    fine = np.isfinite(top)
    w = np.exp(log_weights - np.where(fine, top, 0.0))
    mean = np.where(fine, w.mean(axis=0), 1.0)
    square = w.var(axis=0, ddof=1) / number / mean**2 if number > 1 else np.zeros_like(mean)
    each = np.where(fine, top + np.log(mean) + square / 2, top)
    return LogMeans(each, np.where(fine, np.sqrt(square), 0.0))


class Weighted(NamedTuple):
    """log p̂(x_m) of every observation, its standard error and that of their sum.

    `unseen` are the nats that places may hold which no point reaches, `method` says what was
    summed and integrated.
    """

    each: Float[np.ndarray, " observations"]
    errors: Float[np.ndarray, " observations"]
    error: float
    unseen: float
    method: str


def weighted_log_likelihood(
    model: AnyModel,
    data: PyTree[np.ndarray],
    *,
    key: Key[Array, ""],
    conditions: PyTree | None = None,
    tolerance: float = 0.1,
    seconds: float = 60.0,
) -> Weighted:
    """Σ_m log p̂(x_m), on more and more sets of points until its error is below the tolerance.

    In float64, or in the precision of JAX if the model's code does not allow it. Raises
    `NotIntegrable` where posteriors cannot be summed or integrated.

    Arguments:
        model, data, key, conditions: as `alws.fit` takes them, checked.
        tolerance: the standard error of the sum that is enough.
        seconds: of the processor, the most that this takes.

    Example: `weighted_log_likelihood(model, data, key=jax.random.key(0)).each.sum()`.
    """

    def attempt(wide: bool) -> Weighted:
        with jax.enable_x64(wide or jax.numpy.zeros(()).dtype == jax.numpy.float64):
            climber = Climber(model, data, key=key, conditions=conditions)
            return _weighted(climber, tolerance, seconds)

    try:
        return attempt(True)
    except (TypeError, ValueError):
        return attempt(False)


def _weighted(climber: Climber, tolerance: float, seconds: float) -> Weighted:
    began = process_time()
    climber.look()
    if climber.dimension == 0:
        runs, unseen = np.stack([_each(climber)]), 0.0
    else:
        for _ in range(2):
            climber.adapt()
        runs = _of_the_better_style(climber)
        while True:
            error = _error(log_means(runs), climber.copies)
            late = process_time() - began > 0.7 * seconds
            if error < tolerance or len(runs) >= MOST or late:
                break
            more = int(np.clip(len(runs) * (error / tolerance) ** 2, 2, len(runs)))
            runs = np.concatenate([runs, [_each(climber) for _ in range(more)]])
        unseen = climber.total * missed(climber)
    if climber.room > 1:
        unseen += climber.unseen()
    found = log_means(runs)
    each, errors = found.each[climber.inverse], found.errors[climber.inverse]
    return Weighted(each, errors, _error(found, climber.copies), unseen, climber.method())


def weighted_expectation(
    model: AnyModel,
    f: Callable[[PyTree], PyTree],
    data: PyTree[np.ndarray],
    *,
    key: Key[Array, ""],
    conditions: PyTree | None = None,
    sets: int = 8,
) -> PyTree[np.ndarray]:
    """E[f(z) | x_m] = Σ_k w_mk f(z_mk) of every observation, the mean over sets of points.

    Raises `NotIntegrable` where posteriors cannot be summed or integrated, or points miss some.

    Arguments:
        model, data, key, conditions: as `alws.fit` takes them, checked.
        f: of one latent, to a pytree of arrays.
        sets: how many independent sets of points.

    Example: `weighted_expectation(model, lambda z: z, data, key=jax.random.key(0))`.
    """

    def attempt(wide: bool) -> PyTree[np.ndarray]:
        with jax.enable_x64(wide or jax.numpy.zeros(()).dtype == jax.numpy.float64):
            return _expected(Climber(model, data, key=key, conditions=conditions), f, sets)

    try:
        return attempt(True)
    except (TypeError, ValueError):
        return attempt(False)


def _expected(climber: Climber, f: Callable[[PyTree], PyTree], sets: int) -> PyTree[np.ndarray]:
    climber.look()
    if climber.dimension:
        for _ in range(2):
            climber.adapt()
        _of_the_better_style(climber)
        if climber.share_missed() > MISSED:
            raise NotIntegrable("the points miss latents of simulated data")

    @jax.jit
    def mean(points: Points) -> PyTree[Array]:
        def one(leaf: Array) -> Array:
            w = points.w.reshape(*points.w.shape, *[1] * (leaf.ndim - points.w.ndim))
            total = jax.numpy.where(w > 0, w * leaf, 0.0).sum(axis=(1, 2))
            return total / w.sum(axis=(1, 2))

        return jax.tree.map(one, jax.vmap(jax.vmap(jax.vmap(f)))(points.z))

    proposal = climber.propose(climber.theta)[2]
    found = [
        mean(climber.place(climber.theta, proposal, climber.design()))
        for _ in range(sets if climber.dimension else 1)
    ]
    return jax.tree.map(lambda *a: np.mean(np.stack(a), axis=0)[climber.inverse], *found)


def _error(found: LogMeans, copies: np.ndarray) -> float:
    """The standard error of the sum; observations that are alike share theirs."""
    return float(np.sqrt(((copies * found.errors) ** 2).sum()))


def _each(climber: Climber) -> np.ndarray:
    """log p̂ of each distinct observation on a fresh set of points."""
    points = climber.place(climber.theta, climber.propose(climber.theta)[2], climber.design())
    return heights(climber, climber.obs, points)


def heights(climber: Climber, obs: PyTree, points: Points) -> np.ndarray:
    """log p̂ of observations on these points.

    Example: `heights(climber, climber.obs, points).sum()`.
    """
    return np.asarray(_heights(climber.machine.value, climber.theta, obs, points), np.float64)


@partial(jax.jit, static_argnums=0)
def _heights(value: Callable, theta: Array, obs: PyTree, points: Points) -> Array:
    return value(theta, obs, jax.numpy.ones(len(points.log_q)), points, False)[0]


def _of_the_better_style(climber: Climber) -> np.ndarray:
    """Sets of points of the style with the smaller error; both are without bias."""
    errors = {}
    for climber.style in ("student", "free"):
        runs = np.stack([_each(climber) for _ in range(4)])
        errors[climber.style] = _error(log_means(runs), climber.copies)
    climber.style = min(errors, key=lambda style: errors[style])
    return np.stack([_each(climber) for _ in range(FIRST)])


def missed(climber: Climber) -> float:
    """The share of simulations whose own z would outweigh all the points of their x.

    Example: `missed(climber)` after `climber.look()` and `climber.adapt()`.
    """
    assert climber.latents is not None
    rows = flat_rows(climber.z)
    found = position_of(np.asarray(climber.grid.values), rows[:, climber.latents.discrete])
    known, cell = found >= 0, np.maximum(found, 0)
    c = (to_line(climber.latents, rows) - climber.grid.location) / climber.grid.scale
    chosen = np.flatnonzero(known & np.isfinite(c).all(axis=1))
    weigh = jax.jit(partial(_weight, climber.unravel, climber.latents, climber.conditioned))
    over = []
    for i in range(int(np.clip(LOOK / climber.size, 1, 50))):
        at = np.resize(np.roll(chosen, -i * climber.size), climber.size)
        z, obs = jax.tree.map(lambda a: a[at], (climber.z, climber.simulated))  # noqa: B023
        proposal = climber.propose(climber.theta, 2, 10, obs, climber.unknown())[2]
        points = climber.machine.place(
            climber.theta, climber.grid, obs, proposal, *climber.design()
        )
        found = heights(climber, obs, points)
        q = jax.tree.map(lambda a: a[np.arange(climber.size), cell[at]], proposal)  # noqa: B023
        e = np.linalg.solve(np.asarray(q.root), (c[at] - np.asarray(q.mean))[..., None])[..., 0]
        own = np.asarray(weigh(climber.theta, climber.grid, z, obs, c[at], cell[at]), np.float64)
        own = own - (log_density(e, climber.style) - np.asarray(q.log_volume))
        over.append(own - found > np.log(climber.points))
    over = np.concatenate(over)[: len(chosen)]
    return float(over.mean()) if over.sum() > FEW_MISSED else 0.0


def _weight(
    unravel: Callable,
    latents: Any,
    conditioned: bool,
    theta: Array,
    grid: Any,
    z: PyTree,
    obs: tuple,
    c: Array,
    cell: Array,
) -> Array:
    """log of p_θ(z, x) in the coordinates of the line, of draws."""

    def one(z: PyTree, obs: tuple, c: Array, d: Array) -> Array:
        slope = from_line(latents, grid, grid.values[d], c)[1]
        return log_joint(unravel(theta), z, obs[0], obs[1] if conditioned else None) + slope

    return jax.vmap(one)(z, obs, c, cell)
