"""Parameters on which the density does not depend: a fit leaves them where they were.

A climb knows which entries never had a slope. Whether that is for want of influence is seen from
log p(z, x) itself, of draws and of the data, as such an entry is moved by little and by much:

- it changes by little and by much alike: a constant, as one used through `jax.lax.stop_gradient`;
- it never changes: the density does not use the entry, or none of the data does;
- it changes by much alone, or the same up and down: the entry has no slope where it stands.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Key, PyTree

from alws.model import AnyModel, log_joint, sample
from alws.state_space.model import StateSpace

DRAWS, SEQUENCES = 200, 8
"""How many draws, and of the data, are looked at; how many of sequences."""

MOST_ENTRIES = 300
"""The most entries that are moved one by one."""

LITTLE, MUCH = 1e-3, (0.3, -0.3, 3.0, -3.0)
"""How far an entry is moved, in units of 1 + |θ|."""

EVEN = 1e-2
"""How far changes up and down may differ, and count as the same."""

MOST_TOLD = 5
"""How many entries a message names."""


def without_influence(
    model: AnyModel,
    data: PyTree[np.ndarray],
    still: Bool[np.ndarray, " p"],
    *,
    key: Key[Array, ""],
    conditions: PyTree | None = None,
    log_prior: Callable[[Any], Array] | None = None,
) -> tuple[str, str]:
    """What to say of entries of θ that never had a slope: of whole arrays, and of parts of some.

    An array without influence is a fault. A part of one may be meant so, as a loading that is known
    to be 0 is; of a matrix that is used as a triangle nothing is said. Both are empty if there is
    nothing to be said.

    Arguments:
        model: where a fit ended.
        data, conditions, log_prior: as `alws.fit` takes them, checked.
        still: which entries never had a slope, of the parameters in one vector.
        key: for draws.

    Example: `fault, note = without_influence(model, data, np.array([True]), key=key)`.
    """
    if not still.any():
        return "", ""
    try:
        with jax.enable_x64(True):
            changes = _changes(model, data, still, key, conditions, log_prior)
    except (TypeError, ValueError):  # the model's own code holds it to one precision
        changes = _changes(model, data, still, key, conditions, log_prior)
    never, not_here = (np.zeros(len(still), bool) for _ in range(2))
    for entry, how in changes.items():
        never[entry], not_here[entry] = how == "never", how == "not here"
    faults, notes = [], []
    for which, what, remedy in (
        (
            never,
            "does not depend on {}",
            ", which stayed where it was; check that the density uses it, or leave it out",
        ),
        (
            not_here,
            "has no slope in {}",
            " where it stands, and it stayed there; start it elsewhere",
        ),
    ):
        arrays, parts = _names(model, which)
        if arrays:
            faults.append(f"log p(z, x) {what.format(_list(arrays))}{remedy}")
        if parts:
            notes.append(f"log p(z, x) {what.format(_list(parts))}")
    return "; ".join(faults), "; ".join(notes)


def _changes(
    model: AnyModel,
    data: PyTree[np.ndarray],
    still: np.ndarray,
    key: Key[Array, ""],
    conditions: PyTree | None,
    log_prior: Callable[[Any], Array] | None,
) -> dict[int, str]:
    """How log p changes as each entry is moved: "never", "not here", or else, and not listed.

    What `log_prior` depends on is not listed either.
    """
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(jax.tree.map(_floating, parameters))
    theta = np.asarray(flat)
    number = SEQUENCES if isinstance(model, StateSpace) else DRAWS
    size = len(jax.tree.leaves(data)[0])
    turn = np.arange(number) % size if number > size else np.arange(number) * (size // number)
    x, given = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[turn]), (data, conditions))

    def values(theta: Array) -> Array:
        model = eqx.combine(unravel(theta), rest)
        conditioned = (given,) if conditions is not None else ()

        def one(k: Array, x: PyTree, *c: PyTree) -> Array:
            z, own = draw(k, *c)
            x = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), x, own)
            return jnp.stack([log_joint(model, z, own, *c), log_joint(model, z, x, *c)])

        def draw(k: Array, *c: PyTree) -> tuple:
            return tuple(sample(eqx.combine(unravel(jnp.asarray(flat)), rest), k, *c))

        return jax.vmap(one)(jax.random.split(key, number), x, *conditioned).ravel()

    def penalised(theta: Array) -> Array:
        prior = 0.0 if log_prior is None else log_prior(eqx.combine(unravel(theta), rest))
        return jnp.append(values(theta), prior)

    value = jax.jit(penalised)
    here = np.asarray(value(theta))

    def moved(entries: np.ndarray, by: float) -> np.ndarray:
        there = theta.copy()
        there[entries] += by * (1 + np.abs(there[entries]))
        now = np.asarray(value(there))
        same = (now == here) | (np.isnan(now) & np.isnan(here))
        with np.errstate(invalid="ignore"):
            return np.where(same, 0.0, np.nan_to_num(now - here, nan=np.inf))

    entries = np.flatnonzero(still)
    if not any(moved(entries, by).any() for by in (LITTLE, -LITTLE, *MUCH)):
        return dict.fromkeys(entries.tolist(), "never")
    found = {}
    for i in entries[:MOST_ENTRIES]:
        if any(moved(i, by)[-1] for by in MUCH):
            continue
        up, down = moved(i, LITTLE), moved(i, -LITTLE)
        if not up.any() and not down.any():
            much = any(moved(i, by).any() for by in MUCH)
            found[int(i)] = "not here" if much else "never"
        elif np.abs(up - down).max() < EVEN * np.abs(up).max() < np.inf:
            found[int(i)] = "not here"
    return found


def _names(model: AnyModel, entries: np.ndarray) -> tuple[list[str], list[str]]:
    """Where in the model these entries are: whole arrays by their names, others with an index."""
    leaves = jax.tree_util.tree_flatten_with_path(eqx.filter(model, eqx.is_inexact_array))[0]
    arrays, parts, start = [], [], 0
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        own = entries[start : start + leaf.size].reshape(leaf.shape)
        start += leaf.size
        if own.all() and leaf.size:
            arrays.append(f"`{name}`")
        elif not _is_triangle(own):
            parts += [f"`{name}{[int(i) for i in index]}`" for index in np.argwhere(own)]
    return arrays, parts


def _is_triangle(unused: np.ndarray) -> bool:
    """Whether the entries are those of square matrices on one side of the diagonal."""
    if unused.ndim < 2 or unused.shape[-1] != unused.shape[-2]:
        return False
    upper = np.triu(np.ones(unused.shape[-2:], bool), 1)
    return any((unused == side).all() for side in (upper, upper.T))


def _list(names: list[str]) -> str:
    more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    return ", ".join(names[:MOST_TOLD]) + more


def _floating(a: Any) -> Array:
    a = jnp.asarray(a)
    return a.astype(float) if jnp.issubdtype(a.dtype, jnp.floating) else a
