"""Neural processes against NumPyro, a process with a closed form, and known answers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import alws
from alws.likelihoods import Gaussian
from alws_paper.neural_process import experiment as page
from alws_paper.neural_process.data import grid, posterior_moments, sinusoids
from alws_paper.neural_process.paired import paired_tests
from alws_paper.neural_process.variational import Context, Normal, elbo, train_variational

X = jnp.array([-2.0, -0.3, 0.4, 1.9, 2.5])
Y = jnp.array([0.3, -0.2, 0.1, 0.9, 0.4])
CONTEXT = Context(X[:3], Y[:3], X)


@pytest.fixture
def process(key):
    return page.NeuralProcess(key, width=6)


def layers(network, x):
    """A ReLU network in NumPy."""
    for i, layer in enumerate(network.layers):
        x = np.maximum(x, 0) if i > 0 else x
        x = np.asarray(layer.weight) @ x + np.asarray(layer.bias)
    return x


def test_joint_density_is_that_of_numpyro(process, key):
    pairs = [layers(process.pair, np.array([x, y])) for x, y in zip(X[:3], Y[:3], strict=True)]
    location, raw = np.split(layers(process.pooled, np.mean(pairs, axis=0)), 2)
    prior = dist.Normal(location, 0.1 + 0.9 / (1 + np.exp(-raw)))
    z = process.sample_latent(key, CONTEXT)
    out = np.array([layers(process.decoder, np.array([x, *z])) for x in X])
    noise = 0.1 + 0.9 * np.logaddexp(0, out[:, 1])
    expected = prior.log_prob(z).sum() + dist.Normal(out[:, 0], noise).log_prob(Y).sum()
    np.testing.assert_allclose(alws.log_joint(process, z, Y, CONTEXT), expected, rtol=1e-5)
    draws = jax.vmap(lambda k: process.sample_latent(k, CONTEXT))(jax.random.split(key, 4000))
    np.testing.assert_allclose(draws.mean(axis=0), location, atol=0.05)
    np.testing.assert_allclose(draws.std(axis=0), prior.scale, rtol=0.05)


def test_noise_as_latent_is_the_same_model(process, key):
    """p(ε, y) = p(z, y) |dz/dε| at z = μ + σ ε."""
    other = page.WithNoiseLatent(process)
    noise = other.sample_latent(key, CONTEXT)
    mean, scale = process.prior(CONTEXT)
    expected = alws.log_joint(process, mean + scale * noise, Y, CONTEXT) + jnp.log(scale).sum()
    np.testing.assert_allclose(alws.log_joint(other, noise, Y, CONTEXT), expected, rtol=1e-5)


def test_encoder_does_not_see_the_order_of_pairs_but_their_values(process):
    order = jnp.array([2, 0, 1])
    turned = Context(X[order], Y[order], X)
    np.testing.assert_allclose(process.prior(turned).mean, process.prior(CONTEXT).mean, rtol=1e-5)
    mixed = Context(X[order], Y[:3], X)
    assert jnp.abs(process.prior(mixed).mean - process.prior(CONTEXT).mean).max() > 1e-3


class LinearProcess(NamedTuple):
    """z | C ~ N(mean of y^C, v), y | z ~ N(z, 0.5²): its posterior is known.

    r = (mean of y, 1), so that the sum of two r holds the sum of two means and the number 2; from
    it N(r₀/r₁, v/r₁) is the exact posterior when v = 0.5²/M.
    """

    variance: float

    def represent(self, x, y):
        return jnp.stack([y.mean(), 1.0])

    def latent(self, r):
        return Normal(r[:1] / r[1], jnp.sqrt(self.variance / r[1:]))

    def likelihood(self, z, context):
        return Gaussian(jnp.broadcast_to(z, context.targets.shape), 0.5)

    def log_likelihood(self):
        covariance = self.variance + 0.25 * np.eye(5)
        return stats.multivariate_normal(np.full(5, Y[:3].mean()), covariance).logpdf(Y)


@pytest.mark.parametrize(
    ("variance", "pooling", "closes"),
    [(0.05, "sum", True), (0.05, "mean", False), (0.3, "sum", False)],
)
def test_bound_lies_below_the_likelihood_and_closes_for_the_exact_posterior(
    variance, pooling, closes
):
    process = LinearProcess(variance)
    keys = jax.random.split(jax.random.key(1), 20_000)
    bounds = jax.vmap(lambda k: elbo(process, CONTEXT, Y, k, pooling))(keys)
    gap = process.log_likelihood() - float(bounds.mean())
    error = float(bounds.std()) / len(keys) ** 0.5
    assert error < 0.02
    assert abs(gap) < 4 * error if closes else gap > 0.1


def test_divergence_is_that_of_numpyro():
    p = Normal(jnp.array([0.3, -1.0]), jnp.array([0.5, 2.0]))
    q = Normal(jnp.array([-0.2, 0.4]), jnp.array([1.5, 0.7]))
    expected = dist.kl_divergence(dist.Normal(*p), dist.Normal(*q)).sum()
    np.testing.assert_allclose(p.divergence(q), expected, rtol=1e-6)


def test_variational_training_raises_the_bound(process, key):
    data = sinusoids(key, 300)
    contexts = Context(data.x[:, :4], data.y[:, :4], data.x)
    model, bounds = train_variational(
        process, contexts, data.y, key=key, steps=300, batch_size=16, learning_rate=5e-3
    )
    assert bounds.shape == (300,)
    assert bounds[-50:].mean() > bounds[:10].mean() + 1
    assert not jnp.allclose(model.decoder.layers[0].weight, process.decoder.layers[0].weight)


def test_sinusoids_are_drawn_as_said(key):
    data = sinusoids(key, 2000)
    assert np.isin(data.x, grid()).all()
    assert (np.diff(np.sort(data.x, axis=1), axis=1) > 0).all()
    f = np.stack([np.interp(x, grid(), f) for x, f in zip(data.x, data.f, strict=True)])
    np.testing.assert_allclose((data.y - f).std(), 0.1, rtol=0.03)
    sine, cosine = np.linalg.lstsq(
        np.stack([np.sin(grid()), np.cos(grid())], axis=1), np.asarray(data.f).T, rcond=None
    )[0]
    shift = np.arctan(-cosine / sine)
    amplitude = sine / np.cos(shift)
    for values, low, high in ((amplitude, -0.5, 1.0), (shift, -0.5, 0.5)):
        assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 1e-3
    with pytest.raises(ValueError, match="at most the 100 points of the grid, got 101"):
        sinusoids(key, 3, points=101)


def test_posterior_moments_are_those_of_the_prior_without_and_of_the_truth_with_data(key):
    x = np.asarray(grid(), float)
    mean, spread = posterior_moments(np.zeros((1, 1)), np.zeros((1, 1)), noise=1e6)
    expected = 0.25 * np.sin(x) * np.sin(0.5) / 0.5
    np.testing.assert_allclose(mean[0], expected, atol=1e-4)
    square = 0.25 * (1 - np.cos(2 * x) * np.sin(1)) / 2
    np.testing.assert_allclose(spread[0] ** 2, square - expected**2, atol=1e-4)
    data = sinusoids(key, 3, points=50)
    mean, spread = posterior_moments(data.x, data.y)
    assert (np.abs(mean - data.f) < 5 * spread + 0.01).all()
    assert spread.max() < 0.06


def test_paired_tests_on_known_numbers():
    first = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    second = first + np.array([0.10, 0.11, 0.12, 0.13, 0.14])
    tests = paired_tests(first, second)
    difference = first - second
    t = difference.mean() / (difference.std(ddof=1) / np.sqrt(5))
    np.testing.assert_allclose(tests.t_test, 2 * stats.t(4).cdf(t), rtol=1e-6)
    assert tests.wilcoxon == 2 / 2**5  # all five of one sign, out of 32 equally likely patterns
    assert not tests.first_is_lower(0.05)
    assert tests.first_is_lower(0.07)
    assert not paired_tests(second, first).first_is_lower(0.07)


def test_lower_needs_mean_and_median_and_both_tests():
    generator = np.random.default_rng(0)
    low = generator.normal(0, 1, 400)
    assert paired_tests(low, low + generator.normal(0.3, 1, 400)).first_is_lower()
    assert not paired_tests(low, low + generator.normal(0.01, 1, 400)).first_is_lower()
    few = np.where(np.arange(400) < 20, -30.0, 0.1) + 0.01 * generator.normal(size=400)
    tests = paired_tests(low + few, low)  # lower in mean and by the t-test, higher in median
    assert tests.means[0] < tests.means[1]
    assert tests.medians[0] > tests.medians[1]
    assert not tests.first_is_lower()


def test_claims_go_by_the_errors_of_the_predictions(key):
    test = sinusoids(key, 60, points=4)
    settings = page.EXPERIMENT.presets["quick"]
    f = np.asarray(test.f, float)[:, None]
    generator = np.random.default_rng(0)
    exact = {k: posterior_moments(test.x[:, :k], test.y[:, :k])[1][:, None] for k in (1, 4)}

    def predictions(off, spread):
        return {k: f + off + spread * s * generator.normal(size=(60, 200, 100))
                for k, s in exact.items()}  # fmt: skip

    near, far, narrow = predictions(0.1, 1.0), predictions(0.3, 1.0), predictions(0.2, 0.1)
    drawn = {("ALWS", k): p for k, p in near.items()}
    drawn |= {("variational", k): p for k, p in narrow.items()}
    drawn |= {("one-mean", 4): far[4], ("longer", 4): predictions(0.02, 1.0)[4]}
    found = [claim.holds for claim in page.claims(drawn, test, settings)]
    assert found == [True, True, True, True, True, False]
    swapped = {"ALWS": "variational", "variational": "ALWS"}
    drawn = {(swapped.get(name, name), k): p for (name, k), p in drawn.items()}
    assert not any(claim.holds for claim in page.claims(drawn, test, settings)[:4])
