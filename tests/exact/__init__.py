"""Six latent-variable models whose likelihood is known exactly, to test fits against.

Each model has ``sample(key) -> (z, x)`` and ``log_joint(z, x)``, all that a fit by simulation may
use, and in addition the exact ``log_marginal(x) = log p_theta(x)``, which tells how good a fit is.

``PROBLEMS`` maps a name to a function ``problem(key) -> Problem`` that draws an awkward data set
(odd scales and offsets, a few outliers) and gives a start far from the truth.
``maximum_likelihood`` finds the best that any fit can reach on such data.
"""

from collections.abc import Callable

import jax

from exact import (
    beta_bernoulli,
    gaussian_mixture,
    hidden_markov,
    linear_gaussian,
    poisson_log_normal,
    sigmoid_belief,
)
from exact.base import ExactModel, Problem, sample_many, with_outliers
from exact.beta_bernoulli import BetaBernoulli
from exact.gaussian_mixture import GaussianMixture
from exact.hidden_markov import HiddenMarkov
from exact.linear_gaussian import LinearGaussian
from exact.maximum import in_double, maximum_likelihood, mean_log_likelihood
from exact.poisson_log_normal import PoissonLogNormal
from exact.sigmoid_belief import SigmoidBelief

PROBLEMS: dict[str, Callable[[jax.Array], Problem]] = {
    "linear_gaussian": linear_gaussian.problem,
    "gaussian_mixture": gaussian_mixture.problem,
    "hidden_markov": hidden_markov.problem,
    "poisson_log_normal": poisson_log_normal.problem,
    "beta_bernoulli": beta_bernoulli.problem,
    "sigmoid_belief": sigmoid_belief.problem,
}

__all__ = [
    "PROBLEMS",
    "BetaBernoulli",
    "ExactModel",
    "GaussianMixture",
    "HiddenMarkov",
    "LinearGaussian",
    "PoissonLogNormal",
    "Problem",
    "SigmoidBelief",
    "in_double",
    "maximum_likelihood",
    "mean_log_likelihood",
    "sample_many",
    "with_outliers",
]
