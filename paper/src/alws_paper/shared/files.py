"""Files of data: where they lie, whether they are whole, and how they get there.

A file is found in the data directory, or downloaded into it when an address is known. Either way
its size and checksum are those on record, or it is refused.
"""

import gzip
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20
SECONDS_WITHOUT_AN_ANSWER = 30.0


class DataError(RuntimeError):
    """A file of data that is absent, cut short or not the one it should be."""


@dataclass(frozen=True)
class DataFile:
    """One file as it lies below the data directory, and how to know it.

    `size` and `md5` are those of the decompressed bytes if the name ends in `.gz`, since the same
    data may be compressed in more than one way; None leaves that check out. `origin` tells a
    reader of an error message where the file comes from when there is no `url` to fetch it.

    Example: `DataFile("mnist/t10k-labels-idx1-ubyte.gz", size=10008)`.
    """

    name: str
    size: int | None = None
    md5: str | None = None
    url: str | None = None
    origin: str = ""


def data_directory() -> Path:
    """The directory of the data sets: `$ALWS_DATA`, or `~/.cache/alws/data` if that is not set."""
    chosen = os.environ.get("ALWS_DATA", "")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "alws" / "data"


def locate(file: DataFile) -> Path:
    """The path of a whole and checked file; it is downloaded first if it is not there.

    Example: `path = locate(DataFile("natural/bsds_train_val.zip"))`.
    """
    path = _present(file)
    if file.size is not None or file.md5 is not None:
        _checked(path, file, _again(file))
    return path


def read(file: DataFile) -> bytes:
    """The decompressed and checked bytes of a file; it is downloaded first if it is not there.

    Example: `read(DataFile("a.gz", size=5))`.
    """
    return _checked(_present(file), file, _again(file))


def fetch(file: DataFile) -> Path:
    """Download a file into the data directory, in place of what may be there.

    The bytes go to a temporary file beside it, which takes the name only once it is whole and
    checked. An interrupted download therefore leaves what was there before.

    Example: `fetch(DataFile("a.bin", size=4, url="https://example.org/a.bin"))`.
    """
    if not file.url:
        raise DataError(f"no address is known for `{file.name}`. {file.origin}".strip())
    path = data_directory() / file.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-", suffix=path.suffix)
    except OSError as error:
        raise DataError(
            f"the data directory must be writable to download `{file.name}`: {error}. Set "
            f"ALWS_DATA to one that is; it is {_the_setting()}."
        ) from error
    part = Path(temporary)
    try:
        with os.fdopen(handle, "wb") as target:
            _download(file.url, target)
        _checked(part, file, f"It came from {file.url}; try again, or put a good copy at {path}.")
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _download(url: str, target: BinaryIO) -> None:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_WITHOUT_AN_ANSWER) as source:
            length = source.headers.get("Content-Length")
            got = 0
            while chunk := source.read(CHUNK):
                got += target.write(chunk)
    except (OSError, http.client.HTTPException, urllib.error.URLError) as error:
        raise DataError(
            f"{url} could not be downloaded: {error}. Check the connection and try again, or put "
            f"the file below the data directory, {_the_setting()}, by hand."
        ) from error
    if length is not None and got != int(length):
        raise DataError(
            f"the download of {url} must have {length} bytes, got {got}: it was interrupted. Try "
            "again; nothing was kept."
        )


def _present(file: DataFile) -> Path:
    path = data_directory() / file.name
    if path.is_file():
        return path
    if file.url:
        return fetch(file)
    raise DataError(
        f"there must be a file {path}, and there is none. Put it there"
        + (f" ({file.origin})" if file.origin else "")
        + f", or set ALWS_DATA to the directory that holds `{file.name}`; it is {_the_setting()}."
    )


def _checked(path: Path, file: DataFile, remedy: str) -> bytes:
    content = _decompressed(path, remedy)
    what = "decompressed " if path.suffix == ".gz" else ""
    if file.size is not None and len(content) != file.size:
        raise DataError(
            f"{path} must have {file.size} {what}bytes, got {len(content)}: it is cut short or "
            f"another file. {remedy}"
        )
    if file.md5 is not None:
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != file.md5:
            raise DataError(
                f"the {what}bytes of {path} must have the md5 {file.md5}, got {found}: it is "
                f"another file. {remedy}"
            )
    return content


def _decompressed(path: Path, remedy: str) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as stream:
            return stream.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path} must be a whole gzip file, got {path.stat().st_size} bytes that are not: "
            f"{error}. {remedy}"
        ) from error


def _again(file: DataFile) -> str:
    return "Delete it to download it again." if file.url else "Put a good copy in its place."


def _the_setting() -> str:
    return f"{data_directory()} now" + ("" if os.environ.get("ALWS_DATA") else " (the default)")
