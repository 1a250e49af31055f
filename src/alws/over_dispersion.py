"""An over-dispersed start, §3.5: a model whose samples reach the data before the fit begins.

Maximum likelihood punishes a model narrower than the data more than one that is too wide, so noise
that covers the data at the start goes on covering them. Which parameters are log scales only the
user knows; how far to raise them the data say: by the least δ ≥ 0 for which at most a given share
of the data lies outside the sleep samples (`Smoother.outside`), found by bisection.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws import defaults
from alws.checks import FEWEST_SLEEP_SAMPLES, at_least, check_data, check_model, match_data
from alws.features import follow
from alws.gradient_models.protocols import GradientModel
from alws.model import draw
from alws.runtime import compiled, one_lapack_thread

TRIALS = 12


def over_dispersed(
    model: Any,
    data: PyTree,
    *,
    where: Callable[[Any], Any],
    key: Key[Array, ""],
    share: float = 0.05,
    widen: float = 1000.0,
    sleep_samples: int = 500,
    gradient_model: GradientModel | None = None,
    condition: PyTree | None = None,
) -> Any:
    """The model with the log scales `where(model)` raised until its samples reach the data.

    All of them, one leaf or several as in `eqx.tree_at`, are raised by the same δ, at most
    log `widen`, until at most `share` of the data lies outside `sleep_samples` draws; data like the
    draws themselves have a share of 0.01. A model that covers its data comes back as it is.

    Example:
        >>> start = alws.over_dispersed(model, data, where=lambda m: m.log_noise, key=key)
        >>> result = alws.fit(start, data, key=key, steps=2000)
    """
    check_model(model)
    check_data(data)
    at_least("sleep_samples", sleep_samples, FEWEST_SLEEP_SAMPLES)
    if not 0 < share < 1:
        raise ValueError(f"`share` must lie between 0 and 1, got {share}; 0.05 is usual.")
    if not widen > 1:
        raise ValueError(f"`widen` must be greater than 1, got {widen}: scales are only raised.")
    for leaf in jax.tree.leaves(where(model)):
        if not eqx.is_inexact_array(leaf):
            raise ValueError(
                "`where` must name floating-point arrays of the model, the logarithms of its "
                f"scales; got {leaf!r}."
            )
    data = match_data(model, data, key, condition)
    if gradient_model is None:
        gradient_model = defaults.gradient_model(data, key)
    measure = compiled(partial(_outside, where, sleep_samples))

    def outside(raised: float) -> float:
        shift = jnp.asarray(raised, float)
        return float(measure(model, gradient_model, data, shift, key, condition))

    with one_lapack_thread():
        if outside(0.0) <= share:
            return model
        low, high = 0.0, math.log(widen)
        reached = outside(high)
        if reached > share:
            raise ValueError(
                f"{reached:.0%} of the data lie outside the model's samples even with the scales "
                f"{widen:g} times as wide; at most {share:.0%} should. Name other log scales in "
                "`where`, allow a larger `widen`, or start with a location nearer to the data."
            )
        for _ in range(TRIALS):
            middle = (low + high) / 2
            low, high = (low, middle) if outside(middle) <= share else (middle, high)
    return _raised(where, model, jnp.asarray(high, float))


def _raised(where: Callable[[Any], Any], model: Any, shift: Float[Array, ""]) -> Any:
    return eqx.tree_at(where, model, replace_fn=lambda leaf: leaf + shift.astype(leaf.dtype))


def _outside(
    where: Callable[[Any], Any],
    number: int,
    model: Any,
    gradient_model: Any,
    data: PyTree,
    shift: Float[Array, ""],
    key: Key[Array, ""],
    condition: PyTree | None,
) -> Float[Array, ""]:
    """The share of the data outside the samples of a model with raised scales."""
    model = _raised(where, model, shift)
    sleep, _ = draw(model, key, number, condition)
    regression = follow(gradient_model, model).initialise(sleep.x)
    return regression.fit(sleep.x).outside(data)
