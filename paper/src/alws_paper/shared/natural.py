"""Patches of natural photographs, in grey-scale.

Two sources below `natural/` in the data directory: the 300 photographs of the Berkeley set in a
zip file, 8-bit, and the linear intensities of van Hateren & van der Schaaf (1998), 16-bit.
"""

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float32
from PIL import Image

from alws.validation import at_least
from alws_paper.shared.files import DataError, DataFile, data_directory, locate
from alws_paper.shared.zipped import jpeg_names, zipped_jpeg

Source = Literal["bsds", "van_hateren"]
Part = Literal["all", "train", "test"]
Picture = Float32[np.ndarray, "height width"]

BSDS = DataFile(
    "natural/bsds_train_val.zip",
    origin="a zip file of the JPEG images of the Berkeley segmentation data set, BSDS300",
)
RAW_HEIGHT, RAW_WIDTH = 1024, 1536
RAW_SUFFIXES = (".iml", ".imc")
TIFF_SUFFIXES = (".tif", ".tiff")


def natural_patches(
    size: int, number: int, seed: int, source: Source = "bsds", part: Part = "all"
) -> Float32[np.ndarray, "number size size"]:
    """Square patches from random places of random photographs, in the source's own intensities.

    "bsds" are grey levels from 0 to 255; "van_hateren" are linear intensities, from every `.iml`,
    `.imc` and 16-bit `.tiff` file in `natural/`. The same seed gives the same patches. One
    photograph in six is kept for the `part` "test" and left out of "train".

    Example: `natural_patches(16, 1000, seed=0).shape == (1000, 16, 16)`.
    """
    at_least("size", size, 1)
    at_least("number", number, 1)
    if source not in get_args(Source):
        raise ValueError(f"`source` must be one of {get_args(Source)}, got {source!r}.")
    if part not in get_args(Part):
        raise ValueError(f"`part` must be one of {get_args(Part)}, got {part!r}.")
    pictures = _part(_bsds() if source == "bsds" else _van_hateren(), part)
    generator = np.random.default_rng(seed)
    chosen = generator.integers(len(pictures), size=number)
    places = generator.random((number, 2))
    patches = np.empty((number, size, size), np.float32)
    for index in np.unique(chosen):
        picture = pictures[index]()
        room = np.array(picture.shape) - size + 1
        if room.min() < 1:
            raise ValueError(
                f"`size` must be at most that of the photographs, {min(picture.shape)}, got {size}."
            )
        mine = np.flatnonzero(chosen == index)
        rows, columns = np.floor(places[mine] * room).astype(int).T
        windows = np.lib.stride_tricks.sliding_window_view(picture, (size, size))
        patches[mine] = windows[rows, columns]
    return patches


def _part(pictures: list[Callable[[], Picture]], part: Part) -> list[Callable[[], Picture]]:
    held_out = max(1, len(pictures) // 6)
    if part == "all":
        return pictures
    if len(pictures) < 2:
        raise DataError(
            "training and test patches must come from different photographs, so there must be at "
            f"least 2; there is {len(pictures)} in {data_directory() / 'natural'}. Put more there."
        )
    return pictures[-held_out:] if part == "test" else pictures[:-held_out]


def _bsds() -> list[Callable[[], Picture]]:
    path = locate(BSDS)
    return [partial(_grey, path, name) for name in jpeg_names(path, BSDS.origin)]


def _grey(path: Path, name: str) -> Picture:
    with zipfile.ZipFile(path) as archive:
        return np.asarray(zipped_jpeg(archive, name, "L"), np.float32)


def _van_hateren() -> list[Callable[[], Picture]]:
    folder = data_directory() / "natural"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    pictures = [partial(_raw, path) for path in files if path.suffix.lower() in RAW_SUFFIXES]
    pictures += [partial(_tiff, path) for path in files if path.suffix.lower() in TIFF_SUFFIXES]
    if not pictures:
        raise DataError(
            f"{folder} must hold the van Hateren images, {', '.join(RAW_SUFFIXES + TIFF_SUFFIXES)}"
            f", and there are none. Put them there, or set ALWS_DATA to the directory that holds "
            f"`natural`; it is {data_directory()}."
        )
    return pictures


def _raw(path: Path) -> Picture:
    expected = 2 * RAW_HEIGHT * RAW_WIDTH
    if path.stat().st_size != expected:
        raise DataError(
            f"{path} must have {expected} bytes, {RAW_HEIGHT}×{RAW_WIDTH} numbers of 16 bits, got "
            f"{path.stat().st_size}: it is cut short or another file. Put a good copy in its place."
        )
    return np.fromfile(path, ">u2").reshape(RAW_HEIGHT, RAW_WIDTH).astype(np.float32)


def _tiff(path: Path) -> Picture:
    try:
        with Image.open(path) as image:
            values = np.asarray(image)
    except OSError as error:
        raise DataError(
            f"{path} must be a TIFF image: {error}. Put a good copy in its place."
        ) from error
    if values.ndim != 2 or values.dtype != np.uint16:
        raise DataError(
            f"{path} must be a grey-scale image of 16 bits, got {values.dtype} of shape "
            f"{values.shape}. Take it out of the folder, or convert it."
        )
    return values.astype(np.float32)
