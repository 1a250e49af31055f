"""Weights-out likelihood against closed forms, numerical integration and enumeration."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from exact.linear_gaussian import LinearGaussian
from exact.sigmoid_belief import problem as sigmoid_belief_problem
from numpyro.distributions import constraints
from scipy.integrate import quad
from scipy.stats import norm, poisson

from alws.likelihoods import Poisson
from alws.results.annealed import annealed_log_likelihood, enclosed_log_likelihood
from alws.results.held_out import binary_codes, enumerated_log_likelihood, importance_log_likelihood


@pytest.fixture
def factors():
    generator = np.random.default_rng(0)
    return LinearGaussian(
        jnp.asarray(generator.normal(size=(6, 2)), jnp.float32),
        jnp.arange(6.0),
        jnp.full(6, -0.5),
    )


def observations(model, number, key):
    return jax.vmap(model.sample)(jax.random.split(key, number))[1]


def test_annealing_gives_the_exact_likelihood_of_factor_analysis(factors, key):
    x = observations(factors, 12, key)
    exact = jax.vmap(factors.log_marginal)(x)
    settings = {"temperatures": 100, "chains": 20, "leapfrog": 5}
    found = annealed_log_likelihood(factors, x, key=key, batch_size=6, **settings)
    error = np.asarray(found.log_likelihood - exact)
    assert np.abs(error).max() < 0.5
    assert np.abs(error.mean()) < 0.1
    assert np.asarray(found.effective_chains).min() > 5
    assert 0.6 < float(found.acceptance.mean()) < 0.95, "the pilot run found the step sizes"


def test_weights_have_the_likelihood_as_their_mean_even_with_few_temperatures(factors, key):
    x = observations(factors, 1, key)
    exact = float(factors.log_marginal(x[0]))
    found = annealed_log_likelihood(
        factors, jnp.repeat(x, 40, axis=0), key=key, temperatures=8, chains=100, leapfrog=3
    )
    ratio = np.exp(np.asarray(found.log_likelihood, float) - exact)  # E = 1, without bias
    assert ratio.std() > 0.05, "few enough for the weights to vary"
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(40)


def test_bounds_enclose_the_exact_likelihood(factors, key):
    lower, upper = enclosed_log_likelihood(
        factors, key=key, number=30, temperatures=100, chains=10, leapfrog=5
    )
    gap = np.asarray(upper - lower)
    assert -0.1 < gap.mean() < 0.3


@pytest.mark.slow
def test_bounds_with_few_temperatures_are_far_apart(factors, key):
    few = enclosed_log_likelihood(factors, key=key, number=30, temperatures=3, chains=1, leapfrog=1)
    assert np.mean(few.upper - few.lower) > 1


class PositiveRate(eqx.Module):
    """log rate ~ N(0, scale²), x ~ Poisson(rate)."""

    scale: jax.Array

    def sample_latent(self, key):
        return {"rate": jnp.exp(self.scale * jax.random.normal(key))}

    def log_prior(self, z):
        return dist.LogNormal(0.0, self.scale).log_prob(z["rate"])

    def likelihood(self, z):
        return Poisson(jnp.log(z["rate"]))


def test_bounded_latents_in_one_dimension(key):
    x = jnp.array([0.0, 1.0, 4.0, 9.0])

    def integrand(u, n):
        return norm.pdf(u) * poisson.pmf(n, np.exp(0.8 * u))

    by_hand = [np.log(quad(integrand, -8, 8, args=(n,))[0]) for n in np.asarray(x)]
    found = annealed_log_likelihood(
        PositiveRate(jnp.array(0.8)),
        x,
        key=key,
        temperatures=60,
        chains=400,
        leapfrog=5,
        support=constraints.positive,
    )
    error = np.sqrt(1 / np.asarray(found.effective_chains) - 1 / 400)
    assert error.max() < 0.05
    np.testing.assert_array_less(np.abs(found.log_likelihood - np.array(by_hand)), 4 * error)


def test_importance_weights_with_the_exact_posterior_have_no_error(factors, key):
    x = observations(factors, 5, key)
    exact = jax.vmap(factors.log_marginal)(x)
    weighted = factors.loadings / jnp.exp(2 * factors.log_noise)[:, None]
    precision = jnp.eye(2) + weighted.T @ factors.loadings

    def posterior(x):
        mean = jnp.linalg.solve(precision, weighted.T @ (x - factors.offset))
        return dist.MultivariateNormal(mean, precision_matrix=precision)

    found = importance_log_likelihood(factors, x, posterior, key=key, samples=3)
    np.testing.assert_allclose(found, exact, atol=1e-3)
    wide = importance_log_likelihood(
        factors, x, lambda x: dist.Normal(posterior(x).mean, 0.6).to_event(1), key=key, samples=4000
    )
    np.testing.assert_allclose(wide, exact, atol=0.1)
    with pytest.raises(ValueError, match="one number for each draw"):
        importance_log_likelihood(
            factors, x, lambda x: dist.Normal(jnp.zeros(2), 1.0), key=key, samples=3
        )


def test_enumeration_is_exact(key):
    truth, data = sigmoid_belief_problem(key)[1::2]
    latent = jax.eval_shape(truth.sample_latent, key)
    found = enumerated_log_likelihood(
        truth, data[:5], binary_codes(latent.shape[0]).astype(latent.dtype), batch_size=7
    )
    np.testing.assert_allclose(found, jax.vmap(truth.log_marginal)(data[:5]), rtol=1e-4)
    np.testing.assert_array_equal(binary_codes(2), [[0, 0], [0, 1], [1, 0], [1, 1]])


def test_what_cannot_be_annealed_is_refused(key):
    class Coin(eqx.Module):
        logit: jax.Array

        def sample(self, key):
            return jnp.array(1), jnp.array(0.5)

        def log_joint(self, z, x):
            return self.logit

    class Prior(Coin):
        def log_prior(self, z):
            return self.logit

    x = jnp.zeros(3)
    with pytest.raises(TypeError, match=r"Coin must have `log_prior\(z\)`"):
        annealed_log_likelihood(Coin(jnp.zeros(())), x, key=key)
    with pytest.raises(TypeError, match="z must be floating point; z is int32"):
        annealed_log_likelihood(Prior(jnp.zeros(())), x, key=key)
    with pytest.raises(ValueError, match="`bits` must be at most 20"):
        binary_codes(21)
