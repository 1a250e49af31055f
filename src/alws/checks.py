"""Checks of what a user passes in, before any long work starts: rule, value, remedy."""

import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from alws.contract_checks import check_densities, shape_of_draw
from alws.model import Draws, draw, log_joints, splits
from alws.runtime import compiled

FEWEST_SLEEP_SAMPLES = 10


def at_least(name: str, value: Any, least: int, why: str = "") -> None:
    """Refuse a whole number, Python's or NumPy's, that is too small."""
    try:
        whole = not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        whole = False
    if not whole:
        raise ValueError(
            f"`{name}` must be a whole number of at least {least}, got {value!r}.{why}"
        )


def check_key(key: Any) -> None:
    """Refuse what is not one JAX key, such as its seed."""
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = isinstance(key, (jax.Array, np.ndarray)) and key.dtype == np.uint32
    if not (typed and key.shape == ()) and not (raw and key.ndim == 1):
        got = f"shape {key.shape}" if typed or raw else repr(key)
        raise TypeError(f"`key` must be one JAX key, such as `jax.random.key(0)`; got {got}.")


def check_model(model: Any) -> None:
    """Refuse what does not give the model contract."""
    if not isinstance(model, eqx.Module):
        raise TypeError(
            f"the model must be an equinox.Module, got {type(model).__name__}. Write it as "
            "`class MyModel(eqx.Module)` with its parameters as array fields."
        )
    if not splits(model) and not (hasattr(model, "sample") and hasattr(model, "log_joint")):
        raise TypeError(
            f"{type(model).__name__} must have `sample(key) -> (z, x)` and `log_joint(z, x)`, or "
            "`sample_latent(key)`, `log_prior(z)` and `likelihood(z)`."
        )
    parameters = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    if not parameters:
        raise ValueError(
            f"{type(model).__name__} has no floating-point array among its fields, so there is "
            "nothing to fit. Make its parameters jax arrays, for example `jnp.array(0.5)`; Python "
            "numbers are constants."
        )
    bad = sum(int(np.sum(~np.isfinite(np.asarray(leaf)))) for leaf in parameters)
    if bad:
        raise ValueError(f"the model's parameters must be finite at the start; {bad} are not.")


def as_arrays(data: PyTree) -> PyTree:
    """The data with every list of numbers, nested or not, as one array; pytrees stay as they are.

    Example: `as_arrays({"x": [1.0, 2.0], "y": y})` has an array of shape (2,) and y.
    """

    def of_numbers(node: Any) -> bool:
        if type(node) not in (list, tuple) or not node:
            return False
        return all(of_numbers(n) or np.isscalar(n) for n in node)

    def convert(node: Any) -> Any:
        if not of_numbers(node):
            return node
        try:
            return np.asarray(node)
        except ValueError as error:
            raise ValueError(
                "lists of numbers must all have the same length to be taken as one array, got "
                f"lengths {[np.size(row) for row in node]}. Sequences of unequal length are padded "
                "and masked by `alws.sequences`."
            ) from error

    return jax.tree.map(convert, data, is_leaf=of_numbers)


def check_data(data: PyTree, name: str = "data") -> int:
    """Refuse empty, ragged or non-finite data; return how many observations there are."""
    leaves = jax.tree.leaves(as_arrays(data))
    if not leaves:
        raise ValueError(f"`{name}` must hold at least one array, got {data!r}.")
    for leaf in leaves:
        if np.ndim(leaf) == 0:
            raise ValueError(
                f"every array in `{name}` must have the observations as its leading axis, got a "
                "scalar. One observation is `data[None]`."
            )
    sizes = {len(leaf) for leaf in leaves}
    if len(sizes) > 1:
        raise ValueError(
            f"every array in `{name}` must have the same number of observations, got {sizes}. "
            "Sequences of unequal length are padded and masked by `alws.sequences`."
        )
    (size,) = sizes
    if size == 0:
        raise ValueError(f"`{name}` must hold at least one observation, got 0.")
    for leaf in leaves:
        if np.issubdtype(np.asarray(leaf).dtype, np.inexact):
            bad = int(np.sum(~np.isfinite(np.asarray(leaf))))
            if bad:
                raise ValueError(
                    f"`{name}` must be finite, got {bad} entries that are NaN or infinite. Leave "
                    "those observations out, model what is missing as a latent, or, for a state-"
                    "space model, mark the missing times with `alws.sequences`."
                )
    return size


def match_data(
    model: Any, data: PyTree, key: Key[Array, ""], condition: PyTree | None = None
) -> PyTree[Array]:
    """The data as the model's own x: same structure and shapes, its dtypes. Refuse a mismatch."""
    what = "`sample(key)`" if hasattr(model, "sample") else "`likelihood(z).sample(key)`"
    drawn = shape_of_draw(model, key, condition)
    data = as_arrays(data)
    if jax.tree.structure(drawn.x) != jax.tree.structure(data):
        raise ValueError(
            f"the x drawn by {what} must have the structure of one observation; it is "
            f"{jax.tree.structure(drawn.x)}, the data are {jax.tree.structure(data)}."
        )
    return jax.tree.map(lambda x, d: _match_leaf(x, d, what), drawn.x, data)


def _match_leaf(x: jax.ShapeDtypeStruct, data: Any, what: str) -> Array:
    if x.shape != np.shape(data)[1:]:
        raise ValueError(
            f"the x drawn by {what} must have the shape of one observation, {np.shape(data)[1:]}; "
            f"got {x.shape}. The data's leading axis counts observations."
        )
    values = np.asarray(data)
    if not np.issubdtype(x.dtype, np.inexact) and not np.array_equal(values, np.round(values)):
        raise ValueError(
            f"{what} draws whole numbers ({x.dtype}) but the data are not whole. Return floating-"
            "point x, or round the data."
        )
    return jnp.asarray(values, x.dtype)


def check_log_joint(
    model: Any, key: Key[Array, ""], number: int, condition: PyTree | None = None
) -> Draws:
    """Refuse a log joint that is not scalar or not finite on the model's draws; return these."""
    check_densities(model, shape_of_draw(model, key, condition), condition)
    number = operator.index(number)
    draws, replaced, bad = compiled(_first_draws, once=True)(model, key, number, condition)
    if int(replaced) == number:
        raise ValueError(
            f"every one of {number} draws from the model holds NaN or infinite numbers. Check "
            "`sample` and the start values."
        )
    if int(bad):
        raise ValueError(
            f"`log_joint(z, x)` must be finite on the model's own draws; {int(bad)} of {number} "
            "are not. Check that it scores what `sample` draws (support, bounds, log of 0)."
        )
    return draws


def _first_draws(
    model: Any, key: Key[Array, ""], number: int, condition: PyTree | None
) -> tuple[Draws, Array, Array]:
    draws, replaced = draw(model, key, number, condition)
    return draws, replaced, jnp.sum(~jnp.isfinite(log_joints(model, draws, condition)))
