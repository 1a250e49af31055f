"""Which sleep samples stand for all of them, and distances in a kernel's own metric.

- "uniform": each with the same chance;
- "leverage": with chances that follow the ridge leverage scores, the diagonal of K(K + λI)⁻¹, which
  say how much of a sample the others cannot tell. With a uniform pilot S of m out of n candidates,
  ℓ_i = (k_ii − k_iS (K_SS + λ(m/n)I)⁻¹ k_Si)/λ, at most 1, where λ is at least the part of the
  trace of K that the pilot leaves over, divided by m: no m samples could resolve more;
- "k-means++": one after the other, with chances that follow the squared distance, in the kernel's
  own metric, to the nearest one chosen so far.

The last two choose among at most `CANDIDATES` times as many samples as they are asked for, so that
their cost does not grow with N. The metric is d²(x, y) = k(x, x) + k(y, y) − 2k(x, y).
"""

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from alws.devices import by_blocks
from alws.kernels import Kernel
from alws.regressions.base import factorise, whiten
from alws.values import one_of

ENTRIES = 2**23
"""How many entries of a kernel matrix are held at once."""

MOST_OWN = 1000
"""How many sleep samples tell how far apart they lie."""

Selection = Literal["uniform", "leverage", "k-means++"]

CANDIDATES = 10
"""How many candidates there are for each sample chosen."""


def select_rows(
    kernel: Kernel,
    embedded: PyTree[Array],
    number: int,
    selection: str,
    ridge: Float[Array, ""],
    key: Key[Array, ""],
) -> Int[Array, " number"]:
    """`number` different rows of an embedded batch; nothing is differentiated.

    Example: `rows = select_rows(kernel, embedded, 100, "k-means++", ridge, key)`.
    """
    n = jax.tree.leaves(embedded)[0].shape[0]
    order = jax.random.permutation(key, n)
    if selection == "uniform" or number == n:
        return order[:number]
    candidates = order[: CANDIDATES * number]
    kernel, embedded, ridge = without_gradient((kernel, embedded, ridge))
    batch = jax.tree.map(lambda a: a[candidates], embedded)
    share = ridge * candidates.shape[0] / n
    key = jax.random.fold_in(key, 1)
    choose = {"leverage": _by_leverage, "k-means++": _by_distance}[selection]
    return candidates[choose(kernel, batch, number, share, key)]


def without_gradient(tree: PyTree) -> PyTree:
    """The tree with its floating-point arrays held constant."""
    return jax.tree.map(lambda a: jax.lax.stop_gradient(a) if eqx.is_inexact_array(a) else a, tree)


def check_selection(selection: str, *more: str) -> None:
    """Refuse a way to select that does not exist."""
    one_of("selection", selection, (*get_args(Selection), *more))


def check_number(name: str, number: int, n: int) -> None:
    """Refuse more representatives than there are sleep samples."""
    if number > n:
        raise ValueError(
            f"`{name}` must be at most the number of sleep samples, {n}; got {number}. Lower it, "
            "raise `sleep_samples`, or use `KernelRidge`, which is exact."
        )


def jitter(gram: Float[Array, "n n"]) -> Float[Array, ""]:
    """What is added to the diagonal of the representatives' own matrix: rounding error."""
    size = gram.shape[0] * jnp.finfo(gram.dtype).eps
    return size * jnp.abs(jnp.diagonal(gram)).max()


def _by_leverage(
    kernel: Kernel, batch: PyTree, number: int, ridge: Array, key: Array
) -> Int[Array, " number"]:
    """A weighted draw without replacement: the largest of log ℓ_i + Gumbel noise."""
    n = jax.tree.leaves(batch)[0].shape[0]
    pilot = jax.tree.map(lambda a: a[:number], batch)
    within, across = kernel.evaluate(pilot, pilot), kernel.evaluate(pilot, batch)
    norms = diagonal(kernel, batch)

    def left(extra: Array) -> Array:
        """k_ii − k_iS (K_SS + extra·I)⁻¹ k_Si."""
        explained = whiten(factorise(within, jitter(within) + extra), across)
        return jnp.maximum(norms - (explained**2).sum(axis=0), 0)

    ridge = jnp.maximum(ridge, left(jnp.zeros((), within.dtype)).sum() / number)
    scores = jnp.clip(left(ridge * number / n) / ridge, 1e-6, 1.0)
    return jax.lax.top_k(jnp.log(scores) + jax.random.gumbel(key, (n,), scores.dtype), number)[1]


def _by_distance(
    kernel: Kernel, batch: PyTree, number: int, ridge: Array, key: Array
) -> Int[Array, " number"]:
    """One row after the other, those already chosen with chance zero."""
    norms = diagonal(kernel, batch)
    n = norms.shape[0]
    chances = jax.random.uniform(key, (number - 1,), norms.dtype)

    def add(carry: tuple[Array, Array, Array], chance: Array) -> tuple[tuple, Array]:
        squares, free, last = carry
        row = jax.tree.map(lambda a: a[last][None], batch)
        distances = norms + norms[last] - 2 * kernel.evaluate(row, batch)[0]
        squares = jnp.minimum(squares, jnp.maximum(distances, 0))
        free = free & (jnp.arange(n) != last)
        # Samples that all coincide with chosen ones are as good as each other.
        weights = jnp.where(free, squares + jnp.finfo(squares.dtype).tiny, 0)
        total = jnp.cumsum(weights)
        found = jnp.searchsorted(total, chance * total[-1], side="right")
        chosen = jnp.where(free[jnp.minimum(found, n - 1)], found, jnp.argmax(weights))
        return (squares, free, chosen), chosen

    first = jnp.zeros((), int)
    start = jnp.full(n, jnp.inf, norms.dtype), jnp.ones(n, bool), first
    _, chosen = jax.lax.scan(add, start, chances)
    return jnp.concatenate([first[None], chosen])


def diagonal(kernel: Kernel, a: PyTree[Array]) -> Float[Array, " n"]:
    """k(a_i, a_i) of every member of an embedded batch."""

    def norm(point: PyTree) -> Array:
        batch = jax.tree.map(lambda leaf: leaf[None], point)
        return kernel.evaluate(batch, batch)[0, 0]

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
        between = 2 * kernel.evaluate(batch, sleep) - norms
        between = jnp.where(own[:, None] == jnp.arange(n), -jnp.inf, between)
        return diagonal(kernel, batch) - between.max(axis=1)

    def distances(batch: PyTree, own: Int[Array, " m"]) -> Float[Array, " m"]:
        return by_blocks(nearest, (batch, own), max(1, ENTRIES // n))

    theirs = distances(points, jnp.full(jax.tree.leaves(points)[0].shape[0], -1))
    own = distances(some, jnp.arange(min(n, MOST_OWN)))
    return jnp.mean(theirs > jnp.quantile(own, 0.99), dtype=own.dtype)
