"""Dirichlet and normal-inverse-Wishart as one exponential family: the conjugate prior of a mixture.

p(θ; λ) = h(θ) exp(λ·t(θ) − A(λ)),   E t(θ) = ∇A(λ),

KL(q ‖ p) = (λ_q − λ_p)·E_q t(θ) − A(λ_q) + A(λ_p).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

LOG_TWO_PI = float(np.log(2 * np.pi))


class Mixture(NamedTuple):
    """The conjugate family of the mixture: natural parameters λ, or statistics t that pair with it.

    As λ: α, and for each component κm, S + κmmᵀ, κ and ν. As statistics of z: r_k, r_k z₂,
    r_k z₂z₂ᵀ, r_k, r_k. As expected statistics E t(θ): E log π, E Λμ, −E Λ/2, −E μᵀΛμ/2 and
    E log|Λ|/2, with Λ = Σ⁻¹, so that E log p(z₁, z₂ | θ) is their inner product up to (2π)^(−d/2).
    """

    weight: Float[Array, " components"]
    first: Float[Array, "components d"]
    second: Float[Array, "components d d"]
    kappa: Float[Array, " components"]
    nu: Float[Array, " components"]


def inner(a: Mixture, b: Mixture) -> Float[Array, ""]:
    """Σ a·b over all entries."""
    return sum(jnp.sum(u * v) for u, v in zip(a, b, strict=True))  # pyright: ignore


def mixture_prior(
    components: int,
    dimensions: int,
    *,
    concentration: float = 0.1,
    kappa: float = 0.1,
    nu: float | None = None,
    scale: float = 0.1,
) -> Mixture:
    """λ₀: Dir(concentration) on π; NIW with m = 0, κ, ν (d + 2 unless given) and E Σ = scale·I.

    Example: `mixture_prior(10, 2)`.
    """
    nu = dimensions + 2.0 if nu is None else nu
    positive = {"concentration": concentration, "kappa": kappa, "scale": scale}
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"`{name}` must be positive, got {value}.")
    if not nu > dimensions + 1:
        raise ValueError(f"`nu` must be above d + 1 = {dimensions + 1}, got {nu}: E Σ is infinite.")
    ones = jnp.ones(components)
    square = scale * (nu - dimensions - 1) * jnp.eye(dimensions)
    return Mixture(
        concentration * ones,
        jnp.zeros((components, dimensions)),
        jnp.tile(square, (components, 1, 1)),
        kappa * ones,
        nu * ones,
    )


def scatter(natural: Mixture) -> Float[Array, "components d d"]:
    """S of each normal-inverse-Wishart."""
    outer = natural.first[:, :, None] * natural.first[:, None, :]
    return natural.second - outer / natural.kappa[:, None, None]


def log_partition(natural: Mixture) -> Float[Array, ""]:
    """A(λ), the log normaliser of q(θ); its gradient is E t(θ)."""
    d = natural.first.shape[1]
    alpha, nu = natural.weight, natural.nu
    log_determinant = jnp.linalg.slogdet(scatter(natural))[1]
    gamma = sum(gammaln((nu - i) / 2) for i in range(d)) + d * (d - 1) / 4 * jnp.log(jnp.pi)
    wishart = (
        nu * d / 2 * jnp.log(2.0)
        + gamma
        - nu / 2 * log_determinant
        + d / 2 * (LOG_TWO_PI - jnp.log(natural.kappa))
    )
    return gammaln(alpha).sum() - gammaln(alpha.sum()) + wishart.sum()


def expected_statistics(natural: Mixture) -> Mixture:
    """E t(θ) under q(θ) = ∇A(λ)."""
    return jax.grad(log_partition)(natural)


def divergence(q: Mixture, p: Mixture) -> Float[Array, ""]:
    """KL(q(θ) ‖ p(θ)) of two members of the conjugate family."""
    difference = jax.tree.map(jnp.subtract, q, p)
    return inner(difference, expected_statistics(q)) - log_partition(q) + log_partition(p)


def natural_step(current: Mixture, prior: Mixture, statistics: Mixture, rate: float) -> Mixture:
    """λ ← (1 − ρ) λ + ρ (λ₀ + statistics of all data): ρ = 1 is the conjugate update."""
    return jax.tree.map(lambda c, p, s: (1 - rate) * c + rate * (p + s), current, prior, statistics)
