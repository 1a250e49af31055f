"""Conjugate gradients against the exact regression they solve."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import alws
from alws import devices as blocks
from alws.features import Linear
from alws.kernels import Matern32, Pairwise, SquaredExponential
from alws.regressions import ConjugateGradients, KernelRidge, Smoother, iterative
from alws.regressions.iterative import conjugate_gradients, product, symmetric_product
from alws.wake_sleep import WakeSleep


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles and blocks, the last of them not full."""
    monkeypatch.setattr(iterative, "TILE", 32)
    monkeypatch.setattr(iterative, "ENTRIES", 150 * 40)


@pytest.fixture
def sleep(key):
    x = jax.random.normal(key, (150, 3))
    return x, jnp.stack([jnp.sin(x[:, 0]) + 5, x[:, 1] * x[:, 2]], axis=1)


def kernel():
    return SquaredExponential(bandwidth=1.5) + Matern32(Linear(jnp.eye(3)), bandwidth=2.0)


def test_products_are_those_of_the_whole_matrix(sleep, small_tiles):
    x, y = sleep
    a = kernel().embed(x)
    few = jax.tree.map(lambda u: u[:7], a)

    @eqx.filter_jit
    def products():
        k = kernel()
        return (
            k.evaluate(a, a) @ y,
            symmetric_product(k, a, y),
            product(k, a, a, y),
            product(k, few, a, y),
        )

    expected, *found = products()
    for some in found:
        np.testing.assert_allclose(some, expected[: len(some)], rtol=1e-4)


@eqx.filter_jit
def answers(regression, x, y, new):
    """Everything a smoother says, compiled at once; fewer and more columns than points."""
    smoother = regression.fit(x)
    assert isinstance(smoother, Smoother)
    pulled = [smoother.predict_vjp(new, c) for c in (new, jnp.ones((new.shape[0], 30)))]
    return smoother.weights(new), smoother.predict(new, y), *pulled


@pytest.mark.parametrize("intercept", [pytest.param(False, marks=pytest.mark.slow), True])
def test_it_agrees_with_kernel_ridge_regression_to_the_tolerance(sleep, small_tiles, intercept):
    with jax.enable_x64(True):
        x, y = (jnp.asarray(np.asarray(a), jnp.float64) for a in sleep)
        new = x[:20] + 0.3
        exact = KernelRidge(kernel(), ridge=0.1, intercept=intercept)
        found = ConjugateGradients(
            kernel(), ridge=0.1, rank=30, tolerance=1e-10, intercept=intercept
        )
        for ours, theirs in zip(answers(found, x, y, new), answers(exact, x, y, new), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-7)


def test_the_residual_is_reported_and_the_preconditioner_saves_iterations(sleep):
    x, y = sleep
    gram = np.asarray(kernel()(x, x), np.float64) + 0.01 * np.eye(150)
    iterations = {}
    solve = eqx.filter_jit(lambda regression: regression.fit(x).solve(y))
    for rank in (1, 60):
        found = solve(ConjugateGradients(kernel(), rank=rank, tolerance=1e-3))
        residual = np.linalg.norm(gram @ np.asarray(found.value, np.float64) - y, axis=0)
        np.testing.assert_allclose(found.residual, residual / np.linalg.norm(y, axis=0), atol=3e-4)
        assert (found.residual <= 1e-3).all()
        iterations[rank] = int(found.iterations)
    assert 0 < iterations[60] < iterations[1] / 2, iterations
    short = solve(ConjugateGradients(kernel(), rank=1, tolerance=1e-3, most_iterations=2))
    assert short.iterations == 2
    assert (short.residual > 1e-3).all()


def test_gradient_in_gamma_is_that_of_kernel_ridge_regression(sleep, small_tiles):
    """Through σ, λ, the weights of a sum and its features, with blocks in the backward pass."""
    with jax.enable_x64(True):
        x, y = (jnp.asarray(np.asarray(a), jnp.float64) for a in sleep)

        def loss(gamma):
            smoother = gamma.fit(x)
            one = jnp.sum(smoother.predict(x[:9] + 0.3, y) ** 2)
            return one + jnp.sum(jnp.sin(smoother.predict_vjp(x[:9] + 0.3, y[:9])))

        gradient = eqx.filter_jit(eqx.filter_grad(loss))
        exact = gradient(KernelRidge(kernel(), ridge=0.1))
        found = gradient(ConjugateGradients(kernel(), ridge=0.1, rank=30, tolerance=1e-12))
        for a, b in zip(
            jax.tree.leaves((found.log_ridge, found.kernel)),
            jax.tree.leaves((exact.log_ridge, exact.kernel)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_columns_stop_on_their_own_and_a_zero_column_stays_zero(key):
    a = jnp.diag(jnp.linspace(1, 50, 40))
    b = jnp.stack([jnp.zeros(40), jnp.eye(40)[3], jnp.ones(40)], axis=1)
    found = conjugate_gradients(lambda v: a @ v, b, lambda r: r, 1e-5, 200)
    np.testing.assert_allclose(found.value, b / jnp.diagonal(a)[:, None], atol=1e-5)
    assert (found.residual <= 1e-5).all()


def test_samples_that_coincide_do_not_break_it():
    x = jnp.zeros((60, 2))
    same = SquaredExponential(bandwidth=1.0)

    @eqx.filter_jit
    def weights(regression):
        smoother = regression.fit(x)
        return smoother.weights(x[:2]), smoother.report(x[:2]).escalations

    found, _ = weights(ConjugateGradients(same, rank=20, ridge=0.1))
    np.testing.assert_allclose(found, 1 / 60, atol=1e-5)
    found, _ = weights(ConjugateGradients(same, rank=20, ridge=1e-12))
    np.testing.assert_allclose(found, 1 / 60, atol=1e-3)
    indefinite = Pairwise(lambda a, b: -1.0 - jnp.sum((a - b) ** 2))
    found, escalations = weights(ConjugateGradients(indefinite, rank=20, ridge=0.1))
    assert escalations > 0
    assert jnp.isfinite(found).all()


# Solves that fail ---------------------------------------------------------------------------------

BROKEN = Pairwise(lambda a, b: jnp.nan * jnp.sum(a - b))
INDEFINITE = Pairwise(lambda a, b: -1.0 - jnp.sum((a - b) ** 2))


def test_a_preconditioner_that_is_not_finite_gives_no_solution():
    b = jnp.ones((4, 2))
    found = conjugate_gradients(lambda v: v, b, lambda r: r * jnp.array([1, jnp.nan]), 1e-5, 9)
    np.testing.assert_array_equal(found.value, jnp.array([[1, jnp.nan]] * 4))
    assert jnp.isnan(found.residual[1])


@pytest.mark.parametrize(
    ("regression", "message"),
    [
        (ConjugateGradients(BROKEN, rank=20), "must be positive definite .*`rank` 20 its factor"),
        (
            ConjugateGradients(INDEFINITE, rank=20),
            r"of 0.1 on .* got [1-9]\d* in 100 .* larger `ridge`",
        ),
        (
            ConjugateGradients(
                SquaredExponential(bandwidth=0.3), rank=1, ridge=1e-4, most_iterations=1
            ),
            "in 1 iterations with `rank` 1. Use a larger `ridge`, more iterations",
        ),
    ],
)
def test_solves_that_fail_at_the_start_are_refused(sleep, regression, message):
    with pytest.raises(ValueError, match=message):
        regression.check(sleep[0])


class Line(eqx.Module):
    mean: jax.Array

    def sample(self, key):
        z, *noise = jax.random.normal(key, (3,))
        return z, self.mean + z + jnp.array(noise)

    def log_joint(self, z, x):
        return -0.5 * z**2 - 0.5 * jnp.sum((x - self.mean - z) ** 2)


def fit(most):
    kernel = SquaredExponential(bandwidth=0.3)
    regression = ConjugateGradients(kernel, rank=2, ridge=0.01, most_iterations=most)
    settings = alws.Settings(regression, sleep_samples=60, adapt=alws.ALWS_F, measure_every=2)
    data = np.random.default_rng(0).normal(size=(30, 2))
    return alws.fit(Line(jnp.zeros(2)), data, key=jax.random.key(0), steps=4, settings=settings)


def test_a_fit_measures_how_far_from_solved_it_is():
    result = fit(most=8)
    assert np.isfinite(result.metrics["solver_residual"][:2]).all()
    assert np.isnan(result.metrics["solver_residual"][2])  # the last step measures nothing
    assert 1e-3 < result.diagnostics["solver_residual"] < 1
    assert result.diagnostics["solver_residual"] == result.metrics["solver_residual"][:2].max()


def test_a_fit_whose_solves_fail_does_not_begin():
    with pytest.raises(ValueError, match=r"in 1 iterations with `rank` 2"):
        fit(most=1)


@pytest.mark.parametrize(
    "regression", [pytest.param(KernelRidge, marks=pytest.mark.slow), ConjugateGradients]
)
def test_a_step_without_a_factor_is_refused_and_counted(key, regression):
    more = {"rank": 10} if regression is ConjugateGradients else {}
    algorithm = WakeSleep(
        regression(BROKEN, **more), alws.estimates.Joint(), optax.sgd(0.1), 40, 8, alws.ALWS_F
    )
    model = Line(jnp.zeros(2))
    state = algorithm.init(model, alws.draw(model, key, 40)[0])
    state, info = eqx.filter_jit(algorithm.step)(state, jnp.ones((5, 2)), key)
    assert not info.accepted
    assert state.counts.refused_steps == 1
    np.testing.assert_array_equal(state.model.mean, 0)


def test_blocks_give_what_the_whole_gives(key):
    x = jax.random.normal(key, (23, 2))
    np.testing.assert_array_equal(blocks.by_blocks(jnp.sin, x, 5), jnp.sin(x))
    keys = jax.random.split(key, 23)
    draw = jax.vmap(jax.random.normal)
    np.testing.assert_array_equal(blocks.by_blocks(draw, keys, 5), draw(keys))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"ridge": 0.0}, "`ridge` must be positive"),
        ({"rank": 0}, "`rank` must be a whole number of at least 1"),
        ({"tolerance": 0.0}, "`tolerance` must lie between 0 and 1, got 0.0"),
        ({"most_iterations": 0}, "`most_iterations` must be a whole number"),
        ({"selection": "learnt"}, "`selection` must be one of"),
    ],
)
def test_bad_settings(bad, message):
    with pytest.raises(ValueError, match=message):
        ConjugateGradients(kernel(), **bad)


def test_a_preconditioner_larger_than_the_problem_is_refused(sleep):
    with pytest.raises(ValueError, match="`rank` must be at most the number of sleep samples, 150"):
        ConjugateGradients(kernel(), rank=151).fit(sleep[0])
