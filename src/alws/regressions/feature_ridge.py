"""Ridge regression on d features that stand for a kernel, k(x, x') ≈ φ(x)·φ(x'):

    Ĵ(x*) = φ(x*)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ y,

which is kernel ridge regression with the kernel φ(x)·φ(x') for N d² instead of N³. λ and the
intercept mean what they mean in `KernelRidge`. `Nystrom` and `RandomFeatures` differ in φ alone.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from alws.devices import by_blocks, over_devices
from alws.kernels.base import FeatureMap, Kernel
from alws.regressions.base import Factor, KernelSmoother, SolveReport, factorise, solve
from alws.regressions.representatives import share_outside


class FittedFeatureRidge(KernelSmoother):
    """The regression on one set of sleep samples: a linear smoother, prediction = W·targets."""

    kernel: Kernel
    features: FeatureMap
    embedded: PyTree[Array]
    mapped: Float[Array, "sleep features"]
    covariance: Float[Array, "features features"]
    ridge: Float[Array, ""]
    factor: Factor
    raised: Int[Array, ""] | int
    intercept: bool = eqx.field(static=True)
    clip: bool = eqx.field(static=True)

    def _solve(self, b: Float[Array, "features targets"]) -> Float[Array, "features targets"]:
        return solve(self.covariance, self.ridge, self.factor, b)

    def plain_weights(self, points: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W = φ (ΦᵀΦ + λI)⁻¹ Φᵀ."""
        return (self.mapped @ self._solve(self.features(points).T)).T

    def plain_predict(
        self, points: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """φ (ΦᵀΦ + λI)⁻¹ Φᵀ·targets."""
        return self.features(points) @ self._solve(self.mapped.T @ targets)

    def plain_predict_vjp(
        self, points: PyTree[Array], cotangents: Float[Array, "points targets"]
    ) -> Float[Array, "sleep targets"]:
        """Φ (ΦᵀΦ + λI)⁻¹ φᵀ·cotangents."""
        return self.mapped @ self._solve(self.features(points).T @ cotangents)

    def outside(self, x: PyTree[Array]) -> Float[Array, ""]:
        """The share of points farther from the nearest sleep sample than 99 % of these are."""
        return share_outside(self.kernel, self.embedded, self.kernel.embed(x))

    def report(self, x: PyTree[Array]) -> SolveReport:
        """The ridge its factor took, and how often it was raised."""
        residual = jnp.zeros((), self.ridge.dtype)
        return SolveReport(self.factor.ridge, self.factor.escalations + self.raised, residual)


ROWS = 4096
"""How many sleep samples are taken to their features at once."""


def fit_features(
    kernel: Kernel,
    features: FeatureMap,
    embedded: PyTree[Array],
    ridge: Float[Array, ""],
    *,
    intercept: bool,
    clip: bool,
    correction: Float[Array, "features features"] | None = None,
    raised: Int[Array, ""] | int = 0,
) -> FittedFeatureRidge:
    """Factorise ΦᵀΦ + λI, after adding a correction to ΦᵀΦ if there is one.

    `raised` counts escalations of the ridge on the way to the features.

    Example: `fit_features(kernel, features, kernel.embed(x), ridge, intercept=True, clip=True)`.
    """
    mapped = over_devices(by_blocks(features, embedded, ROWS))
    gram = mapped.T @ mapped
    if correction is not None:
        gram = gram + correction
    ridge = ridge.astype(gram.dtype)
    return FittedFeatureRidge(
        kernel=kernel,
        features=features,
        embedded=embedded,
        mapped=mapped,
        covariance=gram,
        ridge=ridge,
        factor=factorise(gram, ridge),
        raised=raised,
        intercept=intercept,
        clip=clip,
    )
