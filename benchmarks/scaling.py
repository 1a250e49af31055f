"""Seconds per step and peak memory as the number of sleep samples grows, as JSON.

    python benchmarks/scaling.py [--quick] [--models nystrom random_features ...] [--sizes ...]

The model is the small one of `models.py`, x of ten dimensions, with σ and λ adapted. Each number of
sleep samples N has a process of its own, whose largest resident size is the peak memory. `growth`
is the slope of log seconds against log N over all N, by least squares. Conjugate gradients solve
the exact problem, N² for each iteration.
"""

import argparse
import json
import sys

from machine import elsewhere, memory_gib

SIZES = (2_000, 10_000, 30_000, 100_000)
MODELS = {
    "nystrom": ("Nystrom", {"inducing": 500}),
    "random_features": ("RandomFeatures", {"frequencies": 250}),
    "conjugate_gradients": ("ConjugateGradients", {"rank": 500}),
}


def measure(name, number):
    """One number of sleep samples, in this process."""
    import jax
    from models import seconds_per_step, small_problem

    import alws

    kind, sizes = MODELS[name]
    regression = getattr(alws.regressions, kind)(alws.kernels.SquaredExponential(), **sizes)
    settings = alws.Settings(regression, sleep_samples=number)
    slow = name == "conjugate_gradients" and number > 10_000
    small, x = small_problem()
    prepared = alws.prepare(small, x, key=jax.random.key(0), steps=10, settings=settings)
    seconds, _ = seconds_per_step(lambda: prepared, 1 if slow else 4)
    memory = memory_gib()
    diagnostics = prepared.step(prepared.state, 0)[1].diagnostics
    return {
        "sleep_samples": number,
        "seconds": round(seconds, 4),
        "held_out_r2": round(float(diagnostics["held_out_r2"]), 4),
        "ridge": round(float(diagnostics["ridge"]), 5),
        "peak_memory_gib": round(memory, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="N = 2,000 only, and no growth")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return
    sizes = SIZES[:1] if arguments.quick else arguments.sizes
    report = {}
    for name in arguments.models:
        rows = []
        for number in sizes:
            rows.append(elsewhere(__file__, "--one", name, number))
            print(name, rows[-1], file=sys.stderr, flush=True)
        report[name] = {"sizes": rows}
        if len(rows) > 1:
            report[name]["growth"] = round(slope(rows), 3)
    print(json.dumps(report, indent=2))


def slope(rows):
    """Of log seconds against log N."""
    import numpy as np

    logs = np.log([[row["sleep_samples"], row["seconds"]] for row in rows])
    return float(np.polyfit(*logs.T, 1)[0])


if __name__ == "__main__":
    main()
