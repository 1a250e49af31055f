"""The epidemic against enumeration by the forward recursion, and what its readout sees."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from scipy.stats import binom

from alws.state_space.model import Path
from alws_paper.epidemic import experiment as page


def forward(values, population, seeds, x):
    """log p(x) by summing over every (S, I) of every day."""
    states = {(population - seeds, seeds): 1.0}
    for seen in x:
        following = {}
        for (susceptible, infectious), weight in states.items():
            infection = 1 - np.exp(-values["β"] * infectious / population)
            recovery = 1 - np.exp(-values["γ"])
            for new in range(susceptible + 1):
                likelihood = binom.pmf(seen, new, values["ρ"])
                for recovered in range(infectious + 1):
                    chance = binom.pmf(new, susceptible, infection)
                    chance *= binom.pmf(recovered, infectious, recovery)
                    state = susceptible - new, infectious + new - recovered
                    following[state] = following.get(state, 0.0) + weight * chance * likelihood
        states = following
    return np.log(sum(states.values()))


@pytest.mark.parametrize("x", [(0, 0), (1, 1), (2, 0)])
def test_sum_over_all_epidemics_is_the_forward_recursion(x):
    population, seeds = 4, 1
    model = page.Epidemic(page.TRUTH, population, seeds, 2)
    days = list(itertools.product(range(4), range(5)))
    paths = np.array(list(itertools.product(days, repeat=2)))  # [paths, days, (new, recovered)]
    susceptible = population - seeds - np.cumsum(paths[..., 0], axis=1)
    infectious = seeds + np.cumsum(paths[..., 0] - paths[..., 1], axis=1)
    before = np.concatenate([np.full((len(paths), 1), seeds), infectious[:, :-1]], axis=1)
    possible = (susceptible >= 0).all(axis=1) & (paths[..., 1] <= before).all(axis=1)
    possible &= (np.array(x) <= paths[..., 0]).all(axis=1)
    kept = jnp.asarray(paths[possible])

    def log_joint(path):
        return model.log_joint(Path(None, page.Day(path[:, 0], path[:, 1])), jnp.array(x))

    total = logsumexp(jax.jit(jax.vmap(log_joint))(kept))
    np.testing.assert_allclose(total, forward(page.TRUTH, population, seeds, x), atol=2e-4)


def test_draws_keep_the_books(key):
    model = page.Epidemic(page.TRUTH, 300, 5, 20)
    z, x = jax.jit(jax.vmap(lambda k: model.sample(k)))(jax.random.split(key, 20))
    new, recovered = np.asarray(z.steps.infections), np.asarray(z.steps.recoveries)
    assert (np.asarray(x) <= new).all()
    assert (new.sum(axis=1) <= 295).all()
    infectious = 5 + np.cumsum(new - recovered, axis=1)
    assert (infectious >= 0).all()
    assert new.sum() > 500
    np.testing.assert_allclose(np.asarray(x).sum() / new.sum(), page.TRUTH["ρ"], atol=0.05)


def test_summaries_see_size_and_time():
    early = jnp.zeros(35, int).at[8:12].set(20)
    late = jnp.roll(early, 10)
    first, second, larger = (page.summaries(x) for x in (early, late, 3 * early))
    assert float((second - first)[-2]) == pytest.approx(10 / 7, abs=0.1)  # the median day, in weeks
    assert float((larger - first)[-4]) == pytest.approx(np.log(3), abs=0.02)


@pytest.mark.parametrize(
    ("width", "holds"), [(0.05, [True, True]), (0.2, [True, False]), (0.001, [False, True])]
)
def test_claims_follow_the_numbers(width, holds):
    found = {name: value + 0.02 for name, value in page.TRUTH.items()}
    widths = {name: width * value for name, value in page.TRUTH.items()}
    if width == 0.2:
        widths["ρ"] = 0.3 * page.TRUTH["ρ"]
    assert [claim.holds for claim in page.claims(found, widths)] == holds
