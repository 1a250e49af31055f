import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge as Reference

from alws.kernels import Pairwise, SquaredExponential
from alws.regressions import KernelRidge
from alws.regressions import base as linear_algebra
from alws.regressions.base import factorise, solve


@pytest.fixture
def sleep(key):
    x = jax.random.normal(key, (200, 3))
    y = jnp.stack([jnp.sin(x[:, 0]) + 5, x[:, 1] * x[:, 2]], axis=1)
    return x, y


def regression(intercept, ridge=0.1):
    return KernelRidge(SquaredExponential(bandwidth=1.5), ridge=ridge, intercept=intercept)


def test_prediction_is_that_of_scikit_learn(sleep):
    x, y = sleep
    new = x[:20] + 0.3
    reference = Reference(alpha=0.1, kernel="rbf", gamma=1 / (2 * 1.5**2)).fit(x, y)
    found = regression(intercept=False).fit(x).predict(new, y)
    np.testing.assert_allclose(found, reference.predict(new), atol=2e-3)


def test_ridge_is_added_as_it_is_not_times_n(sleep):
    x, y = sleep
    smoother = regression(intercept=False, ridge=0.5).fit(x)
    gram = np.asarray(smoother.gram, np.float64)
    expected = gram[:5] @ np.linalg.solve(gram + 0.5 * np.eye(200), np.asarray(y, np.float64))
    np.testing.assert_allclose(smoother.predict(x[:5], y), expected, atol=1e-4)


@pytest.mark.parametrize("intercept", [False, True])
def test_weights_predict_and_pull_are_one_linear_map(sleep, intercept, key):
    x, y = sleep
    new = x[:20] + 0.3
    smoother = regression(intercept).fit(x)
    weights = smoother.weights(new)
    np.testing.assert_allclose(smoother.predict(new, y), weights @ y, atol=1e-3)
    for targets in (1, 30):
        cotangents = jax.random.normal(key, (20, targets))
        np.testing.assert_allclose(
            smoother.predict_vjp(new, cotangents), weights.T @ cotangents, atol=1e-3
        )


def test_intercept_predicts_constants_exactly_and_plain_regression_shrinks_them(sleep):
    x, _ = sleep
    ones = jnp.ones((200, 1))
    far = x + 100
    assert jnp.allclose(regression(intercept=True).fit(x).predict(far, ones), 1, atol=1e-5)
    plain = KernelRidge(SquaredExponential(bandwidth=1.5), intercept=False, clip=False)
    assert jnp.allclose(plain.fit(x).predict(far, ones), 0, atol=1e-5)


def test_points_beyond_the_sleep_samples_are_drawn_in_to_their_range(sleep):
    x, y = sleep
    smoother = regression(intercept=True).fit(x)
    far = jnp.array([[100.0, 0.0, 0.0]])
    edge = jnp.array([[x[:, 0].max(), 0.0, 0.0]])
    np.testing.assert_allclose(smoother.weights(far), smoother.weights(edge), atol=1e-6)
    np.testing.assert_allclose(smoother.predict(far, y), smoother.predict(edge, y), rtol=1e-5)


def test_gradient_in_gamma_is_that_of_finite_differences(sleep):
    x, y = sleep
    with jax.enable_x64(True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        gamma = KernelRidge(SquaredExponential(bandwidth=1.5), ridge=0.1)

        def loss(gamma):
            return jnp.sum(
                gamma.fit(jnp.asarray(x)).predict(jnp.asarray(x[:9] + 0.3), jnp.asarray(y)) ** 2
            )

        gradient = eqx.filter_grad(loss)(gamma)
        for where in (lambda g: g.log_ridge, lambda g: g.kernel.log_bandwidth):
            moved = [loss(eqx.tree_at(where, gamma, where(gamma) + s)) for s in (1e-5, -1e-5)]
            np.testing.assert_allclose(where(gradient), (moved[0] - moved[1]) / 2e-5, rtol=1e-5)


@pytest.mark.parametrize("large", [1025, 200])
def test_solve_differentiates_as_the_dense_solver(sleep, large, monkeypatch):
    """By LAPACK as a whole, and in blocks."""
    monkeypatch.setattr(linear_algebra, "LARGE", large)
    monkeypatch.setattr(linear_algebra, "BLOCK", 60)
    x, y = sleep
    gram = SquaredExponential(bandwidth=1.0)(x, x)

    def ours(gram, ridge):
        return jnp.sum(jnp.cos(solve(gram, ridge, factorise(gram, ridge), y)))

    def dense(gram, ridge):
        return jnp.sum(jnp.cos(jnp.linalg.solve(gram + ridge * jnp.eye(200), y)))

    arguments = gram, jnp.array(1.0)
    for a, b in zip(
        jax.grad(ours, (0, 1))(*arguments), jax.grad(dense, (0, 1))(*arguments), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-3)


@pytest.mark.parametrize("large", [1025, 50])
def test_ridge_is_raised_until_the_factor_is_finite_and_the_raises_are_counted(large, monkeypatch):
    monkeypatch.setattr(linear_algebra, "LARGE", large)
    monkeypatch.setattr(linear_algebra, "BLOCK", 20)
    x = jnp.zeros((50, 2))  # all rows alike: the Gram matrix has rank one
    smoother = KernelRidge(SquaredExponential(bandwidth=1.0), ridge=1e-12).fit(x)
    assert smoother.factor.escalations > 0
    assert smoother.factor.finite
    assert all(jnp.isfinite(part).all() for part in jax.tree.leaves(smoother.factor))
    assert jnp.isfinite(smoother.weights(x)).all()
    assert KernelRidge(SquaredExponential(bandwidth=1.0)).fit(x).factor.escalations == 0


def test_an_indefinite_kernel_of_the_user_does_not_give_nan(key):
    x = jax.random.normal(key, (50, 2))
    smoother = KernelRidge(Pairwise(lambda a, b: -jnp.sum((a - b) ** 2))).fit(x)
    assert smoother.factor.escalations > 0
    assert jnp.isfinite(smoother.weights(x)).all()


@pytest.mark.parametrize("ridge", [0.0, -0.1, float("nan")])
def test_ridge_must_be_positive(ridge):
    with pytest.raises(ValueError, match=f"must be positive, one finite number; got {ridge}"):
        KernelRidge(SquaredExponential(), ridge=ridge)
