"""Kernels k(x, x') = ϰ(φ(x), φ(x')), §3.4 and the appendix on the kernel's architecture.

A kernel has one method, `evaluate`, and declares what else there is to say of it: what it compares
(`embed`), its bandwidths, its random features (see `Kernel`).

With `track=True` the bandwidth is a factor, adapted, times the median distance in the sleep samples
of each step, so that it follows a model whose scale changes. With `track=False` it starts at the
median of the first sleep samples and moves only by adaptation, as in the paper.
"""

from alws.kernels.base import FeatureMap, Kernel, Sum
from alws.kernels.dot_product import DotProduct
from alws.kernels.sets import OnSets, Pairwise
from alws.kernels.stationary import (
    Matern12,
    Matern32,
    Matern52,
    SquaredExponential,
    Stationary,
    median_distance,
    sampled_median_distance,
    squared_distances,
)

__all__ = [
    "DotProduct",
    "FeatureMap",
    "Kernel",
    "Matern12",
    "Matern32",
    "Matern52",
    "OnSets",
    "Pairwise",
    "SquaredExponential",
    "Stationary",
    "Sum",
    "median_distance",
    "sampled_median_distance",
    "squared_distances",
]
