"""alws: maximum likelihood for any latent-variable model that can be simulated.

    result = alws.fit(model, data, key=jax.random.key(0), steps=2000)
    result.model

See `alws.wake_sleep` for the algorithm, `alws.model` for what a model must give.
"""

from alws import contrib, devices, estimates, features, kernels, likelihoods, regressions, results
from alws.callbacks import EarlyStopping, MetricsFile, Report
from alws.checkpoint import CheckpointError
from alws.devices import enable_compilation_cache
from alws.fit import PAPER, Prepared, Result, Settings, fit, prepare
from alws.groups import Rows, groups
from alws.model import Draws, ExponentialFamilyModel, Model, precision
from alws.natural_units import natural_units
from alws.numpyro import UnsupportedProgram, from_numpyro
from alws.results import expectation, log_likelihood, posterior_mode, standard_errors
from alws.results.draws import draw, log_joint
from alws.state_space import Given, StateSpace, sequences
from alws.wake_sleep import ALWS_A, ALWS_F, Adapt

__version__ = "0.2.0"

__all__ = [
    "ALWS_A",
    "ALWS_F",
    "PAPER",
    "Adapt",
    "CheckpointError",
    "Draws",
    "EarlyStopping",
    "ExponentialFamilyModel",
    "Given",
    "MetricsFile",
    "Model",
    "Prepared",
    "Report",
    "Result",
    "Rows",
    "Settings",
    "StateSpace",
    "UnsupportedProgram",
    "contrib",
    "devices",
    "draw",
    "enable_compilation_cache",
    "estimates",
    "expectation",
    "features",
    "fit",
    "from_numpyro",
    "groups",
    "kernels",
    "likelihoods",
    "log_joint",
    "log_likelihood",
    "natural_units",
    "posterior_mode",
    "precision",
    "prepare",
    "regressions",
    "results",
    "sequences",
    "standard_errors",
]
