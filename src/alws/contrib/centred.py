"""An estimate without what the regression gets wrong where data and model agree.

The expected score of a model on its own draws is zero, E_{x ~ p_θ}[∇_θ log p_θ(x)] = 0, but that of
an imperfect regression of it is not. So the regression's gradient on fresh draws from the model is
taken off its gradient on the data:

    ∇_θ J̄ = mean over data of ∇_θ Ĵ(x*) − mean over fresh x' ~ p_θ of ∇_θ Ĵ(x').

It is then zero on average when the model is the truth, whatever the kernel. `Joint` is nearly so by
itself: the weights of the sleep samples are then nearly even, and their mean score is zero on
average. `Natural`, which takes part of its gradient from the data as they are, gains by it where
the likelihood is sharp and the regression's error is divided by a small variance.
"""

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key, PyTree

from alws.estimates import Estimate, Weights
from alws.model import AnyModel, Draws, draw
from alws.regressions.base import Smoother
from alws.validation import at_least


class Centred(Estimate):
    """Another estimate with its mean gradient on `points` fresh draws taken off.

    Example: `alws.Settings(estimate=Centred(alws.estimates.Natural(), points=500))`.
    """

    estimate: Estimate
    points: int = eqx.field(static=True)

    def __init__(self, estimate: Estimate, points: int):
        at_least("points", points, 2)
        self.estimate = estimate
        self.points = points

    def weigh(
        self,
        model: AnyModel,
        smoother: Smoother | None,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> Weights:
        """The weights for the data, and for fresh draws."""
        if key is None:
            raise ValueError("`Centred.weigh` must be given a key for its fresh draws, got None.")
        fresh, _ = draw(model, key, self.points, condition)
        weights = self.estimate.weigh(model, smoother, sleep, x, condition)
        own = self.estimate.weigh(model, smoother, sleep, fresh.x, condition)
        return Weights(weights.mean, (weights.rest, own))

    def objective(
        self, model: AnyModel, sleep: Draws, weights: Weights, condition: PyTree | None
    ) -> Float[Array, ""]:
        """J̄ of the data, differentiated with that of the fresh draws taken off."""
        rest, own = weights.rest
        value = self.estimate.objective(model, sleep, Weights(weights.mean, rest), condition)
        centre = self.estimate.objective(model, sleep, own, condition)
        return value - centre + jax.lax.stop_gradient(centre)

    def predict(
        self,
        model: AnyModel,
        smoother: Smoother | None,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
    ) -> Float[Array, " points"]:
        """As the estimate predicts."""
        return self.estimate.predict(model, smoother, sleep, x, condition)
