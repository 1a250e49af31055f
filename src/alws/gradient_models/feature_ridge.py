"""Ridge regression on d features that stand for a kernel, k(x, x') ≈ φ(x)·φ(x'):

    Ĵ(x*) = φ(x*)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ y,

which is kernel ridge regression with the kernel φ(x)·φ(x') for N d² instead of N³. λ and the
intercept mean what they mean in `KernelRidge`. `Nystrom` and `RandomFeatures` differ in φ alone.
"""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from alws.blocks import by_blocks
from alws.gradient_models.distances import share_outside
from alws.kernels import Kernel
from alws.linear_algebra import Factor, factorise, solve
from alws.sharding import over_devices


class FeatureMap(eqx.Module):
    """φ, of a batch that the kernel has embedded and placed, row by row."""

    @abstractmethod
    def __call__(self, a: PyTree[Array]) -> Float[Array, "n features"]:
        """φ of every member of the batch."""


class FittedFeatureRidge(eqx.Module):
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

    def _place(self, x: PyTree[Array]) -> Float[Array, "points features"]:
        points = self.kernel.place(self.kernel.embed(x))
        if self.draw_in:
            points = self.kernel.draw_in(points, self.embedded)
        return self.features(points)

    def _solve(self, b: Float[Array, "features targets"]) -> Float[Array, "features targets"]:
        return solve(self.covariance, self.ridge, self.factor, b)

    def weights(self, x: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W = φ (ΦᵀΦ + λI)⁻¹ Φᵀ, and with an intercept + (1 − W1)/N."""
        plain = (self.placed @ self._solve(self._place(x).T)).T
        if not self.intercept:
            return plain
        return plain + (1 - plain.sum(axis=1, keepdims=True)) / plain.shape[1]

    def predict(
        self, x: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """W·targets."""
        mean = targets.mean(axis=0) if self.intercept else jnp.zeros(())
        return self._place(x) @ self._solve(self.placed.T @ (targets - mean)) + mean

    def pull(
        self, x: PyTree[Array], cotangents: Float[Array, "points targets"]
    ) -> Float[Array, "sleep targets"]:
        """Wᵀ·cotangents. Solves for the fewer columns."""
        points, targets = cotangents.shape
        if targets >= points:
            return self.weights(x).T @ cotangents
        plain = self.placed @ self._solve(self._place(x).T @ cotangents)
        if not self.intercept:
            return plain
        return plain + (cotangents.sum(axis=0) - plain.sum(axis=0)) / plain.shape[0]

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
        kernel,
        features,
        embedded,
        placed,
        gram,
        ridge,
        factorise(gram, ridge),
        intercept,
        draw_in,
    )
