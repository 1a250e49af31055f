"""The held-out likelihood of generators: σ refitted, against its exact maximum."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from alws_paper.images import Binary, Connected, ImageModel, Unbounded, refit_noise

LATENT, SIDE, NOISE = 4, 6, 0.3


def test_refitted_noise_is_that_of_largest_likelihood(quick):
    """x = Wz + b + σε has p(x) = N(b, WWᵀ + σ²I), to be maximised over σ alone."""
    network = Connected((1, SIDE, SIDE), layers=0, latent=LATENT, key=quick)
    w, b = (np.asarray(a, float) for a in (network.network.layers[0].weight, network(jnp.zeros(4))))
    generator, b = np.random.default_rng(0), b.ravel()
    x = generator.normal(size=(40, LATENT)) @ w.T + b
    x = x + NOISE * generator.normal(size=x.shape)

    def loss(log_noise):
        covariance = w @ w.T + np.exp(2 * log_noise) * np.eye(len(b))
        return -multivariate_normal(b, covariance).logpdf(x).sum()

    best = np.exp(minimize_scalar(loss, bounds=(-4, 1), method="bounded").x)  # pyright: ignore
    images = jnp.asarray(x.reshape(-1, 1, SIDE, SIDE), jnp.float32)
    for start in (1.0, 0.1):  # from above and from below, compiled once
        model = ImageModel(network, Unbounded(start), LATENT)
        found = refit_noise(model, images, key=quick, temperatures=30, further=80)
        np.testing.assert_allclose(jnp.exp(found.output.log_noise), best, rtol=0.02)
        assert eqx.tree_equal(found.network, model.network)


def test_binary_pixels_have_no_noise_to_refit(quick):
    model = ImageModel(Connected((1, 2, 2), hidden=2, key=quick), Binary(), 16)
    with pytest.raises(TypeError, match=r"Gaussian noise to refit, got Binary\. Use Bounded"):
        refit_noise(model, jnp.zeros((1, 1, 2, 2)), key=quick)
