"""The dot product of features: regression that is linear in them, and goes on beyond the samples.

A kernel of the distance falls back to the mean away from the sleep samples; one simulated sequence
is seldom near another. With features s(x), standardised over the sleep samples, and the score
u = ∇_θ log p_θ(z, x), the regression of u on s(x) is

    Cov(u, s) Cov(s)⁻¹ (s(x*) − E s) = (∂E s/∂θ)ᵀ Cov(s)⁻¹ (s(x*) − E s),

since Cov(u, s) = ∂E s/∂θ: the direction in θ that takes the mean of the features to those of the
data, weighed by how much they vary. It needs no derivative of the simulator's output.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.features import Features, Identity, check_features
from alws.kernels.base import FeatureMap, Kernel
from alws.values import positive


class DotProduct(Kernel):
    """k(x, x') = s(x)·s(x')/d, with the d features standardised over each step's sleep samples.

    Arguments:
        features: s before it is standardised, by default x itself.
        reach: data whose features lie more than so many standard deviations out are moved in to
            that distance.

    Example: `KernelRidge(DotProduct(Network(summaries)), ridge=0.1)`.
    """

    features: Features
    reach: float = eqx.field(static=True)
    frame: tuple[Float[Array, " features"], Float[Array, " features"]] | None

    def __init__(self, features: Features | None = None, *, reach: float = 10.0):
        positive("reach", reach)
        self.features = Identity() if features is None else features
        check_features(self.features)
        self.reach = reach
        self.frame = None

    def embed(self, x: PyTree[Array]) -> Float[Array, "n features"]:
        return self.features(x)

    def scale_to(self, sleep: Float[Array, "n features"]) -> "DotProduct":
        location, scale = jax.lax.stop_gradient((sleep.mean(axis=0), sleep.std(axis=0)))
        frame = location, jnp.where(scale > 0, scale, 1.0)
        return eqx.tree_at(lambda k: k.frame, self, frame, is_leaf=lambda x: x is None)

    def coordinates(self, a: Float[Array, "n features"]) -> Float[Array, "n features"]:
        """Features standardised by the sleep samples.

        Example: `kernel.scale_to(a).coordinates(a)`.
        """
        if self.frame is None:
            return a
        location, scale = self.frame
        return (a - location) / scale

    def clip_to_range(
        self, a: Float[Array, "m features"], sleep: Float[Array, "n features"]
    ) -> Float[Array, "m features"]:
        if self.frame is None:
            return jnp.clip(a, -self.reach, self.reach)
        location, scale = self.frame
        return jnp.clip(a, location - self.reach * scale, location + self.reach * scale)

    def evaluate(
        self, a: Float[Array, "n features"], b: Float[Array, "m features"]
    ) -> Float[Array, "n m"]:
        return self.coordinates(a) @ self.coordinates(b).T / a.shape[1]

    def draw_features(
        self, key: Key[Array, ""], number: int, sleep: Float[Array, "n features"]
    ) -> FeatureMap:
        return Coordinates(self)


class Coordinates(FeatureMap):
    """φ(a) = a/√d, standardised, whose inner products are those of `DotProduct`: exact."""

    kernel: DotProduct

    def __call__(self, a: Float[Array, "n dimensions"]) -> Float[Array, "n dimensions"]:
        return self.kernel.coordinates(a) / math.sqrt(a.shape[1])
