"""Updates and draws that are not finite: left out, and counted."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_checkpoint import Normal

import alws
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
    assert state.counts.refused_steps == 1
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
