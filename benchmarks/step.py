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
import tempfile
import time

import jax
from machine import elsewhere, memory_gib, use_large_pages
from models import image_step, seconds_per_step, small_problem
from work import exact

import alws


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


def first_call():
    """Seconds of `alws.fit` with one step, for a small model, all of this process so far apart."""
    alws.enable_compilation_cache()
    small, x = small_problem()
    began = time.perf_counter()
    alws.fit(small, x, key=jax.random.key(0), steps=1)
    return time.perf_counter() - began


def first_calls(times):
    """The same in fresh processes, with an empty compilation cache and with a full one; the best
    of so many times.
    """
    found = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as cache:
            where = {"ALWS_CACHE": cache, "JAX_COMPILATION_CACHE_DIR": ""}
            found.append([elsewhere(__file__, "--first", **where) for _ in range(2)])
    return [round(min(seconds), 2) for seconds in zip(*found, strict=True)]


def measure_images(adapt, repeats):
    """The image step, timed in turn with the product."""
    product = Peak()
    seconds, first = seconds_per_step(
        lambda: image_step(alws.regressions.KernelRidge, adapt=adapt), repeats, product
    )
    flops = exact(adapt.anything)
    return {
        "seconds": round(seconds, 4),
        "gflop": round(flops / 1e9, 2),
        "peak_gflops": round(product.rate / 1e9, 1),
        "efficiency": round(flops / seconds / product.rate, 3),
        "first_step_seconds": round(first, 2),
    }


def measure_small(repeats):
    """Seconds of a small step with all defaults."""
    small, x = small_problem()
    key = jax.random.key(0)
    return round(seconds_per_step(lambda: alws.prepare(small, x, key=key, steps=10), repeats)[0], 4)


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
    # First, while this process holds no threads or memory.
    first, cached = first_calls(1 if arguments.quick else 3)
    fixed, adapted = (measure_images(adapt, repeats) for adapt in (alws.ALWS_F, alws.Adapt()))
    report = {
        "images_fixed": fixed,
        "images_adapted": adapted,
        "adapted_over_fixed": round(adapted["seconds"] / fixed["seconds"], 2),
        "peak_memory_gib": round(memory_gib(), 2),
        "small_adapted": {
            "seconds": measure_small(2 * repeats),
            "first_call_seconds": first,
            "first_call_seconds_with_cache": cached,
        },
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
