"""Importance sampling for latents of any kind, from proposals that learn posterior marginals.

An entry of z that takes few values is drawn by their probabilities, any other from Student's t on
the line that `alws.maximum.latents` takes it to. The first proposals are the prior's marginals or
what a regression on the observation says; then, a few times, what the weighted draws say, mixed
with the prior. Weights of fresh draws have the likelihood as their mean.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from alws.maximum.latents import MOST_VALUES, flat_rows

PRIOR = 0.05
"""The share of the prior's marginals in every proposal."""

MOST_NUMBERS = 1e7
"""The most numbers of draws that are held at once."""

FREEDOM = 5.0
"""Degrees of freedom of Student's t."""


class Entries(NamedTuple):
    """How a flattened z is split: entries of few values, with these and how often; the others.

    `shapes` rebuilds z from the flattened one.
    """

    shapes: tuple
    discrete: np.ndarray
    continuous: np.ndarray
    values: np.ndarray
    share: np.ndarray
    location: np.ndarray
    scale: np.ndarray


class Marginals(NamedTuple):
    """Proposals of one observation: probabilities of values, location and scale of the others."""

    probabilities: Array
    location: Array
    scale: Array


def split_entries(z: PyTree) -> Entries:
    """What draws of z say of each of its entries.

    Example: `split_entries(draws.z).values`.
    """
    rows = flat_rows(z)
    leaves = [np.asarray(a) for a in jax.tree.leaves(z)]
    shapes = (jax.tree.structure(z), tuple((a.shape[1:], a.dtype) for a in leaves))
    found = [np.unique(col, return_counts=True) for col in rows.T]
    few = np.array([len(v) <= MOST_VALUES and len(v) < len(rows) / 4 for v, _ in found], bool)
    room = max([len(v) for (v, _), f in zip(found, few, strict=True) if f], default=1)
    values, share = np.zeros((few.sum(), room)), np.zeros((few.sum(), room))
    for i, j in enumerate(np.flatnonzero(few)):
        v, n = found[j]
        values[i], share[i, : len(v)] = np.pad(v, (0, room - len(v)), mode="edge"), n / n.sum()
    c = rows[:, ~few]
    at = np.arange(rows.shape[1])
    return Entries(shapes, at[few], at[~few], values, share, c.mean(axis=0), c.std(axis=0) + 1e-300)


def prior_marginals(entries: Entries) -> Marginals:
    """Where proposals start that know nothing of the observation.

    Example: `prior_marginals(split_entries(draws.z)).probabilities`.
    """
    return Marginals(*(jnp.asarray(a) for a in (entries.share, entries.location, entries.scale)))


def learn_and_weigh(
    log_p: Callable[[PyTree, Any], Array],
    entries: Entries,
    first: Marginals,
    obs: PyTree[Array],
    keys: Key[Array, " observations"],
    draws: int,
    rounds: int = 10,
) -> Float[Array, "observations draws"]:
    """log weights of fresh draws for every observation, after `rounds` of learning its marginals.

    Arguments:
        log_p: log p(z, x) of one z and one entry of `obs`.
        entries: how z is split.
        first: the proposals to begin with, observations as leading axis.
        obs: observations, with their conditions if there are any.
        keys: one for each.
        draws: how many.
        rounds: how often the proposals learn from as many draws.

    Example: `learn_and_weigh(log_p, entries, first, x, keys, 1000).shape`.
    """
    prior = prior_marginals(entries)

    def rebuild(d: Array, c: Array) -> PyTree:
        flat = jnp.zeros(len(entries.discrete) + len(entries.continuous), c.dtype)
        flat = flat.at[entries.discrete].set(d).at[entries.continuous].set(c)
        treedef, shapes = entries.shapes
        leaves, at = [], 0
        for shape, dtype in shapes:
            size = int(np.prod(shape))
            leaf = flat[at : at + size].reshape(shape)
            whole = not np.issubdtype(dtype, np.floating)
            leaves.append(jnp.round(leaf).astype(dtype) if whole else leaf.astype(dtype))
            at += size
        return treedef.unflatten(leaves)

    def propose(q: Marginals, key: Key[Array, ""]) -> tuple[Array, Array, Array]:
        value_key, real_key, wide_key = jax.random.split(key, 3)
        which = jax.random.categorical(
            value_key, jnp.log(q.probabilities), shape=(draws, len(entries.discrete))
        )
        t = jax.random.t(real_key, FREEDOM, (draws, len(entries.continuous)))
        wide = jax.random.bernoulli(wide_key, PRIOR, (draws, 1))
        c = jnp.where(wide, prior.location + prior.scale * t, q.location + q.scale * t)
        return which, c, _log_q(q, prior, which, c)

    def weights(q: Marginals, o: PyTree, key: Key[Array, ""]) -> tuple[Array, Array, Array]:
        which, c, log_q = propose(q, key)
        d = jnp.take_along_axis(jnp.asarray(entries.values).T, which, axis=0)
        value = jax.vmap(lambda d, c: log_p(rebuild(d, c), o))(d, c)
        return jnp.where(jnp.isnan(value), -jnp.inf, value) - log_q, which, c

    def learn(q: Marginals, o: PyTree, key: Key[Array, ""]) -> tuple[Marginals, Array]:
        log_w, which, c = weights(q, o, key)
        w = _tempered(log_w)
        seen = jax.nn.one_hot(which, entries.values.shape[1], dtype=w.dtype)
        probabilities = jnp.einsum("n,nij->ij", w, seen)
        location = w @ c
        scale = jnp.sqrt(w @ (c - location) ** 2) + 0.02 * prior.scale
        new = Marginals(PRIOR * prior.probabilities + (1 - PRIOR) * probabilities, location, scale)
        good = jnp.isfinite(w).all()
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, q), log_w

    def one(item: tuple) -> Array:
        q, o, key = item
        keys = jax.random.split(key, rounds + 1)
        q = jax.lax.fori_loop(0, rounds, lambda i, q: learn(q, o, keys[i])[0], q)
        return weights(q, o, keys[rounds])[0]

    numbers = draws * (entries.values.size + len(entries.continuous))
    return jax.lax.map(one, (first, obs, keys), batch_size=max(1, int(MOST_NUMBERS // numbers)))


def _log_q(q: Marginals, prior: Marginals, which: Array, c: Array) -> Array:
    rows = jnp.arange(q.probabilities.shape[0])
    values = jnp.log(q.probabilities)[rows, which].sum(axis=1)

    def spread(m: Marginals) -> Array:
        t = jax.scipy.stats.t.logpdf(c, FREEDOM, m.location, m.scale)
        return t.sum(axis=1)

    near, wide = jnp.log(1 - PRIOR) + spread(q), jnp.log(PRIOR) + spread(prior)
    return values + jnp.logaddexp(near, wide)


def _tempered(log_w: Array) -> Array:
    """Normalised weights, flattened until a twentieth of the draws carry them."""
    least = log_w.shape[0] / 20

    def share(power: Array) -> Array:
        w = jax.nn.softmax(power * log_w)
        return 1 / (w**2).sum()

    powers = 2.0 ** -jnp.arange(0.0, 12.0)
    enough = jax.vmap(share)(powers) >= least
    chosen = jnp.where(enough.any(), powers[jnp.argmax(enough)], powers[-1])
    return jax.nn.softmax(chosen * log_w)
