"""An epidemic seen through incomplete reports: a stochastic SIR model with discrete counts."""

from alws_paper.epidemic.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
