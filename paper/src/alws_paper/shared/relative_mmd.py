"""Which of two samples is closer to the data: the relative MMD test (Bounliphone et al. 2016).

With data x, samples y and z, the difference of two unbiased estimates that share the data,

    D = MMD²(x, y) − MMD²(x, z),

is asymptotically normal. Each estimate is to first order a mean over each of its samples,

    MMD²(x, y) ≈ const + mean_i u_y(x_i) + mean_j v(y_j),
    u_y(x) = 2 [E k(x, x') − E k(x, y')],   v(y) = 2 [E k(y, y') − E k(y, x')],

so its variance is Var u_y/n + Var v/m, and the covariance of the two is Cov(u_y, u_z)/n. Sums run
over blocks of rows, so no Gram matrix is held whole.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtr

from alws.kernels import median_distance

BLOCK = 1000
"""Rows of a Gram matrix held at a time."""


class RelativeMMD(NamedTuple):
    """The test's p-value, the two unbiased estimates of MMD², the standard error of first − second.

    A small `p_value` says that the first sample is closer to the data than the second; one near 1
    that the second is.
    """

    p_value: float
    first_mmd: float
    second_mmd: float
    standard_error: float


def relative_mmd_test(
    first: Float[Array | np.ndarray, "..."],
    second: Float[Array | np.ndarray, "..."],
    data: Float[Array | np.ndarray, "..."],
    *,
    bandwidth: float | None = None,
) -> RelativeMMD:
    """Test "`first` is no closer to `data` than `second`": p = Φ((MMD²₁ − MMD²₂) / its error).

    All three are matrices `[samples, dimensions]`, drawn independently; they may differ in the
    number of samples. The kernel is exp(−d²/2σ²). Without `bandwidth`, σ is the mean of two
    medians: of the distances in `data` with `first`, and in `data` with `second`. When all three
    have one distribution the first-order variance vanishes and what is left of it is too large:
    the test then rejects less often than its level says.

    Example: `relative_mmd_test(ours, theirs, held_out).p_value < 0.05` when ours are closer.
    """
    y, z, x = _matrices(first=first, second=second, data=data)
    if bandwidth is None:
        bandwidth = (_median(x, y) + _median(x, z)) / 2
    if not 0 < bandwidth < np.inf:
        raise ValueError(f"`bandwidth` must be positive and finite, got {bandwidth}.")
    within_data = _within(x, bandwidth)
    first_mmd, to_first, first_variance = _estimate(x, y, within_data, bandwidth)
    second_mmd, to_second, second_variance = _estimate(x, z, within_data, bandwidth)
    covariance = np.cov(to_first, to_second) / len(x)
    variance = (
        first_variance
        + second_variance
        + covariance[0, 0]
        + covariance[1, 1]
        - 2 * covariance[0, 1]
    )
    error = float(np.sqrt(max(variance, 0.0)))
    difference = first_mmd - second_mmd
    p_value = ndtr(difference / error) if error > 0 else (1 + np.sign(difference)) / 2
    return RelativeMMD(float(p_value), first_mmd, second_mmd, error)


def _estimate(
    x: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, "m d"],
    within_x: Float[np.ndarray, " n"],
    bandwidth: float,
) -> tuple[float, Float[np.ndarray, " n"], float]:
    """MMD²(x, y), its terms u(x_i), and the part Var v/m of its variance that comes from y."""
    n, m = len(x), len(y)
    within_y = _within(y, bandwidth)
    over_y, over_x = _sums(x, y, bandwidth)
    mmd = within_x.mean() + within_y.mean() - 2 * over_y.mean() / m
    from_y = 2 * (within_y - over_x / n)
    return float(mmd), 2 * (within_x - over_y / m), float(from_y.var(ddof=1) / m)


def _within(x: Float[np.ndarray, "n d"], bandwidth: float) -> Float[np.ndarray, " n"]:
    """The mean of k(x_i, x_j) over all j but i."""
    return (_sums(x, x, bandwidth)[0] - 1) / (len(x) - 1)


def _sums(
    a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"], bandwidth: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    """The sums of k(a_i, b_j) over j and over i, block by block."""
    a, b = a / bandwidth, b / bandwidth
    over_b, over_a = np.zeros(len(a)), np.zeros(len(b))
    half_squares = (b**2).sum(axis=1) / 2
    for start in range(0, len(a), BLOCK):
        rows = a[start : start + BLOCK]
        exponent = rows @ b.T
        exponent -= half_squares
        exponent -= (rows**2).sum(axis=1, keepdims=True) / 2
        np.minimum(exponent, 0, out=exponent)
        gram = np.exp(exponent, out=exponent)
        over_b[start : start + BLOCK] = gram.sum(axis=1)
        over_a += gram.sum(axis=0)
    return over_b, over_a


def _median(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]) -> float:
    """The median distance in the joint sample, over about 1000 of its rows."""
    joint = np.concatenate([x[_spread(len(x))], y[_spread(len(y))]])
    return float(median_distance(jnp.asarray(joint, jnp.float32)))


def _spread(size: int, most: int = 500) -> np.ndarray:
    """At most `most` indices, evenly spread: rows may come ordered by class."""
    return np.linspace(0, size - 1, min(size, most)).round().astype(int)


def _matrices(**samples: Any) -> list[Float[np.ndarray, "samples d"]]:
    """The samples in double precision, centred on the data. Refuse what does not fit together."""
    matrices = {name: np.asarray(sample, np.float64) for name, sample in samples.items()}
    for name, matrix in matrices.items():
        if matrix.ndim != 2 or matrix.shape[0] < 2 or matrix.shape[1] < 1:
            raise ValueError(
                f"`{name}` must be a matrix [samples, dimensions] of at least 2 samples, got shape "
                f"{matrix.shape}. Flatten images with `x.reshape(len(x), -1)`."
            )
        bad = int(np.sum(~np.isfinite(matrix)))
        if bad:
            raise ValueError(
                f"`{name}` must be finite, got {bad} entries that are NaN or infinite. Leave those "
                "samples out."
            )
    widths = {name: matrix.shape[1] for name, matrix in matrices.items()}
    if len(set(widths.values())) > 1:
        raise ValueError(
            "`first`, `second` and `data` must have the same number of columns, got "
            + ", ".join(f"{name} {width}" for name, width in widths.items())
            + "."
        )
    centre = matrices["data"].mean(axis=0)
    return [matrix - centre for matrix in matrices.values()]
