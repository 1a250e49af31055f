"""What an ecologist would look at in a sequence of counts, for the regression of the blowfly model.

How counts and their changes are distributed, autocorrelations, roughness, and the first counts,
which show the past. The statistics that the methods are judged by are not among them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LONGEST = 20
"""The longest delay of the model, in counts."""


def summaries(data: Float[Array, " times"]) -> Callable[[Array], Float[Array, " features"]]:
    """What the regression sees of a sequence; levels and widths are those of the data."""

    def changes(x: Array) -> tuple[Array, Array, Array]:
        root = jnp.sqrt(jnp.clip(x, 0.0, 50.0))
        return jnp.log(jnp.maximum(x, 1e-4)), root, jnp.diff(root)

    ranks = np.linspace(0.04, 0.96, 12)
    levels = [(np.quantile(v, ranks), np.std(v) / 4) for v in map(np.asarray, changes(data))]

    def distribution(v: Array, at: tuple[np.ndarray, np.floating]) -> Array:
        return jax.nn.sigmoid((v[:, None] - at[0]) / at[1]).mean(axis=0)

    def autocorrelations(v: Array) -> Array:
        size = 2 * len(v)
        power = jnp.abs(jnp.fft.rfft(v - v.mean(), size)) ** 2
        covariances = jnp.fft.irfft(power, size)[: LONGEST + 5]
        return covariances[1:] / (covariances[0] + 1e-6)

    def features(x: Float[Array, " times"]) -> Float[Array, " features"]:
        log, root, change = changes(x)
        bend, log_change = jnp.diff(change), jnp.diff(log)
        rough = [root - root.mean(), change, bend, log_change, jnp.diff(log_change)]
        squares = jnp.stack([jnp.mean(v**2) for v in rough])
        turning = jnp.tanh(-400 * change[1:] * change[:-1]).mean()
        return jnp.concatenate(
            [
                log[:LONGEST],
                distribution(log, levels[0]),
                distribution(change, levels[2]),
                autocorrelations(root),
                autocorrelations(log),
                jnp.log(squares + 1e-6),
                jnp.stack([log.mean(), root.mean(), turning]),
            ]
        )

    return features
