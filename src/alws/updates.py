"""Small pieces of a step: what its phases give, updates, J̄'s gradient, choices on the device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from alws.model import Draws, splits
from alws.products import transposing_first


class SleepResult(NamedTuple):
    """What the sleep phase gives."""

    gamma_gradient: PyTree
    held_out_r2: Float[Array, ""]
    ridge: Float[Array, ""]
    escalations: Int[Array, ""]
    replaced: Int[Array, ""]


class WakeResult(NamedTuple):
    """What the wake phase gives."""

    gradient: PyTree
    objective: Float[Array, ""]
    outside: Float[Array, ""]
    effective_samples: Float[Array, ""]
    solver_residual: Float[Array, ""]
    information: PyTree | None


def update(
    optimiser: optax.GradientTransformation,
    module: Any,
    gradient: PyTree,
    state: PyTree,
    units: PyTree,
) -> tuple[Any, PyTree, Bool[Array, ""]]:
    """One step of the optimiser uphill, in these units, refused as a whole when not finite."""
    parameters = eqx.filter(module, eqx.is_inexact_array)
    downhill = jax.tree.map(lambda g, u: -g * u, gradient, units)
    updates, new_state = optimiser.update(downhill, state, parameters)
    new = eqx.apply_updates(module, jax.tree.map(lambda d, u: d * u, updates, units))
    leaves = jax.tree.leaves((gradient, eqx.filter(new, eqx.is_inexact_array)))
    fine = jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()
    return select(fine, new, module), select(fine, new_state, state), fine


def value_and_gradient(
    objective: Callable[[Any, Draws], Array],
    model: Any,
    raw: Draws,
    mended: Draws,
    replaced: Int[Array, ""],
) -> tuple[Array, PyTree]:
    """J̄ and its gradient in θ, on the draws as they came unless some had to be replaced.

    A likelihood's forward pass at the raw latents is the one the observations were drawn with, and
    the compiler does it once. Other models share nothing and are differentiated at mended draws.
    """
    draws = raw if splits(model) else mended
    value, pullback = eqx.filter_vjp(lambda m: objective(m, draws), model)

    def gradient() -> PyTree:
        return transposing_first(lambda: pullback(jnp.ones_like(value))[0])

    if not splits(model):
        return value, gradient()
    return jax.lax.cond(
        replaced == 0,
        lambda: (value, gradient()),
        lambda: eqx.filter_value_and_grad(objective)(model, mended),
    )


def select(condition: Bool[Array, ""], yes: PyTree, no: PyTree) -> PyTree:
    """`yes` or `no`, leaf by leaf; what is not an array is the same in both."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b) if eqx.is_array(a) else a, yes, no)


def value_if(condition: Bool[Array, ""], function: Callable[[], Array]) -> Array:
    """The value of a scalar function where it is wanted, NaN where not."""
    shape = jax.eval_shape(function)
    return jax.lax.cond(condition, function, lambda: jnp.full(shape.shape, jnp.nan, shape.dtype))
