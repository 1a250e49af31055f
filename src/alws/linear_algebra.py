"""Solving (K + λI) v = b: one Cholesky factor for all right-hand sides, checked, differentiable.

In float32 the factorisation is at the edge when λ is small (condition number about N/λ). A factor
that is not finite is tried again with ten times the ridge, and the escalations are counted.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MOST_ESCALATIONS = 8


class Factor(NamedTuple):
    """A Cholesky factor of K + ridge·I, the ridge it took and how often it was raised."""

    lower: Float[Array, "n n"]
    ridge: Float[Array, ""]
    escalations: Int[Array, ""]


def factorise(gram: Float[Array, "n n"], ridge: Float[Array, ""]) -> Factor:
    """Cholesky factor of `gram + ridge·I`, with more ridge where that is not positive definite."""
    gram, ridge = jax.lax.stop_gradient((gram, ridge.astype(gram.dtype)))
    floor = gram.shape[0] * jnp.finfo(gram.dtype).eps * jnp.abs(jnp.diagonal(gram)).max()

    def attempt(ridge: Array, escalations: Array) -> Factor:
        lower = jax.lax.linalg.cholesky(_add_diagonal(gram, ridge), symmetrize_input=False)
        return Factor(lower, ridge, escalations)

    def failed(factor: Factor) -> Array:
        return ~jnp.isfinite(factor.lower[-1, -1]) & (factor.escalations < MOST_ESCALATIONS)

    def escalate(factor: Factor) -> Factor:
        return attempt(jnp.maximum(10 * factor.ridge, floor), factor.escalations + 1)

    return jax.lax.while_loop(failed, escalate, attempt(ridge, jnp.array(0)))


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

    def with_factor(_: object, b: Array) -> Array:
        return jax.scipy.linalg.cho_solve((factor.lower, True), b)

    return jax.lax.custom_linear_solve(product, b, with_factor, symmetric=True)


def _add_diagonal(a: Float[Array, "n n"], value: Float[Array, ""]) -> Float[Array, "n n"]:
    diagonal = jnp.arange(a.shape[0])
    return a + jnp.where(diagonal[:, None] == diagonal, value, 0)
