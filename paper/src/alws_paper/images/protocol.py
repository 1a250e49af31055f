"""What every method is to the loop that trains it: `initialise`, `step` and `generator`.

The state is a pytree of arrays that holds everything, the random key and the optimisers included,
so that a method goes on from a checkpoint bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from alws.wake_sleep import update


class MethodState(NamedTuple):
    """What is learnt, its optimisers, the key, the steps so far, and what the last one climbed."""

    learnt: Any
    optimiser: PyTree
    key: Key[Array, ""]
    step: Int[Array, ""]
    objective: Float[Array, ""]


@runtime_checkable
class Method(Protocol):
    """A way to fit a generator to images."""

    @property
    def name(self) -> str:
        """The method's name in tables."""
        ...

    def initialise(self, key: Key[Array, ""], data: Array) -> MethodState:
        """The state before the first step."""
        ...

    def step(self, state: MethodState, batch: Array) -> MethodState:
        """One step on a batch: pure, to be compiled once."""
        ...

    def generator(self, state: MethodState) -> Any:
        """The model as it is now, to draw from."""
        ...


class Pair(eqx.Module):
    """A model and the network that is learnt beside it: encoder, simulator or critic."""

    beside: Any
    model: Any


def first_state(learnt: Any, optimiser: PyTree, key: Key[Array, ""]) -> MethodState:
    """The state at step 0; nothing has been climbed yet."""
    return MethodState(learnt, optimiser, key, jnp.zeros((), int), jnp.full((), jnp.nan))


def rise(
    objective: Callable[[Any], tuple[Array, Array]],
    module: Any,
    optimiser: optax.GradientTransformation,
    state: PyTree,
) -> tuple[Any, PyTree, Array]:
    """One step of the optimiser up the first value of `objective(module)`; the second comes back.

    A step that is not finite is refused.

    Example: `module, state, value = rise(objective, module, optax.adam(1e-3), state)`.
    """
    (_, reported), gradient = eqx.filter_value_and_grad(objective, has_aux=True)(module)
    module, state, _ = update(optimiser, module, gradient, state)
    return module, state, reported


@dataclass(frozen=True)
class Climbing:
    """A method whose every step takes a `Pair` up one objective by Adam.

    `objective(pair, batch, key)` gives the value to climb and the value to report.
    """

    name: str
    build: Callable[[Key[Array, ""]], Pair]
    objective: Callable[[Pair, Array, Key[Array, ""]], tuple[Array, Array]]
    learning_rate: float

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam at a fixed rate."""
        return optax.adam(self.learning_rate)

    def initialise(self, key: Key[Array, ""], data: Array) -> MethodState:
        build_key, key = jax.random.split(key)
        pair = self.build(build_key)
        return first_state(pair, self.optimiser.init(eqx.filter(pair, eqx.is_inexact_array)), key)

    def step(self, state: MethodState, batch: Array) -> MethodState:
        key, now = jax.random.split(state.key)
        pair, optimiser, value = rise(
            lambda pair: self.objective(pair, batch, now),
            state.learnt,
            self.optimiser,
            state.optimiser,
        )
        return MethodState(pair, optimiser, key, state.step + 1, value)

    def generator(self, state: MethodState) -> Any:
        return state.learnt.model


__all__ = ["Climbing", "Method", "MethodState", "Pair", "first_state", "rise"]
