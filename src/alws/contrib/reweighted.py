"""Ridge regression with weights on the sleep samples, for data that lie where these are rare:

    min over f of Σ_n w_n (y_n − f(x_n))² + λ‖f‖²,   Ĵ(x*) = k*ᵀ S (S K S + λI)⁻¹ S y,  S = diag √w,

which is the plain regression of √w y with the kernel √w k(x, x') √w', stable when weights are zero.
So any regression with a kernel can be had with weights. The intercept is the weighted mean of the
targets: Ĵ's weights sum to one, W + (1 − W1) w/Σw. Weights come from `alws.contrib.shift`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.contrib.shift import Shift
from alws.kernels.base import FeatureMap, Kernel
from alws.regressions.base import Regression, Smoother, SolveReport
from alws.regressions.kernel_ridge import KernelRidge
from alws.regressions.nystrom import Nystrom
from alws.regressions.representatives import share_outside
from alws.values import instance, yes_or_no


class Reweighted(Regression):
    """A kernel regression with weights for each sleep sample; its parameters are γ = (kernel, λ).

    Arguments:
        kernel: of the observations, with its bandwidth at the start.
        by: where the weights come from, `MeanMatching()` or `DensityRatio()`.
        ridge, intercept, clip: as `KernelRidge` takes them.
        regression: makes the regression behind it: `KernelRidge`, or for instance
            `partial(alws.regressions.Nystrom, inducing=300)`.

    Example: `Reweighted(SquaredExponential(), by=alws.contrib.MeanMatching(), ridge=0.01)`.
    """

    regression: Any
    by: Shift
    intercept: bool = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        *,
        by: Shift,
        ridge: float = 0.01,
        regression: Callable[..., Any] = KernelRidge,
        intercept: bool = True,
        clip: bool = True,
    ):
        self.regression = regression(kernel, ridge=ridge, intercept=False, clip=clip)
        if isinstance(self.regression, Nystrom) and self.regression.selection == "learnt":
            raise ValueError(
                "inducing points of a reweighted regression must be sleep samples, got "
                '`selection="learnt"`: each has its sample\'s weight. Use `selection="leverage"`.'
            )
        remedy = "Use `alws.contrib.MeanMatching()`."
        instance("by", by, Shift, "a way to weigh the sleep samples", remedy)
        yes_or_no("intercept", intercept)
        self.by = by
        self.intercept = intercept

    def initialise(self, x: PyTree[Array]) -> "Reweighted":
        """γ with the bandwidth set from a first batch of sleep observations."""
        return eqx.tree_at(lambda g: g.regression, self, self.regression.initialise(x))

    def check(self, x: PyTree[Array]) -> None:
        """Refuse a regression whose solves fail on these observations, if it can tell."""
        self.regression.check(x)

    def bandwidths(self) -> list[Any]:
        return self.regression.bandwidths()

    def ridges(self) -> list[Any]:
        return self.regression.ridges()

    def fit(self, x: PyTree[Array], wake: PyTree[Array] | None = None) -> "FittedReweighted":
        """The regression on sleep observations x with weights for these data, held constant.

        Without any, every weight is one.
        """
        embedded = self.regression.kernel.embed(x)
        kernel = self.regression.kernel.scale_to(embedded)
        if wake is None:
            gram = jax.eval_shape(lambda: kernel.evaluate(embedded, embedded))
            return self.fit_weighted(x, jnp.ones(gram.shape[0], gram.dtype))
        points = kernel.embed(wake)
        if self.regression.clip:
            points = kernel.clip_to_range(points, embedded)
        arrays, rest = eqx.partition((kernel, embedded, points), eqx.is_array)
        weights = self.by(*eqx.combine(jax.lax.stop_gradient(arrays), rest))
        return self.fit_weighted(x, jax.lax.stop_gradient(weights))

    def fit_weighted(self, x: PyTree[Array], weights: Float[Array, " sleep"]) -> "FittedReweighted":
        """The regression with these weights, none of them negative, not all zero."""
        kernel = Scaled(self.regression.kernel)
        regression = eqx.tree_at(lambda r: r.kernel, self.regression, kernel)
        root = jnp.sqrt(weights)
        share = weights / weights.sum()
        return FittedReweighted(regression.fit((x, root)), root, share, self.intercept)


class Scaled(Kernel):
    """k of two pairs (x, r): r k(x, x') r'.

    Example: `Scaled(SquaredExponential())((x, root), (x, root))`.
    """

    kernel: Kernel

    def embed(self, x: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
        return self.kernel.embed(x[0]), x[1]

    def evaluate(self, a: tuple[PyTree, Array], b: tuple[PyTree, Array]) -> Float[Array, "n m"]:
        return a[1][:, None] * self.kernel.evaluate(a[0], b[0]) * b[1]

    def initialise(self, x: tuple[PyTree, Array]) -> "Scaled":
        return Scaled(self.kernel.initialise(x[0]))

    def scale_to(self, sleep: tuple[PyTree, Array]) -> "Scaled":
        return Scaled(self.kernel.scale_to(sleep[0]))

    def clip_to_range(
        self, a: tuple[PyTree, Array], sleep: tuple[PyTree, Array]
    ) -> tuple[PyTree, Array]:
        return self.kernel.clip_to_range(a[0], sleep[0]), a[1]

    def bandwidths(self) -> list[Any]:
        return self.kernel.bandwidths()

    def draw_features(
        self, key: Key[Array, ""], number: int, sleep: tuple[PyTree, Array]
    ) -> FeatureMap:
        return Weighted(self.kernel.draw_features(key, number, sleep[0]))


class Weighted(FeatureMap):
    """φ of pairs (a, r), r φ(a)."""

    features: FeatureMap

    def __call__(self, a: tuple[PyTree, Float[Array, " n"]]) -> Float[Array, "n features"]:
        return a[1][:, None] * self.features(a[0])


class FittedReweighted(Smoother):
    """The regression on one set of sleep samples: a linear smoother, prediction = W·targets."""

    plain: Any
    root: Float[Array, " sleep"]
    share: Float[Array, " sleep"]
    intercept: bool = eqx.field(static=True)

    def _pair(self, x: PyTree[Array]) -> tuple[PyTree, Array]:
        return x, jnp.ones(jax.tree.leaves(x)[0].shape[0], self.root.dtype)

    def weights(self, x: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W: how much each sleep sample counts for each point."""
        plain = self.plain.weights(self._pair(x)) * self.root
        if not self.intercept:
            return plain
        return plain + (1 - plain.sum(axis=1, keepdims=True)) * self.share

    def predict(
        self, x: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """W·targets."""
        mean = self.share @ targets if self.intercept else jnp.zeros(())
        return self.plain.predict(self._pair(x), self.root[:, None] * (targets - mean)) + mean

    def predict_vjp(
        self, x: PyTree[Array], cotangents: PyTree[Float[Array, "points _"]]
    ) -> PyTree[Float[Array, "sleep _"]]:
        """Wᵀ·cotangents."""

        def one(pulled: Array, columns: Array) -> Array:
            plain = self.root[:, None] * pulled
            if not self.intercept:
                return plain
            return plain + self.share[:, None] * (columns.sum(axis=0) - plain.sum(axis=0))

        return jax.tree.map(one, self.plain.predict_vjp(self._pair(x), cotangents), cotangents)

    def outside(self, x: PyTree[Array]) -> Float[Array, ""]:
        """The share of points farther from the nearest sleep sample than 99 % of these are."""
        kernel = self.plain.kernel.kernel
        return share_outside(kernel, self.plain.embedded[0], kernel.embed(x))

    def report(self, x: PyTree[Array]) -> SolveReport:
        """How the regression behind it was solved."""
        return self.plain.report(self._pair(x))
