"""Exponential-family likelihoods, §3.3: log p(x | z) = η(z)·s(x) − log Z(z) + log h(x).

A likelihood object is p(· | z) for one z. It gives its natural parameters η as a pytree, the
sufficient statistics s(x) as a pytree of the same shapes, and log Z as a tuple of terms. Leaves and
terms that do not depend on z (the precision of a Gaussian whose noise is a parameter) are found by
the library and need no regression.

Arrays may have any shape; the entries of x are independent given z.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key, PyTree

from alws.model import finite
from alws.validation import floating, instance


class Likelihood(eqx.Module):
    """p(x | z) for one z, in exponential-family form."""

    @abstractmethod
    def sample(self, key: Key[Array, ""]) -> PyTree:
        """One draw x ~ p(x | z)."""

    @abstractmethod
    def natural_parameters(self) -> PyTree[Array]:
        """η(z)."""

    @abstractmethod
    def sufficient_statistics(self, x: PyTree) -> PyTree[Array]:
        """s(x), of the same structure and shapes as η(z)."""

    @abstractmethod
    def log_normaliser(self) -> tuple[Float[Array, ""], ...]:
        """The terms whose sum is log Z(z)."""

    @abstractmethod
    def log_base(self, x: PyTree) -> Float[Array, ""]:
        """log h(x), free of z and θ."""

    def in_support(self, x: PyTree) -> Bool[Array, ""]:
        """Whether x has a density: by default wherever s(x) and log h(x) are finite."""
        found = self.sufficient_statistics(x), self.log_base(x)
        return finite(jax.tree.map(lambda a: jnp.asarray(a)[None], found)).all()

    def log_prob(self, x: PyTree) -> Float[Array, ""]:
        """log p(x | z)."""
        x = jax.tree.map(jnp.asarray, x)
        products = jax.tree.map(
            lambda eta, s: jnp.sum(eta * s),
            self.natural_parameters(),
            self.sufficient_statistics(x),
        )
        return sum(jax.tree.leaves(products)) - sum(self.log_normaliser()) + self.log_base(x)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of this shape can be broadcast to the target."""
    if len(shape) > len(target):
        return False
    return all(n in (1, t) for n, t in zip(reversed(shape), reversed(target), strict=False))


def _sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """Sum an array over the axes along which `shape` was broadcast to it."""
    lead = array.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(
        lead + i for i, n in enumerate(shape) if n == 1 and array.shape[lead + i] != 1
    )
    return array.sum(axis=axes).reshape(shape)


def _positive(x: Array) -> Bool[Array, ""]:
    return jnp.all((x > 0) & jnp.isfinite(x))


class Gaussian(Likelihood):
    """N(x; μ, σ²), entries independent; `scale` = σ broadcasts against `mean` = μ.

    η = (μ/σ², −1/2σ²), s = (x, x²), log Z = Σ μ²/2σ² + Σ log σ. The noise may be a constant, one
    learnt number, one per entry, or a function of z.

    Example: `Gaussian(self.decoder(z), jnp.exp(self.log_scale))`.
    """

    mean: Float[Array, "*shape"]
    scale: Float[Array, "*broadcastable"]

    def __init__(self, mean: ArrayLike, scale: ArrayLike):
        self.mean = floating("mean", mean)
        self.scale = floating("scale", scale).astype(self.mean.dtype)
        if not _broadcasts(self.scale.shape, self.mean.shape):
            raise ValueError(
                f"`scale` must broadcast to the shape of `mean`, {self.mean.shape}; got "
                f"{self.scale.shape}. Give a scalar or one value for each entry of x."
            )

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self.mean + self.scale * noise

    def natural_parameters(self) -> tuple[Array, Array]:
        precision = 1 / self.scale**2
        return self.mean * precision, -precision / 2

    def sufficient_statistics(self, x: Float[Array, "*shape"]) -> tuple[Array, Array]:
        return x, _sum_to(x**2, self.scale.shape)

    def log_normaliser(self) -> tuple[Array, Array]:
        copies = self.mean.size // max(self.scale.size, 1)
        squares = _sum_to(self.mean * self.mean, self.scale.shape)
        return jnp.sum(squares / self.scale**2) / 2, copies * jnp.sum(jnp.log(self.scale))

    def log_base(self, x: Float[Array, "*shape"]) -> Float[Array, ""]:
        return jnp.asarray(-0.5 * jnp.log(2 * jnp.pi) * self.mean.size, self.mean.dtype)


class LogNormal(Likelihood):
    """log x ~ N(location, scale²), entries independent; s = (log x, log² x), h(x) = 1/(x√2π).

    Example: `LogNormal(jnp.log(population), self.noise)`.
    """

    log: Gaussian

    def __init__(self, location: ArrayLike, scale: ArrayLike):
        self.log = Gaussian(location, scale)

    def sample(self, key: Key[Array, ""]) -> Array:
        return jnp.exp(self.log.sample(key))

    def natural_parameters(self) -> tuple[Array, Array]:
        return self.log.natural_parameters()

    def sufficient_statistics(self, x: Array) -> tuple[Array, Array]:
        return self.log.sufficient_statistics(jnp.log(x))

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """Positive and finite numbers."""
        return _positive(x)

    def log_normaliser(self) -> tuple[Array, Array]:
        return self.log.log_normaliser()

    def log_base(self, x: Array) -> Float[Array, ""]:
        return self.log.log_base(x) - jnp.sum(jnp.log(x))


class Bernoulli(Likelihood):
    """x ∈ {0, 1} with P(x = 1) = sigmoid(logits); η = logits, s = x, log Z = Σ softplus(logits).

    Example: `Bernoulli(self.decoder(z))`.
    """

    logits: Float[Array, "*shape"]

    def __init__(self, logits: ArrayLike):
        self.logits = floating("logits", logits)

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        x = jax.random.bernoulli(key, jax.nn.sigmoid(self.logits))
        return x.astype(self.logits.dtype)

    def natural_parameters(self) -> Array:
        return self.logits

    def sufficient_statistics(self, x: Array) -> Array:
        return jnp.asarray(x, self.logits.dtype)

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """0 and 1."""
        return jnp.all((x == 0) | (x == 1))

    def log_normaliser(self) -> tuple[Array]:
        return (jnp.sum(jax.nn.softplus(self.logits)),)

    def log_base(self, x: Array) -> Float[Array, ""]:
        return jnp.zeros((), self.logits.dtype)


class Categorical(Likelihood):
    """x ∈ {0, …, K−1}, P(x = k) ∝ exp(logits[..., k]); s = one-hot(x), log Z = Σ logsumexp.

    Example: `Categorical(self.readout @ z)`.
    """

    logits: Float[Array, "*shape classes"]

    def __init__(self, logits: ArrayLike):
        self.logits = floating("logits", logits)
        if self.logits.ndim == 0:
            raise ValueError(
                "`logits` must have one entry for each class along its last axis, got a scalar. "
                "With two classes use `Bernoulli(logits)`."
            )

    def sample(self, key: Key[Array, ""]) -> Int[Array, "*shape"]:
        return jax.random.categorical(key, self.logits)

    def natural_parameters(self) -> Array:
        return self.logits

    def sufficient_statistics(self, x: Array) -> Array:
        return jax.nn.one_hot(x, self.logits.shape[-1], dtype=self.logits.dtype)

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """Whole numbers from 0 to K − 1."""
        return jnp.all((x >= 0) & (x < self.logits.shape[-1]) & (x == jnp.round(x)))

    def log_normaliser(self) -> tuple[Array]:
        return (jnp.sum(jax.nn.logsumexp(self.logits, axis=-1)),)

    def log_base(self, x: Array) -> Float[Array, ""]:
        return jnp.zeros((), self.logits.dtype)


class Poisson(Likelihood):
    """Counts with rate exp(log_rate); η = log_rate, s = x, log Z = Σ rate, h(x) = 1/x!.

    Example: `Poisson(self.intercept + self.loading * z)`.
    """

    log_rate: Float[Array, "*shape"]

    def __init__(self, log_rate: ArrayLike):
        self.log_rate = floating("log_rate", log_rate)

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        counts = jax.random.poisson(key, jnp.exp(self.log_rate))
        return counts.astype(self.log_rate.dtype)

    def natural_parameters(self) -> Array:
        return self.log_rate

    def sufficient_statistics(self, x: Array) -> Array:
        return jnp.asarray(x, self.log_rate.dtype)

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """Whole numbers from 0 on."""
        return jnp.all((x >= 0) & (x == jnp.round(x)))

    def log_normaliser(self) -> tuple[Array]:
        return (jnp.sum(jnp.exp(self.log_rate)),)

    def log_base(self, x: Array) -> Float[Array, ""]:
        return -jnp.sum(gammaln(jnp.asarray(x, self.log_rate.dtype) + 1))


class Gamma(Likelihood):
    """Gamma(x; α, β) with mean α/β; η = (α, −β), s = (log x, x), log Z = Σ log Γ(α) − α log β.

    Example: `Gamma(self.shape, self.shape / mean)`.
    """

    concentration: Float[Array, "*shape"]
    rate: Float[Array, "*shape"]

    def __init__(self, concentration: ArrayLike, rate: ArrayLike):
        given = floating("concentration", concentration), floating("rate", rate)
        try:
            self.concentration, self.rate = jnp.broadcast_arrays(*given)
        except ValueError as error:
            raise ValueError(
                f"`rate` must broadcast with `concentration`, {given[0].shape}; got "
                f"{given[1].shape}. Give a scalar or one value for each entry of x."
            ) from error

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        log_unit = jax.random.loggamma(key, self.concentration)
        tiny = jnp.finfo(log_unit.dtype).tiny
        return jnp.maximum(jnp.exp(log_unit) / self.rate, tiny)

    def natural_parameters(self) -> tuple[Array, Array]:
        return self.concentration, -self.rate

    def sufficient_statistics(self, x: Array) -> tuple[Array, Array]:
        return jnp.log(x), x

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """Positive and finite numbers."""
        return _positive(x)

    def log_normaliser(self) -> tuple[Array, Array]:
        return (
            jnp.sum(gammaln(self.concentration)),
            -jnp.sum(self.concentration * jnp.log(self.rate)),
        )

    def log_base(self, x: Array) -> Float[Array, ""]:
        return -jnp.sum(jnp.log(x))


class Product(Likelihood):
    """Mixed observations, independent given z: a pytree of likelihoods for a pytree of x.

    Example: `Product({"spikes": Poisson(rate), "voltage": Gaussian(mean, 1.0)})`.
    """

    parts: Any

    def __check_init__(self) -> None:
        example = "Write `Product((Poisson(log_rate), Gaussian(mean, 1.0)))`."
        for part in self._parts()[0]:
            instance("parts", part, Likelihood, "made of likelihoods", example)

    def _parts(self) -> tuple[list[Likelihood], Any]:
        return jax.tree.flatten(self.parts, is_leaf=lambda p: isinstance(p, Likelihood))

    def _pairs(self, x: PyTree) -> list[tuple[Likelihood, PyTree]]:
        parts, structure = self._parts()
        return list(zip(parts, structure.flatten_up_to(x), strict=True))

    def sample(self, key: Key[Array, ""]) -> PyTree:
        parts, structure = self._parts()
        keys = jax.random.split(key, len(parts))
        return structure.unflatten([p.sample(k) for p, k in zip(parts, keys, strict=True)])

    def natural_parameters(self) -> list[PyTree]:
        return [part.natural_parameters() for part in self._parts()[0]]

    def sufficient_statistics(self, x: PyTree) -> list[PyTree]:
        return [part.sufficient_statistics(leaf) for part, leaf in self._pairs(x)]

    def in_support(self, x: PyTree) -> Bool[Array, ""]:
        """Every part in the support of its own."""
        return jnp.stack([part.in_support(leaf) for part, leaf in self._pairs(x)]).all()

    def log_normaliser(self) -> tuple[Array, ...]:
        return tuple(term for part in self._parts()[0] for term in part.log_normaliser())

    def log_base(self, x: PyTree) -> Float[Array, ""]:
        return sum(part.log_base(leaf) for part, leaf in self._pairs(x))  # pyright: ignore
