"""The machine's side of a fit: compilation, quick and kept, and threads that do not collide."""

import inspect
import os
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import scipy.linalg  # noqa: F401  (its LAPACK is the one JAX calls; load it to find its threads)
from threadpoolctl import threadpool_limits

MANY_NUMBERS = 200_000
"""How many random numbers a step draws before it is worth the compiler's care."""

LEVEL = "xla_backend_optimization_level"
QUICK_LOOPS = {"xla_cpu_use_fusion_emitters": False}
"""Loops made as XLA did before it had a compiler of their own: in half the time, and the small
step of `benchmarks/step.py` is as quick with them; others took 3 to 16 % longer. For a long fit
`XLA_FLAGS=--xla_backend_optimization_level=3` compiles with the usual care."""

P = ParamSpec("P")
R = TypeVar("R")


def enable_compilation_cache() -> Path | None:
    """Keep compiled steps in `$ALWS_CACHE` (default `~/.cache/alws`), unless JAX has a cache set.

    Set `ALWS_CACHE=` (empty) to do without. Returns the directory in use.
    """
    already = jax.config.jax_compilation_cache_dir  # pyright: ignore
    if already:
        return Path(already)
    chosen = os.environ.get("ALWS_CACHE", str(Path.home() / ".cache" / "alws"))
    if not chosen:
        return None
    jax.config.update("jax_compilation_cache_dir", chosen)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return Path(chosen)


class Compiled:
    """A compiled function whose random numbers are made quickly on the CPU.

    Threefry makes them in pairs there, in half the time it takes for each by itself. Draws have a
    key each, so they can be divided among devices either way. JAX looks at how numbers are made
    whenever it is about to call a function, so this is said at every call.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def __call__(self, *args: Any) -> Any:
        with _in_pairs():
            return self._function(*args)

    def lower(self, *args: Any) -> Any:
        """The program for these arguments, to be compiled ahead of time."""
        with _in_pairs():
            return self._function.lower(*args)  # pyright: ignore


def _in_pairs() -> AbstractContextManager:
    each_by_itself = getattr(jax, "threefry_partitionable", None)
    if jax.default_backend() != "cpu" or each_by_itself is None:
        return nullcontext()
    return each_by_itself(False)


def compiled(function: Callable[..., Any], *, once: bool = False, numbers: int = 0) -> Compiled:
    """`function` compiled, on the CPU with less care than usual and so in half the time.

    A step's work is in matrix products, which are the same at any level, unless it draws many
    random `numbers`: then it is compiled with the usual care. What runs `once` gets the least. A
    level set in `XLA_FLAGS` stands.
    """
    careful = numbers >= MANY_NUMBERS and not once
    if jax.default_backend() != "cpu" or LEVEL in os.environ.get("XLA_FLAGS", "") or careful:
        return Compiled(eqx.filter_jit(function))
    level = {LEVEL: 0 if once else 1}
    quick = level | QUICK_LOOPS if _takes_quick_loops() else level
    options: dict[str, Any] = {"compiler_options": quick}
    return Compiled(eqx.filter_jit(function, **options))


@cache
def _takes_quick_loops() -> bool:
    """Whether this version of the compiler knows the option; one it does not know is an error."""
    try:
        jax.jit(lambda: 0, compiler_options=QUICK_LOOPS).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def use_large_pages() -> None:
    """Start this program anew with large pages of memory, if its C library can give them.

    A step asks the system for fresh memory every time; in pages of 2 MiB it comes with a fifth of
    the page faults or less. The C library looks at `GLIBC_TUNABLES` only when a program starts, so
    this must be called first of all, in a program and not in a library. Set it to go without.
    """
    if "GLIBC_TUNABLES" not in os.environ and platform.libc_ver()[0] == "glibc":
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def precision(model: Any) -> AbstractContextManager:
    """Within this context floating-point numbers are as long as the model asks for.

    A class that says `double = True` is simulated and fitted in float64, all others as JAX is set.

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


def one_lapack_thread() -> threadpool_limits:
    """Within this context LAPACK runs on one thread, so that it does not fight XLA's own threads.

    The factorisation is LAPACK's, everything around it XLA's. Two pools of spinning threads on the
    same cores made a 10 ms factorisation take 600 ms beside another busy process.
    """
    return threadpool_limits(limits=1, user_api="blas")
