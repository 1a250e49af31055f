"""Quasi-random sleep samples: each from p_θ exactly, together better than independent ones."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from exact import LinearGaussian
from jax.flatten_util import ravel_pytree
from scipy import stats

import alws
from alws.kernels import SquaredExponential
from alws.quasi_random import normals, quasi_random


class Factors(LinearGaussian):
    """The exact model, which also says how it draws from three normal numbers."""

    normals = 3

    def sample_from(self, u):
        return u[:1], self.loadings @ u[:1] + self.offset + jnp.exp(self.log_noise) * u[1:]


MODEL = Factors(jnp.array([[1.0], [0.5]]), jnp.array([0.5, 0.0]), jnp.full(2, -0.5))
DATA = jnp.array([[0.3, 0.2], [1.5, 0.5], [-0.7, -0.4], [2.0, 1.0], [0.0, 0.9]])


@pytest.fixture(scope="module")
def sets():
    """100 sets of 64 vectors of three numbers."""
    keys = jax.random.split(jax.random.key(1), 100)
    return np.asarray(jax.jit(jax.vmap(lambda k: normals(k, 64, 3)))(keys))


def test_each_number_is_standard_normal(sets):
    for point in (0, 17, 63):
        for entry in range(3):
            assert stats.kstest(sets[:, point, entry], "norm").pvalue > 1e-3
    correlations = np.corrcoef(sets[:, 17].T)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 0.35


def test_means_over_a_set_vary_less_than_those_of_independent_numbers(sets):
    for values, deviation in (
        (sets, 1.0),
        (sets**2, np.sqrt(2)),
        (sets[..., 0] * sets[..., 1], 1.0),
    ):
        means = values.mean(axis=1)
        expected = 1.0 if values.min() >= 0 else 0.0
        # 64 independent numbers have deviation/8; the bias is far below it.
        assert means.std() < 0.4 * deviation / 8
        assert np.abs(means.mean(axis=0) - expected).max() < 0.2 * deviation / 8


def test_draws_have_the_moments_of_the_model(key):
    draws = jax.jit(lambda k: quasi_random(MODEL, k, 4096))(key)
    covariance = MODEL.loadings @ MODEL.loadings.T + jnp.diag(jnp.exp(2 * MODEL.log_noise))
    np.testing.assert_allclose(draws.x.mean(axis=0), MODEL.offset, atol=0.01)
    np.testing.assert_allclose(np.cov(draws.x.T), covariance, atol=0.02)
    np.testing.assert_allclose(
        np.cov(draws.x.T, draws.z[:, 0])[2, :2], MODEL.loadings[:, 0], atol=0.02
    )
    assert stats.kstest((draws.x[:, 0] - 0.5) / np.sqrt(covariance[0, 0]), "norm").pvalue > 1e-3


def test_the_gradient_has_less_error():
    def flat(tree):
        return ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0]

    exact = flat(eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(DATA).mean())(MODEL))
    errors = {}
    for draws in ("independent", "quasi-random"):
        settings = alws.Settings(sleep_samples=128, adapt=alws.ALWS_F, draws=draws)
        regression = alws.KernelRidge(SquaredExponential(bandwidth=2.0), ridge=0.1)
        algorithm = alws.WakeSleep(regression, alws.Joint(), optax.sgd(0.1), settings)
        state = algorithm.init(
            MODEL, alws.draw(MODEL, jax.random.key(3), 128)[0], jax.random.key(4)
        )

        @eqx.filter_jit
        def gradients(state, keys, algorithm=algorithm):
            return jax.lax.map(
                lambda k: flat(algorithm.phases(state, DATA, k, None)[1].gradient), keys
            )

        found = gradients(state, jax.random.split(jax.random.key(5), 60)) - exact
        errors[draws] = float(jnp.sqrt((found**2).sum(axis=1).mean()))
    assert errors["quasi-random"] < 0.85 * errors["independent"], errors


def fit(model, draws):
    settings = alws.Settings(sleep_samples=30, validation_samples=10, draws=draws)
    return alws.fit(model, DATA, key=jax.random.key(0), steps=2, settings=settings)


def test_a_fit_takes_them():
    found = fit(MODEL, "quasi-random").model
    assert np.isfinite(found.loadings).all()
    assert not np.array_equal(found.loadings, MODEL.loadings)


class Misshapen(Factors):
    """Its x has an axis too many."""

    def sample_from(self, u):
        z, x = super().sample_from(u)
        return z, x[None]


class Greedy(Factors):
    """More numbers than there are Sobol' points for."""

    normals = 10**6


def parameters(kind):
    return kind(MODEL.loadings, MODEL.offset, MODEL.log_noise)


@pytest.mark.parametrize(
    ("model", "draws", "error", "message"),
    [
        (MODEL, "antithetic", ValueError, 'must be "independent" or "quasi-random", got'),
        (parameters(LinearGaussian), "quasi-random", TypeError, "LinearGaussian has not both"),
        (parameters(Misshapen), "quasi-random", ValueError, "as the model's other draws are"),
        (parameters(Greedy), "quasi-random", ValueError, "from 1 to 21201, got 1000000"),
    ],
)
def test_what_cannot_be_drawn_so_is_refused(model, draws, error, message):
    with pytest.raises(error, match=message):
        fit(model, draws)
