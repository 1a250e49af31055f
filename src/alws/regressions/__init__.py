"""Regressions from x to what the likelihood's gradient needs: the paper's gradient models."""

from alws.regressions.as_published import AsPublished
from alws.regressions.base import KernelSmoother, Recipe, Regression, Smoother, SolveReport
from alws.regressions.conjugate_gradients import ConjugateGradients
from alws.regressions.kernel_ridge import KernelRidge
from alws.regressions.nystrom import Nystrom
from alws.regressions.random_features import RandomFeatures
from alws.regressions.readout import LinearReadout

__all__ = [
    "AsPublished",
    "ConjugateGradients",
    "KernelRidge",
    "KernelSmoother",
    "LinearReadout",
    "Nystrom",
    "RandomFeatures",
    "Recipe",
    "Regression",
    "Smoother",
    "SolveReport",
]
