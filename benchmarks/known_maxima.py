"""How near `alws.fit`, as it comes, gets to known maxima of the likelihood; a table, and JSON.

    python benchmarks/known_maxima.py [--problems faithful deaths] [--seeds 3] [--rivals]
        [--json known_maxima.json] [--table docs/benchmarks.md]

Each problem of the package `known_maxima` is fitted with no argument but the key. The gap is the
maximum minus the log likelihood of the fitted model, in nats over all data, both exact; it is in
the bar if it is at most 0.05 nats for each free parameter, and marked with ! if it is not. Seconds
go from the call to the result, compilation included. `--rivals` also runs what a user would take
otherwise, once for each problem; its seconds are those of the processor. A seed is that of the
start, where chance breaks a symmetry, and of the fit. Fits that the JSON has already are not made
again; `--table` puts what it has into a document, between two comments, without a fit.
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
    """What a user would take otherwise: its name, gap and seconds of the processor."""
    began = time.process_time()
    name, reached = rival()
    seconds = time.process_time() - began
    return {"name": name, "gap": problem.maximum - reached, "seconds": seconds}


def run_rivals(problem):
    """All of a problem's rivals whose packages are there."""
    done = []
    for rival in (problem.rival, *problem.others):
        try:
            done.append(run_rival(problem, rival))
        except ModuleNotFoundError as error:
            print(f"{problem.name}: a rival needs {error.name}, which is not installed")
    return done


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


def stored(path):
    """The report there is, or an empty one."""
    if path is not None and path.exists():
        return json.loads(path.read_text())
    return {"jax": jax.__version__, "machine": platform.machine(), "bar": BAR, "problems": {}}


def fit_all(arguments):
    """Every fit that the report has not yet; the report, written after each of them."""
    report = stored(arguments.json)
    print(COLUMNS.format("problem", "seed", "p", "gap", "gap/p ", "s", "verdict", "rival: gap, s"))
    for name in arguments.problems:
        try:
            problem = PROBLEMS[name](0)
        except FileNotFoundError as error:
            print(f"{name}: {error}")
            continue
        kept = report["problems"].setdefault(name, {"rivals": [], "fits": []})
        kept |= {
            "parameters": problem.parameters,
            "maximum": problem.maximum,
            "source": problem.source,
        }
        if arguments.rivals and not kept["rivals"]:
            kept["rivals"] = run_rivals(problem)
        have = {run["seed"]: run for run in kept["fits"]}
        for seed in range(arguments.seeds):
            problem = PROBLEMS[name](seed)
            if seed not in have:
                have[seed] = {"seed": seed, **run_fit(problem, seed)}
            kept["fits"] = [have[s] for s in sorted(have)]
            print(row(problem, seed, have[seed], () if seed else kept["rivals"]), flush=True)
            if arguments.json:
                text = json.dumps(report, indent=1, ensure_ascii=False)
                arguments.json.write_text(text + "\n")
    return report


def summary(report):
    """How many fits and problems are within the bar."""
    every = [problem["fits"] for problem in report["problems"].values()]
    within = sum(run["within"] for runs in every for run in runs)
    held = sum(sum(run["within"] for run in runs) >= ENOUGH * len(runs) for runs in every)
    total = sum(run["seconds"] for runs in every for run in runs)
    return (
        f"Within {BAR} p: {within} of {sum(map(len, every))} fits; {held} of {len(every)} "
        f"problems on {ENOUGH:.0%} of their seeds. Seconds in all: {total:.0f}."
    )


def markdown(report):
    """The report as a table, the worst of the seeds of each problem."""
    lines = [
        "| problem | p | gap, nats | a parameter | seconds | trusted | otherwise: gap, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, problem in report["problems"].items():
        fits, rivals = problem["fits"], problem["rivals"]
        gap = max(run["gap"] for run in fits)
        share = gap / problem["parameters"]
        seconds = max(run["seconds"] for run in fits)
        trusted = sum(run["trusted"] for run in fits)
        other = "; ".join("{name}: {gap:.3f}, {seconds:.0f}".format(**r) for r in rivals)
        bold = "**" if share > BAR else ""
        lines.append(
            f"| `{name}` | {problem['parameters']} | {gap:.3f} | {bold}{share:.4f}{bold} | "
            f"{seconds:.0f} | {trusted} of {len(fits)} | {other} |"
        )
    return "\n".join([*lines, "", summary(report)])


def put_table(report, path):
    """The table in place of what stands between the two comments of a document."""
    begin, end = "<!-- known maxima -->", "<!-- end of known maxima -->"
    text = path.read_text()
    if begin not in text or end not in text:
        raise SystemExit(f"{path} must have the lines {begin} and {end}, between which it goes.")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{markdown(report)}\n{end}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 0")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, metavar="DOCUMENT")
    arguments = parser.parse_args()
    if arguments.table:
        put_table(stored(arguments.json), arguments.table)
        return
    print("\n" + summary(fit_all(arguments)))


if __name__ == "__main__":
    main()
