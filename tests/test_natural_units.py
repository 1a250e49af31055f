"""The complete-data information, against its closed form."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import alws
from alws import natural_units


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


def test_estimates_of_a_step_have_the_exact_mean(key):
    def estimate(key):
        draws, _ = alws.draw(MODEL, key, 21)
        return natural_units.information(MODEL, draws, None)

    estimates = jax.jit(jax.vmap(estimate))(jax.random.split(key, 5000))
    values = np.stack([estimates.mean, estimates.log_scale])
    error = values.std(axis=1) / np.sqrt(5000)
    assert (np.abs(values.mean(axis=1) - EXACT) < 4 * error).all()
    assert (error < 0.05 * EXACT).all()


def test_a_fit_starts_near_the_exact_information(key):
    draws, _ = alws.draw(MODEL, key, 2000)
    first = natural_units.first_information(MODEL, draws, key, None)
    ratio = np.array([first.mean, first.log_scale]) / EXACT
    assert ((ratio > 0.3) & (ratio < 3)).all()  # a mean of sixteen squared normals


def test_units_of_a_parameter_without_information_are_bounded():
    assert natural_units.units(jnp.zeros(())) <= 100.001
