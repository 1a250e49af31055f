"""The gallery: figure, claims and settings of each experiment's last `desk` run, and their tables.

The paper's claims stand first, our own bars after them. Of either, those that hold and those that
do not are counted; those that a run could not decide are told apart.
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from alws_paper.claim import outcome
from alws_paper.run import RunError

START, END = "<!-- claims: start -->", "<!-- claims: end -->"
HEAD = """# Claims

Every claim against the last `desk` run of its experiment; `alws-paper publish` writes this page. A
claim holds, does not hold, or is undecided, where seeds or standard errors overlap, methods were
never at equal epochs, or a claim of the paper was tried on less than a tenth of its budget. The
settings and the commit of each run are in its folder's `run.json`.
"""
SECTIONS = {"paper": "Claims of the paper", "ours": "Bars of our own"}
NAMED = 3
"""How many claims that do not hold are named in the README; the gallery's table has them all."""
TABLE = "scores.csv"
"""What a comparison leaves beside figure and claims: a line for each of its runs."""
RECORD = "run.json"
"""In the gallery: experiment, preset, seed, version, commit and settings of a run, its seconds."""
GOES_ON = ("images-at-length",)
"""Comparisons whose finished runs are kept, so that another machine goes on with those missing."""
STORED = ("curve.jsonl", "samples.npz", "done.json")
"""The files that a finished run of a comparison is read from, the last says that it is finished."""
CELLS = "cells"
"""In the gallery: the finished runs of a comparison that goes on, each in a folder of its own."""


def publish(directory: Path, gallery: Path) -> Path:
    """Copy figure, claims, settings and, if any, the table and the runs of a comparison."""
    wanted = ("settings.json", "claims.json", "figure.png")
    missing = [name for name in wanted if not (directory / name).exists()]
    if missing:
        raise RunError(f"{directory} is not a finished run: it has no {', '.join(missing)}.")
    record = _of_run(directory / "settings.json", ("experiment", "preset"))
    if record["preset"] != "desk":
        raise RunError(
            f"the gallery shows desk runs, got preset {record['preset']!r}. Use `alws-paper "
            f"run {record['experiment']}`."
        )
    if not (directory / "figure.png").read_bytes().startswith(PNG):
        raise RunError(
            f"{directory / 'figure.png'} must be a PNG picture. Remove claims.json, and "
            f"`alws-paper resume {directory}` draws it again."
        )
    if not all("source" in claim for claim in _of_run(directory / "claims.json")):
        raise RunError(
            f"the claims of {directory} are of a version before 0.2 and do not say whose they are. "
            f"`alws-paper resume {directory}` makes them anew."
        )
    took = directory / "run.json"
    timed = took.exists() and record["experiment"] not in GOES_ON  # its runs have their own
    seconds = _of_run(took, ("seconds",)) if timed else {}
    target = gallery / record["experiment"]
    target.mkdir(parents=True, exist_ok=True)
    for name in (*wanted[1:], TABLE):
        if (directory / name).exists():
            shutil.copyfile(directory / name, target / name)
    if record["experiment"] in GOES_ON:
        copy_cells(directory, target / CELLS)
    write_record(target, record | seconds)
    return target


PNG = b"\x89PNG\r\n\x1a\n"
"""How every PNG file begins."""


def _of_run(path: Path, names: tuple[str, ...] = ()) -> Any:
    """What a file of a run says: an object with these names, or a list of objects for none."""
    try:
        found = json.loads(path.read_text())
        if names:
            return dict(found) | {name: found[name] for name in names}
        return [dict(one) for one in found]
    except Exception as error:  # whatever its text does to the reader, the file is at fault
        raise RunError(
            f"{path} cannot be read as a file of a run: {error!r}. Put an undamaged copy in its "
            "place, or run the experiment again."
        ) from error


def copy_cells(source: Path, target: Path) -> list[str]:
    """Copy the finished runs of a comparison that another directory has not; their names.

    Example: `copy_cells(Path("docs/gallery/images-at-length/cells"), Path("runs/mine"))`.
    """
    copied = []
    for done in sorted(source.glob("*/done.json")):
        name = done.parent.name
        if (target / name / "done.json").exists():
            continue
        (target / name).mkdir(parents=True, exist_ok=True)
        for file in STORED:
            shutil.copyfile(done.with_name(file), target / name / file)
        copied.append(name)
    return copied


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Keep beside an experiment's claims what its run was."""
    (folder / RECORD).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def claims_tables(gallery: Path) -> str:
    """Two Markdown tables of every claim in the gallery, with links from the gallery's folder."""
    parts = []
    for source, title in SECTIONS.items():
        rows = [f"## {title}", "", *_head("experiment claim paper measured compared outcome")]
        for name, claims in _all_claims(gallery).items():
            for claim in claims:
                if claim["source"] == source:
                    rows.append(f"| [{name}]({name}) | {_row(claim)} |")
        parts.append("\n".join(rows))
    withdrawn = [
        f"| [{path.parent.name}]({path.parent.name}) | {_cell(one['claim'])} | {one['why']} |"
        for path in sorted(gallery.glob(f"*/{RECORD}"))
        for one in json.loads(path.read_text()).get("withdrawn", [])
    ]
    if withdrawn:
        parts.append("\n".join(["## Withdrawn", "", *_head("experiment claim why"), *withdrawn]))
    return "\n\n".join(parts)


def summary_table(gallery: Path, link: str) -> str:
    """A Markdown table with a row for each experiment: its version, the paper's claims, our bars.

    `link` is the way to the gallery from the file that holds the table.
    """
    columns = "experiment|version|the paper's claims|which of them do not hold|our own bars"
    rows = _head(columns, "|")
    every = [claim for claims in _all_claims(gallery).values() for claim in claims]
    rows.append(f"| all |  | {_tally(every, 'paper')} |  | {_tally(every, 'ours')} |")
    for name, claims in _all_claims(gallery).items():
        failed = [
            _cell(claim["claim"])
            for claim in claims
            if claim["source"] == "paper" and claim["holds"] is False
        ]
        if len(failed) > NAMED:
            more = f"[{len(failed) - NAMED + 1} more]({link}/README.md)"
            failed = [*failed[: NAMED - 1], more]
        cells = _version(gallery / name), _tally(claims, "paper"), "; ".join(failed)
        rows.append(f"| [{name}]({link}/{name}) | {' | '.join(cells)} | {_tally(claims, 'ours')} |")
    return "\n".join(rows)


def update_readme(gallery: Path, readme: Path) -> None:
    """Put the summary between the README's two markers, and the whole tables into the gallery's."""
    text = readme.read_text()
    if START not in text or END not in text:
        raise RunError(f"{readme} must hold the lines {START} and {END} around the table.")
    before, after = text.split(START)[0], text.split(END)[1]
    link = Path(os.path.relpath(gallery, readme.parent)).as_posix()
    readme.write_text(f"{before}{START}\n{summary_table(gallery, link)}\n{END}{after}")
    (gallery / "README.md").write_text(f"{HEAD}\n{claims_tables(gallery)}\n")


def _version(folder: Path) -> str:
    """Of the code that made the run; those before 0.2 kept none."""
    path = folder / RECORD
    record = json.loads(path.read_text()) if path.exists() else {}
    return record.get("version", "before 0.2")


def _tally(claims: Iterable[dict[str, Any]], source: str) -> str:
    """How many of those of this source hold and do not, and how many are undecided."""
    holds = [claim["holds"] for claim in claims if claim["source"] == source]
    if not holds:
        return "none"
    decided = [one for one in holds if one is not None]
    parts = [f"{sum(decided)} of {len(decided)} hold"] if decided else []
    left = len(holds) - len(decided)
    return ", ".join([*parts, f"{left} undecided"] if left else parts)


def _row(claim: dict[str, Any]) -> str:
    """The cells of a claim in the whole table."""
    shown = outcome(claim["holds"])
    shown = f"**{shown}**" if claim["holds"] is False else shown
    if claim["undecided"]:
        shown += f": {claim['undecided']}"
    cells = [claim[name] for name in ("claim", "paper", "measured", "compared")]
    return " | ".join(map(_cell, [*cells, shown]))


def _head(names: str, separator: str = " ") -> list[str]:
    columns = names.split(separator)
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


def _all_claims(gallery: Path) -> dict[str, list[dict[str, Any]]]:
    paths = sorted(gallery.glob("*/claims.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
