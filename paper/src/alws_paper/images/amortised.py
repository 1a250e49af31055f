"""Amortised learning by wake-sleep as a method, with the regression of the paper's table or not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key

from alws.estimates import default_estimate
from alws.fit import default_regression
from alws.model import AnyModel, draw
from alws.regressions import AsPublished, Regression
from alws.wake_sleep import ALWS_F, Adapt, WakeSleep
from alws_paper.images.protocol import MethodState

PUBLISHED = AsPublished(ridge=0.1, projections=300, batch_norm=True)
"""The row of the paper's table that all sets of images share."""


@dataclass(frozen=True)
class Amortised:
    """ALWS on any model: `start(key)` gives its first parameters.

    `published` is the regression as the paper's table has it: plain kernel ridge regression with a
    squared exponential kernel on a linear projection with batch normalisation, its bandwidth from
    the median distance of the first sleep samples. None is the library's own regression.

    Example: `Amortised("ALWS-F", lambda key: GRAPHS["skip"](shape, Binary(), key=key))`.
    """

    name: str
    start: Callable[[Key[Array, ""]], AnyModel]
    adapt: Adapt = ALWS_F
    sleep_samples: int = 2000
    learning_rate: float = 1e-3
    validation_samples: int = 200
    published: AsPublished | None = PUBLISHED
    measure_every: int = 50

    def initialise(self, key: Key[Array, ""], data: Array) -> MethodState:
        model_key, features_key, draw_key, key = jax.random.split(key, 4)
        model = self.start(model_key)
        make = default_regression if self.published is None else self.published.make
        regression = make(data, features_key)
        draws, _ = draw(model, draw_key, self.sleep_samples)
        state = self._algorithm(model, regression).init(model, draws)
        return MethodState(state, (), key, state.step, jnp.full((), jnp.nan))

    def step(self, state: MethodState, batch: Array) -> MethodState:
        key, now = jax.random.split(state.key)
        learnt = state.learnt
        algorithm = self._algorithm(learnt.model, learnt.regression)
        learnt, info = algorithm.step(learnt, batch, now)
        return MethodState(learnt, (), key, learnt.step, info.objective)

    def generator(self, state: MethodState) -> Any:
        return state.learnt.model

    def _algorithm(self, model: AnyModel, regression: Regression) -> WakeSleep:
        return WakeSleep(
            regression,
            default_estimate(model),
            optax.adam(self.learning_rate),
            sleep_samples=self.sleep_samples,
            validation_samples=self.validation_samples,
            adapt=self.adapt,
            measure_every=self.measure_every,
        )


__all__ = ["Amortised"]
