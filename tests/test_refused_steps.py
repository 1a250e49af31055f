"""Updates that are not finite: left out, and counted."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
from test_checkpoint import Normal

import alws


class Blind(alws.Joint):
    """Predicts nothing on held-out samples, so that γ has no gradient."""

    def predict(self, model, smoother, sleep, x, condition):
        return jnp.nan * super().predict(model, smoother, sleep, x, condition)


def test_an_update_of_gamma_that_is_not_finite_is_left_out_and_counted(key):
    settings = alws.Settings(sleep_samples=30, validation_samples=6)
    regression = alws.KernelRidge(alws.kernels.SquaredExponential())
    algorithm = alws.WakeSleep(regression, Blind(), optax.sgd(0.1), settings)
    model = Normal(jnp.array(0.0))
    start = algorithm.init(model, alws.draw(model, key, 30)[0], key)
    state, info = eqx.filter_jit(algorithm.step)(start, jnp.linspace(0, 2, 5), key)
    assert state.counts.refused_steps == 1
    assert info.accepted
    assert state.model.mean != 0
    np.testing.assert_array_equal(state.gradient_model.log_ridge, start.gradient_model.log_ridge)
