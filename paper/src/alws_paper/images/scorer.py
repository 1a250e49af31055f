"""Scores of a generator: Fréchet and kernel distance of its pictures from the test images.

Pictures are E[x | z] without pixel noise, for every method, except that binary pixels are drawn:
grey means beside black-and-white test images would cost every method a distance that has nothing
to do with the model. Features are LeNet's for digits and garments and EfficientNet's for all other
sets, or those of a network the user gives.
"""

import os
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Float32, Key

from alws_paper.images.data.images import Images
from alws_paper.images.generators import Pictured, pictures, scored_pictures
from alws_paper.images.plan import LENET
from alws_paper.images.scores.distances import KernelDistance, frechet_distance, kernel_distance
from alws_paper.images.scores.efficientnet import EfficientNet
from alws_paper.images.scores.extractors import OnnxExtractor, extract, extractor_name
from alws_paper.images.scores.lenet import LeNet

CHUNK = 500
SUBSETS = 5
LARGEST_SUBSET = 1000


class Scorer:
    """The test images' features, and the network to have those of pictures from.

    The features of real images are kept in `cache`, a directory, and read from it the next time.
    On EfficientNet, which is slow, or a network in an ONNX file, the `extractor`, there are as many
    real images as pictures.

    Example: `Scorer(images("mnist"), number=5000)(model, key)`.
    """

    def __init__(
        self,
        data: Images,
        *,
        number: int,
        cache: Path | None = None,
        extractor: str | Path | None = None,
    ):
        self.data, self.number = data, number
        slow = extractor is not None or data.name not in LENET
        network: Any
        if extractor is not None:
            network = OnnxExtractor(extractor)
        elif slow:
            network = EfficientNet.load()
        else:
            network = LeNet.trained(LENET[data.name])  # pyright: ignore
        self.name = extractor_name(network)
        compiled = isinstance(network, eqx.Module)
        self.extractor: Any = eqx.filter_jit(network) if compiled else network  # pyright: ignore
        self.real = self._real(data.test[:number] if slow else data.test, cache)

    def __call__(self, model: Pictured, key: Key[Array, ""]) -> tuple[float, KernelDistance]:
        """Fréchet and kernel distance of the model's pictures, infinite if they are not finite.

        Of fewer pictures than twice the features the Fréchet distance says little: it is NaN.
        """
        generated = draw_pictures(model, key, self.number, scored=True)
        if not np.isfinite(generated).all():
            return np.inf, KernelDistance(np.inf, np.inf)
        features = self._features(generated)
        enough = min(len(features), len(self.real)) >= 2 * features.shape[1]
        subset = min(LARGEST_SUBSET, min(len(features), len(self.real)) // SUBSETS)
        return (
            frechet_distance(features, self.real) if enough else np.nan,
            kernel_distance(features, self.real, subset_size=subset),
        )

    def _features(self, x: Float[np.ndarray, "n c h w"]) -> Float32[np.ndarray, "n features"]:
        def network(batch: Any) -> Any:
            return self.extractor(batch)

        return extract(network, x, black=self.data.black, white=self.data.white, batch_size=100)

    def _real(
        self, test: Float[np.ndarray, "n c h w"], cache: Path | None
    ) -> Float32[np.ndarray, "n features"]:
        if cache is None:
            return self._features(test)
        name = re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-")
        path = cache / f"features-{self.data.name}-{len(test)}-{name}.npy"
        if not path.exists():
            temporary = path.with_name(f"{path.stem}.{os.getpid()}.npy")
            np.save(temporary, self._features(test), allow_pickle=False)
            os.replace(temporary, path)
        return np.load(path, allow_pickle=False)


def draw_pictures(
    model: Pictured, key: Key[Array, ""], number: int, *, scored: bool = False
) -> Float32[np.ndarray, "number channels height width"]:
    """Pictures from the prior, some at a time, so that memory does not grow with their number.

    They are the means that are shown, or what is `scored`, whose binary pixels are drawn.

    Example: `draw_pictures(model, key, 10_000).shape == (10_000, 1, 32, 32)`.
    """
    chunk = min(CHUNK, number)
    keys = jax.random.split(key, -(-number // chunk))
    draw = scored_pictures if scored else pictures
    parts = [np.asarray(draw(model, k, chunk), np.float32) for k in keys]
    return np.concatenate(parts)[:number]


__all__ = ["Scorer", "draw_pictures"]
