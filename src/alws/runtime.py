"""The machine's side of a fit: a persistent compilation cache, and threads that do not collide."""

import os
from pathlib import Path

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


def one_lapack_thread() -> threadpool_limits:
    """Within this context LAPACK runs on one thread, so that it does not fight XLA's own threads.

    The factorisation is LAPACK's, everything around it XLA's. Two pools of spinning threads on the
    same cores made a 10 ms factorisation take 600 ms beside another busy process.
    """
    return threadpool_limits(limits=1, user_api="blas")
