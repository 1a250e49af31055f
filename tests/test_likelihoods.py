import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from alws import estimates, likelihoods
from alws.model import Draws

MEAN = jnp.array([0.5, -2.0, 3.0])
CASES = {
    "gaussian, scalar noise": (
        likelihoods.Gaussian(MEAN, 0.7),
        dist.Normal(MEAN, 0.7),
    ),
    "gaussian, diagonal noise": (
        likelihoods.Gaussian(MEAN, jnp.array([0.1, 1.0, 4.0])),
        dist.Normal(MEAN, jnp.array([0.1, 1.0, 4.0])),
    ),
    "gaussian, one noise a row": (
        likelihoods.Gaussian(jnp.ones((2, 3)) * MEAN, jnp.array([[0.3], [2.0]])),
        dist.Normal(jnp.ones((2, 3)) * MEAN, jnp.array([[0.3], [2.0]])),
    ),
    "log-normal": (likelihoods.LogNormal(MEAN, 0.5), dist.LogNormal(MEAN, 0.5)),
    "bernoulli": (likelihoods.Bernoulli(MEAN), dist.BernoulliLogits(MEAN)),
    "categorical": (
        likelihoods.Categorical(jnp.array([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])),
        dist.CategoricalLogits(jnp.array([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])),
    ),
    "poisson": (likelihoods.Poisson(MEAN), dist.Poisson(jnp.exp(MEAN))),
    "gamma": (
        likelihoods.Gamma(jnp.array([0.5, 2.0, 9.0]), 1.5),
        dist.Gamma(jnp.array([0.5, 2.0, 9.0]), 1.5),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_log_prob_is_that_of_numpyro(name, key):
    ours, theirs = CASES[name]
    x = theirs.sample(key, (50,))
    expected = theirs.log_prob(x).reshape(50, -1).sum(axis=1)
    np.testing.assert_allclose(jax.vmap(ours.log_prob)(x), expected, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_samples_have_the_moments_of_the_distribution(name, key):
    ours, theirs = CASES[name]
    x = jax.vmap(ours.sample)(jax.random.split(key, 20_000)).astype(float)
    if name == "categorical":
        probabilities = jax.nn.softmax(ours.logits)
        mean = probabilities @ jnp.arange(3.0)
        variance = probabilities @ jnp.arange(3.0) ** 2 - mean**2
    else:
        mean, variance = theirs.mean, theirs.variance
    np.testing.assert_array_less(jnp.abs(x.mean(axis=0) - mean), 5 * jnp.sqrt(variance / 20_000))


@pytest.mark.parametrize("name", CASES)
def test_the_score_has_mean_zero_in_exponential_family_form(name):
    """E[∇ (η·s(x) − log Z)] = 0 under the likelihood's own samples, within 5 standard errors."""
    ours, _ = CASES[name]

    def score(likelihood, x):
        statistics = likelihood.sufficient_statistics(x)
        products = jax.tree.map(
            lambda e, s: jnp.sum(e * s), likelihood.natural_parameters(), statistics
        )
        return sum(jax.tree.leaves(products)) - sum(likelihood.log_normaliser())

    x = jax.vmap(ours.sample)(jax.random.split(jax.random.key(1), 20_000))
    gradients = jax.vmap(lambda x: eqx.filter_grad(score)(ours, x))(x)
    for leaf in jax.tree.leaves(gradients):
        error = leaf.std(axis=0) / jnp.sqrt(20_000)
        assert (jnp.abs(leaf.mean(axis=0)) < 5 * error).all()
        assert (error > 0).all()


def test_product_of_mixed_observations(key):
    product = likelihoods.Product(
        {"count": likelihoods.Poisson(MEAN), "value": likelihoods.Gaussian(MEAN, 0.7)}
    )
    x = product.sample(key)
    assert set(x) == {"count", "value"}
    expected = dist.Poisson(jnp.exp(MEAN)).log_prob(x["count"]).sum()
    expected += dist.Normal(MEAN, 0.7).log_prob(x["value"]).sum()
    np.testing.assert_allclose(product.log_prob(x), expected, rtol=1e-5)


def test_scale_that_does_not_broadcast_is_refused():
    with pytest.raises(ValueError, match=r"`scale` must broadcast to the shape of `mean`, \(3,\)"):
        likelihoods.Gaussian(MEAN, jnp.ones(2))


class WithNoise(eqx.Module):
    w: jax.Array
    log_noise: jax.Array
    moving: bool = eqx.field(static=True)

    def sample_latent(self, key):
        return jax.random.normal(key, (2,))

    def log_prior(self, z):
        return jax.scipy.stats.norm.logpdf(z).sum()

    def likelihood(self, z):
        scale = jnp.exp(self.log_noise + (z[0] if self.moving else 0))
        return likelihoods.Gaussian(self.w @ z, scale)


@pytest.mark.parametrize("moving", [False, True])
def test_what_depends_on_the_latent_is_found(moving):
    model = WithNoise(jnp.ones((3, 2)), jnp.zeros(()), moving)
    draws = Draws(jnp.ones((4, 2)), jnp.ones((4, 3)))
    in_eta, in_psi = estimates.depends_on_latent(model, draws, None)
    assert in_eta == [True, moving]
    assert in_psi == [True, moving, True]
