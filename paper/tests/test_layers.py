"""Convolutional layers against Equinox's own, gradients included."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alws_paper.shared import convolutions
from alws_paper.shared.layers import Convolution, TransposedConvolution

SIZES = [(4, 2, 1), (5, 3, 1)]


def theirs_up(layer, x):
    inputs, outputs, kernel, _ = layer.weight.shape
    other = eqx.nn.ConvTranspose2d(
        inputs,
        outputs,
        kernel,
        layer.stride,
        padding=layer.padding,
        key=jax.random.key(0, impl="rbg"),
    )
    weight = layer.weight[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    other = eqx.tree_at(lambda m: (m.weight, m.bias), other, (weight, layer.bias[:, None, None]))
    return other(x)


def theirs_down(layer, x):
    outputs, inputs, kernel, _ = layer.weight.shape
    other = eqx.nn.Conv2d(
        inputs, outputs, kernel, layer.stride, layer.padding, key=jax.random.key(0, impl="rbg")
    )
    other = eqx.tree_at(
        lambda m: (m.weight, m.bias), other, (layer.weight, layer.bias[:, None, None])
    )
    return other(x)


def both(make, theirs, quick, kernel, stride, padding, side):
    """Values and gradients of a batch through our layer and theirs, chunks of two examples."""
    layer = make(3, 2, kernel=kernel, stride=stride, padding=padding, key=quick)
    layer = eqx.tree_at(lambda m: m.bias, layer, jnp.array([0.5, -1.0]))
    x = jax.random.normal(quick, (5, 3, side, side + stride))

    def result(apply):
        def loss(layer_and_x):
            layer, x = layer_and_x
            y = jax.vmap(lambda image: apply(layer, image))(x)
            return jnp.sum(jnp.sin(y)), y

        return eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))((layer, x))

    return result(lambda m, image: m(image)), result(theirs)


@pytest.mark.parametrize(("kernel", "stride", "padding"), SIZES)
def test_transposed_convolution_is_that_of_equinox(quick, monkeypatch, kernel, stride, padding):
    monkeypatch.setattr(convolutions, "CHUNK", 2 * 4 * (4 + stride) * 2 * kernel**2)
    ours, theirs = both(TransposedConvolution, theirs_up, quick, kernel, stride, padding, 4)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kernel", "stride", "padding"), SIZES)
def test_convolution_is_that_of_equinox(quick, monkeypatch, kernel, stride, padding):
    side = 3 * stride + kernel - 2 * padding
    monkeypatch.setattr(convolutions, "CHUNK", 2 * 4 * 5 * 3 * kernel**2)
    ours, theirs = both(Convolution, theirs_down, quick, kernel, stride, padding, side)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_products_agree_with_xla_for_all_three(quick):
    """What other devices run is the same function."""
    x, w = jax.random.normal(quick, (5, 3, 4, 6)), jax.random.normal(quick, (3, 2, 5, 5))
    y = convolutions.up_by_xla(x, w, s=3, p=1)
    pairs = [
        (convolutions.up_by_products(x, w, s=3, p=1), y),
        (convolutions.down_by_products(y, w, s=3, p=1), convolutions.down_by_xla(y, w, s=3, p=1)),
        (
            convolutions.kernel_by_products(x, y, k=5, s=3, p=1),
            convolutions.kernel_by_xla(x, y, k=5, s=3, p=1),
        ),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_second_derivatives_forwards_and_backwards_are_those_of_xla(quick):
    x, w = jax.random.normal(quick, (1, 2, 2, 2)), jax.random.normal(quick, (2, 1, 3, 3))

    def hessian(up, down):
        def loss(w):
            return jnp.sum(jnp.tanh(down(jnp.tanh(up(x, w)), w)))

        return jax.jit(jax.hessian(loss))(w)

    ours = hessian(
        lambda x, w: convolutions.transposed_convolution(x, w, stride=2, padding=1),
        lambda y, w: convolutions.strided_convolution(y, w, stride=2, padding=1),
    )
    theirs = hessian(
        lambda x, w: convolutions.up_by_xla(x, w, s=2, p=1),
        lambda y, w: convolutions.down_by_xla(y, w, s=2, p=1),
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_every_example_may_have_its_own_kernel_and_kernel_gradient(quick):
    x, w = jax.random.normal(quick, (3, 1, 2, 3, 3)), jax.random.normal(quick, (3, 2, 2, 3, 3))

    @jax.jit
    def gradient(x, w):
        return jax.grad(
            lambda w: jnp.sum(convolutions.transposed_convolution(x, w, stride=2, padding=1) ** 2)
        )(w)

    one_by_one = jnp.stack([gradient(*pair) for pair in zip(x, w, strict=True)])
    np.testing.assert_allclose(jax.vmap(gradient)(x, w), one_by_one, rtol=1e-4, atol=1e-4)
    shared = jnp.stack([gradient(image, w[0]) for image in x])
    np.testing.assert_allclose(jax.vmap(gradient, (0, None))(x, w[0]), shared, rtol=1e-4, atol=1e-4)


def test_sizes_that_do_not_fit_are_refused(quick):
    with pytest.raises(ValueError, match="multiples of the stride 2"):
        Convolution(1, 1, kernel=4, stride=2, padding=1, key=quick)(jnp.zeros((1, 5, 4)))
    with pytest.raises(ValueError, match="leaves gaps"):
        TransposedConvolution(1, 1, kernel=2, stride=3, key=quick)
    with pytest.raises(ValueError, match="`padding` must be below"):
        TransposedConvolution(1, 1, kernel=2, stride=2, padding=2, key=quick)
