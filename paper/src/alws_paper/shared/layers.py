"""Convolutional layers for one example, vectorised by `vmap` into a few large matrix products.

They have the weights and the results of Equinox's own, and are many times faster on a CPU: see
`alws_paper.shared.convolutions`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from alws.validation import at_least
from alws_paper.shared.convolutions import strided_convolution, transposed_convolution


class TransposedConvolution(eqx.Module):
    """Transposed convolution of `[channels, height, width]`, equal to `eqx.nn.ConvTranspose2d`.

    The sides grow from h to (h − 1)·stride + kernel − 2·padding.

    Example: `TransposedConvolution(256, 128, kernel=4, stride=2, padding=1, key=key)` doubles them.
    """

    weight: Float[Array, "inputs outputs kernel kernel"]
    bias: Float[Array, " outputs"] | None
    stride: int = eqx.field(static=True)
    padding: int = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        scale: float | None = None,
        key: Key[Array, ""],
    ):
        """Weights N(0, scale²), by default scale² = stride²/(inputs·kernel²); bias 0."""
        _check(inputs, outputs, kernel, stride, padding)
        width = stride / (kernel * inputs**0.5) if scale is None else scale
        self.weight = width * jax.random.normal(key, (inputs, outputs, kernel, kernel))
        self.bias = jnp.zeros(outputs) if bias else None
        self.stride, self.padding = stride, padding

    def __call__(
        self, x: Float[Array, "inputs height width"], *, key: Any = None
    ) -> Float[Array, "outputs taller wider"]:
        """The image, larger by the stride; `key` is ignored."""
        y = transposed_convolution(x[None], self.weight, stride=self.stride, padding=self.padding)[
            0
        ]
        return y if self.bias is None else y + self.bias[:, None, None]


class Convolution(eqx.Module):
    """Strided convolution of `[channels, height, width]`, equal to `eqx.nn.Conv2d`.

    The sides must fit: height + 2·padding − kernel must be a multiple of the stride.

    Example: `Convolution(1, 64, kernel=4, stride=2, padding=1, key=key)` halves them.
    """

    weight: Float[Array, "outputs inputs kernel kernel"]
    bias: Float[Array, " outputs"] | None
    stride: int = eqx.field(static=True)
    padding: int = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        scale: float | None = None,
        key: Key[Array, ""],
    ):
        """Weights N(0, scale²), by default scale² = 1/(inputs·kernel²); bias 0."""
        _check(inputs, outputs, kernel, stride, padding)
        width = 1 / (kernel * inputs**0.5) if scale is None else scale
        self.weight = width * jax.random.normal(key, (outputs, inputs, kernel, kernel))
        self.bias = jnp.zeros(outputs) if bias else None
        self.stride, self.padding = stride, padding

    def __call__(
        self, y: Float[Array, "inputs height width"], *, key: Any = None
    ) -> Float[Array, "outputs lower narrower"]:
        """The image, smaller by the stride; `key` is ignored."""
        x = strided_convolution(y[None], self.weight, stride=self.stride, padding=self.padding)[0]
        return x if self.bias is None else x + self.bias[:, None, None]


def _check(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> None:
    at_least("inputs", inputs, 1)
    at_least("outputs", outputs, 1)
    at_least("stride", stride, 1)
    at_least("kernel", kernel, stride, " A kernel smaller than the stride leaves gaps.")
    at_least("padding", padding, 0)
    if padding >= kernel:
        raise ValueError(f"`padding` must be below the kernel's size {kernel}, got {padding}.")


__all__ = ["Convolution", "TransposedConvolution"]
