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
import jax
import jax.numpy as jnp
import numpy as np
import optax
import work
from alws.runtime import enable_compilation_cache, one_lapack_thread
from sizes import BATCH, FEATURES, HIDDEN, LATENT, PIXELS, RIDGE, SLEEP
from step import Generator

import alws
from alws.features import Linear
from alws.fit import _advance, _choose, _start, prepare
from alws.kernels import SquaredExponential

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
        enable_compilation_cache()
        keys = jax.random.split(jax.random.key(1), 3)
        model = Generator(eqx.nn.MLP(LATENT, PIXELS, HIDDEN, 2, key=keys[0]), jnp.zeros(()))
        data = jax.random.normal(keys[1], (1000, PIXELS))
        features = Linear.random(keys[2], PIXELS, FEATURES, batch_norm=True)
        kernel = SquaredExponential(features, track=False)
        settings = alws.Settings(
            REGRESSIONS[name](kernel, ridge=RIDGE),
            optimiser=optax.adam(1e-3),
            sleep_samples=SLEEP,
            adapt=alws.Adapt() if name == "adapted" else alws.ALWS_F,
            measure_every=1_000_000,
        )
        self.key = jax.random.key(0)
        self.problem = prepare(model, data, self.key, 10, settings, None, BATCH)
        algorithm = _choose(self.problem, 10, settings, None, self.key)
        self.state, _ = _start(algorithm, self.problem, self.key, None)
        self.chosen = self.problem.batch(0, (0,))
        self._advance = eqx.filter_jit(partial(_advance, algorithm), numbers=self.problem.numbers)

    def __call__(self):
        with one_lapack_thread():
            self.state, info = self._advance(self.state, self.problem, self.chosen, self.key)
            jax.block_until_ready((eqx.filter(self.state, eqx.is_array), info))

    def iterations(self):
        """How many conjugate gradients make, on a fresh set of sleep samples."""

        @eqx.filter_jit
        def count(state, x):
            smoother = state.regression.fit(alws.draw(state.model, self.key, SLEEP)[0].x)
            columns = smoother.kernel.gram(smoother.embedded, smoother._points(x))
            return smoother.solve(columns).iterations

        return int(count(self.state, self.problem.select(self.chosen)[0]))


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
def toy_gradient(model, b, noise, sleep, wake):
    """∇_b J̄ on the toy by one of this library's regressions, for these sleep samples."""
    from alws_paper.gradient.experiment import Toy

    held = alws.estimates.Natural().hold(Toy(b, noise), model.fit(sleep.x), sleep, wake, None)
    return jax.grad(lambda b: alws.estimates.Natural().objective(Toy(b, noise), sleep, held, None))(
        b
    )


def toy_method(name, toy, ridge, wake, adaptation):
    """Sleep samples to the gradient, for one row at one place."""
    first = alws.draw(toy, jax.random.key(7), 500)[0].x
    model = REGRESSIONS.get(name, alws.regressions.KernelRidge)(
        SquaredExponential(track=False), ridge=ridge
    )
    model = model.initialise(first)
    if name == "adapted":
        settings = alws.Settings(model, optimiser=optax.sgd(0.0), sleep_samples=SLEEP)
        key = jax.random.key(8)
        result = alws.fit(toy, wake, key=key, steps=adaptation, settings=settings, progress=False)
        model = result.regression
    if name in REGRESSIONS:
        return partial(own_gradient, model, toy, wake)
    bandwidth = float(jnp.exp(model.kernel.log_bandwidth))
    if name == "pytorch":
        from with_pytorch import toy_gradient as by_pytorch

        return lambda sleep: by_pytorch(toy.b, toy.noise, sleep, wake, bandwidth, ridge)
    from with_scikit_learn import quicker
    from with_scikit_learn import toy_gradient as by_scikit_learn

    def gradient(sleep, threads=nullcontext):
        with threads():
            return by_scikit_learn(toy.b, toy.noise, sleep, wake, bandwidth, ridge)

    some = alws.draw(toy, jax.random.key(9), SLEEP)[0]
    return partial(gradient, threads=quicker(lambda: gradient(some)))


def own_gradient(model, toy, wake, sleep):
    """By one of this library's regressions."""
    with one_lapack_thread():
        return np.asarray(toy_gradient(model, toy.b, toy.noise, sleep, wake))


def toy_error(name, quick):
    """Root mean square relative error of the gradient, and the median seconds for one."""
    import gradient_error as toys

    true = toys.Toy(jnp.array(toys.TRUE_B), jnp.array(toys.TRUE_NOISE))
    wake = alws.draw(true, jax.random.key(0), toys.DATA)[0].x
    draw = jax.jit(lambda toy, key: alws.draw(toy, key, SLEEP)[0])
    errors, times = [], []
    for i, b in enumerate(toys.PLACES):
        toy = toys.Toy(jnp.array(b), jnp.array(toys.NOISE))
        exact = np.asarray(toys.exact_gradient(toy.b, wake))
        method = toy_method(name, toy, toys.RIDGE, wake, 2 if quick else ADAPTATION)
        for j in range(2 if quick else toys.REPEATS):
            sleep = jax.block_until_ready(draw(toy, jax.random.key(100 * i + j)))
            if i == j == 0:
                method(sleep)
            began = time.perf_counter()
            found = method(sleep)
            times.append(time.perf_counter() - began)
            errors.append(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    return float(np.sqrt(np.mean(np.square(errors)))), float(np.median(times))


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
