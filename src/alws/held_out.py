"""The held-out error that γ is adapted on, §3.4, of Ĵ or of its gradient.

On L held-out sleep samples (z', x'), over the variance of what is predicted,

    "objective"  E_γ = mean (Ĵ_γ(x'_l) − log p_θ(z'_l, x'_l))², the paper's;
    "gradient"   E_γ = mean (v·∇_θ Ĵ_γ(x'_l) − v·∇_θ log p_θ(z'_l, x'_l))² over random directions v,

the second because the gradient is what the wake phase uses. It needs no gradient of any sample: a
Jacobian-vector product along v has v·∇_θ of all of them, for about what the values cost again.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.adaptation import Adapt
from alws.estimates import Estimate
from alws.gradient_models.protocols import Smoother
from alws.model import Draws, log_joints


def held_out_error(
    adapt: Adapt,
    estimate: Estimate,
    model: Any,
    smoother: Smoother,
    draws: tuple[Draws, Draws],
    condition: PyTree | None,
    units: PyTree,
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """E_γ by the criterion of `adapt`, and the share of log p(z', x') that Ĵ explains.

    `draws` are the sleep samples and the held-out ones. Directions are random signs in these units
    of θ, a pytree like its parameters.

    Example: `held_out_error(Adapt(), Joint(), model, smoother, draws, None, units, key)`.
    """
    sleep, held_out = draws
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)

    def truths(parameters: Any) -> Array:
        return log_joints(eqx.combine(parameters, rest), held_out, condition)

    def predictions(parameters: Any) -> Array:
        whole = eqx.combine(parameters, rest)
        return estimate.predict(whole, smoother, sleep, held_out.x, condition)

    if adapt.criterion == "objective":
        error = _error(predictions(parameters), truths(parameters))
        return error, 1 - error
    truth, along_truth = jax.linearize(truths, parameters)
    predicted, along_prediction = jax.linearize(predictions, parameters)
    leaves, structure = jax.tree.flatten(units)
    errors = []
    for direction_key in jax.random.split(key, adapt.directions):
        keys = jax.random.split(direction_key, len(leaves))
        signs = [
            unit * jax.random.rademacher(k, unit.shape, unit.dtype)
            for k, unit in zip(keys, leaves, strict=True)
        ]
        direction = jax.tree.unflatten(structure, signs)
        errors.append(_error(along_prediction(direction), along_truth(direction)))
    return jnp.stack(errors).mean(), 1 - _error(predicted, truth)


def _error(predicted: Float[Array, " held_out"], truth: Float[Array, " held_out"]) -> Array:
    variance = jax.lax.stop_gradient(truth.var() + jnp.finfo(truth.dtype).tiny)
    return jnp.mean((predicted - truth) ** 2) / variance
