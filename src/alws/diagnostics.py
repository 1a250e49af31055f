"""How far a regression on sleep samples can be trusted on the data.

- held-out R²: the share of the variance of log p(z, x) that Ĵ explains on fresh sleep samples;
- outside: the share of data points that lie outside the sleep samples (covariate shift, §3.5);
- effective samples: how many sleep samples the mean weights w̄ spread over;
- solver residual: ‖b − (K + λI)v‖/‖b‖ of the wake phase's solves by conjugate gradients, at its
  worst; near 1 nothing was solved. 0 for regressions that factorise.
"""

import warnings
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Diagnostics(NamedTuple):
    """Means over the last tenth of a fit's measurements; the worst and totals over the whole fit.

    `refused_steps` are those on which the update of θ, or of γ, was not finite and was left out.
    """

    held_out_r2: float
    outside: float
    effective_samples: float
    solver_residual: float
    refused_steps: int
    ridge_escalations: int
    replaced_draws: int


MANY_REFUSED = 0.1
"""The share of refused steps from which on a fit is not to be trusted."""


def warn_of_refusals(refused: int, steps: int) -> None:
    """Say so when many of a fit's steps were refused: θ may have stood still.

    Example: `warn_of_refusals(1234, 1300)` warns, `warn_of_refusals(3, 1300)` does not.
    """
    if refused > MANY_REFUSED * steps:
        warnings.warn(
            f"the gradient must be finite; on {refused} of {steps} steps it was not, and they were "
            "left out, so the fit may have stood still. Check that `log_joint` is finite on every "
            "draw at the fitted parameters (log of 0, overflow), or take smaller steps.",
            RuntimeWarning,
            stacklevel=4,
        )


def effective_samples(weights: Float[Array, " sleep"]) -> Float[Array, ""]:
    """(Σ|w|)²/Σw²: N for equal weights, 1 when a single sample has them all."""
    tiny = jnp.finfo(weights.dtype).tiny
    return jnp.abs(weights).sum() ** 2 / jnp.maximum((weights**2).sum(), tiny)
