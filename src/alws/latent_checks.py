"""Checks of what is asked about latents: where they live, where to start, what to expect."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import Constraint, real

from alws.checks import check_data


def bounded(transform: Any) -> bool:
    """Whether a transform's image is anything but all real numbers."""
    return transform.codomain is not real


def transforms_of(support: Any, latent: PyTree) -> list[Any]:
    """One transform for each leaf of z."""

    def is_support(node: Any) -> bool:
        return isinstance(node, Constraint) or (hasattr(node, "inv") and callable(node))

    structure = jax.tree.structure(latent)
    if support is None or is_support(support):
        given = [real if support is None else support] * structure.num_leaves
    else:
        given, found = jax.tree.flatten(support, is_leaf=is_support)
        if found != structure:
            raise ValueError(
                f"`support` must be one constraint, or a pytree of them like z, {structure}; got "
                f"{found}. Use `numpyro.distributions.constraints.real` where z is not bounded."
            )
    for entry in given:
        if not is_support(entry):
            raise TypeError(
                "`support` must be made of NumPyro constraints or transforms, got "
                f"{type(entry).__name__}. For example numpyro.distributions.constraints.positive."
            )
    return [biject_to(entry) if isinstance(entry, Constraint) else entry for entry in given]


def refuse_discrete(latent: PyTree) -> None:
    """Refuse latents that have no gradient."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(latent)[0]:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"`posterior_mode` climbs a gradient, so z must be floating point; z"
                f"{jax.tree_util.keystr(path)} is {leaf.dtype}. For a discrete latent use `alws."
                "expectation(model, lambda z: jax.nn.one_hot(z, K), x, key=key)`, the posterior "
                "probabilities, and take the largest."
            )


def refuse_bad_targets(value: PyTree) -> None:
    """Refuse an f(z) that cannot be regressed."""
    leaves = jax.tree.leaves(value)
    if not leaves:
        raise ValueError("`f(z)` must return at least one array, got none.")
    for leaf in leaves:
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise ValueError(
                f"`f(z)` must be real, got {leaf.dtype}. Return the real and imaginary parts."
            )


def match_conditions(conditions: PyTree | None, size: int) -> PyTree | None:
    """The conditions as arrays, one for each observation."""
    if conditions is None:
        return None
    given = check_data(conditions, "conditions")
    if given != size:
        raise ValueError(
            f"`conditions` must have one entry for each observation, {size}; got {given}."
        )
    return jax.tree.map(jnp.asarray, conditions)


def match_start(start: PyTree, latent: PyTree, size: int) -> PyTree[Array]:
    """The start as arrays, one z for each observation."""
    if jax.tree.structure(start) != jax.tree.structure(latent):
        raise ValueError(
            f"`start` must have the structure of z, {jax.tree.structure(latent)}; got "
            f"{jax.tree.structure(start)}."
        )
    for given, one in zip(jax.tree.leaves(start), jax.tree.leaves(latent), strict=True):
        if jnp.shape(given) != (size, *one.shape):
            raise ValueError(
                f"`start` must hold one z for each observation, shape {(size, *one.shape)}; got "
                f"{jnp.shape(given)}."
            )
    return jax.tree.map(lambda s, one: jnp.asarray(s, one.dtype), start, latent)
