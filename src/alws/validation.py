"""Every check of what a user gives, before any long work starts: rule, value, remedy."""

import inspect
import math
import operator
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Key, PyTree
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import Constraint, real

from alws.devices import by_blocks
from alws.model import (
    Density,
    Draws,
    Model,
    Simulator,
    condition_arguments,
    draw,
    finite,
    has_likelihood,
    log_joints,
)

FEWEST_SLEEP_SAMPLES = 10

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


def at_least(name: str, value: Any, least: int, why: str = "") -> None:
    """Refuse a whole number, Python's or NumPy's, that is too small."""
    try:
        whole = not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        whole = False
    if not whole:
        raise ValueError(
            f"`{name}` must be a whole number of at least {least}, got {value!r}.{why}"
        )


def is_number(value: Any) -> bool:
    """Whether a value is one real number, of Python, NumPy or JAX, that is not traced."""
    if isinstance(value, bool | np.bool_ | Tracer):
        return False
    if isinstance(value, int | float | np.integer | np.floating):
        return True
    array = isinstance(value, np.ndarray | jax.Array) and value.shape == ()
    return array and np.issubdtype(value.dtype, np.number) and not np.iscomplexobj(value)


def positive(name: str, value: Any, why: str = "") -> None:
    """Refuse what is not one positive, finite number."""
    if not is_number(value) or not 0 < float(value) < math.inf:
        raise ValueError(f"`{name}` must be positive, a finite number, got {value!r}.{why}")


def yes_or_no(name: str, value: Any) -> None:
    """Refuse what is neither True nor False: every word, "no" among them, counts as true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{name}` must be True or False, got {value!r}.")


def one_of(name: str, value: Any, known: Sequence[str]) -> None:
    """Refuse a word that is not among those known."""
    if not isinstance(value, str) or value not in known:
        words = ", ".join(f'"{word}"' for word in known)
        raise ValueError(f"`{name}` must be one of {words}, got {value!r}.")


def check_key(key: Any) -> None:
    """Refuse what is not one JAX key, such as its seed."""
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = isinstance(key, (jax.Array, np.ndarray)) and key.dtype == np.uint32
    if not (typed and key.shape == ()) and not (raw and key.ndim == 1):
        got = f"shape {key.shape}" if typed or raw else repr(key)
        raise TypeError(f"`key` must be one JAX key, such as `jax.random.key(0)`; got {got}.")


def check_model(model: Any) -> None:
    """Refuse what does not give the model contract."""
    if not isinstance(model, eqx.Module):
        raise TypeError(
            f"the model must be an equinox.Module, got {type(model).__name__}. Write it as "
            "`class MyModel(eqx.Module)` with its parameters as array fields."
        )
    if not has_likelihood(model) and not isinstance(model, Model):
        raise TypeError(
            f"{type(model).__name__} must have `sample(key) -> (z, x)` and `log_joint(z, x)`, or "
            "`sample_latent(key)`, `log_prior(z)` and `likelihood(z)`."
        )
    parameters = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    if not parameters:
        raise ValueError(
            f"{type(model).__name__} has no floating-point array among its fields, so there is "
            "nothing to fit. Make its parameters jax arrays, for example `jnp.array(0.5)`; Python "
            "numbers are constants."
        )
    bad = sum(int(np.sum(~np.isfinite(np.asarray(leaf)))) for leaf in parameters)
    if bad:
        raise ValueError(f"the model's parameters must be finite at the start; {bad} are not.")


def as_arrays(data: PyTree) -> PyTree:
    """The data with every list of numbers, nested or not, as one array; pytrees stay as they are.

    Example: `as_arrays({"x": [1.0, 2.0], "y": y})` has an array of shape (2,) and y.
    """

    def of_numbers(node: Any) -> bool:
        if type(node) not in (list, tuple) or not node:
            return False
        return all(of_numbers(n) or np.isscalar(n) for n in node)

    def convert(node: Any) -> Any:
        if not of_numbers(node):
            return node
        try:
            return np.asarray(node)
        except ValueError as error:
            raise ValueError(
                "lists of numbers must all have the same length to be taken as one array, got "
                f"lengths {[np.size(row) for row in node]}. Sequences of unequal length are padded "
                "and masked by `alws.sequences`."
            ) from error

    return jax.tree.map(convert, data, is_leaf=of_numbers)


def check_data(data: PyTree, name: str = "data") -> int:
    """Refuse empty, ragged or non-finite data; return how many observations there are."""
    leaves = jax.tree.leaves(as_arrays(data))
    if not leaves:
        raise ValueError(f"`{name}` must hold at least one array, got {data!r}.")
    for leaf in leaves:
        if np.ndim(leaf) == 0:
            raise ValueError(
                f"every array in `{name}` must have the observations as its leading axis, got a "
                "scalar. One observation is `data[None]`."
            )
    sizes = {len(leaf) for leaf in leaves}
    if len(sizes) > 1:
        raise ValueError(
            f"every array in `{name}` must have the same number of observations, got {sizes}. "
            "Sequences of unequal length are padded and masked by `alws.sequences`."
        )
    (size,) = sizes
    if size == 0:
        raise ValueError(f"`{name}` must hold at least one observation, got 0.")
    for leaf in leaves:
        if np.issubdtype(np.asarray(leaf).dtype, np.inexact):
            bad = int(np.sum(~np.isfinite(np.asarray(leaf))))
            if bad:
                raise ValueError(
                    f"`{name}` must be finite, got {bad} entries that are NaN or infinite. Leave "
                    "those observations out, model what is missing as a latent, or, for a state-"
                    "space model, mark the missing times with `alws.sequences`."
                )
    return size


def match_data(
    model: Any, data: PyTree, key: Key[Array, ""], condition: PyTree | None = None
) -> PyTree[Array]:
    """The data as the model's own x: same structure and shapes, its dtypes. Refuse a mismatch."""
    what = "`sample(key)`" if isinstance(model, Simulator) else "`likelihood(z).sample(key)`"
    drawn = shape_of_draw(model, key, condition)
    data = as_arrays(data)
    if jax.tree.structure(drawn.x) != jax.tree.structure(data):
        raise ValueError(
            f"the x drawn by {what} must have the structure of one observation; it is "
            f"{jax.tree.structure(drawn.x)}, the data are {jax.tree.structure(data)}."
        )
    return jax.tree.map(lambda x, d: _match_leaf(x, d, what), drawn.x, data)


def _match_leaf(x: jax.ShapeDtypeStruct, data: Any, what: str) -> Array:
    if x.shape != np.shape(data)[1:]:
        raise ValueError(
            f"the x drawn by {what} must have the shape of one observation, {np.shape(data)[1:]}; "
            f"got {x.shape}. The data's leading axis counts observations."
        )
    values = np.asarray(data)
    if not np.issubdtype(x.dtype, np.inexact) and not np.array_equal(values, np.round(values)):
        raise ValueError(
            f"{what} draws whole numbers ({x.dtype}) but the data are not whole. Return floating-"
            "point x, or round the data."
        )
    return jnp.asarray(values, x.dtype)


def check_log_joint(
    model: Any, key: Key[Array, ""], number: int, condition: PyTree | None = None
) -> Draws:
    """Refuse a log joint that is not scalar or not finite on the model's draws; return these."""
    check_densities(model, shape_of_draw(model, key, condition), condition)
    number = operator.index(number)
    draws, replaced, bad = eqx.filter_jit(_first_draws)(model, key, number, condition)
    if int(replaced) == number:
        raise ValueError(
            f"every one of {number} draws from the model holds NaN or infinite numbers. Check "
            "`sample` and the start values."
        )
    if int(bad):
        raise ValueError(
            f"`log_joint(z, x)` must be finite on the model's own draws; {int(bad)} of {number} "
            "are not. Check that it scores what `sample` draws (support, bounds, log of 0)."
        )
    return draws


def check_support(
    model: Any, data: PyTree[Array], key: Key[Array, ""], condition: PyTree | None
) -> None:
    """Refuse observations that the likelihood gives no density to, where the model has one."""
    if not has_likelihood(model):
        return
    inside = np.asarray(eqx.filter_jit(_in_support)(model, data, key, condition))
    outside = np.flatnonzero(~inside)
    if outside.size:
        first = jax.tree.map(lambda a: np.asarray(a[outside[0]]), data)
        raise ValueError(
            f"every observation must lie where `likelihood(z)` has a density; of {inside.size}, "
            f"{outside.size} do not, the first of them at index {outside[0]}: {first}. Leave "
            "them out, or choose a likelihood that has a density there."
        )


def _in_support(
    model: Any, data: PyTree[Array], key: Key[Array, ""], condition: PyTree | None
) -> Bool[Array, " observations"]:
    """Whether s(x) and log h(x) are finite, which depend on z and θ by their shapes alone."""
    args = condition_arguments(condition)
    likelihood = model.likelihood(model.sample_latent(key, *args), *args)

    def some(x: PyTree) -> Array:
        found = jax.vmap(lambda x: (likelihood.sufficient_statistics(x), likelihood.log_base(x)))(x)
        return finite(found)

    return by_blocks(some, data)


def _first_draws(
    model: Any, key: Key[Array, ""], number: int, condition: PyTree | None
) -> tuple[Draws, Array, Array]:
    draws, replaced = draw(model, key, number, condition)
    return draws, replaced, jnp.sum(~jnp.isfinite(log_joints(model, draws, condition)))


def check_arguments(model: Any, *, conditional: bool) -> None:
    """Refuse methods that cannot be called with or without a condition, as asked; by signature."""
    split = ("sample_latent", "log_prior", "likelihood") if has_likelihood(model) else ()
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
        name = "sample" if isinstance(model, Simulator) else "sample_latent"
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
    if has_likelihood(model):
        prior = jax.eval_shape(lambda z: model.log_prior(z, *args), draw.z)
        _check_scalar("log_prior(z)", prior, "z")
        value = jax.eval_shape(lambda z, x: _likelihood(model, z, args).log_prob(x), *draw)
        _check_scalar("likelihood(z).log_prob(x)", value, "x")
    if isinstance(model, Density):
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
    if isinstance(model, Simulator):
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


def bounded(transform: Any) -> bool:
    """Whether a transform's image is anything but all real numbers."""
    return transform.codomain is not real


def transforms_of(support: Any, latent: PyTree) -> list[Any]:
    """One transform for each leaf of z."""

    def is_support(node: Any) -> bool:
        return isinstance(node, Constraint) or (hasattr(node, "inv") and callable(node))

    structure = jax.tree.structure(latent)
    if support is None or is_support(support):
        given = [real if support is None else support] * structure.num_leaves
    else:
        given, found = jax.tree.flatten(support, is_leaf=is_support)
        if found != structure:
            raise ValueError(
                f"`support` must be one constraint, or a pytree of them like z, {structure}; got "
                f"{found}. Use `numpyro.distributions.constraints.real` where z is not bounded."
            )
    for entry in given:
        if not is_support(entry):
            raise TypeError(
                "`support` must be made of NumPyro constraints or transforms, got "
                f"{type(entry).__name__}. For example numpyro.distributions.constraints.positive."
            )
    return [biject_to(entry) if isinstance(entry, Constraint) else entry for entry in given]


def refuse_discrete(latent: PyTree) -> None:
    """Refuse latents that have no gradient."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(latent)[0]:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"`posterior_mode` climbs a gradient, so z must be floating point; z"
                f"{jax.tree_util.keystr(path)} is {leaf.dtype}. For a discrete latent use `alws."
                "expectation(model, lambda z: jax.nn.one_hot(z, K), x, key=key)`, the posterior "
                "probabilities, and take the largest."
            )


def refuse_bad_targets(value: PyTree) -> None:
    """Refuse an f(z) that cannot be regressed."""
    leaves = jax.tree.leaves(value)
    if not leaves:
        raise ValueError("`f(z)` must return at least one array, got none.")
    for leaf in leaves:
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise ValueError(
                f"`f(z)` must be real, got {leaf.dtype}. Return the real and imaginary parts."
            )


def match_conditions(conditions: PyTree | None, size: int) -> PyTree | None:
    """The conditions as arrays, one for each observation."""
    if conditions is None:
        return None
    given = check_data(conditions, "conditions")
    if given != size:
        raise ValueError(
            f"`conditions` must have one entry for each observation, {size}; got {given}."
        )
    return jax.tree.map(jnp.asarray, as_arrays(conditions))


def match_start(start: PyTree, latent: PyTree, size: int) -> PyTree[Array]:
    """The start as arrays, one z for each observation."""
    if jax.tree.structure(start) != jax.tree.structure(latent):
        raise ValueError(
            f"`start` must have the structure of z, {jax.tree.structure(latent)}; got "
            f"{jax.tree.structure(start)}."
        )
    for given, one in zip(jax.tree.leaves(start), jax.tree.leaves(latent), strict=True):
        if jnp.shape(given) != (size, *one.shape):
            raise ValueError(
                f"`start` must hold one z for each observation, shape {(size, *one.shape)}; got "
                f"{jnp.shape(given)}."
            )
    return jax.tree.map(lambda s, one: jnp.asarray(s, one.dtype), start, latent)
