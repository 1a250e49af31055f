"""Weights for covariate shift against SciPy, known density ratios and weighted least squares."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import LinearGaussian
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.kernel_ridge import KernelRidge as Reference

import alws
from alws.contrib.shift import match_means, onto_box_and_mean
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws.regressions import Smoother


@pytest.fixture
def sleep(key):
    return jax.random.normal(key, (200, 2))


def reweighted(by=None, *, intercept=True, **options):
    return alws.contrib.Reweighted(
        SquaredExponential(bandwidth=1.5),
        by=alws.contrib.MeanMatching() if by is None else by,
        ridge=0.1,
        intercept=intercept,
        **options,
    )


@pytest.mark.parametrize("slack", [0.0, 0.3])
def test_projection_is_the_nearest_point(slack, key):
    v = np.asarray(3 * jax.random.normal(key, (6,)), np.float64)
    found = onto_box_and_mean(jnp.asarray(v), 2.0, slack)
    best = minimize(
        lambda w: ((w - v) ** 2).sum(),
        np.ones(6),
        jac=lambda w: 2 * (w - v),
        bounds=[(0, 2)] * 6,
        constraints=[
            {"type": "ineq", "fun": lambda w: slack - (w.mean() - 1)},
            {"type": "ineq", "fun": lambda w: slack + (w.mean() - 1)},
        ],
        method="SLSQP",
    )
    np.testing.assert_allclose(found, best.x, atol=1e-4)
    inside = jnp.array([0.5, 1.5, 1.0, 1.0, 0.8, 1.2])
    np.testing.assert_allclose(onto_box_and_mean(inside, 2.0, slack), inside, atol=1e-5)


def test_mean_matching_reaches_the_minimum_of_scipy(key):
    x = jax.random.normal(key, (30, 1))
    data = 1.0 + 0.5 * jax.random.normal(jax.random.key(1), (40, 1))
    kernel = SquaredExponential(bandwidth=0.7)
    gram, towards = kernel(x, x), kernel(x, data).mean(axis=1)
    found = np.asarray(match_means(gram, towards, 4.0, 0.1, 500), np.float64)
    k, t = np.asarray(gram, np.float64), np.asarray(towards, np.float64)

    def value(w):
        return w @ k @ w / 60 - t @ w

    best = minimize(
        value,
        np.ones(30),
        jac=lambda w: k @ w / 30 - t,
        bounds=[(0, 4)] * 30,
        constraints=[
            {"type": "ineq", "fun": lambda w: 0.1 - (w.mean() - 1)},
            {"type": "ineq", "fun": lambda w: 0.1 + (w.mean() - 1)},
        ],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-10},
    )
    assert (found >= 0).all()
    assert (found <= 4).all()
    assert abs(found.mean() - 1) < 0.1 + 1e-4
    assert value(found) - best.fun < 1e-4 * (value(np.ones(30)) - best.fun)


def test_density_ratio_of_two_gaussians(key):
    x = jax.random.normal(key, (2000, 1))
    data = 0.7 + 0.7 * jax.random.normal(jax.random.key(1), (1000, 1))
    true = norm(0.7, 0.7).logpdf(x[:, 0]) - norm(0, 1).logpdf(x[:, 0])
    by, kernel = alws.contrib.DensityRatio(ridge=0.001), SquaredExponential(bandwidth=1.0)
    found = np.asarray(by.log_ratio(kernel, x, data))
    common = np.abs(x[:, 0] - 0.5) < 1.3
    error = np.sqrt(((found - true)[common] ** 2).mean())
    assert error < 0.25 * true[common].std(), error
    weights = by(kernel, x, data)
    assert np.corrcoef(weights, np.exp(true))[0, 1] > 0.97
    assert float(weights.mean()) == pytest.approx(1, abs=1e-4)
    assert float(weights @ x[:, 0]) / 2000 == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize("by", [alws.contrib.MeanMatching(), alws.contrib.DensityRatio()])
def test_weights_are_near_one_where_data_and_model_agree(by, sleep):
    data = jax.random.normal(jax.random.key(1), (500, 2))
    weights = by(SquaredExponential(bandwidth=1.5), sleep, data)
    assert float(jnp.sqrt(jnp.mean((weights - 1) ** 2))) < 0.6


def test_prediction_is_that_of_scikit_learn_with_sample_weights(sleep, key):
    y = jnp.stack([jnp.sin(sleep[:, 0]) + 5, sleep[:, 0] * sleep[:, 1]], axis=1)
    weights = jnp.where(jnp.arange(200) % 4 == 0, 0.0, jnp.exp(sleep[:, 0]))
    new = sleep[:20] * 0.9
    fitted = reweighted(intercept=False).fit_weighted(sleep, weights)
    kept = np.asarray(weights) > 0
    reference = Reference(alpha=0.1, kernel="rbf", gamma=1 / (2 * 1.5**2))
    reference.fit(np.asarray(sleep)[kept], np.asarray(y)[kept], np.asarray(weights)[kept])
    np.testing.assert_allclose(fitted.predict(new, y), reference.predict(new), atol=5e-3)
    assert jnp.all(fitted.weights(new)[:, ~kept] == 0)


@pytest.mark.parametrize("intercept", [False, True])
def test_weights_predict_and_pull_are_one_linear_map(sleep, intercept, key):
    data = sleep[:50] * 0.5 + 1
    smoother = reweighted(intercept=intercept).fit(sleep, data)
    assert isinstance(smoother, Smoother)
    weights = smoother.weights(data)
    y = jax.random.normal(key, (200, 3))
    np.testing.assert_allclose(smoother.predict(data, y), weights @ y, atol=1e-3)
    for targets in (1, 60):
        cotangents = jax.random.normal(key, (50, targets))
        np.testing.assert_allclose(
            smoother.predict_vjp(data, cotangents), weights.T @ cotangents, atol=1e-3
        )
    if intercept:
        np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-4)


def test_unit_weights_are_the_plain_regression(sleep):
    data = sleep[:30] * 1.5
    plain = alws.regressions.KernelRidge(SquaredExponential(bandwidth=1.5), ridge=0.1).fit(sleep)
    fitted = reweighted().fit(sleep)
    np.testing.assert_allclose(fitted.weights(data), plain.weights(data), atol=1e-4)
    assert float(fitted.outside(data)) == pytest.approx(float(plain.outside(data)), abs=0.04)


@pytest.mark.slow
def test_other_regressions_agree_with_the_exact_one(sleep):
    data = sleep[:40] * 0.5 + 1
    exact = reweighted(alws.contrib.DensityRatio()).fit(sleep, data).weights(data)
    for regression in (
        partial(alws.regressions.Nystrom, inducing=200),
        partial(alws.regressions.ConjugateGradients, rank=60, tolerance=1e-5),
    ):
        other = reweighted(alws.contrib.DensityRatio(), regression=regression)
        found = other.fit(sleep, data).weights(data)
        np.testing.assert_allclose(found, exact, atol=5e-3)


class Factors(LinearGaussian):
    """The exact model, which also says that its likelihood is Gaussian."""

    def likelihood(self, z):
        return Gaussian(self.loadings @ z + self.offset, jnp.exp(self.log_noise))


def factors():
    return Factors(jnp.array([[1.0], [0.5]]), jnp.zeros(2), jnp.full(2, -0.5))


def gradient_error(regression, data, model):
    """Root mean square error over sleep sets, over the length of the exact gradient if not tiny."""

    def flat(tree):
        return ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0]

    @eqx.filter_jit
    def one(model, key):
        sleep = alws.draw(model, key, 300)[0]
        smoother = regression.fit(sleep.x, data)
        held = alws.estimates.Natural().weigh(model, smoother, sleep, data, None)
        objective = lambda m: alws.estimates.Natural().objective(m, sleep, held, None)  # noqa: E731
        return flat(eqx.filter_grad(objective)(model))

    exact = flat(eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(data).mean())(model))
    errors = [jnp.sum((one(model, k) - exact) ** 2) for k in jax.random.split(jax.random.key(3), 8)]
    return float(np.sqrt(np.mean(errors)) / max(1.0, float(jnp.linalg.norm(exact))))


@pytest.mark.parametrize("by", [alws.contrib.MeanMatching(), alws.contrib.DensityRatio()])
def test_weights_help_a_stiff_regression_where_data_lie_outside_and_not_inside(by, key):
    def kernel():
        return SquaredExponential(bandwidth=2.0, track=True)

    plain = alws.regressions.KernelRidge(kernel(), ridge=1.0)
    weighted = alws.contrib.Reweighted(kernel(), by=by, ridge=1.0)
    outside = jnp.array([3.0, 1.5]) + 0.3 * jax.random.normal(key, (60, 2))
    errors = [gradient_error(g, outside, factors()) for g in (weighted, plain)]
    assert errors[0] < 0.8 * errors[1], errors
    inside = alws.draw(factors(), key, 200)[0].x
    errors = [gradient_error(g, inside, factors()) for g in (weighted, plain)]
    assert 0.7 < errors[0] / errors[1] < 1.4, errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: alws.contrib.MeanMatching(most=1.0), "`most` must be greater than 1, got 1.0"),
        (lambda: alws.contrib.MeanMatching(slack=-0.1), "`slack` must be at least 0"),
        (
            lambda: alws.contrib.DensityRatio(ridge=0.0),
            "`ridge` must be positive, one finite number; got 0.0",
        ),
        (
            lambda: reweighted(regression=partial(alws.regressions.Nystrom, selection="learnt")),
            "must be sleep samples",
        ),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Location(eqx.Module):
    """x ~ N(mean, exp(2 log_scale)), z its noise."""

    mean: jax.Array
    log_scale: jax.Array

    def sample(self, key):
        z = jax.random.normal(key)
        return z, self.mean + jnp.exp(self.log_scale) * z

    def log_joint(self, z, x):
        return norm_logpdf(x, self.mean, jnp.exp(self.log_scale))


norm_logpdf = jax.scipy.stats.norm.logpdf


def test_over_dispersed_start_reaches_the_data_and_no_farther(key):
    data = 8 + jax.random.normal(key, (200,))
    model = Location(jnp.array(0.0), jnp.array(0.0))
    start = alws.contrib.over_dispersed(model, data, where=lambda m: m.log_scale, key=key)
    scale = float(jnp.exp(start.log_scale))
    # Data from 5.5 to 10.5: 500 draws reach them when their scale is a third to once as much.
    assert 2 < scale < 10, scale
    assert float(start.mean) == 0
    # On other sets of samples, too.
    assert mean_outside(start, data) < 0.06
    narrower = eqx.tree_at(lambda m: m.log_scale, start, start.log_scale - 0.3)
    assert mean_outside(narrower, data) > 0.06


def mean_outside(model, data, regression=None, sets=100):
    regression = (
        alws.regressions.KernelRidge(SquaredExponential()) if regression is None else regression
    )

    def outside(key):
        return regression.fit(alws.draw(model, key, 500)[0].x).outside(data)

    keys = jax.random.split(jax.random.key(50), sets)
    return float(eqx.filter_jit(lambda: jax.lax.map(outside, keys).mean())())


def test_over_dispersed_start_is_as_wide_as_two_quantiles_say(key):
    """A linear regression calls outside what lies beyond 99 % of the draws: |x| > 2.576 σ.

    Of data from N(0, s²) that is 5 % where 2.576 σ = 1.96 s.
    """
    data = 20 * jax.scipy.special.ndtri((jnp.arange(1000) + 0.5) / 1000)
    model = Location(jnp.array(0.0), jnp.array(0.0))
    regression = alws.regressions.LinearReadout(alws.features.Identity())
    start = alws.contrib.over_dispersed(
        model, data, where=lambda m: m.log_scale, key=key, regression=regression
    )
    assert float(jnp.exp(start.log_scale)) == pytest.approx(20 * 1.96 / 2.576, rel=0.05)
    assert mean_outside(start, data, regression) == pytest.approx(0.05, abs=0.01)


@pytest.mark.slow
def test_gradient_at_an_over_dispersed_start_is_better_where_data_lie_outside(key):
    data = jnp.array([6.0, 3.0]) + 0.3 * jax.random.normal(key, (60, 2))
    start = alws.contrib.over_dispersed(factors(), data, where=lambda m: m.log_noise, key=key)
    regression = alws.regressions.KernelRidge(SquaredExponential(), ridge=0.01)
    errors = [gradient_error(regression, data, model) for model in (start, factors())]
    assert errors[0] < 0.5 * errors[1], errors


def test_over_dispersed_leaves_a_model_that_covers_its_data(key):
    model = Location(jnp.array(0.0), jnp.array(0.0))
    data = 0.8 * jax.random.normal(key, (100,))
    assert alws.contrib.over_dispersed(model, data, where=lambda m: m.log_scale, key=key) is model


def test_over_dispersed_says_what_cannot_be_reached(key):
    model = Location(jnp.array(0.0), jnp.array(0.0))
    message = "at most 5% .* up to 2 times as wide it is 100% at best, on average over 16 sets"
    with pytest.raises(ValueError, match=message):
        alws.contrib.over_dispersed(
            model, jnp.full(20, 1e3), where=lambda m: m.log_scale, key=key, widen=2.0
        )
    with pytest.raises(ValueError, match="`where` must name floating-point arrays"):
        alws.contrib.over_dispersed(model, jnp.zeros(20), where=lambda m: 1.0, key=key)
