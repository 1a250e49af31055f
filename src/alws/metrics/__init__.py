"""Distances and tests between sets of samples."""

from alws.metrics.mmd import mmd_squared, mmd_two_sample_test

__all__ = ["mmd_squared", "mmd_two_sample_test"]
