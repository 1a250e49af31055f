"""The exact models are right: their densities, their samples and their maximum likelihood agree.

These identities are checked, in float64, for each model p_theta(z, x):

integral p(z, x) dz = p(x): ``log_joint``, integrated or summed over a grid of all z that matter,
gives ``log_marginal``.

E[d log p(z, x) / d theta] = 0 and E[d log p(x) / d theta] = 0 under (z, x) ~ p at the same theta:
``sample`` draws from the density that ``log_joint`` states. Likewise E[z . d log p(z, x) / d z] is
-dim(z) where z is continuous and unbounded.

d L / d theta = 0, and no nearby theta is better, at the maximum of L(theta).
"""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import (
    PROBLEMS,
    BetaBernoulli,
    ExactModel,
    GaussianMixture,
    HiddenMarkov,
    LinearGaussian,
    PoissonLogNormal,
    Problem,
    SigmoidBelief,
    in_double,
    maximum_likelihood,
    mean_log_likelihood,
    sample_many,
    with_outliers,
)
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp

KEY = jax.random.key(0)
NAMES = list(PROBLEMS)


@pytest.fixture(scope="module")
def problems() -> dict[str, Problem]:
    """Return every problem, drawn once."""
    return {name: problem(KEY) for name, problem in PROBLEMS.items()}


@pytest.fixture(scope="module")
def maxima(problems: dict[str, Problem]) -> dict[str, tuple[ExactModel, float]]:
    """Return the maximum of every problem, searched for once."""
    return {
        name: maximum_likelihood(problem.truth, problem.data, problem.start)
        for name, problem in problems.items()
    }


def sample_like_data(model: ExactModel, problem: Problem, batches: int) -> tuple[Any, jax.Array]:
    """Return draws (z, x), in batches of the size of the data, for which ``sample`` is compiled."""
    n = len(problem.data)
    keys = jax.random.split(jax.random.key(1), batches * n).reshape(batches, n)
    draws = [sample_many(model, batch) for batch in keys]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *draws)


@pytest.fixture(scope="module")
def draws(problems: dict[str, Problem]) -> dict[str, tuple[Any, jax.Array]]:
    """Return at least 4000 draws (z, x) of each true model."""
    return {
        name: sample_like_data(problem.truth, problem, -(-4000 // len(problem.data)))
        for name, problem in problems.items()
    }


def shifted(model: ExactModel, step: np.ndarray) -> ExactModel:
    """Return the model with ``step`` added to its flattened theta."""
    theta, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(theta)
    return eqx.combine(unravel(flat + jnp.asarray(step, flat.dtype)), static)


# p(x) from the joint


def grid(model: ExactModel) -> tuple[Any, np.ndarray]:
    """Return points z of the latent space and log weights: a sum, or a trapezoidal rule."""
    if isinstance(model, GaussianMixture):
        z = np.arange(model.logits.size)
        return z, np.zeros(z.size)
    if isinstance(model, HiddenMarkov):
        z = np.indices((model.means.size,) * model.steps).reshape(model.steps, -1).T
        return z, np.zeros(len(z))
    if isinstance(model, SigmoidBelief):
        z = np.indices((2,) * model.prior.size).reshape(model.prior.size, -1).T.astype(float)
        return z, np.zeros(len(z))
    if isinstance(model, LinearGaussian):
        line = np.linspace(-8, 8, 501)
        z = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
        return z, np.full(len(z), 2 * np.log(line[1] - line[0]))
    if isinstance(model, PoissonLogNormal):
        z = np.linspace(-10, 10, 20001)
        return z, np.full(z.size, np.log(z[1] - z[0]))
    if isinstance(model, BetaBernoulli):
        u = np.linspace(-40, 34, 4001)  # z = 1 / (1 + exp(-u)), dz = z (1 - z) du
        log_jacobian = -np.logaddexp(0, -u) - np.logaddexp(0, u)
        return 1 / (1 + np.exp(-u)), log_jacobian + np.log(u[1] - u[0])
    raise TypeError(type(model))


@eqx.filter_jit
def log_weighted_sum(
    model: ExactModel, z: jax.Array, log_weights: jax.Array, xs: jax.Array
) -> jax.Array:
    """Return log sum_i w_i p(z_i, x) for each x."""

    def one(x: jax.Array) -> jax.Array:
        return logsumexp(jax.vmap(model.log_joint, (0, None))(z, x) + log_weights)

    return jax.lax.map(one, xs)


def log_marginal_by_grid(model: ExactModel, xs: jax.Array) -> np.ndarray:
    """Return log p(x) of each x by brute force, a sum of the joint over the grid."""
    z, log_weights = grid(model)

    def compute(model: ExactModel, xs: jax.Array) -> jax.Array:
        return log_weighted_sum(model, jnp.asarray(z), jnp.asarray(log_weights), xs)

    return in_double(compute, model, xs)


@eqx.filter_jit
def log_marginal_of_each(model: ExactModel, xs: jax.Array) -> jax.Array:
    """Return log_marginal of each x."""
    return jax.vmap(model.log_marginal)(xs)


def log_marginals(model: ExactModel, xs: jax.Array) -> np.ndarray:
    """Return log_marginal of each x, in float64."""
    return in_double(log_marginal_of_each, model, xs)


@pytest.mark.parametrize("at", ["truth", "start"])
@pytest.mark.parametrize("name", NAMES)
def test_log_marginal_is_the_integral_of_the_joint(
    problems: dict[str, Problem], name: str, at: str
) -> None:
    """log p(x) equals log integral p(z, x) dz, closely in float64 and nearly so in float32."""
    model: ExactModel = getattr(problems[name], at)
    xs = jnp.asarray(sample_like_data(model, problems[name], 1)[1][:3])
    brute_force = log_marginal_by_grid(model, xs)
    in_single = log_marginal_of_each(model, xs)
    assert in_single.dtype == jnp.float32
    np.testing.assert_allclose(in_single, brute_force, rtol=3e-5, atol=1e-5)
    np.testing.assert_allclose(log_marginals(model, xs), brute_force, rtol=0, atol=1e-7)


def test_poisson_log_normal_for_extreme_counts() -> None:
    """The quadrature holds for counts of zero, and for large ones far from the prior mean."""
    model = PoissonLogNormal(a=jnp.array([0.3, 2.5, 5.5]), b=jnp.array([0.9, -0.4, 0.6]))
    xs = jnp.array([[0.0, 0.0, 0.0], [0.0, 40.0, 20.0], [30.0, 2.0, 4000.0], [0.0, 90.0, 3000.0]])
    np.testing.assert_allclose(
        log_marginals(model, xs), log_marginal_by_grid(model, xs), rtol=0, atol=1e-7
    )


def test_gradient_of_the_quadrature(problems: dict[str, Problem]) -> None:
    """The derivatives of log p(x) agree with differences of the brute force."""
    model = problems["poisson_log_normal"].truth
    x = problems["poisson_log_normal"].data[:1]
    gradient = in_double(marginal_scores, model, x)[0]
    step = 2.0**-10
    for index in range(6):
        shift = step * np.eye(6)[index]
        up, down = (log_marginal_by_grid(shifted(model, s), x)[0] for s in (shift, -shift))
        assert gradient[index] == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=1e-3)


def test_beta_bernoulli_marginal_sums_to_one(problems: dict[str, Problem]) -> None:
    """sum_x p(x) = 1 over the 256 outcomes."""
    outcomes = jnp.array(list(itertools.product([0.0, 1.0], repeat=8)))
    total = np.exp(log_marginals(problems["beta_bernoulli"].truth, outcomes)).sum()
    assert total == pytest.approx(1.0, abs=1e-10)


# samples from the joint


@eqx.filter_jit
def joint_scores(model: ExactModel, z: Any, x: jax.Array) -> jax.Array:
    """Return d log p(z_i, x_i) / d theta, flattened, for each i."""
    gradient = eqx.filter_grad(lambda model, z, x: model.log_joint(z, x))
    return jax.vmap(lambda z, x: ravel_pytree(gradient(model, z, x))[0])(z, x)


@eqx.filter_jit
def marginal_scores(model: ExactModel, x: jax.Array) -> jax.Array:
    """Return d log p(x_i) / d theta, flattened, for each i."""
    gradient = eqx.filter_grad(lambda model, x: model.log_marginal(x))
    return jax.vmap(lambda x: ravel_pytree(gradient(model, x))[0])(x)


def largest_mean_score(model: ExactModel, z: Any, x: jax.Array) -> tuple[float, float]:
    """Return the largest |mean score| in standard errors, for the joint and for the marginal."""

    def largest(scores: np.ndarray) -> float:
        standard_error = np.std(scores, axis=0, ddof=1) / np.sqrt(len(scores))
        return float(np.max(np.abs(np.mean(scores, axis=0)) / standard_error))

    return (
        largest(in_double(joint_scores, model, z, x)),
        largest(in_double(marginal_scores, model, x)),
    )


@pytest.mark.parametrize("name", NAMES)
def test_score_has_mean_zero(
    problems: dict[str, Problem], draws: dict[str, tuple[Any, jax.Array]], name: str
) -> None:
    """The mean score of samples at the same theta is zero within four standard errors."""
    joint, marginal = largest_mean_score(problems[name].truth, *draws[name])
    assert joint < 4
    assert marginal < 4


@pytest.mark.parametrize("name", NAMES)
def test_score_of_a_wrong_model_has_not(
    problems: dict[str, Problem], draws: dict[str, tuple[Any, jax.Array]], name: str
) -> None:
    """The check above notices a theta off by 0.2 / rms(score), far less than one draw can tell."""
    truth = problems[name].truth
    z, x = draws[name]
    rms = np.sqrt(np.mean(np.square(in_double(joint_scores, truth, z, x)), axis=0))
    signs = (-1.0) ** np.arange(rms.size)
    joint, marginal = largest_mean_score(shifted(truth, 0.2 * signs / rms), z, x)
    assert joint > 4
    assert marginal > 4


@eqx.filter_jit
def dilation_scores(model: ExactModel, z: jax.Array, x: jax.Array) -> jax.Array:
    """Return z . d log p(z, x) / d z + dim(z) for each example."""
    gradients = jax.vmap(jax.grad(model.log_joint))(z, x)
    return (z * gradients).reshape(len(z), -1).sum(axis=1) + z[0].size


@pytest.mark.parametrize("name", ["linear_gaussian", "poisson_log_normal"])
def test_scale_of_latents(
    problems: dict[str, Problem], draws: dict[str, tuple[Any, jax.Array]], name: str
) -> None:
    """E[z . d log p(z, x) / d z] = -dim(z), a check of priors that no parameter enters."""
    z, x = draws[name]

    def in_standard_errors(factor: float) -> float:
        scores = in_double(dilation_scores, problems[name].truth, factor * z, x)
        return abs(scores.mean()) / (scores.std(ddof=1) / np.sqrt(len(scores)))

    assert in_standard_errors(1.0) < 4
    assert in_standard_errors(1.1) > 4


# data and maximum


@pytest.mark.parametrize("name", NAMES)
def test_problem(problems: dict[str, Problem], name: str) -> None:
    """The data are finite, 200 to 800 points, and the start is far worse than the truth."""
    problem = problems[name]
    assert problem.name == name
    assert 200 <= len(problem.data) <= 800
    assert np.isfinite(problem.data).all()
    start, truth = (mean_log_likelihood(m, problem.data) for m in (problem.start, problem.truth))
    assert start < truth - 1


def test_outliers() -> None:
    """One per cent of the rows change, in one coordinate, by four to five scales."""
    scale = jnp.array([1.0, 0.02, 7.0])
    before = jnp.tile(scale, (500, 1))
    change = np.asarray((with_outliers(KEY, before, scale) - before) / scale)
    assert (np.count_nonzero(change, axis=1) <= 1).all()
    sizes = np.abs(change[change != 0])
    assert sizes.size == 5
    assert ((sizes > 3.999) & (sizes < 5.001)).all()


@pytest.mark.parametrize("name", NAMES)
def test_maximum_likelihood(
    problems: dict[str, Problem], maxima: dict[str, tuple[ExactModel, float]], name: str
) -> None:
    """At the maximum L is at least that of the truth, its gradient is zero, and steps lower it."""
    problem = problems[name]
    data = problem.data
    fitted, value = maxima[name]
    assert value == mean_log_likelihood(fitted, data)
    assert value >= mean_log_likelihood(problem.truth, data)

    scores = in_double(marginal_scores, fitted, data)
    rms = np.sqrt((scores**2).mean(axis=0))
    assert (np.abs(scores.mean(axis=0)) < 1e-4 * rms).all()

    for direction in np.random.default_rng(0).normal(size=(10, rms.size)):
        assert mean_log_likelihood(shifted(fitted, 0.1 * direction / rms), data) < value


def test_search_that_follows_an_unbounded_likelihood_is_dropped() -> None:
    """A mixture component placed on one observation never becomes the maximum."""
    data = jnp.array([[0.0, 0.0], [1.0, 0.5], [-1.0, 0.3], [0.4, -1.2], [2.0, 1.0], [5.0, 5.0]])
    collapsing = GaussianMixture(
        logits=jnp.zeros(2),
        means=jnp.array([[0.5, 0.1], [5.0, 5.0]]),
        log_scales=jnp.array([[0.0, 0.0], [-3.0, -3.0]]),
    )
    with pytest.raises(RuntimeError, match="no search"):
        maximum_likelihood(collapsing, data)
