"""K2-ABC (Park, Jitkrittum & Sejdinovic 2016): soft ABC by the MMD between two samples.

Draw θ_i from the prior, simulate a sample Y_i, and weigh θ_i by exp(−MMD²(Y_i, Y*)/ε): no summary
statistics are chosen. A time series counts as a sample of its values, its order is not used.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from alws.kernels import median_distance
from alws_paper.shared.mmd import gaussian_mmd_squared


class K2ABC(NamedTuple):
    """Parameters drawn from the prior, and MMD² of a sample simulated with each."""

    parameters: Float[Array, "draws parameters"]
    mmd: Float[Array, " draws"]

    def weights(self, epsilon: float) -> Float[Array, " draws"]:
        """Posterior weights exp(−MMD²/ε), which sum to one; a sample that is not finite has 0."""
        if not epsilon > 0:
            raise ValueError(f"`epsilon` must be positive, got {epsilon}.")
        return jax.nn.softmax(jnp.where(jnp.isfinite(self.mmd), -self.mmd / epsilon, -jnp.inf))

    def mean(self, epsilon: float) -> Float[Array, " parameters"]:
        """The posterior mean."""
        return self.weights(epsilon) @ self.parameters

    def sample(
        self, key: Key[Array, ""], epsilon: float, number: int
    ) -> Float[Array, "number parameters"]:
        """Parameters from the posterior: draws by their weights, with replacement."""
        chosen = jax.random.choice(key, len(self.mmd), (number,), p=self.weights(epsilon))
        return self.parameters[chosen]


def k2_abc(
    simulate: Callable[[Key[Array, ""], Array], Float[Array, "n entries"]],
    sample_prior: Callable[[Key[Array, ""]], Float[Array, " parameters"]],
    data: Float[Array, "m entries"],
    *,
    key: Key[Array, ""],
    number: int,
    bandwidth: float | None = None,
    batch_size: int = 500,
) -> K2ABC:
    """Draw `number` parameters from the prior and compare a sample of each with the data.

    `simulate(key, θ)` gives a sample, one row for each observation. The kernel is exp(−d²/2σ²); σ
    is the median distance of the data unless given. MMD² is the unbiased estimate.

    Example: `k2_abc(simulate, prior, data, key=key, number=10_000).mean(epsilon=0.01)`.
    """
    sigma = median_distance(data) if bandwidth is None else bandwidth

    def one(key: Key[Array, ""]) -> tuple[Array, Array]:
        prior_key, sample_key = jax.random.split(key)
        parameters = sample_prior(prior_key)
        return parameters, gaussian_mmd_squared(simulate(sample_key, parameters), data, sigma)

    keys = jax.random.split(key, number)
    return K2ABC(*jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=batch_size))(keys))
