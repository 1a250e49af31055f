"""Several θ steps on one sleep phase, and estimates that draw."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import alws
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian


class Regression(eqx.Module):
    """x = slope·c + z + noise, z ~ N(0, 1), of a standard deviation that is learnt; in float64,

    for with the ridge of 0.1 the gradient in the noise loses three digits of float32's seven.
    """

    double = True
    slope: jax.Array
    log_noise: jax.Array

    def sample_latent(self, key, c):
        return jax.random.normal(key)

    def log_prior(self, z, c):
        return jax.scipy.stats.norm.logpdf(z)

    def likelihood(self, z, c):
        return Gaussian((self.slope * c + z)[None], jnp.exp(self.log_noise))


START = Regression(jnp.array(0.5), jnp.array(-0.3))
CONDITIONS = jnp.array([-1.0, 0.5, 2.0])
DATA = jnp.array([[-2.0], [1.5], [3.0]])
RATE = 0.2


def fitted(estimate, theta_steps, key):
    settings = alws.Settings(
        alws.regressions.KernelRidge(SquaredExponential(), ridge=0.1),
        estimate,
        optax.sgd(RATE),
        sleep_samples=60,
        adapt=alws.ALWS_F,
        theta_steps=theta_steps,
        conditions="separate",
    )
    return alws.fit(START, DATA, conditions=CONDITIONS, key=key, steps=1, settings=settings)


def two_steps(estimate, regression, key):
    """By hand: the model after them, and their gradients."""
    start, conditions, data = doubled(START), doubled(CONDITIONS), doubled(DATA)
    keys = eqx.filter_jit(lambda key: jax.random.split(jax.random.fold_in(key, 0), 3))(key)
    draw = eqx.filter_jit(lambda key, c: alws.draw(start, jax.random.split(key)[0], 60, c)[0])
    kept = []
    for c, x, k in zip(conditions, data, keys, strict=True):
        sleep = draw(k, c)
        smoother = regression.fit(sleep.x)
        kept.append((sleep, estimate.weigh(start, smoother, sleep, x[None], c), c))

    def objective(model):
        return sum(estimate.objective(model, *one) for one in kept) / 3

    model, moves = start, []
    for _ in range(2):
        moves.append(eqx.filter_grad(objective)(model))
        model = eqx.apply_updates(model, jax.tree.map(lambda g: RATE * g, moves[-1]))
    return model, moves


def doubled(tree):
    return jax.tree.map(lambda a: a.astype(jnp.float64), tree)


@pytest.mark.parametrize("estimate", [alws.estimates.Joint(), alws.estimates.Natural()])
def test_two_steps_on_one_sleep_phase_of_a_conditional_model(estimate, key):
    """θ goes up the mean over conditions of J̄, with the draws and weights of θ's first value."""
    result = fitted(estimate, 2, key)
    with alws.precision(START):
        model, moves = two_steps(estimate, result.regression, key)
    np.testing.assert_allclose(result.model.slope, model.slope, rtol=1e-9)
    np.testing.assert_allclose(result.model.log_noise, model.log_noise, rtol=1e-9)
    # The second gradient is another one, or the test would not tell.
    first, second = (float(move.slope) for move in moves)
    assert abs(second - first) > 0.05 * abs(first)


def test_a_centred_estimate_asks_for_a_key(key):
    sleep, _ = alws.draw(START, key, 20, CONDITIONS[0])
    smoother = alws.regressions.KernelRidge(SquaredExponential()).initialise(sleep.x).fit(sleep.x)
    with pytest.raises(ValueError, match="must be given a key for its fresh draws"):
        alws.estimates.Centred(alws.estimates.Natural(), 20).weigh(
            START, smoother, sleep, DATA, CONDITIONS[0]
        )
