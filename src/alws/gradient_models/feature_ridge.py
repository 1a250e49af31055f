"""Ridge regression on d features that stand for a kernel, k(x, x') ≈ φ(x)·φ(x'):

    Ĵ(x*) = φ(x*)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ y,

which is kernel ridge regression with the kernel φ(x)·φ(x') for N d² instead of N³. λ and the
intercept mean what they mean in `KernelRidge`. `Nystrom` and `RandomFeatures` differ in φ alone.
"""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from alws.blocks import by_blocks
from alws.gradient_models.distances import share_outside
from alws.gradient_models.with_intercept import WithIntercept
from alws.kernels import Kernel
from alws.linear_algebra import Factor, factorise, solve
from alws.sharding import over_devices


class FeatureMap(eqx.Module):
    """φ, of a batch that the kernel has embedded and placed, row by row."""

    @abstractmethod
    def __call__(self, a: PyTree[Array]) -> Float[Array, "n features"]:
        """φ of every member of the batch."""


class FittedFeatureRidge(WithIntercept):
    """The regression on one set of sleep samples: a linear smoother, prediction = W·targets."""

    kernel: Kernel
    features: FeatureMap
    embedded: PyTree[Array]
    placed: Float[Array, "sleep features"]
    covariance: Float[Array, "features features"]
    ridge: Float[Array, ""]
    factor: Factor
    intercept: bool = eqx.field(static=True)
    draw_in: bool = eqx.field(static=True)

    def _solve(self, b: Float[Array, "features targets"]) -> Float[Array, "features targets"]:
        return solve(self.covariance, self.ridge, self.factor, b)

    def plain_weights(self, points: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W = φ (ΦᵀΦ + λI)⁻¹ Φᵀ."""
        return (self.placed @ self._solve(self.features(points).T)).T

    def plain_predict(
        self, points: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """φ (ΦᵀΦ + λI)⁻¹ Φᵀ·targets."""
        return self.features(points) @ self._solve(self.placed.T @ targets)

    def plain_pull(
        self, points: PyTree[Array], cotangents: Float[Array, "points targets"]
    ) -> Float[Array, "sleep targets"]:
        """Φ (ΦᵀΦ + λI)⁻¹ φᵀ·cotangents."""
        return self.placed @ self._solve(self.features(points).T @ cotangents)

    def outside(self, x: PyTree[Array]) -> Float[Array, ""]:
        """The share of points farther from the nearest sleep sample than 99 % of these are."""
        points = self.kernel.place(self.kernel.embed(x))
        return share_outside(self.kernel, self.embedded, points)


ROWS = 4096
"""How many sleep samples are taken to their features at once."""


def fit_features(
    kernel: Kernel,
    features: FeatureMap,
    embedded: PyTree[Array],
    ridge: Float[Array, ""],
    *,
    intercept: bool,
    draw_in: bool,
    correction: Float[Array, "features features"] | None = None,
) -> FittedFeatureRidge:
    """Factorise ΦᵀΦ + λI, after adding a correction to ΦᵀΦ if there is one.

    Example: `fit_features(kernel, features, kernel.embed(x), ridge, intercept=True, draw_in=True)`.
    """
    placed = over_devices(by_blocks(features, embedded, ROWS))
    gram = placed.T @ placed
    if correction is not None:
        gram = gram + correction
    ridge = ridge.astype(gram.dtype)
    return FittedFeatureRidge(
        kernel=kernel,
        features=features,
        embedded=embedded,
        placed=placed,
        covariance=gram,
        ridge=ridge,
        factor=factorise(gram, ridge),
        intercept=intercept,
        draw_in=draw_in,
    )
