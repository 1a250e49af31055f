"""Kernels k(x, x') = ϰ(φ(x), φ(x')), §3.4 and the appendix on the kernel's architecture.

A kernel has two verbs: `embed` takes a batch of observations to what the kernel compares (features
for most), `gram` compares two embedded batches. `calibrate` sets the bandwidth from a batch: the
median distance between its members.

With `track=True` the bandwidth is a factor, adapted, times the median distance in the sleep samples
of each step, so that it follows a model whose scale changes. With `track=False` it starts at the
median of the first sleep samples and moves only by adaptation, as in the paper.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from alws.features import Features, Identity


def squared_distances(
    a: Float[Array, "n features"], b: Float[Array, "m features"]
) -> Float[Array, "n m"]:
    """‖a_i − b_j‖² by one matrix product, centred on b so that little is lost to rounding."""
    centre = jax.lax.stop_gradient(b.mean(axis=0))
    a, b = a - centre, b - centre
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)
    return jnp.maximum(squares - 2 * a @ b.T, 0)


def median_distance(a: Float[Array, "n features"], most: int = 1000) -> Float[Array, ""]:
    """The median distance between two different rows, over at most `most` rows.

    Rows that coincide (discrete data) do not count; the result is 1 when all rows coincide.
    """
    a = a[:most]
    n = a.shape[0]
    pairs = jnp.sqrt(squared_distances(a, a))[jnp.triu_indices(n, 1)]
    floor = 1e-5 * jnp.sqrt((a**2).mean() + 1e-30)
    median = jnp.nanmedian(jnp.where(pairs > floor, pairs, jnp.nan))
    return jnp.where(jnp.isfinite(median) & (median > 0), median, 1.0)


class Kernel(eqx.Module):
    """A positive definite function of two observations."""

    def embed(self, x: PyTree[Array]) -> PyTree[Array]:
        """What the kernel compares, for a batch of observations."""
        return x

    @abstractmethod
    def gram(self, a: PyTree[Array], b: PyTree[Array]) -> Float[Array, "n m"]:
        """k of every pair from two embedded batches."""

    def initialise(self, x: PyTree[Array]) -> "Kernel":
        """The kernel with its bandwidth set from a first batch of observations."""
        return self

    def calibrate(self, a: PyTree[Array]) -> "Kernel":
        """The kernel as used with this step's embedded sleep samples."""
        return self

    def place(self, a: PyTree[Array]) -> PyTree[Array]:
        """An embedded batch in the coordinates that `calibrate` chose."""
        return a

    def draw_in(self, a: PyTree[Array], sleep: PyTree[Array]) -> PyTree[Array]:
        """A placed batch with what lies beyond the range of the sleep samples drawn in to it."""
        return a

    def __call__(self, x: PyTree[Array], y: PyTree[Array]) -> Float[Array, "n m"]:
        """k(x_i, y_j) for two batches of observations."""
        a = self.embed(x)
        kernel = self.calibrate(a)
        return kernel.gram(kernel.place(a), kernel.place(self.embed(y)))

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum((self, other))


class Stationary(Kernel):
    """ϰ(‖φ(x) − φ(x')‖/σ): a kernel of the distance between features, in bandwidths."""

    features: Features
    log_bandwidth: Float[Array, ""]
    track: bool = eqx.field(static=True)
    frame: tuple[Float[Array, " features"], Float[Array, " features"]] | None

    def __init__(
        self,
        features: Features | None = None,
        *,
        bandwidth: float | None = None,
        track: bool | None = None,
    ):
        """`bandwidth` is σ (a factor on the median distance if `track`), the median by default."""
        if bandwidth is not None and not bandwidth > 0:
            raise ValueError(f"`bandwidth` must be positive, got {bandwidth}.")
        self.features = Identity() if features is None else features
        self.frame = None
        self.track = bandwidth is None if track is None else track
        start = 1.0 if bandwidth is None and self.track else bandwidth
        self.log_bandwidth = jnp.log(jnp.array(jnp.nan if start is None else start, float))

    @abstractmethod
    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """The kernel as a function of the squared distance in bandwidths."""

    def embed(self, x: PyTree[Array]) -> Float[Array, "n features"]:
        return self.features(x)

    def gram(
        self, a: Float[Array, "n features"], b: Float[Array, "m features"]
    ) -> Float[Array, "n m"]:
        inverse = jnp.exp(-self.log_bandwidth).astype(a.dtype)
        return self.profile(squared_distances(a * inverse, b * inverse))

    def draw_in(
        self, a: Float[Array, "m features"], sleep: Float[Array, "n features"]
    ) -> Float[Array, "m features"]:
        return jnp.clip(a, sleep.min(axis=0), sleep.max(axis=0))

    def initialise(self, x: PyTree[Array]) -> "Stationary":
        if self.track:
            return self
        median = jnp.log(median_distance(self.embed(x)))
        start = jnp.where(jnp.isnan(self.log_bandwidth), median, self.log_bandwidth)
        return eqx.tree_at(lambda k: k.log_bandwidth, self, start)

    def calibrate(self, a: Float[Array, "n features"]) -> "Stationary":
        if not self.track:
            return self
        location = jax.lax.stop_gradient(a.mean(axis=0))
        spread = jax.lax.stop_gradient(jnp.abs(a - location).mean(axis=0))
        scale = jnp.where(spread > 0, spread, 1.0)
        kernel = eqx.tree_at(
            lambda k: k.frame, self, (location, scale), is_leaf=lambda x: x is None
        )
        median = jnp.log(jax.lax.stop_gradient(median_distance(kernel.place(a), most=128)))
        return eqx.tree_at(lambda k: k.log_bandwidth, kernel, self.log_bandwidth + median)

    def place(self, a: Float[Array, "*n features"]) -> Float[Array, "*n features"]:
        if self.frame is None:
            return a
        location, scale = self.frame
        return jnp.arcsinh((a - location) / scale)


class SquaredExponential(Stationary):
    """k = exp(−d²/2σ²), the paper's kernel.

    Example: `SquaredExponential(Linear.random(key, 784, 300))`.
    """

    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return jnp.exp(-squares / 2)


def _root(squares: Array) -> Array:
    """√, with derivative 0 at 0."""
    positive = squares > 1e-12
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1.0)), 0.0)


class Matern12(Stationary):
    """k = exp(−r), r = d/σ."""

    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return jnp.exp(-_root(squares))


class Matern32(Stationary):
    """k = (1 + √3 r) exp(−√3 r), r = d/σ."""

    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        r = _root(3 * squares)
        return (1 + r) * jnp.exp(-r)


class Matern52(Stationary):
    """k = (1 + √5 r + 5r²/3) exp(−√5 r), r = d/σ."""

    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        r = _root(5 * squares)
        return (1 + r + r**2 / 3) * jnp.exp(-r)


class Sum(Kernel):
    """k = Σ_i exp(log_weight_i) k_i, each with features and bandwidth of its own.

    Example: `SquaredExponential() + Matern12()`.
    """

    kernels: tuple[Kernel, ...]
    log_weight: Float[Array, " kernels"]

    def __init__(self, kernels: tuple[Kernel, ...]):
        self.kernels = tuple(kernels)
        self.log_weight = jnp.zeros(len(self.kernels))

    def embed(self, x: PyTree[Array]) -> tuple[PyTree, ...]:
        return tuple(kernel.embed(x) for kernel in self.kernels)

    def gram(self, a: tuple[PyTree, ...], b: tuple[PyTree, ...]) -> Float[Array, "n m"]:
        parts = zip(jnp.exp(self.log_weight), self.kernels, a, b, strict=True)
        return sum(weight * kernel.gram(u, v) for weight, kernel, u, v in parts)  # pyright: ignore

    def initialise(self, x: PyTree[Array]) -> "Sum":
        return self._with(kernel.initialise(x) for kernel in self.kernels)

    def calibrate(self, a: tuple[PyTree, ...]) -> "Sum":
        return self._with(kernel.calibrate(u) for kernel, u in zip(self.kernels, a, strict=True))

    def place(self, a: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        return tuple(kernel.place(u) for kernel, u in zip(self.kernels, a, strict=True))

    def draw_in(self, a: tuple[PyTree, ...], sleep: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        parts = zip(self.kernels, a, sleep, strict=True)
        return tuple(kernel.draw_in(u, v) for kernel, u, v in parts)

    def _with(self, kernels: Any) -> "Sum":
        return eqx.tree_at(lambda s: s.kernels, self, tuple(kernels))


class OnSets(Kernel):
    """k(A, B) = mean over a ∈ A, b ∈ B of k(a, b): a kernel on sets `[members, ...]`.

    Example: `OnSets(SquaredExponential())` for observations of shape `[members, 2]`.
    """

    kernel: Stationary

    def embed(self, x: Float[Array, "n members ..."]) -> Float[Array, "n members features"]:
        members = self.kernel.embed(x.reshape(-1, *x.shape[2:]))
        return members.reshape(*x.shape[:2], -1)

    def gram(self, a: Array, b: Array) -> Float[Array, "n m"]:
        pairs = self.kernel.gram(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]))
        return pairs.reshape(*a.shape[:2], *b.shape[:2]).mean(axis=(1, 3))

    def initialise(self, x: Array) -> "OnSets":
        return OnSets(self.kernel.initialise(x.reshape(-1, *x.shape[2:])))  # pyright: ignore

    def calibrate(self, a: Array) -> "OnSets":
        return OnSets(self.kernel.calibrate(a.reshape(-1, a.shape[-1])))

    def place(self, a: Array) -> Array:
        return self.kernel.place(a)


class Pairwise(Kernel):
    """A user's own kernel: any positive definite function of two observations.

    Example: `Pairwise(lambda x, y: jnp.exp(-jnp.sum(x != y)))` on strings of symbols.
    """

    function: Callable[[PyTree, PyTree], Array]

    def gram(self, a: PyTree[Array], b: PyTree[Array]) -> Float[Array, "n m"]:
        return jax.vmap(lambda x: jax.vmap(lambda y: self.function(x, y))(b))(a)
