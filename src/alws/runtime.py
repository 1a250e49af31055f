"""The machine's side of a fit: compilation, quick and kept, and threads that do not collide."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import scipy.linalg  # noqa: F401  (its LAPACK is the one JAX calls; load it to find its threads)
from threadpoolctl import threadpool_limits


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


def compiled(function: Callable[..., Any], *, once: bool = False) -> Callable[..., Any]:
    """`function` compiled, on the CPU with less care than usual and so in two thirds of the time.

    The step's work is in matrix products, which are the same at any level; what runs `once` gets
    the least care. A level set in `XLA_FLAGS` stands.
    """
    level = "xla_backend_optimization_level"
    if jax.default_backend() != "cpu" or level in os.environ.get("XLA_FLAGS", ""):
        return eqx.filter_jit(function)
    options: dict[str, Any] = {"compiler_options": {level: 0 if once else 1}}
    return eqx.filter_jit(function, **options)


def one_lapack_thread() -> threadpool_limits:
    """Within this context LAPACK runs on one thread, so that it does not fight XLA's own threads.

    The factorisation is LAPACK's, everything around it XLA's. Two pools of spinning threads on the
    same cores made a 10 ms factorisation take 600 ms beside another busy process.
    """
    return threadpool_limits(limits=1, user_api="blas")
