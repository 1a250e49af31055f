"""Random Fourier features: kernel ridge regression on 2D random waves, N D² instead of N³.

A stationary kernel is the mean of waves over its spectral density p(ω) (Bochner),

    k(x, x') = E cos(ω·(φ(x) − φ(x'))/σ) ≈ (1/D) Σ_j [cos a_j cos a'_j + sin a_j sin a'_j],

a_j = ω_j·φ(x)/σ. The ω_j are drawn at unit scale and divided by σ, so that σ is adapted like any
other bandwidth. They are normal for the squared exponential kernel, and Student's t with 2ν degrees
of freedom for Matérn kernels. For a sum of kernels the waves of each stand side by side.

A dot product of d features is its own feature map, s(x)/√d, and exact. A kernel on sets takes two
stages: with the waves ψ of the members' kernel, ‖μ_A − μ_B‖ ≈ ‖m_A − m_B‖ for m_A = mean ψ(a), and
exp(−‖m_A − m_B‖²/2τ²) has waves of its own. It tends to the kernel as D grows, with a bias of order
1/D. A user's own `Pairwise` function says nothing of its waves, and is refused.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.checks import at_least
from alws.gradient_models.feature_ridge import FeatureMap, FittedFeatureRidge, fit_features
from alws.gradient_models.nystrom import check_ridge, placed
from alws.gradient_models.reweighted import Scaled
from alws.kernels import DotProduct, Kernel, OnSets, SquaredExponential, Stationary, Sum

SOME = 100
"""How many sets tell where the means of sets lie."""


class RandomFeatures(eqx.Module):
    """The parameters γ = (kernel, λ) of the regression.

    `frequencies` is D, the number of ω for each kernel of a sum and for each stage of a kernel on
    sets; `key` decides which they are, the same at every step.

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
        _check_waves(kernel)
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


class Plain(FeatureMap):
    """φ(a) = a/√d, whose inner products are those of `DotProduct`."""

    def __call__(self, a: Float[Array, "n dimensions"]) -> Float[Array, "n dimensions"]:
        return a / math.sqrt(a.shape[1])


class OfSets(FeatureMap):
    """φ(A) = waves(mean of members(a) over the members a of A)."""

    members: FeatureMap
    waves: FeatureMap

    def __call__(self, a: Float[Array, "n members dimensions"]) -> Float[Array, "n features"]:
        return self.waves(_means(self.members, a))


def _means(
    features: FeatureMap, a: Float[Array, "n members dimensions"]
) -> Float[Array, "n features"]:
    return features(a.reshape(-1, a.shape[-1])).reshape(*a.shape[:2], -1).mean(axis=1)


class Weighted(FeatureMap):
    """φ of pairs (a, r), r φ(a), for a reweighted regression."""

    features: FeatureMap

    def __call__(self, a: tuple[PyTree, Float[Array, " n"]]) -> Float[Array, "n features"]:
        return a[1][:, None] * self.features(a[0])


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
    """Features whose inner products estimate this kernel's matrix, without bias but for `OnSets`.

    Example: `phi = fourier(kernel, a, 1000, key)(a)`, then `phi @ phi.T` is about `gram(a, a)`.
    """
    if isinstance(kernel, Sum):
        keys = jax.random.split(key, len(kernel.kernels))
        parts = zip(kernel.kernels, embedded, keys, strict=True)
        maps = tuple(fourier(k, a, number, one) for k, a, one in parts)
        return SideBySide(maps, kernel.log_weight)
    if isinstance(kernel, Scaled):
        return Weighted(fourier(kernel.kernel, embedded[0], number, key))
    if isinstance(kernel, DotProduct):
        return Plain()
    if isinstance(kernel, OnSets):
        inner, outer = jax.random.split(key)
        members = embedded.reshape(-1, embedded.shape[-1])
        features = fourier(kernel.kernel, members, number, inner)
        some = _means(features, embedded[:SOME])
        between = SquaredExponential(bandwidth=1.0)
        between = eqx.tree_at(lambda k: k.log_bandwidth, between, kernel.log_scale)
        return OfSets(features, fourier(between, some, number, outer))
    assert isinstance(kernel, Stationary)
    frequencies = kernel.frequencies(key, number, embedded.shape[1]).astype(embedded.dtype)
    centre = jax.lax.stop_gradient(embedded.mean(axis=0))
    return Fourier(frequencies, kernel.log_bandwidth, centre)


def _check_waves(kernel: Kernel) -> None:
    """Refuse a kernel of which neither waves nor finitely many features are known."""
    if isinstance(kernel, Sum):
        for part in kernel.kernels:
            _check_waves(part)
    elif not isinstance(kernel, (Stationary, DotProduct, OnSets)):
        raise TypeError(
            "random features need a kernel that is a mean of known waves, or a dot product "
            "(SquaredExponential, Matern12, Matern32, Matern52, OnSets, DotProduct or a sum of "
            f"these), got {type(kernel).__name__}, which can only be evaluated. Use `Nystrom` or "
            "`ConjugateGradients`, which take any kernel."
        )
