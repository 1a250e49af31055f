"""One table: seconds, efficiency, memory and gradient error of every method, and what got slower.

    python benchmarks/table.py [--quick] [--rows exact nystrom ...] [--check | --store]

- s/step: one step on the image problem of `step.py`, the best of twelve;
- of peak: (floating-point work / seconds) / the rate of a matrix product timed between the steps;
  the work is what the row's own algorithm needs, counted in `work.py`;
- GiB: the largest resident size of the row's process, libraries included;
- error: relative error of the likelihood's gradient on a toy with a known one, N = 2000;
- s/gradient: seconds for one such gradient;
- error·√s: the two together. The error falls as N^-1/2 where sampling dominates it, and seconds
  grow with N, so this figure tells methods of different speed apart: the less the better.

Every row has a process of its own (`rows.py`). Rows of other libraries are plain versions of the
same step (`with_scikit_learn.py`, `with_pytorch.py`) and need `pip install '.[bench]'`. Step times
are compared with `baseline.json` (`baseline.py`); a row that seems slower is measured once more.
With `--check` the exit code is 1 when one of this library's rows is slower, or nothing could be
compared. `--store` measures everything three times and writes the baseline.

`--save FILE` keeps the results as JSON. With `--results FILE ...` such files stand in for
measurements, one for the table, several for `--store`. `--baseline FILE` takes another than
`baseline.json`.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

# JAX, NumPy and the like are imported by the rows alone: see `elsewhere`.
from baseline import compare, load, ratio, summarise, verdict
from machine import elsewhere, memory_gib

BASELINE = Path(__file__).with_name("baseline.json")
OURS = {
    "exact": "exact, γ fixed",
    "adapted": "exact, γ adapted",
    "nystrom": "Nyström, 500 points",
    "random_features": "random features, 250 frequencies",
    "conjugate_gradients": "conjugate gradients, rank 300",
}
OTHERS = {"scikit_learn": "scikit-learn KernelRidge, JAX", "pytorch": "PyTorch"}
LABELS = {**OURS, **OTHERS}
NEEDS = {"scikit_learn": "sklearn", "pytorch": "torch"}
HEADINGS = ("s/step", "of peak", "GiB", "error", "s/gradient", "error·√s")
BUSY = 1.15
"""How much longer than the best product the median one may take on a quiet machine."""


def installed(name):
    return name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None


def cells(result):
    """A row's entries."""
    peak = result["product_flops"] / result["product_seconds"]
    return (
        f"{result['seconds']:.3f}",
        f"{100 * result['flops'] / result['seconds'] / peak:.0f} %",
        f"{result['memory_gib']:.2f}",
        f"{result['error']:.4f}",
        f"{result['gradient_seconds']:.4f}",
        f"{result['error'] * result['gradient_seconds'] ** 0.5:.4f}",
    )


def layout(results):
    """The table of some rows; a result that is a text stands for what could not be measured."""
    width = max(len(LABELS[name]) for name in results)
    lines = [" " * width + "".join(f"{heading:>12}" for heading in HEADINGS)]
    for name, result in results.items():
        entries = (
            f"  {result}"
            if isinstance(result, str)
            else "".join(f"{cell:>12}" for cell in cells(result))
        )
        lines.append(f"{LABELS[name]:{width}}{entries}")
    return "\n".join([*lines, *peak_lines(measured(results))])


def measured(results):
    """The rows that could be measured."""
    return {name: result for name, result in results.items() if not isinstance(result, str)}


def peak_lines(results):
    """The peak as seen beside each row, and a warning when it wavered."""
    if not results:
        return []
    rates = [r["product_flops"] / r["product_seconds"] / 1e9 for r in results.values()]
    lines = [f"matrix product: {min(rates):.1f} to {max(rates):.1f} GFLOP/s beside the rows"]
    best = min(r["product_seconds"] for r in results.values())
    slowest = max(r["product_median"] for r in results.values()) / best
    if slowest > BUSY:
        lines.append(
            f"The machine is busy: beside one row the median product took {slowest:.1f} times as "
            "long as the best. Absolute times mean little; ratios are compared all the same."
        )
    return lines


def measure(name, quick):
    """A row in this process. Other libraries are loaded without this one until memory is read."""
    if name == "pytorch":
        import with_pytorch

        step = with_pytorch.ImageStep()
    elif name == "scikit_learn":
        import with_scikit_learn

        step = with_scikit_learn.ImageStep()
    else:
        import rows

        step = rows.ImageStep(name)
    step()
    step()
    memory = memory_gib()
    from rows import finish

    return finish(name, step, memory, quick)


def in_its_own_process(name, quick):
    """A row's result, or why there is none."""
    if not installed(name):
        return "not installed: pip install '.[bench]'"
    try:
        return elsewhere(__file__, "--row", name, *(["--quick"] if quick else []))
    except subprocess.CalledProcessError as error:
        return f"FAILED with exit code {error.returncode}: see above"


def run(names, quick):
    """Every row, one after the other."""
    results = {}
    for name in names:
        print(f"measuring {LABELS[name]} …", file=sys.stderr, flush=True)
        results[name] = in_its_own_process(name, quick)
    return results


def again(stored, results, quick):
    """The results, with the better of two measurements for rows that seem slower."""
    slower = compare(stored, measured(results)) if stored else []
    second = measured(run([change.row for change in slower], quick))
    better = {name: r for name, r in second.items() if ratio(r) < ratio(results[name])}
    return {**results, **better}


def machine():
    """What a baseline is good for: ratios depend on the number of cores most of all."""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few repeats: does it run at all?")
    parser.add_argument("--rows", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--row", choices=LABELS, help=argparse.SUPPRESS)
    parser.add_argument("--save", type=Path, help="keep the results in this file")
    parser.add_argument("--results", type=Path, nargs="+", help="use these, measure nothing")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="exit with 1 if a row is slower")
    action.add_argument("--store", action="store_true", help="measure three times, and keep it")
    found = parser.parse_args()
    if found.store and (found.quick or found.rows != list(LABELS)):
        parser.error("`--store` measures every row in full; leave out `--quick` and `--rows`.")
    return found


def store(runs, path):
    """The baseline of some runs of the whole table."""
    print("\n\n".join(layout(results) for results in runs))
    failed = [n for n in OURS if any(not isinstance(r.get(n), dict) for r in runs)]
    if failed:
        print(f"No baseline was written: {', '.join(failed)} could not be measured.")
        return 1
    found = summarise([measured(results) for results in runs], machine())
    path.write_text(json.dumps(found, indent=2) + "\n")
    print(f"The baseline is in {path}.")
    return 0


def main():
    given = arguments()
    if given.row:
        print(json.dumps(measure(given.row, given.quick)))
        return 0
    kept = [json.loads(path.read_text()) for path in given.results or ()]
    if given.store:
        return store(kept or [run(given.rows, False) for _ in range(3)], given.baseline)
    stored = load(given.baseline)
    results = kept[0] if kept else again(stored, run(given.rows, given.quick), given.quick)
    if given.save:
        given.save.write_text(json.dumps(results, indent=2) + "\n")
    print(layout(results))
    message, fine = verdict(stored, measured(results), machine(), OURS)
    print(message)
    failed = any(isinstance(results[name], str) for name in results if name in OURS)
    return int(failed or (given.check and not fine))


if __name__ == "__main__":
    sys.exit(main())
