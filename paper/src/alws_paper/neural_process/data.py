"""Random sinusoids f(x) = a sin(x − b) on [−π, π], observed with noise: a set of small tasks."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from alws.validation import at_least

GRID_POINTS = 100
AMPLITUDE = (-0.5, 1.0)
SHIFT = (-0.5, 0.5)
NOISE = 0.1


class Sinusoids(NamedTuple):
    """Functions on a grid of inputs, and noisy observations at some inputs of each."""

    x: Float[Array, "functions points"]
    y: Float[Array, "functions points"]
    f: Float[Array, "functions grid"]


def grid() -> Float[Array, " grid"]:
    """100 points from −π to π."""
    return jnp.linspace(-jnp.pi, jnp.pi, GRID_POINTS)


def sinusoids(
    key: Key[Array, ""], functions: int, *, points: int = 8, noise: float = NOISE
) -> Sinusoids:
    """Draw a ~ U(−0.5, 1), b ~ U(−0.5, 0.5) for each function, and observe it with Gaussian noise.

    The inputs of each function are different points of the grid, in random order.

    Example: `sinusoids(jax.random.key(0), 500, points=4).f.shape == (500, 100)`.
    """
    at_least("functions", functions, 1)
    at_least("points", points, 1)
    if points > GRID_POINTS:
        raise ValueError(
            f"`points` must be at most the {GRID_POINTS} points of the grid, got {points}."
        )
    amplitude_key, shift_key, input_key, noise_key = jax.random.split(key, 4)
    low, high = AMPLITUDE
    a = jax.random.uniform(amplitude_key, (functions, 1), minval=low, maxval=high)
    b = jax.random.uniform(shift_key, (functions, 1), minval=SHIFT[0], maxval=SHIFT[1])
    f = a * jnp.sin(grid() - b)
    order = jnp.argsort(jax.random.uniform(input_key, f.shape), axis=1)[:, :points]
    spread = noise * jax.random.normal(noise_key, order.shape)
    return Sinusoids(grid()[order], jnp.take_along_axis(f, order, axis=1) + spread, f)


def posterior_moments(
    x: Float[ArrayLike, "functions pairs"],
    y: Float[ArrayLike, "functions pairs"],
    *,
    noise: float = NOISE,
    nodes: int = 100,
) -> tuple[Float[np.ndarray, "functions grid"], Float[np.ndarray, "functions grid"]]:
    """The exact mean and standard deviation of f on the grid given pairs: a sum over (a, b).

    The prior has a node in the middle of each of `nodes`² equal cells of (a, b).

    Example: `mean, spread = posterior_moments(test.x, test.y)`.
    """
    middle = (np.arange(nodes) + 0.5) / nodes
    a, b = (low + (high - low) * middle for low, high in (AMPLITUDE, SHIFT))
    a, b = (v.reshape(-1, 1) for v in np.meshgrid(a, b))
    f = a * np.sin(np.asarray(grid(), float) - b)
    means, spreads = [], []
    for inputs, values in zip(np.asarray(x, float), np.asarray(y, float), strict=True):
        misfit = (((values - a * np.sin(inputs - b)) / noise) ** 2).sum(axis=1)
        weight = np.exp((misfit.min() - misfit) / 2)
        weight /= weight.sum()
        means.append(weight @ f)
        spreads.append(np.sqrt(weight @ (f - means[-1]) ** 2))
    return np.array(means), np.array(spreads)
