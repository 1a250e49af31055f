"""Stored claims of runs before version 0.2 in today's terms, from what was stored and nothing else.

Such a gallery has claims that hold or do not, and no record of the runs. A claim is ours where its
words for the paper begin with "not": not given, not compared, not in the paper. What was compared,
and its share of the paper's budget, follow from the `desk` preset and the table of scores; from
this table, too, whether seeds or standard errors overlap. Two kinds of claims are withdrawn, and
kept as such with the run: those of an ALWS-A whose kernel never began to adapt, and Fréchet
distances of fewer pictures than twice the features. A figure that shows such distances is drawn
anew, from the table.
"""

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from alws_paper.claim import Claim, Scale, all_of, is_lower, settled
from alws_paper.gallery import RECORD, TABLE, write_record
from alws_paper.images.claims import grouped
from alws_paper.images.curves import Point, curve_of
from alws_paper.images.figure import scores_alone
from alws_paper.images.grid import Finished
from alws_paper.images.plan import FEATURES, LENET, Cell
from alws_paper.images.plan import PAPER as PAPER_EPOCHS
from alws_paper.run import Experiment, commit

Rows = list[dict[str, str]]

OURS, LIKELIHOOD = "ALWS-A", "held-out likelihood"
COLUMNS = {"Fréchet distance": "frechet", "kernel distance": "kernel", LIKELIHOOD: "log_likelihood"}
APART = 0.05
"""The p-value from which on paired tests do not tell two methods apart."""


def relabel(gallery: Path, experiments: Mapping[str, Experiment]) -> dict[str, int]:
    """Rewrite every `claims.json` that has claims without a source; how many it then has.

    Example: `relabel(Path("docs/gallery"), EXPERIMENTS)`; a second time it changes nothing.
    """
    found = {}
    for path in sorted(gallery.glob("*/claims.json")):
        stored = json.loads(path.read_text())
        if all("source" in claim for claim in stored):
            continue
        page = experiments[path.parent.name]
        record = _record(path, page)
        rows = _table(path.parent / TABLE)
        scale = page.scale(page.settings("desk"))
        withdrawn, claims = [], []
        for one in stored:
            claim = Claim(**one, source="ours" if _is_ours(one["paper"]) else "paper")
            why = _withdraw(claim, record["settings"], rows)
            if why:
                withdrawn.append({"claim": claim.claim, "why": why})
            else:
                claims.append(asdict(_decided(claim, scale, record["settings"], rows)))
        write_record(path.parent, record | ({"withdrawn": withdrawn} if withdrawn else {}))
        path.write_text(json.dumps(claims, indent=2, ensure_ascii=False))
        if _hide_frechet(path.parent / TABLE, record["settings"], rows):
            shown = [_finished(r) for r in rows if not _never_adapted(r, record["settings"])]
            drawn = scores_alone(grouped(shown), scale.compared)
            drawn.savefig(path.with_name("figure.png"), dpi=170, metadata={"Software": None})
        found[page.name] = len(claims)
    return found


def _record(path: Path, page: Experiment) -> dict[str, Any]:
    """What is known of the run: its record, or the `desk` preset and the commit that stored it."""
    known = path.parent / RECORD
    if known.exists():
        return json.loads(known.read_text())
    return {
        "experiment": page.name,
        "preset": "desk",
        "commit": commit(path),
        "settings": asdict(page.settings("desk")),
    }


def _is_ours(words: str) -> bool:
    return words.startswith("not ") or "bar: rank correlation" in words


def _table(path: Path) -> Rows:
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def _of(claim: Claim, rows: Rows) -> Rows:
    """The rows that a claim is about: those of its data set and generator, if it names them."""
    named = re.match(r"([\w-]+), ([\w-]+): ", claim.claim)
    if named:
        return [r for r in rows if (r["dataset"], r["generator"]) == named.groups()]
    dataset = re.match(r"([\w-]+): ", claim.claim)
    return [r for r in rows if dataset is None or r["dataset"] == dataset[1]]


def _few_pictures(dataset: str, settings: Mapping[str, Any]) -> bool:
    name = "scored" if dataset in LENET else "scored_slowly"
    return settings[name] < 2 * FEATURES[dataset in LENET]


def _withdraw(claim: Claim, settings: Mapping[str, Any], rows: Rows) -> str:
    """Why a claim is withdrawn; empty if it is not."""
    about = _of(claim, rows)
    datasets = {row["dataset"] for row in about}
    if "Fréchet" in claim.claim and any(_few_pictures(name, settings) for name in datasets):
        return "the Fréchet distance was of fewer pictures than twice the features"
    for row in about:
        if OURS in claim.claim and _never_adapted(row, settings):
            return f"the run ended at epoch {float(row['epochs']):.2g}, before ALWS-A adapted"
    return ""


def _never_adapted(row: Mapping[str, str], settings: Mapping[str, Any]) -> bool:
    """Whether a row is of an ALWS-A that was ALWS-F to its end."""
    usual = settings.get("adapt_after_epochs", 0.0)
    waits = settings.get("few_adapt_after", {}).get(row["dataset"], usual)
    return row["method"] == OURS and float(row["epochs"]) <= waits


def _decided(claim: Claim, scale: Scale, settings: Mapping[str, Any], rows: Rows) -> Claim:
    """The claim with what was compared, and with the outcome that its run can bear."""
    about = _of(claim, rows)
    if not about:
        return settled(_by_paired_tests(claim), scale)
    epochs = [float(r["epochs"]) for r in about if r["method"].startswith("ALWS")]
    compared = f"{scale.compared}; ALWS to epoch {max(epochs):.2g} of the paper's {PAPER_EPOCHS}"
    sizes = {
        round(int(r["steps"]) / float(r["epochs"]) * settings["batch_size"])
        for r in about
        if r.get("steps")
    }
    if len(sizes) == 1:
        compared = compared.replace("all training images", f"all {sizes.pop():,} training images")
    if settings.get("adapt_criterion", "objective") != "objective":
        compared += (
            f"; ALWS-A not as published: adapted by the {settings['adapt_criterion']}'s criterion "
            f"at {settings['adapt_rate']:g}, every {settings['adapt_every']} steps"
        )
    if claim.measured.startswith("not measured"):
        claim = replace(claim, holds=None, undecided="not measured")
    elif claim.source == "ours":
        claim = _by_overlap(claim, about)
    return settled(claim, Scale(compared, max(epochs) / PAPER_EPOCHS))


def _by_paired_tests(claim: Claim) -> Claim:
    """Undecided where it does not hold and its own paired tests did not tell the two apart."""
    values = [float(p) for p in re.findall(r"p = ([\d.e+-]*\d)", claim.measured)]
    if claim.holds or "paired t-test" not in claim.measured or max(values) < APART:
        return claim
    return replace(claim, holds=None, undecided="the paired tests do not tell the two apart")


def _by_overlap(claim: Claim, rows: Rows) -> Claim:
    """Decided by all seeds with their standard errors, where the claim is of a column of scores."""
    what = next((name for name in COLUMNS if name in claim.claim), None)
    if what is None or OURS not in claim.claim:
        return claim
    column, sign = COLUMNS[what], -1.0 if what == LIKELIHOOD else 1.0
    column = f"refitted_{column}" if "refitted" in claim.claim else column

    def seeds(method: str) -> tuple[list[float], list[float]]:
        of = [r for r in rows if r["method"] == method and r[column]]
        errors = [float(r[f"{column}_error"]) for r in of if f"{column}_error" in r]
        return [sign * float(r[column]) for r in of], errors

    names = {r["method"] for r in rows if r[column]} - {"WGAN-GP"}
    ours = ["ALWS-F", OURS] if "both" in claim.claim else [OURS]
    pairs = [(seeds(mine), seeds(rival)) for mine in ours for rival in sorted(names - set(ours))]
    holds = all_of([is_lower(a, b, c, d) for (a, c), (b, d) in pairs])
    why = "seeds or standard errors overlap" if holds is None else ""
    return replace(claim, holds=holds, undecided=why)


def _hide_frechet(path: Path, settings: Mapping[str, Any], rows: Rows) -> bool:
    """Take out of the table the Fréchet distances that are not shown; whether there were any."""
    few = [r for r in rows if _few_pictures(r["dataset"], settings)]
    for row in few:
        row["frechet"] = ""
    if few:
        lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    return bool(few)


def _finished(row: Mapping[str, str]) -> Finished:
    """The last point of a run, from its row of the table."""
    values = {name: float(row.get(name) or "nan") for name in Point._fields}
    point = Point(**values | {"steps": int(row.get("steps") or 0)})  # pyright: ignore
    cell = Cell(row["dataset"], row["generator"], row["method"], int(row["seed"]))
    return Finished(cell, curve_of([point]), np.zeros((0, 1, 32, 32), np.float32), {})


__all__ = ["RECORD", "relabel"]
