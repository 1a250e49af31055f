"""One step of every image method at the paper's sizes: seconds, efficiency and memory, as JSON.

    python benchmarks/images.py [--quick] [--all]

N = 2000 sleep samples, batches of 100 images of 32×32, 300 kernel features. Bars for ALWS-F on two
cores: 3 s with the DCGAN of width 64, 0.3 s fully connected, 4 GiB. The efficiency is
(floating-point work / seconds) / the matrix-product peak measured in the same run. Each step is
measured in a process of its own, so that its memory is its own; `--all` measures every method.
"""

import argparse
import json
import time

from machine import elsewhere, memory_gib
from sizes import BATCH, LATENT
from work import CONNECTED, exact

WIDTH = 64
# Nothing that imports JAX is imported here: see `elsewhere`.
METHODS = ("ALWS-F", "ALWS-A", "AL-P", "VAE", "VAE-SNF", "SIVI", "RWS", "WGAN-GP")
BARS = {"dcgan": 3.0, "connected": 0.3}
MEMORY_BAR = 4.0
LAYERS = [(4 * WIDTH, 2 * WIDTH, 16), (2 * WIDTH, WIDTH, 64), (WIDTH, 1, 256)]
GENERATORS = {
    "dcgan": 2 * (LATENT * 4 * WIDTH * 16 + sum(16 * a * b * pixels for a, b, pixels in LAYERS)),
    "connected": CONNECTED,
}


def measure(name, kind, repeats):
    """Best seconds of a step, seconds up to the end of the first, and this process's memory."""
    import equinox as eqx
    import jax

    import alws
    from alws.regressions.base import one_lapack_thread
    from alws_paper import images

    alws.enable_compilation_cache()
    make = {"dcgan": images.convolutional, "connected": images.connected}[kind]
    method = images.METHODS[name](make(images.Bounded()))
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
        "memory_gib": round(memory_gib(), 2),
    }


def measure_peak():
    from step import peak

    return peak()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="connected only, two repeats")
    parser.add_argument("--all", action="store_true", help="every method, not ALWS-F alone")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak or arguments.one:
        one = arguments.one
        print(json.dumps(measure_peak() if one is None else measure(*one[:2], int(one[2]))))
        return
    repeats = 2 if arguments.quick else 6
    ceiling = elsewhere(__file__, "--peak")
    report = {"peak_gflops": round(ceiling / 1e9, 1)}
    for kind, bar in BARS.items():
        if arguments.quick and kind == "dcgan":
            continue
        for name in METHODS if arguments.all else ["ALWS-F"]:
            found = elsewhere(__file__, "--one", name, kind, repeats)
            if name == "ALWS-F":
                flops = exact(generator=GENERATORS[kind])
                found["gflop"] = round(flops / 1e9, 2)
                found["efficiency"] = round(flops / found["seconds"] / ceiling, 3)
                found["bar_seconds"] = bar
                found["holds"] = found["seconds"] <= bar and found["memory_gib"] <= MEMORY_BAR
            report[f"{kind} {name}"] = found
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
