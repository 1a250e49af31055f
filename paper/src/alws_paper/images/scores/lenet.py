"""LeNet, a small convolutional classifier whose last hidden layer gives features of grey images.

    1×32×32 → 8 of 28×28 → 14×14 → 20 of 10×10 → 5×5 → 120 → 84 → 10 classes

5×5 kernels, the largest of each 2×2, ReLU. `alws-paper lenet` trains it on digits or garments; the
package has the weights of one run of each, in half precision.
"""

import io
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, UInt8

from alws.validation import at_least
from alws_paper.images.data.images import pad
from alws_paper.shared.mnist import fashion_mnist, mnist
from alws_paper.shared.training import climb

Task = Literal["mnist", "fashion"]
LOADERS: dict[str, Callable] = {"mnist": mnist, "fashion": fashion_mnist}
SHIFT = 2
"""Training images are moved by up to so many pixels, the width of their empty border."""


class LeNet(eqx.Module):
    """The classifier; `LeNet(...)(images)` are the 84 features of images from 0 to 1.

    Example: `LeNet.trained("mnist")(images).shape == (len(images), 84)`.
    """

    kernels: tuple[Float[Array, "5 5 1 8"], Float[Array, "5 5 8 20"]]
    matrices: tuple[Float[Array, "500 120"], Float[Array, "120 84"], Float[Array, "84 10"]]
    biases: tuple[Float[Array, "..."], ...]
    name: str = eqx.field(static=True)

    def __init__(self, task: Task, key: Key[Array, ""]):
        """Weights N(0, 2/inputs), biases 0."""
        shapes = ((5, 5, 1, 8), (5, 5, 8, 20), (500, 120), (120, 84), (84, 10))
        inputs = [int(np.prod(shape[:-1])) for shape in shapes]
        weights = [
            jax.random.normal(k, shape) * (2 / n) ** 0.5
            for k, shape, n in zip(jax.random.split(key, 5), shapes, inputs, strict=True)
        ]
        self.kernels, self.matrices = tuple(weights[:2]), tuple(weights[2:])  # pyright: ignore
        self.biases = tuple(jnp.zeros(shape[-1]) for shape in shapes)
        self.name = f"LeNet ({task})"

    @classmethod
    def trained(cls, task: Task) -> "LeNet":
        """The network in the package, trained to tell the classes of MNIST or of Fashion-MNIST.

        Example: `LeNet.trained("fashion").name == "LeNet (fashion)"`.
        """
        _check_task(task)
        name = f"lenet-{task}.npz"
        content = files("alws_paper.images.scores").joinpath("weights", name).read_bytes()
        return _loaded(task, content, name)[0]

    def __call__(self, images: Float[Array, "n 1 32 32"]) -> Float[Array, "n 84"]:
        """The last hidden layer."""
        h = images[:, 0, :, :, None]
        for kernel, bias in zip(self.kernels, self.biases[:2], strict=True):
            h = jax.nn.relu(_pool(_convolve(h, kernel)) + bias)
        h = h.reshape(len(h), -1)
        for matrix, bias in zip(self.matrices[:2], self.biases[2:4], strict=True):
            h = jax.nn.relu(h @ matrix + bias)
        return h

    def logits(self, images: Float[Array, "n 1 32 32"]) -> Float[Array, "n 10"]:
        """log p(class | image) but for a constant."""
        return self(images) @ self.matrices[2] + self.biases[4]


def _convolve(x: Float[Array, "n h v c"], w: Float[Array, "5 5 c o"]) -> Float[Array, "n H V o"]:
    """One matrix product with the patches, faster than XLA's convolution on a CPU."""
    k = len(w)
    h, v = (side - k + 1 for side in x.shape[1:3])
    patches = [x[:, a : a + h, b : b + v] for a in range(k) for b in range(k)]
    return jnp.concatenate(patches, axis=-1) @ w.reshape(-1, w.shape[-1])


def _pool(x: Float[Array, "n h v c"]) -> Float[Array, "n H V c"]:
    n, h, v, c = x.shape
    return x.reshape(n, h // 2, 2, v // 2, 2, c).max(axis=(2, 4))


def train_lenet(
    task: Task, *, key: Key[Array, ""], epochs: int = 12, batch_size: int = 100, rate: float = 2e-3
) -> tuple[LeNet, float]:
    """Train on the 60,000 images by Adam with a cosine decay; the network and its test accuracy.

    Images are moved a little at random, garments also mirrored. The weights come back rounded to
    half precision, as they are saved, and so is the accuracy that of the rounded network.

    Example: `network, accuracy = train_lenet("mnist", key=jax.random.key(0))`.
    """
    _check_task(task)
    at_least("epochs", epochs, 1)
    start_key, train_key = jax.random.split(key)
    pixels, labels = LOADERS[task]("train")
    data = (jnp.asarray(pad(pixels)), jnp.asarray(labels, jnp.int32))
    steps = epochs * (len(labels) // batch_size)

    def objective(
        network: LeNet, batch: tuple[Array, Array], key: Key[Array, ""]
    ) -> tuple[Array, Array]:
        x = moved(batch[0] / 255.0, key, mirror=task == "fashion")
        log_p = jax.nn.log_softmax(network.logits(x))
        value = jnp.take_along_axis(log_p, batch[1][:, None], axis=1).mean()
        return value, value

    schedule = optax.cosine_decay_schedule(rate, steps)
    network, _ = climb(
        objective,
        LeNet(task, start_key),
        data,
        optax.adamw(schedule, weight_decay=1e-3),
        key=train_key,
        steps=steps,
        batch_size=batch_size,
        every=steps,
    )
    network = jax.tree.map(lambda a: a.astype(jnp.float16).astype(a.dtype), network)
    return network, accuracy(network, *LOADERS[task]("test"))


def accuracy(
    network: LeNet, pixels: UInt8[np.ndarray, "n 28 28"], labels: UInt8[np.ndarray, " n"]
) -> float:
    """The share of images whose class is found.

    Example: `accuracy(LeNet.trained("mnist"), *mnist("test"))`.
    """
    find = jax.jit(lambda x: network.logits(x).argmax(axis=1))
    parts = np.array_split(pad(pixels), max(1, len(pixels) // 1000))
    found = [np.asarray(find(jnp.asarray(part) / 255.0)) for part in parts]
    return float(np.mean(np.concatenate(found) == labels))


def moved(
    images: Float[Array, "n 1 32 32"], key: Key[Array, ""], *, mirror: bool
) -> Float[Array, "n 1 32 32"]:
    """Each image moved by up to `SHIFT` pixels either way, and every other one mirrored if asked.

    Example: `moved(images, key, mirror=False)`.
    """
    n = len(images)
    shift = jax.random.randint(key, (n, 3), -SHIFT, SHIFT + 1)
    places = jnp.arange(32)
    rows, columns = ((places - shift[:, i, None]) % 32 for i in (0, 1))
    if mirror:
        coin = jax.random.bernoulli(jax.random.fold_in(key, 1), shape=(n, 1))
        columns = jnp.where(coin, 31 - columns, columns)
    which = jnp.arange(n)[:, None, None]
    return images[which, 0, rows[:, :, None], columns[:, None, :]][:, None]


def save_lenet(path: Path, network: LeNet, accuracy: float) -> None:
    """Write the weights in half precision, with the test accuracy, as an `.npz` file.

    Example: `save_lenet(Path("lenet-mnist.npz"), network, 0.991)`.
    """
    leaves = {f"array_{i}": np.float16(leaf) for i, leaf in enumerate(jax.tree.leaves(network))}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, accuracy=np.float64(accuracy), **leaves)  # pyright: ignore


def load_lenet(path: Path, task: Task) -> tuple[LeNet, float]:
    """The network in a file of `save_lenet`, and its test accuracy as recorded there.

    Example: `network, accuracy = load_lenet(Path("lenet-mnist.npz"), "mnist")`.
    """
    _check_task(task)
    return _loaded(task, path.read_bytes(), str(path))


def _loaded(task: Task, content: bytes, name: str) -> tuple[LeNet, float]:
    like = jax.eval_shape(lambda: LeNet(task, jax.random.key(0)))
    leaves, structure = jax.tree.flatten(like)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = [archive[f"array_{i}"] for i in range(len(leaves))]
            recorded = float(archive["accuracy"])
    except Exception as error:  # whatever its bytes do to the reader, the file is at fault
        raise ValueError(
            f"{name} must be a whole file written by `alws-paper lenet`: {error}. Train the "
            f"network again with `alws-paper lenet {task}`."
        ) from error
    shapes = [array.shape for array in arrays]
    if shapes != [leaf.shape for leaf in leaves]:
        raise ValueError(f"{name} must have the arrays of a LeNet, got shapes {shapes}.")
    fine = all(array.dtype.kind == "f" and np.isfinite(array).all() for array in arrays)
    if not fine or not 0 <= recorded <= 1:
        raise ValueError(
            f"{name} must hold finite floating-point numbers, and an accuracy from 0 to 1; it does "
            f"not. Train the network again with `alws-paper lenet {task}`."
        )
    return structure.unflatten([jnp.asarray(a, jnp.float32) for a in arrays]), recorded


def _check_task(task: str) -> None:
    if task not in get_args(Task):
        raise ValueError(f"the task must be one of {', '.join(get_args(Task))}; got {task!r}.")


__all__ = ["LeNet", "accuracy", "load_lenet", "moved", "save_lenet", "train_lenet"]
