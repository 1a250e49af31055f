"""Check the shapes in every signature of the library while testing it."""

import os

os.environ.setdefault("ALWS_CACHE", "")

from jaxtyping import install_import_hook

install_import_hook("alws", "beartype.beartype")

import matplotlib

matplotlib.use("Agg")

import jax
import pytest


@pytest.fixture
def key():
    return jax.random.key(0)
