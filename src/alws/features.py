"""Features φ(x) for the kernel, §3.4: identity, linear projection, batch normalisation, networks.

A feature map takes a batch of observations, each a pytree, to a matrix `[batch, features]`. It sees
the whole batch because batch normalisation uses the statistics of the batch at hand, sleep and wake
separately: a remedy for covariate shift on images (§3.5).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.groups import pair_of_rows
from alws.values import at_least, check_key, function, instance, positive


class Features(eqx.Module):
    """A map from a batch of observations to a matrix of features."""

    @abstractmethod
    def __call__(self, x: PyTree[Array]) -> Float[Array, "batch features"]:
        """φ(x) of every observation of the batch."""


def check_features(
    features: Any, name: str = "features", remedy: str = "Use `alws.features.Identity()`."
) -> None:
    """Refuse what are no features.

    Arguments:
        features: what was given.
        name: of the argument, in the message.
        remedy: what to do, in the message.

    Example: `check_features(alws.features.Identity())` passes, without its call it is refused.
    """
    instance(name, features, Features, "features", remedy)


CHAIN = "Write `Chain((Identity(), Linear.random(key, 10, 5)))`."


def flatten(x: PyTree[Array]) -> Float[Array, "batch entries"]:
    """All entries of every observation side by side, as floating-point numbers.

    Arguments:
        x: observations as leading axis, an array or a pytree of them.

    Example: `flatten({"a": jnp.ones((10, 2, 3)), "b": jnp.ones(10, int)}).shape == (10, 7)`.
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(x)]
    dtype = jnp.result_type(jnp.float32, *leaves)
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1).astype(dtype) for leaf in leaves], 1)


class Identity(Features):
    """φ(x) = x, the entries of x side by side."""

    def __call__(self, x: PyTree[Array]) -> Float[Array, "batch features"]:
        return flatten(x)


class Standardise(Features):
    """φ(x) = (x − location)/scale, entry by entry; both constant.

    Arguments:
        location, scale: one number for each entry of x.

    Example: `Standardise.from_data(data)` takes them from the data.
    """

    location: Float[Array, " entries"]
    scale: Float[Array, " entries"]

    @classmethod
    def from_data(cls, data: PyTree[Array]) -> "Standardise":
        """Mean and standard deviation of the data, its tails beyond 5 % and 95 % drawn in.

        Drawing in the tails keeps a few outliers from setting the scale; an entry that is the same
        in 90 % of the data keeps its plain standard deviation, a constant entry keeps scale 1.
        """
        x = flatten(data)
        clipped = jnp.clip(x, jnp.quantile(x, 0.05, axis=0), jnp.quantile(x, 0.95, axis=0))
        scale = clipped.std(axis=0)
        scale = jnp.where(scale > 0, scale, x.std(axis=0))
        return cls(clipped.mean(axis=0), jnp.where(scale > 0, scale, 1.0))

    def __call__(self, x: PyTree[Array]) -> Float[Array, "batch features"]:
        location, scale = jax.lax.stop_gradient((self.location, self.scale))
        return (flatten(x) - location) / scale


class Linear(Features):
    """φ(x) = A x, a linear projection, with batch normalisation of its output if asked for.

    Arguments:
        weight: Aᵀ, a row for each entry of x.
        batch_norm: whether the output is standardised over each batch.

    Example: `Linear.random(key, inputs=784, outputs=300, batch_norm=True)`.
    """

    weight: Float[Array, "inputs outputs"]
    batch_norm: bool = eqx.field(static=True, default=False)

    @classmethod
    def random(
        cls,
        key: Key[Array, ""],
        inputs: int,
        outputs: int,
        *,
        batch_norm: bool = False,
        scale: float | None = None,
    ) -> "Linear":
        """Gaussian weights; `scale` is their standard deviation, 1/√inputs unless given."""
        check_key(key)
        at_least("inputs", inputs, 1)
        at_least("outputs", outputs, 1)
        if scale is not None:
            positive("scale", scale)
        weight = jax.random.normal(key, (inputs, outputs))
        return cls(weight * (inputs**-0.5 if scale is None else scale), batch_norm)

    def __call__(self, x: PyTree[Array]) -> Float[Array, "batch features"]:
        entries = flatten(x)
        if entries.shape[1] != self.weight.shape[0]:
            raise ValueError(
                f"`Linear` must have as many inputs as an observation has entries, "
                f"{entries.shape[1]}; its weight has shape {self.weight.shape}. Make it with "
                f"`inputs={entries.shape[1]}`."
            )
        projected = entries @ self.weight
        return normalise(projected) if self.batch_norm else projected


def normalise(a: Float[Array, "batch features"]) -> Float[Array, "batch features"]:
    """Every column with mean 0 and variance 1 over the batch at hand.

    Arguments:
        a: features, the batch as leading axis.

    Example: `normalise(jnp.array([[1.0], [3.0]]))` is [[−1], [1]], up to rounding.
    """
    if a.shape[0] < 2:
        raise ValueError(
            f"batch normalisation needs at least 2 observations in a batch, got {a.shape[0]}. "
            "Use a larger `batch_size`, or features without batch normalisation where every "
            'observation is by itself, as with `alws.Settings(conditions="separate")`.'
        )
    centred = a - a.mean(axis=0)
    return centred * jax.lax.rsqrt((centred**2).mean(axis=0) + 1e-5)


class Network(Features):
    """φ(x) = network(x) for any function or Equinox module of one observation.

    Arguments:
        network: of one observation, to an array.

    Example: `Network(eqx.nn.MLP(10, 32, 64, 2, key=key))`.
    """

    network: Callable[[PyTree], Array]

    def __check_init__(self) -> None:
        function("network", self.network, "of one observation")

    def __call__(self, x: PyTree[Array]) -> Float[Array, "batch features"]:
        return flatten(jax.vmap(self.network)(x))


class RowSums(Features):
    """φ(rows, x) = Σ_i v_i v_iᵀ over the rows of a group, v_i = (1, covariates, outcome).

    For groups made by `alws.groups`, whose regression compares pairs of a group's rows and its
    outcomes. The sums are sufficient statistics of a linear regression in each group. Neither the
    order of rows nor the padding changes them, and a row without outcome counts nothing. Of several
    outcomes each has its sums, and each two have those of their products.

    Example: `alws.kernels.SquaredExponential(RowSums())`.
    """

    def __call__(self, x: PyTree[Array]) -> Float[Array, "batch features"]:
        rows, outcomes = pair_of_rows(x)
        one = jnp.concatenate([jnp.ones((*rows.mask.shape, 1)), rows.design()], axis=-1)
        there = [t[..., None] for t in jax.tree.leaves(rows.observed)]
        seen = [y[..., None] * t for y, t in zip(jax.tree.leaves(outcomes), there, strict=True)]
        sums = [
            _products(jnp.concatenate([one * t, y], -1)) for y, t in zip(seen, there, strict=True)
        ]
        for i, y in enumerate(seen):
            sums += [(y * other).sum(axis=1) for other in seen[:i]]
        return jnp.concatenate(sums, axis=1)


def _products(v: Float[Array, "batch rows entries"]) -> Float[Array, "batch products"]:
    """Σ_i v_i v_iᵀ, its upper triangle."""
    upper = jnp.triu_indices(v.shape[-1])
    return jnp.einsum("nri,nrj->nij", v, v)[:, *upper]


class Following(Features):
    """Features that the model itself suggests, made anew from θ_t at every step; θ is held.

    Arguments:
        make: `make(model)` gives the features.

    Example: `Following(lambda model: Linear(jnp.linalg.pinv(model.weight).T))` sees an image
    through the inverse of the present filters.
    """

    make: Callable[[Any], Features] = eqx.field(static=True)

    def __check_init__(self) -> None:
        function("make", self.make, "of the model, that gives features")

    def __call__(self, x: PyTree[Array]) -> Float[Array, "batch features"]:
        raise ValueError(
            "features that follow the model must be given it before they are used: "
            "`follow(regression, model)`. Kernels need `track=True` to go with them."
        )


def follow(tree: PyTree, model: PyTree) -> PyTree:
    """A regression, or any other tree, with the features of a model in place of `Following`.

    Arguments:
        tree: where `Following` may stand.
        model: what the features are made from.

    Example: `smoother = follow(regression, model).fit(sleep.x)`.
    """

    def is_following(node: Any) -> bool:
        return isinstance(node, Following)

    held = jax.tree.map(lambda a: jax.lax.stop_gradient(a) if eqx.is_array(a) else a, model)
    return jax.tree.map(
        lambda node: node.make(held) if is_following(node) else node, tree, is_leaf=is_following
    )


class Chain(Features):
    """Feature maps one after the other.

    Arguments:
        maps: the first to be applied first.

    Example: `Chain((Standardise.from_data(data), Linear.random(key, 784, 300)))`.
    """

    maps: tuple[Features, ...]

    def __check_init__(self) -> None:
        instance("maps", self.maps, tuple | list, "feature maps in order", CHAIN)
        for step in self.maps:
            check_features(step, "maps", CHAIN)

    def __call__(self, x: PyTree[Array]) -> Float[Array, "batch features"]:
        for step in self.maps:
            x = step(x)
        return x
