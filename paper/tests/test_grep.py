"""G-Rep and the implicit gradient against finite differences of expectations by quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import beta as beta_function

from alws_paper.factorisation.grep import Beta, Gamma, correction, surrogate
from alws_paper.shared.gamma_draws import log_gamma

STEP = 1e-4
DRAWS = 200_000

GAMMAS = [(0.7, 0.5), (6.0, 1.2)]
BETAS = [(0.6, 0.8), (7.0, 2.0)]


def gamma_expectation(f, a, b):
    """E[f(log z)] under Gamma(a, rate b): integrated over log z."""
    density = lambda y: np.exp(stats.gamma.logpdf(np.exp(y), a, scale=1 / b) + y)  # noqa: E731
    return integrate.quad(lambda y: f(y) * density(y), -45, 6, limit=400, points=[0])[0]


def beta_expectation(f, a, b):
    """E[f(logit z)] under Beta(a, b): integrated over logit z."""

    def density(y):
        log_z, log_rest = -np.logaddexp(0, -y), -np.logaddexp(0, y)
        return np.exp(a * log_z + b * log_rest) / beta_function(a, b)

    return integrate.quad(lambda y: f(y) * density(y), -45, 45, limit=400, points=[0])[0]


def finite_differences(expectation, f, a, b):
    up_a, down_a = expectation(f, a + STEP, b), expectation(f, a - STEP, b)
    up_b, down_b = expectation(f, a, b + STEP), expectation(f, a, b - STEP)
    return np.array([up_a - down_a, up_b - down_b]) / (2 * STEP)


def estimate(family, f, a, b, estimator):
    """Mean and standard error of many one-sample gradients, one for each factor of a long q."""
    parameters = (jnp.full(DRAWS, a), jnp.full(DRAWS, b))
    total = lambda v: estimator(family(*v), f, jax.random.key(1)).sum()  # noqa: E731
    gradients = np.array(jax.jit(jax.grad(total))(parameters))
    return gradients.mean(axis=1), gradients.std(axis=1) / np.sqrt(DRAWS)


def f_numpy(y):
    return np.sin(y) + 0.3 * y


def f_jax(y):
    return jnp.sin(y) + 0.3 * y


def implicit(q, f, key):
    return f(q.sample(key))


CASES = [(Gamma, gamma_expectation, *p) for p in GAMMAS] + [
    (Beta, beta_expectation, *p) for p in BETAS
]


@pytest.mark.parametrize("estimator", [surrogate, implicit])
@pytest.mark.parametrize(("family", "expectation", "a", "b"), CASES)
def test_gradient_agrees_with_finite_differences(family, expectation, a, b, estimator):
    exact = finite_differences(expectation, f_numpy, a, b)
    mean, error = estimate(family, f_jax, a, b, estimator)
    np.testing.assert_array_less(np.abs(mean - exact), 5 * error + 1e-4)
    assert (error < 0.03).all()


@pytest.mark.parametrize(("family", "expectation", "a", "b"), [CASES[0], CASES[2]])
def test_correction_is_needed(family, expectation, a, b):
    """Without it the estimate is off by many standard errors, so the test above can fail."""

    def reparameterised(q, f, key):
        return f(q.transform(jax.lax.stop_gradient(q.noise(q.sample(key)))))

    exact = finite_differences(expectation, f_numpy, a, b)
    mean, error = estimate(family, f_jax, a, b, reparameterised)
    assert (np.abs(mean - exact) > 8 * error).any()


@pytest.mark.parametrize(("family", "expectation", "a", "b"), CASES)
def test_moments_entropy_and_density_are_those_of_scipy(family, expectation, a, b):
    q = family(jnp.array(a), jnp.array(b))
    mean = expectation(lambda y: y, a, b)
    variance = expectation(lambda y: (y - mean) ** 2, a, b)
    np.testing.assert_allclose(q.moments(), (mean, np.sqrt(variance)), rtol=1e-3)
    other = stats.gamma(a, scale=1 / b) if family is Gamma else stats.beta(a, b)
    np.testing.assert_allclose(q.entropy(), other.entropy(), rtol=1e-4, atol=1e-5)
    y = 0.4
    z, slope = (np.exp(y), np.exp(y)) if family is Gamma else (1 / (1 + np.exp(-y)), None)
    slope = z * (1 - z) if slope is None else slope
    expected = other.logpdf(z) + np.log(slope)
    np.testing.assert_allclose(q.log_density(jnp.array(y)), expected, rtol=1e-4)
    noise = q.noise(jnp.array(y))
    np.testing.assert_allclose(q.transform(noise), y, rtol=1e-4)
    np.testing.assert_allclose(
        correction(q, noise, jnp.array(1.0)), expected + np.log(variance) / 2, rtol=2e-3
    )


@pytest.mark.parametrize("shape", [0.05, 0.6, 1.0, 30.0])
def test_gamma_draws_have_their_distribution(shape):
    draws = np.asarray(log_gamma(jax.random.key(2), jnp.full(DRAWS // 4, shape)), np.float64)
    log_survival = stats.kstest(draws, lambda y: stats.gamma.cdf(np.exp(y), shape))
    assert log_survival.pvalue > 1e-3
