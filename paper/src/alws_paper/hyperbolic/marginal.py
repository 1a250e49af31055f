"""Exact likelihood and posterior of a model whose latent can be integrated on quadrature nodes.

    log p(x) = log Σ_k w_k p(z_k) p(x | z_k)

for one or two latent dimensions: the yardstick for what a fit has found.
"""

from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float
from scipy.optimize import minimize

from alws.model import ExponentialFamilyModel
from alws_paper.hyperbolic.manifolds.quadrature import Nodes

Tree = TypeVar("Tree")

GTOL = 1e-3
"""The largest derivative of Σ log p(x) at what counts as its maximum, tenfold if it stalls."""


@eqx.filter_jit
def log_terms(
    model: ExponentialFamilyModel,
    x: Float[Array, "points ..."],
    z: ArrayLike,
    log_weight: ArrayLike,
) -> Float[Array, "nodes points"]:
    """log w_k p(z_k) p(x_m | z_k); its logsumexp over k is log p(x_m)."""

    def one(node: tuple[Array, Array]) -> Array:
        place, weight = node
        return weight + model.log_prior(place) + jax.vmap(model.likelihood(place).log_prob)(x)

    return jax.lax.map(one, (jnp.asarray(z), jnp.asarray(log_weight)), batch_size=256)


def log_likelihoods(
    model: ExponentialFamilyModel, x: Float[Array, "points ..."], nodes: Nodes
) -> Array:
    """log p(x_m) of every point."""
    return jax.nn.logsumexp(log_terms(model, x, nodes.z, nodes.log_weight), axis=0)


class Maximum(NamedTuple):
    """The exact maximum-likelihood estimate, Σ log p(x) there, and the covariance of the estimate.

    `covariance` is the inverse of the observed information, for θ as one vector (`ravel_pytree`).
    """

    model: ExponentialFamilyModel
    log_likelihood: float
    covariance: Float[np.ndarray, "parameters parameters"]


def total_log_likelihood(
    model: ExponentialFamilyModel, x: Float[Array, "points ..."], nodes: Nodes
) -> float:
    """Σ_m log p(x_m) in double precision."""
    with jax.enable_x64(True):
        return float(log_likelihoods(_double(model), _double(x), nodes).sum())


def maximum_likelihood(
    start: ExponentialFamilyModel, x: Float[Array, "points ..."], nodes: Nodes
) -> Maximum:
    """Maximise Σ log p(x) over θ from `start`, with exact derivatives in double precision.

    Example: `maximum_likelihood(generator, data, sphere_nodes()).model`.
    """
    with jax.enable_x64(True):
        parameters, rest = eqx.partition(_double(start), eqx.is_inexact_array)
        flat, unravel = ravel_pytree(parameters)
        x = _double(x)

        def loss(flat: Array) -> Array:
            return -log_likelihoods(eqx.combine(unravel(flat), rest), x, nodes).sum()

        evaluate = jax.jit(jax.value_and_grad(loss))

        def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = evaluate(flat)
            return float(value), np.asarray(gradient)

        found = minimize(value_and_gradient, np.asarray(flat), jac=True, options={"gtol": GTOL})
        if not np.abs(found.jac).max() <= 10 * GTOL:
            raise RuntimeError(f"the search for the maximum of the likelihood failed: {found}")
        # The Hessian by central differences of the exact gradient, in double precision.
        hessian = np.stack(
            [
                (value_and_gradient(found.x + e)[1] - value_and_gradient(found.x - e)[1]) / 2e-4
                for e in 1e-4 * np.eye(len(flat))
            ]
        )
        covariance = np.linalg.inv((hessian + hessian.T) / 2)
        best = jax.tree.map(np.asarray, unravel(jnp.asarray(found.x)))
    model = eqx.combine(jax.tree.map(jnp.asarray, best), rest)
    return Maximum(model, -float(found.fun), covariance)


def _double(tree: Tree) -> Tree:
    """The floating-point JAX arrays of a tree in double precision."""
    return jax.tree.map(
        lambda a: jnp.asarray(np.asarray(a), jnp.float64) if eqx.is_inexact_array(a) else a, tree
    )
