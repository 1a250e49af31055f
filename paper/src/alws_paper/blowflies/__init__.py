"""Blowflies, §4.6: a population with a delay, from one sequence of 180 counts."""

from alws_paper.blowflies.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
