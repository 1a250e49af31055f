"""Climbs from several starts, with checkpoints: the best of them, and the distinct maxima found."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from alws import checkpoint as checkpoints
from alws.callbacks import Callback, ProgressBar, Report
from alws.maximum.maximise import Climber, Found, NotIntegrable, Round, Watch
from alws.maximum.spread import spread_starts
from alws.model import AnyModel
from alws.validation import as_arrays

NEAR = 0.1
"""Maxima whose log likelihoods differ by less, or by their errors, count as one."""

MOST_BYTES = 2**34
"""The most that a checkpoint may ask to be read."""

SPREAD = 1.5
"""How far starts lie from one another, in standard deviations of one complete observation."""


TRIED = 4
"""How many starts are tried out for each that is climbed to the end."""


TRIED_UNASKED = 8
"""How many starts are tried out where a fit from one was asked for, the best of them climbed."""

MOST_CHEAP = 2**17
"""The most points, of all observations, where this is done."""


class Maxima(list):
    """The distinct maxima found, best first: pairs of log likelihood and number of starts."""


def precise_data(data: PyTree, matched: PyTree[Array]) -> PyTree[np.ndarray]:
    """The data as the model has them, floating-point numbers as long as they were given.

    Example: `precise_data(data, match_data(model, data, key))`.
    """

    def one(given: Any, own: Array) -> np.ndarray:
        kind = np.float64 if np.issubdtype(own.dtype, np.floating) else own.dtype
        return np.asarray(given, kind)

    return jax.tree.map(one, as_arrays(data), matched)


def climb_likelihood(
    model: AnyModel,
    data: PyTree[np.ndarray],
    *,
    key: Key[Array, ""],
    conditions: PyTree | None = None,
    log_prior: Callable[[Any], Array] | None = None,
    starts: int = 1,
    seconds: float = 120.0,
    watch: Watch | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: int = 10,
    origin: dict[str, Any] | None = None,
    resume: bool = False,
) -> tuple[Found, Maxima]:
    """Climb log p̂ from one or several starts; the best, and the distinct maxima found.

    In float64, or in the precision of JAX if the model's code does not allow it.

    Arguments:
        model, data, key, conditions, log_prior: as `alws.fit` takes them, checked.
        starts: the first is the model as it is, the others lie around it and around its fit.
        seconds: of the processor, for each start.
        watch: sees every round from the first start; it may stop the fit.
        checkpoint, checkpoint_every, origin, resume: a file that is written every so many rounds.

    Example: `climb_likelihood(model, data, key=jax.random.key(0))[0].log_likelihood`.
    """

    watch = watch or Watch()
    before = watch.number

    def attempt(wide: bool) -> tuple[Found, Maxima]:
        with jax.enable_x64(wide or jnp.zeros(()).dtype == jnp.float64):
            climber = Climber(
                model, data, key=key, conditions=conditions, log_prior=log_prior, seconds=seconds
            )
            return _from_starts(
                climber, key, starts, watch, checkpoint, checkpoint_every, origin or {}, resume
            )

    try:
        return attempt(True)
    except (TypeError, ValueError):
        if watch.number > before:  # it was not the precision
            raise
        return attempt(False)


def _from_starts(
    climber: Climber,
    key: Key[Array, ""],
    starts: int,
    watch: Watch,
    checkpoint: Path | None,
    every: int,
    origin: dict[str, Any],
    resume: bool,
) -> tuple[Found, Maxima]:
    first = climber.theta
    done: list[Found] = []
    if checkpoint is not None and resume:
        if not checkpoints.is_of_climb(checkpoint):
            climber.look()  # where this is not integrable, the fit goes on from it by steps
        _go_on(climber, checkpoint, origin)

    def see(seen: Round) -> bool:
        stop = watch(seen)
        ended = bool(climber.at.ended) or stop
        if checkpoint is not None and (seen.number % every == 0 or ended):
            _save(checkpoint, *climber.snapshot(), origin)
        return stop

    done.append(climber.run(Watch(see)))
    rng = np.random.default_rng([*np.asarray(jax.random.key_data(key)).ravel().tolist(), 1])
    if watch.stopped:
        pass  # so were all further starts
    elif starts > 1:
        tried = spread_starts(climber, first, TRIED * (starts - 1), rng)
        for other in tried[: starts - 1]:
            climber.begin_again(other.theta)
            with suppress(NotIntegrable):
                done.append(climber.run())
    elif done[0].verdict.trusted and _cheap(climber):
        done += _look_elsewhere(climber, first, done[0], rng)
    began_at = done[0].began_at
    done = [found for found in done if found.verdict.trusted] or done
    maxima, best = distinct_maxima(done), max(done, key=height)
    verdict = best.verdict._replace(maxima=max(len(maxima), 1))
    return best._replace(verdict=verdict, began_at=began_at), maxima


def _cheap(climber: Climber) -> bool:
    """Whether a few other starts may be tried without being asked for: of discrete latents only."""
    return climber.room > 1 and climber.size * climber.room * climber.points <= MOST_CHEAP


def _look_elsewhere(
    climber: Climber, first: np.ndarray, found: Found, rng: np.random.Generator
) -> list[Found]:
    """The fit from the best of a few other starts, if it is a maximum too, and higher."""
    tried = spread_starts(climber, first, TRIED_UNASKED, rng)
    if not tried:
        return []
    climber.begin_again(tried[0].theta)
    most = 2 * found.rounds + 10
    with suppress(NotIntegrable):
        other = climber.run(Watch(lambda seen: seen.number > most))
        if other.verdict.trusted and other.log_likelihood > found.log_likelihood + NEAR:
            return [other]
    return []


def height(found: Found) -> float:
    """The log likelihood of a fit, by which the best is chosen; −∞ where there is none.

    Example: `max(done, key=height)`.
    """
    return found.log_likelihood if np.isfinite(found.log_likelihood) else -np.inf


def distinct_maxima(done: Sequence[Found]) -> Maxima:
    """The maxima that some fits ended in, best first, and how many ended in each.

    Example: `distinct_maxima([found])` has one pair.
    """
    maxima = Maxima()
    for found in sorted(done, key=height, reverse=True):
        if not np.isfinite(found.log_likelihood):
            continue
        slack = max(NEAR, 3 * np.nan_to_num(found.error), found.verdict.left)
        if maxima and maxima[-1][0] - found.log_likelihood < slack:
            maxima[-1] = (maxima[-1][0], maxima[-1][1] + 1)
        else:
            maxima.append((found.log_likelihood, 1))
    return maxima


def watcher(callbacks: Sequence[Callback], bar: ProgressBar | None) -> Callable[[Round], bool]:
    """What the callbacks of a fit and its progress bar see of a climb.

    Example: `watcher([alws.EarlyStopping()], None)`.
    """

    def watch(seen: Round) -> bool:
        metrics = {"step": float(seen.number), "objective": seen.log_likelihood, "left": seen.left}
        report = Report(seen.number, seen.number if seen.ended else 0, metrics, seen.model)
        if bar is not None:
            bar(report)
        return any([bool(callback(report)) for callback in callbacks])

    return watch


def _save(
    path: Path, arrays: dict[str, np.ndarray], numbers: dict[str, Any], origin: dict[str, Any]
) -> None:
    shapes = {name: [a.dtype.str, list(a.shape)] for name, a in arrays.items()}
    numbers = jax.tree.map(lambda a: a.item() if isinstance(a, np.generic) else a, numbers)
    header = {"format": checkpoints.FORMAT, "climb": numbers, "shapes": shapes, "origin": origin}
    checkpoints.save_or_warn(path, arrays, header)


def _go_on(climber: Climber, path: Path, origin: dict[str, Any]) -> None:
    """Put a climber where a checkpoint left one; refuse numbers that no climb can have had."""
    arrays, numbers = _load(path, origin)
    try:
        if not np.isfinite(arrays["theta"]).all():
            raise ValueError("its parameters are not finite")
        climber.restore(arrays, numbers)
    except Exception as error:  # whatever its numbers do to a climb, the file is at fault
        raise checkpoints.CheckpointError(
            f"{path} is damaged: no climb can go on from it ({error}). Put an undamaged copy in "
            "its place, or start again with another path."
        ) from error


def _load(path: Path, origin: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    header = checkpoints.header(path)
    if not checkpoints.is_of_climb(path):
        raise checkpoints.CheckpointError(
            f"{path} must be the checkpoint of a climb, got that of another kind of fit. Resume "
            "with the settings it was started with, or give another path."
        )
    was = header.get("origin")
    checkpoints.check_unchanged(path, was if isinstance(was, dict) else {}, origin)
    try:
        kinds = {n: (np.dtype(t), tuple(shape)) for n, (t, shape) in header["shapes"].items()}
        size = sum(math.prod(shape) * kind.itemsize for kind, shape in kinds.values())
        if not 0 <= size <= min(MOST_BYTES, path.stat().st_size):
            raise ValueError(f"it says it holds {size} bytes")
        like = {n: np.zeros(shape, kind) for n, (kind, shape) in kinds.items()}
    except Exception as error:  # whatever its header says, the file is at fault
        raise checkpoints.CheckpointError(
            f"{path} is damaged: its header cannot be used ({error}). Put an undamaged copy in its "
            "place, or start again with another path."
        ) from error
    return checkpoints.load(path, like), header["climb"]
