"""Which way the likelihood is climbed, and the verdict on a fit that was made another way.

    exact filter → particles for long sequences → sums and weighted points → regressed scores

The first that the model allows is taken. Where a climb cannot begin, or ends with a reason not to
trust it, scores are regressed; if they lead to where there is a likelihood, that is climbed again.
A model whose draws contradict its density is told so: no way of fitting it is right.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Key, PyTree

from alws.estimates import is_long
from alws.maximum.filtered import climb_filtered
from alws.maximum.influence import without_influence
from alws.maximum.maximise import (
    MOST_PARAMETERS,
    Found,
    NotIntegrable,
    Round,
    Watch,
)
from alws.maximum.one_go import OneGo
from alws.maximum.paths import climb_particles
from alws.maximum.scoring import Scoring, impossible
from alws.maximum.starts import Maxima, climb_likelihood
from alws.maximum.verdict import Verdict
from alws.maximum.weighted import weighted_log_likelihood
from alws.model import AnyModel
from alws.state_space.kinds import find_filter
from alws.state_space.likelihood import sequence_log_likelihood
from alws.state_space.model import Given, StateSpace


def find_maximum(
    model: AnyModel,
    data: PyTree[np.ndarray],
    *,
    key: Key[Array, ""],
    conditions: PyTree | None = None,
    log_prior: Callable[[Any], Array] | None = None,
    starts: int = 1,
    seconds: float = 120.0,
    watch: Callable[[Round], bool] | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: int = 10,
    origin: dict[str, Any] | None = None,
    resume: bool = False,
) -> tuple[Found, Maxima] | str:
    """The best fit by a log likelihood or by regressed scores, or why neither can be had.

    Arguments:
        model, data, key, conditions, log_prior, starts, seconds, watch, checkpoint,
        checkpoint_every, origin, resume: as `climb_likelihood` takes them.

    Example: `found, maxima = find_maximum(model, data, key=jax.random.key(0))`.
    """
    kept, seen = None, Watch(watch)
    if checkpoint is not None:
        kept = OneGo(checkpoint, origin or {}, model)
        if resume and (ended := kept.go_on()) is not None:
            return ended
        model, seen.before = kept.start, kept.begin
    prior: dict[str, Any] = {"key": key, "log_prior": log_prior}
    asked = {**prior, "seconds": seconds}
    maxima = Maxima()
    try:
        filtered = _filtered(model, data, conditions, starts=starts, watch=seen, **asked)
        if filtered is not None:
            found, maxima = filtered
        elif is_long(model, data):
            found, maxima = climb_particles(
                model, data, conditions, starts=starts, watch=seen, **asked
            )
        else:
            seen.before = None
            found, maxima = climb_likelihood(
                model,
                data,
                conditions=conditions,
                starts=starts,
                watch=seen,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                origin=origin,
                resume=resume and not (kept and kept.begun),
                **asked,
            )
        reason = found.verdict.why
    except NotIntegrable as error:
        found, reason = None, str(error)
        seen.before = partial(kept.begin, after="a climb") if kept else None
    of_model = found is not None and found.verdict.of_model
    other_way = bool(reason) and not of_model and not seen.stopped
    if other_way and _scorable(model, data, conditions):
        begun, less = model if found is None else found.model, {**asked, "seconds": seconds / 2}
        scored = _scored(begun, data, conditions, reason, watch=seen, **less)
        if found is None:
            found = scored
        elif not math.isfinite(found.log_likelihood):  # there may be one where that ended
            begun, found = scored.model, scored
            with suppress(NotIntegrable):
                if not seen.stopped:
                    found, _ = climb_likelihood(
                        begun, data, conditions=conditions, watch=seen, **asked
                    )
        elif scored.verdict.trusted and not _lower(
            scored.model, found, data, key, conditions, log_prior
        ):
            found = scored._replace(log=[*found.log, *scored.log])
    if found is None:
        return reason
    if found.log_likelihood < found.began_at:
        fallen = found.verdict.since(found.began_at, found.log_likelihood, found.error)
        found = found._replace(verdict=fallen)
    verdict = _of_all_parameters(found.verdict, found.model, found.still, data, conditions, **prior)
    found = found._replace(verdict=verdict)
    if kept is not None:
        kept.end(found, maxima)
    return found, maxima


def judge(
    model: AnyModel,
    start: AnyModel,
    data: PyTree[np.ndarray],
    *,
    key: Key[Array, ""],
    conditions: PyTree | None = None,
    log_prior: Callable[[Any], Array] | None = None,
    seconds: float = 60.0,
) -> Verdict:
    """The verdict on a fit that was told what to do: what a climb from where it ended gains.

    Arguments:
        model: where the fit ended.
        start: where it began; a fit that ended below is not trusted.
        data, key, conditions, log_prior, seconds: as `climb_likelihood` takes them.

    Example: `judge(result.model, start, data, key=jax.random.key(0)).left`.
    """
    prior: dict[str, Any] = {"key": key, "log_prior": log_prior}
    asked = {**prior, "seconds": seconds}
    try:
        filtered = _filtered(model, data, conditions, **asked)
        if filtered is None and is_long(model, data):
            found, _ = climb_particles(model, data, conditions, **asked)
            found = found._replace(began_at=_height(model, data, key, conditions, log_prior))
        else:
            found, _ = filtered or climb_likelihood(model, data, conditions=conditions, **asked)
        began = _height(start, data, key, conditions, log_prior)
    except NotIntegrable as error:
        if not _scorable(model, data, conditions):
            verdict = Verdict(0.0, math.inf, False, str(error))
            if isinstance(model, StateSpace):
                return verdict
            with suppress(NotIntegrable):  # a fit may still have ended below its start
                began, ended = (
                    _height(m, data, key, conditions, log_prior) for m in (start, model)
                )
                verdict = verdict.since(began, ended, error=1.0)
            return verdict
        with jax.enable_x64(True):
            scoring = Scoring(model, data, conditions=conditions, **prior)
            verdict = scoring.verdict()
        return _of_all_parameters(verdict, model, scoring.still, data, conditions, **prior)
    gained = max(found.log_likelihood - found.began_at, 0.0)
    left, most = gained + found.verdict.left, gained + found.verdict.most
    verdict = Verdict(left, most, bool(most < 0.2 * found.free), "")
    verdict = found.verdict if found.verdict.why else verdict
    verdict = _of_all_parameters(verdict, model, found.still, data, conditions, **prior)
    return verdict.since(began, found.began_at, found.error)


def _of_all_parameters(
    verdict: Verdict,
    model: AnyModel,
    still: Bool[np.ndarray, " p"],
    data: PyTree[np.ndarray],
    conditions: PyTree | None,
    **prior: Any,
) -> Verdict:
    """The verdict, which says so if some parameters have no influence."""
    if verdict.of_model or not still.any():
        return verdict
    fault, note = without_influence(model, data, still, conditions=conditions, **prior)
    verdict = verdict._replace(unused=note)
    if not fault:
        return verdict
    why = f"{verdict.why}; besides, {fault}" if verdict.why else fault
    return verdict._replace(trusted=False, why=why, of_model=not verdict.why)


def _filtered(
    model: AnyModel,
    data: PyTree[np.ndarray],
    conditions: PyTree | None,
    *,
    key: Key[Array, ""],
    **asked: Any,
) -> tuple[Found, Maxima] | None:
    """The fit of sequences that a filter without chance computes; None for all others."""
    if not isinstance(model, StateSpace):
        return None
    first = Given() if conditions is None else jax.tree.map(lambda a: a[0], conditions)
    kind = find_filter(model, key, first)
    if kind.kind == "none":
        return None
    try:
        return climb_filtered(model, data, conditions, kind, key=key, **asked)
    except NotIntegrable:
        return None


def _scorable(model: AnyModel, data: PyTree[np.ndarray], conditions: PyTree | None) -> bool:
    """Whether scores can be regressed: of several observations, no long or padded sequences.

    And of no more parameters than the information may have.
    """
    parameters = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    if sum(a.size for a in parameters) > MOST_PARAMETERS:
        return False
    padded = isinstance(model, StateSpace) and conditions is not None
    return len(jax.tree.leaves(data)[0]) > 1 and not padded and not is_long(model, data)


def _scored(
    model: AnyModel,
    data: PyTree[np.ndarray],
    conditions: PyTree | None,
    reason: str,
    *,
    key: Key[Array, ""],
    **asked: Any,
) -> Found:
    """The fit by regressed scores, and why it was made so."""
    with jax.enable_x64(True):
        scoring = Scoring(model, data, key=key, conditions=conditions, **asked)
        done = scoring.run()
    verdict, method = done.verdict, f"regression of the scores on {done.chosen} features"
    lost = impossible(done.model, data, key) if verdict.trusted and conditions is None else 0
    if lost:
        why = f"no simulated latent gives {lost} of the data any density"
        verdict = verdict._replace(trusted=False, why=why)
    return Found(
        done.model, math.nan, math.nan, np.zeros(0), verdict, scoring.p,
        f"{method}, because {reason}", done.rounds, done.log, still=done.still,
    )  # fmt: skip


def _lower(
    model: AnyModel,
    found: Found,
    data: PyTree[np.ndarray],
    key: Key[Array, ""],
    conditions: PyTree | None,
    log_prior: Callable[[Any], Array] | None,
) -> bool:
    """Whether a model that regressed scores led to is plainly less likely than where they began.

    Regressed scores may vanish far from any maximum. Points that miss modes bound from below what
    they integrate, and `unseen` says by how much.
    """
    try:
        seen = weighted_log_likelihood(model, data, key=key, conditions=conditions, seconds=15.0)
    except NotIntegrable:
        return False
    prior = 0.0 if log_prior is None else float(log_prior(model))
    most = seen.each.sum() + prior + seen.unseen + 4 * seen.error
    return bool(most < found.log_likelihood - 0.2 * found.free - 4 * found.error)


def _height(
    model: AnyModel,
    data: PyTree[np.ndarray],
    key: Key[Array, ""],
    conditions: PyTree | None,
    log_prior: Callable[[Any], Array] | None,
) -> float:
    """The log likelihood of a model as it is, with log p(θ)."""
    if isinstance(model, StateSpace):
        total = sequence_log_likelihood(model, data, conditions, key=key).value.sum()
    else:
        total = weighted_log_likelihood(model, data, key=key, conditions=conditions).each.sum()
    return float(total) + (0.0 if log_prior is None else float(log_prior(model)))
