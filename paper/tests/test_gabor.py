"""The parts of the Gabor experiment against their definitions, and the experiment itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alws_paper.gabor.alignment import align, deviation_from_rotation, lengths, orientations
from alws_paper.gabor.data import gabor, gabor_wavelets


def turned(number):
    return gabor(jnp.pi * jnp.arange(number) / number)


def test_wavelet_is_its_formula_at_one_pixel_and_even():
    theta, row, column = 0.4, 11, 3
    axis = np.linspace(-1, 1, 16)
    x, y = axis[column], axis[row]
    u = x * np.cos(theta) + y * np.sin(theta)
    v = -x * np.sin(theta) + y * np.cos(theta)
    expected = np.exp(-(u**2 + 0.64 * v**2) / 0.18) * np.cos(2 * np.pi * u)
    image = np.asarray(gabor(jnp.array(theta)))
    np.testing.assert_allclose(image[row, column], expected, rtol=1e-4)
    np.testing.assert_allclose(gabor(jnp.array(theta + np.pi)), image, atol=1e-5)
    np.testing.assert_allclose(image[::-1, ::-1], image, atol=1e-6)


def test_orientations_of_the_data_are_uniform_and_those_of_the_images():
    data, orientation = gabor_wavelets(jax.random.key(0, impl="rbg"), 2000)
    quarters = np.histogram(orientation, bins=4, range=(0, np.pi))[0]
    np.testing.assert_allclose(quarters, 500, atol=80)
    found = orientations(data[:100], turned(720))
    gap = np.angle(np.exp(2j * (found - np.asarray(orientation[:100])))) / 2
    assert np.abs(gap).max() < np.pi / 720


def test_alignment_undoes_an_offset_and_a_reversal():
    targets = turned(36)
    images = jnp.roll(targets, 5, axis=0)[::-1]
    found = align(images, targets)
    np.testing.assert_allclose(found.errors, 0, atol=1e-3)
    np.testing.assert_array_equal(np.asarray(images)[found.order], targets)
    blank = align(jnp.zeros_like(targets), targets)
    np.testing.assert_allclose(blank.errors, np.sum(np.asarray(targets) ** 2, (1, 2)), rtol=1e-3)
    with pytest.raises(ValueError, match="same shape"):
        align(images[:3], targets)


def test_deviation_from_rotation_is_zero_for_a_line_and_large_for_a_double_turn():
    line = -np.pi * np.arange(60) / 60 + 0.3
    np.testing.assert_allclose(deviation_from_rotation(line % np.pi), 0, atol=1e-12)
    wavy = line + 0.1 * np.sin(4 * np.pi * np.arange(60) / 60)
    found = np.sqrt(np.mean(deviation_from_rotation(wavy) ** 2))
    np.testing.assert_allclose(found, 0.1 / np.sqrt(2), rtol=1e-6)
    assert np.sqrt(np.mean(deviation_from_rotation(2 * line) ** 2)) > np.radians(40)


def test_length_of_a_gaussian_bump_is_its_standard_deviation():
    row, column = np.meshgrid(np.arange(41) - 20, np.arange(41) - 20, indexing="ij")
    bump = np.exp(-(row**2) / (4 * 5.0**2) - column**2 / (4 * 2.0**2))
    np.testing.assert_allclose(lengths(jnp.array(bump[None])), 5.0, rtol=1e-3)
