"""`fit`: maximum likelihood for any model that can be simulated.

    settings and problem → `prepare` → algorithm, first state, compiled step → loop → result

`fit` is what users call; `prepare` stops before the loop and gives its parts, for those who want to
take the steps themselves, look at one, or time one.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PyTree

from alws import checkpoint as checkpoints
from alws import devices
from alws.callbacks import (
    Callback,
    ProgressBar,
    Report,
    checked,
    warn_of_outside,
    warn_of_refusals,
    warn_of_replaced,
)
from alws.checkpoint.origin import describe
from alws.devices import (
    Devices,
    device_get,
    device_put,
    fingerprint,
    on_every_device,
    over_devices,
    using,
)
from alws.estimates import Estimate, Local, default_estimate, is_long
from alws.features import Chain, Features, Identity, Linear, Standardise, follow
from alws.kernels.stationary import SquaredExponential
from alws.maximum import Round, Verdict, find_maximum, judge, precise_data, watcher
from alws.model import AnyModel, Draws, in_own_precision, precision
from alws.natural_units import natural_units
from alws.regressions.as_published import AsPublished
from alws.regressions.base import Recipe, Regression, one_lapack_thread
from alws.regressions.kernel_ridge import KernelRidge
from alws.state_space import StateSpace
from alws.validation import (
    FEWEST_SLEEP_SAMPLES,
    Range,
    at_least,
    check_cost,
    check_data,
    check_discrete,
    check_key,
    check_log_joint,
    check_log_prior,
    check_model,
    check_optimiser,
    check_simulator,
    check_support,
    check_validation,
    check_varied,
    draws_of_each,
    instance,
    match_conditions,
    match_data,
    one_of,
    positive,
    shape_of_draw,
    yes_or_no,
)
from alws.wake_sleep import CONDITIONS, DIAGNOSTICS, Adapt, Info, State, WakeSleep, pooled

Model = TypeVar("Model", bound=AnyModel)

MOST_PLAIN_ENTRIES = 100
PROJECTED_ENTRIES = 300
WHOLE_DATA = 1024
MINIBATCH = 256
SEPARATE = 4


@dataclass(frozen=True)
class Settings:
    """How to run the algorithm; `alws.fit` fills in what is left out to suit the problem.

    Arguments:
        regression: the regression of J, or a recipe that makes one for the data; kernel ridge
            regression on the data as they are by default.
        estimate: how J is written as one: `Natural` if the model gives a likelihood, `Local` for
            sequences of more than 8 times and no regression of your own, else `Joint`.
        optimiser: any optax transformation, on θ; by default Adam in natural units, its rate
            falling over the fit's steps.
        sleep_samples: N of Algorithm 1.
        validation_samples: L of Algorithm 1.
        adapt: which parts of γ are adapted, and when.
        theta_steps: taken on each sleep phase, its draws and weights constant.
        measure_every: at each so many steps diagnostics are measured, metrics are kept and
            callbacks called.
        devices: a number, "all" or a mesh, to share the samples (see `alws.devices`).
        conditions: for models that take a condition, how it enters the regression. "pooled" is one
            regression on pairs (condition, x), whose sleep samples are drawn under the conditions
            of the wake batch in equal shares. "separate" is a regression on x for each condition of
            the batch, one after the other: for a few conditions that have little in common.

    Example: `Settings(sleep_samples=2000, adapt=alws.ALWS_F, optimiser=optax.adam(1e-3))`.
    """

    regression: Regression | Recipe | None = None
    estimate: Estimate | None = None
    optimiser: optax.GradientTransformation | None = None
    sleep_samples: int = 1000
    validation_samples: int = 200
    adapt: Adapt = field(default_factory=Adapt)
    theta_steps: int = 1
    measure_every: int = 50
    devices: Devices = None
    conditions: str = "pooled"


PAPER = Settings(
    regression=AsPublished(),
    optimiser=optax.adam(1e-3),
    sleep_samples=2000,
    validation_samples=200,
    adapt=Adapt(learning_rate=1e-3, clip_norm=math.inf),
    conditions="separate",
)
"""The paper's own method, for comparisons with it; `fit` without settings is the better choice.

Kernel ridge regression with the squared exponential kernel, no intercept, no clipping and λ = 0.01
on the diagonal as it is, one for each condition if there are any; γ = (σ, λ, φ) adapted by the
held-out error of Ĵ, by Adam at 0.001; θ by Adam at a constant 0.001 in its own units. Of the
paper's table it has what most rows share. What
differs from row to row is replaced:

    >>> from dataclasses import replace
    >>> images = alws.regressions.AsPublished(ridge=0.1, projections=300, batch_norm=True)
    >>> alws_a = replace(alws.PAPER, regression=images, adapt=alws.ALWS_A)  # σ and φ adapted
    >>> alws_f = replace(alws.PAPER, regression=images, adapt=alws.ALWS_F)  # γ as it started
    >>> alws.fit(model, data, key=key, steps=30_000, batch_size=100, settings=alws_a)

Two things differ from the paper's words: one set of sleep samples serves γ's step and θ's (see
`alws.wake_sleep`), and the held-out error is divided by the variance of what is predicted, which
changes Adam's steps hardly at all.
"""


def default_features(data: PyTree[Array], key: Key[Array, ""]) -> Features:
    """x as it is (the kernel scales it); beyond 100 entries, scaled and projected to 300.

    Example: `default_features(data, jax.random.key(0))`.
    """
    entries = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(data))
    if entries <= MOST_PLAIN_ENTRIES:
        return Identity()
    scaled = Standardise.from_data(data)
    projected = min(entries, PROJECTED_ENTRIES)
    return Chain((scaled, Linear.random(jax.random.fold_in(key, 1), entries, projected)))


def default_regression(data: PyTree[Array], key: Key[Array, ""]) -> KernelRidge:
    """Kernel ridge regression with an intercept, bandwidth from the median, λ from 0.01.

    Example: `default_regression(data, jax.random.key(0))`.
    """
    return KernelRidge(SquaredExponential(default_features(data, key)), ridge=0.01)


def default_optimiser(steps: int, learning_rate: float = 0.05) -> optax.GradientTransformation:
    """Adam with a cosine decay over the whole fit, gradients clipped at norm 10, in natural units.

    The rate is in standard deviations of what one complete observation tells.

    Example: `alws.Settings(optimiser=default_optimiser(2000, 0.01))`.
    """
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    return natural_units(optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule)))


def default_batch_size(size: int, *, separate: bool) -> int:
    """All data up to 1024 observations, 256 at a time beyond; 4 with separate regressions.

    Example: `default_batch_size(60_000, separate=False)` is 256.
    """
    if separate:
        return min(size, SEPARATE)
    return size if size <= WHOLE_DATA else MINIBATCH


class Problem(eqx.Module):
    """What is fitted to what: checked data and conditions, and the first draws from the model."""

    data: PyTree[Array]
    conditions: PyTree[Array] | None
    first_draws: Draws
    size: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    def on(self, mesh: Mesh | None, *, divided: bool) -> "Problem":
        """The same on the devices, divided among them or whole on each."""
        data, conditions = device_put((self.data, self.conditions), mesh, divided=divided)
        return Problem(data, conditions, self.first_draws, self.size, self.batch_size)

    def select(self, chosen: Int[Array, " batch"] | None) -> tuple[PyTree, PyTree | None]:
        """These observations and their conditions; all of them for None."""
        if chosen is None:
            return self.data, self.conditions
        return jax.tree.map(lambda a: a[chosen], (self.data, self.conditions))


def batch(
    number: int, size: int, batch_size: int, seed: tuple[int, ...]
) -> Int[Array, " batch"] | None:
    """The observations a step sees: None for all, or its share of each epoch's fresh order.

    Example: `batch(3, 1000, 100, (0,))` has 100 of the numbers below 1000.
    """
    if batch_size == size:
        return None
    epoch, position = divmod(number, size // batch_size)
    return jnp.asarray(_order(size, (*seed, epoch))[position * batch_size :][:batch_size])


@lru_cache(maxsize=2)
def _order(size: int, seed: tuple[int, ...]) -> np.ndarray:
    """An epoch's order, kept for its other steps: their cost is the same however many data."""
    return np.random.default_rng(seed).permutation(size)


def seed_of(key: Key[Array, ""]) -> tuple[int, ...]:
    """A JAX key's numbers, as a seed for `batch`.

    Example: `batch(0, 1000, 100, seed_of(jax.random.key(0)))`.
    """
    return tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())


@dataclass(frozen=True)
class Prepared:
    """A fit before its first step: the algorithm, its first state and the compiled step.

    Example:
        >>> prepared = alws.prepare(model, data, key=jax.random.key(0), steps=100)
        >>> state = prepared.state
        >>> for number in range(100):
        >>>     state, info = prepared.step(state, number)
    """

    algorithm: WakeSleep
    state: State
    problem: Problem
    key: Key[Array, ""]
    mesh: Mesh | None

    @cached_property
    def _advance(self) -> Callable[..., tuple[State, Info]]:
        return eqx.filter_jit(partial(_advance, self.algorithm))

    @cached_property
    def _placed_key(self) -> Key[Array, ""]:
        return device_put(self.key, self.mesh)

    def step(self, state: State, number: int) -> tuple[State, Info]:
        """Step `number` of the fit, from 0, with its own batch and random numbers.

        Arguments:
            state: where the fit stands.
            number: which step this is; it must be that of the state.
        """
        size, batch_size = self.problem.size, self.problem.batch_size
        chosen = device_put(batch(number, size, batch_size, seed_of(self.key)), self.mesh)
        with using(self.mesh), precision(state.model):
            return self._advance(state, self.problem, chosen, self._placed_key)


def _advance(
    algorithm: WakeSleep,
    state: State,
    problem: Problem,
    chosen: Int[Array, " batch"] | None,
    key: Key[Array, ""],
) -> tuple[State, Info]:
    """One step with its own batch and random numbers, all on the device."""
    x, conditions = problem.select(chosen)
    if conditions is None or algorithm.conditions == "pooled":
        x, conditions = over_devices((x, conditions))
    step_key = jax.random.fold_in(key, state.step)
    return on_every_device(algorithm.step(state, x, step_key, conditions))


@in_own_precision
def prepare(
    model: AnyModel,
    data: PyTree,
    *,
    key: Key[Array, ""],
    steps: int,
    settings: Settings = Settings(),
    conditions: PyTree | None = None,
    log_prior: Callable[[Any], Array] | None = None,
    batch_size: int | None = None,
) -> Prepared:
    """Check everything, fill in what was left out, and compile nothing but the first state.

    Arguments:
        model, data, key, steps, settings, conditions, log_prior, batch_size: as `alws.fit` takes
            them.

    Example: `alws.prepare(model, data, key=key, steps=100).algorithm.sleep_samples`.
    """
    check_settings(settings)
    mesh = _mesh(settings)
    check_key(key)
    at_least("steps", steps, 1)
    devices.check_divides(
        1 if mesh is None else mesh.size,
        sleep_samples=settings.sleep_samples,
        validation_samples=settings.validation_samples,
    )
    check_model(model)
    model = _strongly_typed(model)
    size = check_data(data)
    conditions = match_conditions(conditions, size)
    separate = conditions is not None and settings.conditions == "separate"
    if batch_size is None:
        batch_size = default_batch_size(size, separate=separate)
    at_least("batch_size", batch_size, 1)
    if batch_size > size:
        raise ValueError(
            f"`batch_size` must be at most the number of observations, {size}; got {batch_size}."
        )
    condition = jax.tree.map(lambda c: c[0], conditions)
    data = match_data(model, data, key, condition)
    check_support(model, data, key, condition, conditions=conditions)
    check_simulator(model, key, condition)
    check_log_prior(log_prior, model)
    points, every = (data, condition) if separate else pooled(data, conditions)
    algorithm = _resolve(settings, model, points, (condition, every), size, steps, log_prior, key)
    check_cost(algorithm.regression, settings.sleep_samples)
    check_validation(settings.validation_samples, settings.sleep_samples)
    if settings.optimiser is not None:
        check_optimiser(settings.optimiser, model, settings.sleep_samples, key)
    placed, placed_key, placed_condition = device_put((model, key, every), mesh)
    with using(mesh):
        draws = check_log_joint(placed, placed_key, settings.sleep_samples, placed_condition)
        check_varied(placed, draws, placed_key, placed_condition)
        if conditions is None:
            check_discrete(draws, data)
        first = eqx.filter_jit(
            lambda model, draws, given: on_every_device(algorithm.init(model, draws, given))
        )
        state = first(placed, draws, placed_condition)
        if state.regression is not None:
            views = algorithm.estimate.views(placed, draws.x, placed_condition)
            follow(state.regression, state.model).check(views)
    if conditions is not None:
        check_discrete(draws_of_each(model, conditions, key, settings.sleep_samples), data)
    problem = Problem(data, conditions, draws, size, batch_size)
    return Prepared(algorithm, state, problem, key, mesh)


def check_settings(settings: Any) -> None:
    """Refuse settings of other types, or out of bounds, before anything is done with them."""
    example = "Write `alws.Settings(sleep_samples=500)`."
    instance("settings", settings, Settings, "settings of a fit", example)
    for name, kind, what, remedy in (
        (
            "regression",
            Regression | Recipe,
            "a regression",
            "Use `alws.regressions.KernelRidge(kernel)`.",
        ),
        ("estimate", Estimate, "an estimate", "Use `alws.estimates.Joint()`."),
        ("adapt", Adapt, "what is adapted", "Use `alws.Adapt()` or `alws.ALWS_F`."),
    ):
        value = getattr(settings, name)
        if value is not None or name == "adapt":
            instance(name, value, kind, what, remedy)
    one_of("conditions", settings.conditions, CONDITIONS)
    at_least("measure_every", settings.measure_every, 1)
    at_least("theta_steps", settings.theta_steps, 1)
    at_least("validation_samples", settings.validation_samples, 2)
    at_least(
        "sleep_samples",
        settings.sleep_samples,
        FEWEST_SLEEP_SAMPLES,
        " The median distance and the regression need that many; 500 to 2000 is usual.",
    )


def _resolve(
    settings: Settings,
    model: AnyModel,
    data: PyTree[Array],
    conditions: tuple[PyTree | None, PyTree | None],
    size: int,
    steps: int,
    log_prior: Callable[[Any], Array] | None,
    key: Key[Array, ""],
) -> WakeSleep:
    """The algorithm with every choice made that the settings left open.

    Of the conditions there are the first, and all of them as the regression sees them.
    """
    windows = settings.regression is None and is_long(model, data)
    estimate = settings.estimate or (Local() if windows else default_estimate(model))
    first, every = conditions
    estimate.check(model, shape_of_draw(model, key, first), first)
    data = estimate.views(model, data, every, key)
    regression = settings.regression
    if isinstance(regression, Recipe):
        regression = regression.make(data, key)
    elif regression is None and estimate.regresses:
        regression = default_regression(data, key)
    return WakeSleep(
        regression,
        estimate,
        default_optimiser(steps) if settings.optimiser is None else settings.optimiser,
        settings.sleep_samples,
        settings.validation_samples,
        settings.adapt,
        settings.theta_steps,
        settings.measure_every,
        log_prior,
        size,
        settings.conditions,
    )


def loop(
    step: Callable[[Any, int], tuple[Any, Any]],
    state: Any,
    *,
    start: int,
    more: Callable[[int], bool],
    after: Callable[[int, Any, Any], bool],
) -> Any:
    """Take steps while `more(number)`; the state after the last one.

    Arguments:
        step: `step(state, number)` gives the next state and what it saw.
        state: the first one.
        start: the number of the first step.
        more: whether the step of this number is to be taken.
        after: called with the number of steps done, the state and what the step saw; one that
            returns True ends the loop.

    Example: `loop(prepared.step, prepared.state, start=0, more=lambda n: n < 100, after=report)`.
    """
    number = start
    while more(number):
        state, seen = step(state, number)
        number += 1
        if after(number, state, seen):
            break
    return state


@dataclass(frozen=True, repr=False)
class Result(Generic[Model]):
    """A fitted model with everything that says how it came about.

    `verdict` says how near a maximum the fit is, in nats over all data. Where you chose the steps
    or the settings it is worked out when it is first asked for.

    `method` says which way the fit was made, and why. A fit that had a log likelihood has it in
    `log_likelihood`, with the error that finitely many points leave, and `maxima` has the distinct
    maxima that several starts found. `diagnostics` has, for each of
    `alws.wake_sleep.DIAGNOSTICS`, its mean over the last tenth of the measurements (the worst of
    all for the solver's residual), and how many steps were refused, ridges raised and draws
    replaced; `metrics` has them all over time. `conditions` has the least and the greatest of each
    entry of the conditions it was fitted to, if it had any.
    """

    model: Model
    regression: Any
    state: State
    metrics: dict[str, np.ndarray]
    diagnostics: dict[str, float]
    steps: int
    algorithm: WakeSleep
    method: str = "wake-sleep, as it was asked for"
    log_likelihood: float = math.nan
    log_likelihood_error: float = math.nan
    maxima: tuple[tuple[float, int], ...] = ()
    log: tuple = field(default=(), repr=False)
    judge: Callable[[], Verdict] = field(default=lambda: NOT_JUDGED, repr=False)
    conditions: Range | None = None

    @cached_property
    def verdict(self) -> Verdict:
        """The log likelihood still to be gained, in nats over all data.

        Example: `print(result.verdict)`.
        """
        return self.judge()

    def __repr__(self) -> str:
        known = "verdict" in vars(self)
        said = [self.method]
        if math.isfinite(self.log_likelihood):
            height = f"log likelihood {self.log_likelihood:.2f}"
            noisy = self.log_likelihood_error >= 0.005
            said.append(f"{height} ± {self.log_likelihood_error:.2g}" if noisy else height)
        said.append(str(self.verdict) if known else "not judged yet: ask for `result.verdict`")
        return f"{type(self.model).__name__} fitted by {'; '.join(said)}"


NOT_JUDGED = Verdict(0.0, math.inf, False, "nothing was kept to judge it by")


def fit(
    model: Model,
    data: PyTree,
    *,
    key: Key[Array, ""],
    steps: int | None = None,
    settings: Settings | None = None,
    starts: int = 1,
    conditions: PyTree | None = None,
    log_prior: Callable[[Any], Array] | None = None,
    batch_size: int | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    progress: bool | None = None,
    seconds: float | None = None,
) -> Result[Model]:
    """Fit θ, the floating-point arrays of `model`, to `data` by maximum likelihood.

    Without `steps` and `settings` the fit chooses how to treat the latents: a sequence is filtered,
    exactly or by particles; latents that take few values are summed, continuous ones are integrated
    by weighted points for each observation's posterior; for all others the log joint is regressed
    on simulations. It ends when there is nothing left to be gained; `result.verdict` says so.

    With `steps` or `settings` it is Algorithm 1 of the paper, as they say.

    A model whose class says `double = True` is fitted in float64. With `settings.devices` the sleep
    samples and the data are divided among devices, of many processes if `alws.devices.start` joined
    them; the result is the same up to rounding. In the metrics, "objective" is J̄, the mean over
    the batch of the estimate of E[log p_θ(z, x) | x], without log p(θ); of a fit that chose for
    itself it is the log likelihood of all data.

    Arguments:
        model: the model at its start (see `alws.model`).
        data: an array or a pytree of arrays, the observations as leading axis.
        key: a JAX key, on which all random numbers depend.
        steps: how many steps θ takes.
        settings: how to run the algorithm.
        starts: from how many starts to fit, the others spread over what the data can mean; the best
            is kept. Where latents take few values, a few others are tried out with one, too.
        conditions: one entry for each observation, if the model takes a condition.
        log_prior: `log_prior(model)` is log p(θ) for the whole data set: the objective is
            Σ log p_θ(x) + log p(θ). It has nothing to do with a model's own `log_prior(z)`.
        batch_size: how many observations a step sees; all of up to 1024, 256 of more by default.
        callbacks: each is called with a `Report` at the steps that are measured, from the first
            start; one that returns True stops the fit.
        checkpoint: a file, written every `checkpoint_every` steps and at the end. That of a fit
            that filters sequences or regresses scores has its start and its end: one that was
            killed begins again, and one that had ended is given back.
        checkpoint_every: 500 steps by default, or 10 rounds of a fit that chooses for itself.
        resume: go on from the checkpoint, bit for bit as if the fit had not stopped. Everything
            must be as it was when it was started, but for the values of the model's parameters,
            which are the checkpoint's; with an optimiser of your own there may be more steps.
        progress: show a bar; by default where the output is a terminal.
        seconds: of the processor, the most that a fit without `steps` takes from each start; 120
            unless given, and of series of more than 20,000 times 6 for every thousand of them.

    Example:
        >>> result = alws.fit(Mixture(logits, means), data, key=jax.random.key(0))
        >>> print(result.model.means, result.verdict)
    """
    yes_or_no("resume", resume)
    if progress is not None:
        yes_or_no("progress", progress)
    callbacks = checked(callbacks)
    checkpoint = checkpoints.check_name(checkpoint, resume)
    at_least("starts", starts, 1)
    if checkpoint_every is not None:
        at_least("checkpoint_every", checkpoint_every, 1)
    if seconds is not None:
        positive("seconds", seconds, " 120 is usual.")
    common: dict[str, Any] = {
        "key": key,
        "conditions": conditions,
        "log_prior": log_prior,
        "batch_size": batch_size,
        "callbacks": callbacks,
        "checkpoint": checkpoint,
        "checkpoint_every": checkpoint_every,
        "resume": resume,
        "progress": progress,
    }
    reason = "it was asked for"
    if steps is None and settings is None and jax.process_count() == 1:
        found = _climb(model, data, starts=starts, seconds=seconds, **common)
        if isinstance(found, Result):
            _warn_of_verdict(found)
            return found
        reason = found
    elif starts > 1:
        raise ValueError(
            f"`starts` must be 1 with `steps` or `settings` of your own, got {starts}. Fit from "
            "each start by itself, or leave `steps` and `settings` out."
        )
    result = _wake_sleep(
        model,
        data,
        steps=DEFAULT_STEPS if steps is None else steps,
        settings=Settings() if settings is None else settings,
        **common,
    )
    result = replace(result, method=f"wake-sleep by regression, because {reason}")
    if steps is None and settings is None:
        _warn_of_verdict(result)
    return result


DEFAULT_STEPS = 2000
"""How many steps of wake-sleep a fit takes that was not told."""


def _usual_seconds(model: Any, data: PyTree) -> float:
    """How long a climb may take where nobody says: longer for long series."""
    times = math.prod(np.shape(jax.tree.leaves(data)[0])[:2]) if is_long(model, data) else 0
    return max(120.0, 0.006 * times)


def _climb(
    model: Model,
    data: PyTree,
    *,
    key: Key[Array, ""],
    starts: int,
    seconds: float | None,
    conditions: PyTree | None,
    log_prior: Callable[[Any], Array] | None,
    batch_size: int | None,
    callbacks: Sequence[Callback],
    checkpoint: Path | None,
    checkpoint_every: int | None,
    resume: bool,
    progress: bool | None,
) -> Result[Model] | str:
    """The fit by a log likelihood, or why there is none."""
    checkpoints.check_standing(checkpoint, resume)
    prepared = prepare(
        model, data, key=key, steps=1, settings=_for_checks(model, data), conditions=conditions,
        log_prior=log_prior, batch_size=batch_size,
    )  # fmt: skip
    origin = {}
    if checkpoint is not None:
        checkpoints.reserve(checkpoint, prepared.state)
        origin = _origin(prepared, 1, Settings()) | {
            "starts": starts,
            "key": fingerprint(key),
            "model": describe(prepared.state.model, values=starts > 1),
        }
        if resume:
            checkpoints.header(checkpoint)
        else:
            checkpoints.check_path(checkpoint, resume, origin)
    bar = ProgressBar(0, 0, progress)
    history: list[tuple[float, float]] = []

    def watch(seen: Round) -> bool:
        history.append((seen.number, seen.log_likelihood))
        return tell(seen)

    tell = watcher(callbacks, bar)
    with checkpoints.claimed(checkpoint), one_lapack_thread(), bar.progress:
        done = find_maximum(
            prepared.state.model,
            precise_data(data, prepared.problem.data),
            key=key,
            conditions=prepared.problem.conditions,
            log_prior=log_prior,
            starts=starts,
            seconds=seconds or _usual_seconds(model, data),
            watch=watch,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every or 10,
            origin=origin,
            resume=resume,
        )
    if isinstance(done, str):
        return done
    found, maxima = done
    state = prepared.state._replace(model=found.model)
    numbers, heights = np.array(history or np.zeros((0, 2))).T
    return Result(
        found.model,
        state.regression,
        state,
        {"step": numbers, "objective": heights},
        {"refused_steps": 0, "ridge_escalations": 0, "replaced_draws": 0},
        found.rounds,
        prepared.algorithm,
        found.method,
        found.log_likelihood,
        found.error,
        tuple(maxima),
        tuple(found.log),
        lambda: found.verdict,
        _range_of(prepared.problem.conditions),
    )


def _range_of(conditions: PyTree[Array] | None) -> Range | None:
    return None if conditions is None else Range.of(conditions)


def opened(fitted: Any) -> tuple[Any, Range | None]:
    """The model of a fit, and the range of its conditions; a model by itself has none known.

    Example: `model, seen = opened(result)`.
    """
    if isinstance(fitted, Result):
        return fitted.model, fitted.conditions
    return fitted, None


def _for_checks(model: AnyModel, data: PyTree) -> Settings:
    """Settings by which a model is checked before a climb: long sequences are drawn less often."""
    leaves = jax.tree.leaves(data)
    shape = np.shape(leaves[0]) if leaves else ()
    if not isinstance(model, StateSpace) or len(shape) < 2:
        return Settings()
    number = np.clip(MOST_CHECKED // max(shape[1], 1), FEWEST_SLEEP_SAMPLES, 1000)
    return Settings(sleep_samples=int(number))


MOST_CHECKED = 1_000_000
"""How many times, in all sequences, are drawn to check a model."""


def _judge(
    model: AnyModel,
    start: AnyModel,
    data: PyTree,
    problem: Problem,
    key: Key[Array, ""],
    log_prior: Callable[[Any], Array] | None,
) -> Verdict:
    """The verdict on a fit by wake-sleep, from the data in full precision."""
    precise = precise_data(data, problem.data)
    with one_lapack_thread():
        return judge(
            model, start, precise, key=key, conditions=problem.conditions, log_prior=log_prior
        )


def _warn_of_verdict(result: Result) -> None:
    """Say so when a fit should not be trusted."""
    if not result.verdict.trusted:
        remedy = (
            "See `result.log` for what every round did; another start, more `seconds` or a model "
            "on the data's own scale may help."
        )
        if result.verdict.of_model:
            remedy = "Mend the model: no start and no settings make up for that."
        warnings.warn(
            f"the fit should end at a maximum of the likelihood; {result.verdict}. {remedy}",
            RuntimeWarning,
            stacklevel=4,
        )


@in_own_precision
def _wake_sleep(
    model: Model,
    data: PyTree,
    *,
    key: Key[Array, ""],
    steps: int,
    settings: Settings,
    conditions: PyTree | None,
    log_prior: Callable[[Any], Array] | None,
    batch_size: int | None,
    callbacks: Sequence[Callback],
    checkpoint: Path | None,
    checkpoint_every: int | None,
    resume: bool,
    progress: bool | None,
) -> Result[Model]:
    """Algorithm 1, as the settings say."""
    path = checkpoint
    check_settings(settings)
    with devices.losses(path), checkpoints.claimed(path):
        mesh = _mesh(settings)
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
        checkpoints.check_standing(path, resume)
        prepared = prepare(
            model,
            data,
            key=key,
            steps=steps,
            settings=settings,
            conditions=conditions,
            log_prior=log_prior,
            batch_size=batch_size,
        )
        state, history = prepared.state, {name: np.zeros(0, np.float64) for name in metric_names()}
        origin = {}
        if path is not None:
            origin = _origin(prepared, steps, settings)
            own = settings.optimiser is not None
            checkpoints.check_path(path, resume, origin, more_steps=own)
            reports = len(metric_names()) * (2 + steps // settings.measure_every)
            checkpoints.reserve(path, (state, key, np.zeros(reports)))
            if resume:
                state, history = checkpoints.load_fit(path, state, key, metric_names())
                state = device_put(state, mesh)
        separate = conditions is not None and settings.conditions == "separate"
        problem = prepared.problem.on(mesh, divided=not separate)
        prepared = Prepared(prepared.algorithm, state, problem, key, mesh)
        first = int(state.step)
        bar = ProgressBar(steps, first, progress if devices.is_first() else False)

        def after(number: int, state: State, info: Info) -> bool:
            nonlocal history
            last, stop = number == steps, False
            if (number - 1) % settings.measure_every == 0 or last:
                history = _record(history, number - 1, info, state)
                metrics = {k: v[-1].item() for k, v in history.items()}
                report = Report(number, steps, metrics, device_get(state.model, mesh))
                stop = any([bool(callback(report)) for callback in (bar, *callbacks)])
                stop = devices.in_any(stop) if callbacks else stop
            if path is not None and (number % (checkpoint_every or 500) == 0 or last or stop):
                checkpoints.save_fit(path, state, history, key, origin)
            return stop

        with one_lapack_thread(), bar.progress:
            state = loop(prepared.step, state, start=first, more=lambda n: n < steps, after=after)
    result = _result(prepared.algorithm, device_get(state, mesh), history)
    result = replace(
        result,
        judge=partial(_judge, result.model, model, data, prepared.problem, key, log_prior),
        conditions=_range_of(prepared.problem.conditions),
    )
    if devices.is_first():
        warn_of_refusals(result.diagnostics, result.steps)
        warn_of_outside(result.diagnostics["outside"], result.steps)
        phases = result.steps * (prepared.problem.batch_size if separate else 1)
        draws = phases * settings.sleep_samples
        warn_of_replaced(int(result.diagnostics["replaced_draws"]), draws)
    return result


def metric_names() -> tuple[str, ...]:
    """What is kept of every step that is measured.

    Example: `"outside" in metric_names()`.
    """
    first = ("step", "objective", "gradient_norm", "accepted")
    counts = ("refused_steps", "ridge_escalations", "replaced_draws")
    return (*first, *DIAGNOSTICS, *counts)


def _record(
    history: dict[str, np.ndarray], step: int, info: Info, state: State
) -> dict[str, np.ndarray]:
    """The history with one more row, fetched from the device."""
    seen = {**info._asdict(), **info.diagnostics, **state.counts._asdict()}
    row = jax.device_get({name: seen[name] for name in history if name != "step"})
    row["step"] = step
    return {name: np.append(values, float(row[name])) for name, values in history.items()}


def _result(algorithm: WakeSleep, state: State, history: dict[str, np.ndarray]) -> Result:
    """The result, its diagnostics averaged over the last tenth of their measurements."""

    def recent(name: str) -> float:
        measured = history[name][np.isfinite(history[name])]
        return float(measured[-max(1, len(measured) // 10) :].mean()) if len(measured) else np.nan

    residuals = history["solver_residual"]
    worst = float(np.max(residuals[np.isfinite(residuals)], initial=0.0))
    diagnostics = {name: recent(name) for name in DIAGNOSTICS} | {"solver_residual": worst}
    diagnostics |= {name: int(n) for name, n in jax.device_get(state.counts)._asdict().items()}
    return Result(
        state.model,
        state.regression,
        state,
        history,
        diagnostics,
        int(state.step),
        algorithm,
    )


def _mesh(settings: Settings) -> Mesh | None:
    """The devices a fit runs on; many processes must say which."""
    if settings.devices is None and jax.process_count() > 1:
        raise ValueError(
            f"`devices` must be given when {jax.process_count()} processes were joined, got None. "
            'Use `alws.Settings(devices="all")`.'
        )
    return devices.make_mesh(settings.devices)


def _check_processes(things: dict[str, Any], settings: Settings, mesh: Mesh | None) -> None:
    """Refuse processes that were given different things, or settings that differ."""
    shape = None if mesh is None else tuple(mesh.shape.items())
    chosen = {f"`settings.{f.name}`": getattr(settings, f.name) for f in fields(settings)}
    chosen["`settings.devices`"] = shape
    remedy = "Run the same script everywhere, with the same files, seeds and settings."
    devices.check_same(things | chosen, remedy)


def _origin(prepared: Prepared, steps: int, settings: Settings) -> dict[str, Any]:
    """What a checkpoint belongs to, before the data are divided among devices."""
    algorithm, problem = prepared.algorithm, prepared.problem
    default = {"": "the default"}
    regression, optimiser = settings.regression, settings.optimiser
    return {
        "model": describe(prepared.state.model, values=False),
        "estimate": describe(algorithm.estimate),
        "regression": default if regression is None else describe(regression),
        "adapt": describe(algorithm.adapt),
        "optimiser": default if optimiser is None else describe(optimiser),
        "log_prior": describe(algorithm.log_prior),
        "measure_every": int(algorithm.measure_every),
        "steps": int(steps),
        "batch_size": int(problem.batch_size),
        "sleep_samples": int(algorithm.sleep_samples),
        "validation_samples": int(algorithm.validation_samples),
        "theta_steps": int(algorithm.theta_steps),
        "conditions": None if problem.conditions is None else algorithm.conditions,
        "data": fingerprint((problem.data, problem.conditions)),
    }


def _strongly_typed(model: AnyModel) -> Any:
    """Arrays made from Python numbers are weakly typed; an update would change that."""

    def one(a: Any) -> Any:
        if not eqx.is_array(a):
            return a
        return jax.lax.convert_element_type(a, jax.dtypes.canonicalize_dtype(a.dtype))

    return jax.tree.map(one, model)
