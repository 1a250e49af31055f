"""Nonlinear oscillations, §4.6: the dynamics behind a moving image, found from thirty steps."""

from alws_paper.oscillation.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
