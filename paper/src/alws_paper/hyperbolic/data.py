"""A tree in data space: a branching diffusion, as in Mathieu et al. (2019).

Every node is its parent plus Gaussian noise, so that squared distances along the tree add up:
x_root = 0, x_i ~ N(x_parent(i), step² I), and each node is observed several times with noise.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key


class Tree(NamedTuple):
    """Observations of the nodes of a tree; the root is node 0 and its own parent."""

    x: Float[Array, "observations entries"]
    node: Int[np.ndarray, " observations"]
    depth: Int[np.ndarray, " nodes"]
    parent: Int[np.ndarray, " nodes"]


def branching_diffusion(
    key: Key[Array, ""],
    *,
    depth: int = 6,
    branching: int = 2,
    entries: int = 50,
    step: float = 1.0,
    noise: float = 0.2**0.5,
    observations: int = 5,
) -> Tree:
    """A tree whose leaves lie at `depth`, every node observed `observations` times.

    Example: `branching_diffusion(key)` has 127 nodes and 635 observations in ℝ⁵⁰.
    """
    for name, value in (("depth", depth), ("branching", branching), ("observations", observations)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1, got {value!r}.")
    sizes = [branching**level for level in range(depth + 1)]
    depths = np.repeat(np.arange(depth + 1), sizes)
    # Nodes in order of depth: the children of node i are branching·i + 1, ..., branching·(i + 1).
    parent = np.maximum((np.arange(len(depths)) - 1) // branching, 0)
    step_key, noise_key = jax.random.split(key)
    moves = step * jax.random.normal(step_key, (len(depths), entries))
    places = [jnp.zeros((1, entries))]
    start = 1
    for size in sizes[1:]:
        places.append(jnp.repeat(places[-1], branching, axis=0) + moves[start : start + size])
        start += size
    node = np.repeat(np.arange(len(depths)), observations)
    errors = noise * jax.random.normal(noise_key, (len(node), entries))
    return Tree(jnp.concatenate(places)[node] + errors, node, depths, parent)
