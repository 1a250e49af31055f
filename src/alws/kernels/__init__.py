"""Kernels k(x, x') = ϰ(φ(x), φ(x')), §3.4 and the appendix on the kernel's architecture.

A kernel has two verbs: `embed` takes a batch of observations to what the kernel compares (features
for most), `gram` compares two embedded batches. `calibrate` sets the bandwidth from a batch: the
median distance between its members.

With `track=True` the bandwidth is a factor, adapted, times the median distance in the sleep samples
of each step, so that it follows a model whose scale changes. With `track=False` it starts at the
median of the first sleep samples and moves only by adaptation, as in the paper.
"""

from alws.kernels.base import Kernel, Sum
from alws.kernels.distances import median_distance, sampled_median_distance, squared_distances
from alws.kernels.dot_product import DotProduct
from alws.kernels.others import OnSets, Pairwise
from alws.kernels.stationary import Matern12, Matern32, Matern52, SquaredExponential, Stationary

__all__ = [
    "DotProduct",
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
