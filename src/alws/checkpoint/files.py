"""Checkpoints: arrays and a JSON header in one `.npz` file, written atomically, no code on loading.

The file holds every array leaf of a pytree by its path, and the header says which run it belongs
to. Loading never unpickles, checks each array's CRC, shape and dtype, and refuses a file that was
cut short.

A fit's checkpoint has in its header the format, the step, and the origin: what the fit must be
given again so that it goes on bit for bit as if it had not stopped. Nothing in it depends on the
number of devices.

Whether the file can be written is tried before the first step (`reserve`), with the bytes it will
need. From then on the fit has the path for itself (`claimed`), and a failure to write is told and
does not end it.
"""

import errno
import io
import json
import os
import shutil
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from alws import devices
from alws.checkpoint.origin import differences

HEADER = "header.json"
SHARED = "Put the checkpoint on a file system that all processes share, and give all the same path."

FORMAT = 3
"""The layout of a fit's checkpoint, in its header."""

LONGEST_HEADER = 2**24
"""The most bytes of a header, and with as many more of an array's own header, that are read."""

EXTRA = 2**16
"""The most bytes that a file needs for each array beside its numbers."""

MOST_TOLD = 5
"""The most differences that a message lists."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, with the reason and the remedy."""


def save(path: Path, tree: PyTree, header: dict[str, Any]) -> None:
    """Write the array leaves of `tree`; a crash at any moment leaves the old file or the new.

    A symbolic link goes on pointing where it did, and the file it points to is written.
    """
    path = _target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(HEADER, json.dumps(header))
            for name, leaf in _named_arrays(tree).items():
                buffer = io.BytesIO()
                np.save(buffer, np.asarray(_plain(leaf)), allow_pickle=False)
                archive.writestr(name, buffer.getvalue())
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def save_or_warn(path: Path, tree: PyTree, header: dict[str, Any]) -> None:
    """`save`, but what keeps the file from being written is told, and does not end the fit.

    Example: `save_or_warn(path, {"theta": theta}, {"step": 100})`.
    """
    try:
        save(path, tree, header)
    except Exception as error:
        needed = sum(_bytes(leaf) for leaf in _named_arrays(tree).values())
        warnings.warn(
            f"the checkpoint {path} could not be written ({error}). It needs {needed} bytes, "
            "beside the former one while it is written. The fit goes on; what the path had before "
            "is still there.",
            RuntimeWarning,
            stacklevel=3,
        )


def header(path: Path) -> dict[str, Any]:
    """The header of a checkpoint."""
    content = _read(Path(path), {HEADER: LONGEST_HEADER})[HEADER]
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: the header must be a JSON object, got {found!r}.")
    return found


def is_of_climb(path: Path) -> bool:
    """Whether a checkpoint is that of a climb, and not of a fit by steps.

    Example: `is_of_climb(Path("run/checkpoint.npz"))`.
    """
    return "climb" in header(path)


def check_header(path: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """The header of a fit's checkpoint, if it has this format and says all that is expected.

    Example: `check_header(path, {"steps": 2000, "data": fingerprint(data)})`.
    """
    found = header(path)
    if "climb" in found or "one go" in found:
        kind = "a climb" if "climb" in found else "a fit that is made in one go"
        raise CheckpointError(
            f"{path} must be the checkpoint of a fit by steps, got that of {kind}. Resume without "
            "`steps` and `settings`, as it was started, or give another path."
        )
    if found.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} must be a fit's checkpoint of format {FORMAT}, got {found.get('format')}: "
            "another version of alws, or something else, wrote it. Resume with what wrote it, or "
            "start again with another path."
        )
    check_unchanged(path, found, expected)
    return found


def check_unchanged(path: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse to go on with something else than a checkpoint was started with; say what differs."""
    differ: list[str] = []
    for name, value in expected.items():
        was = found.get(name)
        if isinstance(value, dict) and isinstance(was, dict):
            differ += differences(name, was, value)
        elif was != value:
            differ.append(f"{name} was {was!r}, is {value!r}")
    if differ:
        more = f"; and {len(differ) - MOST_TOLD} more" if len(differ) > MOST_TOLD else ""
        raise CheckpointError(
            f"{path} must be resumed with what it was started with; "
            f"{'; '.join(differ[:MOST_TOLD])}{more}. Go back to that, or start again with another "
            "path."
        )


def load(path: Path, like: PyTree) -> PyTree:
    """The pytree `like` with its arrays taken from the file."""
    path = Path(path)
    expected = _named_arrays(like)
    largest = {name: _bytes(leaf) + EXTRA for name, leaf in expected.items()}
    contents = _read(path, largest)
    loaded = {}
    for name, leaf in expected.items():
        loaded[name] = _restore(_array(path, name, contents[name], _plain(leaf)), leaf)
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    return structure.unflatten([loaded.get(_name(p), leaf) for p, leaf in leaves])


def _read(path: Path, largest: dict[str, int]) -> dict[str, bytes]:
    """What the archive has under these names, each of at most so many bytes; none is unpickled."""
    check_kind(path)
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint at {path}.")
    try:
        with zipfile.ZipFile(path) as archive:
            missing = sorted(set(largest) - set(archive.namelist()))
            if missing:
                raise CheckpointError(
                    f"{path} lacks {len(missing)} of the arrays this model needs, such as "
                    f"{missing[0]}. Resume with the model and settings it was written with."
                )
            return {name: _member(archive, path, name, most) for name, most in largest.items()}
    except PermissionError as error:
        raise CheckpointError(f"{path} must be a file that can be read: {error}.") from error
    except CheckpointError:
        raise
    except Exception as error:  # whatever its bytes do to the reader, the file is at fault
        raise CheckpointError(
            f"{path} is cut short or damaged ({error}). The file was left as it is; start again in "
            "another directory, or put an undamaged copy in its place."
        ) from error


def _member(archive: zipfile.ZipFile, path: Path, name: str, most: int) -> bytes:
    """One member's bytes; one that is encrypted, or would be too large, is not touched."""
    info = archive.getinfo(name)
    if info.flag_bits & 1:
        raise CheckpointError(f"{path}: {name} is encrypted; a checkpoint never is.")
    if info.file_size > most:
        raise CheckpointError(
            f"{path}: {name} must have at most {most} bytes for this model, got {info.file_size}; "
            "it was not read. Resume with the model and settings it was written with."
        )
    return archive.read(name)


def _array(path: Path, name: str, content: bytes, like: Any) -> np.ndarray:
    """The array, if its own header says the shape and dtype it must have."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        shape, _, dtype = read[version[0]](file)
        right = shape == like.shape and dtype == like.dtype
        array = np.load(io.BytesIO(content), allow_pickle=False) if right else None
    except Exception as error:  # whatever its bytes do to the reader, the file is at fault
        raise CheckpointError(f"{path}: array {name} cannot be read: {error}.") from error
    if array is None:
        raise CheckpointError(
            f"{path}: array {name} must be {like.dtype}{list(like.shape)} for this model, got "
            f"{dtype}{list(shape)}. Resume with the model and settings it was written with."
        )
    return array


def _bytes(leaf: Any) -> int:
    plain = _plain(leaf)
    return plain.size * plain.dtype.itemsize


def _target(path: Path) -> Path:
    """The file itself, where symbolic links lead to it."""
    return Path(os.path.realpath(path))


def _name(path: tuple) -> str:
    return "leaf" + jax.tree_util.keystr(path)


def _named_arrays(tree: PyTree) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {_name(p): leaf for p, leaf in leaves if isinstance(leaf, (jax.Array, np.ndarray))}


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    """The leaf in a type that NumPy's files have; bits for one that they lack, as bfloat16."""
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    return np.asarray(leaf).view(f"u{leaf.dtype.itemsize}") if _is_foreign(leaf) else leaf


def _is_foreign(leaf: Any) -> bool:
    return not _is_key(leaf) and np.dtype(leaf.dtype).kind == "V"


def _restore(array: np.ndarray, leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    array = array.view(leaf.dtype) if _is_foreign(leaf) else array
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


def check_kind(path: Path) -> None:
    """Refuse a path to something that is no file, such as a folder, a device or a pipe."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {path} must be a file: {error}.") from error
    if not stat.S_ISREG(mode):
        kinds = {
            stat.S_IFDIR: "a folder",
            stat.S_IFIFO: "a pipe",
            stat.S_IFCHR: "a device",
            stat.S_IFBLK: "a device",
            stat.S_IFSOCK: "a socket",
        }
        raise CheckpointError(
            f"the checkpoint {path} must be a file, got {kinds.get(stat.S_IFMT(mode), 'another')}."
            " Give the name of a file, such as `run/checkpoint.npz`."
        )


def check_path(
    path: Path, resume: bool, origin: dict[str, Any], *, more_steps: bool = False
) -> None:
    """Refuse to write over a checkpoint, or to go on from that of another fit.

    With `more_steps` the number of steps may have grown.
    """
    if not resume:
        check_free(path)
        return
    expected = {k: v for k, v in origin.items() if not (more_steps and k == "steps")}
    found = check_header(path, expected)
    for name in ("step", "reports"):
        number = found.get(name)
        if type(number) is not int or not 0 <= number <= found["step"]:
            raise CheckpointError(
                f"{path} is damaged: `{name}` in its header must be a number of steps, got "
                f"{number!r}. Put an undamaged copy in its place."
            )
    if found["step"] > origin["steps"]:
        raise CheckpointError(
            f"`steps` must be at least the {found['step']} that {path} has done, got "
            f"{origin['steps']}."
        )


def check_free(path: Path) -> None:
    """Refuse to begin where a checkpoint is already."""
    if path.exists():
        raise FileExistsError(
            f"the checkpoint {path} already exists. Pass `resume=True` to go on from it, or "
            "another path; nothing was overwritten."
        )


def check_name(given: Any, resume: bool) -> Path | None:
    """A fit's `checkpoint` as a path; refuse what is none, and what it cannot begin with."""
    if resume and given is None:
        raise ValueError(
            "`resume=True` must come with `checkpoint`, the file to go on from; got None."
        )
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike) or not isinstance(os.fspath(given), str):
        raise TypeError(f"`checkpoint` must be the path of a file, got {given!r:.100}.")
    path = Path(given)
    check_kind(path)
    if not resume:
        check_free(path)
    return path


@contextmanager
def claimed(path: Path | None) -> Iterator[None]:
    """Within this context no other fit writes this checkpoint; refuse one that another has.

    Who has it holds a lock on a file beside it, which is gone at the end and which the system
    gives back when a process is killed.

    Example: `with claimed(Path("run/checkpoint.npz")): ...`.
    """
    if path is None or fcntl is None:
        yield
        return
    lock: list[int] = []
    side = _target(path).with_name(_target(path).name + ".lock")
    _on_first(lambda: lock.append(_locked(path, side)))
    try:
        yield
    finally:
        for number in lock:
            with suppress(OSError):
                side.unlink(missing_ok=True)
            fcntl.flock(number, fcntl.LOCK_UN)
            os.close(number)


def _locked(path: Path, side: Path) -> int:
    """The locked side file, its writer's number in it; refuse one that is locked already."""
    assert fcntl is not None
    while True:
        try:
            side.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(side, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CheckpointError(_cannot(path, error)) from error
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            writer = os.read(number, 100).decode(errors="replace") or "unknown"
            os.close(number)
            raise CheckpointError(
                f"the checkpoint {path} must have one writer; another fit (process {writer}) is at "
                "work on it. Wait for it to end, or give another path."
            ) from error
        except OSError:  # a file system without locks
            return number
        with suppress(FileNotFoundError):
            if os.stat(side).st_ino == os.fstat(number).st_ino:
                os.ftruncate(number, 0)
                os.write(number, str(os.getpid()).encode())
                return number
        os.close(number)  # its former holder took it away meanwhile


def reserve(path: Path, tree: PyTree) -> None:
    """Refuse a path that cannot be written, or a disk too full for arrays like those of `tree`.

    The room is asked of the file system, and given back at once.

    Example: `reserve(Path("run/checkpoint.npz"), state)`, before the first step.
    """
    needed = sum(_bytes(leaf) + 512 for leaf in _named_arrays(tree).values()) + EXTRA
    _on_first(lambda: _try_to_write(path, needed))


def _try_to_write(path: Path, needed: int) -> None:
    target = _target(path)
    temporary = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            free = shutil.disk_usage(target.parent).free
            if needed > free:
                raise OSError(errno.ENOSPC, f"{free} bytes are free")
            _allocate(file.fileno(), needed)
    except OSError as error:
        raise CheckpointError(_cannot(path, error, needed)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _allocate(file: int, size: int) -> None:
    """Take the room where the file system knows how to; it answers at once, quotas included."""
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:
        return
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise


def _cannot(path: Path, error: Exception, needed: int | None = None) -> str:
    room = "" if needed is None else f" It needs {needed} bytes."
    return (
        f"the checkpoint {path} must be a file that can be written: {error}.{room} Give a path in "
        "a folder where you may write and there is room."
    )


def _on_first(action: Callable[[], object]) -> None:
    """Do this in process 0; where it is refused, all processes refuse."""
    refused: CheckpointError | None = None
    if devices.is_first():
        try:
            action()
        except CheckpointError as error:
            refused = error
    if devices.in_any(refused is not None):
        raise refused or CheckpointError("process 0 cannot write its checkpoint; it says why.")


def load_fit(
    path: Path, state: Any, key: Key[Array, ""], metrics: Sequence[str]
) -> tuple[Any, dict[str, np.ndarray]]:
    """The state that a checkpoint holds, shaped like this one, and the metrics so far."""
    head = header(path)
    sized = {name: np.zeros(head["reports"], np.float64) for name in metrics}
    saved = load(path, {"state": state, "history": sized, "key": key})
    if int(saved["state"].step) != head["step"]:
        raise CheckpointError(
            f"{path} is damaged: its header has step {head['step']}, its state "
            f"{int(saved['state'].step)}. Put an undamaged copy in its place."
        )
    devices.check_same({f"the checkpoint {path}": saved["history"]}, SHARED)
    if not bool((jax.random.key_data(saved["key"]) == jax.random.key_data(key)).all()):
        raise CheckpointError(
            f"{path} was written by a fit with another key. Resume with the key it was started "
            "with, so that it goes on as if it had not stopped."
        )
    return saved["state"], {name: saved["history"][name] for name in metrics}


def save_fit(
    path: Path,
    state: Any,
    history: dict[str, np.ndarray],
    key: Key[Array, ""],
    origin: dict[str, Any],
) -> None:
    """One file, by process 0; the others wait until it is there.

    What keeps it from being written is told: the fit goes on, and the last file stays.
    """
    numbers = {"step": int(state.step), "reports": len(history["step"])}
    head = {"format": FORMAT, **numbers, **origin}
    if devices.is_first():
        save_or_warn(path, {"state": state, "history": history, "key": key}, head)
    devices.wait_for_all(f"checkpoint at step {head['step']}")
