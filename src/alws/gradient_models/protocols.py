"""What the algorithm asks of a gradient model that is a linear smoother."""

from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from alws.linear_algebra import Factor


@runtime_checkable
class Smoother(Protocol):
    """A regression fitted to sleep samples: prediction = W·targets, W a function of x alone."""

    @property
    def factor(self) -> Factor:
        """The factor behind W, with the ridge it took."""
        ...

    def weights(self, x: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W at these points."""
        ...

    def predict(
        self, x: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """W·targets."""
        ...

    def pull(
        self, x: PyTree[Array], cotangents: PyTree[Float[Array, "points _"]]
    ) -> PyTree[Float[Array, "sleep _"]]:
        """Wᵀ·cotangents, of one matrix or of each of several."""
        ...

    def outside(self, x: PyTree[Array]) -> Float[Array, ""]:
        """The share of points outside the sleep samples: about 0.01 if they are alike, up to 1."""
        ...


@runtime_checkable
class GradientModel(Protocol):
    """The parameters γ of such a regression: a pytree whose float arrays can be adapted.

    One that has `check(x)` is asked at the start of a fit whether it works on the first draws.
    """

    def initialise(self, x: PyTree[Array]) -> Any:
        """γ with its scales set from a first batch of sleep observations."""
        ...

    def fit(self, x: PyTree[Array]) -> Smoother:
        """The regression on these sleep observations."""
        ...


def solver_residual(smoother: Smoother, x: PyTree[Array]) -> Float[Array, ""]:
    """How far the solves behind W at these points are from solved; 0 if they are factorised.

    A smoother whose solves are iterative has `residual(x)`, the worst ‖b − Av‖/‖b‖ of them.

    Example: `solver_residual(gradient_model.fit(sleep.x), data) < 0.01`.
    """
    if hasattr(smoother, "residual"):
        return smoother.residual(x)  # pyright: ignore
    return jnp.zeros((), smoother.factor.ridge.dtype)
