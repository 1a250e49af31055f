"""The factorisation model and its two rivals against NumPyro and numerical integration."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy import stats
from scipy.special import gammaln

from alws_paper.factorisation import bayesian as bayesian
from alws_paper.factorisation.beta_vae import BetaEncoder, fit_and_divergence, train_beta_vae
from alws_paper.factorisation.experiment import Factorisation, claim, flip, mosaic, penalty, recover

LIMIT = np.log((1 - 1e-4) / 1e-4)


def test_model_and_penalty_are_those_of_numpyro(quick):
    model = Factorisation.start(quick, 7)
    assert (model.weights > 0).all()
    np.testing.assert_allclose(np.median(model.weights), 0.03, rtol=0.1)
    z = model.sample_latent(quick)
    x = model.likelihood(z).sample(quick)
    logits = model.weights @ jax.scipy.special.logit(z) + 0.1
    expected = dist.Bernoulli(logits=logits).log_prob(x).sum()
    np.testing.assert_allclose(model.likelihood(z).log_prob(x), expected, rtol=1e-4)
    gamma = dist.Gamma(0.9, 0.3).log_prob
    twice = Factorisation(2 * model.weights, model.bias)
    expected = (gamma(twice.weights) - gamma(model.weights)).sum()
    np.testing.assert_allclose(penalty(twice) - penalty(model), expected, rtol=1e-3)


def grid():
    """Midpoints of 400 equal shares of probability."""
    return (np.arange(400) + 0.5) / 400


def expected_fit(alpha, beta, shape, mean, bias, x):
    """E log p(x | z, w) under Beta(alpha, beta) and Gamma(shape, shape/mean), by quadrature."""
    z = stats.beta.ppf(grid(), alpha, beta)
    w = stats.gamma.ppf(grid(), shape, scale=mean / shape)
    logits = np.clip(np.log(z) - np.log1p(-z), -LIMIT, LIMIT)[:, None] * w + bias
    prior = (0.9 - 1) * np.log(w) - 0.3 * w
    return np.mean(x * logits - np.logaddexp(0, logits)) + np.mean(prior)


def test_gradient_of_the_bayesian_model_is_that_of_its_bound():
    """One image of one pixel and one latent; many keys against finite differences of the bound."""
    point, bias, x = np.array([1.4, 2.2, 3.0, 0.8]), 0.3, 1.0
    least = bayesian.LEAST

    def bound(v):
        alpha, beta, shape, mean = v
        entropy = (
            stats.beta(alpha, beta).entropy() + stats.gamma(shape, scale=mean / shape).entropy()
        )
        return expected_fit(*v, bias, x) + entropy

    step = 1e-3
    exact = [(bound(point + e) - bound(point - e)) / (2 * step) for e in step * np.eye(4)]

    def value(v, key):
        raw = jnp.log(jnp.expm1(v - jnp.array([least] * 3 + [1e-6])))
        images = bayesian.Images(raw[0].reshape(1, 1), raw[1].reshape(1, 1))
        weights = bayesian.Weights(raw[2].reshape(1, 1), raw[3].reshape(1, 1), jnp.full(1, bias))
        ones = jnp.full((1, 1), x)
        return bayesian.surrogate(images, weights, ones, key, total=1, edge=1e-4, prior=(0.9, 0.3))

    keys = jax.random.split(jax.random.key(1), 10_000)
    both = jax.jit(jax.vmap(jax.value_and_grad(value, has_aux=True), (None, 0)))
    (_, bounds), gradients = both(jnp.array(point, jnp.float32), keys)
    gradients = np.asarray(gradients, float)
    error = gradients.std(axis=0) / np.sqrt(len(keys))
    np.testing.assert_array_less(np.abs(gradients.mean(axis=0) - exact), 5 * error + 2e-3)
    assert (error < 0.03).all()
    constant = 0.9 * np.log(0.3) - gammaln(0.9)
    np.testing.assert_allclose(bounds.mean(), bound(point) + constant, atol=0.03)


class Coin(Factorisation):
    """The model with one pixel and one latent."""

    def __init__(self, weight, bias):
        super().__init__(jnp.full((1, 1), weight), jnp.full(1, bias))


def test_bound_of_the_vae_lies_below_the_likelihood_and_rises_to_it():
    """One pixel: P(x = 1) = E sigmoid(w logit z + b) by quadrature; the ELBO must not pass it."""
    model = Coin(1.5, -0.4)
    z = grid()
    p = np.mean(1 / (1 + np.exp(-(1.5 * (np.log(z) - np.log1p(-z)) - 0.4))))
    x = jnp.array(np.arange(200) % 2, jnp.float32)[:, None]
    exact = (np.log(p) + np.log1p(-p)) / 2
    encoder = BetaEncoder(1, 1, hidden=8, key=jax.random.key(0))
    many = jnp.tile(x, (100, 1))

    @eqx.filter_jit
    def bound(encoder):
        fit, divergence = fit_and_divergence(model, encoder, many, jax.random.key(2))
        return fit - divergence

    before = bound(encoder)
    assert before < exact
    frozen = lambda m: -1e6 * (jnp.sum((m.raw - model.raw) ** 2) + (m.bias[0] + 0.4) ** 2)  # noqa: E731
    _, trained, bounds = train_beta_vae(
        model, encoder, x, key=jax.random.key(3), steps=400, batch_size=100,
        learning_rate=0.03, encoder_learning_rate=0.03, log_prior=frozen,
    )  # fmt: skip
    after = bound(trained)
    assert before < after < exact + 0.01
    assert exact - after < 0.05  # the true posterior is nearly a Beta
    assert bounds.shape == (400,)


def test_the_bayesian_model_learns():
    """Two patterns of eight pixels: the bound rises well above that of independent pixels."""
    patterns = np.repeat([[1.0, 0.0], [0.0, 1.0]], 4, axis=1)
    data = jnp.array(patterns[np.arange(200) % 2])
    start = bayesian.start(jnp.full((8, 2), 0.1), jnp.zeros(8), 200)
    _, weights, bounds = bayesian.train(
        *start,
        data,
        key=jax.random.key(0),
        steps=400,
        batch_size=50,
        learning_rate=0.05,
        image_learning_rate=0.1,
    )
    assert bounds[-50:].mean() > bounds[:10].mean() + 2
    assert weights.expected.max() > 1


def test_recovery_takes_the_maximum_of_the_joint(quick):
    """A logistic regression for each image: the gradient vanishes where z is not at its edge."""
    weights = jax.nn.softplus(jax.random.normal(quick, (784, 3)))
    model = Factorisation(weights / 10, jnp.zeros(784))
    x = jax.vmap(lambda k: model.likelihood(model.sample_latent(k)).sample(k))(
        jax.random.split(quick, 4)
    )
    found = recover(model, x, 300)
    residual = np.asarray(x) - found
    np.testing.assert_allclose(residual @ np.asarray(model.weights), 0, atol=0.2)


def test_flip_and_mosaic():
    x = jnp.zeros((50, 784))
    np.testing.assert_allclose(flip(x, 0.1, 0).mean(), 0.1, atol=0.01)
    images = np.arange(25)[:, None] * np.ones((25, 784))
    assert mosaic(images)[28 * 2, 28 * 3] == 13


def test_claims_hold_only_for_lower_and_significant_errors():
    generator = np.random.default_rng(0)
    low, high = generator.uniform(0.01, 0.02, (2, 500)) + np.array([[0.0], [0.01]])
    assert claim("denoising", "VAE", {"ALWS": low, "VAE": high}).holds
    assert not claim("denoising", "VAE", {"ALWS": high, "VAE": low}).holds
    near = low + generator.normal(1e-5, 1e-3, 500)
    assert not claim("denoising", "VAE", {"ALWS": low, "VAE": near}).holds
