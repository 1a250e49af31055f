"""Latents that count, beyond the values drawn; latents on spheres, or tied by an equation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.special import logsumexp
from scipy.stats import binom, norm, poisson

import alws
from alws.maximum.latents import describe, from_line, grid_of, widened


class Animals(eqx.Module):
    """z ~ Poisson(exp(log_rate)) animals, each seen with one chance on each of four visits."""

    log_rate: jax.Array
    logit: jax.Array

    def sample(self, key):
        animals_key, visits_key = jax.random.split(key)
        z = jax.random.poisson(animals_key, jnp.exp(self.log_rate))
        return z, dist.Binomial(z, logits=self.logit).sample(visits_key, (4,))

    def log_joint(self, z, x):
        seen = dist.Binomial(z, logits=self.logit).log_prob(x).sum()
        return dist.Poisson(jnp.exp(self.log_rate)).log_prob(z) + seen


RNG = np.random.default_rng(2)
COUNTS = RNG.binomial(RNG.poisson(60.0, 100)[:, None], 0.5, (100, 4))


def test_a_start_that_never_draws_enough_reaches_the_exact_likelihood():
    """One animal expected, and data that no value drawn explains."""
    start = Animals(jnp.array(0.0), jnp.array(2.0))
    result = alws.fit(start, COUNTS, key=jax.random.key(1))
    n = np.arange(1000)
    rate, chance = np.exp(float(result.model.log_rate)), 1 / (1 + np.exp(-result.model.logit))
    seen = binom.logpmf(COUNTS[:, :, None], n, chance).sum(axis=1)
    exact = logsumexp(poisson.logpmf(n, rate) + seen, axis=1).sum()
    np.testing.assert_allclose(result.log_likelihood, exact, atol=0.01)
    assert result.verdict.trusted


def poisson_table(values):
    return np.where(values.T >= 0, poisson.logpmf(values.T, 5.0), -np.inf) + np.zeros((20, 1))


def test_a_count_goes_on_to_where_the_data_have_no_mass():
    drawn = describe({"z": RNG.poisson(5.0, 8192)})
    found = widened(drawn, lambda v: poisson_table(v) + 3.0 * v.T, poisson_table)
    mass = poisson.pmf(np.arange(1000), 5.0 * np.exp(3.0))  # of the data, tilted
    assert found.values[0, 0] == 0
    assert mass[int(found.values.max()) + 1 :].sum() < 1e-10
    np.testing.assert_array_equal(np.diff(found.values[:, 0]), 1)


def test_categories_that_there_are_not_are_never_added():
    """JAX reads the last category where there is none."""
    probability = np.array([0.5, 0.49, 0.01])
    drawn = describe({"z": RNG.choice(3, 8192, p=probability)})

    def clamped(values):
        return np.log(probability)[np.clip(values.T.astype(int), 0, 2)] + np.zeros((20, 1))

    assert widened(drawn, clamped, clamped) is None


def test_latents_on_a_sphere_have_a_density_there():
    """The points' mean of a density on the sphere is its integral over the sphere."""
    z = RNG.normal(size=(8192, 3)).astype(np.float32)
    z = 2 * z / np.linalg.norm(z, axis=1, keepdims=True)
    found = describe({"z": z})
    np.testing.assert_array_equal(found.kind, 5)
    points = RNG.normal(size=(100_000, 3))

    @jax.vmap
    def place(c):
        return from_line(found, grid_of(found, 1), jnp.zeros(0), c)

    with jax.enable_x64(True):
        at, slope = jax.tree.map(np.asarray, place(points))
    weights = np.exp(slope - norm.logpdf(points).sum(axis=1))
    np.testing.assert_allclose(np.linalg.norm(at["z"], axis=1), 2.0, rtol=1e-6)
    np.testing.assert_allclose(weights.mean(), 16 * np.pi, rtol=0.02)
    north = weights @ np.exp(at["z"][:, 2]) / len(points)
    np.testing.assert_allclose(north, 16 * np.pi * np.sinh(2) / 2, rtol=0.02)


def test_latents_that_satisfy_an_equation_have_no_density():
    z = RNG.normal(size=(8192, 3))
    assert "tied" in describe(np.stack([z[:, 0], z[:, 0] ** 2], axis=1))
    assert not isinstance(describe(z), str)
    walk = np.cumsum(RNG.normal(size=(8192, 12)), axis=1) + 100
    assert not isinstance(describe(walk), str)
