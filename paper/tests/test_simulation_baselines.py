"""K2-ABC and synthetic likelihood on Gaussian problems with known answers; the blowfly model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from alws_paper.blowflies import rivals as blowflies
from alws_paper.blowflies.k2_abc import K2ABC, k2_abc
from alws_paper.blowflies.synthetic_likelihood import (
    gaussian_log_likelihood,
    pilot,
    synthetic_likelihood,
)


def test_k2_abc_has_the_posterior_of_its_own_likelihood(key):
    """A Gaussian mean: MMD² is known in closed form, and the posterior by a sum over a grid."""
    data = 1.0 + np.random.default_rng(0).normal(size=200)
    sigma, epsilon = 1.5, 0.05
    found = k2_abc(
        lambda k, theta: theta + jax.random.normal(k, (200, 1)),
        lambda k: 2 * jax.random.normal(k, (1,)),
        jnp.array(data)[:, None],
        key=key,
        number=1500,
        bandwidth=sigma,
    )
    grid = np.linspace(-6, 6, 2001)
    wide = sigma**2 + 1
    across = np.sqrt(sigma**2 / wide) * np.exp(-((data[:, None] - grid) ** 2) / (2 * wide))
    log_weight = 2 * across.mean(axis=0) / epsilon + stats.norm.logpdf(grid, scale=2)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = weight @ grid
    deviation = np.sqrt(weight @ (grid - mean) ** 2)
    np.testing.assert_allclose(found.mean(epsilon)[0], mean, atol=0.15 * deviation)
    draws = np.asarray(found.sample(jax.random.key(1), epsilon, 4000))
    np.testing.assert_allclose(draws.std(), deviation, rtol=0.15)
    near = (np.asarray(found.parameters)[:, 0] - 1) ** 2 < 0.01
    expected = -2 * np.interp(1, grid, across.mean(axis=0)) + 2 * np.sqrt(sigma**2 / (wide + 1))
    np.testing.assert_allclose(found.mmd[near].mean(), expected, atol=0.01)


def test_k2_abc_gives_no_weight_to_what_is_not_finite():
    found = K2ABC(jnp.array([[1.0], [2.0], [3.0]]), jnp.array([jnp.nan, 0.1, 0.1]))
    np.testing.assert_allclose(found.weights(0.01), [0, 0.5, 0.5])
    np.testing.assert_allclose(found.mean(0.01), [2.5])
    with pytest.raises(ValueError, match="positive"):
        found.weights(0.0)


def test_gaussian_likelihood_is_that_of_scipy():
    generator = np.random.default_rng(0)
    simulated = generator.normal(size=(300, 3)) @ np.array([[1, 2, 0], [0, 30, 1], [0, 0, 0.1]])
    observed = np.array([0.5, 10.0, 0.4])
    expected = stats.multivariate_normal.logpdf(observed, simulated.mean(0), np.cov(simulated.T))
    found = gaussian_log_likelihood(jnp.array(simulated), jnp.array(observed))
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    broken = jnp.array(simulated).at[0, 0].set(jnp.inf)
    assert gaussian_log_likelihood(broken, jnp.array(observed)) == -jnp.inf


NOISE = np.array([0.5, 2.0])
OBSERVED = jnp.array([0.8, -1.0])


def two_means(key, theta):
    """Statistics that are exactly Gaussian."""
    return theta + jnp.array(NOISE, jnp.float32) * jax.random.normal(key, (2,))


def standard_normal(theta):
    return jax.scipy.stats.norm.logpdf(theta).sum()


def test_synthetic_likelihood_has_the_exact_posterior_where_statistics_are_gaussian(key):
    precision = 1 + NOISE**-2
    start = jax.random.normal(key, (20, 2))
    chains = synthetic_likelihood(
        two_means,
        standard_normal,
        OBSERVED,
        start,
        key=jax.random.key(1),
        steps=400,
        simulations=200,
    )
    draws = np.asarray(chains.after(50))
    assert draws.shape == (350 * 20, 2)
    np.testing.assert_allclose(draws.mean(axis=0), OBSERVED / NOISE**2 / precision, atol=0.06)
    np.testing.assert_allclose(draws.std(axis=0), precision**-0.5, rtol=0.1)
    assert 0.2 < chains.accepted < 0.7


def test_pilot_starts_where_the_posterior_is_high(key):
    start = pilot(
        two_means,
        lambda k: jax.random.normal(k, (2,)),
        standard_normal,
        OBSERVED,
        key=key,
        draws=2000,
        chains=10,
        simulations=100,
    )
    precision = 1 + NOISE**-2
    assert start.shape == (10, 2)
    off = (np.asarray(start) - OBSERVED / NOISE**2 / precision) * np.sqrt(precision)
    assert (np.linalg.norm(off, axis=1) < 1.5).all()


@pytest.mark.parametrize(
    ("chains", "simulations", "message"), [(3, 10, "even number"), (4, 3, "at least 4")]
)
def test_chains_that_cannot_work_are_refused(chains, simulations, message, key):
    with pytest.raises(ValueError, match=message):
        synthetic_likelihood(
            two_means,
            standard_normal,
            OBSERVED,
            jnp.zeros((chains, 2)),
            key=key,
            steps=1,
            simulations=simulations,
        )


@pytest.mark.parametrize("delay", [1, 7, 64])
def test_blowflies_without_noise_follow_the_recursion(delay, key):
    births, deaths, capacity = 20.0, 0.3, 250.0
    logs = np.log([births, deaths, capacity, 1e-4, 1e-4, delay])
    x = [180.0] * 64
    for _ in range(150):
        old = x[-delay]
        x.append(births * old * np.exp(-old / capacity) + x[-1] * np.exp(-deaths))
    found = blowflies.simulate(key, jnp.array(logs, jnp.float32), 100)
    np.testing.assert_allclose(found[:20], x[114:134], rtol=0.02)


def test_noise_of_blowflies_has_mean_one_and_its_deviation(key):
    """Without births, log x_t − log x_{t−1} = −δ ε_t."""
    logs = np.log([1e-9, 0.001, 250.0, 0.7, 0.3, 5])
    each = blowflies.simulate_each(key, jnp.tile(jnp.array(logs, jnp.float32), (200, 1)), 100)
    noise = -np.diff(np.log(np.asarray(each, float)), axis=1) / 0.001
    np.testing.assert_allclose(noise.mean(), 1, atol=0.03)
    np.testing.assert_allclose(noise.std(), 0.7, rtol=0.05)


def test_prior_draws_have_the_density_of_the_prior(key):
    draws = np.asarray(jax.vmap(blowflies.sample_prior)(jax.random.split(key, 3000)))
    np.testing.assert_allclose(draws.mean(axis=0), blowflies.PRIOR_MEAN, atol=0.12)
    np.testing.assert_allclose(draws.std(axis=0), blowflies.PRIOR_DEVIATION, rtol=0.06)
    expected = stats.norm.logpdf(draws[0], blowflies.PRIOR_MEAN, blowflies.PRIOR_DEVIATION).sum()
    np.testing.assert_allclose(blowflies.log_prior(jnp.array(draws[0])), expected, rtol=1e-4)


def test_histogram_distance_tells_the_right_parameters_from_wrong_ones(key):
    right = jnp.log(jnp.array([20.0, 0.3, 300.0, 0.4, 0.4, 7.0]))
    counts = blowflies.simulate(jax.random.key(1), right)
    near = blowflies.histogram_distance(counts, right, key, 50)
    far = blowflies.histogram_distance(counts, right.at[2].add(1.0), key, 50)
    assert near < far / 2
