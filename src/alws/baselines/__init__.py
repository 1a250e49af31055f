"""Methods that the paper compares with."""

from alws.baselines.conjugate import Mixture, mixture_prior
from alws.baselines.fast_ica import FastICA, fast_ica
from alws.baselines.laplace_vae import Laplace, LaplaceEncoder
from alws.baselines.sin import Fitted, StructuredInference, fit_sin
from alws.baselines.spherical_vae import CircularPosterior
from alws.baselines.vae import Autoencoder, DiagonalGaussian, mean_elbo

__all__ = [
    "Autoencoder",
    "CircularPosterior",
    "DiagonalGaussian",
    "FastICA",
    "Fitted",
    "Laplace",
    "LaplaceEncoder",
    "Mixture",
    "StructuredInference",
    "fast_ica",
    "fit_sin",
    "mean_elbo",
    "mixture_prior",
]
