"""Draws from, and densities of, pytrees of NumPyro distributions, as state-space models give them.

A scan over time that draws with a key at each of its times spends more on keys than on numbers. So
what a sequence is drawn from is made before the scan, for all times at once,

    z_t = μ_t + σ_t ε_t,   ε_t ~ N(0, 1)

for normal distributions; all others are drawn with a key for each time.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree
from numpyro.distributions import Distribution, Independent, MultivariateNormal, Normal

Shape = tuple[int, ...]


def draw_with(distributions: PyTree, randomness: list[Array]) -> PyTree:
    """One draw from each distribution, made from its standard normals or its key.

    Example: `draw_with(dist.Normal(3.0, 0.1), [jnp.array(0.5)])` is 3.05.
    """
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    drawn = [_draw_one(d, r) for d, r in zip(leaves, randomness, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def draw_once(distributions: PyTree, key: Key[Array, ""]) -> PyTree:
    """One draw from each distribution with keys of its own."""
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    keys = jax.random.split(key, max(1, len(leaves)))
    return jax.tree.unflatten(structure, [d.sample(k) for d, k in zip(leaves, keys, strict=False)])


def randomness(
    distributions: Callable[..., PyTree], args: tuple, key: Key[Array, ""], times: int
) -> list[Array]:
    """What `times` draws from `distributions(*args)` are made from, time first.

    Only the kinds and shapes of the distributions count, which are the same at all times.

    Example: `randomness(lambda s: dist.Normal(s, 1.0), (jnp.zeros(3),), key, 50)[0].shape` is
    (50, 3).
    """
    shapes = _shapes(distributions, args)
    keys = jax.random.split(key, max(1, len(shapes)))
    return [
        jax.random.split(k, times) if shape is None else jax.random.normal(k, (times, *shape))
        for shape, k in zip(shapes, keys, strict=False)
    ]


def log_prob(distributions: PyTree, values: PyTree) -> Float[Array, ""]:
    """The log density of all values together.

    Example: `log_prob((dist.Normal(0.0, 1.0), dist.Bernoulli(0.5)), (0.3, 1))`.
    """
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    values = structure.flatten_up_to(values)
    return sum((d.log_prob(v).sum() for d, v in zip(leaves, values, strict=True)), jnp.zeros(()))


def gaussian_of(distributions: PyTree) -> tuple[Float[Array, " n"], Float[Array, "n n"]] | None:
    """Mean and covariance of a pytree of independent normal distributions; None if one is not.

    Example: `gaussian_of((dist.Normal(0.0, 2.0), dist.Normal(jnp.ones(3), 1.0)))`.
    """
    leaves = jax.tree.leaves(distributions, is_leaf=is_distribution)
    means, covariances = [], []
    for leaf in leaves:
        while isinstance(leaf, Independent):
            leaf = leaf.base_dist
        if type(leaf) is Normal:
            loc, scale = (
                jnp.broadcast_to(jnp.asarray(a), leaf.batch_shape).ravel()
                for a in (leaf.loc, leaf.scale)
            )
            means.append(loc)
            covariances.append(jnp.diag(scale**2))
        elif type(leaf) is MultivariateNormal and leaf.batch_shape == ():
            means.append(leaf.loc)
            covariances.append(leaf.covariance_matrix)
        else:
            return None
    if not means:
        return jnp.zeros(0), jnp.zeros((0, 0))
    return jnp.concatenate(means), jax.scipy.linalg.block_diag(*covariances)


def gaussian(
    distributions: PyTree,
) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Mean and covariance of a pytree that is known to be of normal distributions.

    Example: `gaussian(dist.Normal(0.0, 2.0))`.
    """
    found = gaussian_of(distributions)
    if found is None:
        raise TypeError(f"all distributions must be normal, got {distributions}.")
    return found


def draw_like(distributions: PyTree, value: float = 0.0) -> PyTree:
    """What a draw looks like, filled with one value.

    Example: `draw_like(dist.Normal(jnp.ones(3), 1.0))` is three zeros.
    """
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    return jax.tree.unflatten(structure, [jnp.full(d.shape(), value) for d in leaves])


def is_distribution(value: Any) -> bool:
    """Whether this is a distribution, as `jax.tree` asks of a leaf.

    Example: `jax.tree.leaves(model.initial(), is_leaf=is_distribution)`.
    """
    return isinstance(value, Distribution)


def is_normal(distribution: Distribution) -> bool:
    """Whether draws are made from standard normals, not keys.

    Example: `is_normal(dist.Normal(0.0, 1.0))`.
    """
    return _normal(distribution) is not None


def _shapes(distributions: Callable[..., PyTree], args: tuple) -> list[Shape | None]:
    """The shape of each normal distribution, None for all others; nothing is computed."""
    found: list[Shape | None] = []

    def look(*args: Any) -> None:
        leaves = jax.tree.leaves(distributions(*args), is_leaf=is_distribution)
        normals = [_normal(d) for d in leaves]
        found.extend(None if d is None else d.batch_shape for d in normals)

    jax.eval_shape(look, *args)
    return found


def _draw_one(distribution: Distribution, randomness: Array) -> Array:
    normal = _normal(distribution)
    if normal is None:
        return distribution.sample(randomness)  # pyright: ignore
    return jnp.asarray(normal.loc) + jnp.asarray(normal.scale) * randomness


def _normal(distribution: Distribution) -> Normal | None:
    """The normal distribution that this one is, its dimensions counted as an event or not."""
    while isinstance(distribution, Independent):
        distribution = distribution.base_dist
    return distribution if type(distribution) is Normal else None


__all__ = [
    "draw_like",
    "draw_once",
    "draw_with",
    "gaussian",
    "gaussian_of",
    "is_distribution",
    "is_normal",
    "log_prob",
    "randomness",
]
