"""Quadrature in two dimensions: points z_k and log weights such that Σ_k w_k f(z_k) ≈ ∫ f.

With a latent of two dimensions the likelihood and the posterior can be had exactly:
log p(x) = log Σ_k w_k p(z_k) p(x | z_k), and the terms of the sum are the posterior.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Nodes(NamedTuple):
    """Points and the logarithms of their weights, in the manifold's own area."""

    z: Float[np.ndarray, "nodes dim"]
    log_weight: Float[np.ndarray, " nodes"]


def sphere_nodes(rings: int = 48) -> Nodes:
    """S²: Gauss–Legendre in the height, 2·rings equal angles; exact up to degree 2·rings − 1.

    Example: the weights sum to 4π.
    """
    height, weight = np.polynomial.legendre.leggauss(rings)
    angle = 2 * np.pi * np.arange(2 * rings) / (2 * rings)
    sine = np.sqrt(1 - height**2)[:, None]
    parts = (np.cos(angle) * sine, np.sin(angle) * sine, np.repeat(height[:, None], 2 * rings, 1))
    weights = np.repeat(weight[:, None] * np.pi / rings, 2 * rings, 1)
    return Nodes(np.stack([p.ravel() for p in parts], axis=1), np.log(weights).ravel())


def disk_nodes(radius: float, rings: int = 64, angles: int = 128) -> Nodes:
    """The hyperbolic disk of curvature −1 out to `radius`: area element sinh(r) dr dφ.

    Example: the weights sum to the disk's area, 2π(cosh(radius) − 1).
    """
    return _polar(radius, rings, angles, np.sinh, lambda r: np.tanh(r / 2))


def plane_nodes(radius: float, rings: int = 64, angles: int = 128) -> Nodes:
    """The flat disk out to `radius`: area element r dr dφ.

    Example: the weights sum to the disk's area, π·radius².
    """
    return _polar(radius, rings, angles, lambda r: r, lambda r: r)


def _polar(
    radius: float,
    rings: int,
    angles: int,
    circumference: Callable[[np.ndarray], np.ndarray],
    length: Callable[[np.ndarray], np.ndarray],
) -> Nodes:
    """Gauss–Legendre in the distance r, equal angles; circles of 2π·circumference(r)."""
    place, weight = np.polynomial.legendre.leggauss(rings)
    r = radius * (place + 1) / 2
    angle = 2 * np.pi * np.arange(angles) / angles
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    z = length(r)[:, None, None] * direction
    ring = np.log(weight * radius / 2 * 2 * np.pi / angles * circumference(r))
    return Nodes(z.reshape(-1, 2), np.repeat(ring, angles))
