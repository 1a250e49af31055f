"""Networks that turn images into features: any function, or a file in the ONNX format.

An extractor is called with a batch of images `[n, channels, height, width]`, black 0 and white 1,
and returns `[n, features]`. Its `name` labels the scores made with it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from alws.validation import at_least


def extractor_name(extractor: Any) -> str:
    """The label of an extractor: its `name`, or that of the function or class.

    Example: `extractor_name(LeNet.trained("mnist")) == "LeNet (mnist)"`.
    """
    return str(
        getattr(extractor, "name", None)
        or getattr(extractor, "__name__", None)
        or type(extractor).__name__
    )


def extract(
    extractor: Callable[[Any], Any],
    images: Float[np.ndarray, "n channels height width"],
    *,
    black: float = 0.0,
    white: float = 1.0,
    batch_size: int = 200,
) -> Float32[np.ndarray, "n features"]:
    """The features of images in which black has the value `black` and white `white`.

    An Equinox module is compiled; the last batch is filled up, so that it compiles once.

    Example: `extract(LeNet.trained("mnist"), data.test, black=-1.0, white=1.0)`.
    """
    at_least("batch_size", batch_size, 1)
    if not white > black:
        raise ValueError(f"`white` must be above `black`, got {white} and {black}.")
    if not len(images):
        raise ValueError("there must be at least one image, got none.")
    call: Any = extractor
    if isinstance(call, eqx.Module):
        call = eqx.filter_jit(call)  # pyright: ignore
    size, parts = min(batch_size, len(images)), []
    for first in range(0, len(images), size):
        part = np.asarray(images[first : first + size], np.float32)
        filled = np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), np.float32)])
        features = np.asarray(call(jnp.asarray((filled - black) / (white - black))), np.float32)
        if features.ndim != 2 or len(features) != size:
            raise ValueError(
                f"the extractor must return one row of features for each of {size} images, got an "
                f"array of shape {features.shape}."
            )
        parts.append(features[: len(part)])
    return np.concatenate(parts)


class OnnxExtractor:
    """The first output of a network in an ONNX file, flattened; images are resized to its input.

    `side` is by default what the file says.

    `mean` and `scale` say what the network expects: it is given (pixel − mean)/scale for pixels
    from 0 to 1. Grey images are repeated to three channels if it wants three. Needs onnxruntime,
    which comes with the extra `onnx`.

    Example: `OnnxExtractor("inception.onnx", side=299, mean=0.5, scale=0.5)`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        side: int | None = None,
        mean: float | tuple[float, ...] = 0.0,
        scale: float | tuple[float, ...] = 1.0,
        channels: int = 3,
        name: str | None = None,
    ):
        """Load the network; `name` labels the scores, by default the file's name."""
        if side is not None:
            at_least("side", side, 1)
        at_least("channels", channels, 1)
        if not np.all(np.asarray(scale) > 0):
            raise ValueError(f"`scale` must be positive, got {scale}.")
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there must be an ONNX file at {path}, and there is none.")
        try:
            import onnxruntime  # pyright: ignore
        except ImportError as error:
            raise ImportError(
                "an ONNX file needs the package onnxruntime, which is not installed. Install "
                "`alws-paper[onnx]`, or give the extractor as a function."
            ) from error
        providers = ["CPUExecutionProvider"]
        try:
            self.session = onnxruntime.InferenceSession(str(path), providers=providers)
        except Exception as error:  # of onnxruntime's own, with no class in common
            raise ValueError(
                f"{path} must hold a network in the ONNX format; onnxruntime says: {error}"
            ) from error
        given = self.session.get_inputs()[0]
        self.input = given.name
        side = given.shape[-1] if side is None else side
        if not isinstance(side, int):
            raise ValueError(
                f"the network's input must have a fixed side, got shape {given.shape} in {path}. "
                "Give `side`, or export the network with fixed sides."
            )
        self.name = name or path.stem
        self.side, self.channels = side, channels
        self.mean, self.scale = (
            np.broadcast_to(np.asarray(v, np.float32), channels)[:, None, None]
            for v in (mean, scale)
        )

    def __call__(
        self, images: Float[jax.Array, "n channels height width"]
    ) -> Float32[np.ndarray, "n features"]:
        """The network's first output for each image, as one row."""
        x = np.asarray(fitted(images, self.side, self.channels))
        output = self.session.run(None, {self.input: (x - self.mean) / self.scale})[0]
        return np.asarray(output, np.float32).reshape(len(x), -1)


def fitted(
    images: Float[jax.Array, "n channels height width"], side: int, channels: int
) -> Float[jax.Array, "n wanted side side"]:
    """Images resized by bilinear interpolation, grey ones repeated along the channels.

    Example: `fitted(jnp.zeros((2, 1, 32, 32)), 224, 3).shape == (2, 3, 224, 224)`.
    """
    n, given, *sides = images.shape
    if given not in (1, channels):
        raise ValueError(
            f"images must have 1 or {channels} channels for this network, got {given}."
        )
    if sides != [side, side]:
        images = jax.image.resize(images, (n, given, side, side), "bilinear")
    return jnp.broadcast_to(images, (n, channels, side, side))


__all__ = ["OnnxExtractor", "extract", "extractor_name", "fitted"]
