"""FastICA (Hyvärinen & Oja 2000): independent components by symmetric fixed-point iteration.

Data are centred and whitened on their leading principal components, y = V x. Every row w of an
orthogonal matrix B then moves to

    w ← E[y tanh(w·y)] − E[1 − tanh²(w·y)] w,

and the rows are made orthogonal again all at once, B ← (B Bᵀ)^(−1/2) B. The sources are B V x and
the columns of the pseudo-inverse of B V are the components: x ≈ mean + components · sources.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from alws.validation import at_least


class FastICA(NamedTuple):
    """What FastICA found: x ≈ mean + components @ sources, sources = unmixing @ (x − mean)."""

    components: Float[np.ndarray, "entries components"]
    unmixing: Float[np.ndarray, "components entries"]
    mean: Float[np.ndarray, " entries"]
    iterations: int
    converged: bool


def fast_ica(
    data: Float[np.ndarray, "n entries"],
    number: int,
    *,
    seed: int = 0,
    iterations: int = 500,
    tolerance: float = 1e-4,
) -> FastICA:
    """The `number` independent components of the leading principal subspace of the data.

    The sources have unit variance; order and signs of the components are arbitrary. It has
    converged when no row of B turns by more than `tolerance` (one minus the cosine) in a step.

    Example: `fast_ica(patches.reshape(len(patches), -1), 36).components.T` are 36 filters.
    """
    at_least("number", number, 1)
    at_least("iterations", iterations, 1)
    if number > min(data.shape):
        raise ValueError(
            f"`number` must be at most the smaller side of the data, {data.shape}; got {number}."
        )
    mean = data.mean(axis=0)
    white, whitening = _whiten(data - mean, number)
    start = np.random.default_rng(seed).normal(size=(number, number))
    rotation = _orthogonal(start)
    turn, done = np.inf, 0
    while turn > tolerance and done < iterations:
        response = np.tanh(white @ rotation.T)
        slope = 1 - (response**2).mean(axis=0)
        new = _orthogonal(response.T @ white / len(white) - slope[:, None] * rotation)
        turn = float(np.max(1 - np.abs((new * rotation).sum(axis=1))))
        rotation, done = new, done + 1
    unmixing = rotation @ whitening
    return FastICA(np.linalg.pinv(unmixing), unmixing, mean, done, turn <= tolerance)


def _whiten(
    centred: Float[np.ndarray, "n entries"], number: int
) -> tuple[Float[np.ndarray, "n number"], Float[np.ndarray, "number entries"]]:
    """The data on their leading principal axes with unit variance, and the map that does it."""
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    leading, axes = values[::-1][:number], vectors[:, ::-1][:, :number]
    if leading[-1] <= 1e-10 * leading[0]:
        rank = int(np.sum(leading > 1e-10 * leading[0]))
        raise ValueError(
            f"`number` must be at most the rank of the data, {rank}; got {number}. Ask for fewer "
            "components, or give more varied data."
        )
    whitening = (axes / np.sqrt(leading)).T
    return centred @ whitening.T, whitening


def _orthogonal(matrix: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """(B Bᵀ)^(−1/2) B, the nearest orthogonal matrix."""
    left, _, right = np.linalg.svd(matrix)
    return left @ right
