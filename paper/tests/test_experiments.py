"""The parts of the experiments against numerical integration and other libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad
from scipy.spatial.distance import cdist, pdist
from scipy.stats import norm

import alws
from alws_paper.gradient import experiment as gradient
from alws_paper.pinwheel.data import pinwheel
from alws_paper.pinwheel.experiment import Pinwheel, Settings, penalty
from alws_paper.shared.mmd import mmd_squared, mmd_two_sample_test


def toy_log_likelihood(b, noise, x):
    """log p(x) by quadrature: b·z is normal with standard deviation ‖b‖."""
    size = np.linalg.norm(b)

    def integrand(u, x):
        return norm.pdf(u) * norm.pdf(x, np.log1p(np.exp(size * u)) - size**2, noise)

    return np.mean([np.log(quad(integrand, -8, 8, args=(v,), limit=200)[0]) for v in x])


def exact_gradient(b, noise, x, step=1e-4):
    return np.array(
        [
            (toy_log_likelihood(b + e, noise, x) - toy_log_likelihood(b - e, noise, x)) / (2 * step)
            for e in step * np.eye(2)
        ]
    )


def test_importance_sampling_gives_the_gradient_of_the_exact_likelihood(key):
    b, noise = np.array([0.8, 0.5]), 0.3
    x = np.array([-0.3, 0.1, 0.6])
    proposals = jax.random.normal(key, (50_000, 2))
    found = gradient.by_importance_sampling(jnp.array(b), jnp.array(noise), jnp.array(x), proposals)
    np.testing.assert_allclose(found, exact_gradient(b, noise, x), rtol=0.05, atol=0.02)


@pytest.mark.parametrize(("b", "noise"), [((0.06, 0.05), 0.1), ((0.8, 0.5), 0.3), ((2, 2), 1.0)])
def test_quadrature_gives_the_exact_gradient_at_any_b(b, noise):
    b, x = np.array(b, float), np.array([-0.2, 0.4, 0.75])
    expected = exact_gradient(b, noise, x)
    found = gradient.by_quadrature(jnp.array(b), jnp.array(noise), jnp.array(x))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3 * np.abs(expected).max())


def test_the_papers_regression_is_plain_kernel_ridge_regression(key):
    b, noise, x = jnp.array([0.8, 0.5]), jnp.array(0.3), jnp.array([-0.3, 0.1, 0.6])
    settings = gradient.Settings(published_samples=200)
    found = gradient.by_published(b, noise, x, key, settings)
    sleep = alws.draw(gradient.Toy(b, noise), key, 200)[0]
    points = np.asarray(sleep.x, float)[:, None]
    bandwidth = np.median(pdist(points))

    def k(a):
        return np.exp(-cdist(a, points, "sqeuclidean") / (2 * bandwidth**2))

    weights = k(np.asarray(x)[:, None]) @ np.linalg.inv(k(points) + 0.01 * np.eye(200))

    def estimate(b):
        # η(z)·s(x*) − Ψ(z), regressed in z alone; terms without z or without b fall away.
        mean = jax.vmap(lambda z: jax.nn.softplus(b @ z) - b @ b)(sleep.z)
        terms = (mean * x[:, None] - mean**2 / 2) / noise**2
        return (jnp.asarray(weights, jnp.float32) * terms).sum(axis=1).mean()

    np.testing.assert_allclose(found, jax.grad(estimate)(b), rtol=0.02, atol=0.02)


def test_pinwheel_prior_is_that_of_numpyro(key):
    model = Pinwheel(key)
    k, place = model.sample_latent(key)
    expected = dist.MultivariateNormal(model.means[k], scale_tril=model.lower(k)).log_prob(place)
    expected += jax.nn.log_softmax(model.logits)[k]
    np.testing.assert_allclose(model.log_prior((k, place)), expected, rtol=1e-5)


def test_pinwheel_penalty_favours_fewer_components(key):
    model = Pinwheel(key)
    uneven = jax.tree.map(lambda a: a, model)
    object.__setattr__(uneven, "logits", jnp.array([5.0] * 5 + [-5.0] * 5))
    assert penalty(uneven, Settings(steps=1)) > penalty(model, Settings(steps=1))


def test_pinwheel_data_has_five_arms_of_radius_one(key):
    data, arm = pinwheel(key)
    assert data.shape == (2500, 2)
    np.testing.assert_allclose(data.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_array_equal(np.bincount(np.asarray(arm)), [500] * 5)
    radius = np.linalg.norm(np.asarray(data), axis=1)
    np.testing.assert_allclose((radius.mean(), radius.std()), (1.0, 0.3), atol=0.03)


def test_mmd_is_that_of_its_definition(key):
    x, y = np.asarray(jax.random.normal(key, (6, 2))), np.ones((5, 2))
    k = lambda a, b: np.exp(-((a[:, None] - b) ** 2).sum(-1) / 8)  # noqa: E731
    within = [(k(a, a).sum() - len(a)) / (len(a) * (len(a) - 1)) for a in (x, y)]
    expected = sum(within) - 2 * k(x, y).mean()
    np.testing.assert_allclose(mmd_squared(jnp.array(x), jnp.array(y), 2.0), expected, rtol=1e-4)


def test_mmd_test_keeps_its_size_and_has_power():
    generator = np.random.default_rng(0)
    draw = lambda shift: jnp.array(generator.normal(shift, 1, (60, 2)))  # noqa: E731
    null = [mmd_two_sample_test(draw(0), draw(0), permutations=60, seed=i) for i in range(40)]
    assert np.mean(np.array(null) < 0.05) < 0.2
    assert 0.3 < np.mean(null) < 0.7
    assert mmd_two_sample_test(draw(0), draw(1.0), permutations=100) < 0.02
