"""The linear readout against the kernel ridge regression it equals, and features that follow."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import alws
from alws.features import Following, Linear, Network, follow
from alws.kernels import DotProduct
from alws.regressions import KernelRidge, LinearReadout


def summaries(x):
    return jnp.concatenate([x, x**2, jnp.sin(x)])


def test_readout_equals_kernel_ridge_with_the_dot_product(key):
    x = 2 * jax.random.normal(key, (60, 3)) + 1
    new = x[:7] + 0.5
    targets = jnp.stack([jnp.cos(x[:, 0]), x[:, 1] * x[:, 2]], axis=1)
    dual = KernelRidge(DotProduct(Network(summaries)), ridge=0.05).fit(x)
    primal = LinearReadout(Network(summaries), ridge=0.05).fit(x)
    np.testing.assert_allclose(primal.weights(new), dual.weights(new), atol=2e-4)
    np.testing.assert_allclose(
        primal.predict(new, targets), dual.predict(new, targets), rtol=1e-3, atol=1e-3
    )
    cotangents = jax.random.normal(key, (7, 2))
    np.testing.assert_allclose(
        primal.predict_vjp(new, cotangents), dual.predict_vjp(new, cotangents), atol=1e-3
    )
    np.testing.assert_allclose(primal.weights(new).sum(axis=1), 1.0, rtol=1e-4)


def test_gradient_in_the_ridge_is_that_of_the_kernel_form(key):
    x = jax.random.normal(key, (40, 3))
    target = jnp.sin(3 * x[:, :1])

    def error(regression):
        return jnp.mean((regression.fit(x[:30]).predict(x[30:], target[:30]) - target[30:]) ** 2)

    dual = eqx.filter_grad(error)(KernelRidge(DotProduct(Network(summaries)), ridge=0.1))
    primal = eqx.filter_grad(error)(LinearReadout(Network(summaries), ridge=0.1))
    np.testing.assert_allclose(primal.log_ridge, dual.log_ridge, rtol=1e-3)


def test_points_far_out_are_outside(key):
    x = jax.random.normal(key, (300, 3))
    fitted = LinearReadout(Network(summaries)).fit(x)
    assert fitted.outside(x) < 0.02
    assert fitted.outside(x[:10] + 8.0) == 1.0


class Projected(eqx.Module):
    """x = W z + noise, with W learnt."""

    weight: jax.Array

    def sample(self, key):
        z = jax.random.laplace(key, self.weight.shape[1:])
        return z, self.weight @ z + 0.1 * jax.random.normal(jax.random.fold_in(key, 1), (3,))

    def log_joint(self, z, x):
        return -jnp.abs(z).sum() - 50 * jnp.sum((x - self.weight @ z) ** 2)


def test_features_follow_the_model(key):
    model = Projected(jax.random.normal(key, (3, 2)))
    following = LinearReadout(Following(lambda m: Linear(jnp.linalg.pinv(m.weight).T)))
    x = alws.draw(model, key, 50)[0].x
    placed = follow(following, model)
    np.testing.assert_allclose(
        placed.features(x), x @ jnp.linalg.pinv(model.weight).T, rtol=1e-4, atol=1e-4
    )
    moved = eqx.tree_at(lambda m: m.weight, model, 2 * model.weight)
    np.testing.assert_allclose(
        follow(following, moved).features(x), placed.features(x) / 2, rtol=1e-4, atol=1e-4
    )
    settings = alws.Settings(regression=following, sleep_samples=50, validation_samples=20)
    result = alws.fit(model, x, key=key, steps=3, settings=settings)
    assert not np.allclose(result.model.weight, model.weight)
    assert result.diagnostics["refused_steps"] == 0


def test_features_that_follow_say_so_when_used_alone():
    with pytest.raises(ValueError, match="must be given it before"):
        Following(lambda m: Linear(m.weight))(jnp.ones((4, 3)))


@pytest.mark.parametrize("bad", [{"ridge": 0.0}, {"reach": -1.0}])
def test_bad_settings(bad):
    with pytest.raises(ValueError, match="must be positive"):
        LinearReadout(Network(summaries), **bad)
