"""Do learnt parameters match those of the generator, as far as the data can tell?

A fit is compared with the generator in units of the standard errors of the exact estimate, and in
nats with the exact maximum of the likelihood on the same data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from alws.model import ExponentialFamilyModel
from alws_paper.hyperbolic.manifolds.quadrature import Nodes
from alws_paper.hyperbolic.marginal import maximum_likelihood, total_log_likelihood


class Parameter(NamedTuple):
    """One parameter, a number or a vector, of the generator and of two estimates.

    `error` is the standard error of the exact estimate; for a vector, the root of the sum of
    squares of its entries'.
    """

    truth: np.ndarray
    exact: np.ndarray
    learnt: np.ndarray
    error: float

    @property
    def off(self) -> float:
        """How far the learnt value is from the generator's."""
        return float(np.linalg.norm(np.atleast_1d(self.learnt - self.truth)))


class Recovery(NamedTuple):
    """Each parameter, and the nats that the learnt model's likelihood of all data lacks.

    On average the generator itself lacks `sampling_cost` = half a nat for each parameter.
    """

    parameters: dict[str, Parameter]
    nats: float
    sampling_cost: float


def recovery(
    truth: ExponentialFamilyModel,
    learnt: ExponentialFamilyModel,
    x: Float[Array, "points ..."],
    nodes: Nodes,
    describe: Callable[[Any], dict[str, Array]],
) -> Recovery:
    """Compare a fit with its generator; `describe(model)` names the parameters to look at.

    Example: `recovery(truth, result.model, x, sphere_nodes(), lambda m: {"kappa": m.kappa})`.
    """
    exact = maximum_likelihood(truth, x, nodes)
    nats = exact.log_likelihood - total_log_likelihood(learnt, x, nodes)
    arrays, rest = eqx.partition(truth, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(arrays)
    slopes = jax.jacobian(lambda flat: describe(eqx.combine(unravel(flat), rest)))(flat)

    def error(slope: Array) -> float:
        rows = jnp.atleast_2d(slope)
        return float(np.sqrt(np.trace(rows @ exact.covariance @ rows.T)))

    values = [
        {name: np.asarray(value) for name, value in describe(model).items()}
        for model in (truth, exact.model, learnt)
    ]
    generator, best, fitted = values
    parameters = {
        name: Parameter(generator[name], best[name], fitted[name], error(slopes[name]))
        for name in generator
    }
    return Recovery(parameters, nats, len(exact.covariance) / 2)
