"""What a fitted model says: of its latents, of its errors, of its likelihood."""

from alws.results.annealed import (
    Annealed,
    Enclosed,
    annealed_log_likelihood,
    enclosed_log_likelihood,
)
from alws.results.held_out import (
    binary_codes,
    enumerated_log_likelihood,
    importance_log_likelihood,
)
from alws.results.log_likelihood import LogLikelihood, NoLikelihood, log_likelihood
from alws.results.posterior import Mode, expectation, posterior_mode
from alws.results.standard_errors import StandardErrors, standard_errors

__all__ = [
    "Annealed",
    "Enclosed",
    "LogLikelihood",
    "Mode",
    "NoLikelihood",
    "StandardErrors",
    "annealed_log_likelihood",
    "binary_codes",
    "enclosed_log_likelihood",
    "enumerated_log_likelihood",
    "expectation",
    "importance_log_likelihood",
    "log_likelihood",
    "posterior_mode",
    "standard_errors",
]
