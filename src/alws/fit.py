"""`fit`: maximum likelihood for any model that can be simulated. A thin loop around the step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PyTree

from alws import defaults, distributed, resuming
from alws.callbacks import Callback, ProgressBar, Report
from alws.checks import at_least
from alws.contract_checks import check_log_prior
from alws.diagnostics import Diagnostics, warn_of_refusals
from alws.estimates import choose
from alws.features import follow
from alws.problem import Problem, prepare
from alws.runtime import (
    compiled,
    enable_compilation_cache,
    in_own_precision,
    one_lapack_thread,
)
from alws.sharding import make_mesh, on_every_device, over_devices, place, take_back, using
from alws.wake_sleep import Info, Settings, State, WakeSleep


@dataclass(frozen=True)
class Result:
    """A fitted model with everything that says how it came about."""

    model: Any
    gradient_model: Any
    state: State
    metrics: dict[str, np.ndarray]
    diagnostics: Diagnostics
    steps: int
    algorithm: WakeSleep


@in_own_precision
def fit(
    model: Any,
    data: PyTree,
    *,
    key: Key[Array, ""],
    steps: int,
    settings: Settings = Settings(),
    conditions: PyTree | None = None,
    log_prior: Callable[[Any], Array] | None = None,
    batch_size: int | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 500,
    resume: bool = False,
    progress: bool | None = None,
) -> Result:
    """Fit θ, the floating-point arrays of `model`, to `data` by maximum likelihood.

    `data` has the observations as leading axis. `conditions`, if the model takes one, has one entry
    for each observation. `log_prior(model)` is log p(θ) for the whole data set: the objective is
    Σ log p_θ(x) + log p(θ). It has nothing to do with a model's own `log_prior(z)`, which is that
    of its latents. `metrics["objective"]` is J̄, the mean over the batch of the estimate of
    E[log p_θ(z, x) | x], without log p(θ).

    `checkpoint` is a file, written every `checkpoint_every` steps and at the end; with
    `resume=True` the fit goes on from it, bit for bit as if it had not stopped. Data, batch size,
    numbers of samples and, with the default optimiser, whose rate falls over them, `steps` must be
    those it was started with; with an optimiser of your own there may be more steps.

    A model whose class says `double = True` is fitted in float64. With `settings.devices` the sleep
    samples and the data are divided among devices, of many processes if `alws.distributed` joined
    them; the result is the same up to rounding.

    Example:
        >>> result = alws.fit(Mixture(logits, means), data, key=jax.random.key(0), steps=2000)
        >>> result.model.means
    """
    if resume and checkpoint is None:
        raise ValueError(
            "`resume=True` must come with `checkpoint`, the file to go on from; got None."
        )
    enable_compilation_cache()
    mesh = _mesh(settings)
    path = None if checkpoint is None else Path(checkpoint)
    with distributed.losses(path):
        things = {
            "`model`": model,
            "`data`": data,
            "`conditions`": conditions,
            "`key`": key,
            "`steps`": steps,
            "`batch_size`": batch_size,
            "`checkpoint_every`": checkpoint_every,
            "`log_prior`": log_prior,
            "whether there are `callbacks`": bool(callbacks),
        }
        _check_processes(things, settings, mesh)
        resuming.check_standing(path, resume)
        problem = prepare(model, data, key, steps, settings, conditions, batch_size, mesh)
        check_log_prior(log_prior, problem.model)
        algorithm = _choose(problem, steps, settings, log_prior, key)
        origin = {}
        if path is not None:
            at_least("checkpoint_every", checkpoint_every, 1)
            origin = resuming.origin(problem, settings, steps)
            resuming.check_path(path, resume, origin, settings)
        problem = problem.on(mesh)
        state, history = _start(algorithm, problem, key, path if resume else None, mesh)
        first = int(state.step)
        seed = tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())
        advance = compiled(partial(_advance, algorithm), numbers=problem.numbers)
        placed_key = place(key, mesh)
        bar = ProgressBar(steps, first, progress if distributed.first() else False)
        with one_lapack_thread(), bar.progress:
            for i in range(first, steps):
                chosen = place(problem.batch(i, seed), mesh)
                with using(mesh):
                    state, info = advance(state, problem, chosen, placed_key)
                last = i + 1 == steps
                stop = False
                if i % settings.measure_every == 0 or last:
                    history = _record(history, i, info, state)
                    metrics = {k: v[-1].item() for k, v in history.items()}
                    report = Report(i + 1, steps, metrics, take_back(state.model, mesh))
                    stop = any([bool(callback(report)) for callback in (bar, *callbacks)])
                    stop = distributed.in_any(stop) if callbacks else stop
                if path is not None and ((i + 1) % checkpoint_every == 0 or last or stop):
                    resuming.save(path, state, history, key, origin)
                if stop:
                    break
    result = _result(algorithm, take_back(state, mesh), history)
    if distributed.first():
        warn_of_refusals(result.diagnostics.refused_steps, result.steps)
    return result


def _mesh(settings: Settings) -> Mesh | None:
    """The devices a fit runs on; many processes must say which."""
    if settings.devices is None and jax.process_count() > 1:
        raise ValueError(
            f"`devices` must be given when {jax.process_count()} processes were joined, got None. "
            'Use `alws.Settings(devices="all")`.'
        )
    return make_mesh(settings.devices)


def _check_processes(things: dict[str, Any], settings: Settings, mesh: Mesh | None) -> None:
    """Refuse processes that were given different things, or settings that differ."""
    shape = None if mesh is None else tuple(mesh.shape.items())
    chosen = {f"`settings.{f.name}`": getattr(settings, f.name) for f in fields(settings)}
    chosen["`settings.devices`"] = shape
    remedy = "Run the same script everywhere, with the same files, seeds and settings."
    distributed.check_same(things | chosen, remedy)


def _choose(
    problem: Problem,
    steps: int,
    settings: Settings,
    log_prior: Callable[[Any], Array] | None,
    key: Key[Array, ""],
) -> WakeSleep:
    """Fill in what the user left open."""
    gradient_model = settings.gradient_model
    if gradient_model is None:
        gradient_model = defaults.gradient_model(problem.data, key)
    return WakeSleep(
        gradient_model,
        settings.estimate or choose(problem.model),
        settings.optimiser or defaults.optimiser(steps),
        settings,
        log_prior,
        problem.size,
        settings.optimiser is None if settings.natural_units is None else settings.natural_units,
    )


def _advance(
    algorithm: WakeSleep,
    state: State,
    problem: Problem,
    chosen: Int[Array, " batch"] | None,
    key: Key[Array, ""],
) -> tuple[State, Info]:
    """One step with its own batch and random numbers, all on the device."""
    x, conditions = problem.select(chosen)
    x = over_devices(x) if conditions is None else x
    step_key = jax.random.fold_in(key, state.step)
    return on_every_device(algorithm.step(state, x, step_key, conditions))


def _start(
    algorithm: WakeSleep,
    problem: Problem,
    key: Key[Array, ""],
    path: Path | None,
    mesh: Mesh | None = None,
) -> tuple[State, dict[str, np.ndarray]]:
    """The first state, or the one a checkpoint holds, with the metrics so far."""
    condition = jax.tree.map(lambda c: c[0], problem.conditions)
    first = compiled(lambda *args: on_every_device(algorithm.init(*args)), once=True)
    with using(mesh):
        state = first(problem.model, problem.first_draws, place(key, mesh), condition)
    history = {name: np.zeros(0, np.float64) for name in METRICS}
    if path is None:
        if hasattr(state.gradient_model, "check"):
            with using(mesh):
                follow(state.gradient_model, state.model).check(problem.first_draws.x)
        return state, history
    state, history = resuming.load(path, state, key, METRICS)
    return place(state, mesh), history


METRICS = ("step", *Info._fields, "refused_steps", "ridge_escalations", "replaced_draws")


def _record(
    history: dict[str, np.ndarray], step: int, info: Info, state: State
) -> dict[str, np.ndarray]:
    """The history with one more row, fetched from the device."""
    row = {"step": step, **jax.device_get({**info._asdict(), **state.counts._asdict()})}
    return {name: np.append(values, float(row[name])) for name, values in history.items()}


def _result(algorithm: WakeSleep, state: State, history: dict[str, np.ndarray]) -> Result:
    """The result, its diagnostics averaged over the last tenth of their measurements."""

    def recent(name: str) -> float:
        measured = history[name][np.isfinite(history[name])]
        return float(measured[-max(1, len(measured) // 10) :].mean()) if len(measured) else np.nan

    counts = jax.device_get(state.counts)
    residuals = history["solver_residual"]
    diagnostics = Diagnostics(
        recent("held_out_r2"),
        recent("outside"),
        recent("effective_samples"),
        float(np.max(residuals[np.isfinite(residuals)], initial=0.0)),
        *(int(count) for count in counts),
    )
    return Result(
        state.model,
        state.gradient_model,
        state,
        history,
        diagnostics,
        int(state.step),
        algorithm,
    )
