"""A fit's checkpoint: what it belongs to, who must agree on it, how it is written and read.

Its header has the format, the step, and the origin: what a fit must be given again so that it goes
on bit for bit as if it had not stopped. Nothing in it depends on the number of devices.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from alws import checkpoint as checkpoints
from alws import distributed
from alws.checkpoint import CheckpointError
from alws.fingerprints import fingerprint
from alws.problem import Problem
from alws.wake_sleep import Settings, State

SHARED = "Put the checkpoint on a file system that all processes share, and give all the same path."
SIZES = ("sleep_samples", "validation_samples", "theta_steps")


def origin(problem: Problem, settings: Settings, steps: int) -> dict[str, Any]:
    """What a checkpoint belongs to, before the data are divided among devices."""
    return {
        "steps": int(steps),
        "batch_size": int(problem.batch_size),
        **{name: int(getattr(settings, name)) for name in SIZES},
        "data": fingerprint((problem.data, problem.conditions)),
    }


def check_standing(path: Path | None, resume: bool) -> None:
    """Refuse processes of which only some resume, or that see different checkpoints."""
    step = None
    if path is not None and path.exists():
        try:
            step = checkpoints.header(path).get("step")
        except CheckpointError:
            step = "damaged"
    things = {"`resume`": resume, f"the step of the checkpoint {path}": (path is None, step)}
    distributed.check_same(things, SHARED)


def check_path(path: Path, resume: bool, origin: dict[str, Any], settings: Settings) -> None:
    """Refuse to write over a checkpoint, or to go on from that of another fit."""
    if not resume:
        if path.exists():
            raise FileExistsError(
                f"the checkpoint {path} already exists. Pass `resume=True` to go on from it, or "
                "another path; nothing was overwritten."
            )
        return
    own_optimiser = settings.optimiser is not None
    expected = {k: v for k, v in origin.items() if not (own_optimiser and k == "steps")}
    done = checkpoints.check_header(path, expected)["step"]
    if done > origin["steps"]:
        raise CheckpointError(
            f"`steps` must be at least the {done} that {path} has done, got {origin['steps']}."
        )


def load(
    path: Path, state: State, key: Key[Array, ""], metrics: Sequence[str]
) -> tuple[State, dict[str, np.ndarray]]:
    """The state that a checkpoint holds, shaped like this one, and the metrics so far."""
    reports = checkpoints.header(path)["reports"]
    sized = {name: np.zeros(reports, np.float64) for name in metrics}
    saved = checkpoints.load(path, {"state": state, "history": sized, "key": key})
    distributed.check_same({f"the checkpoint {path}": saved["history"]}, SHARED)
    if not bool((jax.random.key_data(saved["key"]) == jax.random.key_data(key)).all()):
        raise CheckpointError(
            f"{path} was written by a fit with another key. Resume with the key it was started "
            "with, so that it goes on as if it had not stopped."
        )
    return saved["state"], saved["history"]


def save(
    path: Path,
    state: State,
    history: dict[str, np.ndarray],
    key: Key[Array, ""],
    origin: dict[str, Any],
) -> None:
    """One file, by process 0; the others wait until it is there."""
    numbers = {"step": int(state.step), "reports": len(history["step"])}
    header = {"format": checkpoints.FORMAT, **numbers, **origin}
    if distributed.first():
        checkpoints.save(path, {"state": state, "history": history, "key": key}, header)
    distributed.wait_for_all(f"checkpoint at step {header['step']}")
