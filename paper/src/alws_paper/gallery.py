"""The gallery: figure and claims of each experiment's last `desk` run, and tables of the claims."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from alws_paper.run import RunError

START, END = "<!-- claims: start -->", "<!-- claims: end -->"
HEAD = """# Claims

Every claim against the last `desk` run of its experiment; `alws-paper publish` writes this page.
"""
NAMED = 4
"""How many claims that do not hold are named in the README; the gallery's table has them all."""
TABLE = "scores.csv"
"""What a comparison leaves beside figure and claims: a line for each of its runs."""


def publish(directory: Path, gallery: Path) -> Path:
    """Copy figure, claims and, if there is one, the table of a desk run to `gallery/NAME/`."""
    wanted = ("settings.json", "claims.json", "figure.png")
    missing = [name for name in wanted if not (directory / name).exists()]
    if missing:
        raise RunError(f"{directory} is not a finished run: it has no {', '.join(missing)}.")
    record = json.loads((directory / "settings.json").read_text())
    if record["preset"] != "desk":
        raise RunError(
            f"the gallery shows desk runs, got preset {record['preset']!r}. Use `alws-paper "
            f"run {record['experiment']}`."
        )
    target = gallery / record["experiment"]
    target.mkdir(parents=True, exist_ok=True)
    for name in wanted[1:]:
        shutil.copyfile(directory / name, target / name)
    if (directory / TABLE).exists():
        shutil.copyfile(directory / TABLE, target / TABLE)
    return target


def claims_table(gallery: Path) -> str:
    """A Markdown table of every claim in the gallery, with links from the gallery's own folder."""
    rows = ["| experiment | claim | paper | measured | holds |", "|---|---|---|---|---|"]
    for name, claims in _all_claims(gallery).items():
        for claim in claims:
            cells = " | ".join(_cell(claim[key]) for key in ("claim", "paper", "measured"))
            holds = "yes" if claim["holds"] else "**no**"
            rows.append(f"| [{name}]({name}) | {cells} | {holds} |")
    return "\n".join(rows)


def summary_table(gallery: Path, link: str) -> str:
    """A Markdown table with a row for each experiment: how many claims hold, and which do not.

    `link` is the way to the gallery from the file that holds the table.
    """
    rows = ["| experiment | claims that hold | what does not hold |", "|---|---|---|"]
    for name, claims in _all_claims(gallery).items():
        failed = [_cell(claim["claim"]) for claim in claims if not claim["holds"]]
        holding = f"{len(claims) - len(failed)} of {len(claims)}"
        if len(failed) > NAMED:
            more = f"[{len(failed) - NAMED + 1} more]({link}/README.md)"
            failed = [*failed[: NAMED - 1], more]
        rows.append(f"| [{name}]({link}/{name}) | {holding} | {'; '.join(failed)} |")
    return "\n".join(rows)


def update_readme(gallery: Path, readme: Path) -> None:
    """Put the summary between the README's two markers, and the whole table into the gallery's."""
    text = readme.read_text()
    if START not in text or END not in text:
        raise RunError(f"{readme} must hold the lines {START} and {END} around the table.")
    before, after = text.split(START)[0], text.split(END)[1]
    link = Path(os.path.relpath(gallery, readme.parent)).as_posix()
    readme.write_text(f"{before}{START}\n{summary_table(gallery, link)}\n{END}{after}")
    (gallery / "README.md").write_text(f"{HEAD}\n{claims_table(gallery)}\n")


def _all_claims(gallery: Path) -> dict[str, list[dict[str, Any]]]:
    paths = sorted(gallery.glob("*/claims.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
