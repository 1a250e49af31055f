"""Other starts: where they lie, and the maxima that they find."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

import alws
from alws.likelihoods import Bernoulli
from alws.maximum import Climber
from alws.maximum.spread import _far_apart, spread_starts


class Clusters(eqx.Module):
    """Five clusters on the line, of equal spread."""

    logits: jax.Array
    means: jax.Array
    log_scale: jax.Array

    def sample(self, key):
        first, second = jax.random.split(key)
        z = jax.random.categorical(first, self.logits)
        return z, self.means[z] + jnp.exp(self.log_scale) * jax.random.normal(second)

    def log_joint(self, z, x):
        return jax.nn.log_softmax(self.logits)[z] + norm.logpdf(
            x, self.means[z], jnp.exp(self.log_scale)
        )


CENTRES = np.array([-8.0, -4.0, 0.0, 4.0, 8.0])
DATA = np.repeat(CENTRES, 60) + 0.5 * np.random.default_rng(0).normal(size=300)
TOGETHER = Clusters(jnp.zeros(5), jnp.array([-8.2, -8.0, -7.8, 6.0, 8.0]), jnp.array(-0.7))


def exact(model):
    logs = jax.nn.log_softmax(model.logits) + norm.logpdf(
        DATA[:, None], model.means, jnp.exp(model.log_scale)
    )
    return float(logsumexp(logs, axis=1).sum())


def highest():
    """The log likelihood where every cluster has its own mean, which is all but its maximum."""
    x = DATA.reshape(5, 60)
    spread = np.log(np.sqrt(((x - x.mean(axis=1, keepdims=True)) ** 2).mean()))
    return exact(Clusters(jnp.zeros(5), jnp.array(x.mean(axis=1)), jnp.array(spread)))


def test_rows_far_apart_are_of_different_clusters():
    rng = np.random.default_rng(0)
    x = np.repeat(np.arange(5.0), 20)[:, None]
    assert sorted(x[_far_apart(x, 5, rng), 0]) == [0, 1, 2, 3, 4]
    assert len(_far_apart(np.zeros((6, 2)), 4, rng)) == 4


def test_starts_are_spread_over_the_data():
    with jax.enable_x64(True):
        climber = Climber(TOGETHER, jnp.asarray(DATA), key=jax.random.key(0))
        first = climber.theta
        climber.run()
        found = spread_starts(climber, first, 8, np.random.default_rng(0))
        heights = [start.log_likelihood for start in found]
        best = np.sort(climber.unravel(jnp.asarray(found[0].theta)).means)
    assert heights == sorted(heights, reverse=True)
    np.testing.assert_allclose(best, CENTRES, atol=0.3)


def test_a_bad_start_does_not_keep_clusters_together(key):
    result = alws.fit(TOGETHER, DATA, key=key)
    assert exact(result.model) > highest() - 0.1
    assert result.verdict.trusted
    assert result.verdict.maxima == len(result.maxima) == 2
    assert "the highest of 2 maxima" in str(result.verdict)
    assert result.maxima[0][0] > result.maxima[1][0] + 50


class Raters(eqx.Module):
    """Three classes of slides, which seven raters call one thing or the other."""

    sizes: jax.Array
    items: jax.Array

    def sample_latent(self, key):
        return jax.random.categorical(key, self.sizes)

    def log_prior(self, z):
        return jax.nn.log_softmax(self.sizes)[z]

    def likelihood(self, z):
        return Bernoulli(self.items[z])


CHANCES = np.array(
    [
        [0.06, 0.14, 0.01, 0.01, 0.06, 0.01, 0.01],
        [0.51, 0.99, 0.02, 0.06, 0.75, 0.02, 0.63],
        [0.99, 0.98, 0.86, 0.59, 0.99, 0.48, 0.99],
    ]
)


@pytest.mark.parametrize("seed", [1, 3])
def test_chances_at_their_boundary_play_a_part(seed):
    rng = np.random.default_rng(71)
    said = rng.random((118, 7)) < CHANCES[rng.choice(3, 118, p=[0.37, 0.18, 0.45])]
    items = 0.5 * np.random.default_rng(seed).normal(size=(3, 7))
    start = Raters(jnp.zeros(3), jnp.asarray(items))
    result = alws.fit(start, said.astype(np.float32), key=jax.random.key(seed))
    assert float(jnp.abs(result.model.items).max()) > 10
    assert result.verdict.idle == 0
    assert result.verdict.trusted


class Loose(Clusters):
    """The same with a parameter that the model does not use."""

    nothing: jax.Array


def test_parameters_that_are_not_used_stay_where_they_are(key):
    start = Loose(TOGETHER.logits, TOGETHER.means, TOGETHER.log_scale, jnp.array(3.0))
    with pytest.warns(RuntimeWarning, match="does not depend on `.nothing`"):
        result = alws.fit(start, DATA, key=key, starts=3)
    assert exact(result.model) > highest() - 0.1
    assert result.model.nothing == 3.0


class TwoSpreads(eqx.Module):
    """Two clusters on the line, each with a spread of its own."""

    means: jax.Array
    log_scales: jax.Array

    def sample(self, key):
        first, second = jax.random.split(key)
        z = jax.random.bernoulli(first).astype(int)
        return z, self.means[z] + jnp.exp(self.log_scales[z]) * jax.random.normal(second)

    def log_joint(self, z, x):
        return jnp.log(0.5) + norm.logpdf(x, self.means[z], jnp.exp(self.log_scales[z]))


@pytest.mark.filterwarnings("ignore:the fit should end at a maximum")
def test_a_cluster_that_collapses_onto_equal_values_is_not_trusted(key):
    x = np.random.default_rng(0).normal(size=60)
    x[:4] = 0.7
    start = TwoSpreads(jnp.array([0.0, 0.7]), jnp.array([0.0, -9.0]))
    result = alws.fit(start, x, key=key, seconds=5)
    assert not result.verdict.trusted
