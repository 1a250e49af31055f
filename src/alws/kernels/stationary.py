"""Kernels of the distance between features, squared exponential and Matérn; their bandwidths."""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.features import Features, Identity, check_features
from alws.kernels.base import FeatureMap, Kernel
from alws.values import positive, yes_or_no


class Stationary(Kernel):
    """ϰ(‖φ(x) − φ(x')‖/σ): a kernel of the distance between features, in bandwidths.

    Arguments:
        features: φ, by default x itself.
        bandwidth: σ at the start; a factor on the median distance between the sleep samples if the
            kernel follows them. By default that median itself.
        track: whether the kernel follows each step's sleep samples: features are standardised by
            them, σ is a factor on their median distance, and data beyond their range are moved to
            its edge. By default it does unless a bandwidth is given.
    """

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
        if bandwidth is not None:
            positive("bandwidth", bandwidth)
        if track is not None:
            yes_or_no("track", track)
        self.features = Identity() if features is None else features
        check_features(self.features)
        self.frame = None
        self.track = bandwidth is None if track is None else track
        start = 1.0 if bandwidth is None and self.track else bandwidth
        self.log_bandwidth = jnp.array(math.nan if start is None else math.log(start), float)

    @abstractmethod
    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """The kernel as a function of the squared distance in bandwidths."""

    def frequencies(
        self, key: Key[Array, ""], number: int, dimensions: int
    ) -> Float[Array, "number dimensions"]:
        """Draws ω from the spectral density at σ = 1: E cos(ω·(a − b)) = profile(‖a − b‖²)."""
        raise TypeError(
            f"{type(self).__name__} must say how to draw from its spectral density to be used with "
            "random features: give it `frequencies(key, number, dimensions)`, or use `Nystrom`."
        )

    def embed(self, x: PyTree[Array]) -> Float[Array, "n features"]:
        return self.features(x)

    def evaluate(
        self, a: Float[Array, "n features"], b: Float[Array, "m features"]
    ) -> Float[Array, "n m"]:
        inverse = jnp.exp(-self.log_bandwidth).astype(a.dtype)
        a, b = self.coordinates(a), self.coordinates(b)
        return self.profile(squared_distances(a * inverse, b * inverse))

    def coordinates(self, a: Float[Array, "*n features"]) -> Float[Array, "*n features"]:
        """Where the distance is measured: standardised by the sleep samples if the kernel tracks.

        Example: `kernel.scale_to(a).coordinates(a)`.
        """
        if self.frame is None:
            return a
        location, scale = self.frame
        return jnp.arcsinh((a - location) / scale)

    def clip_to_range(
        self, a: Float[Array, "m features"], sleep: Float[Array, "n features"]
    ) -> Float[Array, "m features"]:
        return jnp.clip(a, sleep.min(axis=0), sleep.max(axis=0))

    def bandwidths(self) -> list[Any]:
        return [self.log_bandwidth]

    def initialise(self, x: PyTree[Array]) -> "Stationary":
        if self.track:
            return self
        median = jnp.log(median_distance(self.embed(x)))
        start = jnp.where(jnp.isnan(self.log_bandwidth), median, self.log_bandwidth)
        return eqx.tree_at(lambda k: k.log_bandwidth, self, start)

    def scale_to(self, sleep: Float[Array, "n features"]) -> "Stationary":
        if not self.track:
            return self
        location = jax.lax.stop_gradient(sleep.mean(axis=0))
        spread = jax.lax.stop_gradient(jnp.abs(sleep - location).mean(axis=0))
        frame = location, jnp.where(spread > 0, spread, 1.0)
        kernel = eqx.tree_at(lambda k: k.frame, self, frame, is_leaf=lambda x: x is None)
        median = sampled_median_distance(jax.lax.stop_gradient(kernel.coordinates(sleep)))
        return eqx.tree_at(lambda k: k.log_bandwidth, kernel, self.log_bandwidth + jnp.log(median))

    def draw_features(
        self, key: Key[Array, ""], number: int, sleep: Float[Array, "n features"]
    ) -> FeatureMap:
        frequencies = self.frequencies(key, number, sleep.shape[1]).astype(sleep.dtype)
        centre = jax.lax.stop_gradient(self.coordinates(sleep).mean(axis=0))
        return Waves(self, frequencies, centre)


class Waves(FeatureMap):
    """φ(a) = (cos Ωa/σ, sin Ωa/σ)/√D; a is centred so that little is lost to rounding."""

    kernel: Stationary
    frequencies: Float[Array, "number dimensions"]
    centre: Float[Array, " dimensions"]

    def __call__(self, a: Float[Array, "n dimensions"]) -> Float[Array, "n features"]:
        inverse = jnp.exp(-self.kernel.log_bandwidth).astype(a.dtype)
        angles = (self.kernel.coordinates(a) - self.centre) @ (self.frequencies * inverse).T
        waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
        return waves / math.sqrt(self.frequencies.shape[0])


class SquaredExponential(Stationary):
    """k = exp(−d²/2σ²), the paper's kernel.

    Arguments:
        features, bandwidth, track: as `Stationary` takes them.

    Example: `SquaredExponential(Linear.random(key, 784, 300))`.
    """

    def __init__(
        self,
        features: Features | None = None,
        *,
        bandwidth: float | None = None,
        track: bool | None = None,
    ):
        super().__init__(features, bandwidth=bandwidth, track=track)

    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return jnp.exp(-squares / 2)

    def frequencies(
        self, key: Key[Array, ""], number: int, dimensions: int
    ) -> Float[Array, "number dimensions"]:
        return jax.random.normal(key, (number, dimensions))


def _student(
    key: Key[Array, ""], number: int, dimensions: int, degrees: int
) -> Float[Array, "number dimensions"]:
    """Student's t, the spectral density of Matérn kernels with 2ν degrees of freedom.

    A normal vector over the root of χ²/2ν, a mean of 2ν squared normals.
    """
    normal = jax.random.normal(key, (number, dimensions + degrees))
    squares = (normal[:, dimensions:] ** 2).mean(axis=1, keepdims=True)
    return normal[:, :dimensions] * jax.lax.rsqrt(squares)


def _root(squares: Array) -> Array:
    """√, with derivative 0 at 0."""
    positive = squares > 1e-12
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1.0)), 0.0)


class Matern12(Stationary):
    """k = exp(−r), r = d/σ.

    Arguments:
        features, bandwidth, track: as `Stationary` takes them.

    Example: `Matern12(Linear.random(key, 784, 300))`.
    """

    def __init__(
        self,
        features: Features | None = None,
        *,
        bandwidth: float | None = None,
        track: bool | None = None,
    ):
        super().__init__(features, bandwidth=bandwidth, track=track)

    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return jnp.exp(-_root(squares))

    def frequencies(
        self, key: Key[Array, ""], number: int, dimensions: int
    ) -> Float[Array, "number dimensions"]:
        return _student(key, number, dimensions, 1)


class Matern32(Stationary):
    """k = (1 + √3 r) exp(−√3 r), r = d/σ.

    Arguments:
        features, bandwidth, track: as `Stationary` takes them.

    Example: `Matern32(Linear.random(key, 784, 300))`.
    """

    def __init__(
        self,
        features: Features | None = None,
        *,
        bandwidth: float | None = None,
        track: bool | None = None,
    ):
        super().__init__(features, bandwidth=bandwidth, track=track)

    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        r = _root(3 * squares)
        return (1 + r) * jnp.exp(-r)

    def frequencies(
        self, key: Key[Array, ""], number: int, dimensions: int
    ) -> Float[Array, "number dimensions"]:
        return _student(key, number, dimensions, 3)


class Matern52(Stationary):
    """k = (1 + √5 r + 5r²/3) exp(−√5 r), r = d/σ.

    Arguments:
        features, bandwidth, track: as `Stationary` takes them.

    Example: `Matern52(Linear.random(key, 784, 300))`.
    """

    def __init__(
        self,
        features: Features | None = None,
        *,
        bandwidth: float | None = None,
        track: bool | None = None,
    ):
        super().__init__(features, bandwidth=bandwidth, track=track)

    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        r = _root(5 * squares)
        return (1 + r + r**2 / 3) * jnp.exp(-r)

    def frequencies(
        self, key: Key[Array, ""], number: int, dimensions: int
    ) -> Float[Array, "number dimensions"]:
        return _student(key, number, dimensions, 5)


def squared_distances(
    a: Float[Array, "n features"], b: Float[Array, "m features"]
) -> Float[Array, "n m"]:
    """‖a_i − b_j‖² by one matrix product, centred on b so that little is lost to rounding.

    Arguments:
        a, b: the rows of both.

    Example: `squared_distances(jnp.zeros((3, 2)), jnp.ones((4, 2)))` has 2 everywhere.
    """
    centre = jax.lax.stop_gradient(b.mean(axis=0))
    a, b = a - centre, b - centre
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)
    return jnp.maximum(squares - 2 * a @ b.T, 0)


def median_distance(a: Float[Array, "n features"], most: int = 1000) -> Float[Array, ""]:
    """The median distance between two different rows.

    Rows that coincide (discrete data) do not count; the result is 1 when all rows coincide.

    Arguments:
        a: the rows.
        most: over how many rows at most.

    Example: `median_distance(flatten(draws.x))`.
    """
    a = a[:most]
    n = a.shape[0]
    pairs = jnp.sqrt(squared_distances(a, a))[jnp.triu_indices(n, 1)]
    return median_of_positive(pairs, _rounding(a))


def median_of_positive(
    values: Float[Array, " pairs"], floor: Float[Array, ""] | float
) -> Float[Array, ""]:
    """The median of the values above the floor, which is rounding error; 1 when there are none."""
    positive = values > floor
    ordered = jnp.sort(jnp.where(positive, values, jnp.inf))
    count = positive.sum()
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return jnp.where(jnp.isfinite(median) & (count > 0), median, 1.0)


def _rounding(a: Float[Array, "n features"]) -> Float[Array, ""]:
    """Distances below this one are rounding error."""
    return 1e-5 * jnp.sqrt((a**2).mean() + 1e-30)


def sampled_median_distance(a: Float[Array, "n features"]) -> Float[Array, ""]:
    """The median distance over some 2000 pairs of independent rows: neighbours, and theirs.

    Rows that coincide do not count; with few rows, all their pairs do.

    Arguments:
        a: the rows.

    Example: `sampled_median_distance(flatten(draws.x))`.
    """
    n = a.shape[0]
    if n <= 64:
        return median_distance(a)
    lags = range(1, 1 + max(1, 2000 // n))
    squares = jnp.concatenate([((a - jnp.roll(a, lag, axis=0)) ** 2).sum(axis=1) for lag in lags])
    return median_of_positive(jnp.sqrt(squares), _rounding(a))
