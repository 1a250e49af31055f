"""The paper's experiments, one file each."""

from alws.experiments import (
    gabor,
    gradient,
    hyperbolic,
    ica,
    matrix_factorisation,
    neural_process,
    pinwheel,
)
from alws.experiments.experiment import Claim, Experiment, Run, RunError, resume, start

_PAGES = (
    gabor,
    gradient,
    hyperbolic,
    ica,
    matrix_factorisation,
    neural_process,
    pinwheel,
)

EXPERIMENTS: dict[str, Experiment] = {page.EXPERIMENT.name: page.EXPERIMENT for page in _PAGES}
"""Every experiment by its name on the command line."""

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Run", "RunError", "resume", "start"]
