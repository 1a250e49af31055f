"""The paper's experiments, one file each."""

from alws_paper.blowflies import experiment as ecology
from alws_paper.epidemic import experiment as epidemic
from alws_paper.factorisation import experiment as matrix_factorisation
from alws_paper.gabor import experiment as gabor
from alws_paper.galton import experiment as galton
from alws_paper.gradient import experiment as gradient
from alws_paper.hyperbolic import experiment as hyperbolic
from alws_paper.ica import experiment as ica
from alws_paper.images import architectures
from alws_paper.images import experiment as images
from alws_paper.images import others as images_others
from alws_paper.neural_process import experiment as neural_process
from alws_paper.neuron import experiment as hodgkin_huxley
from alws_paper.oscillation import experiment as oscillation
from alws_paper.pinwheel import experiment as pinwheel
from alws_paper.run import Claim, Experiment, Run, RunError, resume, start
from alws_paper.vae_posterior import experiment as vae_posterior

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
