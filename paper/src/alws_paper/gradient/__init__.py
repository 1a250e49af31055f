"""Parameter gradient estimation, §4.1: the likelihood's gradient on a toy model, three ways."""

from alws_paper.gradient.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
