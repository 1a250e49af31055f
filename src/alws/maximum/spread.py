"""Other starts: a few observations are given latents, all others those of the nearest of them.

    x_s of the data, z_s ~ p_θ, each far from the others;    z_m = z_s of the x_s nearest to x_m
    θ' = argmax Σ_m log p_θ(z_m, x_m), a few rounds of EM;   the highest log p̂(x) are gone on with

What a model's hidden structure may be is tried out on the data themselves, whatever the latents
are: of a mixture, every component begins at a region of the data of its own. Parameters moved at
random lead elsewhere than to the data, where components die out; every `MOVED`-th start is such a
one all the same, for structure that no latent shows.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from alws.maximum.climb import Metric, climb
from alws.maximum.latents import flat_rows
from alws.maximum.maximise import MOST_SCORES, Climber
from alws.maximum.points import rows
from alws.model import log_joint

MOVED = 4
"""Every so many starts, one is the parameters moved at random."""

FARTHEST_MOVE = 1.5
"""How far these are moved, in standard deviations of one complete observation."""

MOST_SEEDS = 32
"""The most observations that are given latents of their own."""

FREE = 0.02
"""The weight of latents that are drawn freely, so that no value of theirs dies out."""

POOL = 2000
"""From how many draws the latents of the seeds are chosen."""

ROUNDS = 4
"""Rounds of EM before starts are compared."""


class Base(NamedTuple):
    """Parameters to move away from: draws of latents there, and the complete data's metric."""

    theta: np.ndarray
    latents: PyTree
    metric: Metric


class Start(NamedTuple):
    """A start after its rounds of EM, and the log likelihood there."""

    theta: np.ndarray
    log_likelihood: float


def spread_starts(
    climber: Climber, first: np.ndarray, number: int, rng: np.random.Generator
) -> list[Start]:
    """So many starts from around where a climber is and where it began, the highest first.

    Arguments:
        climber: after its climb.
        first: the parameters where it began.
        number: how many starts are tried out.
        rng: what they are drawn by.

    Example: `spread_starts(climber, first, 28, np.random.default_rng(0))[0].theta`.
    """
    bases = [b for b in (_base(climber, climber.theta), _base(climber, first)) if b is not None]
    if not bases:
        return []
    evaluate = _complete(climber)
    found = []
    for i in range(number):
        base = bases[i % len(bases)]
        if i % MOVED == MOVED - 1:
            theta = base.theta + FARTHEST_MOVE * _moved(climber, base, rng)
        else:
            theta = _from_seeds(climber, evaluate, base, rng)
        found.append(_risen(climber, theta, base.metric))
    fine = [start for start in found if np.isfinite(start.log_likelihood)]
    return sorted(fine, key=lambda start: -start.log_likelihood)


def _base(climber: Climber, theta: np.ndarray) -> Base | None:
    """What there is at these parameters; None where the data have no density."""
    climber.begin_again(theta)
    climber.look()
    climber.adapt()
    f, g, _ = climber.evaluation([climber.design()])(theta)
    if not (np.isfinite(f) and np.isfinite(g).all()):
        return None
    climber.measure()
    return Base(theta, climber.z, climber.metric["complete"])


def _moved(climber: Climber, base: Base, rng: np.random.Generator) -> np.ndarray:
    """A random direction, each parameter by about what one complete observation leaves of it."""
    return climber.total**0.5 * base.metric.unit * rng.normal(size=climber.p)


def _complete(climber: Climber) -> Callable:
    """log p(z_m, x_m) of each and its gradient, compiled."""

    @jax.jit
    def evaluate(theta: Array, z: PyTree, obs: PyTree) -> tuple[Array, Array]:
        def one(z: PyTree, o: tuple) -> tuple[Array, Array]:
            def log_p(theta: Array) -> Array:
                condition = o[1] if climber.conditioned else None
                value = log_joint(climber.unravel(theta), z, o[0], condition)
                return jnp.asarray(value, float).sum()

            return jax.value_and_grad(log_p)(theta)

        return rows(one, z, obs)

    return evaluate


def _from_seeds(
    climber: Climber, evaluate: Callable, base: Base, rng: np.random.Generator
) -> np.ndarray:
    """The parameters that suit latents which follow those of a few seeds."""
    most = max(1000, int(MOST_SCORES / climber.p) // 2)
    chosen = np.arange(climber.size)
    if climber.size > most:
        chosen = rng.choice(climber.size, most, replace=False)
    followed = _latents_of_seeds(climber, base.latents, chosen, rng)
    free = rng.integers(0, _number(base.latents), len(chosen))
    both = np.concatenate([followed, free])
    z = jax.tree.map(lambda a: a[both], base.latents)
    obs = jax.tree.map(lambda a: a[np.concatenate([chosen, chosen])], climber.obs)
    copies = climber.copies[chosen] * climber.total / climber.copies[chosen].sum()
    weights = np.concatenate([(1 - FREE) * copies, FREE * copies])

    def total(theta: np.ndarray) -> tuple[float, np.ndarray, None]:
        each, scores = (np.asarray(a, np.float64) for a in evaluate(theta, z, obs))
        fine = possible & np.isfinite(each)
        f, g = weights[fine] @ each[fine], weights[fine] @ scores[fine]
        if climber.prior is not None:
            prior, slope = climber.prior(theta)
            f, g = f + float(prior), g + np.asarray(slope, np.float64)
        return (float(f) if fine.sum() == possible.sum() else -np.inf), g, None

    each, scores = (np.asarray(a, np.float64) for a in evaluate(base.theta, z, obs))
    possible = np.isfinite(each) & np.isfinite(scores).all(axis=1)
    f, g, _ = total(base.theta)
    enough, solve = 0.1 * climber.p, base.metric.solve
    return climb(
        total, base.theta, f, g, solve, climber.length, 30, enough, [], 3.0, np.inf
    )[0]  # fmt: skip


def _number(tree: PyTree) -> int:
    return len(jax.tree.leaves(tree)[0])


def _latents_of_seeds(
    climber: Climber, latents: PyTree, chosen: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Which of the drawn latents each of the chosen observations is given."""
    assert climber.latents is not None
    x = _in_units(flat_rows(climber.obs[0])[chosen], rng)
    pool = rng.choice(_number(latents), min(POOL, _number(latents)), replace=False)
    drawn = flat_rows(latents)[pool]
    drawn = np.where(np.isfinite(drawn), drawn, 0.0)
    values = len(np.unique(drawn[:, climber.latents.discrete], axis=0))
    least = int(np.clip(values, 2, MOST_SEEDS))
    number = least if climber.dimension == 0 else rng.integers(least, 4 * least + 1)
    number = min(int(number), len(x), MOST_SEEDS)
    seeds = x[_far_apart(x, number, rng)]
    given = pool[_far_apart(_in_units(drawn, rng), number, rng)]
    rng.shuffle(given)
    squares = (x**2).sum(axis=1)[:, None] - 2 * x @ seeds.T + (seeds**2).sum(axis=1)
    return given[np.argmin(squares, axis=1)]


def _in_units(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Columns in units of their spread, each a little more or less important than that."""
    x = np.where(np.isfinite(x), x, 0.0)
    scale = x.std(axis=0)
    told = scale > 1e-12 * np.abs(x).max(axis=0, initial=0.0)
    return x[:, told] / scale[told] * np.exp(0.5 * rng.normal(size=told.sum()))


def _far_apart(x: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """Rows chosen one after another, by their squared distance from the nearest chosen before."""
    chosen = [int(rng.integers(len(x)))]
    squares = ((x - x[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < number:
        none_left = not squares.sum() > 0
        chances = np.full(len(x), 1 / len(x)) if none_left else squares / squares.sum()
        chosen.append(int(rng.choice(len(x), p=chances)))
        new = ((x - x[chosen[-1]]) ** 2).sum(axis=1)
        squares = new if none_left else np.minimum(squares, new)
    return np.array(chosen)


def _risen(climber: Climber, theta: np.ndarray, metric: Metric) -> Start:
    """A start after some rounds of EM."""
    climber.begin_again(theta)
    climber.metric["complete"] = metric
    f = -np.inf
    for number in range(ROUNDS + 1):
        climber.adapt()
        points = climber.design()
        f, g, share = climber.evaluation([points])(climber.theta)
        if not (np.isfinite(f) and np.isfinite(g).all()):
            return Start(theta, -np.inf)
        if number < ROUNDS:
            climber.expect(f, share, points)
    return Start(climber.theta, float(f))
