"""Gradients with transposes made first are the same, and no large product sums over rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alws.products import transposing_first

ROWS = 300


@pytest.fixture
def network():
    return eqx.nn.MLP(4, 280, 270, 2, key=jax.random.key(0))


def by_vector(network, z):
    return jax.vmap(network)(z)


def by_matrix(network, z):
    """The same weights, multiplied from the right."""
    for layer in network.layers[:-1]:
        z = jax.nn.relu(z @ layer.weight.T + layer.bias)
    return z @ network.layers[-1].weight.T + network.layers[-1].bias


def by_scan(network, z):
    """A loop, a branch and dropped outputs on the way."""
    (_, kept), _ = jax.lax.scan(lambda c, _: ((c[0] + 1, c[1] * 0.9), c[0]), (0, z), length=3)
    kept = jax.lax.cond(kept.sum() > 0, jnp.sin, jnp.cos, kept)
    return jax.jit(jnp.tanh)(jax.vmap(network)(kept))


def gradient(forward, network, transposing):
    z = jax.random.normal(jax.random.key(1), (ROWS, 4))
    out, pullback = eqx.filter_vjp(lambda n: forward(n, z), network)
    if transposing:
        return transposing_first(lambda: pullback(jnp.cos(out))[0])
    return pullback(jnp.cos(out))[0]


@pytest.mark.parametrize("forward", [by_vector, by_matrix, by_scan])
def test_gradients_are_the_same(forward, network):
    told = eqx.filter_jit(gradient)(forward, network, True)
    known = eqx.filter_jit(gradient)(forward, network, False)
    assert jax.tree.structure(told) == jax.tree.structure(known)
    for a, b in zip(jax.tree.leaves(told), jax.tree.leaves(known), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about the CPU's compiler")
@pytest.mark.parametrize("forward", [by_vector, by_matrix])
def test_no_large_product_sums_over_rows(forward, network):
    def large(transposing):
        program = eqx.filter_jit(gradient).lower(forward, network, transposing).compile()
        lines = [line for line in program.compiled.as_text().splitlines() if " dot(" in line]
        rows = [line for line in lines if "lhs_contracting_dims={0}" in line]
        return [line for line in rows if ",4]" not in line]  # the first layer's weights are small

    assert large(False), "XLA has changed: `alws.products` may no longer be needed"
    assert not large(True)


def test_a_constant_comes_back_as_it_is():
    assert transposing_first(lambda: (jnp.ones(()), [2.0])) == (1.0, [2.0])
