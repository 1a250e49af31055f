"""The paper's experiments, one file each."""

from alws.experiments import gradient, pinwheel
from alws.experiments.experiment import Claim, Experiment, Run, RunError, resume, start

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (gradient.EXPERIMENT, pinwheel.EXPERIMENT)
}
"""Every experiment by its name on the command line."""

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Run", "RunError", "resume", "start"]
