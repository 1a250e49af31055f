"""The exact maximum of the mean log likelihood.

L(theta) = (1/n) sum_i log p_theta(x_i)   is maximised over all floating-point leaves of the model,

in float64 whatever the precision of the model, by L-BFGS-B and then Newton steps in a trust region
with the exact Hessian. Each parameter is measured in units of 1 / rms(score), where the score is
d log p_theta(x_i) / d theta_j, since data on scales of 0.02 and 7 make L badly conditioned
otherwise. The search is local, from each of several starts; the best result is kept. A search that
does not end at a zero of the gradient is dropped: it follows an unbounded likelihood, as when a
component of a mixture shrinks onto one observation.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from exact.base import ExactModel

Model = TypeVar("Model", bound=ExactModel)

CONVERGED = 1e-5  # largest |mean score| / rms(score) of a result that counts as a maximum


def in_double(function: Callable[..., Any], *trees: Any) -> Any:
    """Return ``function(*trees)`` computed in float64, as NumPy arrays.

    All floating-point leaves of ``trees`` are converted to float64 first.
    """

    def convert(leaf: Any) -> Any:
        return jnp.asarray(np.asarray(leaf, np.float64)) if eqx.is_inexact_array(leaf) else leaf

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, function(*jax.tree.map(convert, trees)))


@eqx.filter_jit
def _mean_log_marginal(model: ExactModel, data: jax.Array) -> jax.Array:
    return jax.vmap(model.log_marginal)(data).mean()


def mean_log_likelihood(model: ExactModel, data: jax.Array) -> float:
    """Return L(theta) = (1/n) sum_i log p_theta(x_i), computed in float64."""
    return float(in_double(_mean_log_marginal, model, data))


def maximum_likelihood(model: Model, data: jax.Array, *others: Model) -> tuple[Model, float]:
    """Return the model that maximises L(theta) and its L, searching from ``model`` and ``others``.

    Pass the true model and the start of the fit to make a poor local maximum unlikely. The result
    has the precision of ``model``, and L is the value at that rounded result.
    """
    theta, static = eqx.partition(model, eqx.is_inexact_array)
    flat = in_double(_search, (model, *others), data)
    _, unravel = ravel_pytree(theta)
    fitted = eqx.combine(unravel(jnp.asarray(flat, ravel_pytree(theta)[0].dtype)), static)
    return fitted, mean_log_likelihood(fitted, data)


def _search(starts: tuple[ExactModel, ...], data: jax.Array) -> np.ndarray:
    """Return the flattened theta of the best local maximum of L found from ``starts``."""
    theta, static = eqx.partition(starts[0], eqx.is_inexact_array)
    _, unravel = ravel_pytree(theta)
    flat_starts = [ravel_pytree(eqx.filter(start, eqx.is_inexact_array))[0] for start in starts]

    def log_marginal(flat: jax.Array, x: jax.Array) -> jax.Array:
        return eqx.combine(unravel(flat), static).log_marginal(x)

    @jax.jit
    def evaluate(flat: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return L, its gradient and the root mean square of the score."""
        values, scores = jax.vmap(jax.value_and_grad(log_marginal), (None, 0))(flat, data)
        return values.mean(), scores.mean(axis=0), jnp.sqrt((scores**2).mean(axis=0))

    @jax.jit
    def curvature(flat: jax.Array) -> jax.Array:
        """Return the Hessian of L."""
        return jax.hessian(lambda flat: jax.vmap(log_marginal, (None, 0))(flat, data).mean())(flat)

    unit = 1 / np.maximum(evaluate(flat_starts[0])[2], 1e-6)

    def loss(position: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient, _ = evaluate(unit * position)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return np.inf, np.zeros_like(position)
        return -float(value), -unit * np.asarray(gradient)

    def hessian(position: np.ndarray) -> np.ndarray:
        return -np.outer(unit, unit) * np.nan_to_num(curvature(unit * position))

    maxima = []
    for flat in flat_starts:
        with np.errstate(all="ignore"):  # a search may overflow, and is then dropped
            rough = minimize(loss, np.asarray(flat) / unit, jac=True, method="L-BFGS-B")
            result = minimize(
                loss,
                rough.x,
                jac=True,
                hess=hessian,
                method="trust-exact",
                options={"gtol": 1e-7, "maxiter": 300},
            )
        if np.isfinite(result.fun) and np.abs(result.jac).max() < CONVERGED:
            maxima.append(result)
    if not maxima:
        raise RuntimeError("no search reached a maximum of the likelihood")
    return unit * min(maxima, key=lambda result: result.fun).x
