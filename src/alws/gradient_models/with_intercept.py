"""What regressions with a kernel share: points drawn in, an intercept, and the cheaper order.

A regression says what its weights W are without an intercept. With one they sum to one,
W + (1 − W1)/N, so that what does not depend on x is predicted exactly instead of being shrunk.
"""

from abc import abstractmethod
from itertools import accumulate

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from alws.kernels import Kernel


class WithIntercept(eqx.Module):
    """A linear smoother, prediction = W·targets, by what W is without an intercept.

    `points` below are always embedded, placed and, if `draw_in`, within the sleep samples' range.
    """

    kernel: eqx.AbstractVar[Kernel]
    embedded: eqx.AbstractVar[PyTree[Array]]
    intercept: eqx.AbstractVar[bool]
    draw_in: eqx.AbstractVar[bool]

    @abstractmethod
    def plain_weights(self, points: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W without an intercept."""

    @abstractmethod
    def plain_predict(
        self, points: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """W·targets without an intercept."""

    @abstractmethod
    def plain_pull(
        self, points: PyTree[Array], cotangents: Float[Array, "points targets"]
    ) -> Float[Array, "sleep targets"]:
        """Wᵀ·cotangents without an intercept, one solve for each target."""

    def weights(self, x: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W: how much each sleep sample counts for each point."""
        plain = self.plain_weights(self._points(x))
        if not self.intercept:
            return plain
        return plain + (1 - plain.sum(axis=1, keepdims=True)) / plain.shape[1]

    def predict(
        self, x: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """W·targets."""
        mean = targets.mean(axis=0) if self.intercept else jnp.zeros(())
        return self.plain_predict(self._points(x), targets - mean) + mean

    def pull(
        self, x: PyTree[Array], cotangents: PyTree[Float[Array, "points _"]]
    ) -> PyTree[Float[Array, "sleep _"]]:
        """Wᵀ·cotangents: what the points ask of each sleep sample. Solves for the fewer columns."""
        leaves, structure = jax.tree.flatten(cotangents)
        widths = [leaf.shape[1] for leaf in leaves]
        if sum(widths) >= leaves[0].shape[0]:
            weights = self.weights(x).T
            return jax.tree.map(lambda columns: weights @ columns, cotangents)
        columns = jnp.concatenate(leaves, axis=1)
        pulled = self.plain_pull(self._points(x), columns)
        if self.intercept:
            pulled += (columns.sum(axis=0) - pulled.sum(axis=0)) / pulled.shape[0]
        ends = list(accumulate(widths))[:-1]
        return jax.tree.unflatten(structure, jnp.split(pulled, ends, axis=1))

    def _points(self, x: PyTree[Array]) -> PyTree[Array]:
        points = self.kernel.place(self.kernel.embed(x))
        return self.kernel.draw_in(points, self.embedded) if self.draw_in else points
