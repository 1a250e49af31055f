"""NumPyro programs as models."""

from alws.numpyro.model import NumpyroModel, from_numpyro
from alws.numpyro.program import UnsupportedProgram

__all__ = ["NumpyroModel", "UnsupportedProgram", "from_numpyro"]
