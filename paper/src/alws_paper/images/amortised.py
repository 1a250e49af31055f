"""Amortised learning by wake-sleep as a method, with the kernel of the paper's table for images."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key

from alws.features import Linear
from alws.fit import default_estimate
from alws.kernels import SquaredExponential
from alws.model import AnyModel, draw
from alws.regressions import KernelRidge, Regression
from alws.wake_sleep import ALWS_F, Adapt, WakeSleep
from alws_paper.images.protocol import MethodState


@dataclass(frozen=True)
class Amortised:
    """ALWS on any model: `start(key)` gives its first parameters.

    The kernel is squared exponential on a linear projection with batch normalisation, its bandwidth
    from the median distance of the first sleep samples.

    Example: `Amortised("ALWS-F", lambda key: GRAPHS["skip"](shape, Binary(), key=key))`.
    """

    name: str
    start: Callable[[Key[Array, ""]], AnyModel]
    adapt: Adapt = ALWS_F
    sleep_samples: int = 2000
    learning_rate: float = 1e-3
    validation_samples: int = 200
    projected: int = 300
    ridge: float = 0.1
    measure_every: int = 50

    def initialise(self, key: Key[Array, ""], data: Array) -> MethodState:
        model_key, features_key, draw_key, key = jax.random.split(key, 4)
        model = self.start(model_key)
        entries = math.prod(data.shape[1:])
        features = Linear.random(
            features_key, entries, min(entries, self.projected), batch_norm=True, scale=0.01
        )
        regression = KernelRidge(SquaredExponential(features, track=False), ridge=self.ridge)
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
