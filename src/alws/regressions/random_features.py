"""Random Fourier features: kernel ridge regression on 2D random waves, N D² instead of N³.

A stationary kernel is the mean of waves over its spectral density p(ω) (Bochner),

    k(x, x') = E cos(ω·(φ(x) − φ(x'))/σ) ≈ (1/D) Σ_j [cos a_j cos a'_j + sin a_j sin a'_j],

a_j = ω_j·φ(x)/σ. The ω_j are drawn at unit scale and divided by σ, so that σ is adapted like any
other bandwidth. They are normal for the squared exponential kernel, and Student's t with 2ν degrees
of freedom for Matérn kernels. For a sum of kernels the waves of each stand side by side.

What a kernel's features are the kernel says itself, by `draw_features`: waves for stationary ones,
the features themselves for a dot product, two stages of waves for kernels on sets.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.kernels.base import Kernel
from alws.regressions.base import Cost, Regression, bytes_of, check_kernel, check_ridge
from alws.regressions.feature_ridge import FittedFeatureRidge, fit_features
from alws.validation import at_least, check_key, yes_or_no


class RandomFeatures(Regression):
    """Ridge regression on random features of a kernel; its parameters are γ = (kernel, λ).

    Arguments:
        kernel: of the observations, with its bandwidth at the start.
        frequencies: D, the number of ω for each kernel of a sum and for each stage of a kernel on
            sets.
        ridge: λ at the start, added to the diagonal of the kernel matrix as it is.
        intercept: whether the weights sum to one, so that what does not depend on x is predicted
            exactly instead of being shrunk.
        clip: whether data beyond the range of the sleep samples are moved to its edge, where the
            kernel can.
        key: decides what is chosen at random, the same at every step.

    Example: `RandomFeatures(Matern52(), frequencies=500, key=jax.random.key(0))`.
    """

    kernel: Kernel
    log_ridge: Float[Array, ""]
    key: Key[Array, ""]
    frequencies: int = eqx.field(static=True)
    intercept: bool = eqx.field(static=True)
    clip: bool = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        *,
        frequencies: int = 500,
        ridge: float = 0.01,
        intercept: bool = True,
        clip: bool = True,
        key: Key[Array, ""] | None = None,
    ):
        check_kernel(kernel)
        check_ridge(ridge)
        at_least("frequencies", frequencies, 1)
        yes_or_no("intercept", intercept)
        yes_or_no("clip", clip)
        if key is not None:
            check_key(key)
        self.kernel = kernel
        self.log_ridge = jnp.array(math.log(ridge), float)
        self.key = jax.random.key(0) if key is None else key
        self.frequencies = frequencies
        self.intercept = intercept
        self.clip = clip

    def initialise(self, x: PyTree[Array]) -> "RandomFeatures":
        """γ with the bandwidth set from a first batch of sleep observations."""
        return eqx.tree_at(lambda g: g.kernel, self, self.kernel.initialise(x))

    def cost(self, samples: int) -> Cost:
        """The waves of all samples, 2D each, and what is made of them."""
        waves = 2 * self.frequencies
        return Cost(bytes_of(waves * (2 * samples + 2 * waves)), 2 * samples * waves**2)

    def bandwidths(self) -> list[Any]:
        return self.kernel.bandwidths()

    def ridges(self) -> list[Any]:
        return [self.log_ridge]

    def fit(self, x: PyTree[Array], wake: PyTree[Array] | None = None) -> FittedFeatureRidge:
        """Factorise ΦᵀΦ + λI."""
        embedded = self.kernel.embed(x)
        kernel = self.kernel.scale_to(embedded)
        return fit_features(
            kernel,
            kernel.draw_features(self.key, self.frequencies, embedded),
            embedded,
            jnp.exp(self.log_ridge),
            intercept=self.intercept,
            clip=self.clip,
        )
