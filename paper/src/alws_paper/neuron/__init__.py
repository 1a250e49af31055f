"""A neuron, §4.6: all parameters of a Hodgkin–Huxley model from one noisy trace of its voltage."""

from alws_paper.neuron.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
