"""Every check of what a user gives, before any long work starts: rule, value, remedy."""

import inspect
import math
import operator
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Key, PyTree
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import Constraint, real

from alws.devices import ADDRESS, by_blocks, fingerprint, memory, on_every_device
from alws.groups import Rows
from alws.model import (
    Density,
    Draws,
    Model,
    Pooled,
    Simulator,
    condition_arguments,
    draw,
    has_likelihood,
    log_joints,
    sample,
)
from alws.values import at_least as at_least
from alws.values import cast as cast
from alws.values import check_key as check_key
from alws.values import floating as floating
from alws.values import function as function
from alws.values import instance as instance
from alws.values import is_number as is_number
from alws.values import numbers as numbers
from alws.values import one_of as one_of
from alws.values import own as own
from alws.values import positive as positive
from alws.values import yes_or_no as yes_or_no

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
    "in_support",
    "log_prob",
    "natural_parameters",
    "sufficient_statistics",
    "log_normaliser",
    "log_base",
)


def check_model(model: Any, *, parameters: bool = True, density: bool = True) -> None:
    """Refuse what does not give the model contract.

    Arguments:
        model: anything.
        parameters: whether it must have some to fit.
        density: whether it must have a log joint beside its simulator.
    """
    if not isinstance(model, eqx.Module):
        raise TypeError(
            f"the model must be an equinox.Module, got {type(model).__name__}. Write it as "
            "`class MyModel(eqx.Module)` with its parameters as array fields."
        )
    if not has_likelihood(model) and not isinstance(model, Model if density else Simulator):
        raise TypeError(
            f"{type(model).__name__} must have `sample(key) -> (z, x)` and `log_joint(z, x)`, or "
            "`sample_latent(key)`, `log_prior(z)` and `likelihood(z)`."
        )
    leaves = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    if parameters and not sum(leaf.size for leaf in leaves):
        raise ValueError(
            f"{type(model).__name__} has no floating-point array among its fields, so there is "
            "nothing to fit. Make its parameters jax arrays, for example `jnp.array(0.5)`; Python "
            "numbers are constants."
        )
    if any(jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf in leaves):
        raise TypeError(
            f"the parameters of {type(model).__name__} must be real, got complex ones. Make their "
            "real and imaginary parts two fields."
        )
    bad = sum(int(np.sum(~np.isfinite(np.asarray(leaf, float)))) for leaf in leaves)
    if bad:
        when = " at the start" if parameters else ""
        raise ValueError(f"the model's parameters must be finite{when}; {bad} are not.")


def as_arrays(data: PyTree) -> PyTree:
    """The data with every list of numbers, nested or not, as one array; pytrees stay as they are.

    Example: `as_arrays({"x": [1.0, 2.0], "y": y})` has an array of shape (2,) and y.
    """

    def of_numbers(node: Any) -> bool:
        if type(node) not in (list, tuple) or not node:
            return False
        return all(of_numbers(n) or n is None or np.isscalar(n) for n in node)

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
    try:
        leaves = jax.tree.leaves(as_arrays(data))
    except ValueError as error:
        if type(error) is ValueError and "same length" in str(error):
            raise
        raise ValueError(f"`{name}` must be arrays, or a pytree of them: {error}.") from error
    if not leaves:
        raise ValueError(f"`{name}` must hold at least one array, got {data!r:.100}.")
    leaves = [numbers(leaf, name) for leaf in leaves]
    for leaf in leaves:
        if leaf.ndim == 0:
            one = isinstance(data, list | tuple) and len(data) > 1
            remedy = f"Write `jnp.stack({name})`" if one else f"One observation is `{name}[None]`"
            raise ValueError(
                f"every array in `{name}` must have the observations as its leading axis, got a "
                f"scalar. {remedy}."
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
        if leaf.dtype.kind not in "biu":
            bad = int(np.sum(~np.isfinite(leaf)))
            if bad:
                raise ValueError(
                    f"`{name}` must be finite, got {bad} entries that are NaN or infinite. Leave "
                    "those observations out, model what is missing as a latent, or, for a state-"
                    "space model, mark the missing times with `alws.sequences`."
                )
    return size


def match_data(
    model: Any,
    data: PyTree,
    key: Key[Array, ""],
    condition: PyTree | None = None,
    name: str = "data",
) -> PyTree[Array]:
    """The data as the model's own x: same structure and shapes, its dtypes. Refuse a mismatch."""
    what = "`sample(key)`" if isinstance(model, Simulator) else "`likelihood(z).sample(key)`"
    drawn = shape_of_draw(model, key, condition)
    data = as_arrays(data)
    if jax.tree.structure(drawn.x) != jax.tree.structure(data):
        raise ValueError(
            f"the x drawn by {what} must have the structure of one observation; it is "
            f"{jax.tree.structure(drawn.x)}, `{name}` is {jax.tree.structure(data)}."
        )
    return jax.tree.map(lambda x, d: _match_leaf(x, d, what, name), drawn.x, data)


def _match_leaf(x: jax.ShapeDtypeStruct, data: Any, what: str, name: str) -> Array:
    values = numbers(data, name)
    if x.shape != values.shape[1:]:
        raise ValueError(
            f"the x drawn by {what} must have the shape of one observation, {values.shape[1:]}; "
            f"got {x.shape}. The leading axis of `{name}` counts observations."
        )
    if not jnp.issubdtype(x.dtype, jnp.inexact) and not np.array_equal(values, np.round(values)):
        raise ValueError(
            f"{what} draws whole numbers ({x.dtype}) but the data are not whole. Return floating-"
            "point x, or round the data."
        )
    return cast(values, x.dtype, name)


def check_log_joint(
    model: Any, key: Key[Array, ""], number: int, condition: PyTree | None = None
) -> Draws:
    """Refuse a log joint that is not scalar or not finite on the model's draws; return these."""
    one = condition
    if isinstance(condition, Pooled):
        one = jax.tree.map(lambda c: c[0], condition.conditions)
    check_densities(model, shape_of_draw(model, key, one), one)
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
    model: Any,
    data: PyTree[Array],
    key: Key[Array, ""],
    condition: PyTree | None = None,
    name: str = "data",
    *,
    conditions: PyTree | None = None,
) -> None:
    """Refuse observations outside the support of the likelihood, where the model has one.

    They have one condition for all, or each its own of the `conditions`.
    """
    if not has_likelihood(model):
        return
    inside = np.asarray(eqx.filter_jit(_in_support)(model, data, key, condition, conditions))
    outside = np.flatnonzero(~inside)
    if outside.size:
        first = jax.tree.map(lambda a: np.asarray(a[outside[0]]), data)
        raise ValueError(
            f"`{name}` must lie where `likelihood(z)` has a density; of {inside.size} observations "
            f"{outside.size} do not, the first of them at index {outside[0]}: {first}. Leave "
            "them out, or choose a likelihood that has a density there."
        )


def check_simulator(model: Any, key: Key[Array, ""], condition: PyTree | None = None) -> None:
    """Refuse a simulator that gives different draws for one key, as NumPy's random numbers do.

    Its program is read twice. Where that differs, or asks Python for numbers as it runs, two draws
    with one key are compared.
    """
    first, second = _program(model, key, condition), _program(model, key, condition)
    if first == second and "callback" not in first:
        return
    draws = [jax.tree.leaves(sample(model, key, condition)) for _ in range(2)]
    if all(np.array_equal(a, b, equal_nan=_may_be_nan(a)) for a, b in zip(*draws, strict=True)):
        return
    raise ValueError(
        f"`{_simulator(model)}` must give the same draw for the same key; two draws with one key "
        "differ. Take all random numbers from `jax.random` and the key: NumPy's and Python's are "
        "drawn once, when the model is compiled."
    )


def _program(model: Any, key: Key[Array, ""], condition: PyTree | None) -> str:
    """What the simulator does, as text, with the constants in it."""
    closed = jax.make_jaxpr(lambda k: tuple(sample(model, k, condition)))(key)
    return ADDRESS.sub("", str(closed.jaxpr)) + fingerprint(closed.consts)


def _may_be_nan(array: Any) -> bool:
    return np.issubdtype(np.asarray(array).dtype, np.inexact)


def _simulator(model: Any) -> str:
    return "sample(key)" if isinstance(model, Simulator) else "likelihood(z).sample(key)"


def check_varied(
    model: Any, draws: Draws, key: Key[Array, ""], condition: PyTree | None = None
) -> None:
    """Refuse a simulator whose x is the same in every draw, whatever its key."""
    if not _all_same(draws.x):
        return
    more, _ = eqx.filter_jit(draw)(model, jax.random.fold_in(key, 1), MORE_DRAWS, condition)
    if _all_same(more.x):
        first = jax.tree.map(lambda a: np.asarray(a[0]), more.x)
        raise ValueError(
            f"`{_simulator(model)}` must give another x for another key; all of {MORE_DRAWS} draws "
            f"have the same, {first!s:.100}. Take its random numbers from `jax.random` and the key "
            "(NumPy's are drawn once, when the model is compiled), or start from parameters whose "
            "draws differ."
        )


MORE_DRAWS = 1000
"""How many draws must have the same x until a simulator counts as constant."""


@jax.jit
def _all_same(x: PyTree[Array]) -> Bool[Array, ""]:
    same = jnp.stack([(leaf == leaf[:1]).all() for leaf in jax.tree.leaves(x)]).all()
    return on_every_device(same)


def check_discrete(draws: Draws, data: PyTree[Array], name: str = "data") -> None:
    """Refuse data between the values of an entry whose draws are all whole, or all 0 and 1.

    An entry counts as 0 and 1 alone if so many of its draws are 1 that counts would have had a 2.
    """
    for drawn, given in zip(jax.tree.leaves(draws.x), jax.tree.leaves(data), strict=True):
        whole, binary = (np.asarray(entries) for entries in _kinds_of_entries(drawn))
        for entries, what, values in (
            (whole, "whole numbers", "whole"),
            (binary, "0 and 1", "0 or 1"),
        ):
            if not entries.any():
                continue
            observed = np.asarray(given)
            inside = observed == np.round(observed)
            if values == "0 or 1":
                inside = (observed == 0) | (observed == 1)
            bad = np.argwhere(entries & ~inside)
            if bad.size:
                first = tuple(bad[0])
                raise ValueError(
                    f"`{name}` must be what the model can draw; every one of {len(drawn)} draws is "
                    f"{what} there, and the data have {observed[first]!s} at index "
                    f"{list(map(int, first))}. Check that the model suits the data, or leave that "
                    "out."
                )


def draws_of_each(
    model: Any, conditions: PyTree[Array], key: Key[Array, ""], number: int
) -> PyTree[Array]:
    """As many draws under conditions in turn, or under some of them where they are more.

    Example: `check_discrete(draws_of_each(model, conditions, key, 1000), data)`.
    """
    size = len(jax.tree.leaves(conditions)[0])
    turn = np.arange(number) * max(size, number) // number % size
    keys = jax.random.split(key, number)
    chosen = jax.tree.map(lambda c: c[turn], conditions)
    return jax.jit(jax.vmap(lambda k, c: sample(model, k, c)))(keys, chosen)


WHOLE_BELOW = 2.0**20
"""Beyond this, floating-point numbers are whole by themselves."""


@jax.jit
def _kinds_of_entries(drawn: Array) -> tuple[Array, Array]:
    """Which entries of x were whole in every draw, and which 0 and 1 alone; constant ones none."""
    drawn = drawn.astype(float)
    varied = (drawn != drawn[:1]).any(axis=0)
    whole = ((drawn == jnp.round(drawn)) & (jnp.abs(drawn) < WHOLE_BELOW)).all(axis=0)
    binary = ((drawn == 0) | (drawn == 1)).all(axis=0)
    # Counts with as many ones would have some n₁²/2N twos; none of 10 is too few for chance.
    certain = drawn.sum(axis=0) ** 2 > 20 * drawn.shape[0]
    return on_every_device((whole & varied, binary & varied & certain))


def check_validation(samples: int, sleep_samples: int) -> None:
    """Refuse more validation samples than the memory holds predictions for.

    Example: `check_validation(10**10, 1000)` raises.
    """
    each, room = 4 * min(sleep_samples, 1000), memory()
    if each * samples > room:
        raise ValueError(
            f"`validation_samples` must leave room for what is predicted at them; {samples:,} of "
            f"them need about {_size(each * samples)} of memory, of {_size(room)} here. Some "
            "hundreds are usual."
        )


def check_cost(regression: Any, samples: int) -> None:
    """Refuse a regression on more samples than the memory holds: what it needs, and what would do.

    Example: `check_cost(alws.regressions.KernelRidge(kernel), 200_000)` raises.
    """
    if regression is None:
        return
    room = memory()
    needs = regression.cost(samples)
    if needs.memory <= room:
        return
    most = 10
    while regression.cost(2 * most).memory <= room:
        most *= 2
    rate = SPEED * (os.cpu_count() or 1)
    remedy = f"Use at most {most:,} of them"
    if FEATURES_COST * samples <= room:
        kernel = "kernel" if hasattr(regression, "kernel") else "alws.kernels.SquaredExponential()"
        remedy += (
            f", or `regression=alws.regressions.RandomFeatures({kernel}, frequencies=500)` or "
            f"`alws.regressions.Nystrom({kernel}, inducing=500)`, which need about "
            f"{_size(FEATURES_COST * samples)}"
        )
    raise ValueError(
        f"`sleep_samples` must leave room for the regression; with {samples:,} of them a step of "
        f"{type(regression).__name__} needs about {_size(needs.memory)} of memory, of "
        f"{_size(room)} here, and about {_time(needs.operations / rate)}. {remedy}."
    )


SPEED = 1e10
"""Operations a second that a core does, roughly."""

FEATURES_COST = 4 * 2 * 1000
"""Bytes that `RandomFeatures` and `Nystrom` need for each sleep sample, at their defaults."""


def _size(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number / 1e3:,.1f} kB"


def _time(seconds: float) -> str:
    for unit, size in (("years", 3.15e7), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{math.ceil(seconds)} seconds"


def check_optimiser(optimiser: Any, model: Any, samples: int, key: Key[Array, ""]) -> None:
    """Refuse what is no optimiser, or one that needs more than a gradient; nothing is computed."""
    if not callable(getattr(optimiser, "init", None)) or not callable(
        getattr(optimiser, "update", None)
    ):
        called = ""
        if callable(optimiser):
            name = getattr(optimiser, "__name__", "optimiser")
            called = f"Call it with its learning rate, as in `optax.{name}(1e-3)`."
        instance("optimiser", optimiser, (), "an optax transformation", called or OPTIMISER)
    parameters = eqx.filter(model, eqx.is_inexact_array)

    def first_step(parameters: PyTree, key: Array) -> tuple[PyTree, PyTree, PyTree]:
        state = optimiser.init(parameters)
        given = {"model": model, "log_joints": lambda _: jnp.zeros(samples), "key": key}
        whole = optax.with_extra_args_support(optimiser)  # pyright: ignore
        return *whole.update(parameters, state, parameters, **given), state

    try:
        updates, after, before = eqx.filter_eval_shape(first_step, parameters, key)
    except Exception as error:  # whatever it says of what it was not given
        raise TypeError(
            "`optimiser` must work from gradients alone; its first step fails: "
            f"{_first_line(error)}. {OPTIMISER} L-BFGS and "
            "others that search along a line ask for the objective's value, which simulations do "
            "not give exactly: use `optax.lbfgs(linesearch=None)` if it must be."
        ) from error
    for name, found, wanted in (("update", updates, parameters), ("state", after, before)):
        if _shapes(found) != _shapes(wanted):
            raise TypeError(
                f"`optimiser` must give an {name} with the structure, shapes and dtypes of the one "
                f"before; it changes from {_shapes(wanted)!s:.200} to {_shapes(found)!s:.200}. "
                f"{OPTIMISER}"
            )


OPTIMISER = "Use `optax.adam(1e-3)`, for example."

TRANSFORMATION = optax.GradientTransformation | optax.GradientTransformationExtraArgs


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)


def _shapes(tree: PyTree) -> tuple:
    leaves, structure = jax.tree.flatten(eqx.filter(tree, lambda a: hasattr(a, "shape")))
    return structure, [(leaf.shape, jnp.dtype(leaf.dtype)) for leaf in leaves]


def _in_support(
    model: Any,
    data: PyTree[Array],
    key: Key[Array, ""],
    condition: PyTree | None,
    conditions: PyTree | None,
) -> Bool[Array, " observations"]:
    """Whether each x has a density: of z and θ that depends on their shapes alone."""

    def inside(x: PyTree, condition: PyTree | None) -> Bool[Array, ""]:
        args = condition_arguments(condition)
        return model.likelihood(model.sample_latent(key, *args), *args).in_support(x)

    if conditions is None:
        return by_blocks(jax.vmap(lambda x: inside(x, condition)), data)
    return by_blocks(jax.vmap(lambda pair: inside(*pair)), (data, conditions))


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

    def draw(key: Array) -> Any:
        drawn = _draw(model, key, args)
        _refuse_no_numbers(drawn, _simulator(model))
        return drawn

    try:
        drawn = jax.eval_shape(draw, key)
    except NotImplementedError as error:
        raise ValueError(
            f"`{_simulator(model)}` must be able to draw with the key given, of kind "
            f"{jax.random.key_impl(key)}: {_first_line(error)}. Use `jax.random.key(0)`."
        ) from error
    except TypeError as error:
        name = "sample" if isinstance(model, Simulator) else "sample_latent"
        if condition is None and _takes(model, name, True):  # with or without: it decides itself
            raise TypeError(f"{error} Pass `conditions=` if the model is conditional.") from error
        raise
    return Draws(*drawn)


def check_densities(model: Any, draw: Draws, condition: PyTree | None = None) -> None:
    """Refuse a log density that is not one number for one example, by its shape."""
    args = condition_arguments(condition)
    if has_likelihood(model):
        prior = _shape(lambda z: _called(model, "log_prior", z, *args), "log_prior(z)", draw.z)
        _check_scalar("log_prior(z)", prior, "z")
        call = "likelihood(z).log_prob(x)"
        value = _shape(lambda z, x: _likelihood(model, z, args).log_prob(x), call, *draw)
        _check_scalar(call, value, "x")
    if isinstance(model, Density):
        value = _shape(lambda *d: _called(model, "log_joint", *d, *args), "log_joint(z, x)", *draw)
        _check_scalar("log_joint(z, x)", value, "x")


def _shape(function: Callable, call: str, *args: Any) -> Any:
    """The shape of what a function gives; refuse what is no array or number."""

    def given(*args: Any) -> Any:
        value = function(*args)
        if not eqx.is_array_like(value):
            raise ValueError(
                f"`{call}` must return a scalar for one example, got {value!r:.50}. Sum its terms."
            )
        return value

    return jax.eval_shape(given, *args)


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
    try:
        value = eqx.filter_eval_shape(log_prior, model)
    except Exception as error:  # whatever it says of a model that it was not made for
        raise TypeError(
            f"`log_prior(model)` must take the model, {type(model).__name__}, to log p(θ); it "
            f"raised {type(error).__name__}: {_first_line(error)}"
        ) from error
    if getattr(value, "shape", None) != ():
        raise ValueError(
            f"`log_prior(model)` must return a scalar, log p(θ), got {_described(value)}. Sum over "
            "the parameters."
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"`log_prior(model)` must be floating point, got {value.dtype}.")
    start = np.asarray(eqx.filter_jit(log_prior)(model)).item()
    if not math.isfinite(start):
        raise ValueError(
            f"`log_prior(model)` must be finite at the start values, got {start}. Check its "
            "support, or start elsewhere."
        )


def _draw(model: Any, key: Key[Array, ""], args: tuple[PyTree, ...]) -> Any:
    if isinstance(model, Simulator):
        return _called(model, "sample", key, *args)
    z = _called(model, "sample_latent", key, *args)
    return z, _likelihood(model, z, args).sample(key)


def _called(model: Any, name: str, *args: Any) -> Any:
    """What a method gives for one example; what it raises of its own is told with its arguments."""
    try:
        return getattr(model, name)(*args)
    except NotImplementedError:  # of the kind of key
        raise
    except Exception as error:  # whatever a user's method does
        if _is_from_here(error):
            raise
        given = dict(zip(ARGUMENTS[name].split(", "), args, strict=False))
        given |= {"condition": args[-1]} if len(args) > len(given) else {}
        said = ", ".join(f"{n} {_shape_of(a)}" for n, a in given.items() if n != "key")
        remedy = WITH_JAX if isinstance(error, UNTRACED) else "The traceback above has the line."
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"`{name}({', '.join(given)})` must run for one example{' of ' * bool(said)}{said}; it "
            f"raised {type(error).__name__}: {_first_line(error).rstrip('.')}. {remedy}"
        ) from error


UNTRACED = jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError
"""What JAX raises where a program asks for a number that is not there yet."""

WITH_JAX = (
    "It is compiled: write it with `jax.numpy` alone, `jnp.where` or `jax.lax.cond` in place of "
    "`if`, and no `float()`, NumPy or SciPy on what depends on its arguments."
)


def _is_from_here(error: Exception) -> bool:
    """Whether the library itself raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("alws.")


def _refuse_no_numbers(drawn: Any, call: str) -> None:
    """Refuse what a model draws that are no numbers, and latents or observations without any."""
    if not isinstance(drawn, (tuple, list)) or len(drawn) != 2:
        raise TypeError(
            f"`{call}` must return a pair, the latents and the observation (z, x); got "
            f"{_described(drawn)}. A model without latents can return `0, x`."
        )
    for name, tree in zip("zx", drawn, strict=True):
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        for path, leaf in leaves:
            if not eqx.is_array_like(leaf):
                raise TypeError(
                    f"`{call}` must return numbers; {name}{jax.tree_util.keystr(path)} is "
                    f"{leaf!r:.50}. Names and other text are static fields of the model."
                )
        if not sum(jnp.size(leaf) for _, leaf in leaves):
            remedy = " A model without latents can return `0, x`." if name == "z" else ""
            raise ValueError(
                f"`{call}` must return at least one number in {name}, got "
                f"{_shape_of(tree) if leaves else tree}.{remedy}"
            )


def _likelihood(model: Any, z: PyTree, args: tuple[PyTree, ...]) -> Any:
    found = _called(model, "likelihood", z, *args)
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
    if not jnp.issubdtype(value.dtype, jnp.floating) or jnp.finfo(value.dtype).bits < 32:
        raise ValueError(
            f"`{call}` must be floating point of 32 or 64 bits, got {value.dtype}. Compute it "
            "from arrays of such numbers, or write `.astype(float)` at its end."
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
    return [_transform(entry) for entry in given]


def _transform(entry: Any) -> Any:
    """A constraint's transform from the real line; refuse one that has none, of discrete values."""
    if not isinstance(entry, Constraint):
        return entry
    try:
        return biject_to(entry)
    except NotImplementedError as error:
        raise TypeError(
            f"`support` must be made of constraints on continuous numbers, got {entry}. For "
            "example numpyro.distributions.constraints.positive."
        ) from error


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


def refuse_bad_targets(f: Callable[[PyTree], PyTree], latent: PyTree) -> None:
    """Refuse an f(z) that cannot be regressed, by the shapes of a latent."""
    try:
        value = jax.eval_shape(f, latent)
    except Exception as error:  # whatever it says of a z that it was not made for
        raise TypeError(
            f"`f(z)` must take one z, {_shape_of(latent)}, to a pytree of arrays; it raised "
            f"{type(error).__name__}: {_first_line(error).rstrip('.')}."
            f"{' ' + WITH_JAX if isinstance(error, UNTRACED) else ''}"
        ) from error
    leaves = jax.tree.leaves(value)
    if not leaves:
        raise ValueError("`f(z)` must return at least one array, got none.")
    for leaf in leaves:
        real = jnp.issubdtype(leaf.dtype, np.number) or leaf.dtype == bool
        if not real or jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise ValueError(
                f"`f(z)` must be real numbers, got {leaf.dtype}. Return the real and imaginary "
                "parts."
            )


def check_targets(f: Callable[[PyTree], PyTree], latent: PyTree, bad: Sequence[Any]) -> None:
    """Refuse an f(z) that was not finite on some draws, by the leaf; `bad` counts them for each."""
    named = jax.tree_util.tree_flatten_with_path(jax.eval_shape(f, latent))[0]
    for (path, _), number in zip(named, bad, strict=True):
        if int(number):
            raise ValueError(
                f"`f(z)` must be finite on the model's own draws; f(z)"
                f"{jax.tree_util.keystr(path)} is not on {int(number)} of them. Keep it finite "
                "where z has probability (log of 0, division by 0), or leave it out."
            )


def _shape_of(tree: PyTree) -> str:
    leaves, structure = jax.tree.flatten(tree)
    if structure == jax.tree.structure(0):
        return f"{leaves[0].dtype}{list(leaves[0].shape)}"
    return str(jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", tree))


def match_conditions(conditions: PyTree | None, size: int) -> PyTree | None:
    """The conditions as arrays, one for each observation."""
    if conditions is None:
        return None
    given = check_data(conditions, "conditions")
    if given != size:
        raise ValueError(
            f"`conditions` must have one entry for each observation, {size}; got {given}."
        )
    return jax.tree.map(lambda c: own(c, "conditions"), as_arrays(conditions))


class Range(NamedTuple):
    """The least and the greatest of each entry of some conditions, by the names of their leaves.

    The rows of a group may lie in any order and be as many as they like: of these a covariate has
    one range over all rows of all groups.

    Example: `Range.of({"age": ages}).low["['age']"]` is the least of them.
    """

    low: dict[str, np.ndarray]
    high: dict[str, np.ndarray]

    @classmethod
    def of(cls, conditions: PyTree[Array]) -> "Range":
        """The range of these conditions."""
        parts = [(name, v, None if rows else 0) for name, v, rows in _parts(conditions)]
        low, high = ({name: f(v, axis=axis) for name, v, axis in parts} for f in (np.min, np.max))
        return cls(low, high)


def warn_of_extrapolation(seen: Range | None, conditions: PyTree[Array] | None) -> None:
    """Say so where conditions lie outside those that a model was fitted to, if these are known.

    Example: `warn_of_extrapolation(result.conditions, match_conditions(new, len(x)))`.
    """
    if seen is None or conditions is None:
        return
    given = list(_parts(conditions))
    names = [name for name, *_ in given]
    if names != list(seen.low):
        raise ValueError(
            "`conditions` must have the structure of those of the fit, with the parts "
            f"{list(seen.low)}; got {names}."
        )
    outside, told = np.array(False), ""
    for name, values, rows in given:
        low, high = seen.low[name], seen.high[name]
        if not rows and values.shape[1:] != low.shape:
            raise ValueError(
                f"`conditions{name}` must have the shape that it had in the fit for each "
                f"observation, {low.shape}; got {values.shape[1:]}."
            )
        low, high = (np.broadcast_to(end, values.shape[1:]) for end in (low, high))
        beyond = (values < low) | (values > high)
        if beyond.any() and not told:
            at = tuple(np.argwhere(beyond)[0].tolist())
            told = (
                f"`conditions{name}` at index {list(at)} is {values[at]:.6g}, and lay between "
                f"{low[at[1:]]:.6g} and {high[at[1:]]:.6g}"
            )
        outside = outside | beyond.reshape(len(values), -1).any(axis=1)
    if told:
        warnings.warn(
            "what is said of conditions outside those that the model was fitted to is "
            f"extrapolation; {outside.sum()} of {outside.size} lie outside, the first of them: "
            f"{told}.",
            RuntimeWarning,
            stacklevel=4,
        )


def _parts(conditions: PyTree[Array]) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Name and values of every leaf, and whether these are a covariate of the rows of groups."""

    def are_rows(part: Any) -> bool:
        return isinstance(part, Rows)

    for path, part in jax.tree_util.tree_flatten_with_path(conditions, is_leaf=are_rows)[0]:
        name = jax.tree_util.keystr(path)
        if isinstance(part, Rows):
            for covariate in part.order:
                yield f"{name}[{covariate!r}]", np.asarray(part.columns[covariate]), True
        else:
            yield name, np.asarray(part), False


def match_values(model: Any, values: PyTree, key: Key[Array, ""]) -> PyTree[Array]:
    """All values of z as arrays, stacked; refuse those that are not like the model's own z."""
    latent, values = shape_of_draw(model, key).z, as_arrays(values)
    if jax.tree.structure(latent) != jax.tree.structure(values):
        raise ValueError(
            f"`values` must have the structure of z, {jax.tree.structure(latent)}; got "
            f"{jax.tree.structure(values)}."
        )
    for given, one in zip(jax.tree.leaves(values), jax.tree.leaves(latent), strict=True):
        if np.shape(given)[1:] != one.shape:
            raise ValueError(
                f"`values` must have one z after the other, each of shape {one.shape}; got shape "
                f"{np.shape(given)}. Every value of z is listed, along the leading axis."
            )
    matched = jax.tree.map(lambda v, one: _as_drawn(v, one.dtype), values, latent)
    rows = _rows(matched)
    if len(np.unique(rows, axis=0)) < len(rows):
        raise ValueError("`values` must have every z once, got some twice: they would count twice.")
    drawn = _rows(eqx.filter_jit(draw)(model, key, FEW_DRAWS)[0].z)
    listed = set(map(tuple, rows.tolist()))
    missing = [row for row in drawn.tolist() if tuple(row) not in listed]
    if missing:
        raise ValueError(
            f"`values` must have every z that the model draws; {missing[0]!s:.100} is not among "
            "them, so the sum would miss it. A continuous z has too many: use "
            "`alws.log_likelihood`."
        )
    return matched


FEW_DRAWS = 256
"""How many draws are looked for among the values that are given."""


def _as_drawn(values: Any, dtype: Any) -> Array:
    """Values of z in the type that the model draws."""
    given = numbers(values, "values")
    whole = not jnp.issubdtype(dtype, jnp.inexact)
    if whole and not np.array_equal(given, np.round(given)):
        raise ValueError(
            f"`values` must be whole numbers, as the z drawn are, {dtype}; not all are."
        )
    return cast(given, dtype, "values")


def _rows(tree: PyTree) -> np.ndarray:
    """A batched pytree as a matrix, one row each."""
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def match_start(start: PyTree, latent: PyTree, size: int) -> PyTree[Array]:
    """The start as arrays, one finite z for each observation."""
    start = as_arrays(start)
    check_data(start, "start")
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
    return jax.tree.map(lambda s, one: cast(numbers(s, "start"), one.dtype, "start"), start, latent)
