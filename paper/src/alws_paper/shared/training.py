"""What several experiments train with: an optimiser, and a loop for rivals, on the device."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from alws.validation import at_least

Module = TypeVar("Module")


def decaying_adam(steps: int, learning_rate: float) -> optax.GradientTransformation:
    """Adam with a cosine decay over the whole fit, gradients clipped at norm 10.

    Example: `alws.Settings(optimiser=decaying_adam(3000, 1e-3))`.
    """
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule))


def climb(
    objective: Callable[[Module, PyTree, Key[Array, ""]], tuple[Array, Array]],
    module: Module,
    data: PyTree[Array],
    optimiser: optax.GradientTransformation,
    *,
    key: Key[Array, ""],
    steps: int,
    batch_size: int,
    every: int,
) -> tuple[Module, list[Float[np.ndarray, " steps"]]]:
    """Take `module` up the first of the two values `objective(module, batch, key)` gives.

    The second value is what to report; it comes back for every step, in blocks of `every`.

    Example: `climb(lambda m, x, k: 2 * (mean_elbo(m, x, k),), vae, data, optax.adam(1e-3), ...)`.
    """
    at_least("steps", steps, 1)
    at_least("batch_size", batch_size, 1)
    at_least("every", every, 1)
    parameters, static = eqx.partition(module, eqx.is_inexact_array)
    size = len(jax.tree.leaves(data)[0])

    def step(carry: tuple[Any, Any], number: Array, data: PyTree) -> tuple[tuple[Any, Any], Array]:
        parameters, state = carry
        choice_key, draw_key = jax.random.split(jax.random.fold_in(key, number))
        chosen = jax.random.randint(choice_key, (batch_size,), 0, size)
        batch = jax.tree.map(lambda a: a[chosen], data)

        def loss(parameters: Any) -> tuple[Array, Array]:
            climbed, reported = objective(eqx.combine(parameters, static), batch, draw_key)
            return -climbed, reported

        gradient, reported = jax.grad(loss, has_aux=True)(parameters)
        updates, state = optimiser.update(gradient, state, parameters)
        return (optax.apply_updates(parameters, updates), state), reported

    @jax.jit
    def run(carry: tuple[Any, Any], numbers: Array, data: PyTree) -> tuple[tuple[Any, Any], Array]:
        return jax.lax.scan(lambda c, n: step(c, n, data), carry, numbers)

    carry, history = (parameters, optimiser.init(parameters)), []
    for first in range(0, steps, every):
        carry, reported = run(carry, jnp.arange(first, min(first + every, steps)), data)
        history.append(np.asarray(reported))
    return eqx.combine(carry[0], static), history


__all__ = ["climb", "decaying_adam"]
