"""Gradient models: regressions from x to what the likelihood's gradient needs."""

from alws.gradient_models.kernel_ridge import FittedKernelRidge, KernelRidge
from alws.gradient_models.linear_readout import FittedLinearReadout, LinearReadout
from alws.gradient_models.protocols import GradientModel, Smoother

__all__ = [
    "FittedKernelRidge",
    "FittedLinearReadout",
    "GradientModel",
    "KernelRidge",
    "LinearReadout",
    "Smoother",
]
