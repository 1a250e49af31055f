"""Every likelihood, kernel and precision inside a whole fit, against an exact likelihood.

The models here have one latent with two states, so that log p(x) is a sum of two terms.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import alws
from alws.kernels import Matern12, Matern32, Matern52, OnSets, Pairwise, SquaredExponential
from alws.likelihoods import Bernoulli, Categorical, Gamma, Gaussian, LogNormal, Poisson, Product
from alws.model import in_own_precision
from alws.regressions import KernelRidge

FAMILIES = {
    "log-normal": (lambda p: LogNormal(p[:2], 0.5), [[0.0, 0.5, 0.0], [1.0, 0.0, 0.0]]),
    "categorical": (Categorical, [[[1.0, 0.0, 0.0]] * 3, [[0.0, 0.5, 0.0]] * 3]),
    "gamma": (lambda p: Gamma(jnp.exp(p[:2]), jnp.exp(p[2:])), [[0.0] * 4, [0.7, 1.0, 0.0, 0.2]]),
    "product": (
        lambda p: Product({"real": Gaussian(p[:1], 0.7), "kind": Categorical(p[1:])}),
        [[-0.5, 1.0, 0.0], [1.0, 0.0, 0.5]],
    ),
    "bernoulli": (Bernoulli, [[1.0, -0.5, 0.5, 0.0], [-0.7, 0.5, -1.0, 0.4]]),
    "poisson": (Poisson, [[0.0, 0.5], [1.0, 0.0]]),
    "noise": (lambda p: Gaussian(p[:1], jnp.exp(p[1:])), [[-0.5, 0.0], [1.0, -0.5]]),
    "sets": (lambda p: Gaussian(jnp.tile(p, (4, 1)), 0.7), [[-0.5, 0.0], [0.8, 0.3]]),
}


class TwoStates(eqx.Module):
    """z ∈ {0, 1}, x | z from a family with parameters of its own for each z."""

    logits: jax.Array
    parameters: jax.Array
    family: str = eqx.field(static=True)

    def sample_latent(self, key):
        return jax.random.categorical(key, self.logits)

    def log_prior(self, z):
        return jax.nn.log_softmax(self.logits)[z]

    def likelihood(self, z):
        return FAMILIES[self.family][0](self.parameters[z])

    def log_marginal(self, x):
        return jax.nn.logsumexp(
            jnp.stack([self.log_prior(z) + self.likelihood(z).log_prob(x) for z in (0, 1)])
        )


def problem(family, key):
    """A start, and data from other parameters."""
    start = TwoStates(jnp.zeros(2), jnp.array(FAMILIES[family][1]), family)
    truth = TwoStates(jnp.array([0.4, -0.4]), 1.5 * start.parameters + 0.2, family)
    return start, alws.draw(truth, key, 300)[0].x


def mean_log_likelihood(model, x):
    return float(jax.vmap(model.log_marginal)(x).mean())


KERNELS = {
    "sets": OnSets(SquaredExponential()),
    "categorical": Pairwise(lambda x, y: jnp.exp(-jnp.sum(x != y))),
    "bernoulli": Matern32(),
    "poisson": Matern52(),
    "noise": SquaredExponential() + Matern12(),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_follows_the_exact_gradient(family, key):
    start, x = problem(family, key)
    kernel = KERNELS.get(family, SquaredExponential())
    settings = alws.Settings(
        KernelRidge(kernel, ridge=0.1),
        optimiser=optax.sgd(1.0),
        sleep_samples=1000,
        adapt=alws.ALWS_F,
    )
    moved = [
        alws.fit(start, x, key=jax.random.key(i), steps=1, settings=settings).model
        for i in range(3)
    ]
    exact = eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(x).mean())(start)
    steps = [jax.tree.map(jnp.subtract, m, start) for m in moved]
    step = np.mean([ravel_pytree(s)[0] for s in steps], axis=0)
    target = ravel_pytree(exact)[0]
    error = np.linalg.norm(step - target) / np.linalg.norm(target)
    assert error < 0.25, (error, step, target)


def test_a_fit_in_double_precision_stays_double_and_improves(key):
    with jax.enable_x64(True):
        start, x = problem("log-normal", key)
        start = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), start)
        before = mean_log_likelihood(start, x)
        result = alws.fit(
            start,
            np.asarray(x, np.float64),
            key=key,
            steps=25,
            settings=alws.Settings(sleep_samples=200),
        )
        assert {leaf.dtype for leaf in jax.tree.leaves(result.model)} == {np.dtype("float64")}
        assert mean_log_likelihood(result.model, x) > before + 0.05


class Far(eqx.Module):
    """x ~ N(μ + z, 1) near 10⁸, where float32 has a number only every eight."""

    double = True
    mean: jax.Array

    def sample(self, key):
        z, noise = jax.random.normal(key, (2,))
        return z, (1e8 + self.mean + z + noise)[None]

    def log_joint(self, z, x):
        return -0.5 * z**2 - 0.5 * jnp.sum((x - 1e8 - self.mean - z) ** 2)


def test_a_model_that_asks_for_double_precision_gets_it_alone(key):
    x = 1e8 + 3.0 + np.sqrt(2) * np.random.default_rng(0).normal(size=(200, 1))
    result = alws.fit(
        Far(jnp.array(2.0)), x, key=key, steps=150, settings=alws.Settings(sleep_samples=100)
    )
    assert result.model.mean.dtype == np.float64
    assert abs(float(result.model.mean) - (x.mean() - 1e8)) < 0.1
    assert jnp.ones(2).dtype == np.float32
    with alws.precision(result.model):
        assert alws.draw(result.model, key, 3)[0].x.dtype == np.float64


def test_a_model_that_asks_for_double_precision_may_be_given_by_name():
    mean = in_own_precision(lambda model, power: model.mean**power)
    assert mean(power=2, model=Far(jnp.array(2.0))).dtype == np.float64


class Shifted(eqx.Module):
    """x ~ N(μ + c + z, 1), z ~ N(0, 1), for a condition c."""

    mean: jax.Array

    def sample(self, key, condition):
        z, noise = jax.random.normal(key, (2,))
        return z, (self.mean + condition + z + noise)[None]

    def log_joint(self, z, x, condition):
        residual = x[0] - self.mean - condition - z
        return -(z**2 + residual**2) / 2 - jnp.log(2 * jnp.pi)


def test_the_penalty_of_a_conditional_model_is_per_observation(key):
    conditions = np.linspace(-1, 1, 12)
    x = 0.5 + conditions[:, None]
    settings = alws.Settings(optimiser=optax.sgd(1.0), sleep_samples=100)
    ends = [
        alws.fit(
            Shifted(jnp.zeros(())),
            x,
            conditions=conditions,
            key=key,
            steps=1,
            settings=settings,
            log_prior=log_prior,
        ).model.mean
        for log_prior in (None, lambda model: 6.0 * model.mean)
    ]
    np.testing.assert_allclose(ends[1] - ends[0], 6.0 / 12, rtol=1e-4)


class Overflowing(TwoStates):
    """Now and then the latent overflows, and with it the forward pass."""

    def sample_latent(self, key):
        fine = jax.random.uniform(key) > 0.02
        return super().sample_latent(key), jnp.where(fine, 0.0, jnp.inf)

    def log_prior(self, z):
        return super().log_prior(z[0])

    def likelihood(self, z):
        return FAMILIES[self.family][0](self.parameters[z[0]] + z[1])


def test_a_likelihood_that_overflows_is_differentiated_at_the_draws_that_did_not(key):
    start, x = problem("log-normal", key)
    start = Overflowing(start.logits, start.parameters, "log-normal")
    settings = alws.Settings(optimiser=optax.sgd(0.1), sleep_samples=300, adapt=alws.ALWS_F)
    with pytest.warns(RuntimeWarning, match="of 900, .* were not, and copies of finite ones"):
        result = alws.fit(start, x, key=key, steps=3, settings=settings)
    assert 3 < result.diagnostics["replaced_draws"] < 60
    assert result.diagnostics["refused_steps"] == 0
    assert np.isfinite(result.model.parameters).all()
    assert not np.array_equal(result.model.parameters, start.parameters)
