"""Kernels on sets, and a user's own on anything."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.kernels.base import FeatureMap, Kernel
from alws.kernels.stationary import SquaredExponential, Stationary, median_of_positive
from alws.values import function, instance

SOME = 100
"""How many sets tell where the means of sets lie."""


class OnSets(Kernel):
    """k(A, B) = exp(−‖μ_A − μ_B‖²/2τ²), a kernel on sets of observations `[members, ...]`.

    μ_A is the mean of k(a, ·) over the members a of A, so that the squared distance is
    mean k(a, a') + mean k(b, b') − 2 mean k(a, b). τ is a factor, adapted, times the median
    distance in the sleep samples of each step. The mean of k(a, b) by itself can only express
    what is linear in μ_A; this one can express any function of a set.

    Example: `OnSets(SquaredExponential())` for observations of shape `[members, 2]`.
    """

    kernel: Stationary
    log_scale: Float[Array, ""]

    def __init__(self, kernel: Stationary):
        remedy = "Use `alws.kernels.SquaredExponential()`."
        instance("kernel", kernel, Stationary, "a kernel of a distance", remedy)
        self.kernel = kernel
        self.log_scale = jnp.zeros((), float)

    def embed(self, x: Float[Array, "n members ..."]) -> Float[Array, "n members features"]:
        members = self.kernel.embed(x.reshape(-1, *x.shape[2:]))
        return members.reshape(*x.shape[:2], -1)

    def evaluate(self, a: Array, b: Array) -> Float[Array, "n m"]:
        pairs = self.kernel.evaluate(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]))
        between = pairs.reshape(*a.shape[:2], *b.shape[:2]).mean(axis=(1, 3))
        squares = self._inner(a, a)[:, None] + self._inner(b, b) - 2 * between
        return jnp.exp(-jnp.maximum(squares, 0) * jnp.exp(-2 * self.log_scale) / 2)

    def bandwidths(self) -> list[Any]:
        return [self.log_scale, *self.kernel.bandwidths()]

    def initialise(self, x: Array) -> "OnSets":
        kernel = self.kernel.initialise(x.reshape(-1, *x.shape[2:]))
        return eqx.tree_at(lambda k: k.kernel, self, kernel)

    def scale_to(self, sleep: Array) -> "OnSets":
        members = sleep.reshape(-1, sleep.shape[-1])
        kernel = eqx.tree_at(lambda k: k.kernel, self, self.kernel.scale_to(members))
        a = jax.lax.stop_gradient(sleep)
        own = kernel._inner(a, a)
        squares = own + jnp.roll(own, 1) - 2 * kernel._inner(a, jnp.roll(a, 1, axis=0))
        median = jax.lax.stop_gradient(median_of_positive(squares, 1e-6))
        return eqx.tree_at(lambda k: k.log_scale, kernel, self.log_scale + jnp.log(median) / 2)

    def draw_features(self, key: Key[Array, ""], number: int, sleep: Array) -> FeatureMap:
        """In two stages: ‖μ_A − μ_B‖ ≈ ‖m_A − m_B‖ for the means m_A of the members' waves, and
        exp(−‖m_A − m_B‖²/2τ²) has waves of its own. Its bias is of order 1/`number`.
        """
        inner, outer = jax.random.split(key)
        members = sleep.reshape(-1, sleep.shape[-1])
        features = self.kernel.draw_features(inner, number, members)
        between = SquaredExponential(bandwidth=1.0)
        between = eqx.tree_at(lambda k: k.log_bandwidth, between, self.log_scale)
        return OfSets(
            features, between.draw_features(outer, number, _means(features, sleep[:SOME]))
        )

    def _inner(self, a: Array, b: Array) -> Float[Array, " n"]:
        """⟨μ_A, μ_B⟩ of each pair of sets."""
        return jax.vmap(lambda u, v: self.kernel.evaluate(u, v).mean())(a, b)


class OfSets(FeatureMap):
    """φ(A) = waves(mean of members(a) over the members a of A)."""

    members: FeatureMap
    waves: FeatureMap

    def __call__(self, a: Float[Array, "n members dimensions"]) -> Float[Array, "n features"]:
        return self.waves(_means(self.members, a))


def _means(
    features: FeatureMap, a: Float[Array, "n members dimensions"]
) -> Float[Array, "n features"]:
    return features(a.reshape(-1, a.shape[-1])).reshape(*a.shape[:2], -1).mean(axis=1)


class Pairwise(Kernel):
    """A user's own kernel: any positive definite function of two observations.

    Example: `Pairwise(lambda x, y: jnp.exp(-jnp.sum(x != y)))` on strings of symbols.
    """

    function: Callable[[PyTree, PyTree], Array]

    def __check_init__(self) -> None:
        function("function", self.function, "of two observations")

    def evaluate(self, a: PyTree[Array], b: PyTree[Array]) -> Float[Array, "n m"]:
        values = jax.vmap(lambda x: jax.vmap(lambda y: self.function(x, y))(b))(a)
        if not isinstance(values, jax.Array) or values.ndim != 2:
            array = isinstance(values, jax.Array)
            got = f"shape {values.shape[2:]}" if array else type(values).__name__
            raise ValueError(
                "the function of a `Pairwise` kernel must return a scalar for two observations, "
                f"got {got}. Sum over the entries."
            )
        return values
