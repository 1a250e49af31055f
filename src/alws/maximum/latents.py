"""What draws of the latents say of them: which take few values, which are continuous, and where.

An observation's posterior is summed over what takes few values, d, and integrated over what is
continuous, c, taken to the real line: z = (d, T(location + scale·c)).

Latents that count may need values beyond those that were drawn. Draws show the values that are
common under the model as it stands. The posterior of an observation far from it lies on rarer ones,
a hundred animals where the start expects five. They are looked for in blocks, downwards to 0 and
upwards, until a block adds nothing to any observation. Whether they are values at all is told by
simulated observations: on what a model cannot draw, such as a category that it has not, their
posteriors would have mass without a draw ever showing it.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, logsumexp


class Latents(NamedTuple):
    """What draws of z say of its entries, flattened to one vector of numbers.

    `discrete` and `continuous` are positions in that vector; `values` the distinct rows seen of the
    discrete part, or all combinations of its entries' values. A continuous entry is
    z = T(location + scale·c), T by `kind`: 0 the real line, 1 low + exp(·), 2 high − exp(·),
    3 low + (high − low)·sigmoid(·), 4 one of a `group` of entries that sum to one with the entry
    at `rest`: z_i = e^u_i/(1 + Σ_j e^u_j), 5 one of a `group` of entries on a sphere of radius
    `high`: z = high·u/‖u‖. What ‖u‖ is then does not matter, and is given Nakagami's density.
    """

    shapes: tuple
    discrete: np.ndarray
    continuous: np.ndarray
    values: np.ndarray
    kind: np.ndarray
    low: np.ndarray
    high: np.ndarray
    group: np.ndarray
    rest: np.ndarray
    location: np.ndarray
    scale: np.ndarray


MOST_VALUES = 256
"""How many values the discrete latents may take together where any others are continuous."""

MOST_COMBINATIONS = 2**13
"""How many combinations of their entries' values are summed over where all are discrete."""


def flat_rows(tree: Any) -> np.ndarray:
    """Batched pytree -> matrix of float64, one row a draw."""
    leaves = [np.asarray(a) for a in jax.tree.leaves(tree)]
    return np.concatenate([a.reshape(len(a), -1).astype(np.float64) for a in leaves], axis=1)


def is_real(dtype: Any) -> bool:
    """Whether numbers of this type are real.

    Example: `is_real(np.dtype(complex))` is False.
    """
    return jnp.issubdtype(dtype, np.number) and not jnp.issubdtype(dtype, np.complexfloating)


def describe(z: Any) -> Latents | str:
    """Split the latents by what the draws show, or say why that cannot be done."""
    treedef = jax.tree.structure(z)
    if not all(jnp.issubdtype(a.dtype, np.bool_) or is_real(a.dtype) for a in jax.tree.leaves(z)):
        return "some latents are complex numbers or keys"
    leaves = [np.asarray(a) for a in jax.tree.leaves(z)]
    shapes = (treedef, tuple((a.shape[1:], a.dtype) for a in leaves))
    rows = flat_rows(z)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if len(rows) < 100:
        return "the simulator's latents are not finite"
    distinct = np.array([len(np.unique(col)) for col in rows.T])
    whole = np.concatenate(
        [np.full(int(np.prod(s)), not np.issubdtype(t, np.floating)) for s, t in shapes[1]]
    )
    discrete = whole | (distinct <= MOST_VALUES)
    repeats = ~discrete & (distinct < 0.9 * len(rows))
    if repeats.any():
        return "some latents are continuous with atoms"
    seen = np.unique(rows[:, discrete], axis=0)
    values = seen
    if len(seen) > MOST_VALUES:
        values = _combinations(seen) if discrete.all() else None
        if values is None:
            return f"the discrete latents take {len(seen)} or more values"
    groups = _simplices(rows, shapes, discrete)
    rest = np.array([positions[-1] for positions in groups], int)
    at = np.setdiff1d(np.flatnonzero(~discrete), rest)
    group = np.full(len(at), -1)
    for i, positions in enumerate(groups):
        group[np.isin(at, positions)] = i
    c = rows[:, at]
    kind, low, high = np.zeros(c.shape[1], int), np.zeros(c.shape[1]), np.ones(c.shape[1])
    for i, col in enumerate(c.T):
        s = np.sort(col)
        step = 10 * (s[-1] - s[0]) / len(s)  # what ten draws span at a sharp edge of a flat density
        sharp = [s[10] - s[0] < 5 * step, s[-1] - s[-11] < 5 * step]
        inside = s[0] > 0, s[0] > 0 and s[-1] < 1
        if all(sharp):  # bounded, the density not small at the edges, such as a uniform angle
            kind[i], low[i], high[i] = 3, s[0] - (s[10] - s[0]) / 10, s[-1] + (s[-1] - s[-11]) / 10
            low[i] = max(low[i], 0.0) if inside[0] else low[i]
            high[i] = min(high[i], 1.0) if inside[1] else high[i]
        elif inside[1]:
            kind[i] = 3
        elif inside[0]:
            kind[i] = 1
        elif s[-1] < 0:
            kind[i], high[i] = 2, 0.0
    kind[group >= 0] = 4
    for i, positions in enumerate(_spheres(rows, shapes, discrete), start=len(rest)):
        inside = np.isin(at, positions)
        group[inside], kind[inside], low[inside] = i, 5, 0.0
        high[inside] = np.linalg.norm(rows[0, positions])
    if _tied(c[:, kind != 5]):
        return "the continuous latents are tied to one another"
    u = _onto_line(c, kind, low, high, rows, group, rest)
    location, scale = u.mean(axis=0), u.std(axis=0)
    if c.shape[1]:
        spectrum = np.linalg.eigvalsh(np.corrcoef(u, rowvar=False).reshape(c.shape[1], -1))
        if not spectrum[0] > 1e-9:
            return "the continuous latents are tied to one another"
    return Latents(
        shapes, np.flatnonzero(discrete), at, values,
        kind, low, high, group, rest, location, scale,
    )  # fmt: skip


MOST_TIED = 30
"""How many continuous latents are looked through for equations of degree two among them."""


def _tied(c: np.ndarray) -> bool:
    """Whether draws satisfy an equation of degree two: unit vectors, or z together with z².

    Such latents have no density in as many dimensions as they have entries.
    """
    if not 1 < c.shape[1] <= MOST_TIED:
        return False
    low, centre, high = np.quantile(c, [0.05, 0.5, 0.95], axis=0)
    u = (c - centre) / np.maximum(high - low, 1e-300)
    u = u[(np.abs(u) < 10).all(axis=1)]
    values, vectors = np.linalg.eigh(np.cov(u, rowvar=False))
    w = (u - u.mean(axis=0)) @ vectors / np.sqrt(np.maximum(values, 1e-12))
    i, j = np.triu_indices(w.shape[1])
    terms = np.concatenate([w, w[:, i] * w[:, j]], axis=1)
    return not np.linalg.eigvalsh(np.corrcoef(terms, rowvar=False))[0] > 1e-9


def too_many(latents: Latents) -> bool:
    """Whether the discrete latents take more values than are summed over.

    Example: `too_many(follow(latents, z))`.
    """
    most = MOST_VALUES if len(latents.continuous) else MOST_COMBINATIONS
    return len(latents.values) > most


def are_all_combinations(values: np.ndarray) -> bool:
    """Whether the distinct rows are all combinations of the values that each entry takes.

    Example: `are_all_combinations(np.array([[0, 0], [0, 1]]))` is true.
    """
    return len(values) == math.prod(len(np.unique(column)) for column in values.T)


def _combinations(values: np.ndarray) -> np.ndarray | None:
    """All combinations of the values that each entry takes, or None if they are too many."""
    each = [np.unique(column) for column in values.T]
    if math.prod(len(column) for column in each) > MOST_COMBINATIONS:
        return None
    return np.stack(np.meshgrid(*each, indexing="ij"), axis=-1).reshape(-1, len(each))


def position_of(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which of the distinct `values` each row is, −1 for none.

    Example: `position_of(np.array([[0], [2]]), np.array([[2], [1]]))` is `[1, -1]`.
    """
    if not values.shape[1]:
        return np.zeros(len(rows), int)
    _, first, inverse = np.unique(
        np.concatenate([values, rows]), axis=0, return_index=True, return_inverse=True
    )
    at = first[inverse.ravel()[len(values) :]]
    return np.where(at < len(values), at, -1)


def _last_axes(shapes: tuple, discrete: np.ndarray) -> Iterator[np.ndarray]:
    """The positions of continuous entries that lie side by side on a leaf's last axis."""
    start = 0
    for shape, _ in shapes[1]:
        size = int(np.prod(shape))
        width = shape[-1] if shape else 1
        for first in range(start, start + size, max(width, 1)):
            at = np.arange(first, first + width)
            if width > 1 and not discrete[at].any():
                yield at
        start += size


def _simplices(rows: np.ndarray, shapes: tuple, discrete: np.ndarray) -> list[np.ndarray]:
    """The positions of entries that lie side by side on a leaf's last axis and sum to one."""

    def one(z: np.ndarray) -> bool:
        return bool((z > 0).all() and np.abs(z.sum(axis=1) - 1).max() < 1e-4)

    return [at for at in _last_axes(shapes, discrete) if one(rows[:, at])]


def _spheres(rows: np.ndarray, shapes: tuple, discrete: np.ndarray) -> list[np.ndarray]:
    """The positions of entries that lie side by side on a leaf's last axis, all of one length."""

    def one(z: np.ndarray) -> bool:
        length = np.linalg.norm(z, axis=1)
        return bool(np.ptp(length) < 1e-4 * length.mean())

    return [at for at in _last_axes(shapes, discrete) if one(rows[:, at])]


def _onto_line(z, kind, low, high, rows, group, rest):
    with np.errstate(all="ignore"):
        options = [z, np.log(z - low), np.log(high - z), np.log(z - low) - np.log(high - z)]
        options.append(z)
        if len(rest):
            last = rest[np.where(kind == 4, group, 0)]
            options[4] = np.log(z) - np.log(rows[..., last])
        options.append(z / high)
    return np.select([kind == k for k in range(len(options))], options)


class Grid(NamedTuple):
    """What moves with θ: the discrete values, which of them are no padding, the frame of c."""

    values: Any
    live: Any
    location: Any
    scale: Any


def grid_of(latents: Latents, room: int) -> Grid:
    """The grid, its values padded to `room` of them."""
    number = len(latents.values)
    values = np.concatenate([latents.values, np.repeat(latents.values[:1], room - number, axis=0)])
    return Grid(values, np.arange(room) < number, latents.location, latents.scale)


def to_line(latents: Latents, rows: np.ndarray) -> np.ndarray:
    """The continuous coordinates of flattened draws on the line, before location and scale."""
    c, bounds = rows[..., latents.continuous], (latents.kind, latents.low, latents.high)
    return _onto_line(c, *bounds, rows, latents.group, latents.rest)


def follow(latents: Latents, z: Any) -> Latents | None:
    """The same split after θ has moved: values seen since, location and scale; None if it fails."""
    rows = flat_rows(z)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if len(rows) < 100:
        return latents
    u = to_line(latents, rows)
    if not np.isfinite(u).all():
        return None
    d = rows[:, latents.discrete]
    both = np.concatenate([latents.values, np.unique(d, axis=0)])
    _, first = np.unique(both, axis=0, return_index=True)
    if len(first) > MOST_VALUES and not len(latents.continuous):  # all combinations, or too many
        every = _combinations(both)
        both = both if every is None else np.concatenate([latents.values, every])
        _, first = np.unique(both, axis=0, return_index=True)
    scale = u.std(axis=0)
    scale = np.where((scale > 0) & np.isfinite(scale), scale, latents.scale)
    return latents._replace(values=both[np.sort(first)], location=u.mean(axis=0), scale=scale)


def _on_sphere(u, inside):
    """u/‖u‖ of the entries inside, and the log density of ‖u‖ against Lebesgue's measure of u.

    ‖u‖ is spread like Nakagami's variable, about 1: as ‖u‖⁽ⁿ⁺³⁾ exp(−(n/2 + 2)‖u‖²), n the number
    of entries. So the density of u has no maximum at 0, whatever that of the direction is.
    """
    n = inside.sum()
    m = n / 2 + 2
    square = jnp.where(inside, u * u, 0.0).sum()
    radial = np.log(2) + m * np.log(m) - gammaln(m) + (m - 0.5) * jnp.log(square) - m * square
    return u / jnp.sqrt(square), radial - 0.5 * (n - 1) * jnp.log(square)


def from_line(latents: Latents, grid: Grid, d, c):
    """(d, c) -> z and log |dz/dc|, for one point."""
    kind, low, high = latents.kind, latents.low, latents.high
    u = grid.location + grid.scale * c
    value, slope = u, jnp.zeros_like(u)
    if (kind > 0).any():
        e, s = jnp.exp(u), jax.nn.sigmoid(u)
        value = jnp.select(
            [kind == 1, kind == 2, kind == 3], [low + e, high - e, low + (high - low) * s], u
        )
        inner = np.log(high - low + (kind != 3)) + jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u)
        slope = jnp.select([(kind == 1) | (kind == 2), kind == 3], [u, inner], 0.0)
    rest = jnp.zeros(0, u.dtype)
    if len(latents.rest):
        member = latents.group == np.arange(len(latents.rest))[:, None]
        inside = jax.nn.logsumexp(jnp.where(member, u, -jnp.inf), axis=1)
        total = jnp.logaddexp(0.0, inside)
        share = u - total[np.where(kind == 4, latents.group, 0)]
        value = jnp.where(kind == 4, jnp.exp(share), value)
        slope = jnp.where(kind == 4, share, slope)
        rest = jnp.exp(-total)
    for i in np.unique(latents.group[kind == 5]):
        inside = latents.group == i
        direction, height = _on_sphere(u, inside)
        height = height + (inside.sum() - 1) * np.log(high[inside][0])
        value = jnp.where(inside, high * direction, value)
        slope = slope + jnp.where(inside, height / inside.sum(), 0.0)
    number = len(latents.discrete) + len(latents.continuous) + len(latents.rest)
    flat = jnp.zeros(number, u.dtype).at[latents.discrete].set(d)
    flat = flat.at[latents.continuous].set(value).at[latents.rest].set(rest)
    treedef, shapes = latents.shapes
    leaves, at = [], 0
    for shape, dtype in shapes:
        size = int(np.prod(shape))
        leaf = flat[at : at + size].reshape(shape)
        leaves.append(leaf if np.issubdtype(dtype, np.floating) else jnp.round(leaf).astype(dtype))
        at += size
    slope = slope.sum() + jnp.log(rest).sum() + jnp.log(grid.scale).sum()
    return treedef.unflatten(leaves), slope


BLOCK = 64
"""How many values are looked at together."""

NOTHING = 1e-10
"""The posterior mass of an observation that may be left out."""

BY_CHANCE = 2e-3
"""The mean mass that simulated posteriors may have on values that no draw shows."""


def widened(
    latents: Latents,
    log_p: Callable[[np.ndarray], np.ndarray],
    simulated: Callable[[np.ndarray], np.ndarray],
    most: int = MOST_COMBINATIONS,
) -> Latents | None:
    """The latents with all values that the data need; None if they are no single count.

    Arguments:
        latents: as draws show them.
        log_p: log p(z, x_m) of the data at a block of values, observations as rows.
        simulated: the same of simulated observations.
        most: how many values there may be.

    Example: `widened(describe(draws.z), log_p, simulated)`.
    """
    seen = np.unique(latents.values)
    if latents.values.shape[1] != 1 or len(latents.continuous) or len(seen) < 2:
        return None
    if not (seen == np.round(seen)).all() or seen[-1] - seen[0] >= most:
        return None
    values = np.arange(seen[0], seen[-1] + 1)
    tables = [_at(f, values) for f in (log_p, simulated)]
    for step in (-1, 1):
        while len(values) < most:
            block = values[0 if step < 0 else -1] + step * np.arange(1, BLOCK + 1)
            block = np.sort(block if seen[0] < 0 else block[block >= 0])
            if not len(block):
                break
            values = np.concatenate([block, values][::-step])
            new = [_at(f, block) for f in (log_p, simulated)]
            tables = [
                np.concatenate([a, b][::-step], axis=1) for a, b in zip(new, tables, strict=True)
            ]
            shares = [_share(table) for table in tables]
            if shares[1][:, ~np.isin(values, seen)].sum(axis=1).mean() > BY_CHANCE:
                return None
            lost = (tables[0] == -np.inf).all(axis=1).any()
            if shares[0][:, np.isin(values, block)].max() < NOTHING and not lost:
                break
    needed = np.isin(values, seen) | (_share(tables[0]).max(axis=0) > NOTHING / BLOCK)
    first, *_, last = np.flatnonzero(needed)
    return latents._replace(values=values[first : last + 1, None])


def _at(log_p: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    """log p at all these values, a block after the other, so that one shape is compiled."""
    padded = np.append(values, np.repeat(values[-1:], -len(values) % BLOCK)).reshape(-1, BLOCK, 1)
    found = np.concatenate([log_p(block) for block in padded], axis=1)[:, : len(values)]
    return np.where(np.isnan(found), -np.inf, found)


def _share(table: np.ndarray) -> np.ndarray:
    """The posterior mass on each value; zeros for an observation without density anywhere."""
    total: Any = logsumexp(table, axis=1, keepdims=True)
    return np.exp(table - np.where(np.isfinite(total), total, 0.0))
