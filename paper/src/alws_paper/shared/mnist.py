"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey-scale images of 28×28, in the IDX format."""

import struct
from typing import Literal, get_args

import numpy as np
from jaxtyping import UInt8

from alws_paper.shared.files import DataError, DataFile, read

Split = Literal["train", "test"]
Images = UInt8[np.ndarray, "images 28 28"]
Labels = UInt8[np.ndarray, " images"]

UNSIGNED_BYTE = 8
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
FASHION_URL = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"
SIZES = {"train": 60_000, "test": 10_000}
NAMES = {"train": "train", "test": "t10k"}
MD5 = {
    ("mnist", "train"): ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"),
    ("mnist", "test"): ("2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
    ("fashion-mnist", "train"): (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
    ),
    ("fashion-mnist", "test"): (
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
}


def mnist(split: Split = "train") -> tuple[Images, Labels]:
    """Handwritten digits and which digit each is.

    Example: `images, labels = mnist("test")`; `images.shape == (10000, 28, 28)`, 0 to 255.
    """
    return _images_and_labels("mnist", MNIST_URL, split)


def fashion_mnist(split: Split = "train") -> tuple[Images, Labels]:
    """Pictures of garments and which of ten kinds each is.

    Example: `images, labels = fashion_mnist("train")`; `images.shape == (60000, 28, 28)`.
    """
    return _images_and_labels("fashion-mnist", FASHION_URL, split)


def read_idx(content: bytes, name: str = "the file") -> UInt8[np.ndarray, "..."]:
    """The array in the bytes of an IDX file of unsigned bytes.

    Two zero bytes, the type (8), the number of dimensions, each dimension as a big-endian 32-bit
    number, then the entries in C order.

    Example: `read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6]))` is `[5, 6]`.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise DataError(
            f"{name} must be an IDX file of unsigned bytes, which begins with the bytes 0 0 8; it "
            f"begins with {list(content[:3])}. Put the right file in its place."
        )
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", content[4:start]) if len(content) >= start else None
    expected = start + int(np.prod(shape)) if shape is not None else start
    if shape is None or len(content) != expected:
        raise DataError(
            f"{name} must have {expected} bytes by its own header, got {len(content)}: it is cut "
            "short or damaged. Put a whole copy in its place."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def _images_and_labels(folder: str, url: str, split: Split) -> tuple[Images, Labels]:
    if split not in get_args(Split):
        raise ValueError(f"`split` must be one of {get_args(Split)}, got {split!r}.")
    number = SIZES[split]
    arrays = []
    for kind, shape, md5 in zip(
        ("images-idx3", "labels-idx1"),
        ((number, 28, 28), (number,)),
        MD5[folder, split],
        strict=True,
    ):
        name = f"{NAMES[split]}-{kind}-ubyte.gz"
        header = 4 + 4 * len(shape)
        file = DataFile(f"{folder}/{name}", header + int(np.prod(shape)), md5, f"{url}/{name}")
        arrays.append(read_idx(read(file), file.name))
    return arrays[0], arrays[1]
