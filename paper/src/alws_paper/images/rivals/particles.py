"""Amortised learning by particles, AL-P, of the appendix on other gradient models.

A simulator S_γ(x, n) makes latents from an observation and noise, such that the mean gradient over
its particles is that of the likelihood. On sleep samples (z, x) ~ p_θ it minimises

    E ‖ E_n ∇_θ log p_θ(S_γ(x, n), x) − ∇_θ log p_θ(z, x) ‖²,

least at the conditional mean, which is ∇_θ log p_θ(x). On data θ climbs E_n log p_θ(S_γ(x, n), x),
the particles constant.

The paper leaves open how; here gradients are never formed. For a direction v ~ N(0, I) in θ's
space, one forward derivative gives d_k = v·∇_θ log p_θ(S(x, n_k), x) − v·∇_θ log p_θ(z, x) of every
draw, and E_v (v·a)² = ‖a‖². The whole batch shares its directions, as one derivative then serves
all of it; the estimate has no bias with any number of them, and less variance with more. The mean
over pairs k ≠ l of d_k d_l estimates the square of the inner mean without bias: the mean of d_k,
squared, would add the particles' variance and draw them together.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.model import AnyModel, Draws, log_joints
from alws.validation import at_least

Simulator = Callable[[PyTree, Key[Array, ""], int], Float[Array, "number latents"]]
"""(x, key, number) ↦ particles for one observation."""


def particles(simulator: Simulator, x: PyTree, key: Key[Array, ""], number: int) -> Draws:
    """`number` particles for each observation of a batch, one after the other, beside its x.

    Example: `particles(simulator, x, key, 10).z.shape == (10 * len(x), 16)`.
    """
    keys = jax.random.split(key, len(jax.tree.leaves(x)[0]))
    z = jax.vmap(lambda x, k: simulator(x, k, number))(x, keys)
    return Draws(
        z.reshape(-1, *z.shape[2:]), jax.tree.map(lambda a: jnp.repeat(a, number, axis=0), x)
    )


def simulator_loss(
    simulator: Simulator,
    model: AnyModel,
    sleep: Draws,
    key: Key[Array, ""],
    *,
    number: int,
    directions: int = 1,
) -> Float[Array, ""]:
    """An unbiased estimate of what γ minimises, a mean over some directions; θ is constant.

    Each direction costs a forward derivative of all draws.

    Example: `eqx.filter_grad(simulator_loss)(simulator, model, sleep, key, number=10)`.
    """
    at_least("number", number, 2, " The estimate is a mean over pairs of particles.")
    at_least("directions", directions, 1)
    particle_key, direction_key = jax.random.split(key)
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    parameters = jax.lax.stop_gradient(parameters)
    made = particles(simulator, sleep.x, particle_key, number)

    def along(key: Key[Array, ""]) -> Float[Array, ""]:
        direction = _direction(parameters, key)

        def slopes(draws: Draws) -> Float[Array, " draws"]:
            values = lambda p: log_joints(eqx.combine(p, rest), draws)  # noqa: E731
            return jax.jvp(values, (parameters,), (direction,))[1]

        apart = slopes(made).reshape(-1, number) - slopes(sleep)[:, None]
        return (apart.sum(axis=1) ** 2 - (apart**2).sum(axis=1)).mean()

    if directions == 1:
        total = along(direction_key)
    else:
        total = jax.vmap(along)(jax.random.split(direction_key, directions)).mean()
    return total / (number * (number - 1))


def _direction(parameters: PyTree, key: Key[Array, ""]) -> PyTree:
    """v ~ N(0, I), a leaf for each of θ's."""
    leaves, structure = jax.tree.flatten(parameters)
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten(
        [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves, strict=True)]
    )


def particle_objective(
    simulator: Simulator, model: AnyModel, x: PyTree, key: Key[Array, ""], *, number: int
) -> Float[Array, ""]:
    """The mean of log p_θ(z', x) over a batch and its particles, these constant: what θ climbs.

    Example: `particle_objective(simulator, model, x, key, number=10)`.
    """
    return log_joints(model, jax.lax.stop_gradient(particles(simulator, x, key, number))).mean()


__all__ = ["Simulator", "particle_objective", "particles", "simulator_loss"]
