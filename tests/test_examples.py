"""Every example ends at the maximum of its likelihood, by quadrature or exact sums."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from alws.model import log_joint
from known_maxima import Exact

EXAMPLES = Path(__file__).parents[1] / "examples"
RANDOM = ("gaussian", "bernoulli", "binomial", "poisson", "negative binomial", "zero-inflated")


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def grid(dimension, nodes, end=7.0):
    """Nodes of a product grid, [number, dimension], and the log of a cell's volume."""
    line = jnp.linspace(-end, end, nodes)
    mesh = jnp.meshgrid(*[line] * dimension, indexing="ij")
    return jnp.stack(mesh, axis=-1).reshape(-1, dimension), dimension * jnp.log(line[1] - line[0])


def gain(result, grouped, values, log_volume=0.0):
    """What climbing Σ log Σ_z p(z, x_g) from the fit adds, and its distance from what was told."""

    def log_marginal(model, group):
        x, rows = group
        return logsumexp(jax.vmap(lambda z: log_joint(model, z, x, rows))(values)) + log_volume

    exact = Exact(log_marginal, (grouped.data, grouped.conditions))
    reached = exact(result.model)
    return exact.maximise(result.model)[1] - reached, reached - result.log_likelihood


def check(result, grouped, *nodes):
    parameters = sum(np.size(leaf) for leaf in jax.tree.leaves(result.model))
    added, told = gain(result, grouped, *nodes)
    assert result.verdict.trusted
    assert added < 0.02 * parameters
    assert abs(told) < 0.02


@pytest.mark.parametrize(
    "kind",
    [k if k == "negative binomial" else pytest.param(k, marks=pytest.mark.slow) for k in RANDOM],
)
def test_random_intercepts(kind):
    _, grouped, result = load("random_effects").fit(kind, subjects=60, slopes=False)
    check(result, grouped, *grid(1, 301))


@pytest.mark.slow
@pytest.mark.parametrize("kind", RANDOM)
def test_random_intercepts_and_slopes(kind):
    _, grouped, result = load("random_effects").fit(kind, subjects=100)
    check(result, grouped, *grid(2, 71))


@pytest.mark.slow
def test_item_response():
    grouped, result = load("item_response").fit()
    nodes, log_volume = grid(1, 401, end=12.0)
    check(result, grouped, nodes[:, 0], log_volume)


def test_mixture_of_regressions():
    grouped, result = load("mixture_of_regressions").fit()
    check(result, grouped, jnp.arange(2))
    slopes = np.sort(result.model.lines[:, 1])
    np.testing.assert_allclose(slopes, [-0.3, 2.0], atol=0.2)


@pytest.mark.slow
def test_latent_classes():
    grouped, result = load("latent_classes").fit()
    check(result, grouped, jnp.arange(2))
