"""Exact kernel ridge regression, §3.2: Ĵ(x*) = k*ᵀ (K + λI)⁻¹ y, one factor for all targets.

The prediction is linear in the targets, Ĵ(x*) = W(x*) y, with weights W that depend on x alone. So
∇_θ Ĵ(x*) = W(x*) ∇_θ y: the regression of J, differentiated, is the regression of the gradient.

`ridge` is λ on the scale of the paper's table: it is added to the diagonal as it is, `K + ridge·I`,
where the paper writes λN. With an intercept the weights sum to one, W + (1 − W1)/N, so that what
does not depend on x is predicted exactly instead of being shrunk towards zero.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from alws.devices import over_devices
from alws.kernels.base import Kernel
from alws.regressions.base import (
    Cost,
    Factor,
    KernelSmoother,
    Regression,
    SolveReport,
    bytes_of,
    check_kernel,
    check_ridge,
    factorise,
    solve,
)
from alws.validation import yes_or_no


class KernelRidge(Regression):
    """Exact kernel ridge regression; its parameters are γ = (kernel, λ).

    Arguments:
        kernel: of the observations, with its bandwidth at the start.
        ridge: λ at the start, added to the diagonal of the kernel matrix as it is.
        intercept: whether the weights sum to one, so that what does not depend on x is predicted
            exactly instead of being shrunk.
        clip: whether data beyond the range of the sleep samples are moved to its edge, where the
            kernel can.

    Example: `KernelRidge(SquaredExponential(), ridge=0.01)`.
    """

    kernel: Kernel
    log_ridge: Float[Array, ""]
    intercept: bool = eqx.field(static=True)
    clip: bool = eqx.field(static=True)

    def __init__(
        self, kernel: Kernel, *, ridge: float = 0.01, intercept: bool = True, clip: bool = True
    ):
        check_kernel(kernel)
        check_ridge(ridge)
        yes_or_no("intercept", intercept)
        yes_or_no("clip", clip)
        self.kernel = kernel
        self.log_ridge = jnp.array(math.log(ridge), float)
        self.intercept = intercept
        self.clip = clip

    def initialise(self, x: PyTree[Array]) -> "KernelRidge":
        """γ with the bandwidth set from a first batch of sleep observations."""
        return eqx.tree_at(lambda g: g.kernel, self, self.kernel.initialise(x))

    def cost(self, samples: int) -> Cost:
        """K, its factor and what is made of them, N² each; N³/3 products to factorise."""
        return Cost(bytes_of(5 * samples**2 // 2), 2 * samples**3 / 3)

    def bandwidths(self) -> list[Any]:
        return self.kernel.bandwidths()

    def ridges(self) -> list[Any]:
        return [self.log_ridge]

    def fit(self, x: PyTree[Array], wake: PyTree[Array] | None = None) -> "FittedKernelRidge":
        """Factorise the Gram matrix of the sleep observations."""
        embedded = self.kernel.embed(x)
        kernel = self.kernel.scale_to(embedded)
        gram = over_devices(kernel.evaluate(embedded, embedded))
        ridge = jnp.exp(self.log_ridge).astype(gram.dtype)
        return FittedKernelRidge(
            kernel=kernel,
            embedded=embedded,
            gram=gram,
            ridge=ridge,
            factor=factorise(gram, ridge),
            intercept=self.intercept,
            clip=self.clip,
        )


class FittedKernelRidge(KernelSmoother):
    """The regression on one set of sleep samples: a linear smoother, prediction = W·targets."""

    kernel: Kernel
    embedded: PyTree[Array]
    gram: Float[Array, "sleep sleep"]
    ridge: Float[Array, ""]
    factor: Factor
    intercept: bool = eqx.field(static=True)
    clip: bool = eqx.field(static=True)

    def _solve(self, b: Float[Array, "sleep targets"]) -> Float[Array, "sleep targets"]:
        return solve(self.gram, self.ridge, self.factor, b)

    def plain_weights(self, points: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W = k(X*, X)(K + λI)⁻¹."""
        return self._solve(self.kernel.evaluate(self.embedded, points)).T

    def plain_predict(
        self, points: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """k(X*, X)(K + λI)⁻¹·targets."""
        return self.kernel.evaluate(self.embedded, points).T @ self._solve(targets)

    def plain_predict_vjp(
        self, points: PyTree[Array], cotangents: Float[Array, "points targets"]
    ) -> Float[Array, "sleep targets"]:
        """(K + λI)⁻¹ k(X, X*)·cotangents."""
        return self._solve(self.kernel.evaluate(self.embedded, points) @ cotangents)

    def outside(self, x: PyTree[Array]) -> Float[Array, ""]:
        """The share of points farther from the nearest sleep sample than 99 % of these are.

        The distance is the kernel's own, d²(x, y) = k(x, x) + k(y, y) − 2k(x, y).
        """
        points = self.kernel.embed(x)

        def norm(point: PyTree) -> Array:
            batch = jax.tree.map(lambda a: a[None], point)
            return self.kernel.evaluate(batch, batch)[0, 0]

        norms = jnp.diagonal(self.gram)
        between = 2 * self.kernel.evaluate(self.embedded, points) - norms[:, None]
        nearest = jax.vmap(norm)(points) - between.max(axis=0)
        own = norms[:, None] + norms - 2 * self.gram
        own = jnp.where(jnp.eye(own.shape[0], dtype=bool), jnp.inf, own).min(axis=0)
        return jnp.mean(nearest > jnp.quantile(own, 0.99), dtype=own.dtype)

    def report(self, x: PyTree[Array]) -> SolveReport:
        """The ridge its factor took, and how often it was raised."""
        return SolveReport(
            self.factor.ridge, self.factor.escalations, jnp.zeros((), self.ridge.dtype)
        )
