"""Amortised learning by wake-sleep: Algorithm 1 of the paper, in its order.

At θ_t, with sleep samples (z_n, x_n) ~ p_θt:

1. sleep phase: fit the regression Ĵ_γ of log p_θ(z_n, x_n) on x_n, the paper's gradient model;
2. adapt: score Ĵ_γ on L held-out samples, E_γ = mean (Ĵ_γ(x'_l) − log p_θt(z'_l, x'_l))², and take
   one step on γ down ∇_γ E_γ;
3. wake phase: the gradient ∇_θ (1/M) Σ_m Ĵ_γ(x*_m), on real data x*_m;
4. update: one step on θ up that gradient.

All share one set of sleep samples and one factorisation: θ moves with the γ that was just scored,
and the new γ serves from the next step on. With an estimate that makes its weights without a
regression there is no γ, and 2 falls away.

`init` and `step` are pure. A step on θ or γ that is not finite leaves it as it was and is counted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from alws.devices import over_devices
from alws.estimates import Estimate, Weights
from alws.features import follow
from alws.model import (
    AnyModel,
    Draws,
    Pooled,
    draw,
    has_likelihood,
    log_joints,
    replace_nonfinite,
    simulate,
)
from alws.natural_units import units_of
from alws.regressions.base import Regression, Smoother
from alws.values import at_least, number, one_of, positive, yes_or_no

CRITERIA = ("objective", "gradient")

CONDITIONS = ("pooled", "separate")
"""One regression on pairs (condition, x) for all conditions, or one on x for each condition."""


@dataclass(frozen=True)
class Adapt:
    """Which parts of γ are adapted, and how: §3.4. ALWS-F and ALWS-A are two values of it.

    γ takes a step at each `every` of θ's, from step `after` on: it changes slowly, and its gradient
    can cost as much as all the rest of a step.

    Arguments:
        bandwidth: whether the kernel's bandwidths σ are adapted.
        ridge: whether λ is.
        features: whether the weights of the features φ are.
        after: the step of θ from which on γ moves.
        every: γ takes a step at each so many of θ's.
        learning_rate: that of Adam on γ.
        clip_norm: γ's gradient is scaled down to this norm where it is longer; infinite for none.
        criterion: "objective", the paper's held-out error of Ĵ, or "gradient", that of Ĵ's gradient
            in θ along random directions (see `held_out_error`).
        directions: how many of these.

    Example: `Adapt(ridge=False, after=3000)` adapts σ and φ once 3000 steps are done.
    """

    bandwidth: bool = True
    ridge: bool = True
    features: bool = True
    after: int = 0
    every: int = 1
    learning_rate: float = 0.01
    clip_norm: float = 1.0
    criterion: str = "objective"
    directions: int = 1

    def __post_init__(self) -> None:
        for name in ("bandwidth", "ridge", "features"):
            yes_or_no(name, getattr(self, name))
        at_least("after", self.after, 0)
        at_least("every", self.every, 1)
        positive("learning_rate", self.learning_rate, " 0.01 is usual.")
        why = " `math.inf` leaves gradients as they are."
        number("clip_norm", self.clip_norm, "positive", lambda norm: norm > 0, why)
        one_of("criterion", self.criterion, CRITERIA)
        at_least("directions", self.directions, 1)

    @property
    def anything(self) -> bool:
        """Whether anything is adapted at all."""
        return self.bandwidth or self.ridge or self.features

    @property
    def always(self) -> bool:
        """Whether γ takes a step whenever θ does."""
        return self.anything and self.after == 0 and self.every == 1

    def due(self, step: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether γ takes a step at this one of θ's.

        Example: `Adapt(after=10, every=5).due(15)` is true.
        """
        return (step >= self.after) & (step % self.every == 0)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam on γ."""
        adam = optax.adam(self.learning_rate)
        if self.clip_norm == math.inf:
            return adam
        return optax.chain(optax.clip_by_global_norm(self.clip_norm), adam)


ALWS_F = Adapt(bandwidth=False, ridge=False, features=False)
"""The paper's ALWS-F: γ fixed at its start values."""

ALWS_A = Adapt(ridge=False, learning_rate=1e-3, clip_norm=math.inf)
"""The paper's ALWS-A for images: σ and φ adapted at the table's rate, λ fixed."""


class Counts(NamedTuple):
    """What went wrong so far and was dealt with; a step that refuses θ's or γ's counts once.

    Of the refused steps, the last three say which had a finite gradient of J̄ and not of the log
    prior, which an update that was not finite, and which such a gradient or update of γ alone.
    """

    refused_steps: Int[Array, ""]
    ridge_escalations: Int[Array, ""]
    replaced_draws: Int[Array, ""]
    refused_by_prior: Int[Array, ""]
    refused_by_optimiser: Int[Array, ""]
    refused_by_adaptation: Int[Array, ""]


class State(NamedTuple):
    """θ (in the model), γ (in the regression), their optimisers and the step number."""

    model: Any
    regression: Any
    theta_optimiser: PyTree
    gamma_optimiser: PyTree
    step: Int[Array, ""]
    counts: Counts


class Info(NamedTuple):
    """What a step saw: J̄ without the log prior, the gradient's norm, whether θ took the step.

    `diagnostics` has a number for each of `DIAGNOSTICS`, NaN on steps that do not measure it.
    """

    objective: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    accepted: Bool[Array, ""]
    diagnostics: dict[str, Float[Array, ""]]


class Phases(NamedTuple):
    """What a sleep and a wake phase leave."""

    draws: Draws
    weights: Weights
    replaced: Int[Array, ""]
    escalations: Int[Array, ""]
    objective: Float[Array, ""]
    gradient: PyTree
    gamma_gradient: PyTree
    diagnostics: dict[str, Float[Array, ""]]


class Refusal(NamedTuple):
    """Whether a step on θ was refused, and what its first number that is not finite came from.

    The log prior or the optimiser; else it was the gradient of J̄ itself.
    """

    refused: Bool[Array, ""]
    by_prior: Bool[Array, ""]
    by_optimiser: Bool[Array, ""]


class Measured(NamedTuple):
    """What a diagnostic may look at: the phases' parts, the wake batch and the held-out score."""

    smoother: Smoother | None
    weights: Weights
    x: PyTree
    held_out_r2: Callable[[], Float[Array, ""]]


def _effective_samples(seen: Measured) -> Float[Array, ""]:
    """(Σ|w|)²/Σw²: N for equal weights, 1 when a single sample has them all."""
    w = seen.weights.mean
    return jnp.abs(w).sum() ** 2 / jnp.maximum((w**2).sum(), jnp.finfo(w.dtype).tiny)


def _of_smoother(part: Callable[[Smoother, PyTree], Array]) -> Callable[[Measured], Array]:
    """A part of a regression, NaN where there is none."""

    def measure(seen: Measured) -> Array:
        return jnp.array(jnp.nan) if seen.smoother is None else part(seen.smoother, seen.x)

    return measure


DIAGNOSTICS: dict[str, Callable[[Measured], Float[Array, ""]]] = {
    "held_out_r2": lambda seen: seen.held_out_r2(),
    "outside": _of_smoother(lambda smoother, x: smoother.outside(x)),
    "effective_samples": _effective_samples,
    "solver_residual": _of_smoother(lambda smoother, x: smoother.report(x).residual),
    "ridge": _of_smoother(lambda smoother, x: smoother.report(x).ridge),
}
"""What is measured at each `measure_every` steps; to add a diagnostic, add a line.

- held_out_r2: the share of the variance of log p(z, x) that Ĵ explains on fresh sleep samples;
- outside: the share of data points that lie outside the sleep samples (covariate shift, §3.5);
- effective_samples: how many sleep samples the mean weights w̄ spread over;
- solver_residual: ‖b − (K + λI)v‖/‖b‖ of the wake phase's solves by conjugate gradients, at its
  worst; near 1 nothing was solved. 0 for regressions that factorise;
- ridge: λ as the regression took it.
"""


@dataclass(frozen=True)
class WakeSleep:
    """The algorithm with all its choices made; `init` and `step` are pure.

    Arguments:
        regression: γ at the start; not used by an estimate that does not regress.
        estimate: how J is written as a regression.
        optimiser: any optax transformation, on θ.
        sleep_samples, validation_samples: N and L.
        adapt: which parts of γ are adapted.
        theta_steps: how many steps θ takes on each sleep phase, its draws and weights constant.
        measure_every: the steps at which diagnostics are measured.
        log_prior: log p(θ) for the whole data set, of `data_size` observations.
        conditions: one of `CONDITIONS`, for models that take a condition.

    Example: `WakeSleep(KernelRidge(SquaredExponential()), Joint(), optax.adam(1e-3))`.
    """

    regression: Regression | None
    estimate: Estimate
    optimiser: optax.GradientTransformation
    sleep_samples: int = 1000
    validation_samples: int = 200
    adapt: Adapt = Adapt()
    theta_steps: int = 1
    measure_every: int = 50
    log_prior: Callable[[Any], Array] | None = None
    data_size: int = 1
    conditions: str = "pooled"

    def init(self, model: AnyModel, draws: Draws, condition: PyTree | None = None) -> State:
        """The state before the first step; γ's scales come from a first set of sleep samples."""
        gamma = None
        if self.regression is not None and self.estimate.regresses:
            gamma = self.regression.initialise(self.estimate.views(model, draws.x, condition))
        zero = jnp.zeros((), int)
        return State(
            model,
            gamma,
            self.optimiser.init(eqx.filter(model, eqx.is_inexact_array)),
            self.adapt.optimiser.init(eqx.filter(gamma, eqx.is_inexact_array)),
            zero,
            Counts(*[zero] * len(Counts._fields)),
        )

    def step(
        self, state: State, x: PyTree, key: Key[Array, ""], conditions: PyTree | None = None
    ) -> tuple[State, Info]:
        """One iteration on a wake batch x, with one condition for each of its points if given.

        Pooled, the sleep samples are drawn under the conditions of the batch, in equal shares.
        """
        if conditions is not None and self.conditions == "separate":
            done = self._phases_by_condition(state, x, key, conditions)
        else:
            x, conditions = pooled(x, conditions)
            done = self.phases(state, x, key, conditions)
        gamma, gamma_optimiser, gamma_fine = self._update_gamma(state, done.gamma_gradient)
        model, theta_optimiser, gradient, refusal = self._update_theta(state, done, key, conditions)
        fine = ~refusal.refused
        seen = Counts(
            ~(fine & gamma_fine),
            done.escalations,
            done.replaced,
            refusal.by_prior,
            refusal.by_optimiser,
            fine & ~gamma_fine,
        )
        counts = jax.tree.map(jnp.add, state.counts, seen)
        info = Info(done.objective, optax.tree.norm(gradient), fine, done.diagnostics)
        return State(model, gamma, theta_optimiser, gamma_optimiser, state.step + 1, counts), info

    def phases(
        self, state: State, x: PyTree, key: Key[Array, ""], condition: PyTree | None
    ) -> Phases:
        """Sleep, adapt and wake, under one condition or many that are pooled.

        What J̄(θ) is made of comes back too.
        """
        model = state.model

        # Sleep phase: draw, and fit the regression.
        raw, validation = self._draw(model, key, condition)
        sleep, replaced = replace_nonfinite(raw)
        wake_key = jax.random.fold_in(key, 3)
        wake_views = self.estimate.views(model, x, condition, wake_key)
        smoother, to_gamma = eqx.filter_vjp(
            lambda gamma: self._fit(
                gamma, model, self.estimate.views(model, sleep.x, condition), wake_views
            ),
            state.regression,
        )

        # Adapt: score it on held-out samples, and the gradient of the score in γ.
        def score(smoother: Smoother | None) -> tuple[Array, Array]:
            parameters = eqx.filter(model, eqx.is_inexact_array)
            units = units_of(state.theta_optimiser, parameters)
            return held_out_error(
                self.adapt,
                self.estimate,
                model,
                smoother,
                (sleep, validation()),
                condition,
                units,
                jax.random.fold_in(key, 2),
            )

        r2, gamma_gradient = self._score(state, smoother, to_gamma, score)

        # Wake phase: the weights of the sleep samples for the data, and J̄'s gradient in θ.
        weights = self.estimate.weigh(model, smoother, sleep, x, condition, wake_key)
        weights = jax.lax.stop_gradient(weights)
        value, gradient = value_and_gradient(
            lambda model, draws: self.estimate.objective(model, draws, weights, condition),
            model,
            (raw, sleep),
            replaced,
        )

        seen = Measured(smoother, weights, wake_views, r2)
        due = state.step % self.measure_every == 0
        diagnostics = value_if(
            due, lambda: {name: measure(seen) for name, measure in DIAGNOSTICS.items()}
        )
        escalations = (
            jnp.zeros((), int) if smoother is None else smoother.report(wake_views).escalations
        )
        return Phases(
            sleep, weights, replaced, escalations, value, gradient, gamma_gradient, diagnostics
        )

    def _draw(
        self, model: AnyModel, key: Key[Array, ""], condition: PyTree | None
    ) -> tuple[Draws, Callable[[], Draws]]:
        """Sleep samples, and validation samples: at once when every step needs both.

        Otherwise these are drawn where they are asked for, on the steps that use them.
        """
        n, held_out = self.sleep_samples, self.validation_samples
        if self.adapt.always and self.estimate.regresses:
            draws = simulate(model, key, n + held_out, condition)
            sleep = over_devices(jax.tree.map(lambda a: a[:n], draws))
            rest = over_devices(jax.tree.map(lambda a: a[n:], draws))
            return sleep, lambda: replace_nonfinite(rest)[0]
        sleep_key, validation_key = jax.random.split(key)
        sleep = simulate(model, sleep_key, n, condition)
        return sleep, lambda: draw(model, validation_key, held_out, condition)[0]

    def _fit(
        self, gamma: Regression | None, model: AnyModel, sleep: PyTree, wake: PyTree
    ) -> Smoother | None:
        """The regression on the sleep samples, with what is not adapted held constant."""
        if gamma is None:
            return None
        return follow(stop_where_fixed(gamma, self.adapt), model).fit(sleep, wake)

    def _score(
        self,
        state: State,
        smoother: Smoother | None,
        to_gamma: Callable[[Any], tuple[PyTree]],
        score: Callable[[Smoother | None], tuple[Array, Array]],
    ) -> tuple[Callable[[], Array], PyTree]:
        """The held-out R², to be measured where it is wanted, and the gradient in γ when due."""
        parameters = eqx.filter(state.regression, eqx.is_inexact_array)
        nothing = jax.tree.map(jnp.zeros_like, parameters)

        def with_gradient() -> tuple[Array, PyTree]:
            (_, r2), cotangent = eqx.filter_value_and_grad(score, has_aux=True)(smoother)
            return r2, to_gamma(cotangent)[0]

        if smoother is None or not self.adapt.anything:
            return lambda: score(smoother)[1], nothing
        if self.adapt.always:
            r2, gradient = with_gradient()
            return lambda: r2, gradient
        due, measuring = self.adapt.due(state.step), state.step % self.measure_every == 0
        r2, gradient = jax.lax.cond(
            due,
            with_gradient,
            lambda: (value_if(measuring, lambda: score(smoother)[1]), nothing),
        )
        return lambda: r2, gradient

    def _phases_by_condition(
        self, state: State, x: PyTree, key: Key[Array, ""], conditions: PyTree
    ) -> Phases:
        """One regression per condition, one after the other; gradients averaged."""
        number = jax.tree.leaves(x)[0].shape[0]

        def one(item: tuple[PyTree, PyTree, Array]) -> Phases:
            point, condition, key = item
            return self.phases(state, jax.tree.map(lambda a: a[None], point), key, condition)

        done = jax.lax.map(one, (x, conditions, jax.random.split(key, number)))
        means = jax.tree.map(
            lambda a: a.mean(axis=0),
            (done.objective, done.gradient, done.gamma_gradient, done.diagnostics),
        )
        means[3]["solver_residual"] = done.diagnostics["solver_residual"].max()
        totals = done.replaced.sum(), done.escalations.sum()
        return Phases(done.draws, done.weights, *totals, *means)

    def _update_gamma(self, state: State, gradient: PyTree) -> tuple[Any, PyTree, Bool[Array, ""]]:
        """One step on γ down the gradient of the held-out error, where it is due."""
        gamma, optimiser = state.regression, state.gamma_optimiser
        if gamma is None or not self.adapt.anything:
            return gamma, optimiser, jnp.array(True)
        uphill = jax.tree.map(jnp.negative, gradient)
        new, new_optimiser, fine = update(self.adapt.optimiser, gamma, uphill, optimiser)
        if self.adapt.always:
            return new, new_optimiser, fine
        due = self.adapt.due(state.step)
        return select(due, new, gamma), select(due, new_optimiser, optimiser), fine

    def _update_theta(
        self, state: State, done: Phases, key: Key[Array, ""], conditions: PyTree | None
    ) -> tuple[Any, PyTree, PyTree, "Refusal"]:
        """The θ steps of one iteration, all on the same draws and weights."""
        model, optimiser, gradient = state.model, state.theta_optimiser, done.gradient
        refused = by_prior = by_optimiser = jnp.array(False)

        def complete(model: AnyModel) -> Array:
            return self._over_conditions(
                lambda draws, condition: log_joints(model, draws, condition), done.draws, conditions
            ).ravel()

        def objective(model: AnyModel) -> Array:
            def one(kept: tuple[Draws, Weights], condition: PyTree | None) -> Array:
                return self.estimate.objective(model, *kept, condition)

            return self._over_conditions(one, (done.draws, done.weights), conditions).mean()

        for i in range(self.theta_steps):
            if i > 0:
                gradient = eqx.filter_grad(objective)(model)
            without_prior = all_finite(gradient)
            gradient = self._add_prior(model, gradient)
            whole = all_finite(gradient)
            model, optimiser, fine = update(
                self.optimiser,
                model,
                gradient,
                optimiser,
                model=model,
                log_joints=complete,
                key=jax.random.fold_in(key, 4),
            )
            by_prior |= ~refused & without_prior & ~whole
            by_optimiser |= ~refused & whole & ~fine
            refused |= ~fine
        return model, optimiser, gradient, Refusal(refused, by_prior, by_optimiser)

    def _over_conditions(
        self, function: Callable[[Any, PyTree | None], Array], kept: PyTree, conditions: PyTree
    ) -> Array:
        """The function of what was kept, or of what was kept under each condition, in turn."""
        if conditions is None or isinstance(conditions, Pooled):
            return function(kept, conditions)
        again = jax.checkpoint(lambda item: function(*item))
        return jax.lax.map(again, (kept, conditions))

    def _add_prior(self, model: AnyModel, gradient: PyTree) -> PyTree:
        """∇ of log p(θ)/n, n the size of the whole data set, whatever the batch."""
        if self.log_prior is None:
            return gradient
        prior = eqx.filter_grad(self.log_prior)(model)
        return jax.tree.map(lambda g, p: g + p / self.data_size, gradient, prior)


def pooled(x: PyTree, conditions: PyTree | None) -> tuple[PyTree, Pooled | None]:
    """Observations as pairs with their conditions, and these conditions; without any, x as it is.

    Example: `x, condition = pooled(x, conditions)`.
    """
    return (x, None) if conditions is None else ((conditions, x), Pooled(conditions))


def held_out_error(
    adapt: Adapt,
    estimate: Estimate,
    model: AnyModel,
    smoother: Smoother | None,
    draws: tuple[Draws, Draws],
    condition: PyTree | None,
    units: PyTree,
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """E_γ of §3.4 by the criterion of `adapt`, and the share of log p(z', x') that Ĵ explains.

    `draws` are the sleep samples and L held-out ones (z', x'). Over the variance of what is
    predicted,

        "objective"  E_γ = mean (Ĵ_γ(x'_l) − log p_θ(z'_l, x'_l))², the paper's;
        "gradient"   E_γ = mean (v·∇_θ Ĵ_γ(x'_l) − v·∇_θ log p_θ(z'_l, x'_l))² over directions v,

    the second because the gradient is what the wake phase uses. It needs no gradient of any sample:
    a Jacobian-vector product along v has v·∇_θ of all of them, at the values' own cost.
    Directions are random signs in these units of θ, a pytree like its parameters.

    Example: `held_out_error(Adapt(), Joint(), model, smoother, draws, None, units, key)`.
    """
    sleep, held_out = draws
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)

    def truths(parameters: Any) -> Array:
        return estimate.targets(eqx.combine(parameters, rest), held_out, condition)

    def predictions(parameters: Any) -> Array:
        whole = eqx.combine(parameters, rest)
        return estimate.predict(whole, smoother, sleep, held_out.x, condition)

    if adapt.criterion == "objective":
        error = _share_left(predictions(parameters), truths(parameters))
        return error, 1 - error
    truth, along_truth = jax.linearize(truths, parameters)
    predicted, along_prediction = jax.linearize(predictions, parameters)
    leaves, structure = jax.tree.flatten(units)
    errors = []
    for direction_key in jax.random.split(key, adapt.directions):
        keys = jax.random.split(direction_key, len(leaves))
        signs = [
            unit * jax.random.rademacher(k, unit.shape, unit.dtype)
            for k, unit in zip(keys, leaves, strict=True)
        ]
        direction = jax.tree.unflatten(structure, signs)
        errors.append(_share_left(along_prediction(direction), along_truth(direction)))
    return jnp.stack(errors).mean(), 1 - _share_left(predicted, truth)


def _share_left(predicted: Float[Array, " held_out"], truth: Float[Array, " held_out"]) -> Array:
    variance = jax.lax.stop_gradient(truth.var() + jnp.finfo(truth.dtype).tiny)
    return jnp.mean((predicted - truth) ** 2) / variance


def stop_where_fixed(regression: Regression, adapt: Adapt) -> Any:
    """The regression with the parts that are not adapted held constant.

    It says itself which of its leaves are bandwidths and which are ridges; the others count as
    weights of features.

    Example: `stop_where_fixed(KernelRidge(SquaredExponential()), ALWS_A)` holds λ.
    """
    arrays, rest = eqx.partition(regression, eqx.is_inexact_array)
    adapted = jax.tree.map(lambda _: adapt.features, arrays)
    for leaves, wanted in (
        (lambda g: g.bandwidths(), adapt.bandwidth),
        (lambda g: g.ridges(), adapt.ridge),
    ):
        if leaves(regression):
            adapted = eqx.tree_at(leaves, adapted, replace_fn=lambda _, wanted=wanted: wanted)
    held = jax.tree.map(lambda a, move: a if move else jax.lax.stop_gradient(a), arrays, adapted)
    return eqx.combine(held, rest)


def value_and_gradient(
    objective: Callable[[Any, Draws], Array],
    model: AnyModel,
    draws: tuple[Draws, Draws],
    replaced: Int[Array, ""],
) -> tuple[Array, PyTree]:
    """J̄ and its gradient in θ, on the draws as they came unless some had to be replaced.

    A likelihood's forward pass at the raw latents is the one the observations were drawn with, and
    the compiler does it once. Other models share nothing and are differentiated at finite draws.
    """
    raw, finite = draws
    if not has_likelihood(model):
        return eqx.filter_value_and_grad(objective)(model, finite)
    value, pullback = eqx.filter_vjp(lambda m: objective(m, raw), model)
    return jax.lax.cond(
        replaced == 0,
        lambda: (value, pullback(jnp.ones_like(value))[0]),
        lambda: eqx.filter_value_and_grad(objective)(model, finite),
    )


def update(
    optimiser: optax.GradientTransformation,
    module: Any,
    gradient: PyTree,
    state: PyTree,
    **extra: Any,
) -> tuple[Any, PyTree, Bool[Array, ""]]:
    """One step of the optimiser uphill, refused as a whole when not finite.

    What else is given goes to the optimiser, if it asks for it, as `natural_units` does.

    Example: `model, state, fine = update(optax.adam(1e-3), model, gradient, state)`.
    """
    parameters = eqx.filter(module, eqx.is_inexact_array)
    downhill = jax.tree.map(jnp.negative, gradient)
    whole = optax.with_extra_args_support(optimiser)
    updates, new_state = whole.update(downhill, state, parameters, **extra)
    new = eqx.apply_updates(module, updates)
    fine = all_finite((gradient, eqx.filter(new, eqx.is_inexact_array)))
    return select(fine, new, module), select(fine, new_state, state), fine


def all_finite(tree: PyTree[Array]) -> Bool[Array, ""]:
    """Whether every number in the tree is finite.

    Example: `all_finite(gradient)`.
    """
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]
    return jnp.stack([jnp.array(True), *leaves]).all()


def select(condition: Bool[Array, ""], yes: PyTree, no: PyTree) -> PyTree:
    """`yes` or `no`, leaf by leaf; what is not an array is the same in both.

    Example: `select(jnp.isfinite(loss), new, old)`.
    """
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b) if eqx.is_array(a) else a, yes, no)


def value_if(condition: Bool[Array, ""], function: Callable[[], PyTree]) -> PyTree:
    """The value of a function where it is wanted, NaN where not.

    Example: `value_if(step % 50 == 0, lambda: smoother.outside(x))`.
    """
    shapes = jax.eval_shape(function)
    return jax.lax.cond(
        condition,
        function,
        lambda: jax.tree.map(lambda s: jnp.full(s.shape, jnp.nan, s.dtype), shapes),
    )
