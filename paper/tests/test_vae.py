"""Variational autoencoders against exact likelihoods, closed forms and numerical integration."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import i0e, i1e
from scipy.stats import multivariate_normal

from alws.likelihoods import Gaussian
from alws_paper.gabor.spherical_vae import CircularPosterior
from alws_paper.shared.vae import Autoencoder, DiagonalGaussian, mean_elbo, train

LOADINGS = np.array([[1.0, 0.0], [0.5, 0.0], [0.0, 0.8]])
NOISE = 0.5


class FactorModel(eqx.Module):
    """x = A z + noise with orthogonal columns, so that the exact posterior factorises."""

    loadings: jax.Array

    def likelihood(self, z):
        return Gaussian(self.loadings @ z, NOISE)


class LinearEncoder(eqx.Module):
    weight: jax.Array
    log_scale: jax.Array

    def __call__(self, x):
        return DiagonalGaussian(self.weight @ x, self.log_scale)


def exact_encoder():
    precision = 1 + np.sum(LOADINGS**2, axis=0) / NOISE**2
    weight = (LOADINGS / NOISE**2 / precision).T
    return LinearEncoder(jnp.array(weight, jnp.float32), jnp.array(-np.log(precision) / 2))


def exact_log_likelihood(x):
    return multivariate_normal(np.zeros(3), LOADINGS @ LOADINGS.T + NOISE**2 * np.eye(3)).logpdf(x)


@eqx.filter_jit
def elbo(encoder, x, key):
    """The ELBO of one observation to two digits or more."""
    autoencoder = Autoencoder(encoder, FactorModel(jnp.array(LOADINGS, jnp.float32)))
    return mean_elbo(autoencoder, jnp.broadcast_to(x, (20_000, 3)), key)


def test_elbo_is_tight_for_the_exact_posterior_and_a_bound_for_others(quick):
    x = np.array([1.0, -0.5, 0.7])
    best = exact_encoder()
    tight = elbo(best, jnp.array(x, jnp.float32), quick)
    np.testing.assert_allclose(tight, exact_log_likelihood(x), atol=0.02)
    shifted = eqx.tree_at(lambda e: e.weight, best, 0.5 * best.weight)
    wider = eqx.tree_at(lambda e: e.log_scale, best, best.log_scale + 0.5)
    for encoder in (shifted, wider):
        assert elbo(encoder, jnp.array(x, jnp.float32), quick) < exact_log_likelihood(x) - 0.05


def test_training_finds_the_exact_maximum_of_a_linear_gaussian_model(quick, tmp_path):
    generator = np.random.default_rng(0)
    covariance = LOADINGS @ LOADINGS.T + NOISE**2 * np.eye(3)
    x = generator.multivariate_normal(np.zeros(3), covariance, 1000)
    start = Autoencoder(
        LinearEncoder(jnp.zeros((2, 3)), jnp.zeros(2)),
        FactorModel(jnp.array([[0.1, 0.2], [0.3, 0.1], [-0.1, 0.3]])),
    )
    data = jnp.array(x, jnp.float32)
    arguments = {"key": quick, "steps": 1500, "learning_rate": 1e-2, "every": 500}
    path = tmp_path / "trained.npz"
    trained, elbos = train(start, data, checkpoint=path, **arguments)
    fitted = np.asarray(trained.model.loadings)
    reached = multivariate_normal(np.zeros(3), fitted @ fitted.T + NOISE**2 * np.eye(3)).logpdf(x)
    assert reached.mean() > exact_log_likelihood(x).mean() - 0.01
    np.testing.assert_allclose(elbos[-1], reached.mean(), atol=0.05)
    again, same = train(start, data, checkpoint=path, **arguments)
    np.testing.assert_array_equal(again.model.loadings, trained.model.loadings)
    np.testing.assert_array_equal(same, elbos)


@pytest.mark.parametrize("kappa", [0.1, 1.0, 20.0, 1000.0])
def test_divergence_from_the_uniform_circle_is_that_of_integration(kappa):
    def integrand(angle):
        log_q = kappa * (np.cos(angle) - 1) - np.log(2 * np.pi * i0e(kappa))
        return np.exp(log_q) * (log_q + np.log(2 * np.pi))

    expected = 2 * quad(integrand, 0, np.pi, points=[0.1, 0.5], limit=200)[0]
    found = CircularPosterior(jnp.array([1.0, 0.0]), jnp.array(kappa, jnp.float32)).divergence()
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


@eqx.filter_jit
def moments_and_gradients(kappa, angle, key):
    """E z, E (z·m)², and the gradient of E f in angle and κ, from many draws; f mixes both axes."""

    def expectation(angle, kappa, key):
        q = CircularPosterior(jnp.stack([jnp.cos(angle), jnp.sin(angle)]), kappa)
        return q.expect(lambda z: jnp.exp(z[0]) + z[1] ** 2 + 3.0, key)

    keys = jax.random.split(key, 20_000)
    q = CircularPosterior(jnp.stack([jnp.cos(angle), jnp.sin(angle)]), kappa)
    z = jax.vmap(lambda k: q.draw(k)[0])(keys)
    gradients = jax.vmap(jax.grad(expectation, (0, 1)), (None, None, 0))(angle, kappa, keys)
    return z, gradients


def test_the_sampler_and_its_gradient_are_those_of_integration(key):
    angle = 0.7
    for kappa in (0.5, 8.0):
        z, gradients = moments_and_gradients(jnp.float32(kappa), jnp.float32(angle), key)
        mode = np.array([np.cos(angle), np.sin(angle)])
        ratio = i1e(kappa) / i0e(kappa)
        along = np.asarray(z) @ mode
        np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(np.mean(z, axis=0), ratio * mode, atol=0.02)
        np.testing.assert_allclose(np.mean(along**2), 1 - ratio / kappa, atol=0.02)

        def exact(angle, kappa):
            def integrand(turn):
                weight = np.exp(kappa * (np.cos(turn) - 1)) / (2 * np.pi * i0e(kappa))
                a = angle + turn
                return weight * (np.exp(np.cos(a)) + np.sin(a) ** 2 + 3)

            return quad(integrand, -np.pi, np.pi, points=[-0.3, 0, 0.3])[0]

        step = 1e-3
        expected = (
            (exact(angle + step, kappa) - exact(angle - step, kappa)) / (2 * step),
            (exact(angle, kappa + step) - exact(angle, kappa - step)) / (2 * step),
        )
        for found, value in zip(gradients, expected, strict=True):
            error = np.std(found) / np.sqrt(len(found))
            assert abs(np.mean(found) - value) < 4 * error + 1e-4
