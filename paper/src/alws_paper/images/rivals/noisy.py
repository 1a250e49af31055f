"""Networks with noise inside: (x, n) ↦ numbers, whose distribution over n has no known density."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree


class NoisyNetwork(eqx.Module):
    """Features of x and noise n ~ N(0, I) through two ReLU layers; n enters both.

        h₁ = ReLU(A φ(x) + B n),   h₂ = ReLU(C h₁ + D n),   out = E h₂ + F φ(x)

    Example: `NoisyNetwork(trunk, 16, noise=16, hidden=256, key=key)(x, key, 10).shape == (10, 16)`.
    """

    trunk: Any
    seen: eqx.nn.Linear
    noise_in: eqx.nn.Linear
    middle: eqx.nn.Linear
    noise_between: eqx.nn.Linear
    last: eqx.nn.Linear
    direct: eqx.nn.Linear
    noise: int = eqx.field(static=True)

    def __init__(
        self, trunk: Any, outputs: int, *, noise: int = 16, hidden: int = 256, key: Key[Array, ""]
    ):
        keys = jax.random.split(key, 6)
        self.trunk, self.noise = trunk, noise
        self.seen = eqx.nn.Linear(trunk.features, hidden, key=keys[0])
        self.noise_in = eqx.nn.Linear(noise, hidden, use_bias=False, key=keys[1])
        self.middle = eqx.nn.Linear(hidden, hidden, key=keys[2])
        self.noise_between = eqx.nn.Linear(noise, hidden, use_bias=False, key=keys[3])
        self.last = eqx.nn.Linear(hidden, outputs, use_bias=False, key=keys[4])
        self.direct = eqx.nn.Linear(trunk.features, outputs, key=keys[5])

    def __call__(
        self, x: PyTree, key: Key[Array, ""], number: int
    ) -> Float[Array, "number outputs"]:
        """The outputs for one x and `number` draws of the noise."""
        return self.spread(self.trunk(x), key, number)

    def spread(
        self, features: Float[Array, " features"], key: Key[Array, ""], number: int
    ) -> Float[Array, "number outputs"]:
        """The same from φ(x)."""
        seen, direct = self.seen(features), self.direct(features)

        def one(n: Float[Array, " noise"]) -> Float[Array, " outputs"]:
            h = jax.nn.relu(seen + self.noise_in(n))
            return self.last(jax.nn.relu(self.middle(h) + self.noise_between(n))) + direct

        return jax.vmap(one)(jax.random.normal(key, (number, self.noise), jnp.result_type(seen)))


__all__ = ["NoisyNetwork"]
