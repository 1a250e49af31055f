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
