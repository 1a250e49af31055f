"""The modified Bessel function I_ν as the von Mises–Fisher normaliser needs it.

    H_ν(κ) = Γ(ν+1) (2/κ)^ν I_ν(κ) = Σ_k (κ²/4)^k / (k! (ν+1)⋯(ν+k)),   H_ν(0) = 1

is E[exp(κ μ·z)] for z uniform on the sphere in d = 2ν + 2 dimensions. It is smooth at κ = 0, where
the powers of κ in the usual form of the normaliser cancel, and needs no value of I_ν itself.

At an order of 20 or more, Debye's expansion, uniform in κ, is right to float32 with three terms.
Lower orders follow downwards from H_{ν−1} = H_ν + κ²/(4ν(ν+1)) H_{ν+1}: only positive terms, so no
digits are lost. There is no branch, and derivatives in κ of any order come by differentiating it.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

LEAST_ORDER = 20
"""From this order on Debye's expansion is used as it is."""

DEBYE = (
    np.array([3, 0, -5]) / 24,
    np.array([81, 0, -462, 0, 385]) / 1152,
    np.array([30375, 0, -369603, 0, 765765, 0, -425425]) / 414720,
)
"""U_k(p) = p^k · (these coefficients of rising powers of p)."""


def log_scaled_bessel(order: float, kappa: ArrayLike) -> Float[Array, "*shape"]:
    """log H_ν(κ) − κ for an order ν ≥ 0 and κ ≥ 0, differentiable in κ.

    Example: `log_scaled_bessel(0.5, 2.0)` is log((1 − exp(−4))/4), since H_½(κ) = sinh(κ)/κ.
    """
    kappa = jnp.asarray(kappa, float)
    steps = max(0, math.ceil(LEAST_ORDER - order))
    value, above = (_debye(order + steps + i, kappa) for i in (0, 1))
    ratio = jnp.exp(above - value)
    quarter = kappa / 2
    for i in range(steps):
        top = order + steps - i
        # κ²/4ν(ν+1) in two factors: κ² alone would overflow float32 from 1e19 on.
        growth = (quarter / top) * (quarter / (top + 1)) * ratio
        value = value + jnp.log1p(growth)
        ratio = 1 / (1 + growth)
    return value


def _debye(order: float, kappa: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log H_ν(κ) − κ by the uniform expansion, with w = √(ν² + κ²) and p = ν/w."""
    w = jnp.sqrt(order**2 + kappa**2)
    p = order / w
    series = 1 + sum(
        (p / order) ** (k + 1) * jnp.polyval(jnp.asarray(u[::-1], p.dtype), p)
        for k, u in enumerate(DEBYE)
    )
    constant = math.lgamma(order + 1) - order * math.log(order)
    constant -= 0.5 * math.log(2 * math.pi * order)
    # w − κ = ν²/(w + κ) keeps its digits for large κ.
    exponent = order**2 / (w + kappa) - order * jnp.log((1 + w / order) / 2)
    return exponent - 0.5 * jnp.log(w / order) + constant + jnp.log(series)
