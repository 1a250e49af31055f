"""The gallery: figure and claims of each experiment's last `desk` run, and the README's table."""

import json
import shutil
from pathlib import Path

from alws.experiments.experiment import RunError

START, END = "<!-- claims: start -->", "<!-- claims: end -->"


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
            f"the gallery shows desk runs, got preset {record['preset']!r}. Use `alws run "
            f"{record['experiment']}`."
        )
    target = gallery / record["experiment"]
    target.mkdir(parents=True, exist_ok=True)
    for name in wanted[1:]:
        shutil.copyfile(directory / name, target / name)
    if (directory / TABLE).exists():
        shutil.copyfile(directory / TABLE, target / TABLE)
    return target


def claims_table(gallery: Path) -> str:
    """A Markdown table of every claim in the gallery."""
    rows = ["| experiment | claim | paper | measured | holds |", "|---|---|---|---|---|"]
    for path in sorted(gallery.glob("*/claims.json")):
        name = path.parent.name
        for claim in json.loads(path.read_text()):
            cells = [claim["claim"], claim["paper"], claim["measured"]]
            cells = [str(cell).replace("|", "\\|") for cell in cells]
            holds = "yes" if claim["holds"] else "**no**"
            rows.append(f"| [{name}]({path.parent.as_posix()}) | {' | '.join(cells)} | {holds} |")
    return "\n".join(rows)


def update_readme(gallery: Path, readme: Path) -> None:
    """Put the claims table between the README's two markers."""
    text = readme.read_text()
    if START not in text or END not in text:
        raise RunError(f"{readme} must hold the lines {START} and {END} around the table.")
    before, after = text.split(START)[0], text.split(END)[1]
    readme.write_text(f"{before}{START}\n{claims_table(gallery)}\n{END}{after}")
