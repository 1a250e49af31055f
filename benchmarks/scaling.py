"""Seconds per step and peak memory as the number of sleep samples grows, as JSON.

    python benchmarks/scaling.py [--quick] [--models nystrom random_features ...] [--sizes ...]

The model is the small one of `step.py`, x of ten dimensions, with σ and λ adapted. Each number of
sleep samples N has a process of its own, whose largest resident size is the peak memory. `growth`
is the slope of log seconds against log N over all N, by least squares. Conjugate gradients solve
the exact problem, N² for each iteration.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from functools import partial

import jax
import numpy as np
from alws.runtime import one_lapack_thread
from step import Small

import alws
from alws.fit import _advance, _choose, _start, prepare
from alws.kernels import SquaredExponential

SIZES = (2_000, 10_000, 30_000, 100_000)
MODELS = {
    "nystrom": lambda: alws.regressions.Nystrom(SquaredExponential(), inducing=500),
    "random_features": lambda: alws.regressions.RandomFeatures(
        SquaredExponential(), frequencies=250
    ),
    "conjugate_gradients": lambda: alws.regressions.ConjugateGradients(
        SquaredExponential(), rank=500
    ),
}


def seconds_per_step(model, data, settings, repeats):
    """The quickest of some steps after the first state; compilation is not counted."""
    key = jax.random.key(0)
    problem = prepare(model, data, key, 10, settings, None, None)
    algorithm = _choose(problem, 10, settings, None, key)
    state, _ = _start(algorithm, problem, key, None)
    advance = (
        eqx.filter_jit(partial(_advance, algorithm)).lower(state, problem, None, key).compile()
    )
    times, info = [], None
    with one_lapack_thread():
        for _ in range(repeats):
            began = time.perf_counter()
            state, info = advance(state, problem, None, key)
            jax.block_until_ready(info)
            times.append(time.perf_counter() - began)
    return min(times), info


def measure(name, number):
    """One number of sleep samples, in this process."""
    keys = jax.random.split(jax.random.key(1), 3)
    small = Small(jax.random.normal(keys[0], (10, 2)))
    x = alws.draw(small, keys[1], 500)[0].x
    settings = alws.Settings(MODELS[name](), sleep_samples=number)
    slow = name == "conjugate_gradients" and number > 10_000
    seconds, info = seconds_per_step(small, x, settings, 1 if slow else 4)
    return {
        "sleep_samples": number,
        "seconds": round(seconds, 4),
        "held_out_r2": round(float(info.held_out_r2), 4),
        "ridge": round(float(info.ridge), 5),
        "peak_memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def elsewhere(name, number):
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", name, str(number)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="N = 2,000 and 10,000 only")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return
    sizes = SIZES[:2] if arguments.quick else arguments.sizes
    report = {}
    for name in arguments.models:
        rows = []
        for number in sizes:
            rows.append(elsewhere(name, number))
            print(name, rows[-1], file=sys.stderr, flush=True)
        report[name] = {"sizes": rows}
        if len(rows) > 1:
            logs = np.log([[row["sleep_samples"], row["seconds"]] for row in rows])
            report[name]["growth"] = round(float(np.polyfit(*logs.T, 1)[0]), 3)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
