"""One step of every image method at the paper's sizes: seconds, efficiency and memory, as JSON.

    python benchmarks/images.py [--quick] [--all]

N = 2000 sleep samples, batches of 100 images of 32×32, 300 kernel features. Bars for ALWS-F on two
cores: 3 s with the DCGAN of width 64, 0.3 s fully connected, 4 GiB. The efficiency is
(floating-point work / seconds) / the matrix-product peak measured in the same run. Each step is
measured in a process of its own, so that its memory is its own; `--all` measures every method.
"""

import argparse
import json
import multiprocessing
import resource
import time

import jax
from alws.runtime import enable_compilation_cache, one_lapack_thread
from step import peak

from alws_paper.images import METHODS, Bounded, connected, convolutional

LATENT, WIDTH, HIDDEN, PIXELS, FEATURES, SLEEP, BATCH = 16, 64, 512, 1024, 300, 2000, 100
BARS = {"dcgan": 3.0, "connected": 0.3}
MEMORY_BAR = 4.0


def products(kind):
    """Multiplications and additions of one pass of the generator over one latent."""
    if kind == "connected":
        return 2 * (LATENT * HIDDEN + HIDDEN * HIDDEN + HIDDEN * PIXELS)
    layers = [(4 * WIDTH, 2 * WIDTH, 16), (2 * WIDTH, WIDTH, 64), (WIDTH, 1, 256)]
    return 2 * (LATENT * 4 * WIDTH * 16 + sum(16 * a * b * pixels for a, b, pixels in layers))


def work(kind):
    """Floating-point operations that a step of ALWS-F cannot do without."""
    n, m = SLEEP, BATCH
    total = 3 * n * products(kind)  # the generator forward once, backward twice that
    total += 2 * (n + m) * PIXELS * FEATURES  # features
    total += 2 * n * (n + m) * FEATURES  # distances
    total += n**3 / 3 + 2 * n**2 * m  # factorisation, and a solve for each wake point
    return total + 2 * n * m * (PIXELS + 1)  # cotangents


def measure(name, kind, repeats):
    """Best seconds of a step, seconds up to the end of the first, and the process's peak memory."""
    enable_compilation_cache()
    architecture = {"dcgan": convolutional, "connected": connected}[kind](Bounded())
    method = METHODS[name](architecture)
    keys = jax.random.split(jax.random.key(0))
    data = jax.random.normal(keys[0], (BATCH, 1, 32, 32))
    began = time.perf_counter()
    state = eqx.filter_jit(method.initialise)(keys[1], data)
    step = eqx.filter_jit(method.step)
    times = []
    with one_lapack_thread():
        state = jax.block_until_ready(step(state, data))
        first = time.perf_counter() - began
        for _ in range(repeats):
            began = time.perf_counter()
            state = jax.block_until_ready(step(state, data))
            times.append(time.perf_counter() - began)
    return {
        "seconds": round(min(times), 4),
        "first_step_seconds": round(first, 2),
        "memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def alone(function, *args):
    """The result of a function run in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two repeats instead of six")
    parser.add_argument("--all", action="store_true", help="every method, not ALWS-F alone")
    arguments = parser.parse_args()
    repeats = 2 if arguments.quick else 6
    ceiling = alone(peak)
    report = {"peak_gflops": round(ceiling / 1e9, 1)}
    for kind, bar in BARS.items():
        for name in METHODS if arguments.all else ["ALWS-F"]:
            found = alone(measure, name, kind, repeats)
            if name == "ALWS-F":
                flops = work(kind)
                found["gflop"] = round(flops / 1e9, 2)
                found["efficiency"] = round(flops / found["seconds"] / ceiling, 3)
                found["bar_seconds"] = bar
                found["holds"] = found["seconds"] <= bar and found["memory_gib"] <= MEMORY_BAR
            report[f"{kind} {name}"] = found
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
