"""Points in place of posteriors, and what they give.

For every observation x_m and every value d of what takes few values,

    log p̂_θ(x_m) = log Σ_d (1/K) Σ_k p_θ(d, c_mdk, x_m) / q_md(c_mdk),    c_mdk ~ q_md,

with q_md a Gaussian at the mode of p_θ(c | d, x_m), fitted to its curvature and its moments. Where
nothing is continuous this is the exact sum, where the posterior is Gaussian the weights are equal.
The points come from a lattice that stays as it is while θ moves, so that log p̂ is a smooth function
of θ, whose gradient is the importance-weighted posterior expectation of the score.

They also tell whether the latents that a model simulates lie where its density says that they lie.
Of a simulated pair (z, x) z is a draw from the posterior given x. So for every bounded h, and every
g of x alone,

    E[(h(z) − E[h | x]) g(x)] = 0,

the inner mean under the posterior that log p(z, x) says, and likewise for Var[h | x]. A prior that
is left out, or weights of clusters that are left out or exchanged, may leave the scores as they
are, but not this. As h there are the entries of z, brought to (−1, 1), and indicators of discrete
values; as g there are 1 and E[h | x].
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, PyTree
from scipy.special import ndtri

from alws.maximum.latents import Latents, flat_rows, from_line
from alws.model import log_joint


class Proposal(NamedTuple):
    """q_md: location μ and scale LLᵀ, one a cell (observation m, discrete value d)."""

    mean: Any  # M × values × D
    root: Any  # M × values × D × D
    log_volume: Any  # log |det L|, M × values


class Shape(NamedTuple):
    """How q differs from the Gaussian at the mode: μ = mode + R·shift, L = R·root, R that one's."""

    shift: Any
    root: Any
    log_volume: Any


class Points(NamedTuple):
    """Latents in place of each posterior, with log q of each; log q = ∞ where p is 0."""

    z: Any  # every leaf M × values × K × ...
    log_q: Any  # M × values × K
    w: Any  # M × values × K, the posterior weights at the θ they were drawn for


def lattice(points: int, dimension: int) -> np.ndarray:
    """A good rank-one lattice in [0, 1)^D: Korobov's k·(1, a, a², ...)/K, a by the criterion P₂."""
    best, chosen = np.inf, np.zeros((points, dimension))
    tried = np.random.default_rng(0).permutation(np.arange(1, max(points, 3), 2))[:100]
    for a in tried if dimension > 1 else [1]:
        powers = np.ones(dimension, int)
        for i in range(1, dimension):
            powers[i] = powers[i - 1] * a % points
        u = np.arange(points)[:, None] * powers % points / points
        with np.errstate(over="ignore", invalid="ignore"):  # hundreds of dimensions
            error = np.prod(1 + 2 * np.pi**2 * (u**2 - u + 1 / 6), axis=1).mean()
        if error < best:
            best, chosen = error, u
    return chosen


def design(rng, number: int, u: np.ndarray, style: str) -> tuple[np.ndarray, np.ndarray]:
    """Points ε for each of `number` cells from a lattice u, and the log density they come from.

    `student`: each entry Student's t with two degrees of freedom. The weights vanish at the edges
    of the unit cube, so a shifted lattice integrates smooth posteriors with more than polynomial
    accuracy. `gaussian`: ± pairs of exact second moments, exact for Gaussian posteriors and scores
    of degree three. `wide`: the same, a quarter of them spread two and a half times as far.
    `free`: as `wide`, the moments as they fall, for weights whose mean has no bias.
    """
    points, dimension = u.shape
    if dimension == 0:
        return np.zeros((number, points, 0)), np.zeros((number, points))
    shifted = np.clip((u + rng.random((number, 1, dimension))) % 1.0, 1e-10, 1 - 1e-10)
    if style == "student":
        e = 0.9 * (2 * shifted - 1) / np.sqrt(2 * shifted * (1 - shifted))
        return e, log_density(e, style)
    far = 0 if style == "gaussian" else points // 4
    half = ndtri(shifted[:, rng.permutation(points)[: points // 2]])
    near, outer = half[:, : (points - far) // 2], half[:, (points - far) // 2 :]
    if near.shape[1] >= dimension and style != "free":  # exact second moments
        factor = np.linalg.cholesky(np.einsum("mki,mkj->mij", near, near) / near.shape[1])
        near = near @ np.linalg.inv(factor).transpose(0, 2, 1)
    e = np.concatenate([near, -near, WIDTH * outer, -WIDTH * outer], axis=1)
    return e, log_density(e, style)


def log_density(e: np.ndarray, style: str) -> np.ndarray:
    """log q of points ε of this style, entries last."""
    if style == "student":
        return (-1.5 * np.log(2 + (e / 0.9) ** 2) - np.log(0.9)).sum(-1)
    dimension = e.shape[-1]
    square = -0.5 * (e**2).sum(-1)
    if style != "gaussian":
        spread = square / WIDTH**2 - dimension * np.log(WIDTH)
        square = np.logaddexp(np.log(0.75) + square, np.log(0.25) + spread)
    return square - 0.5 * dimension * np.log(2 * np.pi)


WIDTH = 2.5

NEGLIGIBLE = 80.0
"""Points whose log weight is so far below their cell's largest count nothing in float64."""


def root_of_inverse(precision, floor=1e-3):
    """L with LLᵀ = A⁻¹, negative and tiny curvatures replaced, and log |det L|."""
    fine = jnp.isfinite(precision).all()
    a = jnp.where(fine, precision, jnp.eye(precision.shape[0]))
    w, v = jnp.linalg.eigh(0.5 * (a + a.T))
    w = jnp.maximum(jnp.abs(w), floor)
    return v * w**-0.5, -0.5 * jnp.log(w).sum()


def rows(f, *args, cells=1):
    """f over observations: at once, or in blocks where they, or the cells of each, are many."""
    number, most = jax.tree.leaves(args)[0].shape[0], block(cells)
    if number <= most:
        return jax.vmap(f)(*args)
    return jax.lax.map(lambda a: f(*a), args, batch_size=max(1, most // 2))


def block(cells):
    """How many observations are treated at once that have so many cells or points each."""
    return max(1, min(BLOCK, MOST_CELLS // max(cells, 1)))


BLOCK, MOST_CELLS = 2048, 2**18


class Machine(NamedTuple):
    """The compiled functions of one problem: of θ as a vector, observations, grid and points."""

    propose: Callable
    place: Callable
    value: Callable
    scores: Callable
    complete: Callable
    distance: Callable
    table: Callable


def build(unravel: Callable, latents: Latents, conditioned: bool) -> Machine:
    """Everything that is compiled, for a model `unravel(θ)`; an observation is (x, condition)."""
    dimension = len(latents.continuous)

    def log_p(theta, z, obs):
        value = log_joint(unravel(theta), z, obs[0], obs[1] if conditioned else None)
        return jnp.asarray(value, float).sum()

    def on_line(theta, grid, d, obs, c):
        z, slope = from_line(latents, grid, d, c)
        value = log_p(theta, z, obs) + slope
        return jnp.where(jnp.isfinite(value), value, -jnp.inf)

    def over_cells(f, obs, values, *rest):
        def one(o, *r):
            return jax.vmap(lambda d, *s: f(o, d, *s))(values, *r)

        return rows(one, obs, *rest, cells=len(values))

    def log_weights(theta, grid, obs, proposal, e, log_e):
        def one(o, d, q, e, log_e):
            c = q.mean + e @ q.root.T
            return jax.vmap(partial(on_line, theta, grid, d, o))(c) - (log_e - q.log_volume)

        def each(o, q, e, log_e):
            return jax.vmap(lambda d, q: one(o, d, q, e, log_e))(grid.values, q)

        return rows(each, obs, proposal, e, log_e)

    def propose(theta, grid, obs, mode, shape, candidates, e, log_e, iterations, rounds):
        """Newton's method in c for each cell, from the best of some candidates; then `rounds` times
        the moments of the weighted points in place of the Gaussian, where they even the weights.
        Returns the modes, the shapes and the proposals they make."""

        def ascend(o, d, c):
            f = partial(on_line, theta, grid, d, o)
            tried = jnp.concatenate([c[None], candidates])
            c = tried[jnp.argmax(jax.vmap(f)(tried))]

            def step(i, carry):
                c, _, _ = carry
                root, volume = root_of_inverse(-jax.hessian(f)(c))
                g = jax.grad(f)(c)
                move = root @ (root.T @ jnp.where(jnp.isfinite(g), g, 0.0)) * (i < iterations)
                tried = c + jnp.array([1.0, 0.5, 0.2, 0.05, 0.01, 1e-3, 0.0])[:, None] * move
                return tried[jnp.argmax(jax.vmap(f)(tried))], root, volume

            nothing = jnp.zeros((dimension, dimension)), jnp.zeros(())
            return Proposal(*jax.lax.fori_loop(0, iterations + 1, step, (c, *nothing)))

        mode = over_cells(ascend, obs, grid.values, mode)

        def joined(shape):
            mean = mode.mean + jnp.einsum("mvij,mvj->mvi", mode.root, shape.shift)
            return Proposal(mean, mode.root @ shape.root, mode.log_volume + shape.log_volume)

        def moments(old, e, log_w):
            w = jnp.where(jnp.isfinite(log_w), jnp.exp(log_w - log_w.max()), 0.0)
            w = w / w.sum()
            n, n0 = 1 / (w**2).sum(), dimension + 2.0
            shift = w @ e
            spread = (w[:, None] * (e - shift)).T @ (e - shift)
            cov = (n * spread + n0 * jnp.eye(dimension)) / (n + n0)
            root, volume = root_of_inverse(jnp.linalg.inv(cov))
            shift = old.shift + old.root @ shift * n / (n + n0)
            return Shape(shift, old.root @ root, old.log_volume + volume)

        def adapt(_, carry):
            best, share, trial = carry
            log_w = log_weights(theta, grid, obs, joined(trial), e, log_e)
            better = (new := _share(log_w)) > share

            def pick(a, b):
                return jnp.where(better.reshape(*better.shape, *[1] * (a.ndim - 2)), a, b)

            each = jax.vmap(lambda s, e, w: jax.vmap(lambda s, w: moments(s, e, w))(s, w))
            best = jax.tree.map(pick, trial, best)
            return best, pick(new, share), jax.tree.map(pick, each(trial, e, log_w), trial)

        start = shape, -jnp.ones(mode.mean.shape[:2]), shape
        shape = jax.lax.fori_loop(0, rounds, adapt, start)[0]
        return mode.mean, shape, joined(shape)

    def place(theta, grid, obs, proposal, e, log_e, temperature=1.0):
        """Points drawn from the proposals, those that count nothing replaced and switched off.

        So far out densities may be finite and their gradients not. The weights that EM holds are
        tempered over the discrete values.
        """
        c = proposal.mean[:, :, None] + jnp.einsum("mkd,mvcd->mvkc", e, proposal.root)

        def one(o, d, c):
            z, slope = jax.vmap(partial(from_line, latents, grid, d))(c)
            return z, slope, jax.vmap(lambda z: log_p(theta, z, o))(z)

        z, slope, f = over_cells(one, obs, grid.values, c)
        log_q = log_e[:, None] - proposal.log_volume[..., None] - slope
        good = jnp.isfinite(f - log_q) & grid.live[:, None]
        most = jnp.where(good, f - log_q, -jnp.inf).max(axis=2, keepdims=True)
        good &= f - log_q > most - NEGLIGIBLE
        shape = f.shape
        best = jnp.argmax(jnp.where(good, f, -jnp.inf).reshape(shape[0], -1), axis=1)

        def mended(leaf):
            rows = leaf.reshape(shape[0], -1, *leaf.shape[3:])
            chosen = rows[jnp.arange(shape[0]), best][:, None, None]
            return jnp.where(good.reshape(*shape, *[1] * (leaf.ndim - 3)), leaf, chosen)

        log_q = jnp.where(good, log_q, jnp.inf)
        log_w = jnp.where(good, f - log_q, -jnp.inf)
        cell = jax.nn.softmax(logsumexp(log_w, axis=2) / temperature, axis=1)
        w = cell[..., None] * jnp.nan_to_num(jax.nn.softmax(log_w, axis=2))
        return Points(jax.tree.map(mended, z), log_q, jnp.nan_to_num(w))

    def log_likelihood_of(theta, obs, points):
        log_p_ = jax.vmap(jax.vmap(lambda z: log_p(theta, z, obs)))(points.z)
        log_w = log_p_ - points.log_q
        return logsumexp(log_w) - np.log(log_w.shape[-1]), log_p_, log_w

    def each(held):
        """log p̂(x_m) of one observation or, weights held, EM's E[log p(z, x_m) | x_m]; the
        effective share of its points."""

        def one(theta, obs, points):
            f, log_p_, log_w = log_likelihood_of(theta, obs, points)
            w = jax.lax.stop_gradient(jax.nn.softmax(log_w.ravel()).reshape(log_w.shape))
            cell, square = w.sum(-1), (w**2).sum(-1)
            share = jnp.where(cell > 0, cell**3 / jnp.where(square > 0, square, 1.0), 0.0).sum()
            return jnp.where(held, (points.w * log_p_).sum(), f), share / log_w.shape[-1]

        return one

    def value(theta, obs, copies, points, held):
        """`each` of all observations, and the gradient of its sum, weighted by `copies`."""

        def total(theta, some):
            obs, copies, points = some
            f, share = jax.vmap(partial(each(held), theta))(obs, points)
            return copies @ jnp.where(copies > 0, f, 0.0), (f, share)

        both = jax.value_and_grad(total, has_aux=True)
        number = copies.shape[0]
        most = block(points.log_q[0].size)
        if number <= most:
            (_, (f, share)), g = both(theta, (obs, copies, points))
            return f, share, g
        size = -(-number // -(-number // most))
        extra = -number % size

        def cut(a):
            whole = jnp.concatenate([a, jnp.zeros_like(a[:extra]) if a is copies else a[:extra]])
            return whole.reshape(-1, size, *a.shape[1:])

        blocks = (jax.tree.map(cut, obs), cut(copies), jax.tree.map(cut, points))
        (_, (f, share)), g = jax.lax.map(lambda some: both(theta, some), blocks)
        return f.ravel()[:number], share.ravel()[:number], g.sum(axis=0)

    def scores(theta, obs, points):
        """∇ log p̂(x_m) of every observation."""

        def one(o, p):
            return jax.grad(lambda theta: each(False)(theta, o, p)[0])(theta)

        return rows(one, obs, points, cells=points.log_q[0].size)

    def complete(theta, z, obs):
        """∇ log p(z_n, x_n) of draws."""
        s = jax.vmap(lambda z, o: jax.grad(log_p)(theta, z, o))(z, obs)
        return jnp.where(jnp.isfinite(s).all(axis=1, keepdims=True), s, 0.0)

    def distance(proposal, c, d):
        """Squared distance of c from the proposal of cell d, for each draw."""

        def one(q, c, d):
            return jnp.sum(jnp.linalg.solve(q.root[d], c - q.mean[d]) ** 2)

        return jax.vmap(one)(proposal, c, d)

    def table(theta, grid, obs, values):
        """log p(z, x_m) at each of these discrete values, where nothing is continuous."""
        nothing = jnp.zeros(0)
        return rows(
            lambda o: jax.vmap(lambda d: on_line(theta, grid, d, o, nothing))(values),
            obs,
            cells=len(values),
        )

    functions = (propose, place, value, scores, complete, distance, table)
    return Machine(*(jax.jit(f) for f in functions))


def _share(log_w):
    w = jax.nn.softmax(log_w, axis=-1)
    w = jnp.where(jnp.isfinite(w), w, 0.0)
    return jnp.where((s := (w**2).sum(-1)) > 0, 1 / jnp.where(s > 0, s, 1.0), 0.0) / log_w.shape[-1]


# Whether what a model simulates has the density it gives ------------------------------------------

CERTAIN, APART = 6.0, 0.1
"""From how many standard errors on, and how many standard deviations of h, a mean is not 0."""

ENOUGH = 30
"""The least effective number of points that a posterior's mean is taken from."""

MOST_INDICATORS = 64
"""Of how many discrete values each one has an indicator."""

MOST_LOOKED_AT = 4e6
"""The most numbers of a set of points that are looked at."""

FEWEST = 100
"""How many simulations tell anything."""


class Comparison:
    """Simulated latents beside what their observations' posteriors say of them.

    Arguments:
        z: latents of all draws.
        cells: which of the discrete values each one has, of so many; −1 for none.
        number: how many discrete values there are.

    Example: `Comparison(z, cells, 2)`, then `add(which, points)` some times, then `disagree()`.
    """

    def __init__(self, z: PyTree[Array], cells: Int[np.ndarray, " draws"], number: int):
        self.rows, self.cells, self.number = flat_rows(z), cells, number
        self.centre = np.median(self.rows, axis=0)
        spread = self.rows.std(axis=0)
        inner = np.subtract(*np.quantile(self.rows, [0.9, 0.1], axis=0)) / 2.56
        scale = np.where(inner > 1e-3 * spread, inner, spread)
        self.scale = np.where(scale > 0, scale, 1.0)
        self.new = np.ones(len(self.rows), bool)
        self.seen: list[tuple[np.ndarray, ...]] = []

    def bounded(self, z: Float[np.ndarray, "... entries"]) -> Float[np.ndarray, "... entries"]:
        """h of some latents."""
        return np.tanh((z - self.centre) / self.scale)

    def add(self, which: Int[np.ndarray, " some"], points: Points) -> None:
        """Draws, and points for the posteriors of their observations."""
        w = np.asarray(points.w, np.float64)
        most = max(1, int(MOST_LOOKED_AT // (w[0].size * self.rows.shape[1])))
        w, which = w[:most], which[:most]
        once = np.zeros(len(which), bool)
        once[np.unique(which, return_index=True)[1]] = True
        once &= self.new[which]
        self.new[which] = False
        cell, square = w.sum(axis=2), (w**2).sum(axis=2)
        effective = np.where(square > 0, cell**3 / np.where(square > 0, square, 1.0), 0.0).sum(
            axis=1
        )
        whole = np.abs(cell.sum(axis=1) - 1) < 1e-3
        fine = once & whole & ((effective > ENOUGH) | (w.shape[2] == 1))
        z = jax.tree.map(lambda a: np.asarray(a)[:most], points.z)
        leaves = [a.reshape(*w.shape, -1).astype(np.float64) for a in jax.tree.leaves(z)]
        h = self.bounded(np.concatenate(leaves, axis=-1))
        mean = np.einsum("mvk,mvke->me", w, h)
        squares = (h - mean[:, None, None]) ** 2
        variance = np.einsum("mvk,mvke->me", w, squares)
        fourth = np.einsum("mvk,mvke->me", w, squares**2)
        drawn = self.bounded(self.rows[which])
        if 1 < self.number <= MOST_INDICATORS:
            both = cell * (1 - cell)
            mean, variance = np.hstack([mean, cell]), np.hstack([variance, both])
            fourth = np.hstack([fourth, both * (1 - 3 * both)])
            drawn = np.hstack([drawn, self.cells[which][:, None] == np.arange(cell.shape[1])])
        self.seen.append(tuple(a[fine] for a in (drawn, mean, variance, fourth)))

    def disagree(self) -> bool:
        """Whether they certainly do not agree, and not by little."""
        every = [np.concatenate(a) for a in zip(*self.seen, strict=True)]
        return len(every[0]) >= FEWEST and is_apart(*every)


def is_apart(
    drawn: Float[np.ndarray, "n k"],
    mean: Float[np.ndarray, "n k"],
    variance: Float[np.ndarray, "n k"],
    fourth: Float[np.ndarray, "n k"],
) -> bool:
    """Whether draws certainly do not have these means, variances and central fourth moments.

    The means are compared on average, and where they are high or low.

    Example: `is_apart(np.ones((100, 1)), *np.full((3, 100, 1), 0.1))` is True.
    """
    spread, deviation = np.sqrt(variance.mean(axis=0) + mean.var(axis=0)), mean.std(axis=0)
    g = (mean - mean.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    rest, of_square = drawn - mean, np.maximum(fourth - variance**2, 0.0)
    for each, expected, unit in (
        (rest, variance, spread),
        (rest * g, variance * g**2, spread),
        (rest**2 - variance, of_square, spread**2),
    ):
        error = np.sqrt(np.maximum(each.var(axis=0), expected.mean(axis=0)) / len(each))
        if (np.abs(each.mean(axis=0)) > np.maximum(CERTAIN * error, APART * unit)).any():
            return True
    return False
