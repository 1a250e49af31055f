"""Kernels on sets, and a user's own on anything."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from alws.groups import pair_of_rows
from alws.kernels.base import FeatureMap, Kernel
from alws.kernels.stationary import SquaredExponential, Stationary, median_of_positive
from alws.values import function, instance

SOME = 100
"""How many sets tell where the means of sets lie."""

SCALING = 512
"""How many members of sets tell their scale."""


class Members(NamedTuple):
    """Sets of unequal size: the weight of a member is one over their number, of padding 0."""

    values: Float[Array, "n members features"]
    weights: Float[Array, "n members"]


class OnSets(Kernel):
    """k(A, B) = exp(−‖μ_A − μ_B‖²/2τ²), a kernel on sets of observations `[members, ...]`.

    μ_A is the mean of k(a, ·) over the members a of A, so that the squared distance is
    mean k(a, a') + mean k(b, b') − 2 mean k(a, b). τ is a factor, adapted, times the median
    distance in the sleep samples of each step. The mean of k(a, b) by itself can only express
    what is linear in μ_A; this one can express any function of a set.

    The members of a group made by `alws.groups` are its rows, covariates and outcomes side by side;
    padding is no member.

    Arguments:
        kernel: k, of two members.

    Example: `OnSets(SquaredExponential())` for observations of shape `[members, 2]`.
    """

    kernel: Stationary
    log_scale: Float[Array, ""]

    def __init__(self, kernel: Stationary):
        remedy = "Use `alws.kernels.SquaredExponential()`."
        instance("kernel", kernel, Stationary, "a kernel of a distance", remedy)
        self.kernel = kernel
        self.log_scale = jnp.zeros((), float)

    def embed(self, x: Any) -> Members:
        values, mask = _members(x)
        embedded = self.kernel.embed(values.reshape(-1, *values.shape[2:]))
        embedded = embedded.reshape(*values.shape[:2], -1)
        there = mask.astype(embedded.dtype)
        return Members(embedded, there / jnp.maximum(there.sum(axis=1, keepdims=True), 1))

    def evaluate(self, a: Members, b: Members) -> Float[Array, "n m"]:
        pairs = self.kernel.evaluate(_flat(a), _flat(b))
        pairs = pairs.reshape(*a.weights.shape, *b.weights.shape)
        between = jnp.einsum("nimj,ni,mj->nm", pairs, a.weights, b.weights)
        squares = self._inner(a, a)[:, None] + self._inner(b, b) - 2 * between
        return jnp.exp(-jnp.maximum(squares, 0) * jnp.exp(-2 * self.log_scale) / 2)

    def bandwidths(self) -> list[Any]:
        return [self.log_scale, *self.kernel.bandwidths()]

    def initialise(self, x: Any) -> "OnSets":
        values, mask = _members(x)
        members = Members(values.reshape(*values.shape[:2], -1), mask.astype(values.dtype))
        kernel = self.kernel.initialise(_some(members).reshape(-1, *values.shape[2:]))
        return eqx.tree_at(lambda k: k.kernel, self, kernel)

    def scale_to(self, sleep: Members) -> "OnSets":
        kernel = eqx.tree_at(lambda k: k.kernel, self, self.kernel.scale_to(_some(sleep)))
        a = jax.lax.stop_gradient(sleep)
        own, other = kernel._inner(a, a), jax.tree.map(lambda v: jnp.roll(v, 1, axis=0), a)
        squares = own + jnp.roll(own, 1) - 2 * kernel._inner(a, other)
        median = jax.lax.stop_gradient(median_of_positive(squares, 1e-6))
        return eqx.tree_at(lambda k: k.log_scale, kernel, self.log_scale + jnp.log(median) / 2)

    def draw_features(self, key: Key[Array, ""], number: int, sleep: Members) -> FeatureMap:
        """In two stages: ‖μ_A − μ_B‖ ≈ ‖m_A − m_B‖ for the means m_A of the members' waves, and
        exp(−‖m_A − m_B‖²/2τ²) has waves of its own. Its bias is of order 1/`number`.
        """
        inner, outer = jax.random.split(key)
        features = self.kernel.draw_features(inner, number, _some(sleep))
        between = SquaredExponential(bandwidth=1.0)
        between = eqx.tree_at(lambda k: k.log_bandwidth, between, self.log_scale)
        some = jax.tree.map(lambda v: v[:SOME], sleep)
        return OfSets(features, between.draw_features(outer, number, _means(features, some)))

    def _inner(self, a: Members, b: Members) -> Float[Array, " n"]:
        """⟨μ_A, μ_B⟩ of each pair of sets."""

        def one(a: Members, b: Members) -> Float[Array, ""]:
            return a.weights @ self.kernel.evaluate(a.values, b.values) @ b.weights

        return jax.vmap(one)(a, b)


def _members(x: Any) -> tuple[Float[Array, "n members ..."], Bool[Array, "n members"]]:
    """The members of every set and which of them are there: of an array all, of groups the rows."""
    if not isinstance(x, tuple):
        return x, jnp.ones(x.shape[:2], bool)
    rows, outcomes = pair_of_rows(x)
    seen = zip(jax.tree.leaves(outcomes), jax.tree.leaves(rows.observed), strict=True)
    columns = [jnp.stack([y * there, there], axis=-1) for y, there in seen]
    return jnp.concatenate([rows.design(), *columns], axis=-1), rows.mask


def _flat(a: Members) -> Float[Array, "all features"]:
    return a.values.reshape(-1, a.values.shape[-1])


def _some(a: Members) -> Float[Array, "some features"]:
    """Members that tell the scale of all, which neither padding nor the order of members changes.

    At even steps of their order along a fixed direction, padding last, and in a fixed disorder.
    """
    flat, there = _flat(a), a.weights.ravel() > 0
    size = jnp.abs(jnp.where(there[:, None], flat, 0)).max(axis=0)
    direction = jnp.sin(1.0 + jnp.arange(flat.shape[1])) / jnp.where(size > 0, size, 1.0)
    order = jnp.argsort(jnp.where(there, flat @ direction.astype(flat.dtype), jnp.inf))
    steps = jax.random.permutation(jax.random.key(0), SCALING) / SCALING
    return flat[order[(steps * there.sum()).astype(int)]]


class OfSets(FeatureMap):
    """φ(A) = waves(mean of members(a) over the members a of A)."""

    members: FeatureMap
    waves: FeatureMap

    def __call__(self, a: Members) -> Float[Array, "n features"]:
        return self.waves(_means(self.members, a))


def _means(features: FeatureMap, a: Members) -> Float[Array, "n features"]:
    members = features(_flat(a)).reshape(*a.weights.shape, -1)
    return jnp.einsum("nmf,nm->nf", members, a.weights)


class Pairwise(Kernel):
    """A user's own kernel: any positive definite function of two observations.

    Arguments:
        function: k of two observations, a scalar.

    Example: `Pairwise(lambda x, y: jnp.exp(-jnp.sum(x != y)))` on strings of symbols.
    """

    function: Callable[[PyTree, PyTree], Array]

    def __check_init__(self) -> None:
        function("function", self.function, "of two observations")

    def evaluate(self, a: PyTree[Array], b: PyTree[Array]) -> Float[Array, "n m"]:
        values = jax.vmap(lambda x: jax.vmap(lambda y: self.function(x, y))(b))(a)
        if not isinstance(values, jax.Array) or values.ndim != 2:
            array = isinstance(values, jax.Array)
            got = f"shape {values.shape[2:]}" if array else type(values).__name__
            raise ValueError(
                "the function of a `Pairwise` kernel must return a scalar for two observations, "
                f"got {got}. Sum over the entries."
            )
        return values
