"""What a kernel is, sums of kernels, and features whose inner products stand for one."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.values import instance


class FeatureMap(eqx.Module):
    """φ with φ(x)·φ(x') ≈ k(x, x'), of an embedded batch, row by row."""

    @abstractmethod
    def __call__(self, a: PyTree[Array]) -> Float[Array, "n features"]:
        """φ of every member of the batch."""


class Kernel(eqx.Module):
    """A positive definite function of two observations.

    `evaluate` is all that a kernel must have. What it compares is `embed(x)`, x itself unless it
    says otherwise; below, `a`, `b` and `sleep` are embedded batches. The other methods are there to
    be overridden by kernels that have a bandwidth, scales or features.
    """

    @abstractmethod
    def evaluate(self, a: PyTree[Array], b: PyTree[Array]) -> Float[Array, "n m"]:
        """k of every pair from two embedded batches."""

    def embed(self, x: PyTree[Array]) -> PyTree[Array]:
        """What the kernel compares, for a batch of observations."""
        return x

    def initialise(self, x: PyTree[Array]) -> "Kernel":
        """The kernel at the start of a fit, given a first batch of sleep observations."""
        return self

    def scale_to(self, sleep: PyTree[Array]) -> "Kernel":
        """The kernel as a step uses it: scales that follow the sleep samples are set here."""
        return self

    def clip_to_range(self, a: PyTree[Array], sleep: PyTree[Array]) -> PyTree[Array]:
        """A batch with what lies beyond the range of the sleep samples moved to its edge."""
        return a

    def bandwidths(self) -> list[Any]:
        """The leaves that `Adapt(bandwidth=True)` adapts."""
        return []

    def draw_features(self, key: Key[Array, ""], number: int, sleep: PyTree[Array]) -> FeatureMap:
        """Random features whose inner products estimate this kernel, for `RandomFeatures`."""
        raise TypeError(
            f"random features need a kernel that says how to draw them; {type(self).__name__} has "
            "no `draw_features(key, number, sleep)`. Give it one, or use `Nystrom` or "
            "`ConjugateGradients`, which only evaluate the kernel."
        )

    def __call__(self, x: PyTree[Array], y: PyTree[Array]) -> Float[Array, "n m"]:
        """k(x_i, y_j) for two batches of observations."""
        a = self.embed(x)
        return self.scale_to(a).evaluate(a, self.embed(y))

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum((self, other))


class Sum(Kernel):
    """k = Σ_i exp(log_weight_i) k_i, each with features and bandwidth of its own.

    Arguments:
        kernels: the k_i.

    Example: `SquaredExponential() + Matern12()`.
    """

    kernels: tuple[Kernel, ...]
    log_weight: Float[Array, " kernels"]

    def __init__(self, kernels: tuple[Kernel, ...]):
        for kernel in kernels:
            instance("kernel", kernel, Kernel, "a kernel", "Use `alws.kernels.DotProduct()`.")
        self.kernels = tuple(kernels)
        self.log_weight = jnp.zeros(len(self.kernels))

    def embed(self, x: PyTree[Array]) -> tuple[PyTree, ...]:
        return tuple(kernel.embed(x) for kernel in self.kernels)

    def evaluate(self, a: tuple[PyTree, ...], b: tuple[PyTree, ...]) -> Float[Array, "n m"]:
        parts = zip(jnp.exp(self.log_weight), self.kernels, a, b, strict=True)
        return sum(weight * kernel.evaluate(u, v) for weight, kernel, u, v in parts)  # pyright: ignore

    def initialise(self, x: PyTree[Array]) -> "Sum":
        return self._with(kernel.initialise(x) for kernel in self.kernels)

    def scale_to(self, sleep: tuple[PyTree, ...]) -> "Sum":
        return self._with(k.scale_to(u) for k, u in zip(self.kernels, sleep, strict=True))

    def clip_to_range(self, a: tuple[PyTree, ...], sleep: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        parts = zip(self.kernels, a, sleep, strict=True)
        return tuple(kernel.clip_to_range(u, v) for kernel, u, v in parts)

    def bandwidths(self) -> list[Any]:
        return [self.log_weight, *(leaf for k in self.kernels for leaf in k.bandwidths())]

    def draw_features(
        self, key: Key[Array, ""], number: int, sleep: tuple[PyTree, ...]
    ) -> FeatureMap:
        keys = jax.random.split(key, len(self.kernels))
        parts = zip(self.kernels, sleep, keys, strict=True)
        return SideBySide(
            tuple(k.draw_features(c, number, a) for k, a, c in parts), self.log_weight
        )

    def _with(self, kernels: Iterable[Kernel]) -> "Sum":
        return eqx.tree_at(lambda s: s.kernels, self, tuple(kernels))


class SideBySide(FeatureMap):
    """The features of a sum of kernels, (√w_1 φ_1, √w_2 φ_2, …)."""

    parts: tuple[FeatureMap, ...]
    log_weight: Float[Array, " kernels"]

    def __call__(self, a: tuple[PyTree, ...]) -> Float[Array, "n features"]:
        roots = jnp.exp(self.log_weight / 2)
        parts = zip(roots, self.parts, a, strict=True)
        return jnp.concatenate([root * part(u) for root, part, u in parts], axis=1)
