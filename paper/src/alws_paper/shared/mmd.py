"""Maximum mean discrepancy between two samples, and a permutation test of equality.

MMD²(P, Q) = E k(x, x') + E k(y, y') − 2 E k(x, y), estimated without bias (Gretton et al. 2012).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from alws.kernels import median_distance, squared_distances


def unbiased_mmd_squared(
    xx: Float[Array | np.ndarray, "n n"],
    yy: Float[Array | np.ndarray, "m m"],
    xy: Float[Array | np.ndarray, "n m"],
) -> Float[Array, ""] | np.floating:
    """MMD² from the three Gram matrices, pairs of an observation with itself left out.

    Example: `unbiased_mmd_squared(x @ x.T, y @ y.T, x @ y.T)` compares means.
    """

    def between_different(k: Array | np.ndarray) -> Array | np.floating:
        return (k.sum() - k.trace()) / (k.shape[0] * (k.shape[0] - 1))

    return between_different(xx) + between_different(yy) - 2 * xy.mean()


def gaussian_mmd_squared(
    x: Float[Array, "n d"], y: Float[Array, "m d"], bandwidth: Float[Array, ""] | float
) -> Float[Array, ""]:
    """The unbiased estimate of MMD² with the kernel exp(−d²/2σ²), for use in compiled code.

    Example: `jax.vmap(lambda y: gaussian_mmd_squared(x, y, 1.0))(samples)`.
    """

    def gram(a: Array, b: Array) -> Array:
        return jnp.exp(-squared_distances(a, b) / (2 * bandwidth**2))

    return jnp.asarray(unbiased_mmd_squared(gram(x, x), gram(y, y), gram(x, y)))


def mmd_squared(x: Float[Array, "n d"], y: Float[Array, "m d"], bandwidth: float) -> float:
    """The unbiased estimate of MMD² with the kernel exp(−d²/2σ²).

    Example: about 0 for two samples of one distribution.
    """
    joint = jnp.concatenate([x, y])
    return float(_unbiased(_gram(joint, bandwidth), np.arange(len(joint)) < len(x)))


def mmd_two_sample_test(
    x: Float[Array, "n d"],
    y: Float[Array, "m d"],
    *,
    permutations: int = 500,
    seed: int = 0,
) -> float:
    """The p-value of "both samples come from one distribution", by permutation of the labels.

    The bandwidth is the median distance of the joint sample.
    """
    joint = jnp.concatenate([jnp.asarray(x), jnp.asarray(y)])
    generator = np.random.default_rng(seed)
    some = joint[generator.permutation(len(joint))[:1000]]
    gram = _gram(joint, float(median_distance(some)))
    first = np.arange(len(joint)) < len(x)
    observed = _unbiased(gram, first)
    null = [_unbiased(gram, generator.permutation(first)) for _ in range(permutations)]
    return float((1 + np.sum(np.array(null) >= observed)) / (1 + permutations))


def _gram(joint: Array, bandwidth: float) -> np.ndarray:
    if not bandwidth > 0:
        raise ValueError(f"`bandwidth` must be positive, got {bandwidth}.")
    gram = np.array(jnp.exp(-squared_distances(joint, joint) / (2 * bandwidth**2)))
    np.fill_diagonal(gram, 0.0)
    return gram


def _unbiased(gram: np.ndarray, first: np.ndarray) -> float:
    """MMD² from the Gram matrix of the joint sample, its diagonal set to zero."""
    n, m = first.sum(), (~first).sum()
    to_first = gram @ first.astype(gram.dtype)
    within_first = to_first[first].sum() / (n * (n - 1))
    across = to_first[~first].sum() / (n * m)
    within_second = (gram.sum() - to_first[first].sum() - 2 * to_first[~first].sum()) / (
        m * (m - 1)
    )
    return within_first + within_second - 2 * across
