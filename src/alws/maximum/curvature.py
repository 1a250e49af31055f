"""The observed information on θ, −∇² Σ_m log p_θ(x_m), by sums and weighted points.

The gradient of log p̂ is taken a little to either side along every parameter, on points that follow
θ. Independent sets of points say how noisy that is.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from alws.maximum.maximise import FEW, MISSED, Climber, NotIntegrable, check_parameters
from alws.model import AnyModel

AWAY = 0.03
"""How far each parameter is moved, in standard errors that complete data would leave."""

MOST_GRADIENTS = 2000
"""The most gradients of the log likelihood that are taken."""


class Information(NamedTuple):
    """−∇² log p̂ on each independent set of points, and the information of complete data."""

    observed: Float[np.ndarray, "sets parameters parameters"]
    complete: Float[np.ndarray, "parameters parameters"]


def observed_information(
    model: AnyModel,
    data: PyTree[np.ndarray],
    *,
    key: Key[Array, ""],
    conditions: PyTree | None = None,
    sets: int = 4,
) -> Information:
    """What all observations tell of θ at a model as it is, parameters as `ravel_pytree` has them.

    Raises `NotIntegrable` where posteriors cannot be summed or integrated, or points miss some.

    Arguments:
        model, data, key, conditions: as `alws.fit` takes them, checked.
        sets: how many independent sets of points.

    Example: `observed_information(model, data, key=jax.random.key(0)).observed.mean(axis=0)`.
    """

    def attempt(wide: bool) -> Information:
        with jax.enable_x64(wide or jnp.zeros(()).dtype == jnp.float64):
            return _measured(Climber(model, data, key=key, conditions=conditions), sets)

    try:
        return attempt(True)
    except (TypeError, ValueError):
        return attempt(False)


def _measured(climber: Climber, sets: int) -> Information:
    check_parameters(climber.p)
    if 2 * climber.p * sets > MOST_GRADIENTS:
        raise NotIntegrable(f"{climber.p} parameters are many to be moved one by one")
    climber.look()
    climber.adapt()
    if climber.dimension:
        climber.adapt()
        climber.evaluation([climber.design()])(climber.theta)
    climber.measure()
    assert climber.whole is not None
    if not np.diag(climber.whole).all():
        raise NotIntegrable("some parameters play no part in what the model simulates")
    if climber.dimension:
        climber.style_points()
        if climber.share_missed() > MISSED:
            raise NotIntegrable("the points miss latents of simulated data")
        if climber.share_too_sharp() > FEW:
            raise NotIntegrable("posteriors are too narrow for the precision of numbers")
    unit = AWAY / np.sqrt(np.diag(climber.whole))
    found = [
        _differences(climber.evaluation([climber.design()]), climber.theta, unit)
        for _ in range(sets if climber.dimension else 1)  # sums are what they are
    ]
    observed = np.resize(found, (sets, climber.p, climber.p))
    return Information(observed, climber.whole)


def _differences(
    evaluate: Callable[[np.ndarray], tuple], theta: np.ndarray, unit: np.ndarray
) -> Float[np.ndarray, "parameters parameters"]:
    """Central differences of the gradient, made symmetric."""
    rows = [
        (evaluate(theta - move)[1] - evaluate(theta + move)[1]) / (2 * step)
        for step, move in zip(unit, np.diag(unit), strict=True)
    ]
    matrix = np.stack(rows)
    if not np.isfinite(matrix).all():
        raise NotIntegrable("the gradient of the log likelihood is not finite")
    return (matrix + matrix.T) / 2
