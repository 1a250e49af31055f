"""Solving (K + λI) v = b: one Cholesky factor for all right-hand sides, checked, differentiable.

In float32 the factorisation is at the edge when λ is small (condition number about N/λ). A factor
that is not finite is tried again with ten times the ridge, and the escalations are counted.

A large factor is made block column by block column, so that nearly all of the work, in the solves
too, is matrix products, which use every core where LAPACK's own routines are held to one.
"""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from alws.sharding import by_itself

MOST_ESCALATIONS = 8
LARGE, BLOCK = 1025, 200
"""From how many rows on the factor is made in blocks, and the rows of a block."""


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
    if n < LARGE:
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
