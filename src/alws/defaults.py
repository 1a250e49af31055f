"""The choices `fit` makes when the user makes none, for a problem nobody tuned it for."""

import math

import jax
import optax
from jaxtyping import Array, Key, PyTree

from alws.features import Chain, Features, Identity, Linear, Standardise
from alws.gradient_models.kernel_ridge import KernelRidge
from alws.kernels import SquaredExponential

MOST_PLAIN_ENTRIES = 100
PROJECTED_ENTRIES = 300
WHOLE_DATA = 1024
MINIBATCH = 256
CONDITIONS = 4


def features(data: PyTree[Array], key: Key[Array, ""]) -> Features:
    """x as it is (the kernel scales it); beyond 100 entries, scaled and projected to 300."""
    entries = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(data))
    if entries <= MOST_PLAIN_ENTRIES:
        return Identity()
    scaled = Standardise.from_data(data)
    projection_key = jax.random.fold_in(key, 1)
    projected = min(entries, PROJECTED_ENTRIES)
    return Chain((scaled, Linear.random(projection_key, entries, projected)))


def gradient_model(data: PyTree[Array], key: Key[Array, ""]) -> KernelRidge:
    """Kernel ridge regression with an intercept, bandwidth from the median, λ from 0.01."""
    return KernelRidge(SquaredExponential(features(data, key)), ridge=0.01)


def optimiser(steps: int, learning_rate: float = 0.05) -> optax.GradientTransformation:
    """Adam with a cosine decay over the whole fit, gradients clipped at norm 10.

    With `Settings.natural_units` the rate is in standard deviations of the complete data.
    """
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule))


def batch_size(size: int, *, conditional: bool) -> int:
    """All data up to 1024 observations, 256 at a time beyond; 4 conditions at a time."""
    if conditional:
        return min(size, CONDITIONS)
    return size if size <= WHOLE_DATA else MINIBATCH
