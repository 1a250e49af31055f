"""One regression for all conditions: against exact gradients, and against the model without any."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import alws
from alws.estimates import Centred, Cross, Joint, Natural
from alws.features import Network
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws.model import Pooled, simulate
from alws.regressions import KernelRidge, LinearReadout
from alws.wake_sleep import WakeSleep, pooled

ROWS = 3


class RandomIntercept(eqx.Module):
    """y_j = a + b·c_j + exp(log_spread)·z + noise_j: y | c is normal, its covariance known."""

    start: jax.Array
    slope: jax.Array
    log_spread: jax.Array
    log_noise: jax.Array

    def sample_latent(self, key, c):
        return jax.random.normal(key)

    def log_prior(self, z, c):
        return jax.scipy.stats.norm.logpdf(z)

    def likelihood(self, z, c):
        mean = self.start + self.slope * c["x"] + jnp.exp(self.log_spread) * z
        return Gaussian(mean, jnp.exp(self.log_noise) * c["scale"])

    def log_marginal(self, y, c):
        mean = self.start + self.slope * c["x"]
        noise = jnp.exp(2 * self.log_noise) * jnp.broadcast_to(c["scale"], (ROWS,)) ** 2
        covariance = jnp.exp(2 * self.log_spread) + jnp.diag(noise)
        return jax.scipy.stats.multivariate_normal.logpdf(y, mean, covariance)


MODEL = RandomIntercept(jnp.array(0.2), jnp.array(0.5), jnp.array(-0.2), jnp.array(-0.3))


class OneCondition(eqx.Module):
    """The same under one condition, without the argument."""

    model: RandomIntercept

    def sample_latent(self, key):
        return self.model.sample_latent(key, FIRST)

    def log_prior(self, z):
        return self.model.log_prior(z, FIRST)

    def likelihood(self, z):
        return self.model.likelihood(z, FIRST)


def problem(units, widest=1.4):
    """Conditions of every unit, and data of other parameters than the model's."""
    rng = np.random.default_rng(0)
    c = {"x": rng.normal(size=(units, ROWS)), "scale": rng.uniform(1 / widest, widest, (units, 1))}
    intercept, noise = rng.normal(size=(units, 1)), rng.normal(size=(units, ROWS))
    y = 0.5 + 0.9 * c["x"] + intercept + 0.8 * c["scale"] * noise
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (c, y))


C, Y = problem(30)
FIRST = jax.tree.map(lambda a: a[0], C)


def products(pair):
    """All entries of (condition, y) and their products: the score is among them at one scale."""
    entries = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(pair)])
    rows, others = np.triu_indices(entries.size)
    return jnp.concatenate([entries, entries[rows] * entries[others]])


EXACT = LinearReadout(Network(products), ridge=1e-4)
KERNEL = KernelRidge(SquaredExponential(), ridge=0.1)


def gradient(regression, estimate, sleep_samples, seed, *, model=MODEL, data=Y, conditions=C):
    """The estimate of the mean score, of one sleep and one wake phase."""
    algorithm = WakeSleep(regression, estimate, optax.sgd(1.0), sleep_samples, 20, alws.ALWS_F)
    points, condition = pooled(data, conditions)
    draws, _ = alws.draw(model, jax.random.key(99), sleep_samples, condition)
    state = algorithm.init(model, draws)
    phases = eqx.filter_jit(algorithm.phases)
    return flat(phases(state, points, jax.random.key(seed), condition).gradient)


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def exact_gradient(model, y, c):
    return flat(eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(y, c).mean())(model))


@pytest.mark.parametrize(
    ("estimate", "most"), [(Joint(), 0.25), (Natural(), 0.1), (Centred(Natural(), 1000), 0.1)]
)
def test_one_regression_follows_the_exact_gradient(estimate, most):
    c, y = problem(60, widest=1.0)
    exact = exact_gradient(MODEL, y, c)
    found = gradient(EXACT, estimate, 8000, 0, data=y, conditions=c)
    np.testing.assert_allclose(found, exact, atol=most * np.abs(exact).max())


@pytest.mark.parametrize("estimate", [Joint(), Natural(), Cross()])
def test_conditions_of_one_value_are_the_model_without_conditions(estimate):
    same = jax.tree.map(lambda a: jnp.repeat(a[:1], len(Y), axis=0), C)
    found = gradient(KERNEL, estimate, 200, 0, conditions=same)
    plain = gradient(KERNEL, estimate, 200, 0, model=OneCondition(MODEL), conditions=None)
    np.testing.assert_allclose(found, plain, rtol=1e-3, atol=1e-4)


def test_direct_gradients_are_those_of_one_regression(key):
    """The mean of the regressed gradients is the gradient of the regressed log joint."""
    pairs, condition = (C, Y), Pooled(C)
    sleep, _ = alws.draw(MODEL, key, 200, condition)
    smoother = KERNEL.initialise(sleep.x).fit(sleep.x)
    weights = Joint().weigh(MODEL, smoother, sleep, pairs, condition)
    score = eqx.filter_grad(lambda m: Joint().objective(m, sleep, weights, condition))(MODEL)
    each = alws.estimates.direct_gradients(MODEL, smoother, sleep, pairs, condition)
    assert each.slope.shape == (len(Y),)
    for mean, direct in zip(jax.tree.leaves(score), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(direct.mean(), mean, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("number", [10, 100])
def test_draws_share_the_conditions_equally(number, key):
    z, (c, y) = simulate(MODEL, key, number, Pooled(C))
    assert y.shape == (number, ROWS)
    which = (np.asarray(c["x"])[:, None, 0] == np.asarray(C["x"])[None, :, 0]).argmax(axis=1)
    np.testing.assert_array_equal(C["scale"][which], c["scale"])
    counts = np.bincount(which, minlength=len(Y))
    assert counts.max() - counts.min() <= 1
    one = MODEL.likelihood(z[0], jax.tree.map(lambda a: a[0], c)).log_prob(y[0])
    prior = MODEL.log_prior(z[0], None)
    pair = jax.tree.map(lambda a: a[0], (c, y))
    np.testing.assert_allclose(alws.log_joint(MODEL, z[0], pair, Pooled(C)), prior + one)


def test_separate_regressions_are_the_phases_of_each_condition(key):
    """The gradient is the mean over conditions of those of a phase under each of them."""
    algorithm = WakeSleep(
        KERNEL, Natural(), optax.sgd(1.0), 60, 20, alws.ALWS_F, conditions="separate"
    )
    few = jax.tree.map(lambda a: a[:4], (C, Y))
    state = algorithm.init(MODEL, alws.draw(MODEL, key, 60, FIRST)[0])

    @eqx.filter_jit
    def by_hand(state):
        def one(item):
            c, y, key = item
            return algorithm.phases(state, y[None], key, c).gradient

        keys = jax.random.split(key, 4)
        mean = jax.tree.map(lambda g: g.mean(axis=0), jax.lax.map(one, (*few, keys)))
        return eqx.apply_updates(MODEL, mean)

    step = eqx.filter_jit(algorithm.step)(state, few[1], key, few[0])[0]
    for new, expected in zip(*map(jax.tree.leaves, (step.model, by_hand(state))), strict=True):
        np.testing.assert_allclose(new, expected, rtol=1e-4)


def test_a_fit_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, key):
    settings = alws.Settings(sleep_samples=50, validation_samples=20, measure_every=2)

    def fit(steps_until_stop, path, resume=False, settings=settings):
        return alws.fit(
            MODEL,
            Y,
            key=key,
            steps=6,
            settings=settings,
            conditions=C,
            batch_size=5,
            callbacks=[lambda report: report.step >= steps_until_stop],
            checkpoint=tmp_path / path,
            resume=resume,
        )

    whole = fit(6, "whole.npz")
    fit(3, "part.npz")
    again = fit(6, "part.npz", resume=True)
    assert again.steps == 6
    for a, b in zip(*map(jax.tree.leaves, (whole.state, again.state)), strict=True):
        np.testing.assert_array_equal(a, b)
    other = replace(settings, conditions="separate")
    with pytest.raises(alws.CheckpointError, match="conditions was 'pooled', is 'separate'"):
        fit(6, "part.npz", resume=True, settings=other)


def test_a_fit_ends_near_the_maximum_with_wake_batches():
    c, y = problem(90, widest=1.0)
    settings = alws.Settings(
        EXACT,
        optimiser=alws.natural_units(optax.adam(optax.cosine_decay_schedule(0.1, 300))),
        sleep_samples=500,
        adapt=alws.ALWS_F,
        measure_every=100,
    )
    result = alws.fit(
        MODEL, y, key=jax.random.key(0), steps=300, settings=settings, conditions=c, batch_size=30
    )
    assert nats_left(result.model, y, c) < 0.3


def scores_of_each(model, y, c):
    each = eqx.filter_grad(RandomIntercept.log_marginal)
    return np.asarray(jax.vmap(lambda y, c: ravel_pytree(each(model, y, c))[0])(y, c))


def nats_left(model, y, c):
    """½ gᵀI⁻¹g of the exact score over all data, the information from the scores of each."""
    scores = scores_of_each(model, y, c)
    total = scores.sum(axis=0)
    return 0.5 * total @ np.linalg.solve(scores.T @ scores, total)


class Twice(RandomIntercept):
    """The same with its latent given twice, which no sum or integral over both takes."""

    def sample_latent(self, key, c):
        z = jax.random.normal(key)
        return z, 2 * z

    def log_prior(self, z, c):
        return super().log_prior(z[0], c)

    def likelihood(self, z, c):
        return super().likelihood(z[0], c)


def test_scores_are_regressed_on_pairs_where_posteriors_cannot_be_integrated(key):
    c, y = problem(60, widest=1.0)
    model = Twice(*jax.tree.leaves(MODEL))
    result = alws.fit(model, y, key=key, conditions=c, seconds=30)
    assert "regression of the scores on products" in result.method
    assert result.verdict.trusted, result.verdict
    assert nats_left(result.model, y, c) < 0.2


# After the fit ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    """The result of one step, at conditions between −3 and 3, and data drawn at what it reached."""
    settings = alws.Settings(EXACT, sleep_samples=500, adapt=alws.ALWS_F)
    c, y = problem(200, widest=1.0)
    result = alws.fit(
        MODEL, y, key=jax.random.key(0), steps=1, settings=settings, conditions=c, batch_size=50
    )
    keys = jax.random.split(jax.random.key(1), 200)
    return result, c, jax.vmap(lambda k, c: alws.model.sample(result.model, k, c).x)(keys, c)


def posterior_mean(model, y, c):
    """E[z | y, c] in closed form."""
    spread, precision = jnp.exp(model.log_spread), jnp.exp(-2 * model.log_noise)
    residual = (y - model.start - model.slope * c["x"]).sum(axis=1)
    return spread * precision * residual / (1 + ROWS * precision * spread**2)


def test_expectations_under_many_conditions(fitted, key):
    result, c, y = fitted
    found = alws.expectation(
        result, lambda z: z, y, key=key, conditions=c, regression=EXACT, sleep_samples=2000
    )
    assert jnp.sqrt(jnp.mean((found - posterior_mean(result.model, y, c)) ** 2)) < 0.15
    with pytest.raises(ValueError, match=r"one of `condition`, .* got both"):
        alws.expectation(
            result, lambda z: z, y, key=key, conditions=c, condition=jax.tree.map(jnp.mean, c)
        )


def test_conditions_outside_those_of_the_fit_are_said_to_be_extrapolation(fitted, key):
    result, c, y = fitted
    new = {"x": c["x"][:3].at[1, 2].set(9.0), "scale": c["scale"][:3]}
    told = (
        r"extrapolation; 1 of 3 lie outside, .*`conditions\['x'\]` at index \[1, 2\] is 9, and lay"
    )
    with pytest.warns(RuntimeWarning, match=told):
        mode = alws.posterior_mode(result, y[:3], key=key, conditions=new)
    np.testing.assert_allclose(mode.z, posterior_mean(result.model, y[:3], new), atol=1e-3)
    with pytest.raises(ValueError, match="the structure of those of the fit"):
        alws.posterior_mode(result, y[:3], key=key, conditions=new["x"])


def test_standard_errors_from_one_regression(fitted, key):
    result, c, y = fitted
    found = alws.standard_errors(result, y, key=key, conditions=c, phases=3, sleep_samples=1000)
    scores = scores_of_each(result.model, y, c)
    exact = np.sqrt(np.diagonal(np.linalg.inv(scores.T @ scores)))
    np.testing.assert_allclose(flat(found.errors), exact, rtol=0.2)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, r"one entry for each observation, 30; got 29", {"conditions": C["x"][:29]}),
        (ValueError, r"`conditions` must be real numbers, got text", {"conditions": ["a"] * 30}),
        (
            ValueError,
            r"`conditions` must be finite, got 1",
            {"conditions": np.r_[np.nan, Y[1:, 0]]},
        ),
        (
            ValueError,
            '`conditions` must be one of "pooled", "separate", got \'each\'',
            {"settings": alws.Settings(conditions="each")},
        ),
        (
            TypeError,
            r'takes a single condition. Use `alws.Settings\(conditions="separate"\)`',
            {"settings": alws.Settings(estimate=alws.contrib.Importance(), sleep_samples=20)},
        ),
    ],
)
def test_bad_input(error, message, arguments, key):
    with pytest.raises(error, match=message):
        alws.fit(MODEL, Y, key=key, steps=1, **{"conditions": C, **arguments})
