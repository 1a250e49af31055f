"""Orthogonal Sylvester flows as posteriors (van den Berg et al., 2018).

    z_0 ~ N(μ, diag σ²),   z_t = z_{t−1} + Q R₁ tanh(R₂ Qᵀ z_{t−1} + b),   t = 1, …, T

with Q [D×M] of orthonormal columns, R₁ and R₂ [M×M] upper triangular, all functions of x. By
Sylvester's identity the Jacobian's determinant is that of an M×M triangular matrix,

    log |∂z_t/∂z_{t−1}| = Σ_i log |1 + tanh'(·)_i (R₁)_ii (R₂)_ii|,

positive because the diagonals are kept within (−1, 1). Q comes from any matrix by repeating
Q ← Q (I + (I − QᵀQ)/2), from Q/‖Q‖_F: each singular value s goes to s(3 − s²)/2, towards 1.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.validation import at_least
from alws_paper.shared.bounds import Proposals
from alws_paper.shared.vae import DiagonalGaussian

ROUNDS = 30
"""Rounds of orthogonalisation: singular values from 1e-4 of the norm on end at 1 to float32."""


def orthogonalise(
    matrix: Float[Array, "latents vectors"], rounds: int = ROUNDS
) -> Float[Array, "latents vectors"]:
    """The matrix with all its singular values brought to 1.

    Example: `orthogonalise(jnp.diag(jnp.array([0.1, 3.0])))` is the identity.
    """
    start = matrix / jnp.sqrt(jnp.sum(matrix**2) + jnp.finfo(matrix.dtype).tiny)

    def once(q: Array, _: None) -> tuple[Array, None]:
        return 1.5 * q - 0.5 * q @ (q.T @ q), None

    return jax.lax.scan(once, start, None, length=rounds)[0]


class SylvesterStep(eqx.Module):
    """z ↦ z + Q R₁ tanh(R₂ Qᵀ z + b), its matrices made from unconstrained ones.

    Example: `SylvesterStep(matrix, first, second, shift)(z)` gives z_t and log |∂z_t/∂z|.
    """

    basis: Float[Array, "latents vectors"]
    first: Float[Array, "vectors vectors"]
    second: Float[Array, "vectors vectors"]
    shift: Float[Array, " vectors"]

    def __init__(
        self,
        matrix: Float[Array, "latents vectors"],
        first: Float[Array, "vectors vectors"],
        second: Float[Array, "vectors vectors"],
        shift: Float[Array, " vectors"],
    ):
        self.basis = orthogonalise(matrix)
        self.first, self.second = _triangular(first), _triangular(second)
        self.shift = shift

    def __call__(
        self, z: Float[Array, " latents"]
    ) -> tuple[Float[Array, " latents"], Float[Array, ""]]:
        h = jnp.tanh(self.second @ (z @ self.basis) + self.shift)
        diagonal = jnp.diagonal(self.first) * jnp.diagonal(self.second)
        return z + self.basis @ (self.first @ h), jnp.sum(jnp.log1p((1 - h**2) * diagonal))


def _triangular(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The upper triangle, its diagonal within (−1, 1)."""
    return jnp.triu(matrix, 1) + jnp.diag(jnp.tanh(jnp.diagonal(matrix)))


class SylvesterPosterior(eqx.Module):
    """q(z | x): a diagonal Gaussian carried through Sylvester steps, stacked in one.

    Example: `SylvesterEncoder(trunk, latents=16, key=key)(x).propose(key, 5)`.
    """

    base: DiagonalGaussian
    steps: SylvesterStep

    def propose(self, key: Key[Array, ""], number: int) -> Proposals:
        """`number` draws and log q of each."""

        def carry(z: Array, step: SylvesterStep) -> tuple[Array, Array]:
            return jax.vmap(step)(z)

        start, log_density = self.base.propose(key, number)
        z, changes = jax.lax.scan(carry, start, self.steps)
        return Proposals(z, log_density - changes.sum(axis=0))


class SylvesterEncoder(eqx.Module):
    """x ↦ features, and linear maps from these to the Gaussian and to every step's matrices.

    Example: `SylvesterEncoder(trunk, latents=16, vectors=8, steps=4, key=key)(x)`.
    """

    trunk: Any
    gaussian: eqx.nn.Linear
    flow: eqx.nn.Linear
    latents: int = eqx.field(static=True)
    vectors: int = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def __init__(
        self,
        trunk: Any,
        *,
        latents: int,
        vectors: int = 8,
        steps: int = 4,
        key: Key[Array, ""],
    ):
        at_least("vectors", vectors, 1)
        at_least("steps", steps, 1)
        if vectors > latents:
            raise ValueError(
                f"`vectors` must be at most the number of latents, {latents}; got {vectors}. No "
                "more columns than that can be orthogonal."
            )
        keys = jax.random.split(key)
        each = vectors * (latents + 2 * vectors + 1)
        self.trunk = trunk
        self.gaussian = eqx.nn.Linear(trunk.features, 2 * latents, key=keys[0])
        self.flow = eqx.nn.Linear(trunk.features, steps * each, key=keys[1])
        self.latents, self.vectors, self.steps = latents, vectors, steps

    def __call__(self, x: PyTree) -> SylvesterPosterior:
        d, m = self.latents, self.vectors
        features = self.trunk(x)
        base = DiagonalGaussian(*jnp.split(self.gaussian(features), 2))
        numbers = self.flow(features).reshape(self.steps, -1)
        ends = (d * m, d * m + m * m, d * m + 2 * m * m)

        def step(row: Float[Array, " numbers"]) -> SylvesterStep:
            matrix, first, second, shift = jnp.split(row, ends)
            return SylvesterStep(
                matrix.reshape(d, m), first.reshape(m, m), second.reshape(m, m), shift
            )

        return SylvesterPosterior(base, jax.vmap(step)(numbers))


__all__ = [
    "SylvesterEncoder",
    "SylvesterPosterior",
    "SylvesterStep",
    "orthogonalise",
]
