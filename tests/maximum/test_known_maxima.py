"""The default fit on problems with a known maximum; all of them when there is time."""

import jax
import numpy as np
import pytest

import alws
from known_maxima import PROBLEMS

FEW = ("faithful_waiting", "dippers", "lsat7_two_parameter")
SLOW = [n for n in PROBLEMS if n not in FEW]


def gap(name, seed, **settings):
    """Nats below the maximum for every parameter, and the fit."""
    try:
        problem = PROBLEMS[name](seed)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    settings = {"conditions": problem.conditions, **settings}
    result = alws.fit(problem.start, problem.data, key=jax.random.key(seed), **settings)
    missing = problem.maximum - problem.log_likelihood(result.model)
    return missing / problem.parameters, result


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", FEW)
def test_the_maximum_is_reached_by_default(name, seed):
    missing, result = gap(name, seed)
    assert -1e-3 < missing < 0.05
    assert result.verdict.trusted
    problem = PROBLEMS[name](seed)
    np.testing.assert_allclose(result.log_likelihood, problem.maximum, atol=0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the fit should end at a maximum")
@pytest.mark.parametrize("name", SLOW)
def test_every_known_maximum(name):
    missing, result = gap(name, 0)
    if result.verdict.trusted:
        assert missing < 0.25
    else:
        assert missing > 0.01 or result.verdict.why


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_several_starts_find_the_best_maximum_of_three_gaussians(seed):
    missing, result = gap("penguins", seed, starts=8)
    assert missing < 0.05
    assert result.maxima[0][0] > -5151


@pytest.mark.slow
def test_several_starts_find_the_best_maximum_around_of_three_hidden_states():
    """There is one at −201.34 far from these starts, which EM finds from others."""
    _, result = gap("discoveries_3_states", 3, starts=12)
    assert result.maxima[0][0] > -202.73
    assert len(result.maxima) > 1


def test_a_fit_that_took_too_few_steps_is_flagged_with_the_nats_it_lacks():
    problem = PROBLEMS["deaths"](0)
    result = alws.fit(problem.start, problem.data, key=jax.random.key(0), steps=20)
    missing = problem.maximum - problem.log_likelihood(result.model)
    assert missing > 0.25 * problem.parameters
    assert not result.verdict.trusted
    assert 0.5 * missing < result.verdict.left < 2 * missing
