"""What several test files use: the command, files of data made up, and those that are real."""

import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from alws_paper.cli import app

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
REAL = Path(os.environ.get("ALWS_DATA") or BESIDE)
RUNNER = CliRunner()


def invoke(*arguments):
    """`alws-paper` with these arguments."""
    return RUNNER.invoke(app, [str(a) for a in arguments])


def real(monkeypatch, name):
    """Use the real data, or skip the test if this file is not among them."""
    if not (REAL / name).exists():
        pytest.skip(f"{name} is not in {REAL}; set ALWS_DATA to a directory that holds it")
    monkeypatch.setenv("ALWS_DATA", str(REAL))


def idx(array):
    """An array of bytes in the IDX format."""
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + bytes(np.ascontiguousarray(array))


def jpegs(path, pictures):
    """A zip file of JPEG images."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, picture in enumerate(pictures):
            with archive.open(f"pictures/{number}.jpg", "w") as member:
                Image.fromarray(picture).save(member, "JPEG", quality=100)
