"""CelebA: aligned photographs of faces, cropped to the middle square and made smaller.

The images may be used for research that is not commercial only, and cannot be downloaded without
agreeing to that; ask for them at the address below and put the zip file into the data directory.
"""

import zipfile

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from alws.validation import at_least
from alws_paper.shared.files import DataError, DataFile, data_directory, locate
from alws_paper.shared.zipped import jpeg_names, zipped_jpeg

ORIGIN = (
    "the zip file of aligned and cropped JPEG images from "
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
)
WHOLE = DataFile("celeba/img_align_celeba.zip", origin=ORIGIN)
SOME = DataFile("celeba/img_align_celeba_10k.zip", origin=ORIGIN)


def celeba_names() -> list[str]:
    """The names of the faces there are, in the order of the set.

    Example: `celeba_names()[0] == "img_align_celeba/000001.jpg"`.
    """
    return jpeg_names(locate(_file()), ORIGIN)


def celeba(names: list[str], side: int = 32) -> UInt8[np.ndarray, "images 3 side side"]:
    """The middle square of each named face, brought to `side`×`side` by bilinear interpolation.

    Example: `celeba(celeba_names()[:1000]).shape == (1000, 3, 32, 32)`, 0 to 255.
    """
    at_least("side", side, 1)
    faces = np.empty((len(names), 3, side, side), np.uint8)
    path = locate(_file())
    try:
        with zipfile.ZipFile(path) as archive:
            for face, name in zip(faces, names, strict=True):
                image = zipped_jpeg(archive, name, "RGB")
                width, height = image.size
                square = min(width, height)
                left, top = (width - square) / 2, (height - square) / 2
                small = image.resize(
                    (side, side),
                    Image.Resampling.BILINEAR,
                    box=(left, top, left + square, top + square),
                )
                face[:] = np.asarray(small).transpose(2, 0, 1)
    except KeyError as error:
        raise DataError(
            f"{path} must hold every face asked for: {error}. Take names from `celeba_names`."
        ) from error
    return faces


def _file() -> DataFile:
    """The whole set if it is there, else the first ten thousand."""
    some = (data_directory() / SOME.name).is_file()
    return SOME if some and not (data_directory() / WHOLE.name).is_file() else WHOLE
