"""Check the shapes in every signature while testing, and compile fast rather than well.

Flags that are given stand: `XLA_FLAGS= pytest` compiles as for users.

Every compiled function keeps memory maps of its own, and Linux allows a process 65530 of them:
beyond that the compiler crashes. So what a test file compiled is let go at the file's end. On disk
even the smallest functions are kept, for other files and for the next time.
"""

import os
import tempfile
from pathlib import Path

CACHE = Path(tempfile.gettempdir()) / f"alws-tests-{os.getuid()}"
os.environ["ALWS_CACHE"] = os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jaxtyping import install_import_hook

install_import_hook("alws_paper", "beartype.beartype")

import matplotlib

matplotlib.use("Agg")

import equinox as eqx
import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def let_go_of_compiled_functions():
    yield
    eqx.clear_caches()
    jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def quick():
    """A key whose numbers are made faster, and compiled faster."""
    return jax.random.key(0, impl="rbg")
