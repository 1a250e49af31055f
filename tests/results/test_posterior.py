"""Posterior modes and expectations against exact posteriors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import BetaBernoulli, GaussianMixture, LinearGaussian, sample_many
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform, ComposeTransform, SigmoidTransform

import alws


@pytest.fixture
def key():
    return jax.random.key(0, impl="rbg")


@pytest.fixture
def linear():
    shape = np.array([[0.8, 0.0], [0.7, 0.3], [-0.6, 0.5], [0.1, 0.8], [-0.4, -0.7]])
    scale = np.array([7.0, 0.02, 1.0, 3.0, 0.3])
    noise = scale * np.sqrt(1 - (shape**2).sum(axis=1))
    return LinearGaussian(
        jnp.array(scale[:, None] * shape),
        jnp.array([50.0, 0.3, -4.0, 12.0, 0.0]),
        jnp.array(np.log(noise)),
    )


@pytest.fixture
def mixture():
    return GaussianMixture(
        jnp.log(jnp.array([0.5, 0.3, 0.2])),
        jnp.array([[46.0, 1.21], [58.0, 1.22], [51.0, 1.165]]),
        jnp.log(jnp.array([[3.0, 0.012], [4.5, 0.008], [2.5, 0.006]])),
    )


def gaussian_posterior(model, x):
    """Mean and covariance of p(z | x) for factor analysis."""
    w = np.asarray(model.loadings, np.float64)
    precision = np.exp(-2 * np.asarray(model.log_noise, np.float64))
    covariance = np.linalg.inv(np.eye(w.shape[1]) + w.T @ (precision[:, None] * w))
    centred = np.asarray(x, np.float64) - np.asarray(model.offset, np.float64)
    return (centred * precision) @ w @ covariance, covariance


def observations(model, number, seed=5):
    return sample_many(model, jax.random.split(jax.random.key(seed, impl="rbg"), number))[1]


def test_mode_of_a_gaussian_posterior_is_its_mean(linear, key):
    x = observations(linear, 30)
    mode = alws.posterior_mode(linear, x, key=key)
    np.testing.assert_allclose(mode.z, gaussian_posterior(linear, x)[0], atol=2e-3)
    expected = jax.vmap(linear.log_joint)(mode.z, x)
    np.testing.assert_allclose(mode.log_joint, expected, rtol=1e-4)


def test_mode_on_the_unit_interval_is_that_of_the_beta_posterior(key):
    """Heads h of 8: the posterior is Beta(a + h, b + 8 − h), its mode (a + h − 1)/(a + b + 6)."""
    a, b = 1.6, 2.5
    model = BetaBernoulli(jnp.log(a), jnp.log(b))
    x = jnp.array([[0.0] * 8, [1.0] * 3 + [0.0] * 5, [1.0] * 8])
    exact = (a + x.sum(axis=1) - 1) / (a + b + 8 - 2)
    mode = alws.posterior_mode(model, x, key=key, support=constraints.unit_interval)
    np.testing.assert_allclose(mode.z, exact, atol=1e-3)


class TwoHills(eqx.Module):
    """z = (place, width): x ~ N(place², 0.3²), two modes ±√x; place leans to the right."""

    lean: jax.Array

    def sample(self, key):
        place_key, width_key, noise_key = jax.random.split(key, 3)
        z = {
            "place": self.lean + 2 * jax.random.normal(place_key),
            "width": jax.random.gamma(width_key, 3.0),
        }
        return z, z["place"] ** 2 + 0.3 * jax.random.normal(noise_key)

    def log_joint(self, z, x):
        place, width = z["place"], z["width"]
        prior = jax.scipy.stats.norm.logpdf(place, self.lean, 2.0)
        prior += jax.scipy.stats.gamma.logpdf(width, 3.0)
        return prior + jax.scipy.stats.norm.logpdf(x, place**2, 0.3)


def test_the_higher_of_two_modes_is_found_in_a_pytree_of_latents(key):
    model = TwoHills(jnp.array(1.0))
    support = {"place": constraints.real, "width": constraints.positive}
    x = jnp.array([4.0, 6.0])
    z = alws.posterior_mode(model, x, key=key, support=support, starts=200).z
    np.testing.assert_allclose(z["width"], 2.0, atol=1e-2)  # the mode of Gamma(3, 1)
    grid = np.linspace(-4, 4, 40_001)
    density = -((grid - 1) ** 2) / 8 - (np.asarray(x)[:, None] - grid**2) ** 2 / 0.18
    np.testing.assert_allclose(z["place"], grid[density.argmax(axis=1)], atol=2e-3)
    start = {"place": jnp.full(2, -2.0), "width": jnp.ones(2)}
    other = alws.posterior_mode(model, x, key=key, support=support, start=start).z
    assert (other["place"] < 0).all()


def test_a_users_own_bijection(key):
    """z in (0, 0.999) by a transform; one toss that fell heads: Beta(2.6, 2.5)."""
    model = BetaBernoulli(jnp.log(1.6), jnp.log(2.5), tosses=1)
    onto = ComposeTransform([SigmoidTransform(), AffineTransform(0.0, 0.999)])
    mode = alws.posterior_mode(model, jnp.ones((1, 1)), key=key, support=onto)
    np.testing.assert_allclose(mode.z, 1.6 / 3.1, atol=1e-3)


def test_expectations_under_a_gaussian_posterior(linear, key):
    x = observations(linear, 40)
    mean, covariance = gaussian_posterior(linear, x)
    found = alws.expectation(linear, lambda z: {"mean": z, "square": z[0] * z[1]}, x, key=key)
    spread = np.sqrt(np.diag(covariance))
    assert (np.sqrt(np.mean((found["mean"] - mean) ** 2, axis=0)) < 0.25 * spread).all()
    exact = mean[:, 0] * mean[:, 1] + covariance[0, 1]
    assert found["square"].shape == (40,)
    assert np.mean((found["square"] - exact) ** 2) < 0.05 * np.var(exact)


def test_probabilities_of_a_discrete_latent(mixture, key):
    x = observations(mixture, 60)
    found = alws.expectation(mixture, lambda z: jax.nn.one_hot(z, 3), x, key=key)
    joint = jnp.array([[mixture.log_joint(jnp.array(k), p) for k in range(3)] for p in x])
    exact = jax.nn.softmax(joint, axis=1)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=0.02)  # float32 and a small ridge
    assert np.sqrt(np.mean((found - exact) ** 2)) < 0.06
    assert (found.argmax(axis=1) == exact.argmax(axis=1)).mean() > 0.9


def test_after_a_fit_by_default_expectations_are_those_of_its_points(mixture, linear, key):
    """Sums over a discrete latent, and points that integrate two continuous ones."""
    x = observations(mixture, 200)
    result = alws.fit(mixture, x, key=key)
    found = alws.expectation(result, lambda z: jax.nn.one_hot(z, 3), x[:60], key=key)
    joint = jnp.array([[result.model.log_joint(jnp.array(k), p) for k in range(3)] for p in x[:60]])
    np.testing.assert_allclose(found, jax.nn.softmax(joint, axis=1), atol=1e-3)
    x = observations(linear, 200)
    result = alws.fit(linear, x, key=key)
    found = alws.expectation(result, lambda z: {"z": z, "both": z[0] * z[1]}, x, key=key)
    mean, covariance = gaussian_posterior(result.model, x)
    np.testing.assert_allclose(found["z"], mean, atol=1e-3)
    both = mean[:, 0] * mean[:, 1] + covariance[0, 1]
    np.testing.assert_allclose(found["both"], both, atol=1e-2)
    assert found["z"].dtype == x.dtype
    regressed = alws.expectation(result, lambda z: z, x, key=key, sleep_samples=200)
    assert np.abs(regressed - mean).max() > 1e-2


def test_more_sleep_samples_and_a_regression_of_ones_own(linear, key):
    x = observations(linear, 40)
    mean, _ = gaussian_posterior(linear, x)
    poor = alws.regressions.KernelRidge(alws.kernels.SquaredExponential(), ridge=1e4)
    shrunk = alws.expectation(linear, lambda z: z, x, key=key, sleep_samples=200, regression=poor)
    chosen = alws.expectation(linear, lambda z: z, x, key=key, sleep_samples=200)
    assert np.mean((shrunk - mean) ** 2) > 4 * np.mean((chosen - mean) ** 2)
    assert np.abs(shrunk).max() < 0.2  # with that much ridge all that is left is the prior mean


def test_discrete_latents_are_refused_with_the_way_out(mixture, key):
    with pytest.raises(TypeError, match=r"z must be floating point; z is int32.*expectation"):
        alws.posterior_mode(mixture, jnp.zeros((2, 2)), key=key)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "`steps` must be a whole number of at least 1"),
        ({"learning_rate": -1.0}, "`learning_rate` must be positive"),
        ({"start": jnp.zeros((3, 2))}, "one z for each observation"),
        ({"support": [constraints.real]}, "`support` must be one constraint"),
        ({"conditions": jnp.zeros(3)}, "one entry for each observation, 2"),
    ],
)
def test_bad_arguments_of_the_mode(linear, key, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        alws.posterior_mode(linear, jnp.zeros((2, 5)), key=key, **arguments)


def test_bad_arguments_of_the_expectation(linear, key):
    with pytest.raises(ValueError, match="shape of one observation"):
        alws.expectation(linear, lambda z: z, jnp.zeros((2, 4)), key=key)
    with pytest.raises(ValueError, match="`f\\(z\\)` must return at least one array"):
        alws.expectation(linear, lambda z: None, jnp.zeros((2, 5)), key=key)
    with pytest.raises(ValueError, match="`sleep_samples` must be a whole number"):
        alws.expectation(linear, lambda z: z, jnp.zeros((2, 5)), key=key, sleep_samples=3)
