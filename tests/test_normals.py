"""Many normal numbers of one key: JAX's own words, and the quantiles of the normal distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from alws.likelihoods import Gaussian
from alws.normals import MANY, _to_normal, normal


@pytest.mark.parametrize("shape", [(MANY,), (MANY + 1,), (17, 31), (5, 7, 40)])
def test_numbers_are_those_of_jax(key, shape):
    keys = jax.random.split(key, 20)
    found = jax.jit(jax.vmap(lambda k: normal(k, shape)))(keys)
    with jax.threefry_partitionable(False):
        expected = jax.vmap(lambda k: jax.random.normal(k, shape))(keys)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_every_word_becomes_its_quantile():
    """Words from the least to the greatest, both tails included, against SciPy in float64."""
    words = np.concatenate([np.arange(2000), np.linspace(0, 2**23 - 1, 9999).astype(int)])
    words = np.unique(np.concatenate([words, 2**23 - 1 - words]))
    found = np.asarray(_to_normal(jnp.asarray(words << 9, jnp.uint32)), np.float64)
    lowest = np.nextafter(np.float32(-1), np.float32(0))
    uniform = np.float32(words / 2**23) * (np.float32(1) - lowest) + lowest
    u = np.maximum(lowest, uniform).astype(np.float64)
    expected = np.where(u < 0, stats.norm.ppf((1 + u) / 2), -stats.norm.ppf((1 - u) / 2))
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-6)


def test_numbers_are_normal_and_independent(key):
    rows = np.asarray(jax.vmap(lambda k: normal(k, (1000,)))(jax.random.split(key, 200)))
    assert stats.kstest(rows.ravel(), "norm").pvalue > 0.01
    halves = np.corrcoef(rows[:, :500].ravel(), rows[:, 500:].ravel())[0, 1]
    neighbours = np.corrcoef(rows[1:].ravel(), rows[:-1].ravel())[0, 1]
    assert abs(halves) < 4 / np.sqrt(100_000)
    assert abs(neighbours) < 4 / np.sqrt(199_000)


def test_other_keys_and_numbers_are_left_to_jax(key):
    few = normal(key, (MANY - 1,))
    assert jnp.array_equal(few, jax.random.normal(key, (MANY - 1,)))
    other = jax.random.key(0, impl="rbg")
    assert jnp.array_equal(normal(other, (300,)), jax.random.normal(other, (300,)))
    with jax.enable_x64(True):
        double = normal(key, (300,), jnp.float64)
        assert jnp.array_equal(double, jax.random.normal(key, (300,), jnp.float64))


def test_a_gaussian_likelihood_draws_with_them(key):
    mean = jnp.arange(300.0)
    x = Gaussian(mean, 0.5).sample(key)
    np.testing.assert_allclose((x - mean) / 0.5, normal(key, (300,)), atol=2e-4)
