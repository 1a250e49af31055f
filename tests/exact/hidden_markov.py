"""Hidden Markov model with Gaussian emissions.

z_1 ~ Categorical(softmax(initial)),   z_t | z_{t-1} ~ Categorical(softmax(transition[z_{t-1}])),
x_t | z_t = k ~ N(mean_k, exp(2 log_scale_k)),   t = 1 .. T.

The marginal of x = (x_1 .. x_T) follows from alpha_t(k) = p(x_1 .. x_t, z_t = k):
alpha_1(k) = p(z_1 = k) p(x_1 | k),   alpha_t(k) = p(x_t | k) sum_j alpha_{t-1}(j) p(k | j),
p(x) = sum_k alpha_T(k).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

from exact.base import ExactModel, Problem, draw_data, with_outliers


class HiddenMarkov(ExactModel):
    """Hidden Markov chain z in {0 .. K-1}^T with a scalar Gaussian emission at each step."""

    initial: jax.Array  # logits of the first state, [K]
    transition: jax.Array  # logits of the next state, one row for each state, [K, K]
    means: jax.Array  # [K]
    log_scales: jax.Array  # log standard deviations, [K]
    steps: int = eqx.field(static=True, default=5)

    def sample_latent(self, key: jax.Array) -> jax.Array:
        """Draw z, an int[T], from the Markov chain."""
        keys = jax.random.split(key, self.steps)
        first = jax.random.categorical(keys[0], self.initial)

        def step(state: jax.Array, step_key: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = jax.random.categorical(step_key, self.transition[state])
            return state, state

        _, rest = jax.lax.scan(step, first, keys[1:])
        return jnp.concatenate([first[None], rest])

    def sample_observation(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Draw x_t ~ N(mean_{z_t}, exp(2 log_scale_{z_t})) for each t."""
        return self.means[z] + jnp.exp(self.log_scales[z]) * jax.random.normal(key, z.shape)

    def log_prior(self, z: jax.Array) -> jax.Array:
        """Return log p(z_1) + sum_{t > 1} log p(z_t | z_{t-1})."""
        moves = jax.nn.log_softmax(self.transition)[z[:-1], z[1:]]
        return jax.nn.log_softmax(self.initial)[z[0]] + moves.sum()

    def log_likelihood(self, z: jax.Array, x: jax.Array) -> jax.Array:
        """Return sum_t log N(x_t; mean_{z_t}, exp(2 log_scale_{z_t}))."""
        return norm.logpdf(x, self.means[z], jnp.exp(self.log_scales[z])).sum()

    def log_marginal(self, x: jax.Array) -> jax.Array:
        """Return log sum_k alpha_T(k) by the forward algorithm, in logarithms."""
        emissions = norm.logpdf(x[:, None], self.means, jnp.exp(self.log_scales))
        moves = jax.nn.log_softmax(self.transition)

        def step(log_alpha: jax.Array, emission: jax.Array) -> tuple[jax.Array, None]:
            return logsumexp(log_alpha[:, None] + moves, axis=0) + emission, None

        first = jax.nn.log_softmax(self.initial) + emissions[0]
        log_alpha, _ = jax.lax.scan(step, first, emissions[1:])
        return logsumexp(log_alpha)


def problem(key: jax.Array) -> Problem:
    """Return 500 sequences of 5 steps with values near 50 +- 7 and states that overlap.

    The start has equal probabilities everywhere, means more than two standard deviations of the
    data above the true ones, and scales two to four times too large.
    """
    truth = HiddenMarkov(
        initial=jnp.array(np.log([0.6, 0.3, 0.1])),
        transition=jnp.array(np.log([[0.8, 0.15, 0.05], [0.1, 0.7, 0.2], [0.25, 0.05, 0.7]])),
        means=jnp.array([42.0, 51.0, 60.0]),
        log_scales=jnp.array(np.log([2.5, 3.0, 4.0])),
    )
    start = HiddenMarkov(
        initial=jnp.zeros(3),
        transition=jnp.zeros((3, 3)),
        means=jnp.array([60.0, 70.0, 80.0]),
        log_scales=jnp.array(np.log([9.0, 9.0, 9.0])),
    )
    data_key, outlier_key = jax.random.split(key)
    typical_scale = jnp.full(truth.steps, jnp.exp(truth.log_scales.mean()))
    data = with_outliers(outlier_key, draw_data(truth, data_key, 500), typical_scale)
    return Problem("hidden_markov", truth, start, data)
