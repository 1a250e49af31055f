"""The model contract: anything that can be simulated and scored.

A model is an Equinox module that describes one example at a time:

- `sample(key) -> (z, x)`, one draw from p_θ(z, x); `z` is any pytree, `x` an array or a pytree;
- `log_joint(z, x) -> scalar`, log p_θ(z, x), differentiable in θ.

θ is the floating-point array leaves of the module, NumPy's among them. What is to stay as it is can
be a Python number, a static field, or an array used through `jax.lax.stop_gradient`.

A model whose likelihood is an exponential family (§3.3 of the paper) gives instead

- `sample_latent(key) -> z`, `log_prior(z) -> scalar` and `likelihood(z)`, an object of
  `alws.likelihoods`,

and a conditional model takes one more positional argument, the condition, in each of these.

The functions below give every such model the same two verbs, `sample` and `log_joint`. Where they
take a condition they also take many, `Pooled`: draws are then under all of these, and what is
observed is the pair (condition, x).
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import (
    Any,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeGuard,
    TypeVar,
    runtime_checkable,
)

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.devices import by_blocks, over_devices
from alws.values import at_least, check_key

P = ParamSpec("P")
R = TypeVar("R")


@runtime_checkable
class Simulator(Protocol):
    """What can be simulated."""

    @property
    def sample(self) -> Callable[..., tuple[PyTree, PyTree]]:
        """`sample(key)`, one draw (z, x) from p_θ(z, x)."""
        ...


@runtime_checkable
class Density(Protocol):
    """What has a log joint density."""

    @property
    def log_joint(self) -> Callable[..., Float[Array, ""]]:
        """`log_joint(z, x)`, log p_θ(z, x)."""
        ...


@runtime_checkable
class Prior(Protocol):
    """What says the density of its latents by themselves."""

    @property
    def log_prior(self) -> Callable[..., Float[Array, ""]]:
        """`log_prior(z)`, log p_θ(z)."""
        ...


@runtime_checkable
class Model(Simulator, Density, Protocol):
    """A model given by its simulator and its log joint density."""


@runtime_checkable
class ExponentialFamilyModel(Prior, Protocol):
    """A model given by its prior and an exponential-family likelihood, p_θ(z) p_θ(x | z)."""

    @property
    def sample_latent(self) -> Callable[..., PyTree]:
        """`sample_latent(key)`, one draw z from p_θ(z)."""
        ...

    @property
    def likelihood(self) -> Callable[..., Any]:
        """`likelihood(z)`, p_θ(x | z), an `alws.likelihoods.Likelihood`."""
        ...


@runtime_checkable
class Terms(Protocol):
    """A model whose log joint is a sum of terms that each look at a part of the observation.

    Such as the times of a sequence, or the rows of a group. See `alws.estimates.Local`.
    """

    @property
    def terms(self) -> Callable[..., Float[Array, " terms"]]:
        """`terms(z, x)`, the terms of log p_θ(z, x); their sum is the log joint density."""
        ...

    @property
    def views(self) -> Callable[..., PyTree]:
        """`views(x)`, what each term is regressed on; the terms are its leaves' leading axis."""
        ...


AnyModel: TypeAlias = Model | ExponentialFamilyModel
"""Whatever `alws.fit` can fit."""

POOL = 1
"""What the key of a set of draws is folded with, to choose their conditions."""


class Draws(NamedTuple):
    """A batch of latents and observations; every leaf has the batch as its leading axis."""

    z: PyTree
    x: PyTree


class Pooled(eqx.Module):
    """Many conditions in place of one: each draw is under one of them, and carries it.

    What is observed of a draw is the pair (condition, x), so that one regression on pairs serves
    all conditions, those that were never drawn too.

    Example: `alws.model.draw(model, key, 1000, Pooled(conditions))[0].x` is `(conditions, x)`.
    """

    conditions: PyTree[Array]

    def balanced(self, key: Key[Array, ""], number: int) -> PyTree[Array]:
        """`number` of them in random order, each as often as any other, up to one."""
        size = jax.tree.leaves(self.conditions)[0].shape[0]
        order = jax.random.permutation(key, size)
        chosen = order[jnp.arange(number) % size]
        return jax.tree.map(lambda c: c[chosen], self.conditions)


def separated(x: PyTree, condition: PyTree | None) -> tuple[PyTree, PyTree | None]:
    """An observation and its condition, which it carries if there are many.

    Example: `separated((c, x), Pooled(conditions))` is `(x, c)`.
    """
    if isinstance(condition, Pooled):
        condition, x = x
    return x, condition


def condition_arguments(condition: PyTree | None) -> tuple[PyTree, ...]:
    """The positional arguments that a condition adds to a model's methods."""
    if isinstance(condition, Pooled):
        raise TypeError(
            "one regression for all conditions needs an estimate that takes the condition from "
            "each observation; this one takes a single condition. Use "
            '`alws.Settings(conditions="separate")`.'
        )
    return () if condition is None else (condition,)


def has_likelihood(model: Any) -> TypeGuard[ExponentialFamilyModel]:
    """Whether the model gives the parts that the exponential-family split needs.

    Example: `has_likelihood(model)`, before asking for `model.likelihood(z)`.
    """
    return isinstance(model, ExponentialFamilyModel)


def sample(model: AnyModel, key: Key[Array, ""], condition: PyTree | None = None) -> Draws:
    """One draw (z, x) ~ p_θ, whichever way the model was given."""
    args = condition_arguments(condition)
    if isinstance(model, Simulator):
        return Draws(*model.sample(key, *args))
    assert has_likelihood(model)
    latent_key, observation_key = jax.random.split(key)
    z = model.sample_latent(latent_key, *args)
    return Draws(z, model.likelihood(z, *args).sample(observation_key))


def log_joint(
    model: AnyModel, z: PyTree, x: PyTree, condition: PyTree | None = None
) -> Float[Array, ""]:
    """log p_θ(z, x), whichever way the model was given.

    Arguments:
        model: any model that `alws.fit` takes.
        z, x: one latent and one observation, without a leading axis.
        condition: its condition, if the model takes one.

    Example: `jax.vmap(lambda z, x: alws.log_joint(model, z, x))(draws.z, draws.x)`.
    """
    x, condition = separated(x, condition)
    args = condition_arguments(condition)
    if isinstance(model, Density):
        return model.log_joint(z, x, *args)
    if not has_likelihood(model):
        raise TypeError(
            f"the model must have `log_joint(z, x)`, or `log_prior(z)` and `likelihood(z)`, got "
            f"{type(model).__name__}."
        )
    return model.log_prior(z, *args) + model.likelihood(z, *args).log_prob(x)


def log_joints(
    model: AnyModel, draws: Draws, condition: PyTree | None = None
) -> Float[Array, " batch"]:
    """log p_θ(z_n, x_n) of every draw."""

    def some(draws: Draws) -> Array:
        return jax.vmap(lambda z, x: log_joint(model, z, x, condition))(draws.z, draws.x)

    return by_blocks(some, draws)


def finite(tree: PyTree) -> Array:
    """Which rows of a batched pytree hold only finite numbers: those whose product with 0 is 0."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    flat = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
    rows = [leaf @ jnp.zeros(leaf.shape[1], leaf.dtype) == 0 for leaf in flat]
    return jnp.stack(rows).all(axis=0) if rows else jnp.array(True)


def simulate(
    model: AnyModel, key: Key[Array, ""], number: int, condition: PyTree | None = None
) -> Draws:
    """`number` independent draws from p_θ as they come, θ held constant."""
    model = _without_gradient(model)
    keys = over_devices(jax.random.split(key, number))
    if not isinstance(condition, Pooled):
        return over_devices(by_blocks(jax.vmap(lambda k: sample(model, k, condition)), keys))

    def pair(key: Key[Array, ""], c: PyTree) -> Draws:
        z, x = sample(model, key, c)
        return Draws(z, (c, x))

    conditions = over_devices(condition.balanced(jax.random.fold_in(key, POOL), number))
    return over_devices(by_blocks(lambda rows: jax.vmap(pair)(*rows), (keys, conditions)))


def replace_nonfinite(draws: Draws) -> tuple[Draws, Array]:
    """Draws with a finite one in place of each that is not, and how many there were of those.

    A simulator may overflow now and then; no NaN may reach the regression.
    """
    number = jax.tree.leaves(draws)[0].shape[0]
    good = jnp.broadcast_to(finite(draws), (number,))
    first = jnp.argmax(good)

    def replace(leaf: Array) -> Array:
        rows = good.reshape(number, *[1] * (leaf.ndim - 1))
        return jnp.where(rows, leaf, leaf[first])

    return jax.tree.map(replace, draws), number - good.sum()


MOST_DRAWS = 2**31
"""As many draws at once have no number of 32 bits each."""


def draw(
    model: AnyModel, key: Key[Array, ""], number: int, condition: PyTree | None = None
) -> tuple[Draws, Array]:
    """Independent draws from p_θ, and how many were not finite and were replaced.

    Arguments:
        model: any model that `alws.fit` takes.
        key: a JAX key.
        number: how many.
        condition: one condition, of all draws, if the model takes one.

    Example: `draws, replaced = alws.draw(result.model, key, 1000)`.
    """
    _check_simulator(model)
    check_key(key)
    at_least("number", number, 1)
    check_number(number)
    return replace_nonfinite(simulate(model, key, number, condition))


def check_number(number: int) -> None:
    """Refuse so many draws that they have no number each.

    Example: `check_number(1000)`.
    """
    if number >= MOST_DRAWS:
        raise ValueError(
            f"`number` must be below {MOST_DRAWS:,}, got {number:,}. Draw them in parts, each with "
            "a key of its own."
        )


def precision(model: AnyModel) -> AbstractContextManager:
    """Within this context floating-point numbers are as long as the model asks for.

    A class that says `double = True` is simulated and fitted in float64, all others as JAX is set.

    Arguments:
        model: any model that `alws.fit` takes.

    Example: `with alws.precision(model): draws, _ = alws.draw(model, key, 1000)`.
    """
    return jax.enable_x64(True) if getattr(model, "double", False) else nullcontext()


def in_own_precision(function: Callable[P, R]) -> Callable[P, R]:
    """`function(model, ...)` in the precision the model asks for, its parameters with it.

    The first argument, by place or by name, may also be the result of a fit, which has a model.
    """
    name = next(iter(inspect.signature(function).parameters))

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0] if args else kwargs.get(name)
        if not getattr(getattr(first, "model", first), "double", False):
            return function(*args, **kwargs)
        with jax.enable_x64(True):
            if args:
                return function(_doubled(first), *args[1:], **kwargs)  # pyright: ignore
            return function(**{**kwargs, name: _doubled(first)})  # pyright: ignore

    return call


def _doubled(model: Any) -> Any:
    return jax.tree.map(
        lambda a: jnp.asarray(a, jnp.float64) if eqx.is_inexact_array(a) else a, model
    )


def _check_simulator(model: Any) -> None:
    if not isinstance(model, Simulator) and not has_likelihood(model):
        raise TypeError(
            f"the model must have `sample(key)`, or `sample_latent(key)` and `likelihood(z)`, got "
            f"{type(model).__name__}."
        )


def _without_gradient(model: AnyModel) -> Any:
    """The model with its parameters held constant."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)
