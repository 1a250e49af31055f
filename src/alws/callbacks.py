"""What runs beside a fit: a progress bar, a metrics file, early stopping, or a user's function.

A callback is called with a `Report` every `Settings.measure_every` steps; one that returns True
stops the fit.
"""

import json
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from alws import devices


class Report(NamedTuple):
    """Where a fit stands: the step, its metrics as plain numbers, and the model."""

    step: int
    steps: int
    metrics: dict[str, float]
    model: Any


Callback = Callable[[Report], bool | None]


@dataclass
class EarlyStopping:
    """Stop when a score has not risen by `least` for `patience` reports.

    The score is the mean of J over the last `window` reports, or `score(model)` if given: a
    held-out log likelihood, where there is one, is the better judge.

    Example: `fit(..., callbacks=[EarlyStopping(patience=20)])`.
    """

    patience: int = 20
    least: float = 1e-3
    window: int = 10
    score: Callable[[Any], float] | None = None
    best: float = field(default=-np.inf, init=False)
    waited: int = field(default=0, init=False)
    recent: list[float] = field(default_factory=list, init=False)

    def __call__(self, report: Report) -> bool:
        if self.score is None:
            self.recent = [*self.recent, report.metrics["objective"]][-self.window :]
            if len(self.recent) < self.window:
                return False
            score = float(np.mean(self.recent))
        else:
            score = float(self.score(report.model))
        if score > self.best + self.least:
            self.best, self.waited = score, 0
        else:
            self.waited += 1
        return self.waited >= self.patience


class MetricsFile:
    """Append every report to a file, one JSON object a line.

    `trace(model)`, if given, is a dictionary of numbers that are kept with the metrics. Of many
    processes, only the first one writes.

    Example: `fit(..., callbacks=[MetricsFile("run/metrics.jsonl", lambda m: {"mean": m.mean})])`.
    """

    def __init__(self, path: str | Path, trace: Callable[[Any], dict[str, Any]] | None = None):
        self.path = Path(path)
        self.trace = trace

    def line(self, report: Report) -> str:
        """What is kept of a report."""
        traced = {} if self.trace is None else self.trace(report.model)
        numbers = {**report.metrics, **{name: float(value) for name, value in traced.items()}}
        clean = {k: (v if np.isfinite(v) else None) for k, v in numbers.items()}
        return json.dumps({**clean, "step": report.step})

    def __call__(self, report: Report) -> None:
        if devices.is_first():
            line = self.line(report)
            with self.path.open("a") as file:
                file.write(line + "\n")


class ProgressBar:
    """Steps done, J and the time left; silent when the output is not a terminal."""

    def __init__(self, steps: int, start: int, show: bool | None):
        wanted = sys.stderr.isatty() if show is None else show
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("J {task.fields[objective]:.4g}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        # Reports of a slow fit are minutes apart: no sample of its speed may be forgotten.
        self.progress = Progress(
            *columns,
            console=Console(stderr=True),
            disable=not wanted,
            speed_estimate_period=math.inf,
        )
        self.task = self.progress.add_task(
            "fit", total=steps, completed=start, objective=float("nan")
        )

    def __call__(self, report: Report) -> None:
        self.progress.update(
            self.task, completed=report.step, objective=report.metrics["objective"]
        )


MANY_REFUSED = 0.1
"""The share of refused steps from which on a fit is not to be trusted."""


def warn_of_refusals(refused: int, steps: int) -> None:
    """Say so when many of a fit's steps were refused: θ may have stood still.

    Example: `warn_of_refusals(1234, 1300)` warns, `warn_of_refusals(3, 1300)` does not.
    """
    if refused > MANY_REFUSED * steps:
        warnings.warn(
            f"the gradient must be finite; on {refused} of {steps} steps it was not, and they were "
            "left out, so the fit may have stood still. Check that `log_joint` is finite on every "
            "draw at the fitted parameters (log of 0, overflow), or take smaller steps.",
            RuntimeWarning,
            stacklevel=4,
        )
