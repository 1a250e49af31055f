"""What an experiment is, and the directory a run of it lives in.

A run directory holds `settings.json`, `metrics.jsonl`, `checkpoint.npz`, `figure.png` and
`claims.json`: each claim of the paper that the experiment makes, the paper's figure, the measured
one and whether it holds, all computed by the run.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

import alws
from alws import checkpoint
from alws.callbacks import Callback, MetricsFile, Report

PRESETS = ("quick", "desk", "paper")
OWN = "own"
"""What stands for the preset in the record of a run with settings of the user's own."""


class RunError(ValueError):
    """A run that cannot start or go on, with the reason and the remedy."""


@dataclass(frozen=True)
class Claim:
    """One claim of the paper against what this run measured."""

    claim: str
    paper: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Experiment:
    """A page of the paper: settings for each preset, and a function that runs them.

    `run(settings, run)` draws the figure, saves it with `run.save_figure` and returns the claims.
    """

    name: str
    title: str
    presets: Mapping[str, Any]
    run: Callable[[Any, "Run"], list[Claim]]

    def settings(self, preset: str) -> Any:
        """The settings of a preset."""
        if preset not in self.presets:
            known = ", ".join(self.presets)
            raise RunError(f"the preset must be one of {known}; got {preset!r}.")
        return self.presets[preset]


@dataclass(frozen=True)
class Run:
    """A run's directory, its seed, and whether to show progress."""

    directory: Path
    seed: int
    progress: bool | None = None

    def fit_arguments(
        self, name: str = "checkpoint", trace: Callable[[Any], dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Arguments for `alws.fit`: checkpoint, metrics and progress kept in this directory.

        `trace(model)` is a dictionary of numbers to be kept with the metrics of each report.

        Example: `alws.fit(model, data, key=key, steps=1000, **run.fit_arguments())`.
        """
        path = self.directory / f"{name}.npz"
        resume = path.exists()
        metrics: list[Callback] = [self._metrics_file(name, path if resume else None, trace)]
        return {
            "checkpoint": path,
            "resume": resume,
            "callbacks": metrics,
            "progress": self.progress,
        }

    def trace(self, name: str = "checkpoint") -> dict[str, Float[np.ndarray, " reports"]]:
        """Metrics and traced numbers of a fit so far, report by report."""
        lines = [json.loads(line) for line in self._metrics_path(name).read_text().splitlines()]
        return {key: np.array([line[key] for line in lines], float) for key in lines[0]}

    def _metrics_path(self, name: str) -> Path:
        return self.directory / ("metrics.jsonl" if name == "checkpoint" else f"{name}.jsonl")

    def _metrics_file(
        self, name: str, resumed: Path | None, trace: Callable[[Any], dict[str, Any]] | None
    ) -> MetricsFile:
        """The metrics file, without the lines of steps that will be done again."""
        path = self._metrics_path(name)
        if resumed is not None and path.exists():
            done = checkpoint.header(resumed)["step"]
            lines = [ln for ln in path.read_text().splitlines() if json.loads(ln)["step"] <= done]
            path.write_text("".join(line + "\n" for line in lines))
        return MetricsFile(path, trace)

    def log(self, step: int, steps: int, **metrics: float) -> None:
        """Append a line to the run's metrics, for work that is not a fit."""
        MetricsFile(self.directory / "metrics.jsonl")(Report(step, steps, metrics, None))

    def save_figure(self, figure: Figure, dpi: int = 110) -> Path:
        """Save the run's figure."""
        path = self.directory / "figure.png"
        figure.savefig(path, dpi=dpi, bbox_inches="tight", metadata={"Software": None})
        return path

    def save_claims(self, claims: list[Claim]) -> Path:
        """Save the run's claims."""
        path = self.directory / "claims.json"
        path.write_text(
            json.dumps([asdict(claim) for claim in claims], indent=2, ensure_ascii=False)
        )
        return path


def start(
    experiment: Experiment,
    preset: str,
    seed: int,
    directory: Path,
    progress: bool | None = None,
    settings: Any = None,
) -> list[Claim]:
    """Run a preset in a new directory, or the settings given, whose preset is then `OWN`."""
    settings = experiment.settings(preset) if settings is None else settings
    if directory.exists() and any(directory.iterdir()):
        raise RunError(
            f"the run directory {directory} already exists and is not empty. Go on with `alws "
            f"resume {directory}`, or choose another with --out; nothing was changed."
        )
    directory.mkdir(parents=True, exist_ok=True)
    record = {
        "experiment": experiment.name,
        "preset": preset,
        "seed": seed,
        "version": alws.__version__,
        "settings": asdict(settings),
    }
    (directory / "settings.json").write_text(json.dumps(record, indent=2))
    return _finish(experiment, settings, Run(directory, seed, progress))


def resume(
    experiments: Mapping[str, Experiment], directory: Path, progress: bool | None = None
) -> list[Claim]:
    """Go on with a run from its last checkpoint, with the settings it was started with."""
    path = directory / "settings.json"
    if not path.exists():
        raise RunError(
            f"{directory} is not a run directory: it has no settings.json. Start a run with `alws "
            "run EXPERIMENT --out DIR`."
        )
    try:
        record = json.loads(path.read_text())
        experiment = experiments[record["experiment"]]
        preset = next(iter(experiment.presets)) if record["preset"] == OWN else record["preset"]
        settings = replace(experiment.settings(preset), **_tuples(record["settings"]))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read as the settings of a run: {error!r}.") from error
    return _finish(experiment, settings, Run(directory, record["seed"], progress))


def _finish(experiment: Experiment, settings: Any, run: Run) -> list[Claim]:
    claims = experiment.run(settings, run)
    run.save_claims(claims)
    return claims


def _tuples(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where settings have tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}


def significant(value: float | np.floating, digits: int = 3) -> str:
    """A number as it is printed in a claim.

    Example: `significant(0.012345) == "0.0123"`.
    """
    return f"{value:.{digits}g}" if math.isfinite(value) else str(value)
