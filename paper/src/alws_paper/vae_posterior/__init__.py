"""Why not approximate the posterior, figure 1: exact posteriors beside an encoder's."""

from alws_paper.vae_posterior.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
