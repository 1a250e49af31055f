"""Mixture of Gaussians with diagonal covariances.

z ~ Categorical(pi),   pi = softmax(logits),   x | z = k ~ N(mean_k, diag(exp(2 log_scale_k))),

so that p(x) = sum_k pi_k N(x; mean_k, diag(exp(2 log_scale_k))). The likelihood of a data set is
unbounded, as a component may shrink onto one observation: "the maximum" is an interior one.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

from exact.base import ExactModel, Problem, draw_data, with_outliers


class GaussianMixture(ExactModel):
    """Mixture of K diagonal Gaussians; the latent z is the index of the component."""

    logits: jax.Array  # [K]
    means: jax.Array  # [K, d]
    log_scales: jax.Array  # log standard deviations, [K, d]

    def sample_latent(self, key: jax.Array) -> jax.Array:
        """Draw z ~ Categorical(softmax(logits))."""
        return jax.random.categorical(key, self.logits)

    def sample_observation(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Draw x ~ N(mean_z, diag(exp(2 log_scale_z)))."""
        noise = jax.random.normal(key, self.means.shape[1:])
        return self.means[z] + jnp.exp(self.log_scales[z]) * noise

    def log_prior(self, z: jax.Array) -> jax.Array:
        """Return log pi_z."""
        return jax.nn.log_softmax(self.logits)[z]

    def log_likelihood(self, z: jax.Array, x: jax.Array) -> jax.Array:
        """Return log N(x; mean_z, diag(exp(2 log_scale_z)))."""
        return norm.logpdf(x, self.means[z], jnp.exp(self.log_scales[z])).sum()

    def log_marginal(self, x: jax.Array) -> jax.Array:
        """Return log sum_k pi_k N(x; mean_k, diag(exp(2 log_scale_k)))."""
        log_densities = norm.logpdf(x, self.means, jnp.exp(self.log_scales)).sum(axis=1)
        return logsumexp(jax.nn.log_softmax(self.logits) + log_densities)


def problem(key: jax.Array) -> Problem:
    """Return 600 points in three overlapping clusters, columns near 50 +- 7 and 1.2 +- 0.02.

    The start has equal weights, scales about three times those of the data, and means two to five
    standard deviations of the data away from the clusters.
    """
    truth = GaussianMixture(
        logits=jnp.array(np.log([0.5, 0.3, 0.2])),
        means=jnp.array([[46.0, 1.21], [58.0, 1.22], [51.0, 1.165]]),
        log_scales=jnp.array(np.log([[3.0, 0.012], [4.5, 0.008], [2.5, 0.006]])),
    )
    start = GaussianMixture(
        logits=jnp.zeros(3),
        means=jnp.array([[30.0, 1.25], [70.0, 1.15], [65.0, 1.28]]),
        log_scales=jnp.array(np.log([[20.0, 0.06]] * 3)),
    )
    data_key, outlier_key = jax.random.split(key)
    typical_scale = jnp.exp(truth.log_scales.mean(axis=0))
    data = with_outliers(outlier_key, draw_data(truth, data_key, 600), typical_scale)
    return Problem("gaussian_mixture", truth, start, data)
