"""A Wasserstein GAN as a method: a critic step on every batch, a generator step on every fifth."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key

from alws_paper.images.generators import Noisy
from alws_paper.images.protocol import MethodState, Pair, first_state, rise
from alws_paper.images.rivals.wgan import critic_objective, generator_objective


@dataclass(frozen=True)
class Adversarial:
    """`build(key)` gives a `Pair` of critic and model; the model needs `sample_latent` and `mean`.

    Example: `Adversarial("WGAN-GP", build).initialise(key, data)`.
    """

    name: str
    build: Callable[[Key[Array, ""]], Pair]
    critic_steps: int = 5
    learning_rate: float = 1e-4

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam with little momentum, for the critic and for the generator."""
        return optax.adam(self.learning_rate, b1=0.5, b2=0.9)

    def initialise(self, key: Key[Array, ""], data: Array) -> MethodState:
        build_key, key = jax.random.split(key)
        pair = self.build(build_key)
        optimisers = tuple(
            self.optimiser.init(eqx.filter(part, eqx.is_inexact_array))
            for part in (pair.beside, pair.model)
        )
        return first_state(pair, optimisers, key)

    def step(self, state: MethodState, batch: Array) -> MethodState:
        """A critic step; and a generator step when `critic_steps` have been taken."""
        key, critic_key, generator_key = jax.random.split(state.key, 3)
        model = state.learnt.model
        critic, critic_optimiser, distance = rise(
            lambda critic: critic_objective(critic, model, batch, critic_key),
            state.learnt.beside,
            self.optimiser,
            state.optimiser[0],
        )
        arrays, rest = eqx.partition(model, eqx.is_array)

        def both(model: Any) -> tuple[Array, Array]:
            value = generator_objective(model, critic, generator_key, len(batch))
            return value, value

        def move(arrays: Any, optimiser: Any) -> tuple[Any, Any]:
            moved, optimiser, _ = rise(both, eqx.combine(arrays, rest), self.optimiser, optimiser)
            return eqx.filter(moved, eqx.is_array), optimiser

        turn = (state.step + 1) % self.critic_steps == 0
        arrays, generator_optimiser = jax.lax.cond(
            turn, move, lambda a, o: (a, o), arrays, state.optimiser[1]
        )
        return MethodState(
            Pair(critic, eqx.combine(arrays, rest)),
            (critic_optimiser, generator_optimiser),
            key,
            state.step + 1,
            distance,
        )

    def generator(self, state: MethodState) -> Any:
        """The model with σ = 0: what the critic saw has no noise, and no density."""
        model = state.learnt.model
        if not isinstance(getattr(model, "output", None), Noisy):
            return model
        return eqx.tree_at(lambda m: m.output.log_noise, model, jnp.array(-jnp.inf))


__all__ = ["Adversarial"]
