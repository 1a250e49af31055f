"""The likelihood of a sequence whose state is one continuous number: integrals become sums.

    p(x_t | x_1 … x_{t−1}) = ∫ p(x_t | s) p(s | x_1 … x_{t−1}) ds
    p(s_t | x_1 … x_{t−1}) = ∫ p(s_t | s) p(s | x_1 … x_{t−1}) ds

With s = T(u), u on the whole line, and nodes u_i in even steps h, each integral is the sum
h Σ_i (…) T'(u_i), the trapezoidal rule. For smooth densities its error vanishes faster than any
power of h once h is below the width of what is integrated. That is not believed but measured: half
the step and twice the range must give the same likelihood.

The nodes stay as they are while θ moves, so the sum is differentiable in θ. A transition narrower
than h would be counted for more than 1 where it falls on a node; what leaves a node is therefore
divided by its sum where that is above 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree
from numpyro.distributions import Distribution, biject_to, constraints

from alws.state_space.distributions import draw_like, draw_once, is_distribution, log_prob
from alws.state_space.model import Given, StateSpace

MOST_NODES = 2048
"""The most nodes of a grid, twice as many to check it."""

MOST_DENSITIES = 4e8
"""The most transition densities of one likelihood, where a control input makes them differ."""

LOOK = 256
"""How many sequences are simulated to find where states lie."""

EMPTY = 1e-13
"""What a node holds at most, as a share of the fullest at that time, to be left out."""

SUPPORTS = (constraints.real, constraints.positive, constraints.unit_interval)


class Placed(NamedTuple):
    """The nodes for some sequences, the error they leave in nats, and why there are none."""

    nodes: Float[np.ndarray, " nodes"]
    error: float
    reason: str = ""


def why_no_grid(model: StateSpace, given: Given = Given()) -> str:
    """Why the state of this model cannot lie on a grid; empty if it can.

    Example: `why_no_grid(model)` is "" for a stochastic volatility.
    """
    if not (model.inherits("update") and model.inherits("feed_back")):
        return "it remembers more than its latent"
    control = _control_at(given, 0)
    begin = model.initial()
    first = model.start(_inside(begin))
    target = model.transition(first, *control)
    moves = jax.tree.leaves(target, is_leaf=is_distribution)
    if len(moves) != 1 or int(np.prod(moves[0].shape())) != 1:
        return "its latent is more than one number"
    if not model.inherits("start") and jax.tree.leaves(begin, is_leaf=is_distribution):
        return "its first state is made from a latent"
    if jax.tree.structure(first) != jax.tree.structure(_inside(target)):
        return "its first state is not like the later ones"
    starts = jax.tree.leaves(begin, is_leaf=is_distribution)
    supports = {str(_support(d)) for d in [*moves, *starts]}
    if len(supports) > 1 or _support(moves[0]) not in SUPPORTS:
        return "its latent lies neither on the line, nor above 0, nor between 0 and 1"
    return ""


def grid_increments(
    model: StateSpace, nodes: Float[Array, " nodes"], x: PyTree, given: Given = Given()
) -> Float[Array, " times"]:
    """log p(x_t | x_1 … x_{t−1}) of every time of one sequence; 0 where nothing was observed.

    Arguments:
        model: a model for which `why_no_grid` has no reason.
        nodes: u in even steps, as `place` gives them.
        x, given: one sequence and its conditions.

    Example: `grid_increments(model, place(model, x[None], None, key).nodes, x).sum()`.
    """
    return _filter(model, nodes, x, given)[0]


def place(
    model: StateSpace,
    x: PyTree,
    given: Given | None,
    key: Key[Array, ""],
    *,
    tolerance: float = 1e-4,
    nodes: Float[np.ndarray, " nodes"] | None = None,
) -> Placed:
    """Nodes that leave at most `tolerance` nats of error in all sequences together.

    Arguments:
        model: a model for which `why_no_grid` has no reason.
        x, given: the sequences, one a row, and their conditions.
        key: for the simulations that show where states lie.
        tolerance: in nats.
        nodes: where to begin, such as the nodes for θ nearby.

    Example: `place(model, x, None, key).error`.
    """
    given = Given() if given is None else given
    first, most = jax.tree.map(lambda a: a[0], given), MOST_NODES
    if given.control is not None:
        size = jax.tree.leaves(x)[0][..., None].shape[:2]
        most = min(most, int((MOST_DENSITIES / (4 * size[0] * size[1])) ** 0.5))

    def run(nodes: np.ndarray, heat: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        values, held = _each(model, jnp.asarray(nodes), x, given, heat)
        return np.asarray(values), np.asarray(held)

    if nodes is not None:
        low, high, step = nodes[0], nodes[-1], nodes[1] - nodes[0]
    else:
        seen = _simulated(model, first, key, len(jax.tree.leaves(x)[0][0]))
        if isinstance(seen, str):
            return Placed(np.zeros(0), np.inf, seen)
        low, high, width = seen
        low, high = _locate(run, low, high, width)
        step = width / 2
    wrong = np.inf
    for _ in range(24):
        number = _power_of_two((high - low) / step)
        if number > most:
            return Placed(np.zeros(0), wrong, f"its state needs a grid of more than {most} nodes")
        nodes = _around(low, high, step, number)
        value, held = run(nodes)
        wide_nodes = _around(low, high, step, 2 * number)
        wide, wide_held = run(wide_nodes)
        fine, _ = run(_around(nodes[0], nodes[-1], step / 2, 2 * number))
        errors = [_difference(value, other) for other in (wide, fine)]
        wrong = sum(errors)
        if wrong <= tolerance:
            return Placed(nodes, wrong)
        if errors[0] > tolerance / 2:
            low, high = _occupied(wide_nodes, wide_held)
        elif number > 64:
            low, high = _occupied(nodes, held)
        if errors[1] > tolerance / 2:
            step /= 2
    return Placed(np.zeros(0), wrong, "its grid does not settle")


# The filter -------------------------------------------------------------------------------------


def _filter(
    model: StateSpace, nodes: Array, x: PyTree, given: Given, heat: Any = 1.0
) -> tuple[Float[Array, " times"], Float[Array, " nodes"]]:
    """The increments, and the largest share of the fullest node that each node ever holds.

    Densities to the power of `heat` show roughly where states lie on nodes far apart.
    """
    begin = model.initial()
    first = model.start(_inside(begin))
    lift, of_state = _lift(model.transition(first, *_control_at(given, 0)))
    states = jax.vmap(of_state)(lift(nodes))
    volume = lift.log_abs_det_jacobian(nodes, lift(nodes)) + jnp.log(nodes[1] - nodes[0])
    least = jnp.finfo(volume.dtype).tiny
    controls = () if given.control is None else (given.control,)
    times = len(jax.tree.leaves(x)[0])
    seen = jnp.ones(times, bool) if given.observed is None else given.observed

    def tempered(logs: Array) -> Array:
        return heat * jnp.where(jnp.isnan(logs), -jnp.inf, logs)

    def masses(distributions: PyTree) -> Float[Array, " nodes"]:
        """What a distribution gives to each node."""
        logs = jax.vmap(lambda s: log_prob(distributions, s))(states)
        mass = jnp.exp(tempered(logs) + volume)
        return mass / jnp.maximum(mass.sum(), jnp.where(heat < 1, least, 1.0))

    def moves(control: tuple) -> Float[Array, "nodes nodes"]:
        return jax.vmap(lambda s: masses(model.transition(s, *control)))(states)

    constant = None if controls else moves(())

    def move(alpha: Array, control: tuple) -> Array:
        return alpha @ (moves(control) if constant is None else constant)

    def see(before: Array, x: PyTree, seen: Array, control: tuple) -> tuple[Array, Array]:
        logs = tempered(jax.vmap(lambda s: log_prob(model.observation(s, *control), x))(states))
        joint = jnp.log(before + least) + jnp.where(seen, logs, 0.0)
        top = jax.lax.stop_gradient(joint.max())
        mass = jnp.exp(joint - jnp.where(jnp.isfinite(top), top, 0.0))
        total = jnp.maximum(mass.sum(), least)
        return mass / total, jnp.where(seen, top + jnp.log(total), 0.0)

    @jax.checkpoint
    def step(carry: tuple[Array, Array], item: tuple) -> tuple[tuple[Array, Array], Array]:
        alpha, found = see(move(carry[0], item[-1]), *item)
        return (alpha, jnp.maximum(carry[1], _share(alpha))), found

    items, known = (x, seen, controls), []
    at_first = jax.tree.map(lambda a: a[0], items)
    if not jax.tree.leaves(begin, is_leaf=is_distribution):
        if model.observe_start:
            exact = log_prob(model.observation(first, *at_first[-1]), at_first[0])
            known.append(jnp.where(at_first[1], exact, 0.0))
            items = jax.tree.map(lambda a: a[1:], items)
            at_first = jax.tree.map(lambda a: a[0], items)
        before = masses(model.transition(first, *at_first[-1]))
    else:
        before = masses(begin) if model.observe_start else move(masses(begin), at_first[-1])
    alpha, found = see(before, *at_first)
    later = jax.tree.map(lambda a: a[1:], items)
    (_, held), rest = jax.lax.scan(step, (alpha, _share(alpha)), later)
    return jnp.concatenate([jnp.stack([*known, found]), rest]), held


def _share(alpha: Array) -> Array:
    return jax.lax.stop_gradient(alpha / alpha.max())


@eqx.filter_jit
def _each(
    model: StateSpace, nodes: Array, x: PyTree, given: Given, heat: Any
) -> tuple[Array, Array]:
    """The log likelihood of each sequence, and what the nodes hold at most in any of them."""

    def one(x: PyTree, given: Given) -> tuple[Array, Array]:
        found, held = _filter(model, nodes, x, given, heat)
        return found.sum(), held

    values, held = jax.vmap(one)(x, given)
    return values, held.max(axis=0)


# Where the nodes are ----------------------------------------------------------------------------


@eqx.filter_jit
def _lines(
    model: StateSpace, given: Given, key: Key[Array, ""], number: int
) -> tuple[Array, Array]:
    """u of simulated states, and how far two next states of some of them lie apart."""
    control = _control_at(given, 0)
    first = model.start(_inside(model.initial()))
    lift, of_state = _lift(model.transition(first, *control))
    drawn, chosen, one, other = jax.random.split(key, 4)
    z, _ = jax.vmap(lambda k: model.sample(k, given))(jax.random.split(drawn, number))
    leaves = [leaf.ravel() for leaf in jax.tree.leaves(z)]
    values = jnp.concatenate([leaf.astype(float) for leaf in leaves])
    some = jax.random.choice(chosen, leaves[-1], (LOOK,))

    def next_of(state: Array, key: Array) -> Array:
        drawn = draw_once(model.transition(of_state(state), *control), key)
        return lift._inverse(ravel_pytree(drawn)[0][0])

    pairs = [jax.vmap(next_of)(some, jax.random.split(k, LOOK)) for k in (one, other)]
    return lift._inverse(values), jnp.abs(pairs[0] - pairs[1])


def _simulated(
    model: StateSpace, given: Given, key: Key[Array, ""], times: int
) -> tuple[float, float, float] | str:
    """The lowest and highest u of simulated states, and the width of a transition."""
    number = int(np.clip(2e6 / times, 16, LOOK))
    u, apart = (np.asarray(a, float) for a in _lines(model, given, key, number))
    u, apart = u[np.isfinite(u)], apart[np.isfinite(apart)]
    if len(u) < 2 or len(apart) < LOOK / 2:
        return "its simulated states are not finite"
    width = float(np.median(apart))
    if not width > 0:
        return "its transitions are not random"
    return float(u.min()) - 3 * width, float(u.max()) + 3 * width, width


def _locate(run: Callable, low: float, high: float, width: float) -> tuple[float, float]:
    """The part of the line on which the data's states lie, found from coarse to fine."""
    for _ in range(20):
        step = (high - low) / COARSE
        if step <= width / 2:
            break
        nodes = _around(low, high, step, COARSE)
        inner = _occupied(nodes, run(nodes, min(1.0, (width / step) ** 2))[1])
        shrunk = (inner[1] - inner[0]) < 0.8 * (high - low)
        low, high = inner
        if not shrunk:
            break
    return low, high


COARSE = 512


def _occupied(nodes: np.ndarray, held: np.ndarray) -> tuple[float, float]:
    """The ends of what holds anything, and a margin."""
    full = np.flatnonzero(held > EMPTY)
    if not len(full):
        return float(nodes[0]), float(nodes[-1])
    low, high = nodes[full[0]], nodes[full[-1]]
    margin = max(4 * (nodes[1] - nodes[0]), 0.05 * (high - low))
    return float(low - margin), float(high + margin)


def _around(low: float, high: float, step: float, number: int) -> np.ndarray:
    return (low + high) / 2 + step * (np.arange(number) - (number - 1) / 2)


def _power_of_two(number: float) -> int:
    return int(2 ** np.ceil(np.log2(max(number, FEWEST))))


FEWEST = 64


def _difference(values: np.ndarray, others: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        apart = np.abs(values - others).sum()
    return float(apart) if np.isfinite(apart) else np.inf


# What a model's distributions say ---------------------------------------------------------------


def _lift(distributions: PyTree) -> tuple[Any, Callable[[Array], PyTree]]:
    """The map from the line to the support, and from one number to the state."""
    leaf = jax.tree.leaves(distributions, is_leaf=is_distribution)[0]
    unravel = ravel_pytree(_inside(distributions))[1]
    return biject_to(_support(leaf)), lambda s: unravel(jnp.reshape(s, (1,)))


def _inside(distributions: PyTree) -> PyTree:
    """What a draw looks like, of numbers that lie in every support here."""
    return draw_like(distributions, 0.5)


def _support(distribution: Distribution) -> Any:
    support: Any = distribution.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def _control_at(given: Given, time: int) -> tuple:
    return () if given.control is None else (jax.tree.map(lambda u: u[time], given.control),)


__all__ = ["Placed", "grid_increments", "place", "why_no_grid"]
