"""Poisson counts with a shared log-normal random effect.

z ~ N(0, 1),   x_j | z ~ Poisson(r_j(z)) independently,   r_j(z) = exp(a_j + b_j z),   x in N^3.

With f(z) = log p(z, x), m the mode of f and s = (-f''(m))^(-1/2), Gauss-Hermite quadrature with
nodes t_i and weights w_i for the weight exp(-t^2) gives, at z_i = m + sqrt(2) s t_i,

p(x) = integral exp(f(z)) dz = sqrt(2) s sum_i w_i exp(t_i^2 + f(z_i)).

f is strictly concave, with f'(z) = -z + sum_j b_j (x_j - r_j) and f''(z) = -1 - sum_j b_j^2 r_j.
Nodes placed around the mode keep the rule accurate for large counts, where the posterior of z is
much narrower than the prior. The integral does not depend on m and s, which are held constant when
differentiating. The sign of b is determined up to a common factor -1 only.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import norm

from exact.base import ExactModel, Problem, draw_data

NODES, WEIGHTS = np.polynomial.hermite.hermgauss(60)
LOG_WEIGHTS = np.log(WEIGHTS) + NODES**2  # log w_i + t_i^2


class PoissonLogNormal(ExactModel):
    """Counts x_j ~ Poisson(exp(a_j + b_j z)), held as floats, with z ~ N(0, 1)."""

    a: jax.Array  # [d]
    b: jax.Array  # [d]

    def sample_latent(self, key: jax.Array) -> jax.Array:
        """Draw z ~ N(0, 1)."""
        return jax.random.normal(key)

    def sample_observation(self, key: jax.Array, z: jax.Array) -> jax.Array:
        """Draw x_j ~ Poisson(exp(a_j + b_j z))."""
        return jax.random.poisson(key, jnp.exp(self.a + self.b * z)).astype(self.a.dtype)

    def log_prior(self, z: jax.Array) -> jax.Array:
        """Return log N(z; 0, 1)."""
        return norm.logpdf(z)

    def log_likelihood(self, z: jax.Array, x: jax.Array) -> jax.Array:
        """Return sum_j x_j log r_j - r_j - log x_j!."""
        log_rate = self.a + self.b * z
        return (x * log_rate - jnp.exp(log_rate) - gammaln(x + 1)).sum()

    def log_marginal(self, x: jax.Array) -> jax.Array:
        """Return log integral p(z, x) dz by quadrature around the mode of the posterior of z."""
        mode, scale = jax.lax.stop_gradient(self._laplace(x))
        spread = np.sqrt(2.0) * scale
        # astype makes new constants, as JAX confuses one that is used in float32 and in float64
        nodes, log_weights = (c.astype(self.a.dtype) for c in (NODES, LOG_WEIGHTS))
        values = jax.vmap(self.log_joint, (0, None))(mode + spread * nodes, x)
        return jnp.log(spread) + logsumexp(log_weights + values)

    def _laplace(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return m with f'(m) = 0, by bisection on [-50, 50], and s = (-f''(m))^(-1/2)."""

        def halve(_: int, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bracket
            middle = (low + high) / 2
            slope = -middle + (self.b * (x - jnp.exp(self.a + self.b * middle))).sum()
            rising = slope > 0
            return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

        end = jnp.full((), 50.0, self.a.dtype)
        low, high = jax.lax.fori_loop(0, 40, halve, (-end, end))
        mode = (low + high) / 2
        return mode, (1 + (self.b**2 * jnp.exp(self.a + self.b * mode)).sum()) ** -0.5


def problem(key: jax.Array) -> Problem:
    """Return 500 triples of counts of very different sizes: near 2, 13 and 300.

    The start has log rates a off by about two standard deviations b, effects b too small by a
    factor of two to five, and one of them of the wrong sign.
    """
    truth = PoissonLogNormal(a=jnp.array([0.3, 2.5, 5.5]), b=jnp.array([0.9, -0.4, 0.6]))
    start = PoissonLogNormal(a=jnp.array([1.8, 1.5, 4.0]), b=jnp.full(3, 0.2))
    return Problem("poisson_log_normal", truth, start, draw_data(truth, key, 500))
