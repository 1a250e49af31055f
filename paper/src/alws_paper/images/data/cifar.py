"""CIFAR-10: 50,000 + 10,000 colour images of 32×32 in ten classes, in the binary version.

Each record is one byte of label and 3072 bytes of pixels, channel by channel, row by row. The
Python version of the set is made of pickles, which may run code when loaded; it is not read.
"""

import io
import tarfile
from pathlib import Path
from typing import get_args

import numpy as np
from jaxtyping import UInt8

from alws_paper.shared.files import DataError, DataFile, data_directory, locate
from alws_paper.shared.mnist import Split

FOLDER = "cifar-10-batches-bin"
RECORD = 1 + 3 * 32 * 32
IN_A_BATCH = 10_000
CLASSES = 10
BATCHES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}
ARCHIVE = DataFile(
    "cifar-10/cifar-10-binary.tgz",  # not `.gz`: size and checksum are those of the archive itself
    170_052_171,
    "c32a1d4ab5d03f1284b67883e8d87530",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
)


def cifar10(
    split: Split = "train",
) -> tuple[UInt8[np.ndarray, "images 3 32 32"], UInt8[np.ndarray, " images"]]:
    """Small colour pictures and which of ten kinds of thing each shows.

    They are read from `cifar-10/cifar-10-batches-bin/` if it is there, as many of the five training
    batches as it holds, and from the downloaded archive if not.

    Example: `images, labels = cifar10("test")`; `images.shape == (10000, 3, 32, 32)`, 0 to 255.
    """
    if split not in get_args(Split):
        raise ValueError(f"`split` must be one of {get_args(Split)}, got {split!r}.")
    folder = data_directory() / "cifar-10" / FOLDER
    contents = _unpacked(folder, split) if folder.is_dir() else _archived(split)
    parts = [read_cifar(content, name) for name, content in contents.items()]
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def read_cifar(
    content: bytes, name: str = "the file", records: int = IN_A_BATCH
) -> tuple[UInt8[np.ndarray, "images 3 32 32"], UInt8[np.ndarray, " images"]]:
    """Images and labels in the bytes of one batch of the binary version.

    Example: `read_cifar(bytes([7]) + bytes(3072), records=1)` is one black image of class 7.
    """
    if len(content) != records * RECORD:
        raise DataError(
            f"{name} must have {records * RECORD} bytes, {records} records of {RECORD}; got "
            f"{len(content)}: it is cut short or another file. Put a whole copy of the binary "
            "version in its place."
        )
    rows = np.frombuffer(content, np.uint8).reshape(records, RECORD)
    labels = rows[:, 0].copy()
    if labels.max() >= CLASSES:
        raise DataError(
            f"the labels in {name} must be below {CLASSES}, got {labels.max()}: it is not a batch "
            "of the binary version of CIFAR-10. Put the right file in its place."
        )
    return rows[:, 1:].reshape(records, 3, 32, 32).copy(), labels


def _unpacked(folder: Path, split: Split) -> dict[str, bytes]:
    found = [folder / name for name in BATCHES[split] if (folder / name).is_file()]
    if not found:
        raise DataError(
            f"{folder} must hold {' or '.join(BATCHES[split])}, and there is none. Put the files "
            "of the binary version there, or remove the folder to have them downloaded."
        )
    return {str(path): path.read_bytes() for path in found}


def _archived(split: Split) -> dict[str, bytes]:
    path = locate(ARCHIVE)
    try:
        with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
            members = [archive.extractfile(f"{FOLDER}/{name}") for name in BATCHES[split]]
            return {
                f"{name} in {path}": member.read()
                for name, member in zip(BATCHES[split], members, strict=True)
                if member is not None
            }
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise DataError(
            f"{path} must be a whole tar archive of the binary version: {error}. Delete it to "
            "download it again."
        ) from error
