"""Work on many rows some at a time, so that memory does not grow with what is made on the way."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from alws.sharding import number_of_devices, over_devices

ROWS = 16384
"""The most draws that are simulated or scored at once."""


def by_blocks(
    function: Callable[[PyTree], PyTree], rows: PyTree, most: int | None = None
) -> PyTree:
    """`function(rows)` for a function that works row by row, at most `most` (`ROWS`) at a time.

    Beyond one block, what a block makes on the way is made again in the backward pass, not kept.
    With a mesh every device has `most` rows at a time, its own.

    Example: `by_blocks(jax.vmap(model.sample), jax.random.split(key, 100_000))`.
    """
    n = jax.tree.leaves(rows)[0].shape[0]
    devices = number_of_devices()
    most = (ROWS if most is None else most) * devices
    if n <= most:
        return function(rows)
    number = -(-n // most)
    size = devices * -(-n // (number * devices))
    extra = number * size - n

    def cut(a: jax.Array) -> jax.Array:
        whole = a if extra == 0 else jnp.concatenate([a, a[:extra]])
        # A block takes one row in `number`, and so an equal share of each device's.
        return jnp.moveaxis(whole.reshape(size, number, *a.shape[1:]), 1, 0)

    def join(a: jax.Array) -> jax.Array:
        return over_devices(jnp.moveaxis(a, 0, 1).reshape(number * size, *a.shape[2:]))[:n]

    again = jax.checkpoint(
        lambda some: over_devices(function(over_devices(some)))
    )  # a module itself need not be hashable
    done = jax.lax.map(again, jax.tree.map(cut, rows))
    return jax.tree.map(join, done)
