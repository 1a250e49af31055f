"""How near `alws.fit`, as it comes, gets to known maxima of the likelihood; a table, and JSON.

    python benchmarks/known_maxima.py [--problems faithful deaths] [--seeds 3] [--rivals]
        [--json known_maxima.json]

Each problem of the package `known_maxima` is fitted with no argument but the key. The gap is the
maximum minus the log likelihood of the fitted model, in nats over all data, both exact; it is in
the bar if it is at most 0.05 nats for each free parameter, and marked with ! if it is not. Seconds
go from the call to the result, compilation included. `--rivals` also runs what a user would take
otherwise, once for each problem. A seed is that of the start, where chance breaks a symmetry, and
of the fit.
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import jax

import alws

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this file's own directory
from known_maxima import PROBLEMS

BAR = 0.05
"""Nats for each free parameter that a fit may be below the maximum."""
ENOUGH = 0.95
"""Share of the seeds on which a problem must be within the bar."""
COLUMNS = "{:<27}{:>5}{:>5}{:>12}{:>10}{:>8}  {:<48}{}"


def run_fit(problem, seed):
    """One fit by default: its gap in nats, seconds and verdict."""
    began = time.perf_counter()
    key = jax.random.key(seed)
    result = alws.fit(problem.start, problem.data, conditions=problem.conditions, key=key)
    jax.block_until_ready(jax.tree.leaves(result.model))
    seconds = time.perf_counter() - began
    gap = problem.maximum - problem.log_likelihood(result.model)
    return {
        "gap": gap,
        "gap_per_parameter": gap / problem.parameters,
        "within": bool(gap <= BAR * problem.parameters),
        "start_gap": problem.maximum - problem.log_likelihood(problem.start),
        "seconds": seconds,
        "verdict": str(result.verdict),
        "trusted": result.verdict.trusted,
        "method": result.method,
    }


def run_rival(problem, rival):
    """What a user would take otherwise: its name, gap and seconds."""
    began = time.perf_counter()
    name, reached = rival()
    seconds = time.perf_counter() - began
    return {"name": name, "gap": problem.maximum - reached, "seconds": seconds}


def row(problem, seed, run, rivals):
    other = "; ".join("{name}: {gap:.3f}, {seconds:.1f} s".format(**rival) for rival in rivals)
    return COLUMNS.format(
        problem.name,
        seed,
        problem.parameters,
        f"{run['gap']:.3f}",
        f"{run['gap_per_parameter']:.4f}" + ("" if run["within"] else "!"),
        f"{run['seconds']:.1f}",
        run["verdict"],
        other,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 0")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(COLUMNS.format("problem", "seed", "p", "gap", "gap/p ", "s", "verdict", "rival: gap, s"))
    report = {"jax": jax.__version__, "machine": platform.machine(), "bar": BAR, "problems": {}}
    for name in arguments.problems:
        try:
            problem = PROBLEMS[name](0)
        except FileNotFoundError as error:
            print(f"{name}: {error}")
            continue
        others = (problem.rival, *problem.others) if arguments.rivals else ()
        rivals = [run_rival(problem, rival) for rival in others]
        runs = []
        for seed in range(arguments.seeds):
            problem = PROBLEMS[name](seed)
            runs.append({"seed": seed, **run_fit(problem, seed)})
            print(row(problem, seed, runs[-1], () if seed else rivals), flush=True)
        report["problems"][name] = {
            "parameters": problem.parameters,
            "maximum": problem.maximum,
            "source": problem.source,
            "rivals": rivals,
            "fits": runs,
        }
        if arguments.json:  # after each problem, for the patient
            arguments.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    every = [problem["fits"] for problem in report["problems"].values()]
    within = sum(run["within"] for runs in every for run in runs)
    held = sum(sum(run["within"] for run in runs) >= ENOUGH * len(runs) for runs in every)
    total = sum(run["seconds"] for runs in every for run in runs)
    print(
        f"\nWithin {BAR} p: {within} of {sum(map(len, every))} fits; {held} of {len(every)} "
        f"problems on {ENOUGH:.0%} of their seeds. Seconds in all: {total:.0f}."
    )


if __name__ == "__main__":
    main()
