"""Linear Gaussian factor analysis.

z ~ N(0, I_2),   x | z ~ N(W z + b, S),   S = diag(exp(2 log_noise)),   x in R^5,

so that x ~ N(b, W W^T + S). The loadings W are determined up to a rotation of z only.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import multivariate_normal, norm

from exact.base import ExactModel, Problem, draw_data, with_outliers


class LinearGaussian(ExactModel):
    """Factor analysis: x = W z + b + exp(log_noise) * e, with z and e standard normal."""

    loadings: jax.Array  # W, [d, k]
    offset: jax.Array  # b, [d]
    log_noise: jax.Array  # log standard deviations of the noise, [d]

    def sample_latent(self, key: jax.Array) -> jax.Array:
        """Draw z ~ N(0, I)."""
        return jax.random.normal(key, (self.loadings.shape[1],))

    def sample_observation(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Draw x = W z + b + exp(log_noise) * e."""
        noise = jnp.exp(self.log_noise) * jax.random.normal(key, self.offset.shape)
        return self.loadings @ z + self.offset + noise

    def log_prior(self, z: jax.Array) -> jax.Array:
        """Return log N(z; 0, I)."""
        return norm.logpdf(z).sum()

    def log_likelihood(self, z: jax.Array, x: jax.Array) -> jax.Array:
        """Return log N(x; W z + b, S)."""
        return norm.logpdf(x, self.loadings @ z + self.offset, jnp.exp(self.log_noise)).sum()

    def log_marginal(self, x: jax.Array) -> jax.Array:
        """Return log N(x; b, W W^T + S)."""
        covariance = self.loadings @ self.loadings.T + jnp.diag(jnp.exp(2 * self.log_noise))
        return jnp.asarray(multivariate_normal.logpdf(x, self.offset, covariance))


def problem(key: jax.Array) -> Problem:
    """Return 400 points with columns of standard deviation 0.02 to 7, some of them far from zero.

    The start ignores the data: zero offset, unit noise and standard normal loadings.
    """
    scale = np.array([7.0, 0.02, 1.0, 3.0, 0.3])
    shape = np.array([[0.8, 0.0], [0.7, 0.3], [-0.6, 0.5], [0.1, 0.8], [-0.4, -0.7]])
    noise = np.sqrt(1 - (shape**2).sum(axis=1))
    truth = LinearGaussian(
        loadings=jnp.array(scale[:, None] * shape),
        offset=jnp.array([50.0, 0.3, -4.0, 12.0, 0.0]),
        log_noise=jnp.array(np.log(scale * noise)),
    )
    data_key, outlier_key, start_key = jax.random.split(key, 3)
    start = LinearGaussian(
        loadings=jax.random.normal(start_key, (5, 2)),
        offset=jnp.zeros(5),
        log_noise=jnp.zeros(5),
    )
    data = with_outliers(outlier_key, draw_data(truth, data_key, 400), jnp.array(scale))
    return Problem("linear_gaussian", truth, start, data)
