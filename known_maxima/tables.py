"""The tables in `tables/`, each a file with its source in the first line and names in the second.

They are facts copied from public tables, most of them from packages of R. Tables of many rows are
not here; they are read from `$ALWS_DATA/known`.
"""

import csv
import os
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent / "tables"


def table(name: str) -> np.ndarray:
    """The numbers of `tables/NAME.csv`, a row for each line.

    Example: `table("faithful")` has the shape (272, 2).
    """
    return np.loadtxt(HERE / f"{name}.csv", delimiter=",", skiprows=2)


def columns(name: str) -> dict[str, np.ndarray]:
    """The columns of `tables/NAME.csv` by name.

    Example: `columns("cbpp")["herd"]` has 56 entries.
    """
    with (HERE / f"{name}.csv").open() as file:
        names = file.readlines()[1].strip().split(",")
    return dict(zip(names, table(name).T, strict=True))


def large(name: str) -> dict[str, np.ndarray]:
    """The columns of `$ALWS_DATA/known/NAME.csv`, of numbers or text.

    Example: `large("Contraception")["district"]` has 1934 entries.
    """
    path = Path(os.environ.get("ALWS_DATA", "~/.cache/alws/data")).expanduser() / "known"
    path = path / f"{name}.csv"
    if not path.exists():
        raise FileNotFoundError(
            f"the table {name} must be at {path}, where it is not. Write it from R, or set "
            "ALWS_DATA to a directory that has `known`."
        )
    with path.open() as file:
        names, *rows = csv.reader(file)
    found = {n: np.array(column) for n, column in zip(names, zip(*rows, strict=True), strict=True)}

    def numbers(column: np.ndarray) -> np.ndarray:
        try:
            return column.astype(float)
        except ValueError:
            return column

    return {n: numbers(column) for n, column in found.items()}


def source(name: str) -> str:
    """Where a table is from."""
    with (HERE / f"{name}.csv").open() as file:
        return file.readline().removeprefix("#").strip()


def repeated(name: str) -> np.ndarray:
    """A table whose last column says how often the row occurs, written out row by row."""
    *columns, counts = table(name).T
    return np.repeat(np.stack(columns, axis=1), counts.astype(int), axis=0)
