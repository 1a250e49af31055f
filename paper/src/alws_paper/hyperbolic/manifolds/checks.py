"""Checks of points and parameters on a manifold; values are looked at only where they are known.

While JAX traces a function there are no values to look at, so a fit pays nothing for these checks.
"""

from typing import Any

import numpy as np
from jax.core import Tracer
from jaxtyping import Array

TOLERANCE = 1e-3
"""How far from 1 the length of a point on the unit sphere may be."""


def known(value: Any) -> bool:
    """Whether the value can be looked at: it is not being traced."""
    return not isinstance(value, Tracer)


def check_dimension(dim: int) -> int:
    """Refuse a dimension that is not a whole number of at least 2."""
    if not isinstance(dim, int) or isinstance(dim, bool) or dim < 2:
        raise ValueError(
            f"`dim` must be a whole number of at least 2, got {dim!r}. It counts the entries of z: "
            "the sphere S² has dim 3."
        )
    return dim


def check_vector(name: str, value: Array, dim: int | None = None) -> None:
    """Refuse what is not one point with `dim` entries (at least 2 if not given)."""
    if value.ndim != 1 or value.shape[0] < 2 or (dim is not None and value.shape[0] != dim):
        wanted = "(dim,) with dim at least 2" if dim is None else f"({dim},)"
        raise ValueError(
            f"`{name}` must be one point of shape {wanted}, got shape {value.shape}. For a batch, "
            "`jax.vmap` over its points."
        )


def check_positive(name: str, value: Array) -> None:
    """Refuse a parameter that is not positive and finite."""
    # NumPy looks at them: inside a traced function JAX would trace even what is known.
    if known(value):
        bad = np.asarray(value)
        if not (np.isfinite(bad).all() and (bad > 0).all()):
            raise ValueError(
                f"`{name}` must be positive and finite, got {bad}. To learn it, keep its logarithm "
                "as the parameter and pass `jnp.exp` of it."
            )


def check_on_sphere(name: str, point: Array) -> None:
    """Refuse a point whose length is not 1."""
    if known(point):
        length = float(np.linalg.norm(np.asarray(point)))
        if not abs(length - 1) <= TOLERANCE:
            raise ValueError(
                f"`{name}` must lie on the unit sphere, got a point of length {length:.6g}. Divide "
                "it by its length."
            )


def check_in_ball(name: str, point: Array, curvature: float) -> None:
    """Refuse a point that is not strictly inside the ball of radius 1/√−curvature."""
    if known(point):
        length, radius = float(np.linalg.norm(np.asarray(point))), (-curvature) ** -0.5
        if not length < radius:
            raise ValueError(
                f"`{name}` must lie inside the Poincaré ball of radius {radius:.6g}, got a point "
                f"of length {length:.6g}. Points come from `poincare.exponential`."
            )


def check_curvature(curvature: float) -> float:
    """Refuse a curvature that is not a negative number."""
    if isinstance(curvature, bool) or not isinstance(curvature, (int, float)) or not curvature < 0:
        raise ValueError(
            f"`curvature` must be a negative number, got {curvature!r}. Hyperbolic space has -1; a "
            "sphere is `VonMisesFisher` or `UniformSphere`."
        )
    return float(curvature)
