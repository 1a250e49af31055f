"""The S-VAE on the circle: a von Mises–Fisher posterior against the uniform prior.

    q(z) = exp(κ μ·z) / 2π I₀(κ)  on ‖z‖ = 1

Davidson et al. (2018) draw z by rejection and differentiate through the accepted proposal. With
ω = μ·z, the proposal is ω = h(ε, κ) = (1 − (1 + b)ε)/(1 − (1 − b)ε), ε ~ Beta(½, ½), where
b = 1/(2κ + √(4κ² + 1)). The density of an accepted ε depends on κ, so that the gradient has two
terms (Naesseth et al., 2017):

    ∇ E_q[f] = E[∇ f(h(ε, κ))] + E[f(h(ε, κ)) ∇ log q(h(ε, κ)) |∂h/∂ε|].

The second, the correction, has expectation zero for constant f; f at the mode μ is taken off, which
keeps the gradient unbiased and makes it far less noisy.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import i0e, i1e
from jaxtyping import Array, Float, Key

from alws_paper.shared.vae import Posterior


class CircularPosterior(Posterior):
    """The von Mises–Fisher distribution on the circle with unit `direction` μ, `concentration` κ.

    Example: `CircularPosterior(jnp.array([1.0, 0.0]), jnp.array(5.0)).divergence()`.
    """

    direction: Float[Array, "2"]
    concentration: Float[Array, ""]

    def draw(self, key: Key[Array, ""]) -> tuple[Float[Array, "2"], Float[Array, ""]]:
        """One z, and log q(h)|∂h/∂ε| at its ε up to a constant; both differentiable in μ and κ."""
        angle_key, side_key = jax.random.split(key)
        half = accepted_angle(jax.lax.stop_gradient(self.concentration), angle_key) / 2
        kappa, b = self.concentration, proposal_width(self.concentration)
        # With ε = sin²(half), ω and √(1 − ω²) need no root of ε(1 − ε), which may round to 0.
        cosine, sine = jnp.cos(half), jnp.sin(half)
        below = cosine**2 + b * sine**2
        along = (cosine**2 - b * sine**2) / below
        across = 2 * jnp.sqrt(b) * sine * cosine / below
        side = jax.random.rademacher(side_key, (), along.dtype)
        turned = jnp.stack([-self.direction[1], self.direction[0]])
        # (1 − ω²)^(−½) |∂h/∂ε| = √(b/(ε(1 − ε)))/(1 − (1 − b)ε): no singularity is left in κ.
        log_ratio = kappa * (along - 1) - jnp.log(i0e(kappa)) + jnp.log(b) / 2 - jnp.log(below)
        return along * self.direction + side * across * turned, log_ratio

    def expect(self, function: Callable[[Array], Array], key: Key[Array, ""]) -> Float[Array, ""]:
        z, log_ratio = self.draw(key)
        value = function(z)
        signal = jax.lax.stop_gradient(value - function(self.direction))
        return value + signal * (log_ratio - jax.lax.stop_gradient(log_ratio))

    def divergence(self) -> Float[Array, ""]:
        """κ I₁(κ)/I₀(κ) − log I₀(κ), against the uniform distribution."""
        kappa = self.concentration
        scaled = i0e(kappa)
        return kappa * (i1e(kappa) - scaled) / scaled - jnp.log(scaled)


def proposal_width(concentration: Float[Array, ""]) -> Float[Array, ""]:
    """b, in the form that loses nothing for large κ."""
    return 1 / (2 * concentration + jnp.sqrt(4 * concentration**2 + 1))


def accepted_angle(concentration: Float[Array, ""], key: Key[Array, ""]) -> Float[Array, ""]:
    """2·arcsin √ε of the first ε that passes Wood's test, log t − t + d ≥ log u, u uniform.

    t = 2ab/(1 − (1 − b)ε), a = (1 + 2κ + √(4κ² + 1))/4, d = 4ab/(1 + b). Uniform on (0, π) before
    the test. A κ that is not a number passes, so that the search ends.
    """
    b = proposal_width(concentration)
    a = (1 + 2 * concentration + jnp.sqrt(4 * concentration**2 + 1)) / 4
    d = 4 * a * b / (1 + b)

    def propose(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, *keys = jax.random.split(state[0], 3)
        angle = jnp.pi * jax.random.uniform(keys[0], (), b.dtype)
        t = 2 * a * b / (jnp.cos(angle / 2) ** 2 + b * jnp.sin(angle / 2) ** 2)
        log_u = jnp.log1p(-jax.random.uniform(keys[1], (), b.dtype))
        return key, angle, jnp.log(t) - t + d < log_u

    start = (key, jnp.zeros((), b.dtype), jnp.ones((), bool))
    return jax.lax.while_loop(lambda state: state[2], propose, start)[1]


__all__ = ["CircularPosterior", "accepted_angle", "proposal_width"]
