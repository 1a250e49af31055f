"""γ adapted on the gradient: the criterion against its definition, and what it does to a step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from exact import LinearGaussian
from jax.flatten_util import ravel_pytree

import alws
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws.wake_sleep import WakeSleep, held_out_error


class FactorAnalysis(LinearGaussian):
    """The exact model, which also says that its likelihood is Gaussian."""

    def likelihood(self, z):
        return Gaussian(self.loadings @ z + self.offset, jnp.exp(self.log_noise))


def model():
    return FactorAnalysis(jnp.array([[1.0], [0.5]]), jnp.array([0.0, 0.5]), jnp.array([-0.5, -0.5]))


def scores(draws):
    """∇_θ log p(z, x) of every draw, one row each."""
    parameters, rest = eqx.partition(model(), eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)

    def value(p, z, x):
        return eqx.combine(unravel(p), rest).log_joint(z, x)

    return jax.vmap(lambda z, x: jax.grad(value)(flat, z, x))(*draws)


def test_gradient_criterion_is_the_error_along_a_direction(key):
    """One parameter at a time in the units, so that the random sign does not matter."""
    sleep, held_out = alws.draw(model(), key, 100)[0], alws.draw(model(), jax.random.key(1), 50)[0]
    smoother = alws.regressions.KernelRidge(SquaredExponential(), ridge=0.1).fit(sleep.x)
    predicted, truth = smoother.predict(held_out.x, scores(sleep)), scores(held_out)
    parameters = eqx.filter(model(), eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)
    adapt = alws.Adapt(criterion="gradient")
    for i in (0, 3, 5):
        units = unravel(jnp.zeros_like(flat).at[i].set(1.0))
        error, r2 = held_out_error(
            adapt, alws.estimates.Joint(), model(), smoother, (sleep, held_out), None, units, key
        )
        expected = ((predicted - truth)[:, i] ** 2).mean() / truth[:, i].var()
        np.testing.assert_allclose(error, expected, rtol=1e-2)
    plain = held_out_error(
        alws.Adapt(),
        alws.estimates.Joint(),
        model(),
        smoother,
        (sleep, held_out),
        None,
        parameters,
        key,
    )
    np.testing.assert_allclose(r2, plain[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(plain[0], 1 - plain[1], rtol=1e-4)


@pytest.mark.parametrize("estimate", [alws.estimates.Joint(), alws.estimates.Natural()])
def test_its_derivative_in_gamma_is_that_of_finite_differences(estimate, key):
    with jax.enable_x64(True):
        double = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), model())
        sleep, held_out = (alws.draw(double, jax.random.key(i), 60)[0] for i in (0, 1))
        units = jax.tree.map(jnp.ones_like, double)
        adapt = alws.Adapt(criterion="gradient", directions=2)
        gamma = alws.regressions.KernelRidge(
            SquaredExponential(bandwidth=1.0, track=False), ridge=0.1
        )

        @eqx.filter_jit
        def error(gamma):
            smoother = gamma.fit(sleep.x)
            return held_out_error(
                adapt, estimate, double, smoother, (sleep, held_out), None, units, key
            )[0]

        gradient = eqx.filter_grad(error)(gamma)
        for where in (lambda g: g.log_ridge, lambda g: g.kernel.log_bandwidth):
            moved = [error(eqx.tree_at(where, gamma, where(gamma) + s)) for s in (1e-5, -1e-5)]
            np.testing.assert_allclose(where(gradient), (moved[0] - moved[1]) / 2e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("estimate", [alws.estimates.Joint(), alws.estimates.Natural()])
def test_adaptation_on_the_gradient_lowers_it(estimate, key):
    """From a bandwidth twenty times too narrow, θ held, the criterion itself goes down."""
    adapt = alws.Adapt(criterion="gradient", learning_rate=0.1)
    gamma = alws.regressions.KernelRidge(SquaredExponential(bandwidth=0.05, track=True), ridge=0.1)
    algorithm = WakeSleep(gamma, estimate, optax.sgd(0.0), 100, 50, adapt)
    draws = alws.draw(model(), key, 100)[0]
    state = first = algorithm.init(model(), draws)
    step = eqx.filter_jit(algorithm.step)
    for k in jax.random.split(key, 40):
        state, _ = step(state, draws.x, k)
    assert float(state.regression.kernel.log_bandwidth) > np.log(0.05) + 1
    new = (alws.draw(model(), jax.random.key(5), 300)[0], alws.draw(model(), key, 300)[0])

    units = jax.tree.map(jnp.ones_like, eqx.filter(model(), eqx.is_inexact_array))

    def error(gamma):
        smoother = gamma.fit(new[0].x)
        return held_out_error(adapt, estimate, model(), smoother, new, None, units, key)[0]

    assert float(error(state.regression)) < 0.9 * float(error(first.regression))


def test_bad_criteria_are_refused():
    with pytest.raises(ValueError, match=r"`criterion` must be one of .* got 'loss'"):
        alws.Adapt(criterion="loss")
    with pytest.raises(ValueError, match=r"`directions` must be .* at least 1, got 0"):
        alws.Adapt(criterion="gradient", directions=0)
    with pytest.raises(ValueError, match="`every` must be a whole number of at least 1, got 0"):
        alws.Adapt(every=0)
