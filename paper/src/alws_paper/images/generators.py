"""Generators of images, §4.7: a network from latents to pixels, and what is seen of its output.

    z ~ N(0, I_16),   x | z ~ p(x | NN_w(z))

`DCGAN` is the published network without its last layer, transposed convolutions that double the
sides from 4 to 32; `Connected` is 16 → 512 → 512 → pixels. Both have ReLU between layers. The
output decides the likelihood: `Binary` is Bernoulli with sigmoid means, `Bounded` Gaussian with
tanh means, `Unbounded` Gaussian with linear means; Gaussian noise is one learnt number, from σ = 1.

Images are `[channels, side, side]`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.likelihoods import Bernoulli, Gaussian, Likelihood
from alws.validation import at_least
from alws_paper.shared.layers import TransposedConvolution

SQUEEZE = 1e-4
"""Bernoulli means stay this far from 0 and 1."""


class DCGAN(eqx.Module):
    """z ↦ image: g·2^(d−1) channels of 4×4, then d doublings, halving the channels; no bias.

    With d = 3 that is 16 → 4g → 2g → g → channels, 4×4 to 32×32. Weights start N(0, scale²).

    Example: `DCGAN(width=64, channels=3, key=key)(z).shape == (3, 32, 32)`.
    """

    first: Float[Array, "latent deep 4 4"]
    rest: tuple[TransposedConvolution, ...]

    def __init__(
        self,
        *,
        width: int = 64,
        channels: int = 1,
        latent: int = 16,
        doublings: int = 3,
        scale: float = 0.01,
        key: Key[Array, ""],
    ):
        for name, value in (("width", width), ("channels", channels), ("latent", latent)):
            at_least(name, value, 1)
        at_least("doublings", doublings, 1)
        first_key, *keys = jax.random.split(key, doublings + 1)
        widths = [*(width * 2**d for d in reversed(range(doublings))), channels]
        self.first = scale * jax.random.normal(first_key, (latent, widths[0], 4, 4))
        self.rest = tuple(
            TransposedConvolution(
                a, b, kernel=4, stride=2, padding=1, bias=False, scale=scale, key=k
            )
            for a, b, k in zip(widths, widths[1:], keys, strict=False)
        )

    def __call__(self, z: Float[Array, " latent"]) -> Float[Array, "channels side side"]:
        h = jnp.tensordot(z, self.first, axes=1)
        for layer in self.rest:
            h = layer(jax.nn.relu(h))
        return h


class Connected(eqx.Module):
    """z ↦ image through fully connected layers, latent → hidden → hidden → pixels.

    Example: `Connected((1, 32, 32), hidden=512, key=key)(z).shape == (1, 32, 32)`.
    """

    network: eqx.nn.MLP
    shape: tuple[int, int, int] = eqx.field(static=True)

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        hidden: int = 512,
        layers: int = 2,
        latent: int = 16,
        key: Key[Array, ""],
    ):
        channels, height, width = shape
        self.network = eqx.nn.MLP(latent, channels * height * width, hidden, layers, key=key)
        self.shape = shape

    def __call__(self, z: Float[Array, " latent"]) -> Float[Array, "channels height width"]:
        return self.network(z).reshape(self.shape)


class Output(eqx.Module):
    """What is seen of a network's output."""

    @abstractmethod
    def mean(self, raw: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """E[x | z], the picture without noise."""

    @abstractmethod
    def likelihood(self, raw: Float[Array, "*shape"]) -> Likelihood:
        """p(x | z)."""


class Binary(Output):
    """Pixels 0 or 1 with means ε + (1 − 2ε)·sigmoid(raw), ε = 1e-4.

    Example: `Binary().mean(jnp.zeros((1, 32, 32)))` is 0.5 everywhere.
    """

    def mean(self, raw: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return SQUEEZE + (1 - 2 * SQUEEZE) * jax.nn.sigmoid(raw)

    def likelihood(self, raw: Float[Array, "*shape"]) -> Bernoulli:
        return Bernoulli(jnp.log(self.mean(raw)) - jnp.log(self.mean(-raw)))


class Noisy(Output):
    """Pixels N(mean, σ²) with one learnt σ."""

    log_noise: Float[Array, ""]

    def __init__(self, noise: float = 1.0):
        self.log_noise = jnp.log(jnp.asarray(noise, float))

    def likelihood(self, raw: Float[Array, "*shape"]) -> Gaussian:
        return Gaussian(self.mean(raw), jnp.exp(self.log_noise))


class Bounded(Noisy):
    """Pixels N(tanh(raw), σ²), for data between −1 and 1.

    Example: `Bounded(noise=0.1).likelihood(raw).sample(key)`.
    """

    def __init__(self, noise: float = 1.0):
        super().__init__(noise)

    def mean(self, raw: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return jnp.tanh(raw)


class Unbounded(Noisy):
    """Pixels N(raw, σ²), for natural images.

    Example: `Unbounded().mean(raw)` is `raw`.
    """

    def __init__(self, noise: float = 1.0):
        super().__init__(noise)

    def mean(self, raw: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return raw


class ImageModel(eqx.Module):
    """z ~ N(0, I), x | z ~ the output's likelihood at network(z).

    Example: `ImageModel(DCGAN(key=key), Binary(), latent=16)`.
    """

    network: Callable[[Array], Array]
    output: Output
    latent: int = eqx.field(static=True)

    def sample_latent(self, key: Key[Array, ""]) -> Float[Array, " latent"]:
        return jax.random.normal(key, (self.latent,))

    def log_prior(self, z: Float[Array, " latent"]) -> Float[Array, ""]:
        return jax.scipy.stats.norm.logpdf(z).sum()

    def likelihood(self, z: Float[Array, " latent"]) -> Likelihood:
        return self.output.likelihood(self.network(z))

    def mean(self, z: Float[Array, " latent"]) -> Float[Array, "channels height width"]:
        """E[x | z], the picture without noise."""
        return self.output.mean(self.network(z))


@runtime_checkable
class Pictured(Protocol):
    """A model whose pictures without noise can be drawn."""

    def sample_latent(self, key: Key[Array, ""]) -> PyTree:
        """One draw z from p(z)."""
        ...

    def mean(self, z: PyTree) -> Float[Array, "..."]:
        """E[x | z]."""
        ...


@eqx.filter_jit
def pictures(
    model: Pictured, key: Key[Array, ""], number: int
) -> Float[Array, "number channels height width"]:
    """E[x | z] for `number` latents from the prior: pictures without pixel noise.

    Example: `pictures(model, key, 100).shape == (100, 1, 32, 32)`.
    """
    keys = jax.random.split(key, number)
    return jax.vmap(lambda k: model.mean(model.sample_latent(k)))(keys)


@eqx.filter_jit
def scored_pictures(
    model: Pictured, key: Key[Array, ""], number: int
) -> Float[Array, "number channels height width"]:
    """The same pictures as they are scored: binary pixels drawn, others without noise.

    Example: `scored_pictures(model, key, 100)` has zeros and ones only if the output is `Binary`.
    """
    means = pictures(model, key, number)
    if not isinstance(getattr(model, "output", None), Binary):
        return means
    return jax.random.bernoulli(jax.random.fold_in(key, 1), means).astype(means.dtype)


__all__ = [
    "DCGAN",
    "Binary",
    "Bounded",
    "Connected",
    "ImageModel",
    "Noisy",
    "Output",
    "Pictured",
    "Unbounded",
    "pictures",
    "scored_pictures",
]
