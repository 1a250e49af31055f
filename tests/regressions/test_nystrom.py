"""Nyström's method against exact kernel ridge regression."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import alws
from alws.kernels import DotProduct, Matern32, OnSets, Pairwise, SquaredExponential
from alws.regressions import KernelRidge, Nystrom, Smoother
from alws.regressions import base as linear_algebra
from alws.regressions.representatives import select_rows

SELECTIONS = ["uniform", "leverage", "k-means++"]


@pytest.fixture
def sleep(key):
    x = jax.random.normal(key, (200, 3))
    y = jnp.stack([jnp.sin(x[:, 0]) + 5, x[:, 1] * x[:, 2]], axis=1)
    return x, y


def kernel():
    return SquaredExponential(bandwidth=1.5)


@eqx.filter_jit
def answers(regression, x, y, new):
    """Everything a smoother says, compiled at once."""
    smoother = regression.fit(x)
    assert isinstance(smoother, Smoother)
    return (
        smoother.weights(new),
        smoother.predict(new, y),
        smoother.predict_vjp(new, new),
        smoother.report(new),
    )


@pytest.mark.parametrize(("intercept", "large"), [(True, 1025), (False, 150)])
def test_with_every_sample_it_is_kernel_ridge_regression(sleep, intercept, large, monkeypatch):
    monkeypatch.setattr(linear_algebra, "LARGE", large)
    monkeypatch.setattr(linear_algebra, "BLOCK", 60)
    with jax.enable_x64(True):
        x, y = (jnp.asarray(np.asarray(a), jnp.float64) for a in sleep)
        new = x[:20] + 0.3
        exact = KernelRidge(kernel(), ridge=0.1, intercept=intercept)
        found = Nystrom(kernel(), inducing=200, ridge=0.1, intercept=intercept)
        pairs = zip(answers(found, x, y, new), answers(exact, x, y, new), strict=True)
        for ours, theirs in list(pairs)[:3]:
            np.testing.assert_allclose(ours, theirs, atol=1e-8)


@pytest.mark.slow
def test_with_every_sample_it_is_close_in_single_precision(sleep):
    x, y = sleep
    new = x[:20] + 0.3
    exact = answers(KernelRidge(kernel(), ridge=0.1), x, y, new)
    found = answers(Nystrom(kernel(), inducing=200, ridge=0.1), x, y, new)
    assert found[3].escalations == 0
    np.testing.assert_allclose(found[1], exact[1], atol=2e-3)


def test_few_points_give_the_formula(sleep):
    x, y = sleep
    new = x[:9] + 0.1
    regression = Nystrom(kernel(), inducing=15, ridge=0.5, intercept=False)

    @eqx.filter_jit
    def points_and_prediction():
        fitted = regression.fit(x)
        return fitted.features.points, fitted.predict(new, y)

    points, found = (np.asarray(a, np.float64) for a in points_and_prediction())
    assert all((points[i] == np.asarray(x)).all(axis=1).any() for i in range(15))

    def gram(a, b):
        return np.exp(-((a[:, None] - b) ** 2).sum(axis=-1) / (2 * 1.5**2))

    new, x = np.asarray(new, np.float64), np.asarray(x, np.float64)
    across = gram(points, x)
    expected = gram(new, points) @ np.linalg.solve(
        across @ across.T + 0.5 * gram(points, points), across @ np.asarray(y, np.float64)
    )
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("selection", [*SELECTIONS, "learnt"])
def test_error_falls_with_more_points_for_every_selection(sleep, selection):
    x, y = sleep
    new = x[:40] + 0.3
    exact = KernelRidge(kernel(), ridge=0.1).fit(x).predict(new, y)

    def error(inducing):
        regression = Nystrom(kernel(), inducing=inducing, selection=selection, ridge=0.1)
        fitted = regression.initialise(x).fit(x)
        return float(jnp.abs(fitted.predict(new, y) - exact).mean())

    assert error(10) > 5 * error(100)
    assert error(100) < 0.01


@pytest.mark.parametrize(
    "selection", ["uniform", pytest.param("leverage", marks=pytest.mark.slow), "k-means++"]
)
def test_rows_are_different_and_spread_as_they_should(selection, key):
    crowd = 0.01 * jax.random.normal(key, (230, 2))
    apart = 8 * jnp.stack([jnp.cos(jnp.arange(20.0)), jnp.sin(jnp.arange(20.0))], axis=1)
    x = jnp.concatenate([crowd, apart])
    rows = select_rows(
        SquaredExponential(bandwidth=0.5), x, 25, selection, jnp.array(0.01), jax.random.key(3)
    )
    assert len(set(rows.tolist())) == 25
    far = int((rows >= 230).sum())
    assert far < 8 if selection == "uniform" else far >= 12, far


def test_gradient_in_gamma_is_that_of_kernel_ridge_and_of_finite_differences(sleep):
    with jax.enable_x64(True):
        x, y = (jnp.asarray(np.asarray(a), jnp.float64)[:60] for a in sleep)

        @eqx.filter_jit
        def loss(gamma):
            return jnp.sum(gamma.fit(x).predict(x[:9] + 0.3, y) ** 2)

        places = (lambda g: g.log_ridge, lambda g: g.kernel.log_bandwidth)
        slope = eqx.filter_jit(eqx.filter_grad(loss))
        exact = slope(KernelRidge(kernel(), ridge=0.1))
        whole = slope(Nystrom(kernel(), inducing=60, ridge=0.1))
        few = eqx.filter_jit(
            Nystrom(kernel(), inducing=20, ridge=0.1, selection="learnt").initialise
        )(x)
        gradient = slope(few)
        for where in places:
            np.testing.assert_allclose(where(whole), where(exact), rtol=1e-4)
        direction = jnp.sin(jnp.arange(60.0)).reshape(20, 3)
        for where, step in (*((p, jnp.ones(())) for p in places), (lambda g: g.points, direction)):
            moved = [loss(eqx.tree_at(where, few, where(few) + s * step)) for s in (1e-5, -1e-5)]
            found = float(jnp.sum(where(gradient) * step))
            np.testing.assert_allclose(found, (moved[0] - moved[1]) / 2e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "any_kernel",
    [
        Pairwise(lambda a, b: jnp.exp(-jnp.abs(a - b).sum())),
        DotProduct(),
        SquaredExponential() + Matern32(),
    ],
)
def test_any_kernel(any_kernel, sleep):
    x, y = sleep
    exact = KernelRidge(any_kernel, ridge=0.3).fit(x)
    found = Nystrom(any_kernel, inducing=200, ridge=0.3).fit(x)
    np.testing.assert_allclose(found.predict(x[:5], y), exact.predict(x[:5], y), atol=5e-3)


@pytest.mark.slow
def test_sets(key):
    x = jax.random.normal(key, (40, 3, 2))
    fitted = Nystrom(OnSets(SquaredExponential()), inducing=20, selection="k-means++").fit(x)
    assert jnp.isfinite(fitted.weights(x)).all()
    assert fitted.outside(x) < 0.1


def test_the_share_outside_is_that_of_kernel_ridge(sleep):
    x, _ = sleep
    points = jnp.concatenate([x[:30] + 0.01, x[:10] + 20])
    outside = eqx.filter_jit(lambda regression: regression.fit(x).outside(points))
    exact = outside(KernelRidge(kernel()))
    assert outside(Nystrom(kernel(), inducing=20)) == exact == 0.25


@pytest.mark.parametrize(
    "selection", ["k-means++", *(pytest.param(s, marks=pytest.mark.slow) for s in SELECTIONS[:2])]
)
def test_coinciding_points_raise_the_ridge_and_never_give_nan(selection):
    x = jnp.zeros((50, 2))
    regression = Nystrom(kernel(), inducing=20, selection=selection, ridge=1e-12)
    weights, *_, factor = answers(regression, x, x, x)
    assert factor.escalations > 0
    assert jnp.isfinite(weights).all()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"ridge": 0.0}, "`ridge` must be positive, one finite number; got 0.0"),
        ({"inducing": 0}, "`inducing` must be a whole number of at least 1, got 0"),
        ({"selection": "best"}, "`selection` must be one of \"uniform\", .*, got 'best'"),
    ],
)
def test_bad_settings(bad, message):
    with pytest.raises(ValueError, match=message):
        Nystrom(kernel(), **bad)


def test_what_cannot_be_fitted_is_refused(sleep):
    x, _ = sleep
    with pytest.raises(ValueError, match="at most the number of sleep samples, 200; got 201"):
        Nystrom(kernel(), inducing=201).fit(x)
    with pytest.raises(ValueError, match="must be set from a first batch"):
        Nystrom(kernel(), inducing=20, selection="learnt").fit(x)
    counts = Nystrom(Pairwise(lambda a, b: jnp.exp(-jnp.sum(a != b))), selection="learnt")
    with pytest.raises(ValueError, match="must be floating-point, but Pairwise compares int32"):
        counts.initialise(jnp.ones((600, 2), jnp.int32))
    assert alws.regressions.Nystrom is Nystrom
