"""Distances between rows, by matrix product, and their median."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def squared_distances(
    a: Float[Array, "n features"], b: Float[Array, "m features"]
) -> Float[Array, "n m"]:
    """‖a_i − b_j‖² by one matrix product, centred on b so that little is lost to rounding."""
    centre = jax.lax.stop_gradient(b.mean(axis=0))
    a, b = a - centre, b - centre
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)
    return jnp.maximum(squares - 2 * a @ b.T, 0)


def median_distance(a: Float[Array, "n features"], most: int = 1000) -> Float[Array, ""]:
    """The median distance between two different rows, over at most `most` rows.

    Rows that coincide (discrete data) do not count; the result is 1 when all rows coincide.
    """
    a = a[:most]
    n = a.shape[0]
    pairs = jnp.sqrt(squared_distances(a, a))[jnp.triu_indices(n, 1)]
    return median_of_positive(pairs, _rounding(a))


def median_of_positive(
    values: Float[Array, " pairs"], floor: Float[Array, ""] | float
) -> Float[Array, ""]:
    """The median of the values above the floor, which is rounding error; 1 when there are none."""
    positive = values > floor
    ordered = jnp.sort(jnp.where(positive, values, jnp.inf))
    count = positive.sum()
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return jnp.where(jnp.isfinite(median) & (count > 0), median, 1.0)


def _rounding(a: Float[Array, "n features"]) -> Float[Array, ""]:
    """Distances below this one are rounding error."""
    return 1e-5 * jnp.sqrt((a**2).mean() + 1e-30)


def sampled_median_distance(a: Float[Array, "n features"]) -> Float[Array, ""]:
    """The median distance over some 2000 pairs of independent rows: neighbours, and theirs.

    Rows that coincide do not count; with few rows, all their pairs do.
    """
    n = a.shape[0]
    if n <= 64:
        return median_distance(a)
    lags = range(1, 1 + max(1, 2000 // n))
    squares = jnp.concatenate([((a - jnp.roll(a, lag, axis=0)) ** 2).sum(axis=1) for lag in lags])
    return median_of_positive(jnp.sqrt(squares), _rounding(a))
