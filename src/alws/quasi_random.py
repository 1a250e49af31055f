"""Sleep samples from quasi-random numbers, for models that draw by a function of normal numbers.

Sobol' points v_n fill the unit cube more evenly than independent ones. Shifted at random in their
binary digits, v_n ⊕ s, each is uniform on its own, and through the normal quantile standard normal:

    u_n = Φ⁻¹(v_n ⊕ s),   (z_n, x_n) = sample_from(u_n) ~ p_θ for every n,

so that means over sleep samples stay unbiased, and vary less. On factor analysis and a mixture of
Gaussians 256 of them gave gradients with a half and a third of the error of independent draws
(`benchmarks/sleep_phase.py`). Antithetic pairs, u and −u, were no better than independent draws.

The points are best when their number is a power of two, and gain little beyond some tens of
numbers a draw.
"""

from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Key, PyTree
from scipy.stats import qmc

from alws.blocks import by_blocks
from alws.model import Draws, condition_arguments, sample
from alws.sharding import over_devices

BITS = 30


@runtime_checkable
class DrawsFromNormals(Protocol):
    """What a model gives, beside the usual, to be drawn quasi-randomly.

    Example, for a model with two latents and five observed entries:
        >>> normals = 7
        >>> def sample_from(self, u):
        ...     return u[:2], self.loadings @ u[:2] + jnp.exp(self.log_noise) * u[2:]
    """

    @property
    def normals(self) -> int:
        """How many standard normal numbers a draw takes."""
        ...

    def sample_from(self, u: Float[Array, " normals"], /, *condition: Any) -> tuple[PyTree, PyTree]:
        """(z, x), distributed as p_θ when u is standard normal."""
        ...


def normals(key: Key[Array, ""], number: int, dimension: int) -> Float[Array, "number dimension"]:
    """`number` vectors, each standard normal, together more even than independent ones.

    Example: `normals(jax.random.key(0), 256, 7).mean(axis=0)` is nearly zero.
    """
    dtype = jnp.result_type(float)
    kept = min(BITS, jnp.finfo(dtype).nmant)
    shift = jax.random.bits(key, (dimension,), "uint32") >> (32 - BITS)
    shifted = (jnp.asarray(_points(number, dimension)) ^ shift) >> (BITS - kept)
    return ndtri((shifted.astype(dtype) + 0.5) / 2**kept)


def quasi_random(
    model: Any, key: Key[Array, ""], number: int, condition: PyTree | None = None
) -> Draws:
    """`number` draws from p_θ by quasi-random numbers, as they come, θ held constant.

    Example: `quasi_random(model, key, 256).x`.
    """
    args = condition_arguments(condition)
    some = jax.vmap(lambda u: Draws(*model.sample_from(u, *args)))
    rows = over_devices(normals(key, number, model.normals))
    return jax.lax.stop_gradient(over_devices(by_blocks(some, rows)))


def check_quasi_random(model: Any, condition: PyTree | None = None) -> None:
    """Refuse a model that does not say how it draws from normal numbers."""
    name = type(model).__name__
    if not isinstance(model, DrawsFromNormals):
        raise TypeError(
            f'`draws="quasi-random"` needs a model with `normals`, a number, and `sample_from(u)`, '
            f"which makes (z, x) of that many standard normal numbers; {name} has not both. "
            'Write them, or use `draws="independent"`.'
        )
    most = qmc.Sobol.MAXDIM
    if not isinstance(model.normals, int) or not 1 <= model.normals <= most:
        raise ValueError(
            f"`normals` must be a whole number from 1 to {most}, got {model.normals!r}. Draw what "
            'matters less from fewer numbers, or use `draws="independent"`.'
        )
    args = condition_arguments(condition)
    u = jnp.zeros(model.normals)
    found = jax.eval_shape(lambda u: Draws(*model.sample_from(u, *args)), u)
    usual = jax.eval_shape(lambda k: sample(model, k, condition), jax.random.key(0))
    if jax.tree.map(_shape, found) != jax.tree.map(_shape, usual):
        raise ValueError(
            f"`sample_from(u)` must return (z, x) as the model's other draws are, {usual}; got "
            f"{found}."
        )


def _shape(leaf: jax.ShapeDtypeStruct) -> tuple:
    return leaf.shape, leaf.dtype


@lru_cache(maxsize=8)
def _points(number: int, dimension: int) -> np.ndarray:
    """Sobol' points in binary digits, as whole numbers."""
    power = max(0, (number - 1).bit_length())
    points = qmc.Sobol(dimension, scramble=False, bits=BITS).random_base2(power)
    return (points[:number] * 2**BITS).astype(np.uint32)
