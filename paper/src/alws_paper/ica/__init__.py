"""Independent components, §4.4: filters of natural images, found again from synthetic images."""

from alws_paper.ica.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
