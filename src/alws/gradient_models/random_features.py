"""Random Fourier features: kernel ridge regression on 2D random waves, N D² instead of N³.

A stationary kernel is the mean of waves over its spectral density p(ω) (Bochner),

    k(x, x') = E cos(ω·(φ(x) − φ(x'))/σ) ≈ (1/D) Σ_j [cos a_j cos a'_j + sin a_j sin a'_j],

a_j = ω_j·φ(x)/σ. The ω_j are drawn at unit scale and divided by σ, so that σ is adapted like any
other bandwidth. They are normal for the squared exponential kernel, and Student's t with 2ν degrees
of freedom for Matérn kernels. For a sum of kernels the waves of each stand side by side.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.checks import at_least
from alws.gradient_models.feature_ridge import FeatureMap, FittedFeatureRidge, fit_features
from alws.gradient_models.nystrom import check_ridge, placed
from alws.kernels import Kernel, Stationary, Sum


class RandomFeatures(eqx.Module):
    """The parameters γ = (kernel, λ) of the regression.

    `frequencies` is D, the number of ω for each kernel of a sum; `key` decides which they are, the
    same at every step.

    Example: `RandomFeatures(Matern52(), frequencies=500, key=jax.random.key(0))`.
    """

    kernel: Kernel
    log_ridge: Float[Array, ""]
    key: Key[Array, ""]
    frequencies: int = eqx.field(static=True)
    intercept: bool = eqx.field(static=True)
    draw_in: bool = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        *,
        frequencies: int = 500,
        ridge: float = 0.01,
        intercept: bool = True,
        draw_in: bool = True,
        key: Key[Array, ""] | None = None,
    ):
        check_ridge(ridge)
        at_least("frequencies", frequencies, 1)
        _check_stationary(kernel)
        self.kernel = kernel
        self.log_ridge = jnp.array(math.log(ridge), float)
        self.key = jax.random.key(0) if key is None else key
        self.frequencies = frequencies
        self.intercept = intercept
        self.draw_in = draw_in

    def initialise(self, x: PyTree[Array]) -> "RandomFeatures":
        """γ with the bandwidth set from a first batch of sleep observations."""
        return eqx.tree_at(lambda g: g.kernel, self, self.kernel.initialise(x))

    def fit(self, x: PyTree[Array]) -> FittedFeatureRidge:
        """Factorise ΦᵀΦ + λI."""
        kernel, embedded = placed(self.kernel, x)
        features = fourier(kernel, embedded, self.frequencies, self.key)
        return fit_features(
            kernel,
            features,
            embedded,
            jnp.exp(self.log_ridge),
            intercept=self.intercept,
            draw_in=self.draw_in,
        )


class Fourier(FeatureMap):
    """φ(a) = (cos Ωa/σ, sin Ωa/σ)/√D; a is centred so that little is lost to rounding."""

    frequencies: Float[Array, "number dimensions"]
    log_bandwidth: Float[Array, ""]
    centre: Float[Array, " dimensions"]

    def __call__(self, a: Float[Array, "n dimensions"]) -> Float[Array, "n features"]:
        inverse = jnp.exp(-self.log_bandwidth).astype(a.dtype)
        angles = (a - self.centre) @ (self.frequencies * inverse).T
        waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
        return waves / math.sqrt(self.frequencies.shape[0])


class SideBySide(FeatureMap):
    """The features of a sum of kernels, (√w_1 φ_1, √w_2 φ_2, …)."""

    parts: tuple[FeatureMap, ...]
    log_weight: Float[Array, " kernels"]

    def __call__(self, a: tuple[PyTree, ...]) -> Float[Array, "n features"]:
        roots = jnp.exp(self.log_weight / 2)
        parts = zip(roots, self.parts, a, strict=True)
        return jnp.concatenate([root * part(u) for root, part, u in parts], axis=1)


def fourier(
    kernel: Kernel, embedded: PyTree[Array], number: int, key: Key[Array, ""]
) -> FeatureMap:
    """Features whose inner products estimate this kernel's matrix without bias.

    Example: `phi = fourier(kernel, a, 1000, key)(a)`, then `phi @ phi.T` is about `gram(a, a)`.
    """
    if isinstance(kernel, Sum):
        keys = jax.random.split(key, len(kernel.kernels))
        parts = zip(kernel.kernels, embedded, keys, strict=True)
        maps = tuple(fourier(k, a, number, one) for k, a, one in parts)
        return SideBySide(maps, kernel.log_weight)
    assert isinstance(kernel, Stationary)
    frequencies = kernel.frequencies(key, number, embedded.shape[1]).astype(embedded.dtype)
    centre = jax.lax.stop_gradient(embedded.mean(axis=0))
    return Fourier(frequencies, kernel.log_bandwidth, centre)


def _check_stationary(kernel: Kernel) -> None:
    """Refuse a kernel that is no mean of waves."""
    if isinstance(kernel, Sum):
        for part in kernel.kernels:
            _check_stationary(part)
    elif not isinstance(kernel, Stationary):
        raise TypeError(
            "random features need a kernel of the distance between features (SquaredExponential, "
            f"Matern12, Matern32, Matern52 or a sum of these), got {type(kernel).__name__}. Use "
            "`Nystrom` or `ConjugateGradients`, which take any kernel, or `LinearReadout` in "
            "place of DotProduct."
        )
