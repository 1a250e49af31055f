"""EfficientNet-Lite0, a network trained on ImageNet, and the features before its last layer.

    32 of 3×3/2 → blocks of (expand 1×1, depthwise k×k, project 1×1) → 1280 of 1×1 → mean → classes

each convolution followed by batch normalisation and, but for the projections, by min(max(·, 0), 6);
a block whose output has the shape of its input adds the two (Tan & Le 2019, its "lite" variant).
Sides shrink by the stride as in TensorFlow: zeros are added so that side s gives ⌈s/stride⌉.

Batch normalisation is folded into the weights when they are read. A 1×1 convolution is a matrix
product, a depthwise one the sum over its taps of shifted images: both fast on a CPU.
"""

from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from alws_paper.images.scores.extractors import fitted
from alws_paper.shared.files import DataError, DataFile, locate

FILE = DataFile(
    "weights/efficientnet_lite0.npz",
    origin="the weights of EfficientNet-Lite0 as arrays named as in its PyTorch state dict",
)
STAGES = (
    # repeats, kernel, stride, expansion, outputs
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, FEATURES, CLASSES = 32, 1280, 1000
SIDE = 224
EPSILON = 1e-3


class Layer(NamedTuple):
    """A convolution's weights and bias, batch normalisation folded in."""

    weight: Float[Array, "..."]
    bias: Float[Array, " outputs"]


class Block(eqx.Module):
    """Expand, convolve each channel by itself, project; add the input if the shapes agree."""

    expand: Layer | None
    depthwise: Layer
    project: Layer
    stride: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n H W o"]:
        h = x if self.expand is None else relu6(x @ self.expand.weight + self.expand.bias)
        h = relu6(depthwise(h, self.depthwise.weight, self.stride) + self.depthwise.bias)
        h = h @ self.project.weight + self.project.bias
        return x + h if x.shape == h.shape else h


class EfficientNet(eqx.Module):
    """The network; `EfficientNet.load()(images)` are 1280 features of images from 0 to 1.

    Example: `EfficientNet.load()(jnp.zeros((1, 3, 32, 32))).shape == (1, 1280)`.
    """

    stem: Layer
    blocks: tuple[Block, ...]
    head: Layer
    classes: Layer
    name: str = eqx.field(static=True, default="EfficientNet-Lite0")

    @classmethod
    def load(cls, path: str | Path | None = None) -> "EfficientNet":
        """Read the weights, by default from `weights/efficientnet_lite0.npz` among the data."""
        path = locate(FILE) if path is None else Path(path)
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except Exception as error:  # whatever its bytes do to the reader, the file is at fault
            raise DataError(
                f"{path} must be a whole `.npz` file: {error}. Put a good copy in its place: "
                f"{FILE.origin}."
            ) from error
        _check(arrays, path)
        return cls._from_arrays(arrays)

    @classmethod
    def _from_arrays(cls, arrays: dict[str, np.ndarray]) -> "EfficientNet":
        blocks, index = [], 0
        for repeats, _, stride, expansion, _ in STAGES:
            for repeat in range(repeats):
                at = f"_blocks.{index}."
                blocks.append(
                    Block(
                        _pointwise(arrays, f"{at}_expand_conv", f"{at}_bn0")
                        if expansion > 1
                        else None,
                        _folded(arrays, f"{at}_depthwise_conv", f"{at}_bn1"),
                        _pointwise(arrays, f"{at}_project_conv", f"{at}_bn2"),
                        stride if repeat == 0 else 1,
                    )
                )
                index += 1
        return cls(
            _folded(arrays, "_conv_stem", "_bn0"),
            tuple(blocks),
            _pointwise(arrays, "_conv_head", "_bn1"),
            Layer(jnp.asarray(arrays["_fc.weight"].T), jnp.asarray(arrays["_fc.bias"])),
        )

    def __call__(self, images: Float[Array, "n channels height width"]) -> Float[Array, "n 1280"]:
        """The pooled features; images are resized to 224×224, grey ones given three channels."""
        pixels = (255 * fitted(images, SIDE, 3) - 127) / 128
        x = pixels.transpose(0, 2, 3, 1)
        x = relu6(convolution(x, self.stem.weight, 2) + self.stem.bias)
        for block in self.blocks:
            x = block(x)
        return relu6(x @ self.head.weight + self.head.bias).mean(axis=(1, 2))

    def logits(self, images: Float[Array, "n channels height width"]) -> Float[Array, "n 1000"]:
        """log p(class | image) but for a constant, the classes of ImageNet in their usual order."""
        return self(images) @ self.classes.weight + self.classes.bias


def expected_shapes() -> dict[str, tuple[int, ...]]:
    """The shape of every array that the network is made of.

    Example: `expected_shapes()["_fc.weight"] == (1000, 1280)`.
    """
    shapes: dict[str, tuple[int, ...]] = {"_fc.weight": (CLASSES, FEATURES), "_fc.bias": (CLASSES,)}

    def add(convolution: str, norm: str, *shape: int) -> None:
        shapes[f"{convolution}.weight"] = shape
        for name in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{name}"] = shape[:1]

    add("_conv_stem", "_bn0", STEM, 3, 3, 3)
    index, inputs = 0, STEM
    for repeats, kernel, _, expansion, outputs in STAGES:
        for _ in range(repeats):
            at, inner = f"_blocks.{index}.", expansion * inputs
            if expansion > 1:
                add(f"{at}_expand_conv", f"{at}_bn0", inner, inputs, 1, 1)
            add(f"{at}_depthwise_conv", f"{at}_bn1", inner, 1, kernel, kernel)
            add(f"{at}_project_conv", f"{at}_bn2", outputs, inner, 1, 1)
            index, inputs = index + 1, outputs
    add("_conv_head", "_bn1", FEATURES, inputs, 1, 1)
    return shapes


def _check(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Refuse weights that lack an array, or have one of another shape, or not of finite numbers."""
    remedy = f"Put a good copy in its place: {FILE.origin}."
    wanted = expected_shapes()
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise DataError(
            f"{path} must hold {len(wanted)} arrays; it lacks {len(missing)}, such as "
            f"{missing[0]!r}. {remedy}"
        )
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            raise DataError(
                f"{name!r} in {path} must have shape {shape}, got {arrays[name].shape}. {remedy}"
            )
        if arrays[name].dtype.kind != "f" or not np.isfinite(arrays[name]).all():
            raise DataError(f"{name!r} in {path} must hold finite floating-point numbers. {remedy}")
        if name.endswith("running_var") and (arrays[name] < 0).any():
            raise DataError(
                f"{name!r} in {path} must hold variances, which are not negative. {remedy}"
            )


def relu6(x: Array) -> Array:
    """min(max(x, 0), 6)."""
    return jnp.clip(x, 0, 6)


def taps(x: Float[Array, "n h w c"], kernel: int, stride: int) -> list[Float[Array, "n H W c"]]:
    """For each place in the kernel, row by row, the pixels it meets; zeros beyond the edge.

    Example: `len(taps(x, 3, 2)) == 9`.
    """
    out = [-(-side // stride) for side in x.shape[1:3]]
    total = [
        max((o - 1) * stride + kernel - side, 0) for o, side in zip(out, x.shape[1:3], strict=True)
    ]
    edges = [(t // 2, t - t // 2) for t in total]
    padded = jnp.pad(x, ((0, 0), *edges, (0, 0)))
    ends = [(o - 1) * stride + 1 for o in out]
    return [
        padded[:, a : a + ends[0] : stride, b : b + ends[1] : stride]
        for a in range(kernel)
        for b in range(kernel)
    ]


def depthwise(
    x: Float[Array, "n h w c"], weight: Float[Array, "c 1 k k"], stride: int
) -> Float[Array, "n H W c"]:
    """Each channel convolved with its own kernel."""
    kernel = weight.shape[-1]
    by_tap = weight.reshape(len(weight), -1).T
    shifted = taps(x, kernel, stride)
    return sum((s * w for s, w in zip(shifted, by_tap, strict=True)), start=jnp.zeros(()))


def convolution(
    x: Float[Array, "n h w c"], weight: Float[Array, "o c k k"], stride: int
) -> Float[Array, "n H W o"]:
    """Every output channel from every input channel."""
    patches = jnp.stack(taps(x, weight.shape[-1], stride), axis=-1)
    return patches.reshape(*patches.shape[:3], -1) @ weight.reshape(len(weight), -1).T


def _folded(arrays: dict[str, np.ndarray], convolution: str, norm: str) -> Layer:
    """Convolution and batch normalisation as one: w·γ/√(v + ε), β − m·γ/√(v + ε)."""
    weight = arrays[f"{convolution}.weight"]
    gain = arrays[f"{norm}.weight"] / np.sqrt(arrays[f"{norm}.running_var"] + EPSILON)
    bias = arrays[f"{norm}.bias"] - arrays[f"{norm}.running_mean"] * gain
    return Layer(jnp.asarray(weight * gain[:, None, None, None]), jnp.asarray(bias))


def _pointwise(arrays: dict[str, np.ndarray], convolution: str, norm: str) -> Layer:
    layer = _folded(arrays, convolution, norm)
    return Layer(layer.weight[:, :, 0, 0].T, layer.bias)


__all__ = ["EfficientNet"]
