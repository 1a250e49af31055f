"""Natural units: the complete-data information and the steps, against their closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import alws
from alws.model import log_joints
from alws.natural_units import natural_units, units_of


class Normal(eqx.Module):
    """z ~ N(0, 1), x ~ N(mean + z, e^log_scale): F = (1/σ², 2)."""

    mean: jax.Array
    log_scale: jax.Array

    def sample(self, key):
        z, noise = jax.random.normal(key, (2,))
        return z, self.mean + z + jnp.exp(self.log_scale) * noise

    def log_joint(self, z, x):
        logpdf = jax.scipy.stats.norm.logpdf
        return logpdf(z) + logpdf(x, self.mean + z, jnp.exp(self.log_scale))


MODEL = Normal(jnp.array(50.0), jnp.log(7.0))
EXACT = np.array([1 / 7**2, 2.0])


def after(number, key, model=MODEL, samples=21):
    """The optimiser's state after a number of updates, each on draws of its own."""
    optimiser = natural_units(optax.sgd(0.0))
    state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))
    gradient = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
    for i in range(number):
        draws, _ = alws.draw(model, jax.random.fold_in(key, i), samples)
        extra = {"log_joints": lambda m, draws=draws: log_joints(m, draws), "key": key}
        _, state = optimiser.update(gradient, state, model=model, **extra)
    return state


def test_the_first_information_has_the_exact_mean(key):
    states = jax.jit(jax.vmap(lambda k: after(1, k).information))(jax.random.split(key, 3000))
    values = np.stack([states.mean, states.log_scale])
    error = values.std(axis=1) / np.sqrt(3000)
    assert (np.abs(values.mean(axis=1) - EXACT) < 4 * error).all()
    assert (error < 0.05 * EXACT).all()


def test_information_comes_to_the_exact_one(key):
    state = eqx.filter_jit(lambda key: after(60, key, samples=200))(key)
    ratio = np.array([state.information.mean, state.information.log_scale]) / EXACT
    assert ((ratio > 0.6) & (ratio < 1.5)).all()  # a mean of 76 squared normals


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_a_step_is_as_long_in_units_of_what_the_data_tell(rate, key):
    """sgd in natural units moves θ by rate·gradient/F."""
    optimiser = natural_units(optax.sgd(rate))
    parameters = eqx.filter(MODEL, eqx.is_inexact_array)
    gradient = Normal(jnp.array(2.0), jnp.array(-3.0))
    draws, _ = alws.draw(MODEL, key, 500)
    updates, state = optimiser.update(
        gradient,
        optimiser.init(parameters),
        parameters,
        model=MODEL,
        log_joints=lambda m: log_joints(m, draws),
        key=key,
    )
    units = units_of(state, parameters)
    np.testing.assert_allclose(updates.mean, -rate * 2.0 * units.mean**2, rtol=1e-5)
    np.testing.assert_allclose(updates.log_scale, rate * 3.0 * units.log_scale**2, rtol=1e-5)
    np.testing.assert_allclose(
        [1 / units.mean**2 - 1e-4, 1 / units.log_scale**2 - 1e-4],
        [state.information.mean, state.information.log_scale],
        rtol=1e-2,
    )


def test_units_of_a_parameter_without_information_are_bounded(key):
    class Idle(Normal):
        def log_joint(self, z, x):
            return jax.scipy.stats.norm.logpdf(z) + 0 * self.mean

    model = Idle(jnp.array(0.0), jnp.array(0.0))
    units = units_of(after(1, key, model), eqx.filter(model, eqx.is_inexact_array))
    assert units.mean <= 100.001


def test_other_optimisers_have_units_of_one():
    parameters = eqx.filter(MODEL, eqx.is_inexact_array)
    units = units_of(optax.adam(0.1).init(parameters), parameters)
    assert units.mean == units.log_scale == 1
