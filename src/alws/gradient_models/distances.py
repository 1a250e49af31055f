"""Distances in a kernel's own metric, d²(x, y) = k(x, x) + k(y, y) − 2k(x, y), some at a time."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from alws.blocks import by_blocks
from alws.kernels import Kernel

ENTRIES = 2**23
"""How many entries of a kernel matrix are held at once."""

MOST_OWN = 1000
"""How many sleep samples tell how far apart they lie."""


def diagonal(kernel: Kernel, a: PyTree[Array]) -> Float[Array, " n"]:
    """k(a_i, a_i) of every member of a placed batch."""

    def norm(point: PyTree) -> Array:
        batch = jax.tree.map(lambda leaf: leaf[None], point)
        return kernel.gram(batch, batch)[0, 0]

    return jax.vmap(norm)(a)


def share_outside(kernel: Kernel, sleep: PyTree[Array], points: PyTree[Array]) -> Float[Array, ""]:
    """The share of points farther from the nearest sleep sample than 99 % of these are.

    At most `MOST_OWN` sleep samples are compared with all others.
    """
    norms = diagonal(kernel, sleep)
    n = norms.shape[0]
    some = jax.tree.map(lambda a: a[:MOST_OWN], sleep)

    def nearest(queries: tuple[PyTree, Int[Array, " m"]]) -> Float[Array, " m"]:
        batch, own = queries
        between = 2 * kernel.gram(batch, sleep) - norms
        between = jnp.where(own[:, None] == jnp.arange(n), -jnp.inf, between)
        return diagonal(kernel, batch) - between.max(axis=1)

    def distances(batch: PyTree, own: Int[Array, " m"]) -> Float[Array, " m"]:
        return by_blocks(nearest, (batch, own), max(1, ENTRIES // n))

    theirs = distances(points, jnp.full(jax.tree.leaves(points)[0].shape[0], -1))
    own = distances(some, jnp.arange(min(n, MOST_OWN)))
    return jnp.mean(theirs > jnp.quantile(own, 0.99), dtype=own.dtype)
