"""Which sleep samples stand for all of them: at random, by leverage or spread out.

- "uniform": each with the same chance;
- "leverage": with chances that follow the ridge leverage scores, the diagonal of K(K + λI)⁻¹, which
  say how much of a sample the others cannot tell. With a uniform pilot S of m out of n candidates,
  ℓ_i = (k_ii − k_iS (K_SS + λ(m/n)I)⁻¹ k_Si)/λ, at most 1, where λ is at least the part of the
  trace of K that the pilot leaves over, divided by m: no m samples could resolve more;
- "k-means++": one after the other, with chances that follow the squared distance, in the kernel's
  own metric, to the nearest one chosen so far.

The last two choose among at most `CANDIDATES` times as many samples as they are asked for, so that
their cost does not grow with N.
"""

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from alws.gradient_models.distances import diagonal
from alws.kernels import Kernel
from alws.linear_algebra import factorise, whiten

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
    """`number` different rows of a placed batch; nothing is differentiated.

    Example: `rows = select_rows(kernel, embedded, 100, "k-means++", ridge, key)`.
    """
    n = jax.tree.leaves(embedded)[0].shape[0]
    order = jax.random.permutation(key, n)
    if selection == "uniform" or number == n:
        return order[:number]
    candidates = order[: CANDIDATES * number]
    kernel, embedded, ridge = held((kernel, embedded, ridge))
    batch = jax.tree.map(lambda a: a[candidates], embedded)
    share = ridge * candidates.shape[0] / n
    key = jax.random.fold_in(key, 1)
    choose = {"leverage": _by_leverage, "k-means++": _by_distance}[selection]
    return candidates[choose(kernel, batch, number, share, key)]


def held(tree: PyTree) -> PyTree:
    """The tree with its floating-point arrays held constant."""
    return jax.tree.map(lambda a: jax.lax.stop_gradient(a) if eqx.is_inexact_array(a) else a, tree)


def check_selection(selection: str, *more: str) -> None:
    """Refuse a way to select that does not exist."""
    known = (*get_args(Selection), *more)
    if selection not in known:
        raise ValueError(
            f"`selection` must be one of {', '.join(map(repr, known))}, got {selection!r}."
        )


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
    within, across = kernel.gram(pilot, pilot), kernel.gram(pilot, batch)
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
        distances = norms + norms[last] - 2 * kernel.gram(row, batch)[0]
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
