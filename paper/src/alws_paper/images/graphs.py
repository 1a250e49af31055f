"""Five graphs with Bernoulli and Gaussian latents, from the appendix on benchmark data sets.

zᵈ are bits, zᶜ Gaussian with variance 1, h ReLU units, x pixels; a → b: b's parameters are a linear
function of a.

    direct          zᵈ → zᶜ → h → x
    skip            zᵈ → zᶜ → h → x,  zᵈ → h
    merged          (zᵈ, zᶜ) → h₁ → h₂ → x
    feedback        zᵈ₁ → zᶜ₁ → zᵈ₂ → zᶜ₂,  (zᶜ₁, zᶜ₂) → h → x
    feedback-skip   feedback,  zᵈ₁ → h

There are 10 bits and 16 Gaussian latents in each, h has 512 units and h₁ 16. The top bits have
learnt probabilities, from one half. The paper's drawing of the last two graphs is not in its text;
both Gaussian layers reach h here, so that h has the inputs it has in the others.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from alws.likelihoods import Likelihood
from alws_paper.images.generators import Connected, Output

Shape = tuple[int, int, int]


class Mixed(NamedTuple):
    """Bits, 0 or 1, and Gaussian latents."""

    bits: Float[Array, " bits"]
    continuous: Float[Array, " continuous"]


def _draw_bits(key: Key[Array, ""], logits: Float[Array, " bits"]) -> Float[Array, " bits"]:
    return jax.random.bernoulli(key, jax.nn.sigmoid(logits)).astype(logits.dtype)


def _log_bits(bits: Float[Array, " bits"], logits: Float[Array, " bits"]) -> Float[Array, ""]:
    return jnp.sum(bits * logits - jax.nn.softplus(logits))


def _draw_normal(key: Key[Array, ""], mean: Float[Array, " n"]) -> Float[Array, " n"]:
    return mean + jax.random.normal(key, mean.shape, mean.dtype)


def _log_normal(z: Float[Array, " n"], mean: Float[Array, " n"]) -> Float[Array, ""]:
    return jax.scipy.stats.norm.logpdf(z, mean).sum()


class Direct(eqx.Module):
    """zᵈ → zᶜ → h → x, and zᵈ → h as well with `skips`.

    Example: `Direct((1, 32, 32), Binary(), key=key)`.
    """

    logits: Float[Array, " bits"]
    continuous: eqx.nn.Linear
    network: Connected
    output: Output
    skips: bool = eqx.field(static=True)

    def __init__(
        self,
        shape: Shape,
        output: Output,
        *,
        key: Key[Array, ""],
        bits: int = 10,
        continuous: int = 16,
        hidden: int = 512,
        skips: bool = False,
    ):
        keys = jax.random.split(key)
        inputs = continuous + bits * skips
        self.logits = jnp.zeros(bits)
        self.continuous = eqx.nn.Linear(bits, continuous, key=keys[0])
        self.network = Connected(shape, hidden=hidden, layers=1, latent=inputs, key=keys[1])
        self.output = output
        self.skips = skips

    def sample_latent(self, key: Key[Array, ""]) -> Mixed:
        keys = jax.random.split(key)
        bits = _draw_bits(keys[0], self.logits)
        return Mixed(bits, _draw_normal(keys[1], self.continuous(bits)))

    def log_prior(self, z: Mixed) -> Float[Array, ""]:
        return _log_bits(z.bits, self.logits) + _log_normal(z.continuous, self.continuous(z.bits))

    def likelihood(self, z: Mixed) -> Likelihood:
        return self.output.likelihood(self._raw(z))

    def mean(self, z: Mixed) -> Float[Array, "channels height width"]:
        """E[x | z], the picture without noise."""
        return self.output.mean(self._raw(z))

    def _raw(self, z: Mixed) -> Float[Array, "channels height width"]:
        return self.network(jnp.concatenate([z.bits, z.continuous]) if self.skips else z.continuous)


class Merged(eqx.Module):
    """(zᵈ, zᶜ) → h₁ → h₂ → x, all latents independent.

    Example: `Merged((1, 32, 32), Binary(), key=key)`.
    """

    logits: Float[Array, " bits"]
    narrow: eqx.nn.Linear
    network: Connected
    output: Output
    continuous: int = eqx.field(static=True)

    def __init__(
        self,
        shape: Shape,
        output: Output,
        *,
        key: Key[Array, ""],
        bits: int = 10,
        continuous: int = 16,
        hidden: int = 512,
        narrow: int = 16,
    ):
        keys = jax.random.split(key)
        self.logits = jnp.zeros(bits)
        self.narrow = eqx.nn.Linear(bits + continuous, narrow, key=keys[0])
        self.network = Connected(shape, hidden=hidden, layers=1, latent=narrow, key=keys[1])
        self.output = output
        self.continuous = continuous

    def sample_latent(self, key: Key[Array, ""]) -> Mixed:
        keys = jax.random.split(key)
        zeros = jnp.zeros(self.continuous, self.logits.dtype)
        return Mixed(_draw_bits(keys[0], self.logits), _draw_normal(keys[1], zeros))

    def log_prior(self, z: Mixed) -> Float[Array, ""]:
        zeros = jnp.zeros_like(z.continuous)
        return _log_bits(z.bits, self.logits) + _log_normal(z.continuous, zeros)

    def likelihood(self, z: Mixed) -> Likelihood:
        return self.output.likelihood(self._raw(z))

    def mean(self, z: Mixed) -> Float[Array, "channels height width"]:
        """E[x | z], the picture without noise."""
        return self.output.mean(self._raw(z))

    def _raw(self, z: Mixed) -> Float[Array, "channels height width"]:
        return self.network(jax.nn.relu(self.narrow(jnp.concatenate([z.bits, z.continuous]))))


class Layers(NamedTuple):
    """The two layers of `Feedback`, top first."""

    top: Mixed
    lower: Mixed


class Feedback(eqx.Module):
    """zᵈ₁ → zᶜ₁ → zᵈ₂ → zᶜ₂, (zᶜ₁, zᶜ₂) → h → x, and zᵈ₁ → h as well with `skips`.

    Example: `Feedback((1, 32, 32), Binary(), key=key)`.
    """

    logits: Float[Array, " bits"]
    first: eqx.nn.Linear
    back: eqx.nn.Linear
    second: eqx.nn.Linear
    network: Connected
    output: Output
    skips: bool = eqx.field(static=True)

    def __init__(
        self,
        shape: Shape,
        output: Output,
        *,
        key: Key[Array, ""],
        bits: int = 10,
        continuous: int = 16,
        hidden: int = 512,
        skips: bool = False,
    ):
        if bits % 2 or continuous % 2:
            raise ValueError(
                "`bits` and `continuous` are halved between two layers and must be even; got "
                f"{bits} and {continuous}."
            )
        half, keys = bits // 2, jax.random.split(key, 4)
        inputs = continuous + half * skips
        self.logits = jnp.zeros(half)
        self.first = eqx.nn.Linear(half, continuous // 2, key=keys[0])
        self.back = eqx.nn.Linear(continuous // 2, half, key=keys[1])
        self.second = eqx.nn.Linear(half, continuous // 2, key=keys[2])
        self.network = Connected(shape, hidden=hidden, layers=1, latent=inputs, key=keys[3])
        self.output = output
        self.skips = skips

    def sample_latent(self, key: Key[Array, ""]) -> Layers:
        keys = jax.random.split(key, 4)
        bits = _draw_bits(keys[0], self.logits)
        top = Mixed(bits, _draw_normal(keys[1], self.first(bits)))
        bits = _draw_bits(keys[2], self.back(top.continuous))
        return Layers(top, Mixed(bits, _draw_normal(keys[3], self.second(bits))))

    def log_prior(self, z: Layers) -> Float[Array, ""]:
        top, lower = z
        return (
            _log_bits(top.bits, self.logits)
            + _log_normal(top.continuous, self.first(top.bits))
            + _log_bits(lower.bits, self.back(top.continuous))
            + _log_normal(lower.continuous, self.second(lower.bits))
        )

    def likelihood(self, z: Layers) -> Likelihood:
        return self.output.likelihood(self._raw(z))

    def mean(self, z: Layers) -> Float[Array, "channels height width"]:
        """E[x | z], the picture without noise."""
        return self.output.mean(self._raw(z))

    def _raw(self, z: Layers) -> Float[Array, "channels height width"]:
        parts = [z.top.continuous, z.lower.continuous]
        return self.network(jnp.concatenate([z.top.bits, *parts] if self.skips else parts))


GRAPHS: dict[str, Callable[..., Direct | Merged | Feedback]] = {
    "direct": Direct,
    "skip": partial(Direct, skips=True),
    "merged": Merged,
    "feedback": Feedback,
    "feedback-skip": partial(Feedback, skips=True),
}
"""The five graphs by the paper's names: `GRAPHS["skip"]((1, 32, 32), Binary(), key=key)`."""

__all__ = ["GRAPHS", "Direct", "Feedback", "Layers", "Merged", "Mixed"]
