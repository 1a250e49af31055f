"""Methods that the paper compares with."""

from alws.baselines.bounds import importance_bound, mean_bound
from alws.baselines.conjugate import Mixture, mixture_prior
from alws.baselines.fast_ica import FastICA, fast_ica
from alws.baselines.laplace_vae import Laplace, LaplaceEncoder
from alws.baselines.noisy import NoisyNetwork
from alws.baselines.particles import particle_objective, simulator_loss
from alws.baselines.reweighted import reweighted_objective
from alws.baselines.sin import Fitted, StructuredInference, fit_sin
from alws.baselines.sivi import SemiImplicit, SemiImplicitEncoder
from alws.baselines.spherical_vae import CircularPosterior
from alws.baselines.sylvester import SylvesterEncoder, SylvesterPosterior
from alws.baselines.vae import Autoencoder, DiagonalGaussian, mean_elbo
from alws.baselines.wgan import critic_objective, generator_objective, gradient_penalty

__all__ = [
    "Autoencoder",
    "CircularPosterior",
    "DiagonalGaussian",
    "FastICA",
    "Fitted",
    "Laplace",
    "LaplaceEncoder",
    "Mixture",
    "NoisyNetwork",
    "SemiImplicit",
    "SemiImplicitEncoder",
    "StructuredInference",
    "SylvesterEncoder",
    "SylvesterPosterior",
    "critic_objective",
    "fast_ica",
    "fit_sin",
    "generator_objective",
    "gradient_penalty",
    "importance_bound",
    "mean_bound",
    "mean_elbo",
    "mixture_prior",
    "particle_objective",
    "reweighted_objective",
    "simulator_loss",
]
