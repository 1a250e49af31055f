"""Hierarchical models, §4.3: discrete and continuous latents, five arms found by ten components."""

from alws_paper.pinwheel.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
