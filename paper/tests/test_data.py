"""Loaders of real data: whole files are read, all others refused; downloads are all or nothing."""

import gzip
import hashlib
import http.server
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from paper_tools import idx, jpegs, real
from PIL import Image

from alws_paper.shared.files import DataError, DataFile, data_directory, fetch, locate, read
from alws_paper.shared.mnist import fashion_mnist, mnist, read_idx
from alws_paper.shared.natural import natural_patches

CONTENT = b"all of these bytes belong together" * 100
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("ALWS_DATA", str(tmp_path))
    return tmp_path


def entries(directory):
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


class Server:
    """Serves CONTENT; `send` bytes of it although the header promises all."""

    def __init__(self, send):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Length", str(len(CONTENT)))
                self.end_headers()
                self.wfile.write(CONTENT[:send])

            def log_message(self, *args):
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self):
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_address[1]}/file"

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def test_directory_is_the_variable_or_the_cache(monkeypatch):
    monkeypatch.setenv("ALWS_DATA", "/somewhere/else")
    assert data_directory() == Path("/somewhere/else")
    monkeypatch.setenv("ALWS_DATA", "")
    assert data_directory() == Path.home() / ".cache" / "alws" / "data"
    monkeypatch.delenv("ALWS_DATA")
    assert data_directory() == Path.home() / ".cache" / "alws" / "data"


def test_absent_file_without_an_address_says_where_it_should_lie(directory):
    with pytest.raises(DataError, match=r"a/b\.bin.*ask the authors.*ALWS_DATA") as caught:
        locate(DataFile("a/b.bin", origin="ask the authors"))
    assert str(directory / "a" / "b.bin") in str(caught.value)
    with pytest.raises(DataError, match="no address"):
        fetch(DataFile("a/b.bin"))


def test_file_that_is_there_is_checked(directory):
    (directory / "a.bin").write_bytes(CONTENT)
    good = DataFile("a.bin", len(CONTENT), MD5)
    assert locate(good) == directory / "a.bin"
    assert read(good) == CONTENT
    with pytest.raises(DataError, match=f"must have 5 bytes, got {len(CONTENT)}"):
        locate(DataFile("a.bin", 5))
    (directory / "a.bin").write_bytes(CONTENT[::-1])
    with pytest.raises(DataError, match=f"md5 {MD5}, got"):
        locate(good)


def test_checks_are_of_decompressed_bytes(directory):
    for level in (1, 9):
        (directory / "a.gz").write_bytes(gzip.compress(CONTENT, level))
        assert read(DataFile("a.gz", len(CONTENT), MD5)) == CONTENT
    whole = gzip.compress(CONTENT)
    for bad in (whole[:-20], b"not gzip at all", whole[:20] + b"\xff" * 40 + whole[60:]):
        (directory / "a.gz").write_bytes(bad)
        with pytest.raises(DataError, match="whole gzip file"):
            locate(DataFile("a.gz", len(CONTENT), MD5))


def test_download_from_a_file_address(directory, tmp_path_factory):
    source = tmp_path_factory.mktemp("source") / "a.bin"
    source.write_bytes(CONTENT)
    file = DataFile("deep/a.bin", len(CONTENT), MD5, source.as_uri())
    assert read(file) == CONTENT
    source.unlink()
    assert read(file) == CONTENT, "the second time the file is there"
    assert entries(directory) == ["deep/a.bin"]


def test_wrong_download_is_not_kept(directory, tmp_path_factory):
    source = tmp_path_factory.mktemp("source") / "a.bin"
    source.write_bytes(CONTENT[::-1])
    with pytest.raises(DataError, match="md5"):
        locate(DataFile("a.bin", len(CONTENT), MD5, source.as_uri()))
    with pytest.raises(DataError, match="could not be downloaded"):
        locate(DataFile("b.bin", url=(source.parent / "absent").as_uri()))
    assert entries(directory) == []


@pytest.mark.parametrize("known", [{}, {"size": len(CONTENT), "md5": MD5}])
def test_interrupted_download_is_not_taken_for_whole(directory, known):
    (directory / "a.bin").write_bytes(b"what was there before")
    with Server(send=len(CONTENT) // 2) as url, pytest.raises(DataError, match="download"):
        fetch(DataFile("a.bin", url=url, **known))
    assert (directory / "a.bin").read_bytes() == b"what was there before"
    assert entries(directory) == ["a.bin"]
    with Server(send=len(CONTENT)) as url:
        fetch(DataFile("a.bin", url=url, **known))
    assert (directory / "a.bin").read_bytes() == CONTENT


def test_directory_that_cannot_be_made_is_reported(tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file, not a directory")
    monkeypatch.setenv("ALWS_DATA", str(tmp_path / "taken"))
    with pytest.raises(DataError, match="writable"):
        fetch(DataFile("a.bin", url="file:///nowhere"))


def test_idx_round_trip_and_refusals():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(read_idx(idx(array)), array)
    with pytest.raises(DataError, match="must have 40 bytes by its own header, got 39"):
        read_idx(idx(array)[:-1])
    with pytest.raises(DataError, match="got 41"):
        read_idx(idx(array) + b"x")
    with pytest.raises(DataError, match="must have 16 bytes"):
        read_idx(idx(array)[:7])
    for wrong in (b"", b"\x89PNG and so on", b"\0\0\x0d\1" + idx(array)[4:]):
        with pytest.raises(DataError, match="begins with"):
            read_idx(wrong)


def test_cut_mnist_is_refused(directory):
    (directory / "mnist").mkdir()
    path = directory / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(np.zeros((9_999, 28, 28), np.uint8))))
    with pytest.raises(DataError, match="7840016 decompressed bytes, got 7839232"):
        mnist("test")
    path.write_bytes(gzip.compress(idx(np.zeros((10_000, 28, 28), np.uint8))))
    with pytest.raises(DataError, match="md5"):
        mnist("test")


@pytest.mark.parametrize(
    ("loader", "folder", "mean", "first"),
    [
        (mnist, "mnist", 33.79, [7, 2, 1, 0, 4]),
        (fashion_mnist, "fashion-mnist", 73.15, [9, 2, 1, 1, 6]),
    ],
)
def test_real_test_images(monkeypatch, loader, folder, mean, first):
    real(monkeypatch, folder)
    images, labels = loader("test")
    assert images.shape == (10_000, 28, 28)
    assert images.dtype == np.uint8
    assert labels[:5].tolist() == first
    assert images.mean() == pytest.approx(mean, abs=0.01)
    assert images.flags.writeable


def test_patches_are_cut_from_the_photographs(directory):
    (directory / "natural").mkdir()
    ramp = (np.arange(40)[:, None] * 3 + np.arange(60)[None, :] * 2).astype(np.uint8)
    jpegs(directory / "natural" / "bsds_train_val.zip", [ramp, np.full((60, 40), 7, np.uint8)])
    patches = natural_patches(8, 200, seed=0)
    assert patches.shape == (200, 8, 8)
    flat = np.ptp(patches, axis=(1, 2)) < 5
    np.testing.assert_allclose(patches[flat], 7, atol=2)
    steps = np.diff(patches[~flat], axis=1).mean(), np.diff(patches[~flat], axis=2).mean()
    np.testing.assert_allclose(steps, (3, 2), atol=0.05)
    assert 60 < flat.sum() < 140, "both photographs have their share"
    corners = patches[~flat][:, 0, 0]
    assert np.ptp(corners) > 0.8 * (32 * 3 + 52 * 2), "places from everywhere"
    np.testing.assert_array_equal(natural_patches(8, 200, seed=0), patches)
    assert not np.array_equal(natural_patches(8, 200, seed=1), patches)


def test_bad_photographs_are_refused(directory):
    with pytest.raises(DataError, match=r"bsds_train_val\.zip.*Berkeley"):
        natural_patches(8, 3, seed=0)
    (directory / "natural").mkdir()
    path = directory / "natural" / "bsds_train_val.zip"
    jpegs(path, [np.zeros((20, 30), np.uint8)])
    whole = path.read_bytes()
    with pytest.raises(ValueError, match="at most that of the photographs, 20, got 21"):
        natural_patches(21, 3, seed=0)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="whole zip file"):
        natural_patches(8, 3, seed=0)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("0.jpg", b"no image")
    with pytest.raises(DataError, match="JPEG"):
        natural_patches(8, 3, seed=0)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README", b"no image")
    with pytest.raises(DataError, match="got none"):
        natural_patches(8, 3, seed=0)


def test_van_hateren_formats_agree(directory):
    folder = directory / "natural"
    with pytest.raises(DataError, match="van Hateren"):
        natural_patches(8, 3, seed=0, source="van_hateren")
    folder.mkdir()
    values = (np.arange(1024)[:, None] * 40 + np.arange(1536)[None, :]).astype(np.uint16)
    (folder / "imk00001.iml").write_bytes(values.astype(">u2").tobytes())
    raw = natural_patches(8, 50, seed=0, source="van_hateren")
    np.testing.assert_array_equal(np.diff(raw, axis=1), 40)
    np.testing.assert_array_equal(np.diff(raw, axis=2), 1)
    (folder / "imk00001.iml").unlink()
    Image.fromarray(values).save(folder / "image.tiff")
    np.testing.assert_array_equal(natural_patches(8, 50, seed=0, source="van_hateren"), raw)
    (folder / "imk00002.imc").write_bytes(values.tobytes()[:-2])
    with pytest.raises(DataError, match="3145728 bytes"):
        natural_patches(8, 50, seed=0, source="van_hateren")
    (folder / "imk00002.imc").unlink()
    Image.fromarray(np.zeros((30, 30), np.uint8)).save(folder / "image.tiff")
    with pytest.raises(DataError, match="16 bits, got uint8"):
        natural_patches(8, 50, seed=0, source="van_hateren")


def test_real_photographs(monkeypatch):
    real(monkeypatch, "natural/bsds_train_val.zip")
    patches = natural_patches(16, 300, seed=0)
    assert patches.min() >= 0
    assert patches.max() <= 255
    neighbours = np.corrcoef(patches[:, :, :-1].ravel(), patches[:, :, 1:].ravel())[0, 1]
    assert neighbours > 0.9, "pixels of natural images resemble their neighbours"


def test_real_van_hateren(monkeypatch):
    real(monkeypatch, "natural/van_hateren_one_image.tiff")
    patches = natural_patches(16, 300, seed=0, source="van_hateren")
    assert patches.min() >= 88
    assert patches.max() <= 7828
