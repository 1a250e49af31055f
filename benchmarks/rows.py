"""The rows of the benchmark table: each method's image step, and its gradient on the toy.

The step is that of `step.py`: N = 2000, batches of 100 images of 1024 pixels, 300 features,
generator 16→512→512→1024. Steps and products of two 2000×2000 matrices are timed in turn, so that
both see the same machine; the best of each counts. Memory is the largest resident size of the
row's own process after two steps, before the first product: libraries and compiler are in it.

The toy is that of `gradient_error.py`, with N = 2000 and the same regressions as the image step; x
has one dimension there, where few inducing points or frequencies are as good as all. Every method
gets the same sleep samples; the error is the root mean square of ‖g − exact‖/‖exact‖ over sleep
sets and places, the seconds those of fitting and differentiating. "Adapted" adapts σ and λ for
`ADAPTATION` steps at each place first, which its seconds leave out.
"""

import time
from contextlib import nullcontext
from functools import partial

import equinox as eqx
import gradient_error as toys
import jax
import jax.numpy as jnp
import numpy as np
import optax
import work
from models import estimated_gradient, image_step, relative_error, root_mean_square
from sizes import SLEEP

import alws
from alws.kernels import SquaredExponential
from alws.regressions.base import one_lapack_thread

INDUCING, FREQUENCIES, RANK, ADAPTATION, PRODUCT = 500, 250, 300, 50, 2000
REGRESSIONS = {
    "exact": alws.regressions.KernelRidge,
    "adapted": alws.regressions.KernelRidge,
    "nystrom": partial(alws.regressions.Nystrom, inducing=INDUCING),
    "random_features": partial(alws.regressions.RandomFeatures, frequencies=FREQUENCIES),
    "conjugate_gradients": partial(alws.regressions.ConjugateGradients, rank=RANK),
}


class ImageStep:
    """A step of this library; called for one step."""

    def __init__(self, name):
        alws.enable_compilation_cache()
        adapt = alws.Adapt() if name == "adapted" else alws.ALWS_F
        self.prepared = image_step(REGRESSIONS[name], adapt=adapt)
        self.state, self.number = self.prepared.state, 0

    def __call__(self):
        with one_lapack_thread():
            self.state, info = self.prepared.step(self.state, self.number)
            jax.block_until_ready((eqx.filter(self.state, eqx.is_array), info))
        self.number += 1

    def iterations(self):
        """How many conjugate gradients make, on a fresh set of sleep samples."""

        @eqx.filter_jit
        def count(state, x):
            draws, _ = alws.draw(state.model, self.prepared.key, SLEEP)
            smoother = state.regression.fit(draws.x)
            kernel, sleep = smoother.kernel, smoother.embedded
            points = kernel.clip_to_range(kernel.embed(x), sleep)
            return smoother.solve(kernel.evaluate(sleep, points)).iterations

        problem = self.prepared.problem
        return int(count(self.state, problem.data[: problem.batch_size]))


def flops(name, step):
    """What a row's step needs, see `work`."""
    if name == "nystrom":
        return work.nystrom(INDUCING)
    if name == "random_features":
        return work.random_features(FREQUENCIES)
    if name == "conjugate_gradients":
        return work.conjugate_gradients(RANK, step.iterations())
    return work.exact(name == "adapted")


@eqx.filter_jit
def toy_gradient(regression, toy, sleep, wake):
    """∇_b J̄ on the toy by one of this library's regressions, for these sleep samples."""
    return estimated_gradient(toy, regression.fit(sleep.x), sleep, wake).b


def toy_method(name, toy, wake, adaptation):
    """Sleep samples to the gradient, for one row at one place."""
    first = alws.draw(toy, jax.random.key(7), 500)[0].x
    kernel = SquaredExponential(track=False)
    make = REGRESSIONS.get(name, alws.regressions.KernelRidge)
    regression = make(kernel, ridge=toys.RIDGE).initialise(first)
    if name == "adapted":
        settings = alws.Settings(regression, optimiser=optax.sgd(0.0), sleep_samples=SLEEP)
        key = jax.random.key(8)
        result = alws.fit(toy, wake, key=key, steps=adaptation, settings=settings, progress=False)
        regression = result.regression
    if name in REGRESSIONS:
        return partial(own_gradient, regression, toy, wake)
    known = wake, float(jnp.exp(regression.kernel.log_bandwidth)), toys.RIDGE
    if name == "pytorch":
        from with_pytorch import toy_gradient as by_pytorch

        return lambda sleep: by_pytorch(toy.b, toy.noise, sleep, *known)
    from with_scikit_learn import quicker
    from with_scikit_learn import toy_gradient as by_scikit_learn

    def gradient(sleep, threads=nullcontext):
        with threads():
            return by_scikit_learn(toy.b, toy.noise, sleep, *known)

    some = alws.draw(toy, jax.random.key(9), SLEEP)[0]
    return partial(gradient, threads=quicker(lambda: gradient(some)))


def own_gradient(regression, toy, wake, sleep):
    """By one of this library's regressions."""
    with one_lapack_thread():
        return np.asarray(toy_gradient(regression, toy, sleep, wake))


def toy_error(name, quick):
    """Root mean square relative error of the gradient, and the median seconds for one."""
    wake, draw = toys.observed(), jax.jit(lambda toy, key: alws.draw(toy, key, SLEEP)[0])
    errors, times = [], []
    for i, b in enumerate(toys.PLACES):
        toy = toys.toy_at(b)
        exact = toys.exact_gradient(b, wake)
        method = toy_method(name, toy, wake, 2 if quick else ADAPTATION)
        for j in range(2 if quick else toys.REPEATS):
            sleep = jax.block_until_ready(draw(toy, jax.random.key(100 * i + j)))
            if i == j == 0:
                method(sleep)
            began = time.perf_counter()
            found = method(sleep)
            times.append(time.perf_counter() - began)
            errors.append(relative_error(found, exact))
    return root_mean_square(errors), float(np.median(times))


def in_turn(step, repeats):
    """Seconds of the quickest step, and of every product between the steps."""
    a = jax.random.normal(jax.random.key(0), (PRODUCT, PRODUCT))
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    steps, products = [], []
    for _ in range(repeats):
        for call, times in ((lambda: product(a).block_until_ready(), products), (step, steps)):
            time.sleep(0.05)  # threads that spin after their work would share the next one's cores
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
    return min(steps), products


def finish(name, step, memory, quick):
    """One row, in this process, given its step and the memory that took."""
    seconds, products = in_turn(step, 3 if quick else 12)
    error, gradient_seconds = toy_error(name, quick)
    return {
        "seconds": seconds,
        "product_seconds": min(products),
        "product_median": float(np.median(products)),
        "product_flops": 2 * PRODUCT**3,
        "flops": flops(name, step),
        "memory_gib": memory,
        "error": error,
        "gradient_seconds": gradient_seconds,
    }
