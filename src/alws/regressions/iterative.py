"""Kernel-matrix products without the matrix, and conjugate gradients that need nothing else."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from alws.devices import by_blocks, number_of_devices, on_every_device
from alws.kernels.base import Kernel
from alws.regressions.base import Factor, solve_factored

ENTRIES = 2**22
"""How many entries of a kernel matrix a row of tiles holds at once."""

TILE = 512
"""The most rows and columns of a tile of a symmetric product."""


class Solution(NamedTuple):
    """v with A v ≈ b, the relative residual of every column and the iterations that were made."""

    value: Float[Array, "n targets"]
    residual: Float[Array, " targets"]
    iterations: Int[Array, ""]


class Preconditioner(eqx.Module):
    """P⁻¹ for P = ΦΦᵀ + μI, times μ: r − Φ(ΦᵀΦ + μI)⁻¹Φᵀ r."""

    basis: Float[Array, "n rank"]
    factor: Factor

    def __call__(self, r: Float[Array, "n targets"]) -> Float[Array, "n targets"]:
        basis, factor = jax.lax.stop_gradient((self.basis, self.factor))
        return r - basis @ solve_factored(factor, basis.T @ r)


def product(
    kernel: Kernel, a: PyTree[Array], b: PyTree[Array], v: Float[Array, "m targets"]
) -> Float[Array, "n targets"]:
    """k(a, b) v, some rows of k(a, b) at a time, and so in the backward pass.

    Example: `product(kernel, a, a, v)` is `kernel.evaluate(a, a) @ v`.
    """
    rows = max(1, ENTRIES // v.shape[0])
    b, v = on_every_device((b, v))
    return by_blocks(lambda some: kernel.evaluate(some, b) @ v, a, rows)


def symmetric_product(
    kernel: Kernel, a: PyTree[Array], v: Float[Array, "n targets"]
) -> Float[Array, "n targets"]:
    """k(a, a) v by the tiles on and above the diagonal, each used twice. Not to be differentiated.

    Example: `symmetric_product(kernel, a, v)` is `kernel.evaluate(a, a) @ v` in half the time.
    """
    n, targets = v.shape
    if number_of_devices() > 1:  # tiles that serve twice serve rows of two devices
        return product(kernel, a, a, v)
    if n <= TILE:
        return kernel.evaluate(a, a) @ v
    number = -(-n // TILE)
    size = -(-n // number)
    extra = number * size - n

    def cut(leaf: Array, fill: Array) -> Array:
        return jnp.concatenate([leaf, fill]).reshape(number, size, *leaf.shape[1:])

    # Rows that only fill the last tile up have weight zero, and their results are cut off.
    tiles = jax.tree.map(lambda leaf: cut(leaf, leaf[:extra]), a)
    weights = cut(v, jnp.zeros((extra, targets), v.dtype))
    first, second = jnp.triu_indices(number)

    def add(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        i, j = pair
        gram = kernel.evaluate(*(jax.tree.map(lambda t: t[k], tiles) for k in (i, j)))  # noqa: B023
        total = total.at[i].add(gram @ weights[j])
        below = jnp.where(i == j, 0, 1).astype(v.dtype)
        return total.at[j].add(below * (gram.T @ weights[i])), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(weights), (first, second))
    return total.reshape(number * size, targets)[:n]


def conjugate_gradients(
    product: Callable[[Array], Array],
    b: Float[Array, "n targets"],
    preconditioner: Callable[[Array], Array],
    tolerance: float,
    most: int,
) -> Solution:
    """A v = b for a positive definite A given by its products, every column on its own.

    A column that has converged, or along which A is not positive, stays as it is. One for which A
    or the preconditioner is not finite is NaN, residual and all.

    Example: `conjugate_gradients(lambda v: a @ v, b, lambda r: r, 1e-6, 100).value`.
    """
    tiny = jnp.finfo(b.dtype).tiny
    size = jnp.linalg.norm(b, axis=0)
    goal = tolerance * size

    def going(r: Array) -> Array:
        return jnp.linalg.norm(r, axis=0) > goal

    def more(carry: tuple) -> Array:
        *_, alive, count = carry
        return alive.any() & (count < most)

    def improve(carry: tuple) -> tuple:
        v, r, p, rz, alive, count = carry
        ap = product(p)
        curvature = (p * ap).sum(axis=0)
        alive = alive & (curvature > 0)
        step = jnp.where(alive, rz / jnp.where(alive, curvature, 1), 0)
        v, before, r = v + step * p, r, r - step * ap
        z = preconditioner(r)
        new = (r * z).sum(axis=0)
        alive = alive & going(r) & (new > 0)
        # Polak and Ribière's form, which forgives a preconditioner that rounding has made inexact.
        ratio = jnp.where(alive, ((r - before) * z).sum(axis=0) / jnp.maximum(rz, tiny), 0)
        return v, r, z + ratio * p, new, alive, count + 1

    z = preconditioner(b)
    rz = (b * z).sum(axis=0)
    start = jnp.zeros_like(b), b, z, rz, going(b) & (rz > 0), jnp.zeros((), int)
    v, r, *_, count = jax.lax.while_loop(more, improve, start)
    residual = jnp.linalg.norm(r, axis=0) / jnp.maximum(size, tiny)
    finite = jnp.isfinite(residual) & jnp.isfinite(rz)
    return Solution(jnp.where(finite, v, jnp.nan), jnp.where(finite, residual, jnp.nan), count)
