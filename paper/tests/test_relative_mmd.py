"""The relative MMD test where its answer is known."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest, norm

from alws_paper.shared import relative_mmd
from alws_paper.shared.mmd import mmd_squared
from alws_paper.shared.relative_mmd import relative_mmd_test

BANDWIDTH = 1.5


def normal(generator, size, shift=0.0, dimensions=2):
    """Standard normal samples moved along the first axis."""
    x = generator.normal(size=(size, dimensions))
    x[:, 0] += shift
    return x


@cache
def repeated(first_shift, second_shift, runs=400):
    generator = np.random.default_rng(0)
    return [
        relative_mmd_test(
            normal(generator, 80, first_shift),
            normal(generator, 120, second_shift),
            normal(generator, 100),
            bandwidth=BANDWIDTH,
        )
        for _ in range(runs)
    ]


def exact_mmd(shift, dimensions=2):
    """MMD² of N(0, I) and N(shift e₁, I) in closed form: k averages to a wider Gaussian."""
    shrink = (BANDWIDTH**2 / (BANDWIDTH**2 + 2)) ** (dimensions / 2)
    return 2 * shrink * (1 - np.exp(-(shift**2) / (2 * (BANDWIDTH**2 + 2))))


def test_p_is_uniform_when_both_are_equally_far():
    p = np.array([r.p_value for r in repeated(0.7, -0.7)])
    assert kstest(p, "uniform").pvalue > 0.01
    assert 0.02 < np.mean(p < 0.05) < 0.09


def test_power_in_both_directions():
    p = np.array([r.p_value for r in repeated(0.2, 1.0, runs=50)])
    assert np.mean(p < 0.05) > 0.9
    p = np.array([r.p_value for r in repeated(1.0, 0.2, runs=50)])
    assert np.mean(p > 0.95) > 0.9


@pytest.mark.parametrize("shifts", [(0.7, -0.7), (0.7, 0.7), (0.4, 1.2)])
def test_standard_error_is_that_of_repeated_samples(shifts):
    """Same sides and opposite sides have covariances of opposite sign."""
    results = repeated(*shifts)
    difference = np.array([r.first_mmd - r.second_mmd for r in results])
    errors = np.array([r.standard_error for r in results])
    np.testing.assert_allclose(np.sqrt(np.mean(errors**2)), difference.std(), rtol=0.12)


def test_covariance_has_the_sign_of_the_geometry():
    """The shared data move both estimates alike when both samples lie on one side."""
    together, apart = repeated(0.7, 0.7), repeated(0.7, -0.7)
    for results, sign in ((together, 1), (apart, -1)):
        pairs = np.array([(r.first_mmd, r.second_mmd) for r in results])
        assert sign * np.corrcoef(pairs.T)[0, 1] > 0.2
    mean_error = [np.mean([r.standard_error for r in results]) for results in (together, apart)]
    assert mean_error[0] < mean_error[1]


def test_never_too_bold_when_all_three_are_one_distribution():
    p = np.array([r.p_value for r in repeated(0.0, 0.0)])
    assert np.mean(p < 0.05) < 0.06
    assert np.mean(p > 0.95) < 0.06


def test_estimates_are_unbiased_and_those_of_mmd_squared():
    results = repeated(0.4, 1.2)
    np.testing.assert_allclose(np.mean([r.first_mmd for r in results]), exact_mmd(0.4), rtol=0.05)
    np.testing.assert_allclose(np.mean([r.second_mmd for r in results]), exact_mmd(1.2), rtol=0.05)
    generator = np.random.default_rng(1)
    y, z, x = normal(generator, 30, 0.5), normal(generator, 40, 1.0), normal(generator, 50)
    result = relative_mmd_test(jnp.array(y), jnp.array(z), jnp.array(x), bandwidth=BANDWIDTH)
    expected = [mmd_squared(jnp.array(a), jnp.array(x), BANDWIDTH) for a in (y, z)]
    np.testing.assert_allclose((result.first_mmd, result.second_mmd), expected, atol=2e-6)
    difference = result.first_mmd - result.second_mmd
    np.testing.assert_allclose(result.p_value, norm.cdf(difference / result.standard_error))


def test_exchange_of_the_samples_turns_p_round():
    generator = np.random.default_rng(2)
    y, z, x = normal(generator, 60, 0.5), normal(generator, 70, 0.8), normal(generator, 50)
    p, reverse = (relative_mmd_test(*pair, x).p_value for pair in ((y, z), (z, y)))
    np.testing.assert_allclose(p + reverse, 1.0)


def test_blocks_do_not_change_the_result(monkeypatch):
    generator = np.random.default_rng(3)
    samples = normal(generator, 60, 0.5), normal(generator, 70, 0.8), normal(generator, 50)
    whole = relative_mmd_test(*samples)
    monkeypatch.setattr(relative_mmd, "BLOCK", 7)
    np.testing.assert_allclose(relative_mmd_test(*samples), whole, rtol=1e-9)


def test_median_bandwidth_follows_the_scale():
    generator = np.random.default_rng(4)
    samples = normal(generator, 60, 0.5), normal(generator, 70, 0.8), normal(generator, 50)
    wide = [1000 * sample + 5 for sample in samples]
    np.testing.assert_allclose(relative_mmd_test(*wide), relative_mmd_test(*samples), rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": np.ones(5)}, r"`first` must be a matrix .* got shape \(5,\)"),
        ({"second": np.ones((1, 2))}, r"at least 2 samples, got shape \(1, 2\)"),
        ({"data": np.ones((5, 3))}, "same number of columns, got first 2, second 2, data 3"),
        ({"second": np.full((5, 2), np.nan)}, "`second` must be finite, got 10 entries"),
        ({"bandwidth": 0.0}, "`bandwidth` must be positive and finite, got 0.0"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    good = {name: np.eye(5, 2) for name in ("first", "second", "data")}
    with pytest.raises(ValueError, match=message):
        relative_mmd_test(**(good | changes))
