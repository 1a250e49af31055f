"""What a regression is, and the ridge solve most of them share.

The algorithm asks for linear smoothers: prediction = W·targets, with weights W that depend on x
alone. So ∇_θ Ĵ(x*) = W(x*) ∇_θ y: the regression of J, differentiated, is the regression of the
gradient.

Solving (K + λI) v = b: one Cholesky factor for all right-hand sides, checked, differentiable. In
float32 the factorisation is at the edge when λ is small (condition number about N/λ). A factor that
is not finite is tried again with ten times the ridge, and the escalations are counted. On the CPU a
large factor is made block column by block column, so that nearly all of the work is products of
matrices, which use every core where LAPACK's own routines are held to one: without it the image
step of `benchmarks/step.py` takes 1.4 times as long.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import scipy.linalg  # noqa: F401  (its LAPACK is the one JAX calls; load it to find its threads)
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from threadpoolctl import threadpool_limits

from alws.devices import by_itself
from alws.kernels.base import Kernel
from alws.validation import instance, positive

MOST_ESCALATIONS = 8
LARGE, BLOCK = 1025, 200
"""From how many rows on the factor is made in blocks, and the rows of a block."""


def check_kernel(kernel: Any) -> None:
    """Refuse what is no kernel.

    Example: `check_kernel(alws.kernels.SquaredExponential())` passes, without its call it does not.
    """
    instance("kernel", kernel, Kernel, "a kernel", "Use `alws.kernels.SquaredExponential()`.")


class SolveReport(NamedTuple):
    """How a regression was solved: its ridge, how often that was raised, and what is left unsolved.

    `residual` is the worst ‖b − (K + λI)v‖/‖b‖, 0 for regressions that factorise.
    """

    ridge: Float[Array, ""]
    escalations: Int[Array, ""]
    residual: Float[Array, ""]


class Cost(NamedTuple):
    """What one step needs at the least: bytes of memory, and operations on numbers."""

    memory: float
    operations: float


class Smoother(eqx.Module):
    """A regression fitted to sleep samples: prediction = W·targets, W a function of x alone."""

    @abstractmethod
    def weights(self, x: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W: how much each sleep sample counts for each point."""

    @abstractmethod
    def predict(
        self, x: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """W·targets."""

    @abstractmethod
    def predict_vjp(
        self, x: PyTree[Array], cotangents: PyTree[Float[Array, "points _"]]
    ) -> PyTree[Float[Array, "sleep _"]]:
        """Wᵀ·cotangents, of one matrix or of each of several: what is asked of each sample."""

    @abstractmethod
    def outside(self, x: PyTree[Array]) -> Float[Array, ""]:
        """The share of points outside the sleep samples: about 0.01 if they are alike, up to 1."""

    @abstractmethod
    def report(self, x: PyTree[Array]) -> SolveReport:
        """How it was solved; the residual is that of the solves for these points."""


class Regression(eqx.Module):
    """The parameters γ of such a regression: a pytree whose float arrays can be adapted.

    `fit` is all that a regression must have; the other methods are there to be overridden by those
    that have scales to set, bandwidths, a ridge or something to check.
    """

    @abstractmethod
    def fit(self, x: PyTree[Array], wake: PyTree[Array] | None = None) -> Smoother:
        """The regression on sleep observations x, to be used for the wake batch if it is given."""

    def initialise(self, x: PyTree[Array]) -> "Regression":
        """γ with its scales set from a first batch of sleep observations."""
        return self

    def check(self, x: PyTree[Array]) -> None:
        """Refuse, at the start of a fit, what does not work on these first sleep observations."""

    def cost(self, samples: int) -> Cost:
        """What a step with so many sleep samples needs; what is not known counts as nothing."""
        return Cost(0, 0)

    def bandwidths(self) -> list[Any]:
        """The leaves that `Adapt(bandwidth=True)` adapts."""
        return []

    def ridges(self) -> list[Any]:
        """The leaves that `Adapt(ridge=True)` adapts. All others count as weights of features."""
        return []


class Recipe(ABC):
    """How to make a regression for the data of a fit; `alws.Settings` takes one in its place.

    It holds no arrays, so that settings can be written down before there are data or devices.
    """

    @abstractmethod
    def make(self, data: PyTree[Array], key: Key[Array, ""]) -> Regression:
        """The regression for these data; random numbers, if any, depend on the fit's key."""


class KernelSmoother(Smoother):
    """A smoother with a kernel, by what W is without an intercept.

    With one the weights sum to one, W + (1 − W1)/N, so that what does not depend on x is predicted
    exactly instead of being shrunk.

    `points` below are always embedded and, if `clip`, within the sleep samples' range.
    """

    kernel: eqx.AbstractVar[Kernel]
    embedded: eqx.AbstractVar[PyTree[Array]]
    intercept: eqx.AbstractVar[bool]
    clip: eqx.AbstractVar[bool]

    @abstractmethod
    def plain_weights(self, points: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W without an intercept."""

    @abstractmethod
    def plain_predict(
        self, points: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """W·targets without an intercept."""

    @abstractmethod
    def plain_predict_vjp(
        self, points: PyTree[Array], cotangents: Float[Array, "points targets"]
    ) -> Float[Array, "sleep targets"]:
        """Wᵀ·cotangents without an intercept, one solve for each target."""

    def weights(self, x: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W: how much each sleep sample counts for each point."""
        plain = self.plain_weights(self._points(x))
        if not self.intercept:
            return plain
        return plain + (1 - plain.sum(axis=1, keepdims=True)) / plain.shape[1]

    def predict(
        self, x: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """W·targets."""
        mean = targets.mean(axis=0) if self.intercept else jnp.zeros(())
        return self.plain_predict(self._points(x), targets - mean) + mean

    def predict_vjp(
        self, x: PyTree[Array], cotangents: PyTree[Float[Array, "points _"]]
    ) -> PyTree[Float[Array, "sleep _"]]:
        """Wᵀ·cotangents: what the points ask of each sleep sample. Solves for the fewer columns."""
        leaves, structure = jax.tree.flatten(cotangents)
        widths = [leaf.shape[1] for leaf in leaves]
        if sum(widths) >= leaves[0].shape[0]:
            weights = self.weights(x).T
            return jax.tree.map(lambda columns: weights @ columns, cotangents)
        columns = jnp.concatenate(leaves, axis=1)
        pulled = self.plain_predict_vjp(self._points(x), columns)
        if self.intercept:
            pulled += (columns.sum(axis=0) - pulled.sum(axis=0)) / pulled.shape[0]
        ends = list(accumulate(widths))[:-1]
        return jax.tree.unflatten(structure, jnp.split(pulled, ends, axis=1))

    def _points(self, x: PyTree[Array]) -> PyTree[Array]:
        points = self.kernel.embed(x)
        return self.kernel.clip_to_range(points, self.embedded) if self.clip else points


class Column(NamedTuple):
    """A block column of L: of its diagonal block the inverse, transposed, and all that is below."""

    inverse: Float[Array, "size size"]
    below: Float[Array, "rest size"]


Parts: TypeAlias = Float[Array, "n n"] | tuple[Column, ...]
"""L, given as Lᵀ, or by its block columns if it is large."""


class Factor(NamedTuple):
    """A Cholesky factor L of K + ridge·I, the ridge it took and how often it was raised."""

    parts: Parts
    ridge: Float[Array, ""]
    escalations: Int[Array, ""]

    @property
    def finite(self) -> Bool[Array, ""]:
        """Whether it was made: what is not finite is carried on to the last entry."""
        last = self.parts[-1].inverse if isinstance(self.parts, tuple) else self.parts
        return jnp.isfinite(last[-1, -1])


def factorise(gram: Float[Array, "n n"], ridge: Float[Array, ""]) -> Factor:
    """Cholesky factor of `gram + ridge·I`, with more ridge where that is not positive definite.

    Every device makes it by itself: blocks that depend on one another are not worth sending about.
    """
    gram, ridge = jax.lax.stop_gradient((gram, ridge.astype(gram.dtype)))
    return by_itself(_factorise)(gram, ridge)


def _factorise(gram: Float[Array, "n n"], ridge: Float[Array, ""]) -> Factor:
    floor = gram.shape[0] * jnp.finfo(gram.dtype).eps * jnp.abs(jnp.diagonal(gram)).max()
    shapes = jax.eval_shape(lambda: _cholesky(gram, ridge))
    parts = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), shapes)
    nothing = Factor(parts, ridge, jnp.full((), -1))

    def failed(factor: Factor) -> Array:
        untried = factor.escalations < 0
        return untried | (~factor.finite & (factor.escalations < MOST_ESCALATIONS))

    def attempt(factor: Factor) -> Factor:
        raised = jnp.maximum(10 * factor.ridge, floor)
        ridge = jnp.where(factor.escalations < 0, factor.ridge, raised)
        return Factor(_cholesky(gram, ridge), ridge, factor.escalations + 1)

    return jax.lax.while_loop(failed, attempt, nothing)


def solve(
    gram: Float[Array, "n n"],
    ridge: Float[Array, ""],
    factor: Factor,
    b: Float[Array, "n targets"],
) -> Float[Array, "n targets"]:
    """(gram + ridge·I)⁻¹ b, differentiable in `gram`, `ridge` and b without a second factorisation.

    The derivative is that of the linear system, −A⁻¹ dA A⁻¹ b, not of the factorisation.
    """
    extra = factor.ridge - jax.lax.stop_gradient(ridge)

    def product(v: Array) -> Array:
        return gram @ v + (ridge + extra) * v

    return jax.lax.custom_linear_solve(
        product, b, lambda _, b: solve_factored(factor, b), symmetric=True
    )


def solve_factored(factor: Factor, b: Float[Array, "n targets"]) -> Float[Array, "n targets"]:
    """The factorised matrix's inverse times b, with the ridge it took; not to be differentiated.

    Example: `solve_factored(factorise(gram, ridge), b)`.
    """
    return by_itself(_substitute)(factor.parts, b)


def _blocks(n: int) -> list[slice]:
    """Blocks of `BLOCK` rows, the last of what is left: products are quick with sizes like that."""
    return [slice(a, min(a + BLOCK, n)) for a in range(0, n, BLOCK)]


def _cholesky(a: Float[Array, "n n"], ridge: Float[Array, ""]) -> Parts:
    """The factor's parts. With A = a + ridge·I those of a large one are

    C = A[k:, k] − L[k:, :k] L[k, :k]ᵀ,  L[k, k] = chol(C[k]),  L[k+1:, k] = C[k+1:] L[k, k]⁻ᵀ

    for one block column k after the other.
    """
    n = a.shape[0]
    if n < LARGE or jax.default_backend() != "cpu":
        return _upper(a, ridge)
    done: list[Column] = []
    for k in _blocks(n):
        size = k.stop - k.start
        left = jnp.concatenate([a[k.start :, :0], *(c.below[k.start - n :] for c in done)], axis=1)
        column = a[k.start :, k] - left @ left[:size].T
        upper = _upper(column[:size], ridge)
        inverse = _solve_lower(upper, jnp.eye(size, dtype=a.dtype)).T
        done.append(Column(inverse, column[size:] @ inverse))
    return tuple(done)


def whiten(factor: Factor, b: Float[Array, "n targets"]) -> Float[Array, "n targets"]:
    """L⁻¹ b, forwards through the blocks of a large factor.

    Example: `k @ whiten(factorise(gram, jitter), jnp.eye(n)).T` has rows whose inner products are
    k (gram + jitter·I)⁻¹ kᵀ.
    """
    return by_itself(_whiten)(factor.parts, b)


def _whiten(parts: Parts, b: Float[Array, "n targets"]) -> Float[Array, "n targets"]:
    """L⁻¹ b."""
    if isinstance(parts, tuple):
        return jnp.concatenate(_forward(parts, b))
    return _solve_lower(parts, b)


def _substitute(parts: Parts, b: Float[Array, "n targets"]) -> Float[Array, "n targets"]:
    """L⁻ᵀ L⁻¹ b, forwards and then backwards through the blocks."""
    if not isinstance(parts, tuple):
        return _solve_lower(parts, _solve_lower(parts, b), transpose=True)
    done = b[:0]
    for column, block in zip(reversed(parts), reversed(_forward(parts, b)), strict=True):
        done = jnp.concatenate([column.inverse @ (block - column.below.T @ done), done])
    return done


def _forward(
    columns: tuple[Column, ...], b: Float[Array, "n targets"]
) -> list[Float[Array, "_ targets"]]:
    """L⁻¹ b, block by block."""
    done = []
    for column in columns:
        size = column.inverse.shape[0]
        done.append(column.inverse.T @ b[:size])
        b = b[size:] - column.below @ done[-1]
    return done


def _upper(a: Float[Array, "n n"], ridge: Float[Array, ""]) -> Float[Array, "n n"]:
    """Lᵀ of a + ridge·I. LAPACK keeps matrices by columns: transposed, nothing has to be moved."""
    a = a + ridge * jnp.eye(a.shape[0], dtype=a.dtype)
    return jax.lax.linalg.cholesky(a.T, symmetrize_input=False).T


def _solve_lower(
    upper: Float[Array, "n n"], b: Float[Array, "n targets"], transpose: bool = False
) -> Float[Array, "n targets"]:
    """L⁻¹ b, or L⁻ᵀ b, given Lᵀ."""
    return jax.lax.linalg.triangular_solve(
        upper.T, b, left_side=True, lower=True, transpose_a=transpose
    )


def one_lapack_thread() -> AbstractContextManager:
    """Within this context LAPACK runs on one thread, so that it does not fight XLA's own threads.

    The factorisation is LAPACK's, everything around it XLA's. Two pools of spinning threads on the
    same cores made a 10 ms factorisation take 600 ms beside another busy process.

    Example: `with one_lapack_thread(): state, info = prepared.step(state, 0)`.
    """
    return threadpool_limits(limits=1, user_api="blas")


def check_ridge(ridge: float) -> None:
    """Refuse a ridge that is not positive."""
    why = " It is added to the diagonal of the Gram matrix as it is; 0.001 to 0.1 is usual."
    positive("ridge", ridge, why)


def check_regression(regression: Any) -> None:
    """Refuse what is no regression."""
    example = "Use `alws.regressions.KernelRidge(kernel)`, or leave it out."
    instance("regression", regression, Regression, "a regression", example)


def bytes_of(numbers: int) -> int:
    """The bytes of so many floating-point numbers, as JAX is set."""
    return numbers * jnp.zeros((), float).dtype.itemsize
