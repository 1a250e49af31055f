"""Whether `result.verdict` can be believed: of fits near a maximum, and of fits far from it.

    python benchmarks/verdict_calibration.py [--fits known_maxima.json] [--spoilt deaths:few_steps]
        [--json verdict_calibration.json] [--quick]

The fits are those that `benchmarks/known_maxima.py` stored, made by default, and some that are
spoilt on purpose: too few steps, a ridge far too large, 50 sleep samples, rates that throw θ about,
a start far from the data, a regression linear in x where the score is not. The gap to the maximum
is exact. A fit is flagged if its verdict does not trust it.

Of the fits whose gap is above 0.25 nats for each free parameter at least 95 % should be flagged, of
those below 0.05 at most 10 %.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import alws

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this file's own directory
from known_maxima import PROBLEMS

FAR, NEAR = 0.25, 0.05
"""Nats for each free parameter from which on a fit is far from the maximum, and within it near."""
MOST_PASSED, MOST_ACCUSED = 0.05, 0.10
"""Shares of the far that may be trusted, and of the near that may be flagged."""


def kernel_ridge(**settings):
    kernel = alws.kernels.SquaredExponential()
    return alws.regressions.KernelRidge(kernel, **settings)


def linear():
    return alws.regressions.LinearReadout(alws.features.Identity())


WAYS = {
    "few_steps": lambda: {"steps": 20},
    "some_steps": lambda: {"steps": 150},
    "large_ridge": lambda: {
        "steps": 300,
        "settings": alws.Settings(regression=kernel_ridge(ridge=10.0), adapt=alws.ALWS_F),
    },
    "few_samples": lambda: {"steps": 300, "settings": alws.Settings(sleep_samples=50)},
    "wild_rate": lambda: {"steps": 100, "settings": alws.Settings(optimiser=optax.adam(0.5))},
    "linear_in_x": lambda: {"steps": 300, "settings": alws.Settings(regression=linear())},
    "paper": lambda: {"steps": 300, "settings": alws.PAPER},
    "no_time": lambda: {"seconds": 0.01},
    "far_start": lambda: {"steps": 100},
}
"""How a fit is spoilt: the arguments of `alws.fit`."""

SPOILT = (
    "faithful:few_steps",
    "deaths:few_steps",
    "deaths:some_steps",
    "lsat7_two_parameter:few_steps",
    "lsat7_classes:some_steps",
    "faithful:large_ridge",
    "seizures:large_ridge",
    "faithful_waiting:few_samples",
    "health:few_samples",
    "spending:few_samples",
    "faithful:wild_rate",
    "iris:linear_in_x",
    "faithful:linear_in_x",
    "returns:linear_in_x",
    "arc:paper",
    "survival:paper",
    "penguins:no_time",
    "sleepstudy:no_time",
    "families:far_start",
    "frontier:far_start",
    "bursts:few_steps",
    "walks:few_steps",
)

QUICK = ("faithful_waiting:few_steps",)


def start_of(problem, way):
    """The problem's start, or one that lies three units off in every parameter."""
    if way != "far_start":
        return problem.start
    return jax.tree.map(lambda a: a + 3.0 if eqx.is_inexact_array(a) else a, problem.start)


def spoilt_fit(name, seed=0):
    """A fit spoilt in one way: its gap and its verdict."""
    which, way = name.split(":")
    problem = PROBLEMS[which](seed)
    start = start_of(problem, way)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = alws.fit(start, problem.data, key=jax.random.key(seed), **WAYS[way]())
        verdict = result.verdict
    gap = problem.maximum - problem.log_likelihood(result.model)
    return {
        "fit": name,
        "gap": gap if jnp.isfinite(gap) else float("inf"),
        "gap_per_parameter": gap / problem.parameters if jnp.isfinite(gap) else float("inf"),
        "trusted": verdict.trusted,
        "verdict": str(verdict),
        "seconds": time.perf_counter() - began,
    }


def stored_fits(path):
    """The fits made by default, as `benchmarks/known_maxima.py` left them."""
    problems = json.loads(path.read_text())["problems"]
    return [
        {"fit": f"{name}:{run['seed']}", **run}
        for name, problem in problems.items()
        for run in problem["fits"]
    ]


def counts(fits):
    """How many fits are far and near, and how many of these were trusted or flagged wrongly."""
    far = [f for f in fits if f["gap_per_parameter"] > FAR]
    near = [f for f in fits if f["gap_per_parameter"] < NEAR]
    return {
        "far": len(far),
        "far_trusted": sum(f["trusted"] for f in far),
        "near": len(near),
        "near_flagged": sum(not f["trusted"] for f in near),
        "between": len(fits) - len(far) - len(near),
    }


def told(found):
    """The counts in words, and whether both bars hold."""
    passed = found["far_trusted"] <= MOST_PASSED * found["far"]
    accused = found["near_flagged"] <= MOST_ACCUSED * found["near"]
    return (
        f"Far from the maximum: {found['far']}, of which {found['far_trusted']} were trusted "
        f"({'within' if passed else 'above'} {MOST_PASSED:.0%}). Near it: {found['near']}, of "
        f"which {found['near_flagged']} were flagged ({'within' if accused else 'above'} "
        f"{MOST_ACCUSED:.0%}). Between: {found['between']}."
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=Path, help="JSON of benchmarks/known_maxima.py")
    parser.add_argument("--spoilt", nargs="*", default=list(SPOILT), metavar="PROBLEM:WAY")
    parser.add_argument("--json", type=Path, help="fits it has already are not made again")
    parser.add_argument("--quick", action="store_true", help="one fit only")
    arguments = parser.parse_args()
    names = QUICK if arguments.quick else arguments.spoilt
    fits = stored_fits(arguments.fits) if arguments.fits else []
    there = arguments.json and arguments.json.exists()
    kept = json.loads(arguments.json.read_text())["spoilt"] if there else []
    done = {f["fit"]: f for f in kept}
    line = "{:<32}{:>12}{:>10}{:>9}{:>7}  {}"
    print(line.format("fit", "gap", "gap/p", "trusted", "s", "verdict"))
    for name in names:
        if name not in done:
            done[name] = spoilt_fit(name)
        f = done[name]
        numbers = f"{f['gap']:.3f}", f"{f['gap_per_parameter']:.3f}"
        trusted = "yes" if f["trusted"] else "no"
        seconds = f"{f['seconds']:.0f}"
        print(line.format(name, *numbers, trusted, seconds, f["verdict"]), flush=True)
        if arguments.json:  # after each fit, for the patient
            report = {"spoilt": list(done.values()), "counts": counts([*fits, *done.values()])}
            arguments.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print("\n" + told(counts([*fits, *(done[name] for name in names)])))


if __name__ == "__main__":
    main()
