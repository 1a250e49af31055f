"""An over-dispersed start, §3.5: a model whose samples reach the data before the fit begins.

Maximum likelihood punishes a model narrower than the data more than one that is too wide, so noise
that covers the data at the start goes on covering them. Which parameters are log scales only the
user knows; how far to raise them the data say: by the least δ ≥ 0 for which at most a given share
of the data lies outside the sleep samples (`Smoother.outside`), on average over S sets of them,

    δ* = min {δ : (1/S) Σ_s outside(data; sleep samples s of the model raised by δ) ≤ share}.

One set alone may have a lucky draw near a distant cloud of data. The share need not fall steadily
with δ, so δ goes up by steps until one is enough, and bisection finds where within that step. All δ
are tried with the same random numbers.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.features import follow
from alws.fit import default_regression
from alws.model import AnyModel, draw
from alws.regressions.base import Regression, check_regression, one_lapack_thread
from alws.validation import (
    FEWEST_SLEEP_SAMPLES,
    check_cost,
    check_data,
    check_model,
    match_data,
)
from alws.values import at_least, check_key, function, number

STEP = math.log(1.25)
"""How far the log scales are raised at a time in the search for a width that is enough."""

TRIALS = 8
"""How often that step is halved."""


def over_dispersed(
    model: AnyModel,
    data: PyTree,
    *,
    where: Callable[[Any], Any],
    key: Key[Array, ""],
    share: float = 0.05,
    widen: float = 1000.0,
    sleep_samples: int = 500,
    sleep_sets: int = 16,
    regression: Regression | None = None,
    condition: PyTree | None = None,
) -> Any:
    """A model with some log scales raised until its samples reach the data.

    All of them are raised by the same δ. A model that covers its data comes back as it is; one that
    cannot is refused.

    Arguments:
        model: the model at its start.
        data: the observations, as leading axis.
        where: `where(model)` has the log scales, one leaf or several as in `eqx.tree_at`.
        key: a JAX key.
        share: the most of the data that may lie outside the draws, on average over sets of them;
            data like the draws themselves have a share of 0.01.
        widen: δ is at most the log of this.
        sleep_samples, sleep_sets: how many draws a set has, and how many sets there are.
        regression: whose `outside` is asked; the default one.
        condition: one condition, of all observations, if the model takes one.

    Example:
        >>> start = alws.contrib.over_dispersed(model, data, where=lambda m: m.log_noise, key=key)
        >>> result = alws.fit(start, data, key=key)
    """
    check_key(key)
    check_model(model)
    check_data(data)
    at_least("sleep_samples", sleep_samples, FEWEST_SLEEP_SAMPLES)
    at_least("sleep_sets", sleep_sets, 1)
    number("share", share, "between 0 and 1", lambda s: 0 < s < 1, " 0.05 is usual.")
    number("widen", widen, "greater than 1", lambda w: 1 < w < math.inf, " Scales are only raised.")
    function("where", where, "of the model, that gives some of its arrays")
    for leaf in jax.tree.leaves(where(model)):
        if not eqx.is_inexact_array(leaf):
            raise ValueError(
                "`where` must name floating-point arrays of the model, the logarithms of its "
                f"scales; got {leaf!r}."
            )
    data = match_data(model, data, key, condition)
    if regression is None:
        regression = default_regression(data, key)
    check_regression(regression)
    check_cost(regression, sleep_samples)
    measure = eqx.filter_jit(partial(_outside, where, sleep_samples, sleep_sets))

    def outside(raised: float) -> float:
        shift = jnp.asarray(raised, float)
        return float(measure(model, regression, data, shift, key, condition))

    with one_lapack_thread():
        shares = [outside(0.0)]
        if shares[0] <= share:
            return model
        heights = [0.0]
        while shares[-1] > share and heights[-1] < math.log(widen):
            heights.append(min(heights[-1] + STEP, math.log(widen)))
            shares.append(outside(heights[-1]))
        if shares[-1] > share:
            least = min(range(len(shares)), key=shares.__getitem__)
            raise ValueError(
                f"at most {share:.0%} of the data should lie outside the model's samples; with the "
                f"scales up to {widen:g} times as wide it is {shares[least]:.0%} at best, on "
                f"average over {sleep_sets} sets of samples, at {math.exp(heights[least]):.3g} "
                "times. Name other log scales in `where`, allow a larger `widen` or `share`, take "
                "more `sleep_samples`, or start with a location nearer to the data."
            )
        low, high = heights[-2:]
        for _ in range(TRIALS):
            middle = (low + high) / 2
            low, high = (low, middle) if outside(middle) <= share else (middle, high)
    return _raised(where, model, jnp.asarray(high, float))


def _raised(where: Callable[[Any], Any], model: AnyModel, shift: Float[Array, ""]) -> Any:
    return eqx.tree_at(where, model, replace_fn=lambda leaf: leaf + shift.astype(leaf.dtype))


def _outside(
    where: Callable[[Any], Any],
    number: int,
    sets: int,
    model: AnyModel,
    regression: Any,
    data: PyTree,
    shift: Float[Array, ""],
    key: Key[Array, ""],
    condition: PyTree | None,
) -> Float[Array, ""]:
    """The share of the data outside the samples of a model with raised scales, averaged."""
    model = _raised(where, model, shift)

    def one(key: Key[Array, ""]) -> Array:
        sleep, _ = draw(model, key, number, condition)
        started = follow(regression, model).initialise(sleep.x)
        return started.fit(sleep.x).outside(data)

    return jax.lax.map(one, jax.random.split(key, sets)).mean()
