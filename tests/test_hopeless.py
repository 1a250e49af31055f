"""Fits that cannot go well, or hardly: each ends right, or says in its verdict what is wrong."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.scipy.stats import norm
from scipy import stats

import alws

KEY = jax.random.key(0)


class Noisy(eqx.Module):
    """z ~ N(0, 1), x ~ N(mean + z, s²): x is normal with variance 1 + s²."""

    mean: jax.Array
    log_scale: jax.Array

    def sample(self, key):
        z, noise = jax.random.normal(key, (2,))
        return z, self.mean + z + jnp.exp(self.log_scale) * noise

    def log_joint(self, z, x):
        return norm.logpdf(z) + norm.logpdf(x, self.mean + z, jnp.exp(self.log_scale))


class Clusters(eqx.Module):
    """Two normal clusters of standard deviation 1."""

    logits: jax.Array
    means: jax.Array

    def sample(self, key):
        k1, k2 = jax.random.split(key)
        z = jax.random.categorical(k1, self.logits)
        return z, self.means[z] + jax.random.normal(k2)

    def log_joint(self, z, x):
        return jax.nn.log_softmax(self.logits)[z] + norm.logpdf(x, self.means[z])


class Components(eqx.Module):
    """Probabilistic PCA: x ~ N(0, WWᵀ + s²I)."""

    weight: jax.Array
    log_scale: jax.Array

    def sample_latent(self, key):
        return jax.random.normal(key, (self.weight.shape[1],))

    def log_prior(self, z):
        return norm.logpdf(z).sum()

    def likelihood(self, z):
        return alws.likelihoods.Gaussian(self.weight @ z, jnp.exp(self.log_scale))


class Overflowing(Noisy):
    """Draws beyond z = 0.7 are not finite: about a quarter."""

    def sample(self, key):
        z, x = super().sample(key)
        return z, jnp.where(z > 0.7, jnp.exp(jnp.exp(20 * z)), x)


def noisy(mean=0.0, log_scale=0.0):
    return Noisy(jnp.array(mean), jnp.array(log_scale))


RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=100)
FAR = {
    "at 1000": 1000 + 1.5 * NORMAL,
    "at 20": 20 + 1.5 * NORMAL,
    "Cauchy": RNG.standard_cauchy(size=100),
}


def best(x):
    """The maximum of the log likelihood of `Noisy`, its variance at least 1."""
    return stats.norm.logpdf(x, x.mean(), max(x.std(), 1.0)).sum()


def height(model, x):
    scale = np.sqrt(1 + np.exp(2 * np.float64(model.log_scale)))
    return stats.norm.logpdf(x, np.float64(model.mean), scale).sum()


@pytest.mark.parametrize("x", FAR.values(), ids=FAR)
def test_a_fit_that_chooses_ends_at_the_maximum_of_data_far_away(x):
    result = alws.fit(noisy(), x, key=KEY)
    assert result.verdict.trusted
    assert height(result.model, x) > best(x) - 0.05


def test_clusters_far_away_are_found():
    x = np.concatenate([1000 + NORMAL[:50], 1006 + NORMAL[50:]])
    result = alws.fit(Clusters(jnp.zeros(2), jnp.array([-1.0, 1.0])), x, key=KEY)
    assert result.verdict.trusted
    expected = [x[:50].mean(), x[50:].mean()]
    np.testing.assert_allclose(sorted(result.model.means), expected, atol=0.02)


@pytest.mark.parametrize(
    ("x", "log_scale"), [(1.5 * NORMAL, np.log(1e-8)), (1e-8 * NORMAL, 0.0)], ids=["model", "data"]
)
def test_scales_of_a_hundred_millionth_are_left_or_reached(x, log_scale):
    result = alws.fit(noisy(log_scale=log_scale), x, key=KEY)
    assert result.verdict.trusted
    assert height(result.model, x) > best(x) - 0.05


@pytest.mark.slow
def test_a_scale_that_rounding_does_not_resolve_is_told():
    with pytest.warns(RuntimeWarning, match="too narrow for the precision of numbers"):
        result = alws.fit(noisy(mean=9.0, log_scale=-30.0), NORMAL, key=KEY)
    assert not result.verdict.trusted


def judged(model, x, true_height, highest, **asked):
    """A fit that was told what to do: right, or a verdict that says how many nats are left."""
    result = alws.fit(model, x, key=KEY, **asked)
    left = highest - true_height(result.model, x)
    if left > 1:
        assert not result.verdict.trusted
    return result, left


@pytest.mark.parametrize("where", ["at 1000", pytest.param("at 20", marks=pytest.mark.slow)])
def test_wake_sleep_warns_of_data_where_the_model_draws_nothing(where):
    settings = alws.Settings(sleep_samples=100, adapt=alws.ALWS_F)
    with pytest.warns(RuntimeWarning, match=r"at the end 100% of them lie outside"):
        _, left = judged(noisy(), FAR[where], height, best(FAR[where]), steps=60, settings=settings)
    assert left > 100


SLOW = {
    "few steps": {"steps": 300},
    "a rate of 10": {"steps": 100, "settings": alws.Settings(optimiser=optax.adam(10.0))},
    "50 samples": {"steps": 200, "settings": alws.Settings(sleep_samples=50)},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
@pytest.mark.parametrize("asked", SLOW.values(), ids=SLOW)
@pytest.mark.parametrize("x", FAR.values(), ids=FAR)
def test_wake_sleep_ends_right_or_says_what_is_left(x, asked):
    judged(noisy(), x, height, best(x), **asked)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
@pytest.mark.parametrize("asked", SLOW.values(), ids=SLOW)
@pytest.mark.parametrize("log_scale", [np.log(1e-8), 0.0])
def test_wake_sleep_at_tiny_scales_ends_right_or_says_what_is_left(log_scale, asked):
    x = NORMAL * (1.5 if log_scale else 1e-8)
    judged(noisy(log_scale=log_scale), x, height, best(x), **asked)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_fifty_samples_in_fifty_dimensions_are_not_trusted():
    x = np.random.default_rng(1).normal(size=(200, 50)) * (1 + np.arange(50) / 25)
    start = Components(jnp.asarray(0.1 * RNG.normal(size=(50, 2)), jnp.float32), jnp.array(0.0))
    values, _ = np.linalg.eigh(x.T @ x / 200)  # Tipping and Bishop's maximum
    noise = values[:-2].mean()
    terms = np.log(values[-2:]).sum() + 48 * np.log(noise) + 50 * np.log(2 * np.pi) + 50
    asked = {"steps": 200, "settings": alws.Settings(sleep_samples=50)}

    def exact(model, x):
        weight = np.asarray(model.weight, float)
        covariance = weight @ weight.T + np.exp(2 * float(model.log_scale)) * np.eye(50)
        return stats.multivariate_normal.logpdf(x, np.zeros(50), covariance).sum()

    result, left = judged(start, x, exact, -100 * terms, **asked)
    assert left > 10
    assert not result.verdict.trusted
    chosen = alws.fit(start, x, key=KEY)
    assert chosen.verdict.trusted
    assert exact(chosen.model, x) > -100 * terms - 5


@pytest.mark.filterwarnings("ignore:the step on the regression's own:RuntimeWarning")
def test_many_replaced_draws_are_told():
    model = Overflowing(jnp.array(0.0), jnp.array(0.0))
    settings = alws.Settings(sleep_samples=100, adapt=alws.ALWS_F)
    with pytest.warns(RuntimeWarning, match=r"\d+ of 1000, 2\d\.\d%, were not"):
        result = alws.fit(model, NORMAL, key=KEY, steps=10, settings=settings)
    assert 150 < result.diagnostics["replaced_draws"] < 350
