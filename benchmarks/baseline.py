"""Step times against a stored baseline: what was measured then, and what is slower now.

Machines differ and are shared, so a row is kept as the ratio of its step's seconds to those of one
fixed matrix product measured between the same steps. The baseline holds the median ratio of some
runs and their spread, the standard deviation over the median. A row is slower when its ratio is
above the stored one by more than the noise: the largest of 25 % and three stored spreads.
"""

import json
import statistics
from typing import NamedTuple

FORMAT = 1
LEAST_NOISE, SPREADS = 0.25, 3.0


class Slower(NamedTuple):
    """A row that takes more products than it did, by more than the noise."""

    row: str
    then: float
    now: float
    noise: float


def ratio(result):
    """Seconds of a step in those of the matrix product."""
    return result["seconds"] / result["product_seconds"]


def summarise(runs, machine):
    """What is stored of some runs, each a result for every row that could be measured."""
    rows = {}
    for name in runs[0]:
        ratios = [ratio(run[name]) for run in runs if name in run]
        middle = statistics.median(ratios)
        spread = statistics.stdev(ratios) / middle if len(ratios) > 1 else 0.0
        rows[name] = {"ratio": round(middle, 4), "spread": round(spread, 4)}
    return {"format": FORMAT, "runs": len(runs), "machine": machine, "rows": rows}


def load(path):
    """The stored baseline, or None where there is none."""
    if not path.exists():
        return None
    stored = json.loads(path.read_text())
    if stored.get("format") != FORMAT:
        raise ValueError(
            f"a baseline must have format {FORMAT}, got {stored.get('format')} in {path}. Store it "
            "anew with `python benchmarks/table.py --store`."
        )
    return stored


def compare(stored, results):
    """Rows slower than the baseline by more than the noise; a row without a baseline is not one."""
    found = []
    for name, result in results.items():
        row = stored["rows"].get(name)
        if row is None:
            continue
        noise = max(LEAST_NOISE, SPREADS * row["spread"])
        if ratio(result) > row["ratio"] * (1 + noise):
            found.append(Slower(name, row["ratio"], ratio(result), noise))
    return found


def verdict(stored, results, machine, ours):
    """What the comparison says, as text, and whether it passes; `ours` are this library's rows."""
    if stored is None:
        return (
            "No baseline: benchmarks/baseline.json is not there, so nothing was compared. On a "
            "quiet machine, `python benchmarks/table.py --store` measures and writes it.",
            False,
        )
    lines = []
    if stored["machine"] != machine:
        lines.append(
            f"The baseline is of another machine ({stored['machine']}, this is {machine}): ratios "
            "may differ without any change in the code."
        )
    slower = compare(stored, results)
    own = [change for change in slower if change.row in ours]
    for row, then, now, noise in own:
        lines.append(
            f"SLOWER: {row} takes {now:.2f} matrix products a step, {100 * (now / then - 1):.0f} % "
            f"more than the {then:.2f} of the baseline (noise: {100 * noise:.0f} %)."
        )
    others = [change.row for change in slower if change.row not in ours]
    if others:
        lines.append(
            f"{', '.join(others)}: slower as well, though nothing here changes that; a busy "
            "machine or another version of a dependency is likely."
        )
    if own:
        lines.append(
            "If the machine was busy, run `make bench` again. Otherwise find the change: `git "
            "bisect run python benchmarks/table.py --check --rows ROW`. If the cost is meant, "
            "store a new baseline with `python benchmarks/table.py --store` and say why in the "
            "commit."
        )
    new = [name for name in results if name not in stored["rows"]]
    if new:
        lines.append(f"Not in the baseline, and not compared: {', '.join(new)}.")
    compared = len(results) - len(new)
    if compared and not slower:
        lines.append("Nothing is slower than the baseline by more than the noise.")
    return "\n".join(lines), compared > 0 and not own
