"""Distances and tests between sets of samples."""

from alws.metrics.alignment import align, deviation_from_rotation, lengths, orientations
from alws.metrics.matching import match_filters
from alws.metrics.mmd import mmd_squared, mmd_two_sample_test
from alws.metrics.paired import Paired, paired_tests
from alws.metrics.relative_mmd import RelativeMMD, relative_mmd_test

__all__ = [
    "Paired",
    "RelativeMMD",
    "align",
    "deviation_from_rotation",
    "lengths",
    "match_filters",
    "mmd_squared",
    "mmd_two_sample_test",
    "orientations",
    "paired_tests",
    "relative_mmd_test",
]
