"""Ridge regression on finitely many features: Ĵ(x*) = φ(x*)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ y.

The linear readout of the distributed distributional code (DDC) Helmholtz machine, and what
`KernelRidge(DotProduct(features))` computes, solved in the space of the d features instead of that
of the N sleep samples: N d² where the kernel needs N³. Features are standardised over each step's
sleep samples and divided by √d, so that `ridge` means the same in both.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from alws.features import Features, check_features
from alws.regressions.base import (
    Factor,
    Regression,
    Smoother,
    SolveReport,
    check_ridge,
    factorise,
    solve,
)
from alws.validation import positive


class LinearReadout(Regression):
    """Ridge regression on features of your own; its parameters are γ = (φ, λ).

    Arguments:
        features: φ, standardised over each step's sleep samples.
        ridge: λ at the start.
        reach: data whose features lie more than so many standard deviations out are moved in to
            that distance.

    Example: `LinearReadout(Network(summaries), ridge=0.1)`.
    """

    features: Features
    log_ridge: Float[Array, ""]
    reach: float = eqx.field(static=True)

    def __init__(self, features: Features, *, ridge: float = 0.01, reach: float = 10.0):
        check_features(features)
        check_ridge(ridge)
        positive("reach", reach, " 10 is usual.")
        self.features = features
        self.log_ridge = jnp.array(math.log(ridge), float)
        self.reach = reach

    def ridges(self) -> list[Any]:
        return [self.log_ridge]

    def fit(self, x: PyTree[Array], wake: PyTree[Array] | None = None) -> "FittedLinearReadout":
        """Factorise the features' covariance."""
        plain = self.features(x)
        location, scale = jax.lax.stop_gradient((plain.mean(axis=0), plain.std(axis=0)))
        rounding = 10 * jnp.finfo(plain.dtype).eps * jnp.abs(plain).max(axis=0)
        scale = jnp.where(scale > rounding, scale, jnp.inf)  # a constant says nothing
        standard = (plain - location) / scale / math.sqrt(plain.shape[1])
        gram = standard.T @ standard
        ridge = jnp.exp(self.log_ridge).astype(gram.dtype)
        return FittedLinearReadout(
            self.features,
            location,
            scale,
            standard,
            gram,
            ridge,
            factorise(gram, ridge),
            self.reach,
        )


class FittedLinearReadout(Smoother):
    """The regression on one set of sleep samples: a linear smoother, prediction = W·targets."""

    features: Features
    location: Float[Array, " features"]
    scale: Float[Array, " features"]
    standard: Float[Array, "sleep features"]
    covariance: Float[Array, "features features"]
    ridge: Float[Array, ""]
    factor: Factor
    reach: float = eqx.field(static=True)

    def _standardise(self, x: PyTree[Array], reach: float) -> Float[Array, "points features"]:
        standard = (self.features(x) - self.location) / self.scale
        return jnp.clip(standard, -reach, reach) / math.sqrt(standard.shape[1])

    def _solve(self, b: Float[Array, "features targets"]) -> Float[Array, "features targets"]:
        return solve(self.covariance, self.ridge, self.factor, b)

    def weights(self, x: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W = φ (ΦᵀΦ + λI)⁻¹ Φᵀ + 1/N; the last term is the intercept, φ having mean zero."""
        solved = self._solve(self._standardise(x, self.reach).T)
        return (self.standard @ solved).T + 1 / self.standard.shape[0]

    def predict(
        self, x: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """W·targets."""
        mean = targets.mean(axis=0)
        readout = self._solve(self.standard.T @ (targets - mean))
        return self._standardise(x, self.reach) @ readout + mean

    def predict_vjp(
        self, x: PyTree[Array], cotangents: PyTree[Float[Array, "points _"]]
    ) -> PyTree[Float[Array, "sleep _"]]:
        """Wᵀ·cotangents."""
        standard = self._standardise(x, self.reach).T

        def one(columns: Array) -> Array:
            asked = self._solve(standard @ columns)
            return self.standard @ asked + columns.sum(axis=0) / self.standard.shape[0]

        return jax.tree.map(one, cotangents)

    def outside(self, x: PyTree[Array]) -> Float[Array, ""]:
        """The share of points farther out than 99 % of the sleep samples, by φᵀ(ΦᵀΦ + λI)⁻¹φ."""
        points = self._standardise(x, math.inf)
        own = jnp.sum(self.standard.T * self._solve(self.standard.T), axis=0)
        theirs = jnp.sum(points.T * self._solve(points.T), axis=0)
        return jnp.mean(theirs > jnp.quantile(own, 0.99), dtype=own.dtype)

    def report(self, x: PyTree[Array]) -> SolveReport:
        """The ridge its factor took, and how often it was raised."""
        return SolveReport(
            self.factor.ridge, self.factor.escalations, jnp.zeros((), self.ridge.dtype)
        )
