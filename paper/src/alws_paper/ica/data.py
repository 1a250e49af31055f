"""Synthetic images whose independent components are known: those of natural images.

    x = (W z − mean)/std + noise,   z_i ~ Lap(0, 1),

W by scikit-learn's FastICA (Hyvärinen & Oja 2000) on natural patches; mean and standard deviation
are those of each pixel of W z.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.decomposition import FastICA

from alws_paper.shared.natural import natural_patches


class ComponentImages(NamedTuple):
    """Images to learn from, others to test with, and the filters behind both, W/std."""

    train: Float[np.ndarray, "train pixels"]
    test: Float[np.ndarray, "test pixels"]
    filters: Float[np.ndarray, "pixels filters"]


def natural_components(
    side: int, number: int, patches: int, seed: int
) -> Float[np.ndarray, "pixels filters"]:
    """Independent components of natural patches, each with mean 0 and length 1.

    Example: `natural_components(16, 36, patches=50_000, seed=0).shape == (256, 36)`.
    """
    cut = natural_patches(side, patches, seed)
    x = cut.reshape(len(cut), -1).astype(np.float64)
    found = independent_components(x - x.mean(axis=1, keepdims=True), number, seed)
    centred = found - found.mean(axis=0)
    return centred / np.linalg.norm(centred, axis=0)


def independent_components(
    data: Float[np.ndarray, "n entries"], number: int, seed: int
) -> Float[np.ndarray, "entries components"]:
    """The components of the leading principal subspace; their order and signs are arbitrary.

    Example: `independent_components(sources @ mixing.T, 4, seed=0)` is `mixing`, scaled.
    """
    ica = FastICA(
        number,
        whiten="unit-variance",
        whiten_solver="svd",
        max_iter=500,
        tol=1e-4,
        random_state=seed,
    )
    return np.asarray(ica.fit(data).mixing_)


def component_images(
    weight: Float[np.ndarray, "pixels filters"],
    train: int,
    test: int,
    seed: int,
    noise: float = 0.1,
) -> ComponentImages:
    """Images W z, standardised pixel by pixel, plus noise; the test images by the same scale.

    Example: `component_images(natural_components(16, 36, 50_000, 0), 100_000, 10_000, seed=0)`.
    """
    generator = np.random.default_rng(seed)
    clean = generator.laplace(size=(train + test, weight.shape[1])) @ weight.T
    mean, std = clean[:train].mean(axis=0), clean[:train].std(axis=0)
    noisy = (clean - mean) / std + noise * generator.normal(size=clean.shape)
    noisy = noisy.astype(np.float32)
    return ComponentImages(noisy[:train], noisy[train:], weight / std[:, None])
