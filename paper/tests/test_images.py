"""The six sets of images: processed as the appendix says, and bad files refused."""

import gzip
import io
import sys
import tarfile
import zipfile

import numpy as np
import pytest
from paper_tools import idx, jpegs, real
from PIL import Image

from alws_paper.images.data.celeba import celeba, celeba_names
from alws_paper.images.data.cifar import FOLDER, RECORD, cifar10, read_cifar
from alws_paper.images.data.images import images
from alws_paper.shared.files import DataError, DataFile


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("ALWS_DATA", str(tmp_path))
    return tmp_path


def records(number, seed=0):
    rows = np.random.default_rng(seed).integers(256, size=(number, RECORD)).astype(np.uint8)
    rows[:, 0] %= 10
    return rows


def write_batches(folder, names, number=10_000):
    folder.mkdir(parents=True)
    for seed, name in enumerate(names):
        (folder / name).write_bytes(records(number, seed).tobytes())


def test_cifar_records_are_label_then_channels(directory):
    rows = records(10_000)
    pixels, labels = read_cifar(rows.tobytes())
    np.testing.assert_array_equal(labels, rows[:, 0])
    np.testing.assert_array_equal(pixels[17, 2, 3, 5], rows[17, 1 + 2 * 1024 + 3 * 32 + 5])
    with pytest.raises(DataError, match=r"must have 30730000 bytes.*got 30729999"):
        read_cifar(rows.tobytes()[:-1])
    rows[5, 0] = 10
    with pytest.raises(DataError, match="must be below 10, got 10"):
        read_cifar(rows.tobytes())


def test_cifar_batches_of_a_folder_are_joined(directory):
    folder = directory / "cifar-10" / FOLDER
    write_batches(folder, ["data_batch_1.bin", "data_batch_3.bin"])
    pixels, labels = cifar10("train")
    assert pixels.shape == (20_000, 3, 32, 32)
    np.testing.assert_array_equal(labels[10_000:], records(10_000, 1)[:, 0])
    with pytest.raises(DataError, match=r"must hold test_batch\.bin, and there is none"):
        cifar10("test")
    (folder / "test_batch.bin").write_bytes(bytes(100))
    with pytest.raises(DataError, match=r"test_batch\.bin must have 30730000 bytes.*got 100"):
        cifar10("test")


def test_cifar_archive_is_downloaded_and_read(directory, tmp_path_factory, monkeypatch):
    source = tmp_path_factory.mktemp("source") / "archive.tar.gz"
    rows = records(10_000).tobytes()
    with tarfile.open(source, "w:gz", compresslevel=1) as archive:
        member = tarfile.TarInfo(f"{FOLDER}/test_batch.bin")
        member.size = len(rows)
        archive.addfile(member, io.BytesIO(rows))
    file = DataFile("cifar-10/cifar-10-binary.tgz", source.stat().st_size, url=source.as_uri())
    monkeypatch.setattr("alws_paper.images.data.cifar.ARCHIVE", file)
    np.testing.assert_array_equal(cifar10("test")[1], records(10_000)[:, 0])
    assert (directory / file.name).is_file()
    with pytest.raises(DataError, match="whole tar archive"):
        cifar10("train")
    cut = source.read_bytes()[:1000]
    (directory / file.name).write_bytes(cut)
    with pytest.raises(DataError, match=f"must have {file.size} bytes, got 1000"):
        cifar10("test")


def test_celeba_is_the_middle_square_made_smaller(directory):
    with pytest.raises(DataError, match=r"img_align_celeba\.zip.*mmlab"):
        celeba_names()
    (directory / "celeba").mkdir()
    tall = np.zeros((218, 178, 3), np.uint8)
    ramp = (np.arange(218) - 19.5) * 250 / 178  # over the middle square, from row 20 to 198
    tall[:] = np.clip(ramp, 0, 250)[:, None, None]
    tall[:, :, 2] = 90
    jpegs(directory / "celeba" / "img_align_celeba_10k.zip", [tall, tall[::-1].copy()])
    names = celeba_names()
    assert names == ["pictures/0.jpg", "pictures/1.jpg"]
    faces = celeba(names)
    assert faces.shape == (2, 3, 32, 32)
    np.testing.assert_allclose(faces[0, 0, :, 9], (np.arange(32) + 0.5) * 250 / 32, atol=4)
    np.testing.assert_allclose(faces[1, 0, ::-1], faces[0, 0], atol=4)
    np.testing.assert_allclose(faces[:, 2], 90, atol=4)
    with pytest.raises(DataError, match="must hold every face asked for"):
        celeba(["absent.jpg"])
    jpegs(directory / "celeba" / "img_align_celeba.zip", [tall])
    assert len(celeba_names()) == 1, "the whole set comes first"


def test_bad_zip_of_faces_is_refused(directory):
    path = directory / "celeba" / "img_align_celeba.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("1.jpg", b"no image")
    with pytest.raises(DataError, match=r"`1\.jpg` in .* must be a JPEG image"):
        celeba(celeba_names())
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match="whole zip file"):
        celeba_names()


def test_natural_test_patches_come_from_other_photographs(directory):
    (directory / "natural").mkdir()
    flat = [np.full((40, 50), 20 * i, np.uint8) for i in range(12)]
    with zipfile.ZipFile(directory / "natural" / "bsds_train_val.zip", "w") as archive:
        for i, picture in enumerate(flat):
            content = io.BytesIO()
            Image.fromarray(picture).save(content, "JPEG", quality=100)
            archive.writestr(f"{i:02}.jpg", content.getvalue())
    found = images("natural", train=500, test=100)
    assert found.train.shape == (500, 1, 32, 32)
    np.testing.assert_allclose([found.train.mean(), found.train.std()], [0, 1], atol=1e-3)
    grey = lambda x: 255 * (x - found.black) / (found.white - found.black)  # noqa: E731
    first = [grey(x)[:, 0, 0, 0] / 20 for x in (found.train, found.test)]
    levels = [set(np.round(x).astype(int)) for x in first]
    assert levels == [set(range(10)), {10, 11}]
    jpegs(directory / "natural" / "bsds_train_val.zip", flat[:1])
    with pytest.raises(DataError, match="different photographs"):
        images("natural", train=5, test=5)


def small_mnist(directory, monkeypatch):
    """Ten training images and four test images in place of the real ones."""
    generator = np.random.default_rng(3)
    sizes, sums = {"train": 10, "test": 4}, {}
    (directory / "mnist").mkdir()
    pixels = {}
    for split, stem in (("train", "train"), ("test", "t10k")):
        pixels[split] = generator.integers(256, size=(sizes[split], 28, 28)).astype(np.uint8)
        for kind, array in (
            ("images-idx3", pixels[split]),
            ("labels-idx1", np.arange(sizes[split], dtype=np.uint8)),
        ):
            path = directory / "mnist" / f"{stem}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(idx(array)))
        sums["mnist", split] = (None, None)
    monkeypatch.setattr(sys.modules["alws_paper.shared.mnist"], "SIZES", sizes)
    monkeypatch.setattr(sys.modules["alws_paper.shared.mnist"], "MD5", sums)
    return pixels


def test_digits_are_padded_and_rescaled(directory, monkeypatch):
    pixels = small_mnist(directory, monkeypatch)
    found = images("mnist")
    assert found.train.shape == (10, 1, 32, 32)
    assert found.note == "10 of the paper's 60,000 training images"
    np.testing.assert_allclose(found.test[:, 0, 2:-2, 2:-2], pixels["test"] / 127.5 - 1, atol=1e-6)
    border = found.train.copy()
    border[:, :, 2:-2, 2:-2] = -1
    np.testing.assert_array_equal(border, -1)
    assert (found.black, found.white) == (-1, 1)
    assert images("mnist", train=3, test=2).train.shape[0] == 3


def test_binarised_digits_have_the_pixel_as_their_probability(directory, monkeypatch):
    pixels = small_mnist(directory, monkeypatch)
    drawn = np.stack([images("b-mnist", seed=seed).train for seed in range(300)])
    assert set(np.unique(drawn)) == {0, 1}
    share = drawn[:, :, 0, 2:-2, 2:-2].mean(axis=0)
    probability = pixels["train"] / 255
    z = (share - probability) / np.sqrt(probability * (1 - probability) / 300 + 1e-9)
    assert 0.95 < np.std(z) < 1.05
    np.testing.assert_array_equal(drawn[0], images("b-mnist").train)
    with pytest.raises(ValueError, match="`train` must be a whole number of at least 1, got 0"):
        images("mnist", train=0)


@pytest.mark.parametrize(
    ("name", "needs", "shape", "note"),
    [
        ("b-mnist", "mnist", (200, 1, 32, 32), None),
        ("fashion", "fashion-mnist", (200, 1, 32, 32), None),
        ("natural", "natural/bsds_train_val.zip", (200, 1, 32, 32), None),
        ("cifar-10", "cifar-10", (200, 3, 32, 32), "training images"),
        ("celeba", "celeba", (200, 3, 32, 32), "training images"),
    ],
)
def test_real_images(monkeypatch, name, needs, shape, note):
    real(monkeypatch, needs)
    found = images(name, train=200, test=100)
    assert found.train.shape == shape
    assert found.test.shape == (100, *shape[1:])
    assert found.train.dtype == np.float32
    if name != "natural":
        assert found.train.min() == found.black
        assert found.train.max() == found.white
    if note:
        assert found.note == "" or note in found.note
    neighbours = np.corrcoef(found.train[..., :-1].ravel(), found.train[..., 1:].ravel())[0, 1]
    assert neighbours > 0.6, "pixels of images resemble their neighbours"
