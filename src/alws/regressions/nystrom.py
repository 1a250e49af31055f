"""Nyström's method: kernel ridge regression on m inducing points, N m² instead of N³.

    Ĵ(x*) = k*_m (K_mn K_nm + λK_mm)⁻¹ K_mn y,

what `KernelRidge` gives with k_m(x) K_mm⁻¹ k_m(x') in place of k(x, x'), and the same as it when
every sleep sample is an inducing point. λ is on the same scale.

With the factor K_mm + jitter = LLᵀ and whitened features φ(x) = L⁻¹ k_m(x) it is a regression on m
features, K_mn K_nm + λK_mm = L(ΦᵀΦ + λI)Lᵀ, and stable in float32. L is held constant when it is
differentiated: ΦᵀΦ + λL⁻¹K_mm L⁻ᵀ has the right derivative whatever L is.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.kernels.base import FeatureMap, Kernel
from alws.regressions.base import (
    Cost,
    Factor,
    Regression,
    bytes_of,
    check_kernel,
    check_ridge,
    factorise,
    whiten,
)
from alws.regressions.feature_ridge import FittedFeatureRidge, fit_features
from alws.regressions.representatives import (
    check_number,
    check_selection,
    jitter,
    select_rows,
    without_gradient,
)
from alws.validation import at_least, check_key, yes_or_no


class Nystrom(Regression):
    """Kernel ridge regression on inducing points.

    Its parameters are γ = (kernel, λ), and the points if they are learnt.

    Arguments:
        kernel: of the observations, with its bandwidth at the start.
        inducing: m, the number of inducing points.
        selection: which of each step's sleep samples they are, "uniform", "leverage" or "k-means++"
            (see `alws.regressions.representatives`). With "learnt" they are chosen once, from the
            first sleep samples, and then belong to γ: adaptation of the features moves them. They
            are kept in standard deviations of the sleep samples, and so follow these.
        ridge: λ at the start, added to the diagonal of the kernel matrix as it is.
        intercept: whether the weights sum to one, so that what does not depend on x is predicted
            exactly instead of being shrunk.
        clip: whether data beyond the range of the sleep samples are moved to its edge, where the
            kernel can.
        key: decides what is chosen at random, the same at every step.

    Example: `Nystrom(SquaredExponential(), inducing=300, selection="leverage")`.
    """

    kernel: Kernel
    log_ridge: Float[Array, ""]
    points: PyTree[Array] | None
    key: Key[Array, ""]
    inducing: int = eqx.field(static=True)
    selection: str = eqx.field(static=True)
    intercept: bool = eqx.field(static=True)
    clip: bool = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        *,
        inducing: int = 500,
        selection: str = "uniform",
        ridge: float = 0.01,
        intercept: bool = True,
        clip: bool = True,
        key: Key[Array, ""] | None = None,
    ):
        check_kernel(kernel)
        check_ridge(ridge)
        at_least("inducing", inducing, 1)
        yes_or_no("intercept", intercept)
        yes_or_no("clip", clip)
        if key is not None:
            check_key(key)
        check_selection(selection, "learnt")
        self.kernel = kernel
        self.log_ridge = jnp.array(math.log(ridge), float)
        self.points = None
        self.key = jax.random.key(0) if key is None else key
        self.inducing = inducing
        self.selection = selection
        self.intercept = intercept
        self.clip = clip

    def initialise(self, x: PyTree[Array]) -> "Nystrom":
        """γ with the bandwidth, and learnt inducing points, from a first batch of observations."""
        started = eqx.tree_at(lambda g: g.kernel, self, self.kernel.initialise(x))
        if self.selection != "learnt":
            return started
        embedded = started.kernel.embed(x)
        kernel = started.kernel.scale_to(embedded)
        for leaf in jax.tree.leaves(embedded):
            if not eqx.is_inexact_array(leaf):
                raise ValueError(
                    f"learnt inducing points must be floating-point, but {type(kernel).__name__} "
                    f"compares {leaf.dtype}. Give it features, or choose the points among the "
                    'sleep samples, for example `selection="k-means++"`.'
                )
        points = _standardised(started._choose(kernel, embedded, "k-means++"), embedded)
        return eqx.tree_at(lambda g: g.points, started, points, is_leaf=lambda a: a is None)

    def cost(self, samples: int) -> Cost:
        """The features of all samples, m each, and what is made of them."""
        m = self.inducing
        return Cost(bytes_of(m * (2 * samples + 3 * m)), 4 * samples * m**2)

    def bandwidths(self) -> list[Any]:
        return self.kernel.bandwidths()

    def ridges(self) -> list[Any]:
        return [self.log_ridge]

    def fit(self, x: PyTree[Array], wake: PyTree[Array] | None = None) -> FittedFeatureRidge:
        """Choose inducing points, whiten them, factorise ΦᵀΦ + λI."""
        embedded = self.kernel.embed(x)
        kernel = self.kernel.scale_to(embedded)
        if self.selection != "learnt":
            points = self._choose(kernel, embedded, self.selection)
        elif self.points is None:
            raise ValueError(
                "learnt inducing points must be set from a first batch before they are used: "
                "`regression.initialise(x).fit(x)`."
            )
        else:
            points = _restored(self.points, embedded)
        ridge = jnp.exp(self.log_ridge)
        features, within, factor = whitened(kernel, points)
        shape = features.inverse @ within @ features.inverse.T
        return fit_features(
            kernel,
            features,
            embedded,
            ridge,
            intercept=self.intercept,
            clip=self.clip,
            correction=ridge.astype(shape.dtype) * (shape - jax.lax.stop_gradient(shape)),
            raised=factor.escalations,
        )

    def _choose(self, kernel: Kernel, embedded: PyTree, selection: str) -> PyTree[Array]:
        check_number("inducing", self.inducing, jax.tree.leaves(embedded)[0].shape[0])
        ridge = jnp.exp(self.log_ridge)
        rows = select_rows(kernel, embedded, self.inducing, selection, ridge, self.key)
        return jax.tree.map(lambda a: a[rows], embedded)


class Whitened(FeatureMap):
    """φ(x) = L⁻¹ k_m(x), with L⁻¹ held constant."""

    kernel: Kernel
    points: PyTree[Array]
    inverse: Float[Array, "inducing inducing"]

    def __call__(self, a: PyTree[Array]) -> Float[Array, "n inducing"]:
        return self.kernel.evaluate(a, self.points) @ self.inverse.T


def whitened(
    kernel: Kernel, points: PyTree[Array]
) -> tuple[Whitened, Float[Array, "inducing inducing"], Factor]:
    """φ for these inducing points, their own matrix K_mm, and its factor.

    Example: `features, within, factor = whitened(kernel, points)`.
    """
    within = kernel.evaluate(points, points)
    constant = without_gradient(within)
    factor = factorise(constant, jitter(constant))
    inverse = whiten(factor, jnp.eye(within.shape[0], dtype=within.dtype))
    return Whitened(kernel, points, inverse), within, factor


def _standardised(points: PyTree[Array], embedded: PyTree[Array]) -> PyTree[Array]:
    """Points in standard deviations of the sleep samples from their mean."""
    return jax.tree.map(lambda p, e: (p - _mean(e)) / _scale(e), points, embedded)


def _restored(points: PyTree[Array], embedded: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(lambda p, e: _mean(e) + _scale(e) * p, points, embedded)


def _mean(a: Float[Array, "n ..."]) -> Float[Array, "..."]:
    return jax.lax.stop_gradient(a.mean(axis=0))


def _scale(a: Float[Array, "n ..."]) -> Float[Array, "..."]:
    deviation = jax.lax.stop_gradient(a.std(axis=0))
    return jnp.where(deviation > 0, deviation, 1.0)
