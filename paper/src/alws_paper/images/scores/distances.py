"""Fréchet and kernel distance between two sets of features, and between two sets of images.

    Fréchet: ‖μ₁ − μ₂‖² + Tr(Σ₁ + Σ₂ − 2(Σ₁Σ₂)^½)
    kernel:  MMD² without bias, k(f, g) = (f·g/d + 1)³ for features of d dimensions

(Heusel et al. 2017; Bińkowski et al. 2018). Published as FID and KID they are those of Inception's
features; on other features their values cannot be compared with those, and they are not called so.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from alws.validation import at_least
from alws_paper.images.scores.extractors import extract, extractor_name
from alws_paper.shared.mmd import unbiased_mmd_squared


class KernelDistance(NamedTuple):
    """The mean of MMD² over disjoint subsets, and the standard error of that mean."""

    value: float
    standard_error: float


class ImageScores(NamedTuple):
    """Both distances, and the name of the network whose features they are of."""

    frechet_distance: float
    kernel_distance: KernelDistance
    extractor: str

    def __str__(self) -> str:
        kernel = self.kernel_distance
        return (
            f"on {self.extractor} features: Fréchet distance {self.frechet_distance:.4g}, kernel "
            f"distance {kernel.value:.4g} ± {kernel.standard_error:.2g}"
        )


def frechet_distance(
    first: Float[np.ndarray, "n features"], second: Float[np.ndarray, "m _"]
) -> float:
    """The Fréchet distance of the Gaussians with the means and covariances of two samples.

    Example: `frechet_distance(x, x + 3.0)` is nine times the number of features.
    """
    _check(first, second, 2)
    first, second = first.astype(np.float64), second.astype(np.float64)
    one, two = ((f.mean(axis=0), np.atleast_2d(np.cov(f.T))) for f in (first, second))
    return gaussian_frechet_distance(*one, *two)


def gaussian_frechet_distance(
    first_mean: Float[np.ndarray, " d"],
    first_covariance: Float[np.ndarray, "d d"],
    second_mean: Float[np.ndarray, " d"],
    second_covariance: Float[np.ndarray, "d d"],
) -> float:
    """‖μ₁ − μ₂‖² + Tr(Σ₁ + Σ₂ − 2(Σ₁Σ₂)^½), the covariances singular or not.

    Example: `gaussian_frechet_distance(m, np.eye(2), m, 4 * np.eye(2)) == 2.0`.
    """
    # Σ₁Σ₂ has the eigenvalues of the symmetric Σ₁^½ Σ₂ Σ₁^½.
    values, vectors = np.linalg.eigh(first_covariance)
    root = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T
    products = np.linalg.eigvalsh(root @ second_covariance @ root)
    cross = np.sqrt(np.maximum(products, 0)).sum()
    apart = np.sum((first_mean - second_mean) ** 2)
    return float(apart + np.trace(first_covariance) + np.trace(second_covariance) - 2 * cross)


def polynomial_mmd_squared(
    first: Float[np.ndarray, "n features"], second: Float[np.ndarray, "m _"]
) -> float:
    """MMD² with k(f, g) = (f·g/d + 1)³, without bias: below zero now and then.

    Example: about 0 for two samples of one distribution.
    """
    _check(first, second, 2)
    x, y = first.astype(np.float64), second.astype(np.float64)

    def gram(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a @ b.T / x.shape[1] + 1) ** 3

    return float(unbiased_mmd_squared(gram(x, x), gram(y, y), gram(x, y)))


def kernel_distance(
    first: Float[np.ndarray, "n features"],
    second: Float[np.ndarray, "m _"],
    *,
    subset_size: int = 1000,
    seed: int = 0,
) -> KernelDistance:
    """The mean of the polynomial MMD² over random subsets of both samples.

    The subsets are disjoint, so that their values are independent and the standard deviation over
    them divided by the root of their number is the standard error of the mean. Subsets that share
    samples, as often used, make that ratio as small as one likes.

    Example: `kernel_distance(generated, real).value`.
    """
    at_least("subset_size", subset_size, 2)
    _check(first, second, 2)
    subsets = min(len(first), len(second)) // subset_size
    if subsets < 2:
        raise ValueError(
            "there must be at least 2 disjoint subsets for a standard error; samples of "
            f"{len(first)} and {len(second)} have {subsets} of {subset_size}. Give more samples or "
            "a smaller `subset_size`."
        )
    generator = np.random.default_rng(seed)
    orders = [
        generator.permutation(len(f))[: subsets * subset_size].reshape(subsets, -1)
        for f in (first, second)
    ]
    values = [polynomial_mmd_squared(first[a], second[b]) for a, b in zip(*orders, strict=True)]
    return KernelDistance(float(np.mean(values)), float(np.std(values, ddof=1) / subsets**0.5))


def image_scores(
    generated: Float[np.ndarray, "n channels height width"],
    real: Float[np.ndarray, "m channels height width"],
    extractor: Any,
    *,
    black: float = 0.0,
    white: float = 1.0,
    subset_size: int = 1000,
    seed: int = 0,
) -> ImageScores:
    """Both distances between generated and real images, on the features of `extractor`.

    `black` and `white` are the values of those pixels, as `images` gives them.

    Example: `print(image_scores(samples, data.test, LeNet.trained("mnist"), black=-1))`.
    """
    features = [
        extract(extractor, images, black=black, white=white) for images in (generated, real)
    ]
    return ImageScores(
        frechet_distance(features[0], features[1]),
        kernel_distance(features[0], features[1], subset_size=subset_size, seed=seed),
        extractor_name(extractor),
    )


def _check(first: np.ndarray, second: np.ndarray, least: int) -> None:
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            "both samples must have the same number of features, got "
            f"{first.shape[1]} and {second.shape[1]}. Use one extractor for both."
        )
    if min(len(first), len(second)) < least:
        raise ValueError(
            f"both samples must have at least {least} rows, got {len(first)} and {len(second)}."
        )
    bad = sum(int(np.sum(~np.isfinite(f))) for f in (first, second))
    if bad:
        raise ValueError(f"features must be finite, got {bad} entries that are not.")


__all__ = [
    "ImageScores",
    "KernelDistance",
    "frechet_distance",
    "gaussian_frechet_distance",
    "image_scores",
    "kernel_distance",
    "polynomial_mmd_squared",
]
