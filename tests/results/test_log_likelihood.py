"""`alws.log_likelihood` against exact likelihoods, its standard error against what it misses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from exact import PROBLEMS
from exact.level import Level, level_log_likelihood
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

import alws
from alws.maximum.weighted import log_means
from alws.results import NoLikelihood


def exact(problem, number):
    """log p(x) of so many observations in float64."""
    with jax.enable_x64(True):
        wide = jax.tree.map(
            lambda a: jnp.asarray(a, float) if eqx.is_inexact_array(a) else a,
            (problem.truth, problem.data[:number]),
        )
        return np.asarray(jax.vmap(wide[0].log_marginal)(wide[1]))


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("gaussian_mixture", "the 3 values"),
        ("hidden_markov", "243 combinations"),
        ("poisson_log_normal", "weighted points"),
        ("beta_bernoulli", "weighted points"),
    ],
)
def test_the_exact_likelihood_is_found_by_what_the_model_allows(name, how, key):
    problem = PROBLEMS[name](jax.random.key(3))
    found = alws.log_likelihood(problem.truth, problem.data[:60], key=key)
    assert found.trusted
    assert how in found.method
    difference = found.total - exact(problem, 60).sum()
    assert abs(difference) < 3 * found.error + 1e-6 * abs(found.total)
    assert found.each.shape == found.errors.shape == (60,)


def test_the_stated_error_covers_the_truth_as_often_as_it_says(key):
    """Over observations, whose points are independent: (estimate − exact)/error is like t with 7
    degrees of freedom, and so is the sum's."""
    problem = PROBLEMS["linear_gaussian"](jax.random.key(3))
    found = alws.log_likelihood(problem.truth, problem.data[:300], key=key)
    difference = found.each - exact(problem, 300)
    assert found.errors.min() > 1e-12
    t = difference / found.errors
    assert 0.5 < np.mean(t**2) < 2.5
    assert 0.05 < (np.abs(t) > 1.64).mean() < 0.2
    assert abs(difference.sum()) < 3 * found.error


@pytest.mark.slow
def test_the_error_of_the_total_covers_the_truth_over_keys():
    problem = PROBLEMS["linear_gaussian"](jax.random.key(3))
    total = exact(problem, 30).sum()
    found = [
        alws.log_likelihood(problem.truth, problem.data[:30], key=jax.random.key(i))
        for i in range(40)
    ]
    z = np.array([(f.total - total) / f.error for f in found])
    assert 0.5 < (z**2).mean() < 2.0
    assert (np.abs(z) > 1.64).mean() < 0.25


def test_the_mean_of_weights_has_its_error_and_almost_no_bias():
    rng = np.random.default_rng(0)
    spread = 0.5
    log_w = rng.normal(-(spread**2) / 2, spread, (50, 4000))  # the mean weight is 1
    found = log_means(log_w)
    t = found.each / found.errors
    assert abs(found.each.mean()) < 3 * found.each.std() / 4000**0.5 + 1e-3
    assert 0.9 < t.std() < 1.15
    assert 0.08 < (np.abs(t) > 1.64).mean() < 0.15


class Shares(eqx.Module):
    """Shares z ~ Dirichlet(e^a), ten choices x by these: the entries of z sum to one."""

    a: jax.Array

    def sample(self, key):
        first, second = jax.random.split(key)
        z = jax.random.dirichlet(first, jnp.exp(self.a))
        return z, dist.Multinomial(10, z).sample(second).astype(float)

    def log_joint(self, z, x):
        return dist.Dirichlet(jnp.exp(self.a)).log_prob(z) + dist.Multinomial(10, z).log_prob(x)


def test_latents_that_sum_to_one_are_integrated(key):
    model = Shares(jnp.array([0.0, 0.7, -0.5]))
    x = jax.vmap(model.sample)(jax.random.split(key, 30))[1]
    found = alws.log_likelihood(model, x, key=key)
    exact = dist.DirichletMultinomial(jnp.exp(model.a), 10).log_prob(x)
    assert "2 latents" in found.method
    np.testing.assert_allclose(found.each, exact, atol=1e-3)


def test_sequences_are_filtered(key):
    model = Level(jnp.array(-0.5), 20)
    _, x = jax.vmap(model.sample)(jax.random.split(key, 3))
    found = alws.log_likelihood(model, x, key=key)
    exact = [level_log_likelihood(s, -0.5) for s in x]
    np.testing.assert_allclose(found.each, exact, rtol=1e-4)
    assert found.error == 0
    assert "Kalman" in found.method


class Squares(eqx.Module):
    """x_j = z_j² + noise: the posterior has two modes in every entry."""

    log_noise: jax.Array
    entries: int = eqx.field(static=True, default=8)

    def sample(self, key):
        z, noise = jax.random.normal(key, (2, self.entries))
        return z, z**2 + jnp.exp(self.log_noise) * noise

    def log_prior(self, z):
        return norm.logpdf(z).sum()

    def log_joint(self, z, x):
        return self.log_prior(z) + norm.logpdf(x, z**2, jnp.exp(self.log_noise)).sum()


def squares_exact(model, x):
    z = jnp.linspace(-8, 8, 8001)
    terms = norm.logpdf(z) + norm.logpdf(x[..., None], z**2, jnp.exp(model.log_noise))
    return float((logsumexp(terms, axis=-1) + jnp.log(z[1] - z[0])).sum())


def test_many_modes_are_noticed_and_annealed(key):
    model = Squares(jnp.log(0.5))
    x = jax.vmap(model.sample)(jax.random.split(key, 10))[1]
    found = alws.log_likelihood(model, x, key=key, tolerance=1.0)
    assert "annealed" in found.method
    assert found.trusted
    assert 0 < found.error < 1.0
    assert abs(found.total - squares_exact(model, x)) < 4 * found.error


class Switches(eqx.Module):
    """Twenty switches z_j, x_j ~ N(2 z_j, 1): a million combinations."""

    logits: jax.Array

    def sample(self, key):
        first, second = jax.random.split(key)
        z = jax.random.bernoulli(first, jax.nn.sigmoid(self.logits)).astype(int)
        return z, 2.0 * z + jax.random.normal(second, self.logits.shape)

    def log_joint(self, z, x):
        prior = jnp.where(z > 0, jax.nn.log_sigmoid(self.logits), jax.nn.log_sigmoid(-self.logits))
        return (prior + norm.logpdf(x, 2.0 * z)).sum()


def test_many_combinations_are_sampled_by_importance(key):
    model = Switches(jnp.linspace(-2, 2, 20))
    x = jax.vmap(model.sample)(jax.random.split(key, 20))[1]
    found = alws.log_likelihood(model, x, key=key)
    on = jax.nn.log_sigmoid(model.logits) + norm.logpdf(x, 2.0)
    by_hand = np.logaddexp(on, jax.nn.log_sigmoid(-model.logits) + norm.logpdf(x)).sum()
    assert "importance" in found.method
    assert found.trusted
    assert abs(found.total - by_hand) < 4 * found.error + 1e-3


class Chaos(eqx.Module):
    """Forty whole numbers, and only their exact path explains x."""

    log_noise: jax.Array

    def sample(self, key):
        first, second = jax.random.split(key)
        z = jax.random.poisson(first, 3.0, (40,))
        path = jnp.cumsum(jnp.sin(z * 1.0))
        return z, path + jnp.exp(self.log_noise) * jax.random.normal(second, (40,))

    def log_joint(self, z, x):
        noise = jnp.exp(self.log_noise)
        seen = norm.logpdf(x, jnp.cumsum(jnp.sin(z * 1.0)), noise)
        return dist.Poisson(3.0).log_prob(z).sum() + seen.sum()


def test_what_cannot_be_had_is_refused_with_the_reasons(key):
    model = Chaos(jnp.log(0.01))
    x = jax.vmap(model.sample)(jax.random.split(key, 2))[1]
    with pytest.raises(NoLikelihood, match=r"Chaos cannot be had: .*combinations.*importance"):
        alws.log_likelihood(model, x, key=key)


def test_data_that_are_impossible_have_no_likelihood(key):
    class Die(eqx.Module):
        logit: jax.Array

        def sample(self, key):
            z = jax.random.bernoulli(key, jax.nn.sigmoid(self.logit)).astype(int)
            return z, 1.0 * z

        def log_joint(self, z, x):
            prior = jnp.where(z > 0, self.logit, 0.0) - jnp.logaddexp(0.0, self.logit)
            return prior + jnp.where(x == z, 0.0, -jnp.inf)

    found = alws.log_likelihood(Die(jnp.array(0.0)), jnp.array([0.0, 1.0, 0.5]), key=key)
    np.testing.assert_allclose(found.each, [np.log(0.5), np.log(0.5), -np.inf])
    assert found.total == -np.inf
