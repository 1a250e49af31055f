"""What looks at images: trunks from an image to features, and the encoder and critic on top of one.

A trunk is the generator's mirror image. `Architecture` says how a generator starts and which trunk
goes with it, so that every method has the same networks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from alws_paper.images.generators import DCGAN, Connected, ImageModel, Output
from alws_paper.shared.layers import Convolution
from alws_paper.shared.vae import DiagonalGaussian


@runtime_checkable
class Trunk(Protocol):
    """Image ↦ features, and how many features there are."""

    @property
    def features(self) -> int:
        """The number of features."""
        ...

    def __call__(self, x: Any) -> Float[Array, " features"]:
        """The features of one image."""
        ...


class ConvolutionalTrunk(eqx.Module):
    """channels → g → 2g → 4g by 4×4 convolutions that halve the sides, down to 4×4.

    The nonlinearity is ReLU, or leaky with `slope` below zero.

    Example: `ConvolutionalTrunk((1, 32, 32), width=64, key=key).features == 4096`.
    """

    layers: tuple[Convolution, ...]
    slope: float = eqx.field(static=True)
    features: int = eqx.field(static=True)

    def __init__(
        self, shape: tuple[int, int, int], *, width: int, slope: float = 0.0, key: Key[Array, ""]
    ):
        halvings = halvings_of(shape)
        widths = [shape[0], *(width * 2**d for d in range(halvings))]
        keys = jax.random.split(key, halvings)
        self.layers = tuple(
            Convolution(a, b, kernel=4, stride=2, padding=1, scale=(2 / (16 * a)) ** 0.5, key=k)
            for a, b, k in zip(widths, widths[1:], keys, strict=False)
        )
        self.slope = slope
        self.features = 16 * widths[-1]

    def __call__(self, x: Float[Array, "channels side side"]) -> Float[Array, " features"]:
        for layer in self.layers:
            x = jax.nn.leaky_relu(layer(x), self.slope)
        return x.ravel()


def halvings_of(shape: tuple[int, int, int]) -> int:
    """How often the sides are halved down to 4.

    Example: `halvings_of((1, 32, 32)) == 3`.
    """
    _, height, width = shape
    halvings = (height // 4).bit_length() - 1
    if height != width or halvings < 1 or height != 4 * 2**halvings:
        raise ValueError(
            f"convolutional networks take square images of side 8, 16, 32, …; got {height}×{width}."
            " Pad the images with zeros, or use fully connected networks."
        )
    return halvings


class ConnectedTrunk(eqx.Module):
    """pixels → hidden → hidden, fully connected, with the same nonlinearity after both.

    Example: `ConnectedTrunk((1, 32, 32), hidden=512, key=key).features == 512`.
    """

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    slope: float = eqx.field(static=True)
    features: int = eqx.field(static=True)

    def __init__(
        self, shape: tuple[int, int, int], *, hidden: int, slope: float = 0.0, key: Key[Array, ""]
    ):
        channels, height, width = shape
        keys = jax.random.split(key)
        self.first = eqx.nn.Linear(channels * height * width, hidden, key=keys[0])
        self.second = eqx.nn.Linear(hidden, hidden, key=keys[1])
        self.slope = slope
        self.features = hidden

    def __call__(self, x: Float[Array, "channels height width"]) -> Float[Array, " features"]:
        h = jax.nn.leaky_relu(self.first(x.ravel()), self.slope)
        return jax.nn.leaky_relu(self.second(h), self.slope)


class GaussianEncoder(eqx.Module):
    """x ↦ N(μ, diag σ²), μ and log σ linear in the trunk's features.

    Example: `GaussianEncoder(trunk, latents=16, key=key)(x).mean.shape == (16,)`.
    """

    trunk: Trunk
    last: eqx.nn.Linear

    def __init__(self, trunk: Trunk, *, latents: int, key: Key[Array, ""]):
        self.trunk = trunk
        self.last = eqx.nn.Linear(trunk.features, 2 * latents, key=key)

    def __call__(self, x: Any) -> DiagonalGaussian:
        return DiagonalGaussian(*jnp.split(self.last(self.trunk(x)), 2))


class Critic(eqx.Module):
    """x ↦ one number, linear in the trunk's features.

    Example: `Critic(trunk, key=key)(x)`.
    """

    trunk: Trunk
    last: eqx.nn.Linear

    def __init__(self, trunk: Trunk, *, key: Key[Array, ""]):
        self.trunk = trunk
        self.last = eqx.nn.Linear(trunk.features, 1, key=key)

    def __call__(self, x: Any) -> Float[Array, ""]:
        return self.last(self.trunk(x))[0]


@dataclass(frozen=True)
class Architecture:
    """How a generator starts, `start(key)`, and the trunk beside it, `trunk(key, slope)`."""

    start: Callable[[Key[Array, ""]], Any]
    trunk: Callable[[Key[Array, ""], float], Trunk]
    latents: int


def convolutional(
    output: Output,
    shape: tuple[int, int, int] = (1, 32, 32),
    *,
    width: int = 64,
    latents: int = 16,
    scale: float = 0.01,
) -> Architecture:
    """The DCGAN and its mirror image.

    Example: `convolutional(Binary(), (1, 32, 32), width=64).start(key)`.
    """
    doublings = halvings_of(shape)

    def start(key: Key[Array, ""]) -> ImageModel:
        network = DCGAN(
            width=width,
            channels=shape[0],
            latent=latents,
            doublings=doublings,
            scale=scale,
            key=key,
        )
        return ImageModel(network, output, latents)

    return Architecture(
        start,
        lambda key, slope: ConvolutionalTrunk(shape, width=width, slope=slope, key=key),
        latents,
    )


def connected(
    output: Output,
    shape: tuple[int, int, int] = (1, 32, 32),
    *,
    hidden: int = 512,
    latents: int = 16,
) -> Architecture:
    """16 → 512 → 512 → pixels, and pixels → 512 → 512.

    Example: `connected(Bounded(), (3, 32, 32)).start(key)`.
    """

    def start(key: Key[Array, ""]) -> ImageModel:
        network = Connected(shape, hidden=hidden, latent=latents, key=key)
        return ImageModel(network, output, latents)

    return Architecture(
        start,
        lambda key, slope: ConnectedTrunk(shape, hidden=hidden, slope=slope, key=key),
        latents,
    )


__all__ = [
    "Architecture",
    "ConnectedTrunk",
    "ConvolutionalTrunk",
    "Critic",
    "GaussianEncoder",
    "Trunk",
    "connected",
    "convolutional",
]
