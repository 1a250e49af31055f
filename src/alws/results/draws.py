"""`draw` and `log_joint` as users call them: what is given is checked against the model first.

Nothing is computed for that but shapes, so that both may be traced, as in `jax.vmap`, and cost as
much as `alws.model`'s own once they are compiled.
"""

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Key, PyTree

from alws import model as models
from alws.model import AnyModel, Draws, Simulator, has_likelihood
from alws.validation import check_densities, check_simulator, numbers, shape_of_draw
from alws.values import at_least, check_key


def draw(
    model: AnyModel, key: Key[Array, ""], number: int, condition: PyTree | None = None
) -> tuple[Draws, Array]:
    """Independent draws from p_θ, and how many were not finite and were replaced.

    Arguments:
        model: any model that `alws.fit` takes.
        key: a JAX key.
        number: how many.
        condition: one condition, of all draws, if the model takes one.

    Example: `draws, replaced = alws.draw(result.model, key, 1000)`.
    """
    _refuse_no_model(model)
    check_key(key)
    at_least("number", number, 1)
    number = operator.index(number)
    condition = _numbers(condition)
    if not _is_traced(key):  # inside a compiled function it was checked, or is the user's own
        models.check_number(number)
        if not isinstance(condition, models.Pooled):  # those of a fit, whose model was checked
            shape_of_draw(model, key, condition)
            if not _is_traced((model, condition)):
                check_simulator(model, key, condition)
    draws, replaced = models.draw(model, key, number, condition)
    if not _is_traced(replaced) and int(replaced) == number:
        raise ValueError(
            f"every one of {number} draws from the model holds NaN or infinite numbers. Check "
            "`sample` and the parameters."
        )
    return draws, replaced


def log_joint(
    model: AnyModel, z: PyTree, x: PyTree, condition: PyTree | None = None
) -> Float[Array, ""]:
    """log p_θ(z, x), whichever way the model was given.

    Arguments:
        model: any model that `alws.fit` takes.
        z, x: one latent and one observation, without a leading axis.
        condition: its condition, if the model takes one.

    Example: `jax.vmap(lambda z, x: alws.log_joint(model, z, x))(draws.z, draws.x)`.
    """
    if isinstance(model, type):
        _refuse_no_model(model)
    condition = _numbers(condition)
    of_fit = isinstance(condition, models.Pooled)  # whose model was checked
    if not of_fit and (isinstance(model, Simulator) or has_likelihood(model)):
        own = shape_of_draw(model, jax.random.key(0), condition)
        for name, given, drawn in (("z", z, own.z), ("x", x, own.x)):
            _check_like(name, given, drawn)
        check_densities(model, jax.eval_shape(lambda: Draws(*_arrays((z, x)))), condition)
    return models.log_joint(model, z, x, condition)


def _refuse_no_model(model: Any) -> None:
    """Refuse a class that was not called, or what cannot be simulated."""
    if not isinstance(model, type) and (isinstance(model, Simulator) or has_likelihood(model)):
        return
    got, remedy = type(model).__name__, ""
    if isinstance(model, type):
        got, remedy = f"the class {model.__name__} itself", " Call it with its parameters."
    elif hasattr(model, "model"):
        remedy = " Pass its `.model`."
    raise TypeError(
        "the model must have `sample(key)`, or `sample_latent(key)` and `likelihood(z)`, got "
        f"{got}.{remedy}"
    )


def _is_traced(tree: PyTree) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def _numbers(condition: PyTree | None) -> PyTree | None:
    """A condition as arrays of numbers; refuse what is none."""

    def one(leaf: Any) -> Any:
        return leaf if isinstance(leaf, jax.Array) else jnp.asarray(numbers(leaf, "condition"))

    return jax.tree.map(one, condition)


def _arrays(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.asarray, tree)


def _check_like(name: str, given: PyTree, drawn: PyTree) -> None:
    """Refuse what has not the structure, the shapes or the kind of numbers of one draw."""
    structures = jax.tree.structure(drawn), jax.tree.structure(given)
    if structures[0] != structures[1]:
        raise ValueError(
            f"`{name}` must have the structure of one draw, {structures[0]}; got {structures[1]}."
        )
    for own, one in zip(jax.tree.leaves(drawn), jax.tree.leaves(given), strict=True):
        array = one if isinstance(one, Tracer) else numbers(one, name)
        if array.shape != own.shape:
            raise ValueError(
                f"`{name}` must have the shape of one draw, {own.shape}; got {array.shape}. Use "
                "`jax.vmap` for many."
            )
        whole = not jnp.issubdtype(own.dtype, jnp.inexact)
        if name == "z" and whole and jnp.issubdtype(array.dtype, jnp.inexact):
            raise ValueError(f"`z` must be {own.dtype} as one draw is, got {array.dtype}.")
