"""The likelihood of a sequence under any state-space model, by simulating states side by side.

    s_t^i ~ the model, from s_{t−1}^i        (move)
    w_t^i ∝ w_{t−1}^i p(x_t | s_t^i)         (weigh)
    p̂(x_t | x_1 … x_{t−1}) = Σ_i w_{t−1}^i p(x_t | s_t^i)

The bootstrap particle filter (Gordon, Salmond and Smith 1993). Where the weights have become
uneven, states are drawn anew in proportion to them, with one random number for all (systematic
resampling). The product of the p̂ is unbiased for p(x); its logarithm is nearly normal, so of R
independent repeats with mean m and variance v the estimate is

    log p(x) ≈ m + v/2,    with variance v/R + v²/(2(R − 1)).

`alws.state_space.sequence_log_likelihood` combines them so. The filter needs nothing of a model but
that it can be simulated and that p(x_t | s_t) can be computed.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, Key, PyTree

from alws.state_space.distributions import draw_once, draw_with, log_prob, randomness
from alws.state_space.model import Given, StateSpace


def particle_increments(
    model: StateSpace,
    x: PyTree,
    given: Given = Given(),
    *,
    key: Key[Array, ""],
    particles: int = 1000,
) -> Float[Array, " times"]:
    """log p̂(x_t | x_1 … x_{t−1}) of every time of one sequence; 0 where nothing was observed.

    Arguments:
        model: the model.
        x, given: one sequence and its conditions.
        key: on which all random numbers depend.
        particles: how many states are simulated side by side.

    Example: `particle_increments(model, x, key=jax.random.key(0)).sum()`.
    """
    controls = () if given.control is None else (given.control,)
    times = len(jax.tree.leaves(x)[0])
    seen = jnp.ones(times, bool) if given.observed is None else given.observed
    start_key, moves_key, chosen_key = jax.random.split(key, 3)

    def begin(key: Array) -> PyTree:
        return model.start(draw_once(model.initial(), key))

    def see(states: PyTree, logs: Array, item: tuple) -> tuple[PyTree, Array, Array]:
        x, seen, control = item
        found = jax.vmap(lambda s: log_prob(model.observation(s, *control), x))(states)
        found = jnp.where(seen, jnp.where(jnp.isnan(found), -jnp.inf, found), 0.0)
        total = logsumexp(logs + found)
        fed = states
        if not model.inherits("feed_back"):
            fed = jax.vmap(lambda s: model.feed_back(s, x, *control))(states)
        alive = jnp.isfinite(total)
        return fed, jnp.where(alive, logs + found - total, -jnp.log(particles)), total

    def move(states: PyTree, key: Array, control: tuple) -> PyTree:
        one = jax.tree.map(lambda a: a[0], states)
        drawn = randomness(model.transition, (one, *control), key, particles)

        def next_of(state: PyTree, drawn: list[Array]) -> PyTree:
            z = draw_with(model.transition(state, *control), drawn)
            return model.update(state, z, *control)

        return jax.vmap(next_of)(states, drawn)

    def step(carry: tuple, numbered: tuple) -> tuple[tuple, Array]:
        (states, logs), (number, *item) = carry, numbered
        chosen, logs = _resampled(logs, jax.random.fold_in(chosen_key, number))
        states = jax.tree.map(lambda s: s[chosen], states)
        states = move(states, jax.random.fold_in(moves_key, number), item[-1])
        states, logs, total = see(states, logs, tuple(item))
        return (states, logs), total

    states = jax.vmap(begin)(jax.random.split(start_key, particles))
    logs = jnp.full(particles, -jnp.log(particles))
    items: tuple[Any, ...] = jnp.arange(times), x, seen, controls
    if not model.observe_start:
        return jax.lax.scan(step, (states, logs), items)[1]
    at_first = jax.tree.map(lambda a: a[0], items[1:])
    states, logs, first = see(states, logs, at_first)
    later = jax.tree.map(lambda a: a[1:], items)
    return jnp.concatenate([first[None], jax.lax.scan(step, (states, logs), later)[1]])


def _resampled(
    logs: Float[Array, " particles"], key: Key[Array, ""]
) -> tuple[Int[Array, " particles"], Float[Array, " particles"]]:
    """Which states go on, and their log weights: as they are while they are worth half of all."""
    number = len(logs)
    weights = jnp.exp(logs)
    below = jnp.cumsum(weights)
    ends = jnp.ceil(number * below / below[-1] - jax.random.uniform(key)).astype(int)
    chosen = jnp.cumsum(jnp.zeros(number + 1, int).at[jnp.clip(ends, 0, number)].add(1))[:-1]
    uneven = jnp.sum(weights) ** 2 < 0.5 * number * jnp.sum(weights**2)
    chosen = jnp.where(uneven, jnp.minimum(chosen, number - 1), jnp.arange(number))
    return chosen, jnp.where(uneven, -jnp.log(number), logs)


__all__ = ["particle_increments"]
