"""What an experiment is, and the directory a run of it lives in.

A run directory holds `settings.json`, `metrics.jsonl`, `checkpoint.npz`, `figure.png`, `run.json`
with the seconds it took, and `claims.json`: each claim that the experiment looks into, the paper's
figure or the bar set here, the measured one and the outcome, all computed by the run.
"""

import json
import math
import operator
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from rich.console import Console

import alws
from alws import checkpoint
from alws.callbacks import Callback, MetricsFile, Report
from alws_paper.claim import Claim, Scale, settled

Trained = TypeVar("Trained")

OWN = "own"
"""What stands for the preset in the record of a run with settings of the user's own."""
LETTERS = 13
"""How many letters of a figure's title fit on an inch."""
CLAIMS = "claims.json"
"""The file that a run has when it has finished."""
OF_A_FIT = "refused_steps"
"""A number that every line of a fit's metrics has."""


class RunError(ValueError):
    """A run that cannot start or go on, with the reason and the remedy."""


@dataclass(frozen=True)
class Experiment:
    """A page of the paper: settings for each preset, and a function that runs them.

    Arguments:
        name, title: on the command line, and in its list.
        presets: settings by name: `quick`, `desk` and `paper`.
        run: `run(settings, run)` draws the figure, saves it with `run.save_figure` and returns the
            claims.
        scale: what such settings compare, and the share they spend of the paper's budget.
        not_printed: what `paper` has otherwise than the paper prints it, or cannot run here.
    """

    name: str
    title: str
    presets: Mapping[str, Any]
    run: Callable[[Any, "Run"], list[Claim]]
    scale: Callable[[Any], Scale] = lambda settings: Scale()
    not_printed: str = ""

    def settings(self, preset: str) -> Any:
        """The settings of a preset."""
        if preset not in self.presets:
            known = ", ".join(self.presets)
            raise RunError(f"the preset must be one of {known}; got {preset!r}.")
        return self.presets[preset]


@dataclass(frozen=True)
class Run:
    """A run's directory, its seed, whether to show progress, and its setting for the figure."""

    directory: Path
    seed: int
    progress: bool | None = None
    setting: str = ""

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
        lines = [json.loads(line) for line in _whole_lines(self._metrics_path(name))]
        return {key: np.array([line[key] for line in lines], float) for key in lines[0]}

    def _metrics_path(self, name: str) -> Path:
        return self.directory / ("metrics.jsonl" if name == "checkpoint" else f"{name}.jsonl")

    def _metrics_file(
        self, name: str, resumed: Path | None, trace: Callable[[Any], dict[str, Any]] | None
    ) -> MetricsFile:
        """The metrics file, without the lines of steps that will be done again."""
        path = self._metrics_path(name)
        if path.exists():
            done = 0 if resumed is None else checkpoint.header(resumed)["step"]
            lines = [(line, json.loads(line)) for line in _whole_lines(path)]
            kept = [
                ln for ln, numbers in lines if OF_A_FIT not in numbers or numbers["step"] <= done
            ]
            _write(path, "".join(line + "\n" for line in kept))
        return MetricsFile(path, trace)

    def once(self, name: str, like: Trained, train: Callable[[], Trained]) -> Trained:
        """What `train()` gives; a run that was stopped takes what it has trained already.

        Arguments:
            name: that of the file it is kept in, without `.npz`.
            like: a pytree with arrays of the same shapes, to read the file by.
            train: called unless the file is there.

        Example: `run.once("sin", start, lambda: fit_sin(start, data, key=key))`.
        """
        path = self.directory / f"{name}.npz"
        if path.exists():
            return checkpoint.load(path, like)
        self.tell(f"training {name}")
        trained = train()
        checkpoint.save(path, trained, {"trained": name})
        return trained

    def once_arrays(
        self, name: str, make: Callable[[], Mapping[str, Any]]
    ) -> dict[str, np.ndarray]:
        """The arrays that `make()` gives, by name; a run that was stopped takes those it has made.

        Arguments:
            name: that of the file they are kept in, without `.npz`.
            make: called unless the file is there.

        Example: `run.once_arrays("k2", lambda: by_k2(data, key=key))`.
        """
        path = self.directory / f"{name}.npz"
        if not path.exists():
            self.tell(f"computing {name}")
            made = {key: np.asarray(array) for key, array in make().items()}
            kinds = {key: [array.dtype.str, list(array.shape)] for key, array in made.items()}
            checkpoint.save(path, made, {"arrays": kinds})
            return made
        kinds = checkpoint.header(path).get("arrays")
        if not isinstance(kinds, dict):
            raise RunError(f"{path} must be a file of arrays of this run. Remove it to go on.")
        like = {key: np.zeros(shape, dtype) for key, (dtype, shape) in kinds.items()}
        loaded = checkpoint.load(path, like)
        return {key: loaded[key] for key in kinds}

    def tell(self, message: str, end: str = "\n") -> None:
        """Say on the terminal how far the run is, where progress is shown."""
        shown = sys.stderr.isatty() if self.progress is None else self.progress
        Console(stderr=True, quiet=not shown).print(message, highlight=False, end=end)

    def log(self, step: int, steps: int, **metrics: float) -> None:
        """Append a line to the run's metrics, for work that is not a fit; once if done again."""
        path = self.directory / "metrics.jsonl"
        line = MetricsFile(path).line(Report(step, steps, metrics, None))
        if line not in _whole_lines(path):
            with path.open("a") as file:
                file.write(line + "\n")

    def save_figure(self, figure: Figure, dpi: int = 110) -> Path:
        """Save the run's figure, above it the setting and the seed unless its title has them."""
        if self.setting and self.setting not in figure.get_suptitle():
            across = round(figure.get_figwidth() * LETTERS)
            title = textwrap.fill(f"{self.setting}; seed {self.seed}", across)
            figure.text(0.5, 1.01, title, ha="center", va="bottom", fontsize=10)
        path = self.directory / "figure.png"
        figure.savefig(path, dpi=dpi, bbox_inches="tight", metadata={"Software": None})
        return path

    def save_claims(self, claims: list[Claim]) -> Path:
        """Save the run's claims."""
        path = self.directory / CLAIMS
        _write(path, json.dumps([asdict(claim) for claim in claims], indent=2, ensure_ascii=False))
        return path

    def add_seconds(self, seconds: float) -> Path:
        """Add to the seconds the run took so far; a part that was killed is not among them."""
        path = self.directory / "run.json"
        try:
            before = float(json.loads(path.read_text())["seconds"])
        except (OSError, ValueError, TypeError, LookupError):  # none yet, or damaged
            before = 0.0
        _write(path, json.dumps({"seconds": round(before + seconds, 1)}))
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
    for place in (directory, *directory.parents):
        if place.exists() and not place.is_dir():
            raise RunError(
                f"the run directory must be new or empty, and {place} is a file. Choose another "
                "with --out; nothing was changed."
            )
    if directory.exists() and any(directory.iterdir()):
        raise RunError(
            f"the run directory {directory} already exists and is not empty. Go on with "
            f"`alws-paper resume {directory}`, or choose another with --out; nothing was changed."
        )
    directory.mkdir(parents=True, exist_ok=True)
    record = {
        "experiment": experiment.name,
        "preset": preset,
        "seed": seed,
        "version": alws.__version__,
        "commit": commit(),
        "settings": asdict(settings),
    }
    _write(directory / "settings.json", json.dumps(record, indent=2))
    return _finish(experiment, settings, Run(directory, seed, progress))


def start_or_resume(
    experiment: Experiment,
    preset: str,
    seed: int,
    directory: Path,
    progress: bool | None = None,
) -> list[Claim]:
    """Run a preset in a new directory, or go on with it if it is the one begun there.

    Example: `start_or_resume(EXPERIMENTS["images-at-length"], "paper", 0, Path("runs/length"))`.
    """
    path = directory / "settings.json"
    if not path.exists():
        return start(experiment, preset, seed, directory, progress)
    record = json.loads(path.read_text())
    begun = tuple(record.get(name) for name in ("experiment", "preset", "seed"))
    if begun != (experiment.name, preset, seed):
        raise RunError(
            f"{directory} holds {begun[0]}, preset {begun[1]}, seed {begun[2]}; asked for was "
            f"{experiment.name}, preset {preset}, seed {seed}. Give the same, or another directory "
            "with --out."
        )
    return resume({experiment.name: experiment}, directory, progress)


def resume(
    experiments: Mapping[str, Experiment], directory: Path, progress: bool | None = None
) -> list[Claim]:
    """Go on with a run from its last checkpoint, with the settings it was started with.

    Of a run that has finished nothing is done again: its claims are read.
    """
    path = directory / "settings.json"
    if not path.exists():
        raise RunError(
            f"{directory} is not a run directory: it has no settings.json. Start a run with "
            "`alws-paper run EXPERIMENT --out DIR`."
        )
    try:
        record = json.loads(path.read_text())
        experiment = experiments[record["experiment"]]
        preset = next(iter(experiment.presets)) if record["preset"] == OWN else record["preset"]
        settings = replace(experiment.settings(preset), **_tuples(record["settings"]))
        seed = operator.index(record["seed"])
    except Exception as error:  # whatever its text does to the reader, the file is at fault
        raise RunError(
            f"{path} cannot be read as the settings of a run: {error!r}. Put an undamaged copy in "
            "its place, or start another run."
        ) from error
    if (directory / CLAIMS).exists():
        return _finished(directory / CLAIMS)
    return _finish(experiment, settings, Run(directory, seed, progress))


def _finished(path: Path) -> list[Claim]:
    """The claims of a run that has finished."""
    try:
        return [Claim(**claim) for claim in json.loads(path.read_text())]
    except Exception as error:  # whatever its text does to the reader, the file is at fault
        raise RunError(
            f"{path} cannot be read as the claims of a run: {error!r}. Remove it, and the run is "
            "finished again from its checkpoints."
        ) from error


def _finish(experiment: Experiment, settings: Any, run: Run) -> list[Claim]:
    began = time.monotonic()
    try:
        scale = experiment.scale(settings)
        run = replace(run, setting=scale.compared)
        claims = [settled(claim, scale) for claim in experiment.run(settings, run)]
        run.save_claims(claims)
    finally:
        run.add_seconds(time.monotonic() - began)
    return claims


def commit(path: Path | None = None) -> str:
    """The commit of this code, `+` if files differ from it; of the last change of `path` if given.

    Empty where the code was installed from elsewhere than a git repository.
    """
    folder = Path(__file__).parent if path is None else path.parent
    if path is None:
        if not _git(folder, "ls-files", "--error-unmatch", Path(__file__).name):
            return ""
        changed = _git(folder, "status", "--porcelain", "-uno", "--", ":/src", ":/paper/src")
        return _git(folder, "rev-parse", "HEAD") + ("+" if changed else "")
    return _git(folder, "log", "-1", "--format=%H", "--", path.name)


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _write(path: Path, text: str) -> None:
    """Write a file; a crash at any moment leaves the old one or the new."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)


def _whole_lines(path: Path) -> list[str]:
    """The lines of a metrics file; what a killed run left half written is taken out of it."""
    text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    lines = [line for line in text.splitlines() if _is_whole(line)]
    if "".join(line + "\n" for line in lines) != text:
        _write(path, "".join(line + "\n" for line in lines))
    return lines


def _is_whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def _tuples(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where settings have tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}


def significant(value: float | np.floating, digits: int = 3) -> str:
    """A number as it is printed in a claim.

    Example: `significant(0.012345) == "0.0123"`.
    """
    return f"{value:.{digits}g}" if math.isfinite(value) else str(value)
