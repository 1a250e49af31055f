"""Checks of plain values that a user gives, numbers, words and keys: rule, value, remedy."""

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array


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
        raise ValueError(f"`{name}` must be positive, one finite number; got {value!r:.100}.{why}")


def number(name: str, value: Any, words: str, fits: Callable[[float], bool], why: str = "") -> None:
    """Refuse what is not one number that fits.

    Example: `number("share", share, "between 0 and 1", lambda s: 0 < s < 1)`.
    """
    if not is_number(value) or not fits(float(value)):
        raise ValueError(f"`{name}` must be {words}, got {value!r:.100}.{why}")


def yes_or_no(name: str, value: Any) -> None:
    """Refuse what is neither True nor False: every word, "no" among them, counts as true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{name}` must be True or False, got {value!r}.")


def one_of(name: str, value: Any, known: Sequence[str]) -> None:
    """Refuse a word that is not among those known."""
    if not isinstance(value, str) or value not in known:
        words = ", ".join(f'"{word}"' for word in known)
        raise ValueError(f"`{name}` must be one of {words}, got {value!r}.")


def named(name: str, value: Any) -> None:
    """Refuse what is neither one name nor several.

    Example: `named("observed", ("x", "y"))` passes, `named("observed", 3)` does not.
    """
    several = isinstance(value, Sequence) and all(isinstance(one, str) for one in value)
    if not isinstance(value, str) and not several:
        raise TypeError(f"`{name}` must be a name or a list of names, got {value!r:.100}.")


def instance(name: str, value: Any, kind: Any, what: str, remedy: str) -> None:
    """Refuse what is not of a type, or of one of several; a class not called is told so.

    Example: `instance("kernel", kernel, Kernel, "a kernel", "Use `SquaredExponential()`.")`.
    """
    if not isinstance(value, kind):
        got = type(value).__name__
        if isinstance(value, type):
            got = f"the class {value.__name__} itself, which must be called"
        elif inspect.isfunction(value):
            got = f"the function {value.__name__}"
        elif value is None or isinstance(value, bool | int | float | str):
            got = repr(value)
        raise TypeError(f"`{name}` must be {what}, got {got}. {remedy}")


NOT_NUMBERS = {
    "c": ("complex numbers", "Give the real and imaginary parts as two arrays."),
    "M": ("dates", "Give the time since a first one, as numbers in a unit you choose."),
    "m": ("differences of dates", "Divide by a unit, as in `data / np.timedelta64(1, 's')`."),
    "V": ("records", "Give a dictionary with an array for each field."),
    "S": ("bytes", "Turn text into numbers yourself, as in `np.asarray(data, float)`."),
    "U": ("text", "Turn text into numbers yourself, as in `np.asarray(data, float)`."),
    "T": ("text", "Turn text into numbers yourself, as in `np.asarray(data, float)`."),
}
"""Kinds of NumPy arrays that are not numbers, and what to do with them."""


def numbers(leaf: Any, name: str) -> np.ndarray:
    """An array as it is, of booleans or real numbers; refuse what would lose its meaning.

    Example: `numbers(np.ma.masked_array([1.0, 2.0], [False, True]), "data")` raises.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        masked = int(np.ma.getmaskarray(leaf).astype(bool).sum()) if leaf.dtype.names is None else 1
        if masked:
            raise ValueError(
                f"`{name}` must not have masked entries, got {masked}: their mask would be lost. "
                "Leave those observations out, model what is missing as a latent, or, for a state-"
                "space model, mark the missing times with `alws.sequences`."
            )
        leaf = np.ma.getdata(leaf)
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise ValueError(f"`{name}` must be numbers, got JAX keys.")
    try:
        array = np.asarray(leaf)
    except Exception as error:  # whatever another library's array says of itself
        kind = type(leaf).__name__
        raise ValueError(f"`{name}` must be arrays of numbers, got {kind}: {error}.") from error
    if array.dtype.kind in "biuf" or jnp.issubdtype(array.dtype, jnp.floating):
        return array
    if array.dtype.kind != "O":
        what, remedy = NOT_NUMBERS.get(array.dtype.kind, (str(array.dtype), "Give numbers."))
        raise ValueError(f"`{name}` must be real numbers, got {what} ({array.dtype}). {remedy}")
    if array.ndim == 0:
        kind = type(leaf).__name__
        raise ValueError(
            f"`{name}` must be arrays of numbers, got {kind}. Turn it into a NumPy array first."
        )
    plain = (int, float, np.integer, np.floating)
    for index, value in np.ndenumerate(array):
        if isinstance(value, bool) or not isinstance(value, plain):
            raise ValueError(
                f"`{name}` must be real numbers, got {value!r:.50} at index {_index(index)} of an "
                "array of objects. Leave out what is missing, and give an array of one type."
            )
    return array.astype(float)


def cast(values: np.ndarray, dtype: Any, name: str) -> Array:
    """Finite numbers in another dtype, if it has room for them."""
    if jnp.issubdtype(dtype, np.bool_):
        low, high = 0, 1
    elif jnp.issubdtype(dtype, np.integer):
        low, high = jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    elif jnp.issubdtype(dtype, jnp.floating):
        low, high = float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max)
    else:
        raise ValueError(f"`{name}` cannot be compared with what the model draws, {dtype}.")
    wide = values if values.dtype.kind in "iub" else values.astype(np.longdouble)
    bad = np.argwhere((wide < low) | (wide > high))
    if bad.size:
        first = tuple(bad[0])
        raise ValueError(
            f"`{name}` must have room in {jnp.dtype(dtype)}, from {low:g} to {high:g}; got "
            f"{values[first]!s} at index {_index(first)}. Give it in another unit, or let the "
            "model draw a wider type."
        )
    return jnp.asarray(values, dtype)


def own(leaf: Any, name: str) -> Array:
    """An array in its own dtype, as JAX is set."""
    values = numbers(leaf, name)
    return cast(values, jax.dtypes.canonicalize_dtype(values.dtype), name)


def _index(index: tuple) -> str:
    return str([int(i) for i in index])


def function(name: str, value: Any, what: str) -> None:
    """Refuse what cannot be called; `what` says what it is called with and for."""
    if not callable(value):
        raise TypeError(f"`{name}` must be a function, {what}; got {value!r:.100}.")


def floating(name: str, value: Any) -> Array:
    """A parameter as an array of floating-point numbers; whole numbers become such.

    Example: `floating("mean", 3).dtype` is float32.
    """
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must be numbers, got {value!r:.100}: {error}.") from error
    if not jnp.issubdtype(array.dtype, np.number) and array.dtype != bool:
        raise TypeError(f"`{name}` must be real numbers, got {array.dtype}.")
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"`{name}` must be real numbers, got {array.dtype}. Take the real part.")
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def check_key(key: Any) -> None:
    """Refuse what is not one JAX key, such as its seed."""
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = isinstance(key, (jax.Array, np.ndarray)) and key.dtype == np.uint32
    if not (typed and key.shape == ()) and not (raw and key.ndim == 1):
        got = f"shape {key.shape}" if typed or raw else repr(key)
        raise TypeError(f"`key` must be one JAX key, such as `jax.random.key(0)`; got {got}.")
