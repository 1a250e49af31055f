"""alws: maximum likelihood for any latent-variable model that can be simulated.

    result = alws.fit(model, data, key=jax.random.key(0), steps=2000)
    result.model

See `alws.wake_sleep` for the algorithm, `alws.model` for what a model must give. `alws.data`,
`alws.images`, `alws.layers` and `alws.metrics` are imported when they are first asked for.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from alws import distributed, features, gradient_models, kernels, likelihoods, manifolds
from alws.adaptation import ALWS_A, ALWS_F, Adapt
from alws.callbacks import EarlyStopping, MetricsFile, Report
from alws.centred import Centred
from alws.checkpoint import CheckpointError
from alws.diagnostics import Diagnostics
from alws.estimates import Cross, Joint, Natural, direct_gradients
from alws.fit import Result, fit
from alws.from_numpyro import NumpyroModel, from_numpyro
from alws.gradient_models import (
    ConjugateGradients,
    KernelRidge,
    LinearReadout,
    Nystrom,
    RandomFeatures,
    Reweighted,
)
from alws.implicit import ImplicitNetwork
from alws.importance import Importance
from alws.model import Draws, ExponentialFamilyModel, Model, draw, log_joint, sample
from alws.numpyro_program import UnsupportedProgram
from alws.over_dispersion import over_dispersed
from alws.posterior import Mode, expectation, posterior_mode
from alws.runtime import precision
from alws.shift import DensityRatio, MeanMatching
from alws.standard_errors import StandardErrors, standard_errors
from alws.state_space import Given, StateSpace, sequences
from alws.wake_sleep import Info, Settings, State, WakeSleep

if TYPE_CHECKING:
    from alws import data, images, layers, metrics

__version__ = "0.1.0"
LATER = ("data", "images", "layers", "metrics")
"""Subpackages that a fit does not need."""


def __getattr__(name: str) -> ModuleType:
    if name in LATER:
        return import_module(f"alws.{name}")
    raise AttributeError(f"module 'alws' has no attribute {name!r}")


__all__ = [
    "ALWS_A",
    "ALWS_F",
    "Adapt",
    "Centred",
    "CheckpointError",
    "ConjugateGradients",
    "Cross",
    "DensityRatio",
    "Diagnostics",
    "Draws",
    "EarlyStopping",
    "ExponentialFamilyModel",
    "Given",
    "ImplicitNetwork",
    "Importance",
    "Info",
    "Joint",
    "KernelRidge",
    "LinearReadout",
    "MeanMatching",
    "MetricsFile",
    "Mode",
    "Model",
    "Natural",
    "NumpyroModel",
    "Nystrom",
    "RandomFeatures",
    "Report",
    "Result",
    "Reweighted",
    "Settings",
    "StandardErrors",
    "State",
    "StateSpace",
    "UnsupportedProgram",
    "WakeSleep",
    "data",
    "direct_gradients",
    "distributed",
    "draw",
    "expectation",
    "features",
    "fit",
    "from_numpyro",
    "gradient_models",
    "images",
    "kernels",
    "layers",
    "likelihoods",
    "log_joint",
    "manifolds",
    "metrics",
    "over_dispersed",
    "posterior_mode",
    "precision",
    "sample",
    "sequences",
    "standard_errors",
]
