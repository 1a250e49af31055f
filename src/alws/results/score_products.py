"""Products of estimated gradients, for `alws.standard_errors`: over data, and over fresh draws.

Sleep phases a = 1 … P, each with samples of its own, give regressions ĝ_a of t = ∇_θ log p_θ(z, x)
on x, centred so that their mean over fresh draws is zero. Then

    data        Σ_m ĝ_a(x_m) ĝ_b(x_m)ᵀ     over observations,
    own         A = E[ĝ_a(x) ĝ_b(x)ᵀ]       over fresh draws (z, x) ~ p_θ,
    truth       B = E[t ĝ_a(x)ᵀ]            over the same,
    complete    E[t tᵀ]                     over the same,

each the mean over all a ≠ b, and each again without one phase and its share of the fresh draws.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from alws.features import follow
from alws.model import AnyModel, Draws, draw, log_joint
from alws.regressions.base import one_lapack_thread
from alws.wake_sleep import pooled

FRESH = 4
"""Fresh draws for each sleep sample: they need no factorisation and are cheap."""

FEWEST_FRESH = 16
"""The fewest fresh draws for each phase under one condition."""


class Products(NamedTuple):
    """Without phase 0, without phase 1, … and, last, with all of them."""

    data: Float[Array | np.ndarray, "without parameters parameters"]
    own: Float[Array | np.ndarray, "without parameters parameters"]
    truth: Float[Array | np.ndarray, "without parameters parameters"]
    complete: Float[Array | np.ndarray, "without parameters parameters"]


def products(
    model: AnyModel,
    regression: Any,
    x: PyTree | None,
    conditions: PyTree | None,
    key: Key[Array, ""],
    *,
    size: int,
    phases: int,
    sleep_samples: int,
    separate: bool = False,
) -> Products:
    """All products in double precision; those over data are zero without x.

    One regression serves all conditions, or `separate` ones do, one condition after the other.

    Example: `products(model, regression, data, None, key, size=400, phases=8, sleep_samples=1000)`.
    """
    with one_lapack_thread():
        found = _products(
            model, regression, x, conditions, key, size, phases, sleep_samples, separate
        )
    return Products(*(np.asarray(p, np.float64) for p in found))


@eqx.filter_jit
def _products(
    model: AnyModel,
    regression: Any,
    x: PyTree | None,
    conditions: PyTree | None,
    key: Key[Array, ""],
    size: int,
    phases: int,
    number: int,
    separate: bool,
) -> Products:
    """Sums over the data and means over fresh draws."""
    if conditions is None or not separate:
        points, condition = pooled(x, conditions)
        points = None if x is None else points
        return _of_regression(
            model, regression, points, condition, key, number, FRESH * number, phases
        )
    fresh = max(FEWEST_FRESH, -(-FRESH * number // size))

    def add(total: Products, item: tuple[PyTree, PyTree, Array]) -> tuple[Products, None]:
        point, condition, key = item
        point = jax.tree.map(lambda a: a[None], point)
        more = _of_regression(model, regression, point, condition, key, number, fresh, phases)
        return jax.tree.map(jnp.add, total, more), None

    flat = ravel_pytree(eqx.filter(model, eqx.is_inexact_array))[0]
    nothing = jnp.zeros((phases + 1, flat.size, flat.size), flat.dtype)
    items = (x, conditions, jax.random.split(key, size))
    total, _ = jax.lax.scan(add, Products(nothing, nothing, nothing, nothing), items)
    return Products(total.data, *(m / size for m in total[1:]))


def _of_regression(
    model: AnyModel,
    regression: Any,
    x: PyTree | None,
    condition: PyTree | None,
    key: Key[Array, ""],
    number: int,
    fresh_number: int,
    phases: int,
) -> Products:
    """Σ ĝ_a ĝ_bᵀ over x, and A, B and E[t tᵀ] over `fresh_number` fresh draws for each phase."""
    draws, _ = draw(model, key, phases * (number + fresh_number), condition)
    scores = _scores(model, draws, condition)
    split = phases * number
    sleep = jax.tree.map(
        lambda a: a[:split].reshape(phases, number, *a.shape[1:]), (draws.x, scores)
    )
    fresh, truth = jax.tree.map(lambda a: a[split:], (draws.x, scores))
    truth = truth - truth.mean(axis=0)

    def phase(sleep: tuple[PyTree, Array]) -> tuple[Array, Array]:
        observations, targets = sleep
        smoother = follow(regression, model).fit(observations)
        own = smoother.predict(fresh, targets)
        centre = own.mean(axis=0)
        there = truth[:0] if x is None else smoother.predict(x, targets)
        return there - centre, own - centre

    there, own = jax.lax.map(phase, sleep)

    def without(left_out: Array) -> tuple[Array, Array, Array, Array]:
        kept = (jnp.arange(phases) != left_out).astype(truth.dtype)
        weights = jnp.repeat(kept, fresh_number) / (fresh_number * kept.sum())
        weighted = weights[:, None] * truth
        return (
            _over_pairs(there, kept, jnp.ones(there.shape[1], truth.dtype)),
            _over_pairs(own, kept, weights),
            weighted.T @ jnp.tensordot(kept / kept.sum(), own, axes=1),
            weighted.T @ truth,
        )

    return Products(*jax.lax.map(without, jnp.arange(phases + 1)))


def _scores(
    model: AnyModel, draws: Draws, condition: PyTree | None
) -> Float[Array, "draws parameters"]:
    """t = ∇_θ log p_θ(z, x) of every draw, flattened."""
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)

    def score(z: PyTree, x: PyTree) -> Array:
        return jax.grad(lambda p: log_joint(eqx.combine(unravel(p), rest), z, x, condition))(flat)

    return jax.vmap(score)(*draws)


def _over_pairs(
    gradients: Float[Array, "phases points parameters"],
    kept: Float[Array, " phases"],
    weights: Float[Array, " points"],
) -> Float[Array, "parameters parameters"]:
    """Σ over points of ĝ_a ĝ_bᵀ, the mean over all pairs a ≠ b of the phases kept.

    (Σ_a ĝ_a)(Σ_b ĝ_b)ᵀ has all pairs, and those with a = b are taken off.
    """
    total, number = jnp.tensordot(kept, gradients, axes=1), kept.sum()
    weighted = (kept[:, None] * weights)[..., None] * gradients
    same = weighted.reshape(-1, total.shape[1]).T @ gradients.reshape(-1, total.shape[1])
    return ((weights[:, None] * total).T @ total - same) / (number * (number - 1))
