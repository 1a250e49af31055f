"""Posteriors of two modes, and regressed scores that lead downhill."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from scipy.special import logsumexp
from scipy.stats import norm as normal

import alws
from alws.maximum import Climber
from alws.maximum.choice import _lower


class Folded(eqx.Module):
    """z ~ N(0, 1), x ~ N(slope z², noise²): the data tell nothing of the sign of z."""

    slope: jax.Array
    log_noise: jax.Array

    def sample(self, key):
        z_key, noise_key = jax.random.split(key)
        z = jax.random.normal(z_key)
        return z, self.slope * z**2 + jnp.exp(self.log_noise) * jax.random.normal(noise_key)

    def log_joint(self, z, x):
        return norm.logpdf(z) + norm.logpdf(x, self.slope * z**2, jnp.exp(self.log_noise))


RNG = np.random.default_rng(3)
DATA = 2 * RNG.standard_normal(150) ** 2 + 0.3 * RNG.standard_normal(150)
START = Folded(jnp.array(1.0), jnp.array(0.0))


def exact(model):
    z = np.linspace(-8, 8, 8001)
    seen = normal.logpdf(DATA[:, None], float(model.slope) * z**2, np.exp(float(model.log_noise)))
    return logsumexp(normal.logpdf(z) + seen + np.log(z[1] - z[0]), axis=1).sum()


def test_posteriors_of_two_modes_are_integrated_whole():
    result = alws.fit(START, DATA, key=jax.random.key(0))
    assert "over the whole prior" in result.method
    assert result.verdict.trusted
    np.testing.assert_allclose(result.log_likelihood, exact(result.model), atol=0.05)
    nearby = [
        Folded(result.model.slope * (1 + a), result.model.log_noise + b)
        for a in (-0.02, 0, 0.02)
        for b in (-0.03, 0, 0.03)
    ]
    assert max(exact(m) for m in nearby) < exact(result.model) + 1e-3


def test_scores_that_lead_downhill_are_not_followed():
    found = Climber(START, DATA, key=jax.random.key(0)).run()
    worse = Folded(jnp.array(0.1), jnp.array(1.0))
    data = (DATA, jax.random.key(1), None, None)
    assert exact(worse) < exact(found.model) - 10
    assert _lower(worse, found, *data)
    assert not _lower(found.model, found, *data)
