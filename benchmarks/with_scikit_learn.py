"""The step as a user of scikit-learn would write it: generator in JAX, regression by `KernelRidge`.

Nothing of `alws` is used. scikit-learn gives predictions, not derivatives, so what is wanted of it
is the weights W of a prediction W·targets. They are the dual coefficients of one fit with the wake
points' kernel columns as targets,

    KernelRidge(alpha=λ).fit(φ(X), k(X, X*)).dual_coef_ = (K + λI)⁻¹ k(X, X*) = Wᵀ,

which costs no more than any other fit. The generator is run forward once, and its backward pass is
kept until the weights are there. LAPACK runs on one thread or on all, whichever is quicker here.
"""

import time
from contextlib import nullcontext

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.spatial.distance import pdist
from sizes import BATCH, FEATURES, HIDDEN, LATENT, PIXELS, RIDGE, SLEEP
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel
from threadpoolctl import threadpool_limits


def weights(sleep, wake, bandwidth, ridge):
    """W [wake, sleep] with rows that sum to one; wake features are drawn in to the sleep range."""
    wake = np.clip(wake, sleep.min(axis=0), sleep.max(axis=0))
    gamma = 0.5 / bandwidth**2
    regression = KernelRidge(alpha=ridge, kernel="rbf", gamma=gamma)
    fitted = regression.fit(sleep, rbf_kernel(sleep, wake, gamma=gamma))
    plain = np.asarray(fitted.dual_coef_).T
    return plain + (1 - plain.sum(axis=1, keepdims=True)) / plain.shape[1]


def features(x, projection):
    projected = x @ projection
    centred = projected - projected.mean(axis=0)
    return centred / jnp.sqrt((centred**2).mean(axis=0) + 1e-5)


def objective(mean, log_noise, wake, weights):
    """J̄ = (1/M) Σ_mn W_mn log N(x*_m; μ_n, σ²), up to a constant."""
    cotangents = weights.T @ wake / wake.shape[0]
    precision = jnp.exp(-2 * log_noise)
    fit = (cotangents * mean).sum() - (wake**2).sum() / wake.shape[0] / 2
    fit -= weights.mean(axis=0) @ (mean**2).sum(axis=1) / 2
    return precision * fit - wake.shape[1] * log_noise


@eqx.filter_jit
def sleep_phase(network, log_noise, projection, z, noise):
    """Features of the simulations, and what the backward pass needs."""
    mean, back = eqx.filter_vjp(lambda network: jax.vmap(network)(z), network)
    return mean, back, features(mean + jnp.exp(log_noise) * noise, projection)


@eqx.filter_jit
def wake_phase(mean, back, log_noise, wake, weights):
    """∇J̄ in the network and in the noise."""
    to_mean, to_noise = jax.grad(objective, argnums=(0, 1))(mean, log_noise, wake, weights)
    return back(to_mean)[0], to_noise


def image_gradient(network, log_noise, projection, z, noise, wake, bandwidth, ridge):
    """The gradient of J̄ in the network and in log σ, given the random numbers."""
    mean, back, sleep = sleep_phase(network, log_noise, projection, z, noise)
    points = eqx.filter_jit(features)(wake, projection)
    found = weights(np.asarray(sleep), np.asarray(points), bandwidth, ridge)
    return wake_phase(mean, back, log_noise, wake, found)


class ImageStep:
    """Simulate, regress, take a step of Adam; called for one step."""

    def __init__(self):
        network_key, projection_key, data_key, self.key = jax.random.split(jax.random.key(0), 4)
        self.parameters = eqx.nn.MLP(LATENT, PIXELS, HIDDEN, 2, key=network_key), jnp.zeros(())
        self.projection = jax.random.normal(projection_key, (PIXELS, FEATURES)) / PIXELS**0.5
        self.wake = jax.random.normal(data_key, (BATCH, PIXELS))
        self._draw = jax.jit(self._numbers)
        first = sleep_phase(*self.parameters, self.projection, *self._draw(self.key)[1:])[2]
        self.bandwidth = float(np.median(pdist(first[:1000])))
        self.optimiser = optax.adam(1e-3)
        self.state = self.optimiser.init(eqx.filter(self.parameters, eqx.is_inexact_array))
        self._update = eqx.filter_jit(self._improve)
        self._threads = nullcontext
        self._threads = quicker(self)

    def _numbers(self, key):
        key, one, two = jax.random.split(key, 3)
        return key, *(jax.random.normal(k, (SLEEP, d)) for k, d in ((one, LATENT), (two, PIXELS)))

    def _improve(self, parameters, gradient, state):
        updates, state = self.optimiser.update(jax.tree.map(jnp.negative, gradient), state)
        return eqx.apply_updates(parameters, updates), state

    def __call__(self):
        self.key, z, noise = self._draw(self.key)
        known = self.projection, z, noise, self.wake
        with self._threads():
            gradient = image_gradient(*self.parameters, *known, self.bandwidth, RIDGE)
        self.parameters, self.state = self._update(self.parameters, gradient, self.state)
        jax.block_until_ready(eqx.filter(self.parameters, eqx.is_array))


def one_thread():
    return threadpool_limits(1, user_api="blas")


def quicker(step):
    """One LAPACK thread, or all, by which of them the best of three steps is quicker."""
    times = {}
    step()
    for threads in (nullcontext, one_thread):
        for _ in range(3):
            began = time.perf_counter()
            with threads():
                step()
            seconds = time.perf_counter() - began
            times[threads] = min(seconds, times.get(threads, seconds))
    return min(times, key=lambda threads: times[threads])


@jax.jit
def _toy_gradient(b, noise, z, wake, weights):
    def value(b):
        mean = jax.nn.softplus(z @ b) - b @ b
        return objective(mean[:, None], jnp.log(noise), wake[:, None], weights)

    return jax.grad(value)(b)


def toy_gradient(b, noise, sleep, wake, bandwidth, ridge):
    """∇_b J̄ on the toy of `gradient_error.py`, for these sleep samples (z, x)."""
    z, x = sleep
    found = weights(np.asarray(x)[:, None], np.asarray(wake)[:, None], bandwidth, ridge)
    return np.asarray(_toy_gradient(b, noise, z, wake, found))
