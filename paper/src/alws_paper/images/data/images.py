"""The six sets of images of §4.7, each [channels, 32, 32], processed as in the paper's appendix.

| name | images | values |
|---|---|---|
| b-mnist | digits, zero-padded | 0 or 1, drawn once with the pixel as the probability |
| mnist, fashion | zero-padded | −1 to 1 |
| natural | patches of photographs, not clipped | mean 0 and standard deviation 1 over the set |
| cifar-10 | as they are | −1 to 1 |
| celeba | the middle square, interpolated | −1 to 1 |
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float32, UInt8

from alws.validation import at_least
from alws_paper.images.data.celeba import celeba, celeba_names
from alws_paper.images.data.cifar import cifar10
from alws_paper.shared.mnist import fashion_mnist, mnist
from alws_paper.shared.natural import Source, natural_patches

Name = Literal["b-mnist", "mnist", "fashion", "natural", "cifar-10", "celeba"]

TRAIN_SIZES = {
    "b-mnist": 60_000,
    "mnist": 60_000,
    "fashion": 60_000,
    "natural": 100_000,
    "cifar-10": 50_000,
    "celeba": 100_000,
}
"""How many training images the paper has."""
MOST_TEST = 10_000
WHITE_QUANTILE = 0.999
"""Linear intensities have no largest value; this quantile of them is shown as white."""


@dataclass(frozen=True)
class Images:
    """Training and test images, and which values in them are black and white.

    `note` says what is missing when there are fewer training images than the paper had.
    """

    name: str
    train: Float32[np.ndarray, "train channels 32 32"]
    test: Float32[np.ndarray, "test channels 32 32"]
    black: float
    white: float
    note: str = ""


def images(
    name: Name,
    *,
    train: int | None = None,
    test: int | None = None,
    seed: int = 0,
    source: Source = "bsds",
) -> Images:
    """One of the six sets; `train` and `test` are the most images to take of each, all if None.

    The seed is that of the binarisation and of the places of natural patches; `source` is theirs.

    Example: `images("fashion", train=1000).train.shape == (1000, 1, 32, 32)`.
    """
    if name not in get_args(Name):
        raise ValueError(f"`name` must be one of {', '.join(get_args(Name))}; got {name!r}.")
    for argument, value in (("train", train), ("test", test)):
        if value is not None:
            at_least(argument, value, 1)
    sizes = train or TRAIN_SIZES[name], test or MOST_TEST
    if name == "natural":
        return _natural(sizes, seed, source)
    if name == "celeba":
        names = celeba_names()
        held_out = min(MOST_TEST, max(1, len(names) // 10))
        known = names[: TRAIN_SIZES[name]][: len(names) - held_out]
        there, parts = (
            len(known),
            [celeba(known[: sizes[0]]), celeba(names[-held_out:][: sizes[1]])],
        )
    else:
        loader = {"fashion": fashion_mnist, "cifar-10": cifar10}.get(name, mnist)
        whole = loader("train")[0]
        there, parts = len(whole), [whole[: sizes[0]], loader("test")[0][: sizes[1]]]
    paper = TRAIN_SIZES[name]
    note = "" if there >= paper else f"{there:,} of the paper's {paper:,} training images"
    padded = [pad(part) for part in parts]
    if name == "b-mnist":
        ones, others = _binarised(padded, seed)
        return Images(name, ones, others, 0.0, 1.0, note)
    return Images(name, rescaled(padded[0]), rescaled(padded[1]), -1.0, 1.0, note)


def pad(pixels: UInt8[np.ndarray, "n ..."]) -> UInt8[np.ndarray, "n channels 32 32"]:
    """Images of [28, 28] with two zeros on every side; those of [channels, 32, 32] as they are.

    Example: `pad(mnist("test")[0]).shape == (10000, 1, 32, 32)`.
    """
    return np.pad(pixels, ((0, 0), (2, 2), (2, 2)))[:, None] if pixels.ndim == 3 else pixels


def rescaled(pixels: UInt8[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    """0 to 255 as −1 to 1.

    Example: `rescaled(np.array([0, 255], np.uint8))` is `[-1, 1]`.
    """
    return pixels.astype(np.float32) / np.float32(127.5) - 1


def _binarised(parts: list[np.ndarray], seed: int) -> list[Float32[np.ndarray, "n 1 32 32"]]:
    """Each pixel 1 with probability pixel/255; one stream for training, one for test images."""
    streams = np.random.default_rng(seed).spawn(2)
    return [
        (stream.random(part.shape, np.float32) < part / np.float32(255)).astype(np.float32)
        for stream, part in zip(streams, parts, strict=True)
    ]


def _natural(sizes: tuple[int, int], seed: int, source: Source) -> Images:
    """Patches of other photographs for the test, by the scale of the training patches."""
    train = natural_patches(32, sizes[0], seed, source, part="train")
    test = natural_patches(32, sizes[1], seed, source, part="test")
    mean, scale = train.mean(dtype=np.float64), train.std(dtype=np.float64)
    white = 255.0 if source == "bsds" else float(np.quantile(train, WHITE_QUANTILE))
    train, test = (((x - mean) / scale).astype(np.float32)[:, None] for x in (train, test))
    return Images("natural", train, test, float(-mean / scale), float((white - mean) / scale))
