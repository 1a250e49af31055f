"""Exponential-family likelihoods, §3.3: log p(x | z) = η(z)·s(x) − log Z(z) + log h(x).

A likelihood object is p(· | z) for one z. It gives its natural parameters η as a pytree, the
sufficient statistics s(x) as a pytree of the same shapes, and log Z as a tuple of terms. Leaves and
terms that do not depend on z (the precision of a Gaussian whose noise is a parameter) are found by
the library and need no regression.

Arrays may have any shape; the entries of x are independent given z. With a `mask` only the entries
where it is true are there: the others are 0 in every draw and count nothing, whatever they hold in
the data (rows of groups of unequal length, see `alws.groups`).
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
        """log p(x | z), −∞ where x has no density."""
        x = jax.tree.map(jnp.asarray, x)
        natural, statistics = self.natural_parameters(), self.sufficient_statistics(x)
        wanted, found = (jax.tree.map(jnp.shape, tree) for tree in (natural, statistics))
        if wanted != found:
            raise ValueError(
                f"x must have the shape of a draw from this {type(self).__name__}, so that s(x) "
                f"has that of η, {wanted}; got {found}, for x of {jax.tree.map(jnp.shape, x)}."
            )
        products = jax.tree.map(lambda eta, s: jnp.sum(eta * s), natural, statistics)
        value = sum(jax.tree.leaves(products)) - sum(self.log_normaliser()) + self.log_base(x)
        return jnp.where(self.in_support(x), value, -jnp.inf)


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


def _mask(mask: ArrayLike | None, shape: tuple[int, ...]) -> Bool[Array, "*shape"] | None:
    """A mask of the shape of x, or None where all entries are there."""
    if mask is None:
        return None
    mask = jnp.asarray(mask)
    if mask.dtype != bool or not _broadcasts(mask.shape, shape):
        raise ValueError(
            f"`mask` must be booleans that broadcast to the shape of x, {shape}; got {mask.dtype} "
            f"of shape {mask.shape}. Write `mask=rows.observed`."
        )
    return jnp.broadcast_to(mask, shape)


def _kept(mask: Array | None, array: Array, other: ArrayLike = 0) -> Array:
    """The array where the mask is true, another number elsewhere."""
    return array if mask is None else jnp.where(mask, array, other)


def _all(mask: Array | None, good: Array) -> Bool[Array, ""]:
    """Whether all entries that there are, are good."""
    return jnp.all(good if mask is None else good | ~mask)


def _number(mask: Array | None, shape: tuple[int, ...], dtype: Any) -> Array:
    """1 for every entry that is there."""
    return jnp.ones(shape, dtype) if mask is None else mask.astype(dtype)


class Gaussian(Likelihood):
    """N(x; μ, σ²), entries independent; `scale` = σ broadcasts against `mean` = μ.

    η = (μ/σ², −1/2σ²), s = (x, x²), log Z = Σ μ²/2σ² + Σ log σ. The noise may be a constant, one
    learnt number, one per entry, or a function of z.

    Arguments:
        mean: μ, in the shape of x.
        scale: σ, which broadcasts against it.
        mask: which entries are there, all of them for None; the others count nothing.

    Example: `Gaussian(self.decoder(z), jnp.exp(self.log_scale))`.
    """

    mean: Float[Array, "*shape"]
    scale: Float[Array, "*broadcastable"]
    mask: Bool[Array, "*shape"] | None

    def __init__(self, mean: ArrayLike, scale: ArrayLike, mask: ArrayLike | None = None):
        self.mean = floating("mean", mean)
        self.scale = floating("scale", scale).astype(self.mean.dtype)
        if not _broadcasts(self.scale.shape, self.mean.shape):
            raise ValueError(
                f"`scale` must broadcast to the shape of `mean`, {self.mean.shape}; got "
                f"{self.scale.shape}. Give a scalar or one value for each entry of x."
            )
        self.mask = _mask(mask, self.mean.shape)

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return _kept(self.mask, self.mean + self.scale * noise)

    def natural_parameters(self) -> tuple[Array, Array]:
        precision = 1 / self.scale**2
        return _kept(self.mask, self.mean * precision), -precision / 2

    def sufficient_statistics(self, x: Float[Array, "*shape"]) -> tuple[Array, Array]:
        x = _kept(self.mask, x)
        return x, _sum_to(x**2, self.scale.shape)

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """Finite numbers."""
        return _all(self.mask, jnp.isfinite(x))

    def log_normaliser(self) -> tuple[Array, Array]:
        squares = _sum_to(_kept(self.mask, self.mean * self.mean), self.scale.shape)
        copies = _sum_to(self._there(), self.scale.shape)
        return jnp.sum(squares / self.scale**2) / 2, jnp.sum(copies * jnp.log(self.scale))

    def log_base(self, x: Float[Array, "*shape"]) -> Float[Array, ""]:
        return -0.5 * jnp.log(2 * jnp.pi).astype(self.mean.dtype) * self._there().sum()

    def _there(self) -> Array:
        return _number(self.mask, self.mean.shape, self.mean.dtype)


class LogNormal(Likelihood):
    """log x ~ N(location, scale²), entries independent; s = (log x, log² x), h(x) = 1/(x√2π).

    Arguments:
        location: of log x, in the shape of x.
        scale: its standard deviation.
        mask: which entries are there, all of them for None; the others count nothing.

    Example: `LogNormal(jnp.log(population), self.noise)`.
    """

    log: Gaussian

    def __init__(self, location: ArrayLike, scale: ArrayLike, mask: ArrayLike | None = None):
        self.log = Gaussian(location, scale, mask)

    def sample(self, key: Key[Array, ""]) -> Array:
        return _kept(self.log.mask, jnp.exp(self.log.sample(key)))

    def natural_parameters(self) -> tuple[Array, Array]:
        return self.log.natural_parameters()

    def sufficient_statistics(self, x: Array) -> tuple[Array, Array]:
        return self.log.sufficient_statistics(self._log(x))

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """Positive and finite numbers."""
        return _all(self.log.mask, (x > 0) & jnp.isfinite(x))

    def log_normaliser(self) -> tuple[Array, Array]:
        return self.log.log_normaliser()

    def log_base(self, x: Array) -> Float[Array, ""]:
        return self.log.log_base(x) - jnp.sum(self._log(x))

    def _log(self, x: Array) -> Array:
        return jnp.log(_kept(self.log.mask, x, 1))


class Bernoulli(Likelihood):
    """x ∈ {0, 1} with P(x = 1) = sigmoid(logits); η = logits, s = x, log Z = Σ softplus(logits).

    Arguments:
        logits: in the shape of x.
        mask: which entries are there, all of them for None; the others count nothing.

    Example: `Bernoulli(self.decoder(z))`.
    """

    logits: Float[Array, "*shape"]
    mask: Bool[Array, "*shape"] | None

    def __init__(self, logits: ArrayLike, mask: ArrayLike | None = None):
        self.logits = floating("logits", logits)
        self.mask = _mask(mask, self.logits.shape)

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        x = jax.random.bernoulli(key, jax.nn.sigmoid(self.logits))
        return _kept(self.mask, x.astype(self.logits.dtype))

    def natural_parameters(self) -> Array:
        return _kept(self.mask, self.logits)

    def sufficient_statistics(self, x: Array) -> Array:
        return _kept(self.mask, jnp.asarray(x, self.logits.dtype))

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """0 and 1."""
        return _all(self.mask, (x == 0) | (x == 1))

    def log_normaliser(self) -> tuple[Array]:
        return (jnp.sum(_kept(self.mask, jax.nn.softplus(self.logits))),)

    def log_base(self, x: Array) -> Float[Array, ""]:
        return jnp.zeros((), self.logits.dtype)


class Binomial(Likelihood):
    """x of n with P = sigmoid(logits); η = logits, s = x, log Z = Σ n softplus(logits).

    `trials` = n are whole numbers, known: one for all entries or one for each.

    Arguments:
        trials: n, whole numbers that are known: one for all entries or one for each.
        logits: in the shape of x.
        mask: which entries are there, all of them for None; the others count nothing.

    Example: `Binomial(rows["size"], self.intercept + self.spread * z, mask=rows.observed)`.
    """

    trials: Float[Array, "*shape"]
    logits: Float[Array, "*shape"]
    mask: Bool[Array, "*shape"] | None

    def __init__(self, trials: ArrayLike, logits: ArrayLike, mask: ArrayLike | None = None):
        self.logits = floating("logits", logits)
        trials = floating("trials", trials).astype(self.logits.dtype)
        if not _broadcasts(trials.shape, self.logits.shape):
            raise ValueError(
                f"`trials` must broadcast to the shape of `logits`, {self.logits.shape}; got "
                f"{trials.shape}. Give a scalar or one number for each entry of x."
            )
        self.trials = jnp.broadcast_to(trials, self.logits.shape)
        self.mask = _mask(mask, self.logits.shape)

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        chance = jax.nn.sigmoid(self.logits)
        x = jax.random.binomial(key, self.trials, chance, self.logits.shape)
        return _kept(self.mask, x.astype(self.logits.dtype))

    def natural_parameters(self) -> Array:
        return _kept(self.mask, self.logits)

    def sufficient_statistics(self, x: Array) -> Array:
        return _kept(self.mask, jnp.asarray(x, self.logits.dtype))

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """Whole numbers from 0 to n."""
        return _all(self.mask, (x >= 0) & (x <= self.trials) & (x == jnp.round(x)))

    def log_normaliser(self) -> tuple[Array]:
        return (jnp.sum(_kept(self.mask, self.trials * jax.nn.softplus(self.logits))),)

    def log_base(self, x: Array) -> Float[Array, ""]:
        n, x = self.trials, jnp.asarray(x, self.logits.dtype)
        ways = gammaln(n + 1) - gammaln(x + 1) - gammaln(n - x + 1)
        return jnp.sum(_kept(self.mask, ways))


class Categorical(Likelihood):
    """x ∈ {0, …, K−1}, P(x = k) ∝ exp(logits[..., k]); s = one-hot(x), log Z = Σ logsumexp.

    Arguments:
        logits: in the shape of x, with the K values as a last axis.
        mask: which entries are there, all of them for None; the others count nothing.

    Example: `Categorical(self.readout @ z)`.
    """

    logits: Float[Array, "*shape classes"]
    mask: Bool[Array, "*shape"] | None

    def __init__(self, logits: ArrayLike, mask: ArrayLike | None = None):
        self.logits = floating("logits", logits)
        if self.logits.ndim == 0:
            raise ValueError(
                "`logits` must have one entry for each class along its last axis, got a scalar. "
                "With two classes use `Bernoulli(logits)`."
            )
        self.mask = _mask(mask, self.logits.shape[:-1])

    def sample(self, key: Key[Array, ""]) -> Int[Array, "*shape"]:
        return _kept(self.mask, jax.random.categorical(key, self.logits))

    def natural_parameters(self) -> Array:
        return self._kept(self.logits)

    def sufficient_statistics(self, x: Array) -> Array:
        return self._kept(jax.nn.one_hot(x, self.logits.shape[-1], dtype=self.logits.dtype))

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """Whole numbers from 0 to K − 1."""
        inside = (x >= 0) & (x < self.logits.shape[-1])
        return _all(self.mask, inside & (x == jnp.round(x)))

    def log_normaliser(self) -> tuple[Array]:
        return (jnp.sum(_kept(self.mask, jax.nn.logsumexp(self.logits, axis=-1))),)

    def log_base(self, x: Array) -> Float[Array, ""]:
        return jnp.zeros((), self.logits.dtype)

    def _kept(self, array: Array) -> Array:
        return array if self.mask is None else jnp.where(self.mask[..., None], array, 0)


class Poisson(Likelihood):
    """Counts with rate exp(log_rate); η = log_rate, s = x, log Z = Σ rate, h(x) = 1/x!.

    Arguments:
        log_rate: in the shape of x.
        mask: which entries are there, all of them for None; the others count nothing.

    Example: `Poisson(self.intercept + self.loading * z)`.
    """

    log_rate: Float[Array, "*shape"]
    mask: Bool[Array, "*shape"] | None

    def __init__(self, log_rate: ArrayLike, mask: ArrayLike | None = None):
        self.log_rate = floating("log_rate", log_rate)
        self.mask = _mask(mask, self.log_rate.shape)

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        counts = jax.random.poisson(key, jnp.exp(self.log_rate))
        return _kept(self.mask, counts.astype(self.log_rate.dtype))

    def natural_parameters(self) -> Array:
        return _kept(self.mask, self.log_rate)

    def sufficient_statistics(self, x: Array) -> Array:
        return _kept(self.mask, jnp.asarray(x, self.log_rate.dtype))

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """Whole numbers from 0 on."""
        return _all(self.mask, (x >= 0) & (x == jnp.round(x)))

    def log_normaliser(self) -> tuple[Array]:
        return (jnp.sum(_kept(self.mask, jnp.exp(self.log_rate))),)

    def log_base(self, x: Array) -> Float[Array, ""]:
        return -jnp.sum(gammaln(self.sufficient_statistics(x) + 1))


class Gamma(Likelihood):
    """Gamma(x; α, β) with mean α/β; η = (α, −β), s = (log x, x), log Z = Σ log Γ(α) − α log β.

    Arguments:
        concentration: α.
        rate: β.
        mask: which entries are there, all of them for None; the others count nothing.

    Example: `Gamma(self.shape, self.shape / mean)`.
    """

    concentration: Float[Array, "*shape"]
    rate: Float[Array, "*shape"]
    mask: Bool[Array, "*shape"] | None

    def __init__(self, concentration: ArrayLike, rate: ArrayLike, mask: ArrayLike | None = None):
        given = floating("concentration", concentration), floating("rate", rate)
        try:
            self.concentration, self.rate = jnp.broadcast_arrays(*given)
        except ValueError as error:
            raise ValueError(
                f"`rate` must broadcast with `concentration`, {given[0].shape}; got "
                f"{given[1].shape}. Give a scalar or one value for each entry of x."
            ) from error
        self.mask = _mask(mask, self.concentration.shape)

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        log_unit = jax.random.loggamma(key, self.concentration)
        tiny = jnp.finfo(log_unit.dtype).tiny
        return _kept(self.mask, jnp.maximum(jnp.exp(log_unit) / self.rate, tiny))

    def natural_parameters(self) -> tuple[Array, Array]:
        return _kept(self.mask, self.concentration), _kept(self.mask, -self.rate)

    def sufficient_statistics(self, x: Array) -> tuple[Array, Array]:
        return jnp.log(_kept(self.mask, x, 1)), _kept(self.mask, x)

    def in_support(self, x: Array) -> Bool[Array, ""]:
        """Positive and finite numbers."""
        return _all(self.mask, (x > 0) & jnp.isfinite(x))

    def log_normaliser(self) -> tuple[Array, Array]:
        return (
            jnp.sum(_kept(self.mask, gammaln(self.concentration))),
            -jnp.sum(_kept(self.mask, self.concentration * jnp.log(self.rate))),
        )

    def log_base(self, x: Array) -> Float[Array, ""]:
        return -jnp.sum(jnp.log(_kept(self.mask, x, 1)))


class Product(Likelihood):
    """Mixed observations, independent given z: a pytree of likelihoods for a pytree of x.

    Arguments:
        parts: a likelihood for every part of x.

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
