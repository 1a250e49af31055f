"""Gradient models: regressions from x to what the likelihood's gradient needs."""

from alws.gradient_models.conjugate_gradients import ConjugateGradients, FittedConjugateGradients
from alws.gradient_models.feature_ridge import FeatureMap, FittedFeatureRidge
from alws.gradient_models.kernel_ridge import FittedKernelRidge, KernelRidge
from alws.gradient_models.linear_readout import FittedLinearReadout, LinearReadout
from alws.gradient_models.nystrom import Nystrom
from alws.gradient_models.protocols import GradientModel, Smoother
from alws.gradient_models.random_features import RandomFeatures
from alws.gradient_models.reweighted import FittedReweighted, Reweighted, Scaled, fit_towards

__all__ = [
    "ConjugateGradients",
    "FeatureMap",
    "FittedConjugateGradients",
    "FittedFeatureRidge",
    "FittedKernelRidge",
    "FittedLinearReadout",
    "FittedReweighted",
    "GradientModel",
    "KernelRidge",
    "LinearReadout",
    "Nystrom",
    "RandomFeatures",
    "Reweighted",
    "Scaled",
    "Smoother",
    "fit_towards",
]
