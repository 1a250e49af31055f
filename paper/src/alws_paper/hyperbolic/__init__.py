"""Non-Euclidean priors, end of §4.2: hyperbolic space for trees, and priors that are learnt."""

from alws_paper.hyperbolic.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
