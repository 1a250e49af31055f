"""How well images on a circle of latents follow images on a circle of orientations.

The latents a_k = 2πk/K and the orientations θ_k = πk/K both go once around. A model need not start
where the data start, nor turn the same way, so that an offset and a direction are chosen first.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from alws.kernels import squared_distances


class Alignment(NamedTuple):
    """`order[k]` is the latent that stands for orientation k, `errors[k]` the squared distance."""

    order: np.ndarray
    errors: np.ndarray


def align(images: Float[Array, "k ..."], targets: Float[Array, "m ..."]) -> Alignment:
    """The offset and direction with the least total squared distance, and the distances.

    Example: `align(jnp.roll(targets, 3, axis=0)[::-1], targets).errors` are all 0.
    """
    if images.shape != targets.shape:
        raise ValueError(
            f"images and targets must have the same shape, got {images.shape} and {targets.shape}."
        )
    k = len(images)
    distances = np.asarray(
        squared_distances(jnp.reshape(images, (k, -1)), jnp.reshape(targets, (k, -1)))
    )
    index = np.arange(k)
    orders = [(offset + turn * index) % k for turn in (1, -1) for offset in index]
    best = min(orders, key=lambda order: distances[order, index].sum())
    return Alignment(best, distances[best, index])


def orientations(
    images: Float[Array, "k ..."], templates: Float[Array, "t ..."]
) -> Float[np.ndarray, " k"]:
    """The orientation in [0, π) of each image: that of the template it correlates with most.

    Template t has orientation πt/T.
    """
    flat = [np.asarray(a).reshape(len(a), -1) for a in (images, templates)]
    unit = flat[1] / np.linalg.norm(flat[1], axis=1, keepdims=True)
    return np.pi * np.argmax(flat[0] @ unit.T, axis=1) / len(templates)


def deviation_from_rotation(orientation: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """How far θ(a_k) is from the best straight line ±a/2 + offset, in radians of orientation.

    Zero when a fixed rotation of the latent is a fixed rotation of the image; a map that misses
    orientations or covers them twice deviates by up to π/2.
    """
    latent = 2 * np.pi * np.arange(len(orientation)) / len(orientation)
    found = []
    for turn in (1, -1):
        phase = np.exp(1j * (2 * orientation - turn * latent))
        found.append(np.angle(phase * np.conj(phase.mean())) / 2)
    return min(found, key=lambda residual: np.sum(residual**2))


def lengths(images: Float[Array, "k side side"]) -> Float[np.ndarray, " k"]:
    """The extent of each image along its longest axis, in pixels.

    The root of the larger eigenvalue of Σ x² r rᵀ / Σ x², r the place of a pixel from the centre
    of gravity of x².
    """
    weights = np.asarray(images, float) ** 2
    side = weights.shape[-1]
    place = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1)
    place = place.reshape(-1, 2)
    weights = weights.reshape(len(weights), -1)
    weights = weights / weights.sum(axis=1, keepdims=True)
    mean = weights @ place
    second = np.einsum("kp,pi,pj->kij", weights, place, place)
    second -= mean[:, :, None] * mean[:, None, :]
    return np.sqrt(np.linalg.eigvalsh(second)[:, -1])
