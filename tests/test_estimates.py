"""The estimated gradient against the exact one, and the ways to write it against each other."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import BetaBernoulli, LinearGaussian, sample_many
from jax.flatten_util import ravel_pytree

import alws
from alws.estimates import Cross, Joint, Natural
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian


class FactorAnalysis(LinearGaussian):
    """The exact model, which also says that its likelihood is Gaussian."""

    def likelihood(self, z):
        return Gaussian(self.loadings @ z + self.offset, jnp.exp(self.log_noise))


def model(**changes):
    values = {
        "loadings": jnp.array([[1.0, 0.0], [0.5, 1.0], [0.0, -0.7]]),
        "offset": jnp.array([0.0, 0.5, -0.5]),
        "log_noise": jnp.array([-0.5, -0.5, -0.5]),
    }
    return FactorAnalysis(**{**values, **changes})


def smoother_for(x, ridge=0.01):
    return alws.regressions.KernelRidge(SquaredExponential(), ridge=ridge).initialise(x).fit(x)


def flat(tree):
    return np.asarray(ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0])


def estimated(estimate, model, sleep, wake, ridge=0.01):
    smoother = smoother_for(sleep.x, ridge)
    held = estimate.weigh(model, smoother, sleep, wake, None)
    return flat(eqx.filter_grad(lambda m: estimate.objective(m, sleep, held, None))(model))


def exact(model, wake):
    return flat(eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(wake).mean())(model))


@pytest.fixture(scope="module")
def wake():
    _, x = sample_many(
        model(offset=jnp.array([0.4, 0.0, 0.0])), jax.random.split(jax.random.key(7), 200)
    )
    return x


def test_scalar_and_vector_regression_agree(wake, key):
    """∇ of the regression of J is the regression of ∇ log p, eq. (manual_loss)."""
    sleep, _ = alws.draw(model(), key, 300)
    smoother = smoother_for(sleep.x, 0.1)
    direct = alws.estimates.direct_gradients(model(), smoother, sleep, wake)
    mean = np.concatenate([np.asarray(g.mean(axis=0)).ravel() for g in jax.tree.leaves(direct)])
    np.testing.assert_allclose(
        estimated(Joint(), model(), sleep, wake, 0.1), mean, rtol=1e-3, atol=1e-3
    )


def test_natural_and_cross_are_one_estimate(wake, key):
    sleep, _ = alws.draw(model(), key, 300)
    both = [estimated(e, model(), sleep, wake[:20], 0.1) for e in (Natural(), Cross())]
    np.testing.assert_allclose(*both, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("estimate", [Joint(), Natural()])
def test_gradient_converges_to_the_exact_one_as_n_grows(estimate, wake):
    """The root mean square error over sleep sets falls about as N^-1/2."""
    target = exact(model(), wake)

    @eqx.filter_jit
    def one(key, number):
        sleep, _ = alws.draw(model(), key, number)
        smoother = smoother_for(sleep.x, 0.03)
        held = estimate.weigh(model(), smoother, sleep, wake, None)
        gradient = eqx.filter_grad(lambda m: estimate.objective(m, sleep, held, None))(model())
        return ravel_pytree(eqx.filter(gradient, eqx.is_inexact_array))[0]

    errors = []
    for number in (100, 400, 1600):
        found = np.stack([one(k, number) for k in jax.random.split(jax.random.key(3), 6)])
        errors.append(np.sqrt(((found - target) ** 2).sum(axis=1).mean()))
    relative = np.array(errors) / np.linalg.norm(target)
    slope = np.polyfit(np.log([100, 400, 1600]), np.log(relative), 1)[0]
    assert slope < -0.4, (relative, slope)
    assert relative[-1] < 0.3, relative


@pytest.mark.parametrize("estimate", [Joint(), Natural()])
def test_shuffled_targets_give_no_gradient(estimate, wake):
    """With targets permuted against x nothing is predicted but their mean.

    Of `Joint` the mean score is left, zero. `Natural` knows x* exactly, so the rest is the mean
    score of independent z and x*, here from the model itself: zero for the offset alone,
    −W/σ² for the loadings W and 2 diag(WWᵀ)/σ² for log σ.
    """
    start = model()

    @eqx.filter_jit
    def one(key):
        sleep, _ = alws.draw(start, key, 400)
        order = jax.random.permutation(key, 400)
        smoother = smoother_for(sleep.x, 0.1)
        if isinstance(estimate, Joint):
            shuffled, x = jax.tree.map(lambda a: a[order], sleep), wake
        else:
            shuffled = sleep._replace(z=sleep.z[order])
            x = alws.draw(start, jax.random.fold_in(key, 1), 200)[0].x
        held = estimate.weigh(start, smoother, shuffled, x, None)
        return eqx.filter_grad(lambda m: estimate.objective(m, shuffled, held, None))(start)

    found = np.stack([flat(one(key)) for key in jax.random.split(jax.random.key(5), 30)])
    expected = np.zeros(12)
    if isinstance(estimate, Natural):
        w, precision = start.loadings, jnp.exp(-2 * start.log_noise)
        independent = model(
            loadings=-w * precision[:, None],
            offset=jnp.zeros(3),
            log_noise=2 * precision * (w**2).sum(axis=1),
        )
        expected = flat(independent)
    error = found.mean(axis=0) - expected
    assert (np.abs(error) < 4 * found.std(axis=0) / np.sqrt(len(found)) + 1e-6).all(), error
    size = 0.25 * np.linalg.norm(exact(start, wake)) + 0.05 * np.linalg.norm(expected)
    assert np.linalg.norm(error) < size, error


def test_joint_gradient_of_a_discrete_model(key):
    truth = BetaBernoulli(jnp.array(0.5), jnp.array(-0.2))
    start = BetaBernoulli(jnp.array(0.0), jnp.array(0.0))
    _, data = sample_many(truth, jax.random.split(key, 300))
    found = np.mean(
        [
            estimated(Joint(), start, alws.draw(start, k, 1000)[0], data, 0.1)
            for k in jax.random.split(key, 4)
        ],
        axis=0,
    )
    target = exact(start, data)
    assert np.linalg.norm(found - target) < 0.15 * np.linalg.norm(target), (found, target)
