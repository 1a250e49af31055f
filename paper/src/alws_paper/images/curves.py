"""Curves of scores during training, and their comparison at equal epochs and at equal time.

All cells are scored at the same epochs, so curves are compared at the largest epoch that every one
of them was scored at, without interpolation. Equal time is the shortest training time among the
curves; the others are interpolated there, linearly in time.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from alws_paper.claim import is_lower

Score = Literal["frechet", "kernel"]
Column = Score | Literal["kernel_error"]
NOT_SHOWN = "not shown"
"""In a file of points, a score that its pictures were too few for."""
Axis = Literal["epochs", "seconds"]


class Point(NamedTuple):
    """Where a run stood: steps, epochs and seconds of training, and the scores."""

    steps: int
    epochs: float
    seconds: float
    frechet: float
    kernel: float
    kernel_error: float


class Curve(NamedTuple):
    """The points of a run, in order.

    Scores of a generator that is not finite are infinite, scores that are not shown NaN.
    """

    steps: Int[np.ndarray, " points"]
    epochs: Float[np.ndarray, " points"]
    seconds: Float[np.ndarray, " points"]
    frechet: Float[np.ndarray, " points"]
    kernel: Float[np.ndarray, " points"]
    kernel_error: Float[np.ndarray, " points"]


def curve_of(points: Sequence[Point]) -> Curve:
    """Points as arrays, in the order of their steps, the later of two at the same step.

    Example: `curve_of(read_points(path)).frechet[-1]`.
    """
    merged = {point.steps: point for point in points}
    columns = np.array([merged[steps] for steps in sorted(merged)], float).reshape(-1, 6)
    return Curve(columns[:, 0].astype(int), *columns[:, 1:].T)


def read_points(path: Path, most_steps: int | None = None) -> list[Point]:
    """The points in a file, up to `most_steps`; a last line that was cut short is left out.

    Example: `read_points(run / "curve.jsonl")`.
    """
    points = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            fields = json.loads(line)
        except json.JSONDecodeError:
            continue
        special = {None: np.inf, NOT_SHOWN: np.nan}
        numbers: Any = {k: special.get(v, v) for k, v in fields.items()}
        points.append(Point(**numbers))
    return [p for p in points if most_steps is None or p.steps <= most_steps]


def write_points(path: Path, points: Sequence[Point]) -> None:
    """Write a file anew; a crash leaves the old file or the new."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text("".join(_line(point) for point in points))
    os.replace(temporary, path)


def append_point(path: Path, point: Point) -> None:
    """Add a line to a file."""
    with path.open("a") as file:
        file.write(_line(point))


def _line(point: Point) -> str:
    fields = {k: v if np.isfinite(v) else None for k, v in point._asdict().items()}
    fields |= {k: NOT_SHOWN for k, v in point._asdict().items() if np.isnan(v)}
    return json.dumps(fields) + "\n"


def last_common_epoch(curves: Sequence[Curve]) -> float:
    """The largest epoch that every curve has a point at; NaN if there is none.

    Example: 2.0 for curves at epochs (1, 2, 4) and (1, 2, 3).
    """
    common = set.intersection(*(set(curve.epochs.tolist()) for curve in curves))
    return max(common, default=np.nan)


def last_common_time(curves: Sequence[Curve]) -> float:
    """The seconds of training that every curve reached."""
    return min((float(curve.seconds[-1]) for curve in curves), default=np.nan)


def score_at(curve: Curve, axis: Axis, place: float, score: Column) -> float:
    """A curve's score at an epoch it was scored at, or at any time between two of its points.

    NaN where the curve does not reach.

    Example: `score_at(curve, "seconds", 60.0, "frechet")`.
    """
    values = getattr(curve, score)
    if axis == "epochs":
        found = np.flatnonzero(curve.epochs == place)
        return float(values[found[-1]]) if len(found) else np.nan
    if not curve.seconds[0] <= place <= curve.seconds[-1]:
        return np.nan
    after = int(np.searchsorted(curve.seconds, place))
    if curve.seconds[after] == place:
        return float(values[after])
    before, now = values[after - 1], values[after]
    if not np.isfinite([before, now]).all():
        return np.inf
    pair = curve.seconds[after - 1 : after + 1]
    return float(np.interp(place, pair, [before, now]))


class Compared(NamedTuple):
    """Every method's score of every seed, with standard errors, at one place on an axis."""

    axis: Axis
    place: float
    scores: dict[str, list[float]]
    errors: Mapping[str, list[float]] = MappingProxyType({})

    @property
    def medians(self) -> dict[str, float]:
        """The median over seeds of each method."""
        return {name: float(np.median(values)) for name, values in self.scores.items()}

    def best(self, methods: Sequence[str]) -> str | None:
        """Which of these methods has the lowest median; None if one of them has no score."""
        medians = {name: self.medians.get(name, np.nan) for name in methods}
        if not medians or np.isnan(list(medians.values())).any():
            return None
        return min(medians, key=lambda name: medians[name])

    def lower(self, ours: str, rival: str) -> bool | None:
        """Whether all seeds of one method are below all of another, standard errors included."""
        errors = (self.errors.get(name, []) for name in (ours, rival))
        return is_lower(self.scores[ours], self.scores[rival], *errors)


def compare(curves: Mapping[str, Sequence[Curve]], axis: Axis, score: Score) -> Compared:
    """Every method at the largest epoch, or the longest time, that all curves reached.

    Example: `compare({"VAE": [a, b], "ALWS-A": [c, d]}, "epochs", "frechet").medians`.
    """
    every = [curve for of_method in curves.values() for curve in of_method]
    place = last_common_epoch(every) if axis == "epochs" else last_common_time(every)
    names: list[Any] = [score, "kernel_error"] if score == "kernel" else [score]
    found = [
        {name: [score_at(c, axis, place, column) for c in of] for name, of in curves.items()}
        for column in names
    ]
    return Compared(axis, place, *found)


__all__ = [
    "Axis",
    "Compared",
    "Curve",
    "Point",
    "Score",
    "append_point",
    "compare",
    "curve_of",
    "last_common_epoch",
    "last_common_time",
    "read_points",
    "score_at",
    "write_points",
]
