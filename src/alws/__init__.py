"""alws: maximum likelihood for any latent-variable model that can be simulated.

    result = alws.fit(model, data, key=jax.random.key(0), steps=2000)
    result.model

See `alws.wake_sleep` for the algorithm, `alws.model` for what a model must give.
"""

from alws import features, gradient_models, kernels, likelihoods
from alws.adaptation import ALWS_A, ALWS_F, Adapt
from alws.callbacks import EarlyStopping, MetricsFile, Report
from alws.checkpoint import CheckpointError
from alws.diagnostics import Diagnostics
from alws.estimates import Cross, Joint, Natural, direct_gradients
from alws.fit import Result, fit
from alws.gradient_models import KernelRidge
from alws.model import Draws, ExponentialFamilyModel, Model, draw, log_joint, sample
from alws.wake_sleep import Info, Settings, State, WakeSleep

__version__ = "0.1.0"

__all__ = [
    "ALWS_A",
    "ALWS_F",
    "Adapt",
    "CheckpointError",
    "Cross",
    "Diagnostics",
    "Draws",
    "EarlyStopping",
    "ExponentialFamilyModel",
    "Info",
    "Joint",
    "KernelRidge",
    "MetricsFile",
    "Model",
    "Natural",
    "Report",
    "Result",
    "Settings",
    "State",
    "WakeSleep",
    "direct_gradients",
    "draw",
    "features",
    "fit",
    "gradient_models",
    "kernels",
    "likelihoods",
    "log_joint",
    "sample",
]
