"""How close simulated blowfly counts are to the observed ones, by two distances.

The first is that of ten published summary statistics (Meeds & Welling 2014, Park et al. 2016): the
logarithms of the means of the four quarters of the ordered counts, in thousands; the means of the
four quarters of the ordered first differences, in thousands; how many peaks rise 0.5, and how many
1.5 standard deviations above the trough before and the one after.

The second is the MMD between the windows (x_t, …, x_{t+L−1}) of one sequence and those of another:
zero when both run through the same shapes equally often, wherever in time.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from alws.kernels import median_distance
from alws_paper.shared.mmd import gaussian_mmd_squared

PEAKS = (0.5, 1.5)
"""How far a peak must rise above its troughs, in standard deviations of the sequence."""


def summary_statistics(counts: Float[Array, " times"]) -> Float[Array, "10"]:
    """The ten statistics of a sequence of counts.

    Example: `jax.vmap(summary_statistics)(sequences)` for many of them.
    """
    thousands = counts / 1000
    deviation = jnp.where(thousands.std() > 0, thousands.std(), 1.0)
    peaks = [number_of_peaks(thousands / deviation, rise) for rise in PEAKS]
    return jnp.concatenate(
        [
            jnp.log(_quarters(thousands) + 1e-12),
            _quarters(jnp.diff(thousands)),
            jnp.array(peaks, thousands.dtype),
        ]
    )


class _Search(NamedTuple):
    rising: Bool[Array, ""]
    high: Float[Array, ""]
    low: Float[Array, ""]
    found: Int[Array, ""]


def number_of_peaks(x: Float[Array, " times"], rise: float) -> Int[Array, ""]:
    """Maxima from which x falls by more than `rise`, each after a rise of more than that.

    Example: `number_of_peaks(jnp.array([0.0, 2.0, 1.9, 2.1, 0.0, 1.0]), 0.5) == 1`.
    """

    def step(search: _Search, value: Array) -> tuple[_Search, None]:
        high, low = jnp.maximum(search.high, value), jnp.minimum(search.low, value)
        peak = search.rising & (value < high - rise)
        trough = ~search.rising & (value > low + rise)
        return _Search(
            jnp.where(peak, False, search.rising | trough),
            jnp.where(trough, value, high),
            jnp.where(peak, value, low),
            search.found + peak,
        ), None

    first = _Search(jnp.array(True), x[0], x[0], jnp.array(0))
    return jax.lax.scan(step, first, x[1:])[0].found


def block_bootstrap(
    x: Float[Array, " times"], block: int, number: int, seed: int = 0
) -> Float[Array, "number times"]:
    """Sequences put together from blocks of x that begin at random times.

    Example: `block_bootstrap(counts, 45, 1000).std(axis=0)` is how much such a sequence varies.
    """
    if not 0 < block <= len(x):
        raise ValueError(f"`block` must be between 1 and the {len(x)} times of x, got {block}.")
    blocks = -(-len(x) // block)
    first = np.random.default_rng(seed).integers(0, len(x) - block + 1, (number, blocks))
    times = (first[:, :, None] + np.arange(block)).reshape(number, -1)[:, : len(x)]
    return x[times]


def summary_scale(
    counts: Float[Array, " times"], block: int = 45, number: int = 2000
) -> Float[Array, "10"]:
    """The standard deviation of each statistic over block-bootstrap sequences of the counts.

    Blocks of 45 hold more than two of the blowflies' cycles.
    """
    again = block_bootstrap(counts, block, number)
    return jax.vmap(summary_statistics)(again).std(axis=0)


def summary_distance(
    simulated: Float[Array, "sequences times"],
    counts: Float[Array, " times"],
    scale: Float[Array, "10"] | float = 1.0,
) -> Float[Array, " sequences"]:
    """‖(s(y) − s(x))/scale‖ of every simulated sequence; `scale=1` is the published distance."""
    difference = jax.vmap(summary_statistics)(simulated) - summary_statistics(counts)
    return jnp.linalg.norm(difference / scale, axis=1)


def window_mmd(
    simulated: Float[Array, "sequences times"], counts: Float[Array, " times"], length: int = 20
) -> Float[Array, " sequences"]:
    """The unbiased MMD² between the windows of every simulated sequence and those of the data.

    The kernel is exp(−d²/2σ²), σ the median distance between windows of the data.
    """
    windows = _windows(counts, length)
    bandwidth = median_distance(windows)

    def one(sequence: Array) -> Array:
        return gaussian_mmd_squared(_windows(sequence, length), windows, bandwidth)

    return jax.lax.map(one, simulated)


class Closeness(NamedTuple):
    """Medians over simulated sequences: distance of the statistics, scaled and not, and MMD²."""

    statistics: float
    unscaled: float
    mmd: float


def closeness(
    simulated: Mapping[str, Float[Array | np.ndarray, "sequences times"]],
    counts: Float[Array, " times"],
) -> dict[str, Closeness]:
    """How far each set of sequences is from the counts; one that is not finite is far from them.

    Example: `closeness({"fitted": sequences}, counts)["fitted"].mmd`.
    """
    scale = summary_scale(counts)

    @jax.jit
    def medians(x: Array) -> tuple[Array, ...]:
        fine = jnp.isfinite(x).all(axis=1)
        safe = jnp.where(fine[:, None], x, 0.0)
        each = (
            summary_distance(safe, counts, scale),
            summary_distance(safe, counts),
            window_mmd(safe, counts),
        )
        return tuple(jnp.median(jnp.where(fine, d, jnp.inf)) for d in each)

    return {name: Closeness(*map(float, medians(jnp.asarray(x)))) for name, x in simulated.items()}


def wood_statistics(
    counts: Float[Array, " times"], observed: Float[Array, " times"]
) -> Float[Array, "23"]:
    """The 23 statistics of Wood (2010) for the blowflies, counts in thousands.

    A cubic regression, without intercept, of the ordered differences on those of the observed
    counts; the regression of the centred x_t on x, x², x³ six counts earlier and x, x² one count
    earlier; mean, and mean − median; autocovariances to lag 11; the number of turning points.
    """
    x, reference = counts / 1000, observed / 1000
    differences, model = jnp.sort(jnp.diff(x)), jnp.sort(jnp.diff(reference))
    differences, model = differences - differences.mean(), model - model.mean()
    shape = _least_squares(jnp.stack([model, model**2, model**3], axis=1), differences)
    centred = x - x.mean()
    far, near, now = centred[:-6], centred[5:-1], centred[6:]
    terms = jnp.stack([far, far**2, far**3, near, near**2], axis=1)
    covariances = [jnp.mean(centred[lag:] * centred[: len(x) - lag]) for lag in range(12)]
    turning = jnp.abs(jnp.diff(jnp.sign(jnp.diff(x)))).sum() / 2
    return jnp.concatenate(
        [
            shape,
            _least_squares(terms, now),
            jnp.stack([x.mean(), x.mean() - jnp.median(x), *covariances, turning]),
        ]
    )


def _least_squares(a: Float[Array, "n terms"], b: Float[Array, " n"]) -> Float[Array, " terms"]:
    """The coefficients of b on the columns of a, which are brought to one scale first."""
    unit = jnp.sqrt((a**2).mean(axis=0)) + 1e-12
    scaled = a / unit
    ridge = 1e-5 * len(b) * jnp.eye(a.shape[1])
    return jnp.linalg.solve(scaled.T @ scaled + ridge, scaled.T @ b) / unit


def _quarters(x: Float[Array, " times"]) -> Float[Array, "4"]:
    """The means of the four quarters of the ordered entries."""
    ordered = jnp.sort(x)
    ends = [round(len(x) * i / 4) for i in range(5)]
    return jnp.stack([ordered[a:b].mean() for a, b in pairwise(ends)])


def _windows(x: Float[Array, " times"], length: int) -> Float[Array, "windows length"]:
    if not 0 < length < len(x):
        raise ValueError(f"`length` must be between 1 and {len(x) - 1}, got {length}.")
    return x[jnp.arange(len(x) - length + 1)[:, None] + jnp.arange(length)]
