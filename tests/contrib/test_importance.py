"""Importance sampling from the prior against exact gradients and posteriors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import BetaBernoulli, LinearGaussian, SigmoidBelief, sample_many
from jax.flatten_util import ravel_pytree

import alws
from alws.contrib.importance import log_likelihoods
from alws.features import Identity
from alws.likelihoods import Gaussian


class FactorAnalysis(LinearGaussian):
    """The exact model, which also says that its likelihood is Gaussian."""

    def likelihood(self, z):
        return Gaussian(self.loadings @ z + self.offset, jnp.exp(self.log_noise))


FACTORS = {
    "loadings": jnp.array([[1.0, 0.0], [0.5, 1.0], [0.0, -0.7]]),
    "offset": jnp.array([0.0, 0.5, -0.5]),
    "log_noise": jnp.zeros(3),
}
MODELS = {
    "a likelihood": FactorAnalysis(**FACTORS),
    "a prior and a joint": LinearGaussian(**FACTORS),
    "discrete": SigmoidBelief(
        jnp.array([-0.4, 0.3]), jnp.array([[2.0, 0.0], [-1.0, 1.5], [0.5, 1.0]]), jnp.zeros(3)
    ),
    "a conjugate prior": BetaBernoulli(jnp.array(0.2), jnp.array(-0.3)),
}


def flat(tree):
    return np.asarray(ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0])


@eqx.filter_jit
def gradient(estimate, model, sleep, wake):
    smoother = alws.regressions.LinearReadout(Identity()).fit(sleep.x)
    held = estimate.weigh(model, smoother, sleep, wake, None)
    return eqx.filter_grad(lambda m: estimate.objective(m, sleep, held, None))(model)


def moved(model):
    return jax.tree.map(lambda a: a + 0.4, model)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_gradient_is_the_exact_one_with_many_samples(name, normalised, key):
    model = MODELS[name]
    _, wake = sample_many(moved(model), jax.random.split(key, 40))
    exact = flat(eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(wake).mean())(model))
    sleep, _ = alws.draw(model, jax.random.key(1), 20_000)
    found = flat(gradient(alws.contrib.Importance(normalised), model, sleep, wake))
    assert np.linalg.norm(found - exact) < 0.05 * np.linalg.norm(exact), (found, exact)


def test_normalised_weights_of_a_discrete_model_are_its_posterior(key):
    model = MODELS["discrete"]
    sleep, x = alws.draw(model, key, 4000)[0], jnp.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    weights = alws.contrib.Importance().weights(model, sleep, x)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    for state in np.indices((2, 2)).reshape(2, -1).T:
        same = (sleep.z == jnp.asarray(state)).all(axis=1)
        for point, row in zip(x, weights, strict=True):
            log_joint = model.log_joint(jnp.asarray(state, float), point)
            posterior = jnp.exp(log_joint - model.log_marginal(point))
            assert abs(row @ same - posterior) < 0.03


def test_plain_weights_are_the_likelihood_over_the_evidence_of_the_other_half(key):
    model = MODELS["a likelihood"]
    sleep, x = alws.draw(model, key, 100)[0], jnp.array([[0.3, 0.5, -0.2]])
    likelihood = np.exp(np.asarray(log_likelihoods(model, sleep, x)[0], np.float64))
    means = likelihood[:50].mean(), likelihood[50:].mean()
    expected = np.concatenate([likelihood[:50] / means[1], likelihood[50:] / means[0]]) / 100
    np.testing.assert_allclose(
        alws.contrib.Importance(False).weights(model, sleep, x)[0], expected, 1e-4
    )
    for z, value in zip(sleep.z[:5], likelihood, strict=False):
        assert np.exp(model.log_likelihood(z, x[0])) == pytest.approx(value, rel=1e-4)


def test_a_model_without_a_prior_is_refused(key):
    class Bare(eqx.Module):
        shift: jax.Array

        def sample(self, key):
            return jnp.zeros(()), jnp.zeros(())

        def log_joint(self, z, x):
            return -((x - self.shift) ** 2) / 2

    model = Bare(jnp.zeros(()))
    with pytest.raises(TypeError, match=r"needs p\(x \| z\), and Bare gives only log p\(z, x\)"):
        alws.contrib.Importance().weights(model, alws.draw(model, key, 10)[0], jnp.zeros(3))


def test_fit_by_importance_sampling_climbs_to_the_maximum(key):
    """The mean of x is all that the offset has to find."""
    truth = FactorAnalysis(**{**FACTORS, "offset": jnp.array([0.8, -0.3, 0.4])})
    data = sample_many(truth, jax.random.split(key, 300))[1]
    settings = alws.Settings(
        alws.regressions.LinearReadout(Identity()),
        alws.contrib.Importance(),
        sleep_samples=300,
        validation_samples=20,
        adapt=alws.ALWS_F,
    )
    result = alws.fit(
        MODELS["a likelihood"], data, key=key, steps=150, settings=settings, progress=False
    )
    np.testing.assert_allclose(result.model.offset, data.mean(axis=0), atol=0.15)
