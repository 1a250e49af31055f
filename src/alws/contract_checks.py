"""Checks of a model's methods: what they take, and what they give for one example."""

import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from alws.model import Draws, condition_arguments, splits

ARGUMENTS = {
    "sample": "key",
    "log_joint": "z, x",
    "sample_latent": "key",
    "log_prior": "z",
    "likelihood": "z",
}
LIKELIHOOD = (
    "sample",
    "log_prob",
    "natural_parameters",
    "sufficient_statistics",
    "log_normaliser",
    "log_base",
)


def check_arguments(model: Any, *, conditional: bool) -> None:
    """Refuse methods that cannot be called with or without a condition, as asked; by signature."""
    split = ("sample_latent", "log_prior", "likelihood") if splits(model) else ()
    names = [name for name in ("sample", "log_joint", *split) if hasattr(model, name)]
    wrong = [name for name in names if not _takes(model, name, conditional)]
    if not wrong:
        return
    asked = ", ".join(_call(name, conditional) for name in wrong)
    if not all(_takes(model, name, not conditional) for name in wrong):
        found = f"{wrong[0]}{_signature(model, wrong[0])}"
        raise TypeError(f"the model must allow for the calls {asked}; got `{found}`.")
    if len(wrong) < len(names):
        right = ", ".join(_call(name, conditional) for name in names if name not in wrong)
        raise TypeError(
            f"a condition must be an argument of all methods or of none: {right} can be called, "
            f"{asked} cannot. Add the condition as last argument where it is missing."
        )
    if conditional:
        raise TypeError(
            f"`conditions` were given to a model without any: {asked} cannot be called. Leave "
            "`conditions` out, or add the condition as last argument of the model's methods."
        )
    raise TypeError(
        f"{_call(wrong[0], False)} asks for more than {'a key' if 'sample' in wrong[0] else 'that'}"
        f": it is `{wrong[0]}{_signature(model, wrong[0])}`. Pass `conditions=` to fit a "
        "conditional model."
    )


def shape_of_draw(model: Any, key: Key[Array, ""], condition: PyTree | None = None) -> Draws:
    """The shapes of one draw (z, x). Refuse methods that cannot be called, or give no pair."""
    args = condition_arguments(condition)
    check_arguments(model, conditional=bool(args))
    try:
        drawn = jax.eval_shape(lambda k: _draw(model, k, args), key)
    except TypeError as error:
        name = "sample" if hasattr(model, "sample") else "sample_latent"
        if condition is None and _takes(model, name, True):  # with or without: it decides itself
            raise TypeError(f"{error} Pass `conditions=` if the model is conditional.") from error
        raise
    if not isinstance(drawn, (tuple, list)) or len(drawn) != 2:
        raise TypeError(
            f"`sample(key)` must return a pair, the latents and the observation (z, x); got "
            f"{_described(drawn)}. A model without latents can return `0, x`."
        )
    return Draws(*drawn)


def check_densities(model: Any, draw: Draws, condition: PyTree | None = None) -> None:
    """Refuse a log density that is not one number for one example, by its shape."""
    args = condition_arguments(condition)
    if splits(model):
        prior = jax.eval_shape(lambda z: model.log_prior(z, *args), draw.z)
        _check_scalar("log_prior(z)", prior, "z")
        value = jax.eval_shape(lambda z, x: _likelihood(model, z, args).log_prob(x), *draw)
        _check_scalar("likelihood(z).log_prob(x)", value, "x")
    if hasattr(model, "log_joint"):
        value = jax.eval_shape(lambda z, x: model.log_joint(z, x, *args), *draw)
        _check_scalar("log_joint(z, x)", value, "x")
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            raise ValueError(f"`log_joint(z, x)` must be floating point, got {value.dtype}.")


def check_log_prior(log_prior: Any, model: Any) -> None:
    """Refuse a penalty that is not one number for the whole of θ.

    Example: `check_log_prior(lambda model: -jnp.sum(model.weight**2), model)` passes.
    """
    if log_prior is None:
        return
    if not callable(log_prior):
        raise TypeError(
            "`log_prior` must be a function of the model that returns log p(θ), got "
            f"{type(log_prior).__name__}."
        )
    value = eqx.filter_eval_shape(log_prior, model)
    if getattr(value, "shape", None) != ():
        raise ValueError(
            f"`log_prior(model)` must return a scalar, log p(θ), got {_described(value)}. Sum over "
            "the parameters."
        )


def _draw(model: Any, key: Key[Array, ""], args: tuple[PyTree, ...]) -> Any:
    if hasattr(model, "sample"):
        return model.sample(key, *args)
    z = model.sample_latent(key, *args)
    return z, _likelihood(model, z, args).sample(key)


def _likelihood(model: Any, z: PyTree, args: tuple[PyTree, ...]) -> Any:
    found = model.likelihood(z, *args)
    missing = [name for name in LIKELIHOOD if not hasattr(found, name)]
    if missing:
        kind = f"{type(found).__module__}.{type(found).__name__}"
        raise TypeError(
            f"`likelihood(z)` must return a likelihood of `alws.likelihoods`, such as `Gaussian("
            f"mean, scale)`; got {kind}, which has no `{missing[0]}`. Any other distribution goes "
            "into a model with `sample(key) -> (z, x)` and `log_joint(z, x)`."
        )
    return found


def _check_scalar(call: str, value: Any, entries: str) -> None:
    if getattr(value, "shape", None) != ():
        raise ValueError(
            f"`{call}` must return a scalar for one example, got {_described(value)}. Sum over the "
            f"entries of {entries}."
        )


def _described(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"shape {value.shape}"
    if isinstance(value, (tuple, list)):
        return f"{len(value)} things"
    return type(value).__name__


def _call(name: str, conditional: bool) -> str:
    return f"`{name}({ARGUMENTS[name]}{', condition' if conditional else ''})`"


def _signature(model: Any, name: str) -> inspect.Signature:
    return inspect.signature(getattr(model, name))


def _takes(model: Any, name: str, conditional: bool) -> bool:
    """Whether the method's signature allows for the call; a signature hidden from view does."""
    number = ARGUMENTS[name].count(",") + 1 + conditional
    try:
        _signature(model, name).bind(*[None] * number)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
