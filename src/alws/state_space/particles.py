"""The likelihood of a sequence under any state-space model, and its score, by simulated states.

    s_t^i ~ the model, from s_{t−1}^i        (move)
    w_t^i ∝ w_{t−1}^i p(x_t | s_t^i)         (weigh)
    p̂(x_t | x_1 … x_{t−1}) = Σ_i w_{t−1}^i p(x_t | s_t^i)

The bootstrap particle filter (Gordon, Salmond and Smith 1993). Guided, normal numbers in z_t are
drawn from a normal approximation to p(z_t | s_{t−1}, x_t) instead, and weighed for it. Where the
weights have become uneven, states are drawn anew in proportion to them, with one random number for
all (systematic resampling). The product of the p̂ is unbiased for p(x); its logarithm is nearly
normal, so of R independent repeats with mean m and variance v the estimate is

    log p(x) ≈ m + v/2,    with variance v/R + v²/(2(R − 1)).

`alws.state_space.sequence_log_likelihood` combines them so. The filter needs nothing of a model but
that it can be simulated and that p(x_t | s_t) can be computed.

The score is the posterior mean of the complete one (Fisher's identity), a sum over times that every
particle carries along its path:

    A_t^i = λ A_{t−1}^{a(i)} + (1 − λ) Ā_{t−1} + ∇ log p(z_t^i | s_{t−1}^{a(i)}) p(x_t | s_t^i),
    ∇ log p(x_1 … x_t) ≈ Ā_t = Σ_i w_t^i A_t^i.

With λ = 1 it is unbiased up to 1/N, but all paths soon have one ancestor, and the variance grows
with the square of the length. With λ < 1 (Nemeth, Fearnhead and Mihaylova 2016) what happened at a
time is looked back at for some 1/(1 − λ) times; the variance then grows with the length alone.

States that follow from what is random, s_t = f(s_{t−1}, z_t, θ), carry their derivatives D_t in θ
with them, and would do so for ever. But z may move with θ too, dz_t = k_t dθ, if the change of
volume is counted:

    D_t = f_s D_{t−1} + f_θ + f_z k_t,   score += ∂_z log p(z_t, x_t | …) k_t + div k_t.

k_t is what makes |D_t|², in units of the particles' spread, and |k_t|², in units of that of z, the
least together. Where z decides the next state alone, D is nearly 0 and the score that of p(s_t |
s_{t−1}); where it hardly moves it, D is forgotten as slowly as the filter forgets.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, Key, PyTree
from numpyro.distributions import Distribution, constraints

from alws.state_space.distributions import (
    draw_with,
    is_distribution,
    is_normal,
    log_prob,
    randomness,
)
from alws.state_space.model import Given, StateSpace, within

MOST_SHIFTED = 8
"""How many numbers of z move with θ, or are guided, at most: more cost more than they bring."""

DEFENCE, FARTHEST = 0.1, 10.0
"""How often a guided draw is not guided, and how many standard deviations it is moved at most."""


LOST = 1e10
"""Nats, of whichever sign, from which on a density is rounding error: no particle counts there."""


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
    nothing = jnp.zeros(0)
    return particle_scores(
        lambda _: model, nothing, x, given, key=key, particles=particles, keep=()
    )[0]


def particle_scores(
    at: Callable[[Array], StateSpace],
    theta: Float[Array, " p"],
    x: PyTree,
    given: Given = Given(),
    *,
    key: Key[Array, ""],
    particles: int,
    keep: Sequence[float],
    guided: bool = False,
    run_in: Int[Array, ""] | None = None,
) -> tuple[Float[Array, " times"], Float[Array, "times keeps p"]]:
    """log p̂(x_t | x_1 … x_{t−1}) and the estimated score of x_1 … x_t, of every time.

    Times after the last that was observed change nothing. After a run-in of r times the scores are
    those of x_{r+1} … x_t given x_1 … x_r: they are differences of sums, Ā_t − Ā_r.

    Arguments:
        at: the model with these parameters.
        theta: the parameters.
        x, given: one sequence and its conditions.
        key: on which all random numbers depend.
        particles: how many states are simulated side by side.
        keep: values of λ, of which each has its own scores.
        guided: draw what is normal in z_t near what x_t says of it.
        run_in: how many times at the beginning count nothing themselves; None for no run-in.

    Example: `particle_scores(at, theta, x, key=key, particles=500, keep=(0.95,))[1][-1, 0]`.
    """
    model, number = at(theta), particles
    plain = all(model.inherits(method) for method in ("start", "update", "feed_back"))
    carries = len(theta) > 0 and not plain
    controls = () if given.control is None else (given.control,)
    x, times = within(x, given), len(jax.tree.leaves(x)[0])
    seen = jnp.ones(times, bool) if given.observed is None else given.observed
    counts = jnp.flip(jnp.cumsum(jnp.flip(seen)) > 0)
    start_key, moves_key, chosen_key = jax.random.split(key, 3)
    shares = jnp.asarray(keep, float)[:, None, None]

    def see(model: StateSpace, state: PyTree, item: tuple) -> tuple[PyTree, Array]:
        x, seen, _, control = item
        found = jnp.where(seen, log_prob(model.observation(state, *control), x), 0.0)
        return model.feed_back(state, x, *control), found

    def along(
        step: Callable, distributions: PyTree, states: PyTree, slopes: Array, z: PyTree
    ) -> tuple:
        """The next states, their derivatives in θ, log p(x_t | s_t) and what the scores gain."""
        if not carries:

            def plainly(state: PyTree, z: PyTree) -> tuple:
                def total(theta: Array) -> tuple[Array, tuple]:
                    after, moved, found = step(at(theta), state, z)
                    return moved + found, (after, found)

                score, (after, found) = jax.grad(total, has_aux=True)(theta)
                return after, found, score

            after, found, score = jax.vmap(plainly)(states, z)
            return after, slopes, found, score
        after, _, found = jax.vmap(lambda s, z: step(model, s, z))(states, z)
        latents = _movable(distributions)
        moved = jax.vmap(lambda s, z: (_numbers(s)[0], latents(z)[0]))(after, z)
        widths = [a.var(axis=0) for a in moved]
        weights = [jnp.where(w > 0, 1 / jnp.where(w > 0, w, 1.0), 0.0) for w in widths]
        shift = partial(_shifted, step, at, theta, latents, *weights)
        slopes, score = jax.vmap(shift)(states, slopes, z)
        return after, jnp.where(jnp.isfinite(slopes), slopes, 0.0), found, score

    def weigh(logs: Array, sums: Array, found: Array, rarer: Array, score: Array) -> tuple:
        lost = ~(jnp.maximum(jnp.abs(found), jnp.abs(rarer)) < LOST)
        found = jnp.where(lost, -jnp.inf, found + rarer)
        total = logsumexp(logs + found)
        logs = jnp.where(jnp.isfinite(total), logs + found - total, -jnp.log(number))
        sums = sums + jnp.where(jnp.isfinite(score), score, 0.0)
        return logs, sums, (total, jnp.einsum("n,knp->kp", jnp.exp(logs), sums))

    def counted_from(time: Array, sums: Array, found: tuple) -> tuple[Array, tuple]:
        """Sums without what they were when the run-in ended, and nothing found until then."""
        if run_in is None:
            return sums, found
        sums, before = sums - jnp.where(time == run_in - 1, found[1], 0.0)[:, None], time < run_in
        return sums, jax.tree.map(lambda a: jnp.where(before, 0.0, a), found)

    def begin(model: StateSpace, _: PyTree, z: PyTree) -> tuple[PyTree, Array, Array]:
        state, found = model.start(z), jnp.zeros(())
        if model.observe_start:
            state, found = see(model, state, at_first)
        return state, log_prob(model.initial(), z), found

    def draw(distributions: Callable, states: PyTree, key: Key[Array, ""], look: Callable) -> tuple:
        """z of every particle, and the logarithm of how much rarer it is drawn than it should."""
        target = distributions(jax.tree.map(lambda a: a[0], states))
        key, coin_key = jax.random.split(key)
        drawn = randomness(lambda: target, (), key, number)
        leaves = jax.tree.leaves(target, is_leaf=is_distribution)
        free = [is_normal(d) for d in leaves]
        few = sum(math.prod(d.shape()) for d in leaves) <= MOST_SHIFTED
        if not (guided and any(free) and few):
            z = jax.vmap(lambda s, r: draw_with(distributions(s), r))(states, drawn)
            return target, z, jnp.zeros(number)

        def one(state: PyTree, drawn: list[Array], coin: Array) -> tuple[PyTree, Array]:
            flat, back = _chosen(drawn, free, jax.tree.structure(drawn))

            def at(flat: Array) -> PyTree:
                return draw_with(distributions(state), back(flat))

            flat, rarer = _guided(lambda flat: look(model, state, at(flat))[2], flat, coin)
            return at(flat), rarer

        coins = jax.random.uniform(coin_key, (number,))
        return target, *jax.vmap(one)(states, drawn, coins)

    def step(carry: tuple, numbered: tuple) -> tuple[tuple, tuple]:
        (states, slopes, logs, sums), (time, *item) = carry, numbered
        counted, control = item[2:]
        chosen, flat_logs = _resampled(logs, jax.random.fold_in(chosen_key, time))
        mean, before = jnp.einsum("n,knp->kp", jnp.exp(logs), sums), (logs, sums)
        sums = shares * sums[:, chosen] + (1 - shares) * mean[:, None]
        states, slopes = jax.tree.map(lambda a: a[chosen], (states, slopes))

        def move(model: StateSpace, state: PyTree, z: PyTree) -> tuple[PyTree, Array, Array]:
            moved = log_prob(model.transition(state, *control), z)
            after, found = see(model, model.update(state, z, *control), tuple(item))
            return after, moved, found

        target, z, rarer = draw(
            lambda s: model.transition(s, *control),
            states,
            jax.random.fold_in(moves_key, time),
            move,
        )
        states, slopes, found, score = along(move, target, states, slopes, z)
        logs, sums, (total, after) = weigh(flat_logs, sums, found, rarer, score)
        (logs, sums), after = jax.tree.map(
            partial(jnp.where, counted), ((logs, sums), after), (before, mean)
        )
        sums, found = counted_from(time, sums, (total, after))
        return (states, slopes, logs, sums), found

    items: tuple[Any, ...] = jnp.arange(times), x, seen, counts, controls
    at_first = jax.tree.map(lambda a: a[0], items[1:])
    nothing = jnp.zeros(number)
    _, z, rarer = draw(lambda _: model.initial(), nothing, start_key, begin)
    states = jax.vmap(lambda _, z: model.start(z))(nothing, z)
    size = _numbers(jax.tree.map(lambda a: a[0], states))[0].size * carries
    slopes = jnp.zeros((number, len(theta), size))
    states, slopes, found, score = along(begin, model.initial(), states, slopes, z)
    sums = jnp.zeros((len(keep), number, len(theta)))
    logs, sums, first = weigh(jnp.full(number, -jnp.log(number)), sums, found, rarer, score)
    if not model.observe_start:
        return jax.lax.scan(step, (states, slopes, logs, sums), items)[1]
    sums, first = counted_from(jnp.zeros((), int), sums, first)
    later = jax.tree.map(lambda a: a[1:], items)
    rest = jax.lax.scan(step, (states, slopes, logs, sums), later)[1]
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)


def _guided(
    look: Callable[[Array], Array], drawn: Float[Array, " m"], coin: Float[Array, ""]
) -> tuple[Float[Array, " m"], Float[Array, ""]]:
    """A draw near the posterior of standard normals ε, and log p(ε) − log q(ε).

    q is normal, as log p(x | ε) is curved near its posterior's mode, or, once in ten times, p.
    """
    size = drawn.size
    centre, factor = jnp.zeros(size), [[jnp.ones(())] * size] * size
    for _ in range(2):
        slope, bend = jax.grad(look)(centre), jax.hessian(look)(centre)
        slope, bend = (jnp.where(jnp.isfinite(a), a, 0.0) for a in (slope, bend))
        factor = _factor(jnp.eye(size) - bend, 1.0)
        centre = _solve(factor, slope - bend @ centre)
        centre = centre * jnp.minimum(1.0, FARTHEST / jnp.sqrt(centre @ centre + 1e-30))
    moved = jnp.where(coin < DEFENCE, drawn, centre + _upward(factor, drawn))
    back = [
        sum((factor[j][i] * (moved - centre)[j] for j in range(i, size)), jnp.zeros(()))
        for i in range(size)
    ]
    scaled = sum((jnp.log(factor[i][i]) for i in range(size)), jnp.zeros(()))
    plain, near = -0.5 * moved @ moved, scaled - 0.5 * sum(b**2 for b in back)
    mixed = jnp.logaddexp(jnp.log(1 - DEFENCE) + near, jnp.log(DEFENCE) + plain)
    return moved, plain - mixed


def _factor(a: Float[Array, "m m"], least: float) -> list[list[Array]]:
    """Its Cholesky factor, every pivot at least so large; written out, for many small matrices."""
    size = len(a)
    factor = [[jnp.zeros(())] * size for _ in range(size)]
    for j in range(size):
        pivot = a[j, j] - sum(factor[j][k] ** 2 for k in range(j))
        factor[j][j] = jnp.sqrt(jnp.maximum(pivot, least))
        for i in range(j + 1, size):
            dot = sum(factor[i][k] * factor[j][k] for k in range(j))
            factor[i][j] = (a[i, j] - dot) / factor[j][j]
    return factor


def _upward(factor: list[list[Array]], b: Array) -> Array:
    """L⁻ᵀ b."""
    size, x = len(factor), {}
    for i in reversed(range(size)):
        x[i] = (b[i] - sum(factor[j][i] * x[j] for j in range(i + 1, size))) / factor[i][i]
    return jnp.stack([x[i] for i in range(size)])


def _solve(factor: list[list[Array]], b: Array) -> Array:
    """(L Lᵀ)⁻¹ b, of a vector or of columns."""
    size, x = len(factor), []
    for i in range(size):
        x.append((b[i] - sum(factor[i][k] * x[k] for k in range(i))) / factor[i][i])
    return _upward(factor, jnp.stack(x))


def _shifted(
    step: Callable,
    at: Callable[[Array], StateSpace],
    theta: Float[Array, " p"],
    latents: Callable,
    by_state: Float[Array, " n"],
    by_latent: Float[Array, " m"],
    state: PyTree,
    slope: Float[Array, "p n"],
    z: PyTree,
) -> tuple[Float[Array, "p n"], Float[Array, " p"]]:
    """D_t, and what the score gains, where z moves with θ as far as that keeps the state in place.

    `latents(z)` are the numbers of z that may move, and the way back; `by_state` and `by_latent`
    say how much a square counts.
    """
    (flat, back), (latent, whole) = _numbers(state), latents(z)

    def both(theta: Array, flat: Array, latent: Array) -> tuple[Array, Array]:
        after, moved, found = step(at(theta), back(flat), whole(latent))
        return _numbers(after)[0], moved + found

    def along(latent: Array, *direction: Array) -> tuple[Array, Array]:
        return jax.jvp(both, (theta, flat, latent), direction)[1]

    every, still = jnp.eye(len(theta)), jnp.zeros_like(latent)

    def shift(latent: Array) -> Float[Array, "p m"]:
        drift = jax.vmap(lambda e, d: along(latent, e, d, still)[0])(every, slope)
        turn = jax.jacfwd(lambda latent: both(theta, flat, latent)[0])(latent)
        weighed = by_state[:, None] * turn
        square = turn.T @ weighed + jnp.diag(jnp.where(by_latent > 0, by_latent, 1.0))
        return -_solve(_factor(square, 0.0), weighed.T @ drift.T).T

    if not latent.size:
        return jax.vmap(lambda e, d: along(latent, e, d, still))(every, slope)
    spread = jnp.trace(jax.jacfwd(shift)(latent), axis1=1, axis2=2)
    slope, score = jax.vmap(lambda e, d, k: along(latent, e, d, k))(every, slope, shift(latent))
    return slope, score + spread


def _movable(distributions: PyTree) -> Callable:
    """For a draw, its numbers that lie anywhere on the line, if they are few, and the way back."""
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    free = [_anywhere(d) for d in leaves]
    some = sum(math.prod(d.shape()) for d, f in zip(leaves, free, strict=True) if f)
    free = free if some <= MOST_SHIFTED else [False] * len(free)

    def latents(z: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
        return _chosen(structure.flatten_up_to(z), free, structure)

    return latents


def _anywhere(distribution: Distribution) -> bool:
    support: Any = distribution.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support is constraints.real


def _numbers(state: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
    """The floating-point numbers of a state as a vector, and the way back."""
    leaves, structure = jax.tree.flatten(state)
    leaves = [jnp.asarray(a) for a in leaves]
    return _chosen(leaves, [jnp.issubdtype(a.dtype, jnp.floating) for a in leaves], structure)


def _chosen(
    leaves: list[Array], which: list[bool], structure: Any
) -> tuple[Array, Callable[[Array], PyTree]]:
    flat, unravel = ravel_pytree([a for a, w in zip(leaves, which, strict=True) if w])

    def back(flat: Array) -> PyTree:
        found = iter(unravel(flat))
        parts = [next(found) if w else a for a, w in zip(leaves, which, strict=True)]
        return structure.unflatten(parts)

    return flat, back


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


__all__ = ["particle_increments", "particle_scores"]
