"""The likelihood of a sequence whose state is one continuous number: integrals become sums.

    p(x_t | x_1 … x_{t−1}) = ∫ p(x_t | s) p(s | x_1 … x_{t−1}) ds
    p(s_t | x_1 … x_{t−1}) = ∫ p(s_t | s) p(s | x_1 … x_{t−1}) ds

With s = T(u) and u_i in even steps h, each integral is the sum h Σ_i (…) T'(u_i), the trapezoidal
rule. T goes fast where the densities are wide and slowly where they are narrow: a step of u is a
standard deviation of what the transition from s, the transition to s and the observation tell of s
together. For smooth densities the error then vanishes faster than any power of h. That is not
believed but measured: half the step and twice the range must give the same likelihood.

The nodes stay as they are while θ moves, so the sum is differentiable in θ. A transition narrower
than the step would be counted for more than 1 where it falls on a node; what leaves a node is
therefore divided by its sum where that is above 1.
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
from scipy.interpolate import CubicSpline
from scipy.ndimage import gaussian_filter1d

from alws.state_space.distributions import draw_like, draw_once, is_distribution, log_prob
from alws.state_space.model import Given, StateSpace

MOST_NODES = 2048
"""The most nodes of a grid, twice as many to check it."""

MOST_DENSITIES = 4e8
"""The most transition densities of one likelihood, where a control input makes them differ."""

FEWEST, COARSE = 64, 512
"""The fewest nodes of a grid, and how many are used to find where states lie."""

FIRST_STEP = 0.7
"""The step of u that is tried first."""

FARTHEST = 1e50
"""How far from 0 a state counts as finite."""

MARKS, PAIRS, SMOOTH = 256, 16, 4.0
"""Where on the line, and with how many draws there, the width of the densities is measured, and
over how many widths it is smoothed."""

LOOK = 256
"""How many sequences are simulated to find where states lie."""

EMPTY = 1e-13
"""What a node holds at most, as a share of the fullest at that time, to be left out."""

SUPPORTS = (constraints.real, constraints.positive, constraints.unit_interval)


class Placed(NamedTuple):
    """The nodes for some sequences, half as far apart too, and the error in nats that they leave.

    Where there are none `reason` says why. Nodes are points of the line and their volumes, which
    biject_to takes to the support.
    """

    nodes: Float[np.ndarray, "2 nodes"]
    fine: Float[np.ndarray, "2 more"]
    error: float
    step: float
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
    model: StateSpace, nodes: Float[Array, "2 nodes"], x: PyTree, given: Given = Given()
) -> Float[Array, " times"]:
    """log p(x_t | x_1 … x_{t−1}) of every time of one sequence; 0 where nothing was observed.

    Arguments:
        model: a model for which `why_no_grid` has no reason.
        nodes: points and volumes, as `place` gives them.
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
    near: Placed | None = None,
) -> Placed:
    """Nodes that leave at most `tolerance` nats of error in all sequences together.

    Arguments:
        model: a model for which `why_no_grid` has no reason.
        x, given: the sequences, one a row, and their conditions.
        key: for the simulations that show where states lie.
        tolerance: in nats.
        near: what was found for parameters nearby.

    Example: `place(model, x, None, key).error`.
    """
    given = Given() if given is None else given
    first, most = jax.tree.map(lambda a: a[0], given), MOST_NODES
    if given.control is not None:
        size = jax.tree.leaves(x)[0][..., None].shape[:2]
        most = min(most, int((MOST_DENSITIES / (4 * size[0] * size[1])) ** 0.5))

    def run(nodes: np.ndarray, heat: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        values, share = _each(model, jnp.asarray(nodes), x, given, heat)
        return np.asarray(values), np.asarray(share)

    def none(reason: str) -> Placed:
        return Placed(np.zeros((2, 0)), np.zeros((2, 0)), np.inf, 0.0, reason)

    if near is not None:
        low, high, step = near.nodes[0, 0], near.nodes[0, -1], near.step
    else:
        seen = _simulated(model, first, key, len(jax.tree.leaves(x)[0][0]))
        if isinstance(seen, str):
            return none(seen)
        low, high = _locate(run, *seen)
        step = FIRST_STEP
    for _ in range(24):
        if not high - low < FARTHEST:
            return none("its states reach too far")
        ruler = _Ruler(model, first, key, low, high)
        number = _power_of_two(ruler.length / step)
        if number > most:
            return none(f"its state needs a grid of more than {most} nodes")
        nodes, wide = ruler.nodes(number), ruler.nodes(2 * number, 2.0)
        fine = ruler.nodes(2 * number)
        (value, share), (wide_value, wide_share) = run(nodes), run(wide)
        errors = [_difference(value, other) for other in (wide_value, run(fine)[0])]
        if sum(errors) <= tolerance:
            return Placed(nodes, fine, sum(errors), step)
        if errors[0] > tolerance / 2:
            low, high = _occupied(wide, wide_share)
        elif number > FEWEST:
            low, high = _occupied(nodes, share)
        if errors[1] > tolerance / 2:
            step /= 2
    return none("its grid does not settle")


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
    states = jax.vmap(of_state)(lift(nodes[0]))
    volume = lift.log_abs_det_jacobian(nodes[0], lift(nodes[0])) + jnp.log(nodes[1])
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
    (_, share), rest = jax.lax.scan(step, (alpha, _share(alpha)), later)
    return jnp.concatenate([jnp.stack([*known, found]), rest]), share


def _share(alpha: Array) -> Array:
    return jax.lax.stop_gradient(alpha / alpha.max())


@eqx.filter_jit
def _each(
    model: StateSpace, nodes: Array, x: PyTree, given: Given, heat: Any
) -> tuple[Array, Array]:
    """The log likelihood of each sequence, and what the nodes hold at most in any of them."""

    def one(x: PyTree, given: Given) -> tuple[Array, Array]:
        found, share = _filter(model, nodes, x, given, heat)
        return found.sum(), share

    values, share = jax.vmap(one)(x, given)
    return values, share.max(axis=0)


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
    u, apart = u[np.abs(u) < FARTHEST], apart[apart < FARTHEST]
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
        nodes = np.stack([low + step * (np.arange(COARSE) + 0.5), np.full(COARSE, step)])
        inner = _occupied(nodes, run(nodes, min(1.0, (width / step) ** 2))[1])
        shrunk = (inner[1] - inner[0]) < 0.8 * (high - low)
        low, high = inner
        if not shrunk:
            break
    return low, high


def _occupied(nodes: np.ndarray, share: np.ndarray) -> tuple[float, float]:
    """The ends of what holds anything, and a margin."""
    full = np.flatnonzero(share > EMPTY)
    if not len(full):
        return float(nodes[0, 0]), float(nodes[0, -1])
    margin = max(4.0, 0.05 * (full[-1] - full[0]))
    low, high = nodes[:, full[0]], nodes[:, full[-1]]
    return float(low[0] - margin * low[1]), float(high[0] + margin * high[1])


class _Ruler:
    """u along a part of the line, and nodes in even steps of it; constant beyond the part."""

    def __init__(
        self, model: StateSpace, given: Given, key: Key[Array, ""], low: float, high: float
    ):
        v = np.linspace(low, high, MARKS)
        source, target, to, seen = (
            np.nan_to_num(np.asarray(a, float), posinf=0.0, neginf=0.0)
            for a in _informations(model, jnp.asarray(v), given, key)
        )
        bins = np.clip(np.searchsorted(v, to.ravel()), 0, MARKS - 1)
        counts, sums = np.bincount(bins, minlength=MARKS), np.bincount(bins, target.ravel(), MARKS)
        known = counts > 0
        into = np.interp(v, v[known], sums[known] / counts[known])
        total = source + into + seen
        rate = np.sqrt(np.maximum(total, 1e-6 * total.max(initial=0.0)) + 1e-12 / (high - low) ** 2)
        along = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(v))])
        self.length = float(along[-1])
        u = np.linspace(0.0, self.length, int(np.clip(4 * self.length, 64, 20_000)))
        logs = np.interp(u, along, np.log(rate))
        smooth = gaussian_filter1d(logs, SMOOTH / (u[1] - u[0]), mode="nearest")
        slope = CubicSpline(u, np.exp(-smooth))
        whole = slope.antiderivative()(self.length)
        self.low, self.scale, self.slope = low, (high - low) / float(whole), slope

    def nodes(self, number: int, times: float = 1.0) -> Float[np.ndarray, "2 nodes"]:
        """So many nodes, on a range `times` as long."""
        step = times * self.length / number
        u = self.length / 2 + step * (np.arange(number) - (number - 1) / 2)
        inside = np.clip(u, 0.0, self.length)
        slopes = self.slope(inside)
        points = self.slope.antiderivative()(inside) + (u - inside) * slopes
        return np.stack([self.low + self.scale * points, step * self.scale * slopes])


@eqx.filter_jit
def _informations(
    model: StateSpace, v: Float[Array, " marks"], given: Given, key: Key[Array, ""]
) -> tuple[Array, Array, Array, Array]:
    """The information on v in the transition from v and in what is seen of it, and that on v' in
    transitions to v', at some v' that they lead to: squares of derivatives of log densities."""
    first = model.start(_inside(model.initial()))
    lift, of_state = _lift(model.transition(first, *_control_at(given, 0)))

    def state(v: Array) -> PyTree:
        return of_state(lift(v))

    def one(v: Array, key: Array, control: tuple) -> tuple:
        z = draw_once(model.transition(state(v), *control), key)
        x = draw_once(model.observation(state(v), *control), key)
        to = lift._inverse(ravel_pytree(z)[0][0])

        def move(v: Array, to: Array) -> Array:
            volume = lift.log_abs_det_jacobian(to, lift(to))
            return log_prob(model.transition(state(v), *control), state(to)) + volume

        def see(v: Array) -> Array:
            return log_prob(model.observation(state(v), *control), x)

        source, target = jax.grad(move, (0, 1))(v, to)
        return source**2, target**2, to, jax.grad(see)(v) ** 2

    controls = ()
    if given.control is not None:
        times = jax.random.randint(key, (PAIRS,), 0, len(jax.tree.leaves(given.control)[0]))
        controls = (jax.tree.map(lambda u: u[times], given.control),)

    def several(v: Array, key: Array) -> tuple:
        keys = jax.random.split(key, PAIRS)
        found = jax.vmap(one, (None, 0, 0))(v, keys, controls)
        return found[0].mean(), found[1], found[2], found[3].mean()

    return jax.vmap(several, (0, None))(v, key)


def _power_of_two(number: float) -> int:
    return int(2 ** np.ceil(np.log2(max(number, FEWEST))))


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
