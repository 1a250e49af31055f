"""The recipes of CONTRIBUTING.md, each tried by adding one with only what is declared."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.scipy.stats import norm

import alws
from alws.estimates import Cross, Estimate, Weights
from alws.kernels import FeatureMap, Kernel, SquaredExponential
from alws.regressions import ConjugateGradients, KernelRidge, Nystrom, RandomFeatures
from alws.regressions.base import Regression, Smoother, SolveReport
from alws.wake_sleep import DIAGNOSTICS

BANDWIDTH = 1.5


class Mixture(eqx.Module):
    """Two clusters in the plane, of width 1."""

    logits: jax.Array
    means: jax.Array

    def sample(self, key):
        k1, k2 = jax.random.split(key)
        z = jax.random.categorical(k1, self.logits)
        return z, self.means[z] + jax.random.normal(k2, (2,))

    def log_joint(self, z, x):
        return jax.nn.log_softmax(self.logits)[z] + norm.logpdf(x, self.means[z]).sum()

    def log_densities(self, x):
        return jax.nn.log_softmax(self.logits) + norm.logpdf(x, self.means).sum(axis=1)


TRUTH = Mixture(jnp.array([0.5, -0.5]), jnp.array([[-2.0, 1.0], [2.0, 0.0]]))
START = Mixture(jnp.zeros(2), jnp.array([[-1.0, 0.0], [1.0, 0.0]]))


@pytest.fixture(scope="module")
def data():
    return alws.draw(TRUTH, jax.random.key(5), 80)[0].x


@pytest.fixture(scope="module")
def sleep():
    return alws.draw(START, jax.random.key(6), 60)[0].x


def fit(data, steps=5, **settings):
    chosen = {"sleep_samples": 60, "validation_samples": 20, "measure_every": 1, **settings}
    return alws.fit(
        START,
        data,
        key=jax.random.key(0),
        steps=steps,
        settings=alws.Settings(**chosen),
        progress=False,
    )


# A kernel ---------------------------------------------------------------------------------------


class Bell(Kernel):
    """exp(−‖x − y‖²/2σ²) with a fixed σ, written as a user would: nothing but `evaluate`."""

    def evaluate(self, a, b):
        squares = ((a[:, None] - b) ** 2).sum(axis=-1)
        return jnp.exp(-squares / (2 * BANDWIDTH**2))


REGRESSIONS = {
    "exact": lambda kernel: KernelRidge(kernel, ridge=0.1, clip=False),
    "nystrom": lambda kernel: Nystrom(kernel, inducing=30, ridge=0.1, clip=False),
    "conjugate gradients": lambda kernel: ConjugateGradients(
        kernel, rank=20, ridge=0.1, clip=False, tolerance=1e-5
    ),
}


@pytest.mark.parametrize("make", REGRESSIONS.values(), ids=REGRESSIONS)
def test_a_kernel_needs_only_evaluate(make, sleep, data):
    own, known = Bell(), SquaredExponential(bandwidth=BANDWIDTH, track=False)
    found, expected = (make(kernel).initialise(sleep).fit(sleep) for kernel in (own, known))
    targets = jnp.sin(sleep)
    close = {"rtol": 2e-3, "atol": 2e-3}
    np.testing.assert_allclose(found.weights(data), expected.weights(data), **close)
    predictions = found.predict(data, targets), expected.predict(data, targets)
    np.testing.assert_allclose(*predictions, **close)
    assert float(found.outside(data)) == pytest.approx(float(expected.outside(data)))
    fitted = [fit(data, regression=make(kernel), adapt=alws.ALWS_F) for kernel in (own, known)]
    np.testing.assert_allclose(*(result.model.means for result in fitted), rtol=1e-3, atol=1e-4)
    assert np.abs(fitted[0].model.means - START.means).max() > 0.01


def test_a_kernel_without_features_is_refused_by_random_features(data):
    with pytest.raises(TypeError, match=r"Bell has no `draw_features.*Nystrom"):
        fit(data, regression=RandomFeatures(Bell(), frequencies=10))


class RationalQuadratic(Kernel):
    """(1 + d²/2αs²)^−α, with a scale to adapt and random features.

    It is the mean of exp(−g d²/2s²) over g ~ Gamma(α)/α, whose waves are normal: ω = √g·normal.
    """

    breadth: jax.Array
    alpha: float = eqx.field(static=True, default=2.0)

    def evaluate(self, a, b):
        squares = ((a[:, None] - b) ** 2).sum(axis=-1) * jnp.exp(-2 * self.breadth)
        return (1 + squares / (2 * self.alpha)) ** -self.alpha

    def bandwidths(self):
        return [self.breadth]

    def draw_features(self, key, number, sleep):
        one, two = jax.random.split(key)
        mixed = jax.random.gamma(one, self.alpha, (number, 1)) / self.alpha
        waves = jnp.sqrt(mixed) * jax.random.normal(two, (number, sleep.shape[1]))
        return Waves(waves * jnp.exp(-self.breadth))


class Waves(FeatureMap):
    """(cos Ωa, sin Ωa)/√D."""

    frequencies: jax.Array

    def __call__(self, a):
        angles = a @ self.frequencies.T
        waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
        return waves / jnp.sqrt(len(self.frequencies))


def test_drawn_features_have_the_kernel_as_inner_product(sleep, key):
    kernel = RationalQuadratic(jnp.array(0.3))
    features = kernel.draw_features(key, 40_000, sleep)
    inner = features(sleep) @ features(sleep).T
    np.testing.assert_allclose(inner, kernel.evaluate(sleep, sleep), atol=0.02)


@pytest.mark.parametrize("kind", [KernelRidge, RandomFeatures])
def test_a_bandwidth_of_any_name_is_adapted_when_asked_for(kind, data):
    regression = kind(RationalQuadratic(jnp.array(0.3)))
    moved = fit(data, regression=regression, adapt=alws.Adapt(ridge=False, features=False))
    assert abs(float(moved.regression.kernel.breadth) - 0.3) > 1e-3
    held = fit(data, regression=regression, adapt=alws.Adapt(bandwidth=False))
    assert float(held.regression.kernel.breadth) == pytest.approx(0.3, abs=1e-7)
    assert float(held.regression.log_ridge) != float(regression.log_ridge)


# A regression -----------------------------------------------------------------------------------


class Neighbours(Regression):
    """The mean over the nearest sleep samples: only `fit` is there."""

    number: int = eqx.field(static=True)

    def fit(self, x, wake=None):
        return FittedNeighbours(x, self.number)


class FittedNeighbours(Smoother):
    sleep: jax.Array
    number: int = eqx.field(static=True)

    def weights(self, x):
        squares = ((x[:, None] - self.sleep) ** 2).sum(axis=-1)
        _, nearest = jax.lax.top_k(-squares, self.number)
        one_hot = jax.nn.one_hot(nearest, len(self.sleep), dtype=self.sleep.dtype)
        return one_hot.mean(axis=1)

    def predict(self, x, targets):
        return self.weights(x) @ targets

    def predict_vjp(self, x, cotangents):
        weights = self.weights(x)
        return jax.tree.map(lambda columns: weights.T @ columns, cotangents)

    def outside(self, x):
        inside = (x >= self.sleep.min(axis=0)) & (x <= self.sleep.max(axis=0))
        return 1 - inside.all(axis=1).mean(dtype=self.sleep.dtype)

    def report(self, x):
        return SolveReport(jnp.array(jnp.nan), jnp.zeros((), int), jnp.zeros(()))


def test_a_regression_needs_only_fit(data):
    result = fit(data, regression=Neighbours(6), steps=60, optimiser=optax.adam(0.05))
    assert result.diagnostics["refused_steps"] == 0
    assert np.isnan(result.diagnostics["ridge"])
    assert 0 <= result.diagnostics["outside"] <= 1
    assert result.diagnostics["effective_samples"] <= 60
    before, after = (
        jax.vmap(lambda x, m=m: jax.nn.logsumexp(m.log_densities(x)))(data).mean()
        for m in (START, result.model)
    )
    assert after > before + 0.1


def test_a_regression_of_all_neighbours_predicts_the_mean(sleep, data):
    targets = jnp.cos(sleep)
    predicted = Neighbours(len(sleep)).fit(sleep).predict(data, targets)
    np.testing.assert_allclose(
        predicted, jnp.broadcast_to(targets.mean(axis=0), predicted.shape), rtol=1e-5, atol=1e-6
    )


# An estimate ------------------------------------------------------------------------------------


class Responsibilities(Estimate):
    """Exact posterior weights of a mixture's latents: J̄ is EM's function Q, without regression."""

    regresses: ClassVar[bool] = False

    def weigh(self, model, smoother, sleep, x, condition, key=None):
        assert smoother is None
        weights = self._of(model, sleep, x)
        return Weights(weights.mean(axis=0), (weights / len(weights), x))

    def objective(self, model, sleep, weights, condition):
        return Cross().objective(model, sleep, weights, condition)

    def predict(self, model, smoother, sleep, x, condition):
        weights = self._of(model, sleep, x)
        return Cross().sums(model, sleep, Weights(weights.mean(axis=0), (weights, x)), condition)

    def _of(self, model, sleep, x):
        posterior = jax.nn.softmax(jax.vmap(model.log_densities)(x))
        times = jnp.bincount(sleep.z, length=len(model.logits))
        return posterior[:, sleep.z] / times[sleep.z]


def test_an_estimate_may_do_without_a_regression(data):
    result = fit(data, estimate=Responsibilities(), steps=1, optimiser=optax.sgd(1.0))
    assert result.regression is None
    assert np.isnan(result.diagnostics["outside"])

    def log_likelihood(model):
        return jax.vmap(lambda x: jax.nn.logsumexp(model.log_densities(x)))(data).mean()

    exact = eqx.filter_grad(log_likelihood)(START)
    np.testing.assert_allclose(result.model.means - START.means, exact.means, atol=1e-5)
    np.testing.assert_allclose(result.model.logits - START.logits, exact.logits, atol=1e-5)


# A diagnostic -----------------------------------------------------------------------------------


def test_a_diagnostic_is_one_line(data, monkeypatch):
    def largest_share(seen):
        weights = jnp.abs(seen.weights.mean)
        return weights.max() / weights.sum()

    monkeypatch.setitem(DIAGNOSTICS, "largest_share", largest_share)
    result = fit(data, steps=3)
    shares = result.metrics["largest_share"]
    assert shares.shape == (3,)
    assert np.all((shares >= 1 / 60) & (shares <= 1))
    assert result.diagnostics["largest_share"] == shares[-1]
