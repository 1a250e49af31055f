"""What a kernel is, and sums of kernels."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


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
