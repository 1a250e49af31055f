"""Check the shapes in every signature while testing, and compile fast rather than well."""

import os
import tempfile
from pathlib import Path

CACHE = Path(tempfile.gettempdir()) / f"alws-tests-{os.getuid()}"
os.environ["ALWS_CACHE"] = os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jaxtyping import install_import_hook

install_import_hook("alws", "beartype.beartype")

import matplotlib

matplotlib.use("Agg")

import jax
import pytest


@pytest.fixture
def key():
    return jax.random.key(0)
