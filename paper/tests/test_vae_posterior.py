"""The posteriors on a grid against closed forms of Gaussians and a mixture."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from alws.model import log_joint
from alws_paper.shared.vae import DiagonalGaussian
from alws_paper.vae_posterior.experiment import (
    Digits,
    log_joints,
    measure_one,
    quantile_index,
    square_grid,
)
from alws_paper.vae_posterior.figure import window_around

GRID = square_grid(4.0, 0.05)
MEAN, COVARIANCE = np.array([0.5, -0.3]), np.array([[0.09, 0.03], [0.03, 0.04]])


def test_a_gaussian_posterior_has_no_distance_from_its_best_gaussian():
    log_joint = multivariate_normal.logpdf(GRID.z, MEAN, COVARIANCE) - 7.0
    q = DiagonalGaussian(jnp.array([0.4, -0.2]), jnp.log(jnp.array([0.3, 0.2])))
    value, forward, backward, best, several, edge, narrowest = measure_one(log_joint, GRID, q)

    def kl(mean, covariance, other_mean, other_covariance):
        inverse, apart = np.linalg.inv(other_covariance), other_mean - mean
        trace = np.trace(inverse @ covariance) + apart @ inverse @ apart - 2
        dets = np.linalg.det(other_covariance) / np.linalg.det(covariance)
        return (trace + np.log(dets)) / 2

    other = np.array([0.4, -0.2]), np.diag([0.09, 0.04])
    assert_allclose(value, -7.0, atol=1e-6)
    assert_allclose(forward, kl(MEAN, COVARIANCE, *other), atol=1e-4)
    assert_allclose(backward, kl(*other, MEAN, COVARIANCE), atol=1e-4)
    assert_allclose(best, 0, atol=1e-6)
    assert several == 0
    assert edge < 1e-9
    assert_allclose(narrowest, np.sqrt(np.linalg.eigvalsh(COVARIANCE)[0]) / 0.05, rtol=1e-4)


def test_two_modes_are_found_and_are_far_from_any_gaussian():
    modes = [multivariate_normal.pdf(GRID.z, m, 0.04) for m in ([-1, 0], [1, 0])]
    q = DiagonalGaussian(jnp.zeros(2), jnp.zeros(2))
    even = measure_one(np.log(0.5 * modes[0] + 0.5 * modes[1]), GRID, q)
    # Apart, the mixture has the entropy of one mode and log 2; its covariance gains 1 along z₁.
    assert_allclose(even[3], 0.5 * np.log(1.04 / 0.04) - np.log(2), atol=1e-3)
    assert even[4] == 1
    rare = measure_one(np.log(0.98 * modes[0] + 0.02 * modes[1]), GRID, q)
    assert rare[4] == 0, "a mode of 2 % does not count"


def test_log_joints_are_those_of_the_model(key):
    model = Digits(8, key)
    z = jax.random.normal(key, (600, 2))
    x = jax.random.bernoulli(key, 0.3, (3, 784)).astype(float)
    expected = jax.vmap(lambda x: jax.vmap(lambda z: log_joint(model, z, x))(z))(x)
    assert_allclose(log_joints(model, x, z), expected, rtol=1e-4)


def test_quantiles_pick_entries():
    values = np.array([3.0, 1.0, 2.0])
    assert [quantile_index(values, share) for share in (0.0, 0.5, 1.0)] == [1, 2, 0]


def test_the_window_holds_every_mode_and_little_else():
    modes = [multivariate_normal.pdf(GRID.z, m, 0.01) for m in ([-1, 0], [1, 0.5])]
    window = window_around(GRID.axis, np.log(modes[0] + modes[1] + 1e-300))
    ends = [window.x[0], window.x[-1], window.y[0], window.y[-1]]
    reach = 1 + 0.1 * np.sqrt(16)  # 8 nats are four standard deviations
    assert_allclose(ends, [-reach, reach, 0.25 - reach, 0.25 + reach], atol=0.16)
    assert window.z.shape == (len(window.x) * len(window.y), 2)
