"""Distances and tests between sets of samples, scores of images, held-out likelihood."""

from alws.metrics.alignment import align, deviation_from_rotation, lengths, orientations
from alws.metrics.annealed import (
    Annealed,
    Enclosed,
    annealed_log_likelihood,
    enclosed_log_likelihood,
)
from alws.metrics.efficientnet import EfficientNet
from alws.metrics.extractors import OnnxExtractor, extract
from alws.metrics.held_out import (
    binary_codes,
    enumerated_log_likelihood,
    importance_log_likelihood,
)
from alws.metrics.image_scores import (
    ImageScores,
    KernelDistance,
    frechet_distance,
    gaussian_frechet_distance,
    image_scores,
    kernel_distance,
    polynomial_mmd_squared,
)
from alws.metrics.lenet import LeNet, load_lenet, save_lenet, train_lenet
from alws.metrics.matching import match_filters
from alws.metrics.mmd import (
    gaussian_mmd_squared,
    mmd_squared,
    mmd_two_sample_test,
    unbiased_mmd_squared,
)
from alws.metrics.paired import Paired, paired_tests
from alws.metrics.relative_mmd import RelativeMMD, relative_mmd_test

__all__ = [
    "Annealed",
    "EfficientNet",
    "Enclosed",
    "ImageScores",
    "KernelDistance",
    "LeNet",
    "OnnxExtractor",
    "Paired",
    "RelativeMMD",
    "align",
    "annealed_log_likelihood",
    "binary_codes",
    "deviation_from_rotation",
    "enclosed_log_likelihood",
    "enumerated_log_likelihood",
    "extract",
    "frechet_distance",
    "gaussian_frechet_distance",
    "gaussian_mmd_squared",
    "image_scores",
    "importance_log_likelihood",
    "kernel_distance",
    "lengths",
    "load_lenet",
    "match_filters",
    "mmd_squared",
    "mmd_two_sample_test",
    "orientations",
    "paired_tests",
    "polynomial_mmd_squared",
    "relative_mmd_test",
    "save_lenet",
    "train_lenet",
    "unbiased_mmd_squared",
]
