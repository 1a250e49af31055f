"""A level that moves by an autoregression, seen through noise: one normal vector.

s_1 ~ N(0, 1),   s_t ~ N(0.9 s_{t-1}, 0.3²),   x_t ~ N(s_t, exp(2 log_noise)),   t = 1 .. T.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.stats import multivariate_normal

import alws


class Level(alws.StateSpace):
    log_noise: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state):
        return dist.Normal(0.9 * state, 0.3)

    def observation(self, state):
        return dist.Normal(state, jnp.exp(self.log_noise))


def level_log_likelihood(x, log_noise, observed=None):
    """log p(x) of the times that are observed."""
    observed = np.ones(len(x), bool) if observed is None else observed
    variances = [1.0]
    for _ in range(len(x) - 1):
        variances.append(0.81 * variances[-1] + 0.09)
    lag = np.abs(np.subtract.outer(np.arange(len(x)), np.arange(len(x))))
    first = np.minimum.outer(np.arange(len(x)), np.arange(len(x)))
    covariance = np.array(variances)[first] * 0.9**lag + np.exp(2 * log_noise) * np.eye(len(x))
    covariance = covariance[np.ix_(observed, observed)]
    return multivariate_normal.logpdf(np.asarray(x)[observed], cov=covariance)
