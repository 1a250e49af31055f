"""Sigmoid belief network with one layer of Bernoulli causes.

z_j ~ Bernoulli(sigmoid(prior_j)),   x_i | z ~ Bernoulli(sigmoid(W_i . z + b_i)) independently,

z in {0, 1}^k, x in {0, 1}^d, so that p(x) = sum_z p(z) p(x | z) over the 2^k states of z. Permuting
the causes, or putting the complement of a cause in its place, does not change p(x).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from exact.base import ExactModel, Problem, draw_data


def log_bernoulli(x: jax.Array, logits: jax.Array) -> jax.Array:
    """Return sum_i log p(x_i) where p(x_i = 1) = sigmoid(logits_i)."""
    return (x * logits - jax.nn.softplus(logits)).sum(axis=-1)


class SigmoidBelief(ExactModel):
    """Symptoms x in {0, 1}^d, held as floats, of independent causes z in {0, 1}^k."""

    prior: jax.Array  # logits of the causes, [k]
    weights: jax.Array  # W, [d, k]
    offset: jax.Array  # b, [d]

    def sample_latent(self, key: jax.Array) -> jax.Array:
        """Draw z_j ~ Bernoulli(sigmoid(prior_j))."""
        return jax.random.bernoulli(key, jax.nn.sigmoid(self.prior)).astype(self.prior.dtype)

    def sample_observation(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Draw x_i ~ Bernoulli(sigmoid(W_i . z + b_i))."""
        logits = self.weights @ z + self.offset
        return jax.random.bernoulli(key, jax.nn.sigmoid(logits)).astype(logits.dtype)

    def log_prior(self, z: jax.Array) -> jax.Array:
        """Return sum_j log p(z_j)."""
        return log_bernoulli(z, self.prior)

    def log_likelihood(self, z: jax.Array, x: jax.Array) -> jax.Array:
        """Return sum_i log p(x_i | z)."""
        return log_bernoulli(x, self.weights @ z + self.offset)

    def log_marginal(self, x: jax.Array) -> jax.Array:
        """Return log sum_z p(z, x) over all 2^k states."""
        k = self.prior.size
        states = jnp.asarray(np.indices((2,) * k).reshape(k, -1).T, self.prior.dtype)
        return logsumexp(jax.vmap(self.log_joint, (0, None))(states, x))


def problem(key: jax.Array) -> Problem:
    """Return 800 rows of 8 symptoms with 3 causes that overlap, some of them rare.

    The start expects most symptoms most of the time, with effects far too weak.
    """
    truth = SigmoidBelief(
        prior=jnp.array([-0.4, 0.3, -1.0]),
        weights=jnp.array(
            [
                [3.0, 0.0, 0.0],
                [2.5, 0.0, 1.0],
                [2.5, -2.0, 0.0],
                [0.0, 3.0, 0.0],
                [0.0, 2.5, -1.5],
                [0.0, 2.5, 2.0],
                [1.0, 0.0, 3.0],
                [0.0, 0.0, 3.0],
            ]
        ),
        offset=jnp.array([-1.5, -1.5, -0.5, -1.5, -1.0, -2.0, -2.0, -1.5]),
    )
    data_key, start_key = jax.random.split(key)
    start = SigmoidBelief(
        prior=jnp.zeros(3),
        weights=0.5 * jax.random.normal(start_key, (8, 3)),
        offset=jnp.ones(8),
    )
    return Problem("sigmoid_belief", truth, start, draw_data(truth, data_key, 800))
