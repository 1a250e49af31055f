"""Amortised learning by wake-sleep: Algorithm 1 of the paper, in its order.

At θ_t, with sleep samples (z_n, x_n) ~ p_θt:

1. sleep phase: fit the gradient model Ĵ_γ, a regression of log p_θ(z_n, x_n) on x_n;
2. sleep phase: score Ĵ_γ on L held-out samples, E_γ = mean (Ĵ_γ(x'_l) − log p_θt(z'_l, x'_l))²,
   and take one step on γ down ∇_γ E_γ;
3. wake phase: take one step on θ up ∇_θ (1/M) Σ_m Ĵ_γ(x*_m), on real data x*_m.

The three share one set of sleep samples and one factorisation: θ moves with the γ that was just
scored, and the new γ serves from the next step on.

`init` and `step` are pure. A step on θ or γ that is not finite leaves it as it was and is counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from alws import natural_units
from alws.adaptation import hold_fixed
from alws.diagnostics import effective_samples
from alws.estimates import Estimate, Held
from alws.features import follow
from alws.gradient_models.protocols import GradientModel, Smoother, solver_residual
from alws.gradient_models.reweighted import fit_towards
from alws.held_out import held_out_error
from alws.model import Draws, draw, mend, simulate
from alws.products import transposing_first
from alws.settings import Settings
from alws.sharding import over_devices
from alws.updates import SleepResult, WakeResult, select, update, value_and_gradient, value_if


class Counts(NamedTuple):
    """What went wrong so far and was dealt with; a step that refuses θ's or γ's counts once."""

    refused_steps: Int[Array, ""]
    ridge_escalations: Int[Array, ""]
    replaced_draws: Int[Array, ""]


class State(NamedTuple):
    """θ (in the model), γ (in the gradient model), their optimisers and the step number."""

    model: Any
    gradient_model: Any
    theta_optimiser: PyTree
    gamma_optimiser: PyTree
    information: PyTree
    step: Int[Array, ""]
    counts: Counts


class Info(NamedTuple):
    """What a step saw. Diagnostics that cost extra are NaN on steps that do not measure them.

    `objective` is J̄ without the log prior; `solver_residual` is that of conjugate gradients, 0 for
    regressions that factorise; `accepted` says whether θ took the step.
    """

    objective: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    held_out_r2: Float[Array, ""]
    outside: Float[Array, ""]
    effective_samples: Float[Array, ""]
    solver_residual: Float[Array, ""]
    ridge: Float[Array, ""]
    accepted: Bool[Array, ""]


@dataclass(frozen=True)
class WakeSleep:
    """The algorithm with all its choices made; `init` and `step` are pure.

    Example: `WakeSleep(KernelRidge(SquaredExponential()), Joint(), optax.adam(1e-3), Settings())`.
    """

    gradient_model: GradientModel
    estimate: Estimate
    optimiser: optax.GradientTransformation
    settings: Settings
    log_prior: Callable[[Any], Array] | None = None
    data_size: int = 1
    natural_units: bool = False

    def init(
        self, model: Any, draws: Draws, key: Key[Array, ""], condition: PyTree | None = None
    ) -> State:
        """The state before the first step; all scales come from a first set of sleep samples."""
        gamma = self.gradient_model.initialise(draws.x)
        zero = jnp.zeros((), int)
        information = jax.tree.map(jnp.ones_like, eqx.filter(model, eqx.is_inexact_array))
        if self.natural_units:
            information = natural_units.first_information(model, draws, key, condition)
        return State(
            model,
            gamma,
            self.optimiser.init(eqx.filter(model, eqx.is_inexact_array)),
            self.settings.adapt.optimiser.init(eqx.filter(gamma, eqx.is_inexact_array)),
            information,
            zero,
            Counts(zero, zero, zero),
        )

    def step(
        self, state: State, x: PyTree, key: Key[Array, ""], conditions: PyTree | None = None
    ) -> tuple[State, Info]:
        """One iteration on a wake batch x, with one condition for each of its points if given."""
        model, gamma = state.model, state.gradient_model
        if conditions is None:
            sleep, wake, kept = self.phases(state, x, key, None)
        else:
            sleep, wake, kept = self._phases_by_condition(state, x, key, conditions)

        gamma_optimiser, gamma_fine = state.gamma_optimiser, jnp.array(True)
        if self.settings.adapt.anything:
            gamma, gamma_optimiser, gamma_fine = update(
                self.settings.adapt.optimiser,
                gamma,
                jax.tree.map(jnp.negative, sleep.gamma_gradient),
                gamma_optimiser,
                jax.tree.map(jnp.ones_like, sleep.gamma_gradient),
            )
            if not self.settings.adapt.always:
                due = self.settings.adapt.due(state.step)
                gamma = select(due, gamma, state.gradient_model)
                gamma_optimiser = select(due, gamma_optimiser, state.gamma_optimiser)

        information = state.information
        if self.natural_units:
            information = natural_units.running_mean(information, wake.information, state.step)
        units = natural_units.units(information) if self.natural_units else information
        theta_optimiser, gradient, accepted = state.theta_optimiser, wake.gradient, jnp.array(True)
        for i in range(self.settings.theta_steps):
            if i > 0:
                gradient = eqx.filter_grad(self._objective)(model, kept, conditions)
            gradient = self._add_prior(model, gradient)
            model, theta_optimiser, fine = update(
                self.optimiser, model, gradient, theta_optimiser, units
            )
            accepted &= fine

        counts = Counts(
            state.counts.refused_steps + ~(accepted & gamma_fine),
            state.counts.ridge_escalations + sleep.escalations,
            state.counts.replaced_draws + sleep.replaced,
        )
        info = Info(
            wake.objective,
            optax.tree.norm(gradient),
            sleep.held_out_r2,
            wake.outside,
            wake.effective_samples,
            wake.solver_residual,
            sleep.ridge,
            accepted,
        )
        gamma_and_theta = model, gamma, theta_optimiser, gamma_optimiser
        return State(*gamma_and_theta, information, state.step + 1, counts), info

    def phases(
        self, state: State, x: PyTree, key: Key[Array, ""], condition: PyTree | None
    ) -> tuple[SleepResult, WakeResult, tuple[Draws, Held]]:
        """Sleep, adapt and wake under one condition; what J̄(θ) is made of comes back too."""
        model, gamma, adapt = state.model, state.gradient_model, self.settings.adapt

        # Sleep phase: draw, and train the gradient model.
        raw, validation = self._draw(model, key, condition)
        sleep, replaced = mend(raw)
        smoother, to_gamma = eqx.filter_vjp(
            lambda g: fit_towards(follow(hold_fixed(g, adapt), model), sleep.x, x), gamma
        )

        # Sleep phase: score it on held-out samples, and the gradient of the score in γ.
        def score(smoother: Smoother) -> tuple[Array, Array]:
            units, signs = natural_units.units(state.information), jax.random.fold_in(key, 2)
            draws = (sleep, validation())
            return held_out_error(
                adapt, self.estimate, model, smoother, draws, condition, units, signs
            )

        def with_gradient() -> tuple[Array, PyTree]:
            (_, r2), cotangent = eqx.filter_value_and_grad(score, has_aux=True)(smoother)
            return r2, transposing_first(lambda: to_gamma(cotangent)[0])

        def without_gradient() -> tuple[Array, PyTree]:
            nothing = jax.tree.map(jnp.zeros_like, eqx.filter(gamma, eqx.is_inexact_array))
            return value_if(measuring, lambda: score(smoother)[1]), nothing

        measuring = state.step % self.settings.measure_every == 0
        if adapt.always:
            r2, gamma_gradient = with_gradient()
        elif adapt.anything:
            due = adapt.due(state.step)
            r2, gamma_gradient = jax.lax.cond(due, with_gradient, without_gradient)
        else:
            r2, gamma_gradient = without_gradient()

        # Wake phase: the weights of the sleep samples for the data, and J̄'s gradient in θ.
        hold_key = jax.random.fold_in(key, 3)
        held = self.estimate.hold(model, smoother, sleep, x, condition, hold_key)
        held = jax.lax.stop_gradient(held)

        def objective(model: Any, draws: Draws) -> Array:
            return self.estimate.objective(model, draws, held, condition)

        value, gradient = value_and_gradient(objective, model, raw, sleep, replaced)

        information = None
        if self.natural_units:
            information = natural_units.information(model, sleep, condition)
        factor = smoother.factor
        return (
            SleepResult(gamma_gradient, r2, factor.ridge, factor.escalations, replaced),
            WakeResult(
                gradient,
                value,
                value_if(measuring, lambda: smoother.outside(x)),
                effective_samples(held.mean_weights),
                value_if(measuring, lambda: solver_residual(smoother, x)),
                information,
            ),
            (sleep, held),
        )

    def _draw(
        self, model: Any, key: Key[Array, ""], condition: PyTree | None
    ) -> tuple[Draws, Callable[[], Draws]]:
        """Sleep samples, and validation samples: at once when every step needs both."""
        n, held_out = self.settings.sleep_samples, self.settings.validation_samples
        if self.settings.adapt.anything:
            draws = simulate(model, key, n + held_out, condition)
            sleep = over_devices(jax.tree.map(lambda a: a[:n], draws))
            return sleep, lambda: mend(over_devices(jax.tree.map(lambda a: a[n:], draws)))[0]
        sleep_key, validation_key = jax.random.split(key)
        sleep = simulate(model, sleep_key, n, condition)
        return sleep, lambda: draw(model, validation_key, held_out, condition)[0]

    def _phases_by_condition(
        self, state: State, x: PyTree, key: Key[Array, ""], conditions: PyTree
    ) -> tuple[SleepResult, WakeResult, Any]:
        """One gradient model per condition, one after the other; gradients averaged."""
        number = jax.tree.leaves(x)[0].shape[0]

        def one(item: tuple[PyTree, PyTree, Array]) -> tuple:
            point, condition, key = item
            batch = jax.tree.map(lambda a: a[None], point)
            sleep, wake, kept = self.phases(state, batch, key, condition)
            return sleep, wake, kept if self.settings.theta_steps > 1 else None

        sleep, wake, kept = jax.lax.map(one, (x, conditions, jax.random.split(key, number)))
        totals = sleep.escalations.sum(), sleep.replaced.sum()
        worst = wake.solver_residual.max()
        sleep, wake = jax.tree.map(lambda a: a.mean(axis=0), (sleep, wake))
        sleep = sleep._replace(escalations=totals[0], replaced=totals[1])
        return sleep, wake._replace(solver_residual=worst), kept

    def _objective(
        self, model: Any, kept: tuple[Draws, Held], conditions: PyTree | None
    ) -> Float[Array, ""]:
        """J̄(θ) on the draws and weights that were kept, its mean over conditions if any."""
        if conditions is None:
            return self.estimate.objective(model, *kept, None)

        def one(item: tuple[Draws, Held, PyTree]) -> Array:
            return self.estimate.objective(model, *item)

        return jax.lax.map(jax.checkpoint(one), (*kept, conditions)).mean()

    def _add_prior(self, model: Any, gradient: PyTree) -> PyTree:
        """∇ of log p(θ)/n, n the size of the whole data set, whatever the batch."""
        if self.log_prior is None:
            return gradient
        prior = eqx.filter_grad(self.log_prior)(model)
        return jax.tree.map(lambda g, p: g + p / self.data_size, gradient, prior)
