"""The network's implicit derivative against ridge regression, finite differences and the truth."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import LinearGaussian
from jax.flatten_util import ravel_pytree

import alws
from alws.features import Network


def flat(tree):
    return np.asarray(ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0])


def model():
    return LinearGaussian(jnp.array([[1.0], [0.5]]), jnp.array([0.0, 0.5]), jnp.array([-0.5, -0.5]))


def powers(x):
    return jnp.concatenate([x, x**2, x[:1] * x[1:]])


class Linear(eqx.Module):
    weight: jax.Array

    def __call__(self, x):
        return self.weight @ x


@eqx.filter_jit
def gradient(estimate, smoother, sleep, wake):
    held = estimate.weigh(model(), smoother, sleep, wake, None)
    return eqx.filter_grad(lambda m: estimate.objective(m, sleep, held, None))(model())


def test_a_linear_network_is_ridge_regression(key):
    """λ of the readout is that of features divided by √5."""
    sleep = alws.draw(model(), key, 200)[0]
    wake = alws.draw(model(), jax.random.key(1), 30)[0].x + 0.5
    smoother = alws.regressions.LinearReadout(Network(powers), ridge=0.3, reach=5.0).fit(sleep.x)
    network = alws.contrib.ImplicitNetwork(
        Linear(jnp.full(5, 0.7)), Network(powers), ridge=1.5, damping=0.0, steps=3, newton=1
    )
    trained = eqx.filter_jit(network.train)(sleep.x, jax.vmap(model().log_joint)(*sleep))
    expected = alws.estimates.Joint().predict(model(), smoother, sleep, wake, None)
    np.testing.assert_allclose(network.predicted(trained, wake), expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(
        flat(gradient(network, smoother, sleep, wake)),
        flat(gradient(alws.estimates.Joint(), smoother, sleep, wake)),
        rtol=1e-3,
        atol=1e-4,
    )


def test_weights_are_the_derivative_of_training_anew_in_the_targets(key):
    """Against finite differences of the whole training, in double precision."""
    with jax.enable_x64(True):
        x = jax.random.normal(key, (40, 1), jnp.float64)
        y = jnp.sin(2 * x[:, 0]) + 0.3 * jnp.cos(17 * x[:, 0])
        inner = eqx.nn.MLP(1, "scalar", 3, 1, jnp.tanh, dtype=jnp.float64, key=key)
        network = alws.contrib.ImplicitNetwork(
            inner, ridge=0.5, damping=0.0, steps=200, newton=400, iterations=20
        )
        points, cotangents = x[:7] + 0.1, jnp.arange(1.0, 8.0)
        centred = y - y.mean()
        moves = jax.random.normal(jax.random.key(1), (3, 40), jnp.float64)
        moves = moves - (moves @ centred / (centred @ centred))[:, None] * centred

        @jax.jit
        def total(y):
            return network.predicted(network.train(x, y), points) @ cotangents

        weights = network.pull_back(network.train(x, y), x, y, points, cotangents)
        for move in moves:
            difference = float(total(y + 1e-4 * move) - total(y - 1e-4 * move)) / 2e-4
            assert float(weights @ move) == pytest.approx(difference, rel=2e-3)


def test_gradient_of_a_trained_network_is_near_the_exact_one(key):
    wake = alws.draw(model(), jax.random.key(1), 100)[0].x + jnp.array([0.6, 0.0])
    exact = flat(eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(wake).mean())(model()))
    network = alws.contrib.ImplicitNetwork(
        eqx.nn.MLP(2, "scalar", 16, 1, jnp.tanh, key=key), ridge=1.0
    )
    smoother = alws.regressions.LinearReadout(Network(powers)).fit(wake)

    @eqx.filter_jit
    def one(key):
        sleep = alws.draw(model(), key, 2000)[0]
        held = network.weigh(model(), smoother, sleep, wake, None)
        return eqx.filter_grad(lambda m: network.objective(m, sleep, held, None))(model())

    found = np.stack([flat(one(k)) for k in jax.random.split(key, 3)]).mean(axis=0)
    assert np.linalg.norm(found - exact) < 0.25 * np.linalg.norm(exact), (found, exact)


def test_a_network_must_have_something_to_train():
    with pytest.raises(ValueError, match="`network` must have floating-point arrays to train"):
        alws.contrib.ImplicitNetwork(jnp.sum)
