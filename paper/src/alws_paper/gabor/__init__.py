"""Non-Euclidean priors, §4.2: Gabor wavelets of every orientation from a circular latent."""

from alws_paper.gabor.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
