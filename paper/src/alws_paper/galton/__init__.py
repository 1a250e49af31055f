"""The Galton board, §5: how its pins are bent, from where the balls land."""

from alws_paper.galton.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
