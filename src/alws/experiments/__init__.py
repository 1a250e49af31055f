"""The paper's experiments, one file each."""

from alws.experiments import (
    architectures,
    ecology,
    epidemic,
    gabor,
    galton,
    gradient,
    hodgkin_huxley,
    hyperbolic,
    ica,
    images,
    images_others,
    matrix_factorisation,
    neural_process,
    oscillation,
    pinwheel,
    vae_posterior,
)
from alws.experiments.experiment import Claim, Experiment, Run, RunError, resume, start

_PAGES = (
    architectures,
    ecology,
    epidemic,
    gabor,
    galton,
    gradient,
    hodgkin_huxley,
    hyperbolic,
    ica,
    images,
    images_others,
    matrix_factorisation,
    neural_process,
    oscillation,
    pinwheel,
    vae_posterior,
)

EXPERIMENTS: dict[str, Experiment] = {page.EXPERIMENT.name: page.EXPERIMENT for page in _PAGES}
"""Every experiment by its name on the command line."""

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Run", "RunError", "resume", "start"]
