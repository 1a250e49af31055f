"""The paper's experiments, one folder a section."""

from alws_paper import (
    blowflies,
    epidemic,
    factorisation,
    gabor,
    galton,
    gradient,
    hyperbolic,
    ica,
    images,
    neural_process,
    neuron,
    oscillation,
    pinwheel,
    vae_posterior,
)
from alws_paper.run import Claim, Experiment, Run, RunError, resume, start, start_or_resume

_PAGES = (
    gradient.EXPERIMENT,
    pinwheel.EXPERIMENT,
    gabor.EXPERIMENT,
    hyperbolic.EXPERIMENT,
    ica.EXPERIMENT,
    factorisation.EXPERIMENT,
    neural_process.EXPERIMENT,
    oscillation.EXPERIMENT,
    neuron.EXPERIMENT,
    blowflies.EXPERIMENT,
    epidemic.EXPERIMENT,
    galton.EXPERIMENT,
    vae_posterior.EXPERIMENT,
    *images.EXPERIMENTS,
)

EXPERIMENTS: dict[str, Experiment] = {
    page.name: page for page in sorted(_PAGES, key=lambda p: p.name)
}
"""Every experiment by its name on the command line."""

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Experiment",
    "Run",
    "RunError",
    "resume",
    "start",
    "start_or_resume",
]
