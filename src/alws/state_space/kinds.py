"""Which filter computes the likelihood of a model's sequences, found by asking the model.

- Do its latents take few values? Their distributions say which.
- Are all its distributions normal, do their means move as straight lines and is their spread the
  same everywhere? An affine f has f(a + b − c) = f(a) + f(b) − f(c), which is tried on simulated
  states spread ten times as far, at θ and at two other θ: a term whose coefficient starts at 0
  counts as a term.
- Is its state one continuous number?
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Key, PyTree
from numpyro.distributions import Delta, Distribution, Independent

from alws.state_space.distributions import draw_once, gaussian, gaussian_of, is_distribution
from alws.state_space.grid import why_no_grid
from alws.state_space.model import Given, StateSpace, with_times

MOST_VALUES = 64
"""How many values a latent may take for the forward algorithm."""

LOOK = 200
"""How many sequences are simulated to find out what a model is."""

NAMES = {"forward": "the forward algorithm", "kalman": "the Kalman filter", "grid": "a grid"}
"""What the filters are called."""


class Filter(NamedTuple):
    """Which filter computes the likelihood, with the values of z for the forward algorithm.

    `kind` is "forward", "kalman", "grid" or, where none does, "none". For the last two `reason`
    says why the others do not; the values of a grid are its nodes, once they are placed.
    """

    kind: str
    values: PyTree
    reason: str


def find_filter(model: StateSpace, key: Key[Array, ""], given: Given = Given()) -> Filter:
    """The filter that computes this model's likelihood, if one does.

    Arguments:
        model: a state-space model.
        key: for the draws that show what its latents are.
        given: the conditions of one sequence, as the model's `sample` takes them.

    Example: `find_filter(model, jax.random.key(0)).kind`.
    """
    model, given = _short(model, given)
    drawn = jax.eval_shape(lambda k: model.sample(k, given)[0], key)
    leaves = jax.tree.leaves(drawn)
    whole = [not jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
    if leaves and all(whole):
        values = _values(model, drawn, given)
        if isinstance(values, str):
            return Filter("none", None, values)
        return Filter("forward", values, "")
    if any(whole):
        return Filter("none", None, "its latents are partly discrete, partly continuous")
    reason = _why_not_linear(model, key, given)
    if not reason:
        return Filter("kalman", None, "")
    no_grid = why_no_grid(model, given)
    if no_grid:
        return Filter("none", None, f"{reason}, and {no_grid}")
    return Filter("grid", None, reason)


# Few values -------------------------------------------------------------------------------------


def _values(model: StateSpace, drawn: PyTree, given: Given) -> PyTree | str:
    """All values of a discrete latent that is all the model remembers, or why there are none."""
    if not (model.inherits("update") and model.inherits("feed_back") and model.inherits("start")):
        return "it remembers more than its discrete latent"
    start, steps = drawn
    if jax.tree.structure(start) != jax.tree.structure(steps):
        return "its first latent is not like the later ones"
    if [a.shape for a in jax.tree.leaves(start)] != [a.shape[1:] for a in jax.tree.leaves(steps)]:
        return "its first latent is not like the later ones"
    table, bounds = None, _bounds(model.initial())
    for _ in range(MOST_VALUES):
        if bounds is None:
            return "its discrete latent has no least or no greatest value"
        low, high = bounds
        number = float(np.prod(high - low + 1.0))
        if number > MOST_VALUES:
            return f"its discrete latent takes {number:.0f} values or more"
        table = _table(low, high, start)
        reached = _reached(model, table, given)
        if reached is None:
            return "its discrete latent has no least or no greatest value"
        bounds = np.minimum(low, reached[0]), np.maximum(high, reached[1])
        if (bounds[0] == low).all() and (bounds[1] == high).all():
            return table
    return "its discrete latent takes more and more values"


def _reached(
    model: StateSpace, table: PyTree, given: Given
) -> tuple[np.ndarray, np.ndarray] | None:
    """The bounds of what can follow any of these values, under any of these control inputs."""
    controls = [()] if given.control is None else [(u,) for u in _rows(given.control)]
    found = [
        _bounds(model.transition(state, *control)) for state in _rows(table) for control in controls
    ]
    if any(f is None for f in found):
        return None
    lows, highs = zip(*[f for f in found if f is not None], strict=True)
    return np.min(lows, axis=0), np.max(highs, axis=0)


def _bounds(distributions: PyTree) -> tuple[np.ndarray, np.ndarray] | None:
    """The least and greatest value of every entry of a draw; None if there are none."""
    lows, highs = [], []
    for leaf in jax.tree.leaves(distributions, is_leaf=is_distribution):
        bounds = _bounds_of(leaf)
        if bounds is None:
            return None
        low, high = (np.broadcast_to(np.asarray(b, float), leaf.shape()).ravel() for b in bounds)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return None
        lows.append(low)
        highs.append(high)
    return np.concatenate(lows), np.concatenate(highs)


def _bounds_of(distribution: Distribution) -> tuple[Any, Any] | None:
    while isinstance(distribution, Independent):
        distribution = distribution.base_dist
    if isinstance(distribution, Delta):
        return distribution.v, distribution.v
    support: Any = distribution.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    if type(support).__name__ == "_Boolean":
        return 0, 1
    low, high = (getattr(support, name, None) for name in ("lower_bound", "upper_bound"))
    return None if low is None or high is None else (low, high)


def _table(low: np.ndarray, high: np.ndarray, like: PyTree) -> PyTree:
    """All values between the bounds, stacked, as pytrees like a draw."""
    axes = [np.arange(a, b + 1) for a, b in zip(low, high, strict=True)]
    rows = np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], axis=1)
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1]
    parts = zip(np.split(rows, ends, axis=1), leaves, strict=True)
    values = [jnp.asarray(p.reshape(len(rows), *a.shape), a.dtype) for p, a in parts]
    return jax.tree.unflatten(structure, values)


# Straight lines ---------------------------------------------------------------------------------


def _why_not_linear(model: StateSpace, key: Key[Array, ""], given: Given) -> str:
    """Why the Kalman filter does not compute its likelihood; empty if it does."""
    control = () if given.control is None else (jax.tree.map(lambda u: u[0], given.control),)
    first = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), _first_state(model, key))
    if any(not eqx.is_inexact_array(a) for a in jax.tree.leaves(first)):
        return "its state has whole numbers"
    for name, distributions in (
        ("start is", model.initial()),
        ("transitions are", model.transition(first, *control)),
        ("observations are", model.observation(first, *control)),
    ):
        if gaussian_of(distributions) is None:
            return f"its {name} not normal"
    wrong = {name: np.asarray(values) for name, values in _bends(model, key, given).items()}
    precise = jnp.zeros(()).dtype == jnp.float64
    most = 1e-6 if precise else 1e-3
    for name, values in wrong.items():
        at_theta, elsewhere = values[0], values[1:]
        if not at_theta <= most or (elsewhere[np.isfinite(elsewhere)] > most).any():
            return name
    return ""


@eqx.filter_jit
def _bends(model: StateSpace, key: Key[Array, ""], given: Given) -> dict[str, Array]:
    """How far from straight everything is, relative to its size, for a few θ; what that means."""
    keys = jax.random.split(key, LOOK + 2)
    z, x = jax.vmap(lambda k: model.sample(k, given))(keys[:LOOK])
    _, states = jax.vmap(lambda z, x: model.states(z, x, given))(z, x)
    times = jax.random.randint(keys[-1], (LOOK,), 0, len(jax.tree.leaves(x)[0][0]) - 1)

    def at_times(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda a: a[jnp.arange(LOOK), times], tree)

    states, latents, x = at_times(states), at_times(z.steps), at_times(x)
    controls = () if given.control is None else (jax.tree.map(lambda u: u[times], given.control),)
    theta, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(theta)
    away = 0.5 * jax.random.normal(keys[-2], (2, 2, *flat.shape))
    thetas = jnp.concatenate([flat[None], flat * (1 + away[0]) + away[1]])

    def at(theta: Array) -> dict[str, Array]:
        m = eqx.combine(unravel(theta), rest)

        def mean(method: Callable) -> Callable:
            return lambda s, *u: gaussian(method(s, *u))[0]

        def spread(method: Callable) -> Array:
            wide = _wide((states,))[0]
            covariances = jax.vmap(lambda s, *u: gaussian(method(s, *u))[1])(wide, *controls)
            known = jax.vmap(lambda *u: gaussian(method(jax.tree.map(lambda a: a[0], wide), *u))[1])
            expected = known(*controls) if controls else covariances[:1]
            size = jnp.sqrt(jnp.abs(jax.vmap(jnp.diagonal)(covariances)).max(axis=0))
            apart = jnp.abs(covariances - expected) / (size[:, None] * size + jnp.finfo(float).tiny)
            return apart.max(initial=0.0)

        return {
            "the mean of its transitions is not linear in the state": _bend(
                mean(m.transition), (states,), controls
            ),
            "the spread of its transitions depends on the state": spread(m.transition),
            "the mean of its observations is not linear in the state": _bend(
                mean(m.observation), (states,), controls
            ),
            "the spread of its observations depends on the state": spread(m.observation),
            "its state is not linear in what came before": _bend(
                m.update, (states, latents), controls
            ),
            "its state is not linear in what is fed back": _bend(
                m.feed_back, (states, x), controls
            ),
            "its first state is not linear in the first latent": _bend(m.start, (z.start,), ()),
        }

    return jax.lax.map(at, thetas)


def _bend(function: Callable, arguments: tuple, controls: tuple) -> Array:
    """max |f(a + b − c) − f(a) − f(b) + f(c)|, each entry relative to its size."""
    if not jax.tree.leaves(arguments):
        return jnp.zeros(())
    arguments = _wide(jax.tree.map(lambda a: a.astype(float), arguments))
    a, b, c = (
        jax.tree.map(lambda leaf, i=i: jnp.roll(leaf, i, axis=0), arguments) for i in range(3)
    )
    combined = jax.tree.map(lambda a, b, c: a + b - c, a, b, c)

    def values(rows: tuple) -> Array:
        return jax.vmap(lambda s, u: ravel_pytree(function(*s, *u))[0])(rows, controls)

    left, right = values(combined), values(a) + values(b) - values(c)
    given = sum(jnp.abs(leaf).max(initial=0.0) for leaf in jax.tree.leaves(arguments))
    size = jnp.abs(values(a)).max(axis=0, initial=0.0) + 1e-8 * given + jnp.finfo(float).tiny
    return (jnp.abs(left - right) / size).max(initial=0.0)


def _wide(rows: tuple) -> tuple:
    """The rows, ten times as far from their mean."""
    return jax.tree.map(lambda a: a.mean(axis=0) + 10 * (a - a.mean(axis=0)), rows)


def _first_state(model: StateSpace, key: Key[Array, ""]) -> PyTree:
    return jax.eval_shape(lambda k: model.start(draw_once(model.initial(), k)), key)


def _rows(tree: PyTree) -> list[PyTree]:
    number = len(jax.tree.leaves(tree)[0])
    return [jax.tree.map(lambda a, i=i: a[i], tree) for i in range(number)]


def _short(model: StateSpace, given: Given) -> tuple[StateSpace, Given]:
    """The model and its conditions for a few times, all of which are observed."""
    times = getattr(model, "times", None)
    control = jax.tree.map(lambda u: u[:FEW], given.control)
    if control is None and isinstance(times, int):
        return with_times(model, min(FEW, times)), Given()
    if control is None and given.observed is not None:
        return model, Given(observed=jnp.ones_like(given.observed[:FEW]))
    return model, Given(control)


FEW = 8

__all__ = ["MOST_VALUES", "NAMES", "Filter", "find_filter"]
