"""Seconds per step against the work it needs and the machine's own matrix-product peak, as JSON.

    python benchmarks/step.py [--quick] [--small-pages]

The efficiency is (floating-point work / seconds) / peak, both the best of as many, timed in turn,
for on a shared machine the peak of one second can be half that of the next. The work is matrix
products, factorisation and triangular solves; random numbers and exponentials come on top.

It asks for large pages of memory, which must be done before Python starts, and so starts anew with
`GLIBC_TUNABLES` set, unless that is set already; `docs/benchmarks.md` says what they are worth.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from alws.runtime import one_lapack_thread, use_large_pages
from sizes import BATCH, FEATURES, HELD_OUT, HIDDEN, LATENT, PIXELS, RIDGE, SLEEP

import alws
from alws.features import Linear
from alws.fit import _advance, _choose, _start, prepare
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian


class Generator(eqx.Module):
    network: eqx.nn.MLP
    log_noise: jax.Array

    def sample_latent(self, key):
        return jax.random.normal(key, (LATENT,))

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


def seconds_per_step(model, data, settings, batch_size, repeats, conditions=None, between=None):
    key = jax.random.key(0)
    began = time.perf_counter()
    problem = prepare(model, data, key, 10, settings, conditions, batch_size)
    algorithm = _choose(problem, 10, settings, None, key)
    state, _ = _start(algorithm, problem, key, None)
    chosen = problem.batch(0, (0,))
    advance = eqx.filter_jit(partial(_advance, algorithm), numbers=problem.numbers)
    with one_lapack_thread():
        jax.block_until_ready(advance(state, problem, chosen, key)[1])
        first = time.perf_counter() - began
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            state, info = advance(state, problem, chosen, key)
            jax.block_until_ready(info)
            times.append(time.perf_counter() - began)
            if between is not None:
                between()
    return min(times[1:]), first


class Peak:
    """The rate of a matrix product of 3000 × 3000, the best of all the times it was called.

    Its matrix is made at the first call, after the step's own memory.
    """

    def __init__(self):
        self.a = None
        self.product = jax.jit(lambda a: a @ a)
        self.best = math.inf

    def __call__(self):
        if self.a is None:
            self.a = jax.random.normal(jax.random.key(0), (3000, 3000))
            self.product(self.a).block_until_ready()
        began = time.perf_counter()
        self.product(self.a).block_until_ready()
        self.best = min(self.best, time.perf_counter() - began)

    @property
    def rate(self):
        return 2 * 3000**3 / self.best


def peak():
    """The rate, by itself."""
    product = Peak()
    for _ in range(6):
        product()
    return product.rate


def work(adapted):
    """Floating-point operations that a step at N, M cannot do without."""
    weights = LATENT * HIDDEN + HIDDEN * HIDDEN + HIDDEN * PIXELS
    n, m = SLEEP, BATCH
    total = 3 * 2 * n * weights  # the generator forward once, backward twice that
    total += 2 * (n + m) * PIXELS * FEATURES  # features
    total += 2 * n * (n + m) * FEATURES  # distances
    total += n**3 / 3 + 2 * n**2 * m  # factorisation, and a solve for each wake point
    total += 2 * n * m * (PIXELS + 1)  # cotangents
    if adapted:
        held_out = HELD_OUT
        total += 2 * held_out * weights  # held-out draws
        total += 4 * n**2 * held_out + 4 * n * held_out * PIXELS  # solves, and their prediction
        total += 2 * n**2 * held_out + 2 * 2 * n**2 * FEATURES  # back to the Gram matrix, distances
        total += 2 * 2 * n * PIXELS * FEATURES  # and to the features
    return total


def small_problem():
    keys = jax.random.split(jax.random.key(1), 2)
    small = Small(jax.random.normal(keys[0], (10, 2)))
    return small, alws.draw(small, keys[1], 500)[0].x


def first_call():
    """Seconds of `alws.fit` with one step, for a small model, all of this process so far apart."""
    small, x = small_problem()
    began = time.perf_counter()
    alws.fit(small, x, key=jax.random.key(0), steps=1)
    return time.perf_counter() - began


def first_calls():
    """The same in fresh processes, with no compilation cache and with one; the best of three."""
    command = [sys.executable, __file__, "--first"]
    times = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            environment = os.environ | {"ALWS_CACHE": cache}
            runs = [
                subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                for _ in range(2)
            ]
        times.append([float(run.stdout) for run in runs])
    return [round(min(seconds), 2) for seconds in zip(*times, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three repeats instead of eighty")
    parser.add_argument("--small-pages", action="store_true", help="memory as it comes")
    parser.add_argument("--first", action="store_true", help=first_call.__doc__)
    arguments = parser.parse_args()
    if not arguments.small_pages:
        use_large_pages()
    if arguments.first:
        print(first_call())
        return
    repeats = 3 if arguments.quick else 80
    first_seconds, cached_seconds = first_calls()  # while this process holds no threads or memory
    report = {}
    keys = jax.random.split(jax.random.key(1), 3)
    model = Generator(eqx.nn.MLP(LATENT, PIXELS, HIDDEN, 2, key=keys[0]), jnp.zeros(()))
    data = jax.random.normal(keys[1], (1000, PIXELS))
    features = Linear.random(keys[2], PIXELS, FEATURES, batch_norm=True)
    regression = alws.regressions.KernelRidge(
        SquaredExponential(features, track=False), ridge=RIDGE
    )
    for name, adapt in (("fixed", alws.ALWS_F), ("adapted", alws.Adapt())):
        settings = alws.Settings(
            regression,
            optimiser=optax.adam(1e-3),
            sleep_samples=SLEEP,
            adapt=adapt,
            measure_every=1_000_000,
        )
        product = Peak()
        seconds, first = seconds_per_step(model, data, settings, BATCH, repeats, between=product)
        flops = work(name == "adapted")
        report[f"images_{name}"] = {
            "seconds": round(seconds, 4),
            "gflop": round(flops / 1e9, 2),
            "peak_gflops": round(product.rate / 1e9, 1),
            "efficiency": round(flops / seconds / product.rate, 3),
            "first_step_seconds": round(first, 2),
        }
    ratio = report["images_adapted"]["seconds"] / report["images_fixed"]["seconds"]
    report["adapted_over_fixed"] = round(ratio, 2)
    report["peak_memory_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    seconds, _ = seconds_per_step(*small_problem(), alws.Settings(), None, 2 * repeats)
    report["small_adapted"] = {
        "seconds": round(seconds, 4),
        "first_call_seconds": first_seconds,
        "first_call_seconds_with_cache": cached_seconds,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
