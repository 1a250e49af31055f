"""Checkpoints: arrays and a JSON header in one `.npz` file, written atomically, no code on loading.

The file holds every array leaf of a pytree by its path, and the header says which run it belongs
to. Loading never unpickles, checks each array's CRC, shape and dtype, and refuses a file that was
cut short.

A fit's checkpoint has in its header the format, the step, and the origin: what the fit must be
given again so that it goes on bit for bit as if it had not stopped. Nothing in it depends on the
number of devices.
"""

import io
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from alws import devices

HEADER = "header.json"
SHARED = "Put the checkpoint on a file system that all processes share, and give all the same path."

FORMAT = 2
"""The layout of a fit's checkpoint, in its header."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, with the reason and the remedy."""


def save(path: Path, tree: PyTree, header: dict[str, Any]) -> None:
    """Write the array leaves of `tree`; a crash at any moment leaves the old file or the new."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(HEADER, json.dumps(header))
        for name, leaf in _named_arrays(tree).items():
            buffer = io.BytesIO()
            np.save(buffer, np.asarray(_plain(leaf)), allow_pickle=False)
            archive.writestr(name, buffer.getvalue())
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def header(path: Path) -> dict[str, Any]:
    """The header of a checkpoint."""
    try:
        found = json.loads(_read(Path(path), [HEADER])[HEADER])
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: the header cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: the header must be a JSON object, got {found!r}.")
    return found


def check_header(path: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """The header of a fit's checkpoint, if it has this format and says all that is expected.

    Example: `check_header(path, {"steps": 2000, "data": fingerprint(data)})`.
    """
    found = header(path)
    if found.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} must be a fit's checkpoint of format {FORMAT}, got {found.get('format')}: "
            "another version of alws, or something else, wrote it. Resume with what wrote it, or "
            "start again with another path."
        )
    differ = [
        f"{name} was {found.get(name)!r}, is {value!r}"
        for name, value in expected.items()
        if found.get(name) != value
    ]
    if differ:
        raise CheckpointError(
            f"{path} must be resumed with what it was started with; {'; '.join(differ)}. Go back "
            "to that, or start again with another path."
        )
    return found


def load(path: Path, like: PyTree) -> PyTree:
    """The pytree `like` with its arrays taken from the file."""
    path = Path(path)
    expected = _named_arrays(like)
    contents = _read(path, list(expected))
    loaded = {}
    for name, leaf in expected.items():
        try:
            array = np.load(io.BytesIO(contents[name]), allow_pickle=False)
        except ValueError as error:
            raise CheckpointError(f"{path}: array {name} cannot be read: {error}.") from error
        plain = _plain(leaf)
        if array.shape != plain.shape or array.dtype != plain.dtype:
            raise CheckpointError(
                f"{path}: array {name} must be {plain.dtype}{list(plain.shape)} for this model, "
                f"got {array.dtype}{list(array.shape)}. Resume with the model and settings it was "
                "written with."
            )
        loaded[name] = _restore(array, leaf)
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    return structure.unflatten([loaded.get(_name(p), leaf) for p, leaf in leaves])


def _read(path: Path, names: list[str]) -> dict[str, bytes]:
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint at {path}.")
    try:
        with zipfile.ZipFile(path) as archive:
            missing = sorted(set(names) - set(archive.namelist()))
            if missing:
                raise CheckpointError(
                    f"{path} lacks {len(missing)} of the arrays this model needs, such as "
                    f"{missing[0]}. Resume with the model and settings it was written with."
                )
            return {name: archive.read(name) for name in names}
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise CheckpointError(
            f"{path} is cut short or damaged ({error}). The file was left as it is; start again in "
            "another directory, or put an undamaged copy in its place."
        ) from error


def _name(path: tuple) -> str:
    return "leaf" + jax.tree_util.keystr(path)


def _named_arrays(tree: PyTree) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {_name(p): leaf for p, leaf in leaves if isinstance(leaf, (jax.Array, np.ndarray))}


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _restore(array: np.ndarray, leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    return jnp.asarray(array) if isinstance(leaf, jax.Array) else array


def check_standing(path: Path | None, resume: bool) -> None:
    """Refuse processes of which only some resume, or that see different checkpoints."""
    step = None
    if path is not None and path.exists():
        try:
            step = header(path).get("step")
        except CheckpointError:
            step = "damaged"
    things = {"`resume`": resume, f"the step of the checkpoint {path}": (path is None, step)}
    devices.check_same(things, SHARED)


def check_path(
    path: Path, resume: bool, origin: dict[str, Any], *, more_steps: bool = False
) -> None:
    """Refuse to write over a checkpoint, or to go on from that of another fit.

    With `more_steps` the number of steps may have grown.
    """
    if not resume:
        if path.exists():
            raise FileExistsError(
                f"the checkpoint {path} already exists. Pass `resume=True` to go on from it, or "
                "another path; nothing was overwritten."
            )
        return
    expected = {k: v for k, v in origin.items() if not (more_steps and k == "steps")}
    done = check_header(path, expected)["step"]
    if done > origin["steps"]:
        raise CheckpointError(
            f"`steps` must be at least the {done} that {path} has done, got {origin['steps']}."
        )


def load_fit(
    path: Path, state: Any, key: Key[Array, ""], metrics: Sequence[str]
) -> tuple[Any, dict[str, np.ndarray]]:
    """The state that a checkpoint holds, shaped like this one, and the metrics so far."""
    reports = header(path)["reports"]
    sized = {name: np.zeros(reports, np.float64) for name in metrics}
    saved = load(path, {"state": state, "history": sized, "key": key})
    devices.check_same({f"the checkpoint {path}": saved["history"]}, SHARED)
    if not bool((jax.random.key_data(saved["key"]) == jax.random.key_data(key)).all()):
        raise CheckpointError(
            f"{path} was written by a fit with another key. Resume with the key it was started "
            "with, so that it goes on as if it had not stopped."
        )
    return saved["state"], saved["history"]


def save_fit(
    path: Path,
    state: Any,
    history: dict[str, np.ndarray],
    key: Key[Array, ""],
    origin: dict[str, Any],
) -> None:
    """One file, by process 0; the others wait until it is there."""
    numbers = {"step": int(state.step), "reports": len(history["step"])}
    head = {"format": FORMAT, **numbers, **origin}
    if devices.is_first():
        save(path, {"state": state, "history": history, "key": key}, head)
    devices.wait_for_all(f"checkpoint at step {head['step']}")
