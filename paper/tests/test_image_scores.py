"""Scores of images against closed forms, and the networks they are made with."""

import io
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paper_tools import REAL, real
from PIL import Image
from scipy.linalg import sqrtm

from alws_paper.images import images
from alws_paper.images.scores import lenet
from alws_paper.images.scores.distances import (
    frechet_distance,
    gaussian_frechet_distance,
    image_scores,
    kernel_distance,
    polynomial_mmd_squared,
)
from alws_paper.images.scores.efficientnet import (
    EfficientNet,
    convolution,
    depthwise,
    expected_shapes,
)
from alws_paper.images.scores.extractors import extract
from alws_paper.images.scores.lenet import LOADERS, LeNet, accuracy, load_lenet, moved, save_lenet
from alws_paper.shared.files import DataError


def test_frechet_distance_of_gaussians():
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=(5, 5)) for _ in range(2))
    first, second = a @ a.T, b @ b.T
    mean = generator.normal(size=5)
    expected = mean @ mean + np.trace(first + second - 2 * np.real(sqrtm(first @ second)))
    found = gaussian_frechet_distance(mean, first, np.zeros(5), second)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    low = np.outer(a[0], a[0])  # of rank one
    np.testing.assert_allclose(
        gaussian_frechet_distance(mean, low, mean, 4 * low), np.trace(low), rtol=1e-6
    )


def test_frechet_distance_of_samples_goes_to_that_of_their_distributions():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(50_000, 3))
    y = generator.normal(size=(50_000, 3)) * [1.0, 2.0, 3.0] + [1.0, 0.0, 0.0]
    np.testing.assert_allclose(frechet_distance(x, y), 1 + 0 + 1 + 4, rtol=0.03)
    np.testing.assert_allclose(frechet_distance(x, x + 3.0), 27, rtol=1e-6)
    with pytest.raises(ValueError, match="same number of features, got 3 and 2"):
        frechet_distance(x, y[:, :2])
    with pytest.raises(ValueError, match="finite, got 1 entries"):
        frechet_distance(x, np.where(np.arange(50_000)[:, None] == 7, [np.nan, 0, 0], y))


def test_polynomial_mmd_has_the_value_of_its_definition_and_no_bias():
    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(4, 2)), generator.normal(size=(3, 2)) + 1
    k = lambda a, b: (a @ b / 2 + 1) ** 3  # noqa: E731
    pairs = lambda s: [k(a, b) for i, a in enumerate(s) for j, b in enumerate(s) if i != j]  # noqa: E731
    expected = np.mean(pairs(x)) + np.mean(pairs(y)) - 2 * np.mean([k(a, b) for a in x for b in y])
    np.testing.assert_allclose(polynomial_mmd_squared(x, y), expected)
    # x, y ~ N(0, 1) against N(m, 1) in one dimension: E k = 1 + 3 E(xy) + 3 E(xy)² + E(xy)³.
    null = [polynomial_mmd_squared(*generator.normal(size=(2, 10, 1))) for _ in range(500)]
    assert abs(np.mean(null)) < 4 * np.std(null) / np.sqrt(len(null))
    m = 0.5
    shifted = [
        polynomial_mmd_squared(generator.normal(size=(10, 1)), generator.normal(size=(10, 1)) + m)
        for _ in range(500)
    ]
    second, third = 1 + m**2, m**3 + 3 * m
    value = 3 * m**2 + 3 * (second - 1) ** 2 + third**2
    assert abs(np.mean(shifted) - value) < 4 * np.std(shifted) / np.sqrt(len(shifted))


def test_standard_error_of_the_kernel_distance_is_that_of_repeated_samples():
    generator = np.random.default_rng(3)
    found = [
        kernel_distance(
            generator.normal(size=(400, 2)), generator.normal(size=(400, 2)) + 0.3, subset_size=50
        )
        for _ in range(60)
    ]
    values, errors = np.array(found).T
    assert 0.7 < np.sqrt(np.mean(errors**2)) / values.std() < 1.4
    with pytest.raises(ValueError, match="samples of 400 and 400 have 1 of 300"):
        kernel_distance(np.ones((400, 2)), np.ones((400, 2)), subset_size=300)


def test_scores_carry_the_name_of_the_extractor():
    generator = np.random.default_rng(4)
    x = generator.random((130, 1, 8, 8)).astype(np.float32) * 2 - 1

    def pixels(images):
        return images.reshape(len(images), -1)

    np.testing.assert_allclose(
        extract(pixels, x, black=-1.0, white=1.0, batch_size=50),
        (x.reshape(130, -1) + 1) / 2,
        atol=1e-6,
    )
    scores = image_scores(x, x[::-1].copy(), pixels, black=-1.0, white=1.0, subset_size=50)
    assert scores.extractor == "pixels"
    assert "on pixels features: Fréchet distance" in str(scores)
    assert scores.frechet_distance == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="one row of features for each of 130"):
        extract(lambda images: images, x)
    with pytest.raises(ValueError, match="`white` must be above `black`"):
        extract(pixels, x, black=1.0, white=0.0)


def test_lenet_convolves_and_is_saved_as_it_is(tmp_path, key):
    network = LeNet("mnist", key)
    x = jax.random.uniform(key, (3, 1, 32, 32))
    h = x.transpose(0, 2, 3, 1)
    for kernel in network.kernels:
        h = jax.lax.conv_general_dilated(
            h, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        h = jax.nn.relu(h)
    h = h.reshape(3, -1)
    for matrix in network.matrices[:2]:
        h = jax.nn.relu(h @ matrix)
    np.testing.assert_allclose(network(x), h, rtol=1e-3, atol=1e-4)
    path = tmp_path / "lenet.npz"
    save_lenet(path, network, 0.5)
    loaded, recorded = load_lenet(path, "mnist")
    assert recorded == 0.5
    np.testing.assert_allclose(loaded(x), network(x), rtol=0.02, atol=0.02)
    for spoilt in (jnp.nan, jnp.inf):
        save_lenet(path, jax.tree.map(lambda a: a.at[0].set(spoilt), network), 0.5)  # noqa: B023
        with pytest.raises(ValueError, match="must hold finite floating-point numbers"):
            load_lenet(path, "mnist")
    for share in (np.nan, 7.0):
        save_lenet(path, network, share)
        with pytest.raises(ValueError, match="an accuracy from 0 to 1; it does not"):
            load_lenet(path, "mnist")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="must be a whole file written by `alws-paper lenet`"):
        load_lenet(path, "mnist")


def test_moved_images_keep_their_pixels(key):
    x = np.zeros((40, 1, 32, 32), np.float32)
    x[:, 0, 10, 12], x[:, 0, 10, 13] = 1.0, 0.5
    found = np.asarray(moved(jnp.asarray(x), key, mirror=True))
    np.testing.assert_array_equal(found.sum(axis=(1, 2, 3)), 1.5)
    rows, columns = np.array([np.argwhere(image[0] == 1)[0] for image in found]).T
    assert set(rows) == {8, 9, 10, 11, 12}
    mirrored = columns > 15
    assert 10 < mirrored.sum() < 30
    assert np.all(np.abs(columns[~mirrored] - 12) <= 2)
    assert np.all(np.abs(columns[mirrored] - 19) <= 2)


@pytest.mark.parametrize(("task", "bar"), [("mnist", 0.99), ("fashion", 0.90)])
def test_networks_in_the_package_classify(monkeypatch, task, bar):
    real(monkeypatch, {"mnist": "mnist", "fashion": "fashion-mnist"}[task])
    path = Path(lenet.__file__).parent / "weights" / f"lenet-{task}.npz"
    network, recorded = load_lenet(path, task)
    assert recorded >= bar
    pixels, labels = (array[::10] for array in LOADERS[task]("test"))
    error = np.sqrt(recorded * (1 - recorded) / len(labels))
    assert abs(accuracy(network, pixels, labels) - recorded) < 3 * error
    assert all(
        np.array_equal(a, b)
        for a, b in zip(*map(jax.tree.leaves, (network, LeNet.trained(task))), strict=True)
    )


def test_lenet_tells_digits_from_noise(monkeypatch):
    real(monkeypatch, "mnist")
    data = images("mnist", train=500, test=500)
    network = LeNet.trained("mnist")
    noise = np.random.default_rng(0).uniform(-1, 1, data.test.shape).astype(np.float32)
    settings = {"black": data.black, "white": data.white, "subset_size": 250}
    near = image_scores(data.train, data.test, network, **settings)
    far = image_scores(noise, data.test, network, **settings)
    assert near.extractor == "LeNet (mnist)"
    assert near.frechet_distance < far.frechet_distance / 5
    assert near.kernel_distance.value < far.kernel_distance.value / 5


@pytest.mark.parametrize(("side", "kernel", "stride"), [(7, 3, 2), (8, 5, 2), (6, 5, 1)])
def test_convolutions_are_those_of_xla_with_same_padding(side, kernel, stride, key):
    x = jax.random.normal(key, (2, side, side, 4))
    each = jax.random.normal(key, (4, 1, kernel, kernel))
    every = jax.random.normal(key, (3, 4, kernel, kernel))
    for found, weight, groups in (
        (depthwise(x, each, stride), each, 4),
        (convolution(x, every, stride), every, 1),
    ):
        expected = jax.lax.conv_general_dilated(
            x,
            weight,
            (stride, stride),
            "SAME",
            dimension_numbers=("NHWC", "OIHW", "NHWC"),
            feature_group_count=groups,
        )
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_efficientnet_knows_what_photographs_show(monkeypatch):
    real(monkeypatch, "weights/efficientnet_lite0.npz")
    real(monkeypatch, "natural/bsds_train_val.zip")
    shown = {"3096": {404, 895}, "42012": {286}, "309004": {294}}  # aeroplane, cougar, brown bear
    pictures = []
    with zipfile.ZipFile(REAL / "natural" / "bsds_train_val.zip") as archive:
        for name in shown:
            with Image.open(io.BytesIO(archive.read(f"bsds300/{name}.jpg"))) as image:
                small = np.asarray(image.convert("RGB").resize((224, 224)), np.float32)
            pictures.append(small.transpose(2, 0, 1) / 255)
    network = EfficientNet.load()
    logits = eqx.filter_jit(network.logits)(jnp.asarray(np.stack(pictures)))
    for row, expected in zip(np.asarray(logits), shown.values(), strict=True):
        assert int(row.argmax()) in expected


def test_bad_weights_are_refused(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, other=np.zeros(3))
    with pytest.raises(DataError, match=r"must hold 247 arrays; it lacks 247, such as '_fc"):
        EfficientNet.load(path)
    arrays = {name: np.zeros(shape, np.float16) for name, shape in expected_shapes().items()}
    name = "_blocks.3._depthwise_conv.weight"
    for wrong, message in (
        (
            np.zeros((144, 1, 3, 3), np.float16),
            r"must have shape \(144, 1, 5, 5\), got \(144",
        ),
        (np.full((144, 1, 5, 5), np.nan, np.float16), "must hold finite floating-point numbers"),
    ):
        np.savez(path, **(arrays | {name: wrong}))
        with pytest.raises(DataError, match=f"'{name}' in .* {message}"):
            EfficientNet.load(path)
    variances = "_bn0.running_var"
    np.savez(path, **(arrays | {variances: arrays[variances] - 1}))
    with pytest.raises(DataError, match=f"'{variances}' in .* must hold variances"):
        EfficientNet.load(path)
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"must be a whole `\.npz` file"):
        EfficientNet.load(path)
