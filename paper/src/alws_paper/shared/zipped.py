"""JPEG images in a zip file: their names, and one of them at a time."""

import io
import zipfile
import zlib
from pathlib import Path

from PIL import Image

from alws_paper.shared.files import DataError

JPEG_SUFFIXES = (".jpg", ".jpeg")


def jpeg_names(path: Path, origin: str) -> list[str]:
    """The names of the JPEG images in a zip file, sorted; `origin` says what it should be.

    Example: `jpeg_names(Path("bsds_train_val.zip"), "the images of BSDS300")`.
    """
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise DataError(
            f"{path} must be a whole zip file, got {path.stat().st_size} bytes that are not: "
            f"{error}. Put a good copy in its place: {origin}."
        ) from error
    with archive:
        names = sorted(n for n in archive.namelist() if n.lower().endswith(JPEG_SUFFIXES))
    if not names:
        raise DataError(f"{path} must hold JPEG images, got none. It should be {origin}.")
    return names


def zipped_jpeg(archive: zipfile.ZipFile, name: str, mode: str) -> Image.Image:
    """One image in an open zip file, as grey levels (`mode` "L") or colours ("RGB").

    Example: `with zipfile.ZipFile(path) as archive: image = zipped_jpeg(archive, "1.jpg", "L")`.
    """
    try:
        with archive.open(name) as member:
            content = io.BytesIO(member.read())
        with Image.open(content) as image:
            return image.convert(mode)
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"`{name}` in {archive.filename} must be a JPEG image: {error}. Put a good copy in its "
            "place."
        ) from error
