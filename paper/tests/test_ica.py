"""Components of mixtures, the Laplace-VAE and the experiment against what is known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad
from scipy.stats import laplace, norm

import alws
from alws.model import sample
from alws_paper.ica import data as components
from alws_paper.ica import experiment as ica
from alws_paper.ica.data import component_images, independent_components
from alws_paper.ica.laplace_vae import Laplace, LaplaceEncoder
from alws_paper.ica.matching import match_filters
from alws_paper.shared.vae import Autoencoder, train


def test_components_of_a_known_mixture_are_its_columns():
    generator = np.random.default_rng(0)
    sources = np.stack(
        [
            generator.laplace(size=20_000),
            generator.uniform(-1, 1, size=20_000),
            generator.choice([-1.0, 1.0], size=20_000),
            generator.exponential(size=20_000),
        ],
        axis=1,
    )
    mixing = generator.normal(size=(6, 4))
    found = independent_components(sources @ mixing.T + 5, 4, seed=0)
    order, correlation = match_filters(found, mixing)
    np.testing.assert_allclose(np.abs(correlation), 1, atol=1e-3)
    assert sorted(order) == [0, 1, 2, 3]
    lengths = np.linalg.norm(found[:, order], axis=0) / np.linalg.norm(mixing, axis=0)
    np.testing.assert_allclose(lengths, sources.std(axis=0), rtol=3e-2)  # of unit variance


def test_natural_components_have_mean_zero_and_length_one(monkeypatch):
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(9, 3))
    patches = (generator.laplace(size=(5000, 3)) @ mixing.T).reshape(-1, 3, 3)
    monkeypatch.setattr(components, "natural_patches", lambda side, number, seed: patches)
    found = components.natural_components(3, 3, patches=5000, seed=0)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), 1)
    correlation = match_filters(found, mixing - mixing.mean(axis=0))[1]
    np.testing.assert_allclose(np.abs(correlation), 1, atol=1e-2)


@pytest.mark.parametrize(("m", "b"), [(0.0, 0.3), (1.5, 0.2), (-0.7, 2.0), (4.0, 1.0)])
def test_laplace_divergence_is_the_integral(m, b):
    def integrand(z):
        return laplace.pdf(z, m, b) * (laplace.logpdf(z, m, b) - laplace.logpdf(z))

    expected = quad(integrand, m - 40 * b, m + 40 * b, points=[0, m], limit=200)[0]
    found = Laplace(jnp.array([m]), jnp.log(jnp.array([b]))).divergence()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def one_dimensional():
    """x = 1.3 z + noise with standard deviation 0.5, and its exact log likelihood."""
    model = ica.IndependentComponents(jax.random.key(0), pixels=1, latents=1)
    object.__setattr__(model, "weight", jnp.array([[1.3]]))
    object.__setattr__(model, "log_noise", jnp.log(jnp.array(0.5)))

    def exact(x):
        f = lambda z: laplace.pdf(z) * norm.pdf(x, 1.3 * z, 0.5)  # noqa: E731
        return np.log(quad(f, -30, 30, points=[0, x / 1.3], limit=300)[0])

    return model, exact


def test_bound_lies_below_the_exact_likelihood_and_training_closes_in(key):
    model, exact = one_dimensional()
    generator = np.random.default_rng(0)
    data = 1.3 * generator.laplace(size=(2000, 1)) + 0.5 * generator.normal(size=(2000, 1))
    data = data.astype(np.float32)
    truth = np.mean([exact(x) for x in data[:100, 0]])
    vae = Autoencoder(LaplaceEncoder(1, 1, hidden=16, key=key), model)

    def bound(vae):
        keys = jax.random.split(key, 100 * 100)
        return float(jax.jit(jax.vmap(vae.elbo))(np.repeat(data[:100], 100, axis=0), keys).mean())

    trained, bounds = train(
        vae, jnp.asarray(data), key=key, steps=400, batch_size=50, learning_rate=5e-3, every=200
    )
    assert bounds.shape == (2,)
    assert bounds[-1] > bounds[0]
    assert bound(vae) < truth
    held = Autoencoder(trained.encoder, model)
    assert truth - 0.3 < bound(held) < truth
    assert bound(held) > bound(vae)


def test_model_density_is_that_of_numpyro(key):
    model = ica.IndependentComponents(key, pixels=4, latents=3)
    z, x = sample(model, key)
    expected = dist.Laplace().log_prob(z).sum()
    expected += dist.Normal(model.weight @ z, jnp.exp(model.log_noise)).log_prob(x).sum()
    np.testing.assert_allclose(alws.log_joint(model, z, x), expected, rtol=1e-5)


def test_best_linear_guess_is_the_regression_of_the_latents_on_the_images(key):
    model = ica.IndependentComponents(key, pixels=6, latents=3)
    model = eqx.tree_at(lambda m: (m.weight, m.log_noise), model, (8 * model.weight, -0.5))
    draws, _ = alws.draw(model, key, 100_000)
    guess = ica.best_linear_guess(model)
    fitted = np.linalg.lstsq(np.asarray(draws.x), np.asarray(draws.z), rcond=None)[0]
    np.testing.assert_allclose(guess.weight.T, fitted, atol=0.02)
    features = np.asarray(guess(draws.x[:5]))
    assert features.shape == (5, 3 * 5 + 6)
    u = np.asarray(draws.x[:5]) @ np.asarray(guess.weight).T
    np.testing.assert_allclose(features[:, -6:-3], u[:, :1] * u, rtol=1e-4, atol=1e-5)


def test_a_gradient_step_of_half_the_variance_is_that_of_em(key):
    """Exact moments: W + σ²/2 ∇_W J = W + ½(E xzᵀ − W E zzᵀ), EM's W where E zzᵀ = 2I."""
    optimiser = ica.em_step(0.5)
    gradient = jax.random.normal(key, (4, 2))
    update, _ = optimiser.update(-gradient, optimiser.init(gradient))
    np.testing.assert_allclose(update, 0.125 * gradient, rtol=1e-6)


def test_images_are_standardised_and_come_from_the_scaled_filters():
    weight = np.random.default_rng(0).normal(size=(9, 3))
    images = component_images(weight, 20_000, 100, seed=1)
    variance = images.train.var(axis=0)
    np.testing.assert_allclose(variance, 1 + 0.1**2, atol=0.02)
    covariance = 2 * images.filters @ images.filters.T + 0.1**2 * np.eye(9)
    np.testing.assert_allclose(np.cov(images.train.T), covariance, atol=0.06)


def test_matching_undoes_order_and_sign():
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(20, 5))
    shuffled = generator.permutation(5)
    signs = np.array([1, -1, 1, -1, -1])
    order, correlation = match_filters((truth * signs * 3)[:, shuffled], truth)
    np.testing.assert_array_equal(shuffled[order], np.arange(5))
    np.testing.assert_allclose(correlation, signs, atol=1e-12)


def test_centred_gradient_vanishes_at_the_truth():
    """`Natural` on a rough regression is biased at the truth; centred it is not."""
    model = ica.IndependentComponents(jax.random.key(3), pixels=4, latents=2)
    object.__setattr__(model, "weight", 5 * model.weight)
    object.__setattr__(model, "log_noise", jnp.log(jnp.array(0.3)))
    smooth = alws.regressions.KernelRidge(alws.kernels.SquaredExponential(bandwidth=3.0), ridge=1.0)

    def gradient(estimate, key):
        sleep_key, data_key, fresh_key = jax.random.split(key, 3)
        sleep, data = (alws.draw(model, k, 60)[0] for k in (sleep_key, data_key))
        weights = estimate.weigh(model, smooth.fit(sleep.x), sleep, data.x, None, fresh_key)
        return jax.grad(lambda w: estimate.objective(with_weight(model, w), sleep, weights, None))(
            model.weight
        )

    def mean_and_error(estimate):
        keys = jax.random.split(jax.random.key(1), 300)
        drawn = np.asarray(jax.jit(jax.vmap(lambda k: gradient(estimate, k)))(keys))
        return drawn.mean(axis=0), drawn.std(axis=0) / np.sqrt(len(keys))

    plain, plain_error = mean_and_error(alws.estimates.Natural())
    assert np.max(np.abs(plain) / plain_error) > 10
    centred, error = mean_and_error(alws.estimates.Centred(alws.estimates.Natural(), 60))
    assert np.max(np.abs(centred) / error) < 4
    assert np.abs(centred).max() < 0.2 * np.abs(plain).max()


def with_weight(model, weight):
    return eqx.tree_at(lambda m: m.weight, model, weight)
