"""Whether the latents that a model simulates lie where its density says that they lie.

Of a simulated pair (z, x) z is a draw from the posterior given x. So for every bounded h, and every
g of x alone,

    E[(h(z) − E[h | x]) g(x)] = 0,

the inner mean under the posterior that log p(z, x) says, and likewise for Var[h | x]. A prior that
is left out, or weights of clusters that are left out or exchanged, may leave the scores as they
are, but not this. As h there are the entries of z, brought to (−1, 1), and indicators of discrete
values; as g there are 1 and E[h | x].
"""

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from alws.maximum.latents import flat_rows
from alws.maximum.points import Points

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
