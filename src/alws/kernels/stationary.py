"""Kernels of the distance between features: squared exponential and Matérn."""

import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.features import Features, Identity
from alws.kernels.base import Kernel
from alws.kernels.distances import median_distance, sampled_median_distance, squared_distances


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
        self.log_bandwidth = jnp.array(math.nan if start is None else math.log(start), float)

    @abstractmethod
    def profile(self, squares: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """The kernel as a function of the squared distance in bandwidths."""

    def frequencies(
        self, key: Key[Array, ""], number: int, dimensions: int
    ) -> Float[Array, "number dimensions"]:
        """Draws ω from the spectral density at σ = 1: E cos(ω·(a − b)) = profile(‖a − b‖²)."""
        raise NotImplementedError(
            f"{type(self).__name__} must say how to draw from its spectral density to be used with "
            "random features: give it `frequencies(key, number, dimensions)`, or use `Nystrom`."
        )

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
        median = jnp.log(jax.lax.stop_gradient(sampled_median_distance(kernel.place(a))))
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
    """k = exp(−r), r = d/σ."""

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
    """k = (1 + √3 r) exp(−√3 r), r = d/σ."""

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
    """k = (1 + √5 r + 5r²/3) exp(−√5 r), r = d/σ."""

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
