"""Beta–Gamma matrix factorisation, §4.4: what a better model is worth once it is learnt."""

from alws_paper.factorisation.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
