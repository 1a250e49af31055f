"""What the exact models share: the factorisation of the joint, and the form of a test problem.

A model is p_theta(z, x) = p_theta(z) p_theta(x | z), one example at a time. Sampling is ancestral,
z ~ p(z) and then x ~ p(x | z), and p_theta(x), the integral of the joint over z, is known exactly.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp


class ExactModel(eqx.Module):
    """A latent-variable model p_theta(z, x) = p_theta(z) p_theta(x | z) with known p_theta(x)."""

    @abstractmethod
    def sample_latent(self, key: jax.Array) -> Any:
        """Draw z ~ p(z)."""

    @abstractmethod
    def sample_observation(self, key: jax.Array, z: Any) -> jax.Array:
        """Draw x ~ p(x | z)."""

    @abstractmethod
    def log_prior(self, z: Any) -> jax.Array:
        """Return log p(z)."""

    @abstractmethod
    def log_likelihood(self, z: Any, x: jax.Array) -> jax.Array:
        """Return log p(x | z)."""

    @abstractmethod
    def log_marginal(self, x: jax.Array) -> jax.Array:
        """Return the exact log p(x), differentiable in theta."""

    def sample(self, key: jax.Array) -> tuple[Any, jax.Array]:
        """Draw (z, x) ~ p(z) p(x | z)."""
        latent_key, observation_key = jax.random.split(key)
        z = self.sample_latent(latent_key)
        return z, self.sample_observation(observation_key, z)

    def log_joint(self, z: Any, x: jax.Array) -> jax.Array:
        """Return log p(z, x) = log p(z) + log p(x | z)."""
        return self.log_prior(z) + self.log_likelihood(z, x)


class Problem(NamedTuple):
    """A data set to fit: ``data`` [n, ...] comes from ``truth``, up to outliers."""

    name: str
    truth: ExactModel
    start: ExactModel
    data: jax.Array


@eqx.filter_jit
def sample_many(model: ExactModel, keys: jax.Array) -> tuple[Any, jax.Array]:
    """Return one draw (z, x) ~ p(z, x) for each key, stacked."""
    return jax.vmap(model.sample)(keys)


def draw_data(model: ExactModel, key: jax.Array, n: int) -> jax.Array:
    """Return n independent observations x ~ p(x), stacked."""
    return sample_many(model, jax.random.split(key, n))[1]


@eqx.filter_jit
def with_outliers(
    key: jax.Array, data: jax.Array, scale: jax.Array, fraction: float = 0.01
) -> jax.Array:
    """Displace one coordinate of some rows of ``data`` [n, d] by 4 to 5 times ``scale`` [d].

    A share ``fraction`` of the rows (rounded, at least one), evenly spaced, is changed: in each, a
    coordinate j chosen at random becomes x_j + s u scale_j, with s = -1 or 1, u ~ Uniform(4, 5).
    """
    n, d = data.shape
    count = max(1, round(fraction * n))
    column_key, sign_key, size_key = jax.random.split(key, 3)
    rows = jnp.arange(count) * (n // count)
    columns = jax.random.randint(column_key, (count,), 0, d)
    signs = jax.random.rademacher(sign_key, (count,))
    sizes = jax.random.uniform(size_key, (count,), minval=4.0, maxval=5.0)
    return data.at[rows, columns].add(signs * sizes * scale[columns])
