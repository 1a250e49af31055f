"""Random Fourier features against the kernels they stand for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alws.contrib import MeanMatching, Reweighted
from alws.features import Linear
from alws.kernels import (
    DotProduct,
    Matern12,
    Matern32,
    Matern52,
    OnSets,
    Pairwise,
    SquaredExponential,
    Stationary,
    Sum,
)
from alws.regressions import KernelRidge, RandomFeatures, Smoother

KERNELS = [
    SquaredExponential(bandwidth=1.3),
    Matern12(bandwidth=1.3),
    Matern32(bandwidth=1.3),
    Matern52(bandwidth=1.3),
    SquaredExponential(bandwidth=0.7) + Matern12(bandwidth=2.0),
]


@eqx.filter_jit
def estimates(kernel, a, keys, number):
    def one(key):
        waves = kernel.draw_features(key, number, a)(a)
        return waves @ waves.T

    return jax.lax.map(one, keys)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_the_matrix_is_estimated_without_bias_and_better_with_more_waves(kernel, key):
    """Over 50 sets of waves the mean is within its own error; 16 times as many err 1/4 as much."""
    a = kernel.embed(jax.random.normal(key, (12, 3)))
    exact = np.array(kernel.evaluate(a, a))
    weight = float(jnp.exp(kernel.log_weight).sum()) if isinstance(kernel, Sum) else 1.0
    np.fill_diagonal(exact, weight)  # a root makes much of what rounding leaves of a zero
    keys = jax.random.split(key, 50)
    few, many = (np.asarray(estimates(kernel, a, keys, number)) for number in (25, 400))
    spread = many.std(axis=0) / np.sqrt(50)
    assert np.abs((many.mean(axis=0) - exact) / (spread + 1e-5)).max() < 4.5
    ratio = np.sqrt(((few - exact) ** 2).mean() / ((many - exact) ** 2).mean())
    assert 3.4 < ratio < 4.7, ratio
    np.testing.assert_allclose(np.diagonal(few[0]), np.diagonal(exact), rtol=1e-5)


@pytest.mark.slow
def test_regression_tends_to_the_exact_one(key):
    x = jax.random.normal(key, (150, 2))
    y = jnp.stack([jnp.sin(x[:, 0]) + 5, x[:, 1] ** 2], axis=1)
    new = x[:30] + 0.3
    kernel = SquaredExponential()
    exact = KernelRidge(kernel, ridge=1.0).fit(x)
    expected = exact.predict(new, y)

    @eqx.filter_jit
    def errors(number):
        def one(key):
            fitted = RandomFeatures(kernel, frequencies=number, ridge=1.0, key=key).fit(x)
            return jnp.mean((fitted.predict(new, y) - expected) ** 2)

        return jnp.sqrt(jax.lax.map(one, jax.random.split(key, 10)).mean())

    few, many = float(errors(60)), float(errors(500))
    assert 2 < few / many < 4.5, (few, many)  # √(500/60) = 2.9
    assert many < 0.04
    fitted = RandomFeatures(kernel, frequencies=500, ridge=1.0, key=key).fit(x)
    np.testing.assert_allclose(fitted.weights(new), exact.weights(new), atol=0.05)


def test_weights_predict_and_pull_are_one_linear_map(key):
    x = jax.random.normal(key, (80, 2))
    y, new = jnp.stack([jnp.sin(x[:, 0]) + 5, x[:, 1] ** 2], axis=1), x[:30] + 0.3
    regression = RandomFeatures(SquaredExponential(), frequencies=50, ridge=0.1)

    @eqx.filter_jit
    def answers():
        fitted = regression.fit(x)
        assert isinstance(fitted, Smoother)
        told = fitted.weights(new), fitted.predict(new, y), fitted.predict_vjp(new, new)
        return *told, fitted.outside(new + 20)

    weights, predicted, pulled, outside = answers()
    np.testing.assert_allclose(predicted, weights @ y, atol=1e-3)
    np.testing.assert_allclose(pulled, weights.T @ new, atol=1e-3)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-4)
    assert outside == 1.0


def test_gradient_in_bandwidth_ridge_features_and_weights_of_a_sum(key):
    """By finite differences, the waves being the same at every call."""
    with jax.enable_x64(True):
        x = jax.random.normal(key, (60, 3), jnp.float64)
        y = jnp.sin(x[:, :1])
        kernel = SquaredExponential(Linear(jnp.eye(3)[:, :2]), bandwidth=1.5) + Matern52()
        gamma = RandomFeatures(kernel, frequencies=30, ridge=0.1, key=key)

        @eqx.filter_jit
        def loss(gamma):
            return jnp.sum(gamma.fit(x[:50]).predict(x[50:], y[:50]) ** 2)

        gradient = eqx.filter_jit(eqx.filter_grad(loss))(gamma)
        for where in (
            lambda g: g.log_ridge,
            lambda g: g.kernel.log_weight,
            lambda g: g.kernel.kernels[0].log_bandwidth,
            lambda g: g.kernel.kernels[0].features.weight,
        ):
            moved = [loss(eqx.tree_at(where, gamma, where(gamma) + s)) for s in (1e-5, -1e-5)]
            slope = (moved[0] - moved[1]) / 2e-5
            np.testing.assert_allclose(where(gradient).sum(), slope, rtol=1e-4, atol=1e-7)


class Triangle(Stationary):
    def profile(self, squares):
        return jnp.maximum(1 - jnp.sqrt(squares), 0)


def test_the_features_of_a_dot_product_are_exact(key):
    """In a sum and, with weights, in a reweighted regression too."""
    x = jax.random.normal(key, (40, 3)) * jnp.array([1.0, 10.0, 0.1])
    new, y = x[:9] + 0.3, jnp.sin(x[:, :1])
    kernel = DotProduct() + DotProduct(Linear(jnp.ones((3, 2))))

    @eqx.filter_jit
    def predictions():
        kinds = RandomFeatures, KernelRidge
        plain = [kind(kernel, ridge=0.1).fit(x) for kind in kinds]
        weights = jnp.linspace(0, 2, 40)
        reweighted = [
            Reweighted(kernel, by=MeanMatching(), ridge=0.1, regression=kind) for kind in kinds
        ]
        fitted = [*plain, *(regression.fit_weighted(x, weights) for regression in reweighted)]
        return [smoother.predict(new, y) for smoother in fitted]

    found, exact, weighted, exact_weighted = predictions()
    np.testing.assert_allclose(found, exact, atol=1e-4)
    np.testing.assert_allclose(weighted, exact_weighted, atol=1e-4)
    assert not np.allclose(found, weighted, atol=1e-2)


@pytest.mark.parametrize("members", [SquaredExponential(), Matern32(bandwidth=1.3)])
def test_the_matrix_of_sets_is_reached_with_many_waves(key, members):
    """In two stages, each with an error of order 1/√D: 16 times as many err 1/4 as much."""
    sets = jax.random.normal(key, (12, 5, 2)) + jax.random.normal(key, (12, 1, 2))
    kernel = OnSets(members)
    a = kernel.embed(sets)
    kernel = kernel.scale_to(a)
    exact = np.asarray(kernel.evaluate(a, a))
    keys = jax.random.split(key, 20)
    few, many = (np.asarray(estimates(kernel, a, keys, number)) for number in (25, 400))
    errors = [np.sqrt(((found - exact) ** 2).mean()) for found in (few, many)]
    assert 3.4 < errors[0] / errors[1] < 4.7, errors
    assert np.abs(many.mean(axis=0) - exact).max() < 0.03
    assert np.ptp(exact) > 0.5


def test_sets_are_regressed_on_and_differentiated(key):
    sets = jax.random.normal(key, (50, 4, 2))
    y = jnp.tanh(sets.mean(axis=(1, 2)))[:, None]

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(gamma):
        predicted = gamma.initialise(sets).fit(sets).predict(sets[:20], y)
        return jnp.mean((predicted - y[:20]) ** 2) / y.var()

    error, gradient = loss(RandomFeatures(OnSets(SquaredExponential()), frequencies=60))
    assert error < 0.3
    assert gradient.kernel.log_scale != 0
    assert gradient.kernel.kernel.log_bandwidth != 0


def test_a_kernel_that_can_only_be_evaluated_is_refused():
    kernel = Pairwise(lambda a, b: 1.0)
    message = "Pairwise has no `draw_features.* or use `Nystrom`"
    for whole in (kernel, SquaredExponential() + kernel):
        with pytest.raises(TypeError, match=message):
            RandomFeatures(whole).fit(jnp.ones((20, 2)))


def test_a_kernel_without_a_spectral_density_says_what_it_needs():
    with pytest.raises(TypeError, match="Triangle must say how to draw"):
        RandomFeatures(Triangle(bandwidth=1.0)).fit(jnp.ones((20, 2)))


@pytest.mark.parametrize("bad", [{"ridge": -1.0}, {"frequencies": 0}])
def test_bad_settings(bad):
    with pytest.raises(ValueError, match="must be"):
        RandomFeatures(SquaredExponential(), **bad)
