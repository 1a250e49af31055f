"""Solving (K + λI) v = b: one Cholesky factor for all right-hand sides, checked, differentiable.

In float32 the factorisation is at the edge when λ is small (condition number about N/λ). A factor
that is not finite is tried again with ten times the ridge, and the escalations are counted.

A large factor is made block column by block column, so that nearly all of the work, in the solves
too, is matrix products, which use every core where LAPACK's own routines are held to one.
"""

from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from alws.sharding import by_itself

MOST_ESCALATIONS = 8
LARGE, BLOCK = 1025, 200
"""From how many rows on the factor is made in blocks, and the most rows of a block."""


class Factor(NamedTuple):
    """A Cholesky factor L of K + ridge·I, the ridge it took and how often it was raised.

    `array` is Lᵀ; of a large matrix it is L with L⁻ᵀ in place of each diagonal block.
    """

    array: Float[Array, "n n"]
    ridge: Float[Array, ""]
    escalations: Int[Array, ""]


def factorise(gram: Float[Array, "n n"], ridge: Float[Array, ""]) -> Factor:
    """Cholesky factor of `gram + ridge·I`, with more ridge where that is not positive definite.

    Every device makes it by itself: blocks that depend on one another are not worth sending about.
    """
    gram, ridge = jax.lax.stop_gradient((gram, ridge.astype(gram.dtype)))
    return by_itself(_factorise)(gram, ridge)


def _factorise(gram: Float[Array, "n n"], ridge: Float[Array, ""]) -> Factor:
    floor = gram.shape[0] * jnp.finfo(gram.dtype).eps * jnp.abs(jnp.diagonal(gram)).max()
    nothing = Factor(jnp.zeros_like(gram), ridge, jnp.full((), -1))

    def failed(factor: Factor) -> Array:
        untried = factor.escalations < 0
        bad = ~jnp.isfinite(factor.array[-1, -1])
        return untried | (bad & (factor.escalations < MOST_ESCALATIONS))

    def attempt(factor: Factor) -> Factor:
        raised = jnp.maximum(10 * factor.ridge, floor)
        ridge = jnp.where(factor.escalations < 0, factor.ridge, raised)
        return Factor(_cholesky(gram, ridge, factor.array), ridge, factor.escalations + 1)

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
    return by_itself(_substitute)(factor.array, b)


def _blocks(n: int) -> list[slice]:
    """Nearly equal blocks of at most `BLOCK` rows."""
    number = -(-n // BLOCK)
    ends = [n * i // number for i in range(number + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


def _cholesky(
    a: Float[Array, "n n"], ridge: Float[Array, ""], factor: Float[Array, "n n"]
) -> Float[Array, "n n"]:
    """The factor as `Factor` keeps it. A large one is written over `factor`: with A = a + ridge·I,

    C = A[k:, k] − L[k:, :k] L[k, :k]ᵀ,  L[k, k] = chol(C[k]),  L[k+1:, k] = C[k+1:] L[k, k]⁻ᵀ

    for one block column k after the other.
    """
    if a.shape[0] < LARGE:
        return _upper(a, ridge)
    for k in _blocks(a.shape[0]):
        left = factor[k.start :, : k.start]
        size = k.stop - k.start
        column = a[k.start :, k] - left @ left[:size].T
        upper = _upper(column[:size], ridge)
        inverse = _solve_lower(upper, jnp.eye(size, dtype=a.dtype)).T
        column = jnp.concatenate([inverse, column[size:] @ inverse])
        factor = jax.lax.dynamic_update_slice(factor, column, (k.start, k.start))
    return factor


def whiten(factor: Factor, b: Float[Array, "n targets"]) -> Float[Array, "n targets"]:
    """L⁻¹ b, forwards through the blocks of a large factor.

    Example: `k @ whiten(factorise(gram, jitter), jnp.eye(n)).T` has rows whose inner products are
    k (gram + jitter·I)⁻¹ kᵀ.
    """
    return by_itself(_forward)(factor.array, b)


def _substitute(
    factor: Float[Array, "n n"], b: Float[Array, "n targets"]
) -> Float[Array, "n targets"]:
    """L⁻ᵀ L⁻¹ b, forwards and then backwards through the blocks."""
    forward = _forward(factor, b)
    if b.shape[0] < LARGE:
        return _solve_lower(factor, forward, transpose=True)
    done = b[:0]
    for k in reversed(_blocks(b.shape[0])):
        rest = forward[k] - factor[k.stop :, k].T @ done
        done = jnp.concatenate([factor[k, k] @ rest, done])
    return done


def _forward(factor: Float[Array, "n n"], b: Float[Array, "n targets"]) -> Array:
    """L⁻¹ b."""
    if b.shape[0] < LARGE:
        return _solve_lower(factor, b)
    done = b[:0]
    for k in _blocks(b.shape[0]):
        rest = b[k] - factor[k, : k.start] @ done
        done = jnp.concatenate([done, factor[k, k].T @ rest])
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
