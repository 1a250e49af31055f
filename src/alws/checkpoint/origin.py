"""What a fit depends on, in words: a checkpoint can say what it belongs to, and what differs.

`describe(thing)` is a flat dictionary from places in a thing to what is there:

    {"": "KernelRidge", ".log_ridge": "float32[] -4.6051702", ".kernel": "SquaredExponential", …}

Values of modules, dataclasses, containers and arrays are told, and of functions their code, their
defaults, what they close over and the globals they read, down to the library's own: this finds the
rate inside `optax.adam(0.01)`. What cannot be told apart, such as an open file, counts by its type.
"""

import dataclasses
import dis
import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import jax
import numpy as np

from alws.devices import plain

Description = dict[str, str]

LONGEST = 60
"""A text that is longer is told by its beginning and a hash."""

LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(__file__).parents[1])}
)
"""Code in these folders counts by its name alone."""


def describe(thing: Any, *, values: bool = True) -> Description:
    """What is at every place of a thing, as text that is the same in another process.

    Arguments:
        thing: anything.
        values: whether floating-point arrays count by their values too, or by dtype and shape
            alone, as the parameters of a model do.

    Example: `describe(alws.Adapt(every=2))[".every"]` is "2".
    """
    walk = _Walk(values)
    walk.into(thing, "")
    return walk.found


def differences(name: str, was: Description, now: Description) -> list[str]:
    """What differs, in words; of what lies inside something that differs, nothing.

    Example: `differences("estimate", describe(Joint()), describe(Natural()))` is
    `["estimate was Joint, is Natural"]`.
    """
    told: list[str] = []
    places: list[str] = []
    for place in {**was, **now}:
        inside = any(place.startswith((p + ".", p + "[")) or p == "" for p in places)
        if was.get(place) != now.get(place) and not inside:
            places.append(place)
            before, after = was.get(place, "nothing"), now.get(place, "nothing")
            told.append(f"{name}{place} was {before}, is {after}")
    return told


class _Walk:
    """A walk through a thing; what has been seen is not walked through again."""

    def __init__(self, values: bool):
        self.values = values
        self.found: Description = {}
        self.seen: dict[int, Any] = {}

    def into(self, thing: Any, place: str) -> None:
        if isinstance(thing, np.generic | np.ndarray | jax.Array):
            self.found[place] = self._array(thing)
        elif thing is None or isinstance(thing, bool | int | float | complex | str | bytes | Enum):
            self.found[place] = _short(repr(thing))
        elif isinstance(thing, types.ModuleType | np.dtype):
            self.found[place] = str(getattr(thing, "__name__", thing))
        elif isinstance(thing, tuple | list | dict) and not thing:
            self.found[place] = "empty"
        elif id(thing) in self.seen:
            self.found[place] = _name(thing)
        else:
            self.seen[id(thing)] = thing  # kept, so that no other thing gets its id
            self._parts(thing, place)

    def _parts(self, thing: Any, place: str) -> None:
        wrapped = getattr(thing, "__wrapped__", None)
        if isinstance(thing, type):
            self._class(thing, place)
        elif callable(wrapped):
            self.into(wrapped, place)
        elif isinstance(thing, types.FunctionType):
            self._function(thing, place)
        elif isinstance(thing, types.MethodType):
            self.into(thing.__func__, place)
            self.into(thing.__self__, f"{place}.__self__")
        elif isinstance(thing, functools.partial):
            self.into(thing.func, place)
            self.into(thing.args, f"{place}.args")
            self.into(thing.keywords, f"{place}.keywords")
        elif isinstance(thing, Mapping):
            self.found[place] = f"{len(thing)} entries"
            for key, value in thing.items():
                self.into(value, f"{place}[{_short(repr(key))}]")
        elif isinstance(thing, set | frozenset):
            self.found[place] = _short(repr(sorted(map(repr, thing))))
        elif isinstance(thing, tuple | list):
            names = getattr(thing, "_fields", None)
            self.found[place] = type(thing).__name__ if names else f"{len(thing)} entries"
            for i, value in enumerate(thing):
                self.into(value, f"{place}.{names[i]}" if names else f"{place}[{i}]")
        else:
            self._object(thing, place)

    def _object(self, thing: Any, place: str) -> None:
        """Its class, and what it holds as far as that is known."""
        self._class(type(thing), place)
        if dataclasses.is_dataclass(thing):
            for entry in dataclasses.fields(thing):
                self.into(getattr(thing, entry.name, None), f"{place}.{entry.name}")
        elif _is_own(type(thing)):
            for name, value in sorted(getattr(thing, "__dict__", {}).items()):
                self.into(value, f"{place}.{name}")
        else:
            leaves = jax.tree_util.tree_flatten_with_path(thing)[0]
            for path, leaf in leaves:
                if leaf is not thing:
                    self.into(leaf, place + jax.tree_util.keystr(path))

    def _class(self, kind: type, place: str) -> None:
        """Its name; of one that is the user's own also its methods and constants."""
        self.found[place] = kind.__qualname__
        fields = (
            {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else ()
        )
        for owner in reversed(kind.__mro__):
            if not _is_own(owner):
                continue
            for name, value in sorted(vars(owner).items()):
                if (name.startswith("_abc") or _is_dunder(name)) and name != "__call__":
                    continue
                if isinstance(value, staticmethod | classmethod):
                    value = value.__func__
                elif isinstance(value, property):
                    value = value.fget
                elif isinstance(value, functools.cached_property):
                    value = value.func
                if name not in fields:
                    self.into(value, f"{place}.{name}")

    def _function(self, function: types.FunctionType, place: str) -> None:
        """Its name, and by code, defaults, closure and globals what it does."""
        own = _is_own(function)
        code = f", code {_hash(_code(function.__code__, function.__doc__))}" if own else ""
        self.found[place] = function.__qualname__ + code
        defaults = dict(enumerate(function.__defaults__ or ())) | (function.__kwdefaults__ or {})
        for name, value in defaults.items():
            self.into(value, f"{place}.default {name}")
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                self.into(cell.cell_contents, f"{place}.{name}")
            except ValueError:  # an empty cell
                self.found[f"{place}.{name}"] = "empty"
        if own:
            for name in sorted(_global_names(function.__code__)):
                value = function.__globals__.get(name)
                if name in function.__globals__ and not isinstance(value, types.ModuleType):
                    self.into(value, f"{place}.{name}")

    def _array(self, array: Any) -> str:
        numbers = plain(array)
        kind = f"{array.dtype}{list(array.shape)}"
        if not self.values and jax.numpy.issubdtype(numbers.dtype, np.inexact):
            return kind
        held = np.asarray(numbers)
        if held.dtype != object and held.size == 1:
            return f"{kind} {held.reshape(())!s}"
        words = repr(held.tolist()).encode() if held.dtype == object else held.tobytes()
        return f"{kind} {_hash(words)}"


def _is_own(thing: Any) -> bool:
    """Whether a function or class is the user's, and no library's."""
    if isinstance(thing, types.FunctionType):
        file = thing.__code__.co_filename
    else:
        module = sys.modules.get(thing.__module__)
        file = getattr(module, "__file__", None)
        if file is None:
            return thing.__module__ == "__main__"
    return not file.startswith(LIBRARIES) and not file.startswith("<frozen")


def _code(code: types.CodeType, doc: str | None = None) -> bytes:
    """What a function's code does, without its lines and its docstring."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    constants = [_constant(c) for c in code.co_consts if c not in inner and c != doc]
    told = (code.co_code, constants, code.co_names, code.co_varnames, code.co_argcount)
    return repr(told).encode() + b"".join(_code(c) for c in inner)


def _constant(constant: Any) -> str:
    """A constant as text; the order of a set changes from process to process."""
    is_set = isinstance(constant, frozenset)
    return repr(sorted(map(repr, constant)) if is_set else constant)


def _global_names(code: types.CodeType) -> set[str]:
    """The globals that a function reads, its inner functions' among them."""
    found = {
        str(i.argval)
        for i in dis.get_instructions(code)
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _global_names(constant)
    return found


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _name(thing: Any) -> str:
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… {_hash(text.encode())}"


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=4).hexdigest()
