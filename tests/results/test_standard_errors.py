"""Standard errors against exact information: closed forms, quadrature, known coverage."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from exact import (
    PROBLEMS,
    LinearGaussian,
    in_double,
    maximum_likelihood,
    sample_many,
)
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import norm

import alws
from alws.kernels import SquaredExponential


class Level(eqx.Module):
    """x = mean + z + noise: z ~ N(0, exp(2·log_scale)), noise of variance ¼."""

    mean: jax.Array
    log_scale: jax.Array

    def sample(self, key):
        latent_key, noise_key = jax.random.split(key)
        z = jnp.exp(self.log_scale) * jax.random.normal(latent_key)
        return z, self.mean + z + 0.5 * jax.random.normal(noise_key)

    def log_joint(self, z, x):
        return norm.logpdf(z, 0.0, jnp.exp(self.log_scale)) + norm.logpdf(x, self.mean + z, 0.5)


class Told(Level):
    """The same, with its log likelihood."""

    def log_marginal(self, x):
        return norm.logpdf(x, self.mean, jnp.sqrt(jnp.exp(2 * self.log_scale) + 0.25))


@pytest.fixture(scope="module")
def key():
    return jax.random.key(0, impl="rbg")


@pytest.fixture(scope="module")
def fitted(key):
    """A result that holds the model given, as if a fit had ended there."""
    small = Level(jnp.array(0.0), jnp.array(0.0))
    settings = alws.Settings(optimiser=optax.sgd(0.0), sleep_samples=10, validation_samples=2)
    first = alws.fit(small, jnp.zeros(3), key=key, steps=1, settings=settings, progress=False)

    def make(model, sleep_samples=300, ridge=0.1, log_prior=None):
        return replace(
            first,
            model=model,
            regression=alws.regressions.KernelRidge(SquaredExponential(), ridge=ridge),
            algorithm=replace(
                first.algorithm,
                sleep_samples=sleep_samples,
                log_prior=log_prior,
            ),
        )

    return make


def flat(tree):
    return np.asarray(ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0], float)


@eqx.filter_jit
def scores_and_curvature(model, x):
    """Exact scores of every observation, and minus the Hessian of the log likelihood."""
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    start, unravel = ravel_pytree(parameters)

    def value(p, x):
        return eqx.combine(unravel(p), rest).log_marginal(x)

    scores = jax.vmap(jax.grad(value), (None, 0))(start, x)
    return scores, -jax.hessian(lambda p: jax.vmap(value, (None, 0))(p, x).sum())(start)


def exact_errors(model, data):
    """√diag of the inverse of Σ s sᵀ, and of minus the Hessian."""
    scores, curvature = in_double(scores_and_curvature, model, data)
    return [np.sqrt(np.diagonal(np.linalg.inv(i))) for i in (scores.T @ scores, curvature)]


def expected_errors(model, size, number=20_000):
    """√diag of the inverse of size · E[s sᵀ], over many draws of the model."""
    x = sample_many(model, jax.random.split(jax.random.key(9, impl="rbg"), number))[1]
    scores, _ = in_double(scores_and_curvature, model, x)
    return np.sqrt(np.diagonal(np.linalg.inv(size * scores.T @ scores / number)))


@pytest.fixture(scope="module")
def factor():
    """Factor analysis with one factor, at the exact maximum of its likelihood."""
    truth = LinearGaussian(
        jnp.array([[1.0], [0.7], [-0.8]]),
        jnp.array([0.0, 2.0, -1.0]),
        jnp.log(jnp.array([0.5, 0.6, 0.4])),
    )
    data = sample_many(truth, jax.random.split(jax.random.key(0), 400))[1]
    return maximum_likelihood(truth, data)[0], data


@pytest.fixture(scope="module")
def coins():
    problem = PROBLEMS["beta_bernoulli"](jax.random.key(1, impl="rbg"))
    return maximum_likelihood(problem.truth, problem.data, problem.start)[0], problem.data


def test_factor_analysis(fitted, factor, key):
    model, data = factor
    result = fitted(model, sleep_samples=500)
    outer, curvature = exact_errors(model, data)
    observed = alws.standard_errors(result, data, key=key)
    np.testing.assert_allclose(flat(observed.errors), outer, rtol=0.15)
    np.testing.assert_allclose(flat(observed.errors), curvature, rtol=0.2)
    expected = alws.standard_errors(result, data, key=key, information="expected")
    np.testing.assert_allclose(flat(expected.errors), expected_errors(model, 400), rtol=0.15)
    assert observed.errors.loadings.shape == model.loadings.shape
    np.testing.assert_allclose(
        np.sqrt(np.diagonal(observed.covariance)), flat(observed.errors), rtol=1e-4
    )


def test_beta_bernoulli_and_functions_of_its_parameters(fitted, coins, key):
    model, data = coins
    found = alws.standard_errors(fitted(model), data, key=key)
    scores, _ = in_double(scores_and_curvature, model, data)
    covariance = np.linalg.inv(scores.T @ scores)
    np.testing.assert_allclose(found.covariance, covariance, rtol=0.12)
    a, b = np.exp(flat(model))
    mean = found.of(lambda m: {"mean": jax.nn.sigmoid(m.log_a - m.log_b), "a": jnp.exp(m.log_a)})
    slope = a * b / (a + b) ** 2 * np.array([1, -1])
    np.testing.assert_allclose(mean["mean"], np.sqrt(slope @ covariance @ slope), rtol=0.06)
    np.testing.assert_allclose(mean["a"], a * found.errors.log_a, rtol=1e-4)


@eqx.filter_jit
def plain_gradients(model, regression, data, key, number):
    sleep, _ = alws.draw(model, key, number)
    g = alws.estimates.direct_gradients(model, regression.fit(sleep.x), sleep, data)
    return jnp.concatenate([leaf.reshape(len(data), -1) for leaf in jax.tree.leaves(g)], 1)


def plain_errors(model, data, key, number, ridge):
    """Standard errors from ĝ ĝᵀ of one sleep phase, without any remedy."""
    regression = alws.regressions.KernelRidge(SquaredExponential(), ridge=ridge)
    g = np.asarray(plain_gradients(model, regression, data, key, number), float)
    return np.sqrt(np.diagonal(np.linalg.inv(g.T @ g)))


def test_noise_and_smoothing_are_both_taken_out(fitted, factor, key):
    """Plain ĝ ĝᵀ is far off: too large with little ridge, too small with much."""
    model, data = factor
    outer, _ = exact_errors(model, data)
    off = {}
    for ridge in (0.001, 3.0):
        plain = plain_errors(model, data, key, 500, ridge)
        found = alws.standard_errors(fitted(model, 500, ridge), data, key=key, phases=24)
        off[ridge] = np.log(plain / outer), np.log(flat(found.errors) / outer)
    assert off[0.001][0].min() < -0.2
    assert np.abs(off[0.001][1]).max() < 0.12
    assert off[3.0][0].max() > 1
    assert np.abs(off[3.0][1]).max() < 0.2


@pytest.mark.slow
def test_counts_with_a_sharp_posterior(fitted):
    """Complete data would tell 77 times as much; the errors are noisy, and say so."""
    key = jax.random.key(1)  # JAX draws Poisson counts with keys of this kind only
    problem = PROBLEMS["poisson_log_normal"](key)
    model, data = maximum_likelihood(problem.truth, problem.data, problem.start)[0], problem.data
    outer, _ = exact_errors(model, data)
    assert (plain_errors(model, data, key, 1000, 0.01) / outer).min() < 0.65
    found = alws.standard_errors(
        fitted(model, sleep_samples=1000, ridge=10.0), data, key=key, phases=16
    )
    off = np.log(flat(found.errors) / outer)
    assert np.sqrt(np.mean(off**2)) < 0.2
    assert (np.abs(off) < 3 * flat(found.noise) + 0.1).all()


class Line(eqx.Module):
    """x | c = intercept + slope·c + z + noise, its scale s unknown: variance s² + ¼."""

    intercept: jax.Array
    slope: jax.Array
    log_scale: jax.Array

    def sample(self, key, c):
        latent_key, noise_key = jax.random.split(key)
        z = jnp.exp(self.log_scale) * jax.random.normal(latent_key)
        return z, self.intercept + self.slope * c + z + 0.5 * jax.random.normal(noise_key)

    def log_joint(self, z, x, c):
        prior = norm.logpdf(z, 0.0, jnp.exp(self.log_scale))
        return prior + norm.logpdf(x, self.intercept + self.slope * c + z, 0.5)


def test_conditional_model(fitted, key):
    """Scores in closed form: (x − m)/v, c·(x − m)/v and s²((x − m)²/v² − 1/v), with v = s² + ¼."""
    model = Line(jnp.array(1.0), jnp.array(-2.0), jnp.array(0.0))
    c = jnp.linspace(-1, 2, 60)
    x = jax.vmap(model.sample)(jax.random.split(key, 60), c)[1]
    result = fitted(model, sleep_samples=100)
    found = alws.standard_errors(result, x, key=key, conditions=c, phases=4)
    residual, variance = np.asarray(x - (1 - 2 * c), float), 1.25
    by_scale = residual**2 / variance**2 - 1 / variance
    scores = np.stack([residual / variance, np.asarray(c) * residual / variance, by_scale], 1)
    errors = np.sqrt(np.diagonal(np.linalg.inv(scores.T @ scores)))
    np.testing.assert_allclose(flat(found.errors), errors, rtol=0.15)


class Series(eqx.Module):
    """One long sequence: x_t = mean + z_t + noise, z a stationary autoregression with ρ = 0.7."""

    mean: jax.Array
    log_scale: jax.Array
    steps: int = eqx.field(static=True)

    def sample(self, key):
        z_key, x_key = jax.random.split(key)
        move = np.sqrt(1 - 0.49) * jax.random.normal(z_key, (self.steps,))
        first = move[0] / np.sqrt(1 - 0.49)
        step = lambda z, e: ((new := 0.7 * z + e), new)  # noqa: E731
        z = jnp.concatenate([first[None], jax.lax.scan(step, first, move[1:])[1]])
        z = jnp.exp(self.log_scale) * z
        return z, self.mean + z + 0.5 * jax.random.normal(x_key, (self.steps,))

    def log_joint(self, z, x):
        scale = jnp.exp(self.log_scale)
        prior = norm.logpdf(z[0], 0.0, scale)
        prior += norm.logpdf(z[1:], 0.7 * z[:-1], np.sqrt(1 - 0.49) * scale).sum()
        return prior + norm.logpdf(x, self.mean + z, 0.5).sum()


def test_a_single_sequence_by_expected_information(fitted, key):
    """Gaussian x: I = ∂μᵀ Σ⁻¹ ∂μ, and ½ tr(Σ⁻¹ ∂Σ)² for the scale."""
    steps = 8
    model = Series(jnp.array(0.5), jnp.array(0.2), steps)
    _, x = model.sample(key)
    result = fitted(model)
    found = alws.standard_errors(result, x[None], key=key, information="expected")
    lags = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    signal = np.exp(0.4) * 0.7**lags
    precision = np.linalg.inv(signal + 0.25 * np.eye(steps))
    slope = precision @ (2 * signal)
    exact = [precision.sum() ** -0.5, (0.5 * np.trace(slope @ slope)) ** -0.5]
    np.testing.assert_allclose(flat(found.errors), exact, rtol=0.2)
    with pytest.raises(ValueError, match=r'more observations than .*, 2; got 1.*"expected"'):
        alws.standard_errors(result, x[None], key=key)


class Mixture(eqx.Module):
    """Two Gaussians with unit variance, weights by softmax."""

    logits: jax.Array
    means: jax.Array

    def sample(self, key):
        z_key, x_key = jax.random.split(key)
        z = jax.random.categorical(z_key, self.logits)
        return z, self.means[z] + jax.random.normal(x_key)

    def log_joint(self, z, x):
        return jax.nn.log_softmax(self.logits)[z] + norm.logpdf(x, self.means[z])

    def log_marginal(self, x):
        return jax.nn.logsumexp(jax.nn.log_softmax(self.logits) + norm.logpdf(x, self.means))


def test_a_constant_added_to_all_logits_counts_as_no_change(fitted, key):
    model = Mixture(jnp.log(jnp.array([0.3, 0.7])), jnp.array([-1.5, 1.5]))
    data = sample_many(model, jax.random.split(key, 300))[1]
    found = alws.standard_errors(fitted(model), data, key=key)
    scores, _ = in_double(scores_and_curvature, model, data)
    exact = np.linalg.pinv(scores.T @ scores, rcond=1e-9)
    np.testing.assert_allclose(found.covariance, exact, rtol=0.15, atol=2e-4)
    np.testing.assert_allclose(found.of(lambda m: m.logits.sum()), 0, atol=1e-3)
    slope = np.array([0.21, -0.21])
    weight = found.of(lambda m: jax.nn.softmax(m.logits)[0])
    np.testing.assert_allclose(weight, np.sqrt(slope @ exact[:2, :2] @ slope), rtol=0.1)


def test_after_a_fit_by_default_they_are_those_of_the_curvature(key):
    """With logits of which only the difference counts: sums, and no noise at all."""
    truth = Mixture(jnp.log(jnp.array([0.3, 0.7])), jnp.array([-1.5, 1.5]))
    data = sample_many(truth, jax.random.split(key, 300))[1]
    start = Mixture(jnp.zeros(2), jnp.array([-1.0, 1.0]))
    result = alws.fit(start, data, key=key)
    found = alws.standard_errors(result, data, key=key)
    _, curvature = in_double(scores_and_curvature, result.model, data)
    exact = np.linalg.pinv(curvature, rcond=1e-9)
    np.testing.assert_allclose(found.covariance, exact, rtol=2e-3, atol=1e-6)
    assert np.allclose(flat(found.noise), 0, atol=1e-6)
    regressed = alws.standard_errors(result, data, key=key, regression=result.regression)
    assert flat(regressed.noise).min() > 1e-3


def test_weighted_points_and_a_prior_after_a_fit_by_default(coins, key):
    model, data = coins
    result = alws.fit(model, data, key=key, log_prior=lambda m: -200.0 * m.log_a**2)
    found = alws.standard_errors(result, data, key=key, phases=3)
    _, curvature = in_double(scores_and_curvature, result.model, data)
    exact = np.linalg.inv(curvature + np.diag([400.0, 0.0]))
    np.testing.assert_allclose(found.covariance, exact, rtol=0.01)
    assert (np.abs(np.log(flat(found.errors) / np.sqrt(np.diagonal(exact)))) < 0.01).all()


def test_few_data_and_directions_that_they_do_not_tell_after_a_fit_by_default(key):
    """Two factors can be rotated into each other; two data may tell of two parameters."""
    model = LinearGaussian(
        jnp.array([[1.0, 0.2], [0.5, 1.0], [0.0, -0.7]]), jnp.zeros(3), jnp.full(3, -0.5)
    )
    data = sample_many(model, jax.random.split(key, 200))[1]
    result = alws.fit(model, data, key=key)
    with pytest.raises(ValueError, match=r"must be positive in every direction.*loadings\["):
        alws.standard_errors(result, data, key=key)
    few = np.array([0.4, -1.2])
    level = alws.fit(Level(jnp.array(0.0), jnp.array(0.0)), few, key=key)
    found = alws.standard_errors(level, few, key=key)
    _, curvature = in_double(scores_and_curvature, Told(*jax.tree.leaves(level.model)), few)
    exact = np.sqrt(np.diagonal(np.linalg.inv(curvature)))
    np.testing.assert_allclose(flat(found.errors), exact, rtol=0.01)


def test_the_prior_adds_its_curvature(fitted, coins, key):
    model, data = coins
    precision = np.diag([400.0, 0.0])
    result = fitted(model, log_prior=lambda m: -200.0 * m.log_a**2)
    found = alws.standard_errors(result, data, key=key)
    scores, _ = in_double(scores_and_curvature, model, data)
    exact = np.linalg.inv(scores.T @ scores + precision)
    np.testing.assert_allclose(found.covariance, exact, rtol=0.12)


def test_intervals_cover_the_truth(fitted):
    """95 % intervals at the closed-form maximum of 60 data sets: of 120 trials 114 expected."""
    truth = Level(jnp.array(1.0), jnp.array(0.0))
    sets = jax.vmap(lambda k: sample_many(truth, jax.random.split(k, 200))[1])(
        jax.random.split(jax.random.key(0, impl="rbg"), 60)
    )
    result = fitted(truth, sleep_samples=100)
    inside = []
    for i, data in enumerate(sets):
        best = Level(data.mean(), jnp.log(data.var() - 0.25) / 2)
        found = alws.standard_errors(
            replace(result, model=best), data, key=jax.random.key(i, impl="rbg"), phases=4
        )
        inside.append(np.abs(flat(best) - flat(truth)) < 1.96 * flat(found.errors))
    assert 0.88 <= np.mean(inside) <= 0.99  # four standard deviations of a binomial below


def test_noise_is_what_other_keys_give(fitted, coins):
    model, data = coins
    result = fitted(model)
    keys = jax.random.split(jax.random.key(5, impl="rbg"), 8)
    found = [alws.standard_errors(result, data, key=k) for k in keys]
    spread = np.log([flat(f.errors) for f in found]).std(axis=0)
    noise = np.mean([flat(f.noise) for f in found], axis=0)
    assert ((noise > spread / 2) & (noise < 2 * spread)).all()


def test_directions_without_information_are_named(fitted, key):
    """Two factors can be rotated into each other."""
    model = LinearGaussian(
        jnp.array([[1.0, 0.2], [0.5, 1.0], [0.0, -0.7]]), jnp.zeros(3), jnp.full(3, -0.5)
    )
    data = sample_many(model, jax.random.split(key, 200))[1]
    result = fitted(model, sleep_samples=200)
    with pytest.raises(ValueError, match=r"must be positive in every direction.*loadings\[.*raise"):
        alws.standard_errors(result, data, key=key)


class Idle(Level):
    """A model with a parameter that does nothing."""

    idle: jax.Array = eqx.field(default_factory=lambda: jnp.zeros(2))


def test_a_parameter_that_does_nothing_is_named(fitted, key):
    result = fitted(Idle(jnp.array(0.3), jnp.array(0.1)), sleep_samples=20)
    with pytest.raises(ValueError, match=r"idle\[0\], idle\[1\] does not"):
        alws.standard_errors(result, jnp.arange(9.0), key=key, phases=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"information": "fisher"}, 'one of "observed", "expected", got \'fisher\''),
        ({"phases": 2}, "`phases` must be a whole number of at least 3"),
        ({"sleep_samples": 1}, "`sleep_samples` must be a whole number of at least 10"),
        ({"conditions": jnp.zeros(3)}, "one entry for each observation, 400"),
    ],
)
def test_bad_arguments(fitted, coins, key, arguments, message):
    model, data = coins
    with pytest.raises(ValueError, match=message):
        alws.standard_errors(fitted(model, sleep_samples=50), data, key=key, **arguments)
