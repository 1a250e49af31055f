"""Fits with the regressions that scale, against an exact likelihood, and steps in blocks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from exact import PROBLEMS, maximum_likelihood, mean_log_likelihood

import alws
from alws import devices as blocks
from alws.kernels import SquaredExponential
from alws.model import log_joints
from alws.regressions import feature_ridge

KERNEL = SquaredExponential(bandwidth=0.3, track=True)  # much too narrow: there is much to adapt
MODELS = {
    "nystrom": alws.regressions.Nystrom(KERNEL, inducing=100, ridge=0.05),
    "learnt": alws.regressions.Nystrom(KERNEL, inducing=100, ridge=0.05, selection="learnt"),
    "random features": alws.regressions.RandomFeatures(KERNEL, frequencies=100, ridge=0.05),
    "conjugate gradients": alws.regressions.ConjugateGradients(KERNEL, rank=50, ridge=0.05),
}


def reaches_the_maximum(regression):
    problem = PROBLEMS["beta_bernoulli"](jax.random.key(0))
    settings = alws.Settings(regression, sleep_samples=400, adapt=alws.Adapt(ridge=False))
    result = alws.fit(
        problem.start, problem.data, key=jax.random.key(1), steps=400, settings=settings
    )
    best = maximum_likelihood(problem.truth, problem.data, problem.start)[1]
    gap = best - mean_log_likelihood(result.model, problem.data)
    assert gap < 0.02, f"{gap:.4f} nats per data point below the maximum, {result.diagnostics}"
    assert result.diagnostics["refused_steps"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_fit_with_each_reaches_the_maximum_likelihood(name):
    reaches_the_maximum(MODELS[name])


class Line(eqx.Module):
    """x_i = a_i z + noise, in four dimensions."""

    slope: jax.Array

    def sample(self, key):
        normal = jax.random.normal(key, (5,))
        return normal[0], self.slope * normal[0] + normal[1:]

    def log_joint(self, z, x):
        return -0.5 * z**2 - 0.5 * jnp.sum((x - self.slope * z) ** 2)


@pytest.mark.parametrize(
    "name",
    [
        "random features",
        *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if "features" not in name),
    ],
)
def test_adaptation_moves_the_bandwidth_and_lowers_the_held_out_error(name):
    start = MODELS[name]
    model = Line(2 * jnp.ones(4))
    sleep, held_out = (alws.draw(model, jax.random.key(i), 300)[0] for i in (7, 8))
    settings = alws.Settings(
        start, optimiser=optax.sgd(0.0), sleep_samples=200, adapt=alws.Adapt(ridge=False)
    )
    gamma = alws.fit(model, sleep.x, key=jax.random.key(0), steps=60, settings=settings).regression
    first = start.initialise(sleep.x)
    assert gamma.log_ridge == first.log_ridge
    assert gamma.kernel.log_bandwidth > first.kernel.log_bandwidth + 0.3
    if name == "learnt":
        assert not np.allclose(gamma.points, first.points)

    @eqx.filter_jit
    def error(gamma):
        y, truth = (jax.vmap(model.log_joint)(*draws) for draws in (sleep, held_out))
        predicted = gamma.fit(sleep.x).predict(held_out.x, y[:, None])[:, 0]
        return jnp.mean((predicted - truth) ** 2)

    assert error(gamma) < 0.9 * error(first)


def test_draws_densities_and_their_gradient_are_the_same_in_blocks(monkeypatch):
    def everything():
        @eqx.filter_jit
        def draw_and_score(model, weights):
            draws, _ = alws.draw(model, jax.random.key(0), 90)
            score = lambda m: weights @ log_joints(m, draws)  # noqa: E731
            return draws, eqx.filter_value_and_grad(score)(model)

        return draw_and_score(Line(jnp.ones(4)), jnp.sin(jnp.arange(90.0)))

    whole = everything()
    monkeypatch.setattr(blocks, "ROWS", 40)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(everything()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_features_in_blocks_give_the_same_regression(monkeypatch):
    x = jax.random.normal(jax.random.key(1), (90, 4))

    def gradient():
        def error(gamma):
            return jnp.mean((gamma.fit(x[:70]).predict(x[70:], x[:70]) - x[70:]) ** 2)

        return eqx.filter_jit(eqx.filter_value_and_grad(error))(MODELS["random features"])

    whole = gradient()
    monkeypatch.setattr(feature_ridge, "ROWS", 30)
    for a, b in zip(
        *(jax.tree.leaves(eqx.filter(t, eqx.is_inexact_array)) for t in (whole, gradient())),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
