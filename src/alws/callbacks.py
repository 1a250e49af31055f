"""What runs beside a fit: a progress bar, a metrics file, early stopping, or a user's function.

A callback is called with a `Report` every `Settings.measure_every` steps; one that returns True
stops the fit.
"""

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from alws import devices
from alws.values import at_least, function, is_number, number


class Report(NamedTuple):
    """Where a fit stands: the step, its metrics as plain numbers, and the model.

    `steps` is how many there will be; 0 while nobody knows, in a fit that chooses for itself.
    """

    step: int
    steps: int
    metrics: dict[str, float]
    model: Any


Callback = Callable[[Report], bool | None]


class Checked:
    """A callback whose answers are looked at: only True stops a fit, and None or False do not.

    What it raises ends the fit, but not after the last step: the result is there, and is given back
    with a warning.
    """

    def __init__(self, callback: Callback):
        self.callback = callback

    def __call__(self, report: Report) -> bool:
        try:
            answer = self.callback(report)
        except Exception as error:
            if report.step != report.steps:
                raise
            warnings.warn(
                f"the callback {_name(self.callback)} must not fail; after the last step it raised "
                f"{error!r}. The result is given back all the same.",
                RuntimeWarning,
                stacklevel=2,
            )
            return True
        if isinstance(answer, np.ndarray | jax.Array) and answer.shape == ():
            answer = answer.item()
        if answer is not None and not isinstance(answer, bool | np.bool_):
            raise TypeError(
                f"the callback {_name(self.callback)} must return True to stop the fit, or False "
                f"or None to go on; got {answer!r:.100}."
            )
        return bool(answer)


def checked(callbacks: Any) -> tuple[Checked, ...]:
    """The callbacks of a fit, their answers looked at; refuse what are none.

    Example: `checked([alws.EarlyStopping()])`.
    """
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str | bytes):
        remedy = f"Write `callbacks=[{_name(callbacks)}]`" if callable(callbacks) else "Use `[]`"
        raise TypeError(
            f"`callbacks` must be a list of functions of a report, got {callbacks!r:.100}. "
            f"{remedy}{' for none' if callbacks is None else ''}."
        )
    for callback in callbacks:
        if isinstance(callback, type) or not callable(callback):
            what = f"the class {callback.__name__}" if isinstance(callback, type) else callback
            remedy = "Call it" if isinstance(callback, type) else "Leave it out"
            raise TypeError(
                f"`callbacks` must be functions of a report, got {what!s:.100}. {remedy}."
            )
    return tuple(Checked(callback) for callback in callbacks)


def _name(callback: Any) -> str:
    return getattr(callback, "__name__", type(callback).__name__)


@dataclass
class EarlyStopping:
    """Stop when a score no longer rises.

    Arguments:
        patience: how many reports in a row may bring no rise.
        least: how much the score must rise to count.
        window: of how many reports the mean of J is the score where none is given.
        score: `score(model)` in its place; a held-out log likelihood is the better judge.

    Example: `fit(..., callbacks=[EarlyStopping(patience=20)])`.
    """

    patience: int = 20
    least: float = 1e-3
    window: int = 10
    score: Callable[[Any], float] | None = None
    best: float = field(default=-np.inf, init=False)
    waited: int = field(default=0, init=False)
    recent: list[float] = field(default_factory=list, init=False)
    told: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        at_least("patience", self.patience, 1)
        at_least("window", self.window, 1)
        number("least", self.least, "at least 0", lambda least: 0 <= least < math.inf)
        if self.score is not None:
            function("score", self.score, "of the model, such as a held-out log likelihood")

    def __call__(self, report: Report) -> bool:
        if self.score is None:
            if not math.isfinite(report.metrics["objective"]):
                self._say_that_nothing_is_known()
                return False
            self.recent = [*self.recent, report.metrics["objective"]][-self.window :]
            if len(self.recent) < self.window:
                return False
            score = float(np.mean(self.recent))
        else:
            given = self.score(report.model)
            if not is_number(given):
                raise TypeError(f"`score(model)` must return one number, got {given!r:.100}.")
            score = float(given)
            if math.isnan(score):
                warnings.warn(
                    f"`score(model)` must be a number; at step {report.step} it is NaN, which "
                    "counts as no rise. Check it on `report.model`.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        if score > self.best + self.least:
            self.best, self.waited = score, 0
        else:
            self.waited += 1
        return self.waited >= self.patience

    def _say_that_nothing_is_known(self) -> None:
        """Once a fit, that it has no objective."""
        if not self.told:
            self.told = True
            warnings.warn(
                "`EarlyStopping` needs an objective, and this fit, by regressed scores, has none: "
                "it does not stop the fit. Give it `score`, such as a held-out log likelihood.",
                RuntimeWarning,
                stacklevel=3,
            )


class MetricsFile:
    """Append every report to a file, one JSON object a line.

    Of many processes, only the first one writes. A fit that goes on from a checkpoint writes the
    lines of steps that it does again once: their former ones are taken out, with what was half
    written.

    Arguments:
        path: the file; its folder is made if need be.
        trace: `trace(model)` is a dictionary of numbers that are kept with the metrics.

    Example: `fit(..., callbacks=[MetricsFile("run/metrics.jsonl", lambda m: {"mean": m.mean})])`.
    """

    def __init__(self, path: str | Path, trace: Callable[[Any], dict[str, Any]] | None = None):
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"`path` must be that of a file, got {path!r:.100}.")
        if trace is not None:
            function("trace", trace, "of the model, that gives a dictionary of numbers")
        self.path = Path(path)
        if "\0" in str(path):
            raise ValueError(f"`path` must be that of a file, got {path!r:.100}.")
        if self.path.is_dir():
            raise ValueError(f"`path` must be that of a file, got the folder {path}.")
        self.trace = trace
        self.last = 0

    def line(self, report: Report) -> str:
        """What is kept of a report."""
        traced = {} if self.trace is None else self.trace(report.model)
        if not isinstance(traced, Mapping):
            raise TypeError(
                f"`trace(model)` must return a dictionary of numbers, got {traced!r:.100}."
            )
        for name, value in traced.items():
            if not is_number(value) and not isinstance(value, bool | np.bool_):
                raise TypeError(
                    f"`trace(model)` must return a dictionary of numbers; {name!r} is "
                    f"{value!r:.100}. Give each entry of an array a name of its own."
                )
        numbers = {**report.metrics, **{name: float(value) for name, value in traced.items()}}
        clean = {k: (v if np.isfinite(v) else None) for k, v in numbers.items()}
        return json.dumps({**clean, "step": report.step})

    def __call__(self, report: Report) -> None:
        if devices.is_first():
            line = self.line(report)
            try:
                self._append(line, report.step)
            except OSError as error:
                warnings.warn(
                    f"the metrics file {self.path} could not be written ({error}). The fit goes "
                    "on; make room, or let it be written.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self.last = report.step

    def _append(self, line: str, step: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.last == 0 or step <= self.last:
            _take_out(self.path, step)
        with self.path.open("a") as file:
            file.write(line + "\n")


def _take_out(path: Path, step: int) -> None:
    """Cut off what a killed fit left at the file's end: half a line, and steps from this one on.

    A fit that begins, at step 1, does nothing again: what another fit wrote before it stays.
    """
    content = path.read_bytes() if path.is_file() else b""
    kept = content.rfind(b"\n") + 1
    if kept < len(content) and not (content[kept:].startswith(b"{") and content[-1:] != b"}"):
        content += b"\n"  # a whole line, or a file that is no fit's
        path.write_bytes(content)
        kept = len(content)
    while step > 1 and kept:
        begins = content.rfind(b"\n", 0, kept - 1) + 1
        if not _is_of_step(content[begins:kept], step):
            break
        kept = begins
    if kept < len(content):
        os.truncate(path, kept)


def _is_of_step(line: bytes, least: int) -> bool:
    """Whether this is the line of a report of step `least` or a later one."""
    try:
        return json.loads(line)["step"] >= least
    except (ValueError, TypeError, LookupError):
        return False


class ProgressBar:
    """Steps done, J or the nats left, the time left; silent when the output is not a terminal."""

    def __init__(self, steps: int, start: int, show: bool | None):
        wanted = sys.stderr.isatty() if show is None else show
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[told]}"),
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
        self.task = self.progress.add_task("fit", total=steps, completed=start, told="")

    def __call__(self, report: Report) -> None:
        objective = report.metrics["objective"]
        left = report.metrics.get("left", math.inf)
        told = f"J {objective:.4g}" if math.isfinite(objective) else ""
        if math.isfinite(left) and not told:
            told = f"about {left:.2g} nats left"
        elif math.isfinite(left):
            told = f"log likelihood {objective:.2f}, about {left:.2g} nats left"
        self.progress.update(self.task, completed=report.step, told=told)


MANY_REFUSED = 0.1
"""The share of refused steps from which on a fit is not to be trusted."""

MANY_OUTSIDE = 0.5
"""The share of the data outside the sleep samples from which on a fit is not to be trusted."""

FEWEST_STEPS = 50
"""How many steps a fit takes, at least, that is to come anywhere."""

MANY_REPLACED = 0.01
"""The share of replaced draws from which on a fit is not to be trusted."""

CAUSES = {
    "refused_by_prior": (
        "the gradient of `log_prior`",
        "Check that `log_prior(model)` has a finite slope at the fitted parameters (log of 0, "
        "overflow, the root of 0).",
    ),
    "refused_by_optimiser": (
        "the optimiser's update",
        "The gradients were finite, so check the optimiser: its learning rate, its schedule at "
        "every step, and what it divides by.",
    ),
    "refused_by_adaptation": (
        "the step on the regression's own parameters",
        "Check that the kernel and its features have finite slopes, or adapt less of them, such "
        "as with `adapt=alws.ALWS_F`.",
    ),
    "refused_by_log_joint": (
        "the gradient",
        "Check that `log_joint` is finite on every draw at the fitted parameters (log of 0, "
        "overflow), or take smaller steps.",
    ),
}
"""What was not finite on a refused step, and what to do about it."""


def warn_of_refusals(counts: Mapping[str, int | float], steps: int) -> None:
    """Say so when many of a fit's steps were refused, and what most of them were refused for.

    Arguments:
        counts: the fields of `alws.wake_sleep.Counts`, by name.
        steps: how many the fit took.

    Example: `warn_of_refusals(result.diagnostics, result.steps)`.
    """
    refused = counts["refused_steps"]
    if refused <= MANY_REFUSED * steps:
        return
    numbers = {cause: counts.get(cause, 0) for cause in CAUSES}
    numbers["refused_by_log_joint"] = refused - sum(numbers.values())
    what, remedy = CAUSES[max(numbers, key=lambda cause: numbers[cause])]
    warnings.warn(
        f"{what} must be finite; on {refused} of {steps} steps it was not, and they were left out, "
        f"so the fit may have stood still. {remedy}",
        RuntimeWarning,
        stacklevel=4,
    )


def warn_of_replaced(replaced: int, draws: int) -> None:
    """Say so when many draws from the model were not finite: the fit is of the others alone.

    Example: `warn_of_replaced(23_796, 100_000)` warns, `warn_of_replaced(3, 100_000)` does not.
    """
    if replaced > MANY_REPLACED * draws:
        warnings.warn(
            f"draws from the model must be finite; {replaced} of {draws}, {replaced / draws:.1%}, "
            "were not, and copies of finite ones took their places. What was fitted is the model "
            "without those draws, so its parameters may be wrong. Check `sample` where its numbers "
            "overflow (exp, division, powers), or keep them in bounds.",
            RuntimeWarning,
            stacklevel=4,
        )


def warn_of_outside(share: float, steps: int) -> None:
    """Say so when most of the data lie where the model draws nothing: the regression extrapolates.

    Of a fit of a few steps nothing else is to be expected, and nothing is said.

    Example: `warn_of_outside(result.diagnostics["outside"], result.steps)`.
    """
    if share > MANY_OUTSIDE and steps >= FEWEST_STEPS:
        warnings.warn(
            f"the data should lie among the draws from the model; at the end {share:.0%} of them "
            "lie outside, where the regression can only guess: the fit may be far from a maximum. "
            "Start from parameters whose draws look like the data, bring the data to the model's "
            "scale, or take more steps; `result.verdict` says how many nats are left.",
            RuntimeWarning,
            stacklevel=4,
        )
