"""The tables in `tables/`, each a file with its source in the first line and names in the second.

They are facts copied from public tables, most of them from packages of R; `simulated` makes the
data of the problems that have no table.
"""

from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent / "tables"


def table(name: str) -> np.ndarray:
    """The numbers of `tables/NAME.csv`, a row for each line.

    Example: `table("faithful")` has the shape (272, 2).
    """
    return np.loadtxt(HERE / f"{name}.csv", delimiter=",", skiprows=2)


def source(name: str) -> str:
    """Where a table is from."""
    with (HERE / f"{name}.csv").open() as file:
        return file.readline().removeprefix("#").strip()


def repeated(name: str) -> np.ndarray:
    """A table whose last column says how often the row occurs, written out row by row."""
    *columns, counts = table(name).T
    return np.repeat(np.stack(columns, axis=1), counts.astype(int), axis=0)
