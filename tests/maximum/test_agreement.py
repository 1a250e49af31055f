"""Models whose density is not that of what they simulate, in ways that their scores do not show."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm, poisson

import alws
from alws.maximum.points import is_apart

KEY = jax.random.key(0)


class Noisy(eqx.Module):
    """z ~ N(0, 1), x ~ N(mean + z, s²); its density counts the prior so many times."""

    mean: jax.Array
    log_scale: jax.Array
    times: int = eqx.field(static=True, default=1)

    def sample(self, key):
        z, noise = jax.random.normal(key, (2,))
        return z, self.mean + z + jnp.exp(self.log_scale) * noise

    def log_joint(self, z, x):
        prior = self.times * norm.logpdf(z)
        return prior + norm.logpdf(x, self.mean + z, jnp.exp(self.log_scale))


class Clusters(eqx.Module):
    """Two clusters of fixed weights; its density has their logits times `weighed`."""

    means: jax.Array
    weighed: float = eqx.field(static=True, default=1.0)

    def sample(self, key):
        k1, k2 = jax.random.split(key)
        z = jax.random.bernoulli(k1, 0.8).astype(int)
        return z, self.means[z] + jax.random.normal(k2)

    def log_joint(self, z, x):
        logit = self.weighed * jnp.log(4.0)
        return jax.nn.log_sigmoid(jnp.where(z == 1, logit, -logit)) + norm.logpdf(x, self.means[z])


class Exchanged(Clusters):
    """Weights to be fitted, which its density gives to the other cluster."""

    logit: jax.Array = eqx.field(default_factory=lambda: jnp.array(0.5))

    def sample(self, key):
        k1, k2 = jax.random.split(key)
        z = jax.random.bernoulli(k1, jax.nn.sigmoid(self.logit)).astype(int)
        return z, self.means[z] + jax.random.normal(k2)

    def log_joint(self, z, x):
        weight = jax.nn.log_sigmoid(jnp.where(z == 0, self.logit, -self.logit))
        return weight + norm.logpdf(x, self.means[z])


class Animals(eqx.Module):
    """z ~ Poisson(3) animals of which each leaves e^log_rate traces; `prior` is its density's."""

    log_rate: jax.Array
    prior: float = eqx.field(static=True, default=3.0)

    def sample(self, key):
        k1, k2 = jax.random.split(key)
        z = jax.random.poisson(k1, 3.0).astype(float)
        return z, jax.random.poisson(k2, jnp.exp(self.log_rate) * (1 + z)).astype(float)

    def log_joint(self, z, x):
        return poisson.logpmf(z, self.prior) + poisson.logpmf(x, jnp.exp(self.log_rate) * (1 + z))


RNG = np.random.default_rng(0)
NUMBERS = 1 + 2 * RNG.normal(size=200)
TWO = RNG.normal(size=200) + np.where(RNG.random(200) < 0.8, 1.0, -1.0)
FAR = RNG.normal(size=200) + np.where(RNG.random(200) < 0.7, 4.0, -4.0)
TRACES = RNG.poisson(2 * (1 + RNG.poisson(3, 200))).astype(float)


def noisy(times):
    return Noisy(jnp.array(0.5), jnp.array(0.3), times)


def clusters(weighed):
    return Clusters(jnp.array([-1.5, 1.5]), weighed)


RIGHT = {
    "prior": (noisy(1), NUMBERS),
    "clusters": (clusters(1.0), TWO),
    "count": (Animals(jnp.array(0.5)), TRACES),
}
WRONG = {
    "prior left out": (noisy(0), NUMBERS),
    "prior twice": (noisy(2), NUMBERS),
    "weights left out": (clusters(0.0), TWO),
    "weights exchanged": (clusters(-1.0), TWO),
    "fitted weights exchanged": (Exchanged(jnp.array([-1.0, 1.0])), FAR),
    "another count": (Animals(jnp.array(0.5), 4.0), TRACES),
}


@pytest.mark.parametrize("name", RIGHT)
def test_models_that_simulate_their_density_are_trusted(name):
    result = alws.fit(*RIGHT[name], key=KEY)
    assert result.verdict.trusted
    assert not result.verdict.of_model


@pytest.mark.parametrize("name", WRONG)
def test_models_that_simulate_something_else_are_told(name):
    with pytest.warns(RuntimeWarning, match="own draws contradict its density: .* Mend the model"):
        result = alws.fit(*WRONG[name], key=KEY)
    assert result.verdict.of_model
    assert not result.verdict.trusted


def test_the_verdict_on_a_fit_by_steps_tells_too():
    settings = alws.Settings(sleep_samples=50, validation_samples=10)
    result = alws.fit(*WRONG["prior left out"], key=KEY, steps=2, settings=settings)
    assert "simulated z do not lie where" in str(result.verdict)


def test_draws_of_what_is_said_are_hardly_ever_told_apart():
    """Posteriors of a latent with x = z + noise, drawn from and, in turn, drawn wrongly."""
    told = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        z, noise = rng.normal(size=(2, 500, 1))
        mean, variance = (z + noise) / 2, np.full_like(z, 0.5)
        told.append(is_apart(z, mean, variance, 3 * variance**2))
        rare = rng.random((500, 1)) < 0.002
        share = np.full_like(z, 0.002)
        told.append(is_apart(rare, share, share * (1 - share), share * (1 - share)))
        assert is_apart(z, z + noise, np.ones_like(z), 3 * np.ones_like(z))  # no prior
        assert is_apart(z, mean, variance / 2, 3 * variance**2 / 4)
        assert is_apart(z + 0.5, mean, variance, 3 * variance**2)
    assert not any(told)
