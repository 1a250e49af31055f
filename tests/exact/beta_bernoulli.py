"""Coin tosses with a random bias.

z ~ Beta(a, b),   a = exp(log_a),   b = exp(log_b),   x_i | z ~ Bernoulli(z),   i = 1 .. 8.

With s = sum_i x_i heads out of n, and B the beta function,

p(x) = integral z^(a+s-1) (1-z)^(b+n-s-1) dz / B(a, b) = B(a + s, b + n - s) / B(a, b).

log B comes from the gamma function, as ``jax.scipy.special.betaln`` is off by 1e-6 in float64.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from exact.base import ExactModel, Problem, draw_data

EDGE = 1e-6  # draws of z stay this far from 0 and 1, which float32 would otherwise reach


def log_beta(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return log B(a, b) = log Gamma(a) + log Gamma(b) - log Gamma(a + b)."""
    return gammaln(a) + gammaln(b) - gammaln(a + b)


class BetaBernoulli(ExactModel):
    """Tosses x in {0, 1}^n, held as floats, of a coin whose bias z ~ Beta(exp log_a, exp log_b)."""

    log_a: jax.Array
    log_b: jax.Array
    tosses: int = eqx.field(static=True, default=8)

    def sample_latent(self, key: jax.Array) -> jax.Array:
        """Draw z ~ Beta(a, b), clipped into [EDGE, 1 - EDGE]."""
        z = jax.random.beta(key, jnp.exp(self.log_a), jnp.exp(self.log_b))
        return jnp.clip(z, EDGE, 1 - EDGE)

    def sample_observation(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Draw x_i ~ Bernoulli(z)."""
        return jax.random.bernoulli(key, z, (self.tosses,)).astype(self.log_a.dtype)

    def log_prior(self, z: jax.Array) -> jax.Array:
        """Return (a - 1) log z + (b - 1) log(1 - z) - log B(a, b)."""
        a, b = jnp.exp(self.log_a), jnp.exp(self.log_b)
        return (a - 1) * jnp.log(z) + (b - 1) * jnp.log1p(-z) - log_beta(a, b)

    def log_likelihood(self, z: jax.Array, x: jax.Array) -> jax.Array:
        """Return s log z + (n - s) log(1 - z)."""
        return (x * jnp.log(z) + (1 - x) * jnp.log1p(-z)).sum()

    def log_marginal(self, x: jax.Array) -> jax.Array:
        """Return log B(a + s, b + n - s) - log B(a, b)."""
        a, b = jnp.exp(self.log_a), jnp.exp(self.log_b)
        return log_beta(a + x.sum(), b + (1 - x).sum()) - log_beta(a, b)


def problem(key: jax.Array) -> Problem:
    """Return 400 rows of 8 tosses, mostly tails; the start expects mostly heads, too regularly."""
    truth = BetaBernoulli(log_a=jnp.array(np.log(0.8)), log_b=jnp.array(np.log(2.5)))
    start = BetaBernoulli(log_a=jnp.array(np.log(6.0)), log_b=jnp.array(np.log(2.0)))
    return Problem("beta_bernoulli", truth, start, draw_data(truth, key, 400))
