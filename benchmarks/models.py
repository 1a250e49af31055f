"""The models of the step benchmarks, their data, and the gradient of J̄ by a fitted regression."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sizes import BATCH, FEATURES, HIDDEN, LATENT, PIXELS, RIDGE, SLEEP

import alws
from alws.features import Linear
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws.regressions.base import one_lapack_thread

NEVER = 1_000_000
"""So many steps from one measurement of the diagnostics to the next."""


class Generator(eqx.Module):
    """Images with a Gaussian likelihood, given by prior and likelihood."""

    network: eqx.nn.MLP
    log_noise: jax.Array

    def sample_latent(self, key):
        return jax.random.normal(key, (self.network.in_size,))

    def log_prior(self, z):
        return jax.scipy.stats.norm.logpdf(z).sum()

    def likelihood(self, z):
        return Gaussian(self.network(z), jnp.exp(self.log_noise))


class Small(eqx.Module):
    """Ten dimensions, given by `sample` and `log_joint` alone."""

    loadings: jax.Array

    def sample(self, key):
        k1, k2 = jax.random.split(key)
        z = jax.random.normal(k1, (2,))
        return z, self.loadings @ z + jax.random.normal(k2, (10,))

    def log_joint(self, z, x):
        logpdf = jax.scipy.stats.norm.logpdf
        return logpdf(z).sum() + logpdf(x, self.loadings @ z).sum()


def small_problem():
    """The small model and 500 observations."""
    keys = jax.random.split(jax.random.key(1), 2)
    small = Small(jax.random.normal(keys[0], (10, 2)))
    return small, alws.draw(small, keys[1], 500)[0].x


def image_step(regression, batch_size=BATCH, **settings):
    """The image step, prepared; `regression(kernel, ridge=...)` makes its regression."""
    keys = jax.random.split(jax.random.key(1), 3)
    model = Generator(eqx.nn.MLP(LATENT, PIXELS, HIDDEN, 2, key=keys[0]), jnp.zeros(()))
    data = jax.random.normal(keys[1], (10 * BATCH, PIXELS))
    features = Linear.random(keys[2], PIXELS, FEATURES, batch_norm=True)
    kernel = SquaredExponential(features, track=False)
    chosen = {"sleep_samples": SLEEP, "measure_every": NEVER, **settings}
    return alws.prepare(
        model,
        data,
        key=jax.random.key(0),
        steps=10,
        settings=alws.Settings(
            regression(kernel, ridge=RIDGE), optimiser=optax.adam(1e-3), **chosen
        ),
        batch_size=batch_size,
    )


def seconds_per_step(prepare, repeats, between=None):
    """Seconds of the quickest step, and up to the end of the first, with all that comes before.

    `prepare()` gives what `alws.prepare` gives; `between()` is called after every timed step.
    """
    began = time.perf_counter()
    prepared = prepare()
    times = []
    with alws.precision(prepared.state.model), one_lapack_thread():
        state, info = jax.block_until_ready(prepared.step(prepared.state, 0))
        first = time.perf_counter() - began
        for number in range(1, repeats + 1):
            began = time.perf_counter()
            state, info = prepared.step(state, number)
            jax.block_until_ready(info)
            times.append(time.perf_counter() - began)
            if between is not None:
                between()
    return min(times[1:] or times), first


def estimated_gradient(model, smoother, sleep, x, estimate=alws.estimates.Natural()):
    """∇_θ J̄ for a regression fitted to these sleep samples."""
    weights = estimate.weigh(model, smoother, sleep, x, None)
    return eqx.filter_grad(lambda m: estimate.objective(m, sleep, weights, None))(model)


def root_mean_square(errors):
    return float(np.sqrt(np.mean(np.square(errors))))


def relative_error(found, exact):
    """‖found − exact‖/‖exact‖."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
