"""Updates and draws that are not finite: left out, and counted."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_checkpoint import Normal

import alws
from alws.callbacks import warn_of_refusals, warn_of_replaced
from alws.model import replace_nonfinite
from alws.wake_sleep import WakeSleep


class Blind(alws.estimates.Joint):
    """Predicts nothing on held-out samples, so that γ has no gradient."""

    def predict(self, model, smoother, sleep, x, condition):
        return jnp.nan * super().predict(model, smoother, sleep, x, condition)


def test_an_update_of_gamma_that_is_not_finite_is_left_out_and_counted(key):
    regression = alws.regressions.KernelRidge(alws.kernels.SquaredExponential())
    algorithm = WakeSleep(regression, Blind(), optax.sgd(0.1), 30, 6)
    model = Normal(jnp.array(0.0))
    start = algorithm.init(model, alws.draw(model, key, 30)[0])
    state, info = eqx.filter_jit(algorithm.step)(start, jnp.linspace(0, 2, 5), key)
    assert (state.counts.refused_steps, state.counts.refused_by_adaptation) == (1, 1)
    assert info.accepted
    assert state.model.mean != 0
    np.testing.assert_array_equal(state.regression.log_ridge, start.regression.log_ridge)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_draws_that_are_not_finite_are_replaced_and_no_others(bad):
    """Rows of numbers whose sum overflows are finite, and stay."""
    x = jnp.ones((6, 2, 40)).at[1].set(3e38).at[3, 1, 7].set(bad)
    z = {"a": jnp.arange(6.0).at[5].set(bad), "b": jnp.arange(6)}
    draws, replaced = jax.jit(replace_nonfinite)(alws.Draws(z, x))
    assert replaced == 2
    kept = np.array([0, 1, 2, 0, 4, 0])
    np.testing.assert_array_equal(draws.x, x[kept])
    np.testing.assert_array_equal(draws.z["a"], z["a"][kept])
    np.testing.assert_array_equal(draws.z["b"], z["b"][kept])


class Steep(Normal):
    """A log joint whose value is finite and whose slope is not."""

    def log_joint(self, z, x):
        return super().log_joint(z, x) + jnp.sqrt(0 * self.mean)


def broken(updates, state, parameters=None):
    return jax.tree.map(lambda u: u * jnp.inf, updates), state


BROKEN = optax.GradientTransformation(lambda parameters: optax.EmptyState(), broken)
STEEP_PRIOR = lambda model: jnp.sqrt(0 * model.mean)  # noqa: E731


@pytest.mark.parametrize(
    ("kind", "settings", "log_prior", "message"),
    [
        (Normal, {"optimiser": BROKEN}, None, "the optimiser's update must be finite; on 3 of 3"),
        (Normal, {}, STEEP_PRIOR, "the gradient of `log_prior` must be finite; on 3 of 3"),
        (Steep, {}, None, "the gradient must be finite; on 3 of 3 .* `log_joint` is finite"),
        (Normal, {"estimate": Blind()}, None, "regression's own parameters must be .* on 3 of 3"),
    ],
)
def test_what_was_not_finite_is_named(key, kind, settings, log_prior, message):
    settings = alws.Settings(sleep_samples=30, validation_samples=6, **settings)
    with pytest.warns(RuntimeWarning, match=message):
        alws.fit(
            kind(jnp.array(0.0)),
            np.linspace(0, 2, 5),
            key=key,
            steps=3,
            settings=settings,
            log_prior=log_prior,
        )


def test_most_refusals_name_the_cause():
    counts = {"refused_steps": 50, "refused_by_prior": 10, "refused_by_optimiser": 25}
    with pytest.warns(RuntimeWarning, match="the optimiser's update must be finite; on 50 of 100"):
        warn_of_refusals(counts, 100)
    warn_of_refusals(counts, 500)


def test_many_replaced_draws_are_told_and_few_are_not():
    with pytest.warns(RuntimeWarning, match=r"23796 of 100000, 23\.8%, were not, and copies"):
        warn_of_replaced(23_796, 100_000)
    warn_of_replaced(1_000, 100_000)
