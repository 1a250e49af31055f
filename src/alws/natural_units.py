"""Steps in natural units: each parameter measured by how much one complete observation tells of it.

F_i = E[(∂ log p_θ(z, x)/∂θ_i)²] over sleep samples is the complete-data information on θ_i, and
1/√F_i the change in θ_i that one observation could tell from noise. An optimiser that works in
θ_i·√F_i sees no difference between metres and millimetres: the mean of data near 50 with deviation
7 and one of deviation 0.02 move at the pace each deserves.

One pullback of signs ε_n estimates all F_i at once: E[(Σ_n ε_n s_ni)²] = N F_i. The scores s_n of
sleep samples are independent with mean zero, so any signs will do; a step takes +1 and −1 in turn.
A single estimate may be far too small, and a first step in its units far too long: the fit starts
from the mean of sixteen, with random signs on one set of samples.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from alws.model import Draws, log_joints

FIRST = 16
"""How many estimates a fit starts from."""

SLOWEST = 0.02
"""The least weight of a new estimate in the running mean."""


def information(model: Any, sleep: Draws, condition: PyTree | None) -> PyTree[Array]:
    """An unbiased estimate of F_i for every parameter, from one set of sleep samples."""
    number = jax.tree.leaves(sleep)[0].shape[0]
    return _estimator(model, sleep, condition)(1 - 2 * (jnp.arange(number) % 2))


def first_information(
    model: Any, sleep: Draws, key: Key[Array, ""], condition: PyTree | None
) -> PyTree[Array]:
    """The mean of `FIRST` such estimates, all from one set of sleep samples."""
    signs = jax.random.rademacher(key, (FIRST, jax.tree.leaves(sleep)[0].shape[0]))
    estimates = jax.lax.map(_estimator(model, sleep, condition), signs)
    return jax.tree.map(lambda f: jnp.where(jnp.isfinite(m := f.mean(axis=0)), m, 1.0), estimates)


def _estimator(
    model: Any, sleep: Draws, condition: PyTree | None
) -> Callable[[Int[Array, " sleep"]], PyTree[Array]]:
    values, pullback = eqx.filter_vjp(lambda m: log_joints(m, sleep, condition), model)

    def estimate(signs: Int[Array, " sleep"]) -> PyTree[Array]:
        pulled = pullback(signs.astype(values.dtype))[0]
        return jax.tree.map(lambda g: g**2 / values.size, pulled)

    return estimate


def running_mean(old: PyTree[Array], new: PyTree[Array], step: Int[Array, ""]) -> PyTree[Array]:
    """The mean of the estimates so far, old ones forgotten, what is not finite left out."""
    rate = jnp.maximum(1 / (step + 1.0 + FIRST), SLOWEST)

    def move(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(jnp.isfinite(b), a + rate.astype(a.dtype) * (b - a), a)

    return jax.tree.map(move, old, new)


def units(info: PyTree[Array]) -> PyTree[Array]:
    """1/√F_i, at most 100: a parameter that the data say nothing of must not run away."""
    return jax.tree.map(lambda f: jax.lax.rsqrt(f + 1e-4), info)
