"""The Galton board: density, recursion, simulator and exact values against each other."""

import itertools
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import alws
from alws.estimates import Joint
from alws_paper.galton import experiment as galton
from alws_paper.galton.experiment import HOPPERS, NAMES, TRUTH, Galton, landing

ROWS = 5


@pytest.fixture(scope="module")
def board():
    return Galton.of(TRUTH, ROWS)


@pytest.fixture(scope="module")
def table(board):
    draws, _ = eqx.filter_jit(alws.draw)(board, jax.random.key(3), 20_000)
    return galton.count(draws.x, ROWS)


def test_path_densities_sum_to_the_recursion(board):
    """Every path from every hopper, added up by where it lands."""
    paths = np.array(list(itertools.product([-1.0, 1.0], repeat=ROWS)))
    total = np.zeros((len(HOPPERS), ROWS + 1))
    density = jax.jit(jax.vmap(board.log_joint))
    for i, hopper in enumerate(HOPPERS):
        ends = hopper + paths.sum(axis=1)
        x = np.stack([np.full(len(paths), hopper), ends], axis=1)
        weights = np.exp(density(jnp.array(paths, jnp.float32), jnp.array(x, jnp.float32)))
        np.add.at(total[i], ((ends - hopper + ROWS) // 2).astype(int), weights)
    np.testing.assert_allclose(landing(board), total, atol=1e-6)
    np.testing.assert_allclose(total.sum(), 1, atol=1e-5)


def test_a_fair_board_gives_the_binomial():
    fair = landing(Galton.of((0.0,) * 4, 10))
    expected = stats.binom.pmf(np.arange(11), 10, 0.5) / len(HOPPERS)
    np.testing.assert_allclose(fair, np.tile(expected, (len(HOPPERS), 1)), atol=1e-6)


def test_a_path_that_ends_elsewhere_has_no_density(board):
    path = jnp.ones(ROWS)
    assert np.isneginf(board.log_joint(path, jnp.array([0.0, ROWS - 2.0])))
    assert np.isfinite(board.log_joint(path, jnp.array([0.0, ROWS])))


def test_simulated_balls_follow_the_recursion(board, table):
    expected = np.asarray(landing(board), float).ravel()
    assert stats.chisquare(table.ravel(), table.sum() * expected / expected.sum()).pvalue > 1e-3
    other = np.asarray(landing(replace(board, momentum=board.momentum + 0.1)), float).ravel()
    assert stats.chisquare(table.ravel(), table.sum() * other / other.sum()).pvalue < 1e-6


def test_the_simulator_has_no_derivative(board, key):
    """Where a ball lands is a step function of the parameters: no gradient to train by."""
    slopes = jax.jacobian(lambda b: jax.vmap(b.sample)(jax.random.split(key, 100))[1])(board)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(slopes))


def test_gradient_from_simulations_is_that_of_the_exact_likelihood(table, key):
    start = Galton.of((0.0,) * 4, ROWS)
    places = np.array(HOPPERS)[:, None] + np.arange(-ROWS, ROWS + 1, 2)
    x = np.stack([np.broadcast_to(np.array(HOPPERS)[:, None], places.shape), places], axis=-1)
    data = jnp.array(np.repeat(x.reshape(-1, 2), table.ravel(), axis=0)[::20], jnp.float32)
    exact, _ = galton.score_and_information(start, jnp.asarray(galton.count(data, ROWS)))

    @eqx.filter_jit
    def estimated(key):
        sleep, _ = alws.draw(start, key, 1000)
        smoother = alws.regressions.KernelRidge(alws.kernels.SquaredExponential()).fit(sleep.x)
        weights = Joint().weigh(start, smoother, sleep, data, None)
        slopes = jax.grad(lambda b: Joint().objective(b, sleep, weights, None))(start)
        return ravel_pytree(slopes)[0]

    found = np.mean([estimated(k) for k in jax.random.split(key, 4)], axis=0)
    assert np.linalg.norm(found - exact) < 0.1 * np.linalg.norm(exact)


def test_fisher_information_is_the_expected_curvature(board):
    flat, unravel = ravel_pytree(board)
    counts = landing(board)  # the expected share of balls in each bin
    score, information = galton.score_and_information(board, counts)
    curvature = jax.hessian(lambda p: galton.mean_log_likelihood(unravel(p), counts))(flat)
    np.testing.assert_allclose(score, 0, atol=1e-5)
    np.testing.assert_allclose(information, -curvature, atol=1e-4)


def test_three_hoppers_tell_the_parameters_apart_and_one_does_not():
    board = Galton.of(TRUTH, 10)
    flat, unravel = ravel_pytree(board)
    slopes = np.asarray(jax.jacobian(lambda p: landing(unravel(p)))(flat), float)

    def correlation(hoppers):
        p, s = np.asarray(landing(board), float)[hoppers].ravel(), slopes[hoppers].reshape(-1, 4)
        covariance = np.linalg.inv((s / p[:, None]).T @ s)
        scale = np.sqrt(np.diagonal(covariance))
        return covariance / np.outer(scale, scale)

    assert NAMES == ("tilt", "pull", "bend", "momentum")
    assert np.linalg.eigvalsh(correlation([0, 1, 2])).min() > 0.2
    np.testing.assert_allclose(correlation([0, 1, 2])[1, 3], -0.04, atol=0.01)
    np.testing.assert_allclose(correlation([1])[1, 3], -0.999, atol=0.001)


def test_exact_maximum(board, table):
    best = galton.exact_maximum(board, table)
    score, _ = galton.score_and_information(best, jnp.asarray(table))
    np.testing.assert_allclose(score, 0, atol=1e-5)
    truth, most = (galton.mean_log_likelihood(b, table) for b in (board, best))
    assert truth < most < truth + 10 / table.sum()
    errors = galton.exact_errors(best, int(table.sum()))
    assert (np.abs(galton.values(best) - TRUTH) < 3.5 * errors).all()


def test_claims_can_fail(board, table):
    best = galton.exact_maximum(board, table)
    exact = Galton.of(tuple(galton.exact_errors(best, int(table.sum()))), ROWS)

    def holds(fitted, errors):
        return [claim.holds for claim in galton.claims(fitted, errors, best, table)]

    assert holds(best, exact) == [True, True, True]
    assert holds(replace(best, tilt=best.tilt + 0.5), exact)[:2] == [False, False]
    assert holds(best, replace(exact, bend=1.3 * exact.bend)) == [True, True, False]


def test_the_figure_shows_the_heaps_and_what_the_model_expects(board, table):
    errors = Galton.of((0.1,) * 4, ROWS)
    *_, heaps, parameters = galton.figure(board, errors, board, table).axes
    bars = [bar.get_height() for bar in heaps.patches]
    np.testing.assert_array_equal(bars, table.ravel())
    dots = np.concatenate([line.get_ydata() for line in heaps.lines])
    np.testing.assert_allclose(dots, table.sum() * landing(board).ravel(), rtol=1e-5)
    labels = [text.get_text() for text in parameters.get_yticklabels()]
    assert labels == [f"{name} {value}" for name, value in zip(NAMES, TRUTH, strict=True)]
