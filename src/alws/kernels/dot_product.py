"""The dot product of features: regression that is linear in them, and goes on beyond the samples.

A kernel of the distance falls back to the mean away from the sleep samples; one simulated sequence
is seldom near another. With features s(x), standardised over the sleep samples, and the score
u = ∇_θ log p_θ(z, x), the regression of u on s(x) is

    Cov(u, s) Cov(s)⁻¹ (s(x*) − E s) = (∂E s/∂θ)ᵀ Cov(s)⁻¹ (s(x*) − E s),

since Cov(u, s) = ∂E s/∂θ: the direction in θ that takes the mean of the features to those of the
data, weighed by how much they vary. It needs no derivative of the simulator's output.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from alws.features import Features, Identity
from alws.kernels.base import Kernel


class DotProduct(Kernel):
    """k(x, x') = s(x)·s(x')/d, with the d features standardised over each step's sleep samples.

    Data whose features lie more than `reach` standard deviations out are drawn in to that distance.

    Example: `KernelRidge(DotProduct(Network(summaries)), ridge=0.1)`.
    """

    features: Features
    reach: float = eqx.field(static=True)
    frame: tuple[Float[Array, " features"], Float[Array, " features"]] | None

    def __init__(self, features: Features | None = None, *, reach: float = 10.0):
        if not reach > 0:
            raise ValueError(f"`reach` must be positive, got {reach}.")
        self.features = Identity() if features is None else features
        self.reach = reach
        self.frame = None

    def embed(self, x: PyTree[Array]) -> Float[Array, "n features"]:
        return self.features(x)

    def calibrate(self, a: Float[Array, "n features"]) -> "DotProduct":
        location, scale = jax.lax.stop_gradient((a.mean(axis=0), a.std(axis=0)))
        frame = location, jnp.where(scale > 0, scale, 1.0)
        return eqx.tree_at(lambda k: k.frame, self, frame, is_leaf=lambda x: x is None)

    def place(self, a: Float[Array, "n features"]) -> Float[Array, "n features"]:
        if self.frame is None:
            return a
        location, scale = self.frame
        return (a - location) / scale

    def draw_in(
        self, a: Float[Array, "m features"], sleep: Float[Array, "n features"]
    ) -> Float[Array, "m features"]:
        return jnp.clip(a, -self.reach, self.reach)

    def gram(
        self, a: Float[Array, "n features"], b: Float[Array, "m features"]
    ) -> Float[Array, "n m"]:
        return a @ b.T / a.shape[1]
