"""`alws.PAPER`: the paper's method as its text and table have it, and ALWS-F and ALWS-A of it."""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact.linear_gaussian import LinearGaussian
from scipy.spatial.distance import cdist, pdist

import alws
from alws.features import Linear
from alws.regressions import AsPublished

SMALL = replace(alws.PAPER, sleep_samples=100, validation_samples=50)


@pytest.fixture
def model():
    return LinearGaussian(jnp.eye(5)[:, :2], jnp.arange(5.0), jnp.zeros(5))


@pytest.fixture
def data(key):
    return jnp.arange(5.0) + jax.random.normal(jax.random.fold_in(key, 9), (40, 5))


def started(model, data, key, settings):
    """The regression of the first step, and the sleep samples whose median distance it has."""
    prepared = alws.prepare(model, data, key=key, steps=1, settings=settings)
    return prepared.state.regression, prepared.problem.first_draws.x


def test_weights_are_those_of_plain_kernel_ridge_regression(model, data, key):
    regression, sleep = started(model, data, key, SMALL)
    x = np.asarray(sleep, np.float64)
    bandwidth = np.median(pdist(x))
    np.testing.assert_allclose(np.exp(regression.kernel.log_bandwidth), bandwidth, rtol=1e-4)
    points = np.concatenate([np.asarray(data[:10]), np.full((1, 5), 4 * bandwidth)])
    k, gram = (np.exp(-cdist(a, x, "sqeuclidean") / (2 * bandwidth**2)) for a in (points, x))
    expected = np.linalg.solve(gram + 0.01 * np.eye(100), k.T).T
    found = np.asarray(regression.fit(sleep).weights(jnp.array(points)))
    np.testing.assert_allclose(found, expected, atol=5e-3)
    # Neither an intercept nor clipping: the weights do not sum to one, and far away to nothing.
    assert abs(expected[-1].sum()) < 0.2
    np.testing.assert_allclose(found[-1].sum(), expected[-1].sum(), atol=5e-3)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_kernel_sees_the_projections_asked_for(model, data, key, batch_norm):
    recipe = AsPublished(ridge=0.1, projections=30, batch_norm=batch_norm)
    regression, sleep = started(model, data, key, replace(SMALL, regression=recipe))
    features = regression.kernel.features
    assert isinstance(features, Linear)
    assert features.weight.shape == (5, 30)
    assert abs(float(features.weight.std()) - 0.01) < 0.003
    np.testing.assert_allclose(np.exp(regression.log_ridge), 0.1, rtol=1e-6)
    embedded = np.asarray(regression.kernel.embed(sleep))
    projected = np.asarray(sleep) @ np.asarray(features.weight)
    if batch_norm:
        np.testing.assert_allclose(embedded.mean(axis=0), 0, atol=1e-4)
        assert np.all(embedded.std(axis=0) < 1.001)
    else:
        np.testing.assert_allclose(embedded, projected, atol=1e-5)


@pytest.mark.parametrize(
    ("adapt", "moved"),
    [
        (alws.PAPER.adapt, {"bandwidth", "ridge", "features"}),
        (alws.ALWS_A, {"bandwidth", "features"}),
        (alws.ALWS_F, set()),
    ],
)
def test_what_of_gamma_moves_does_so_at_the_rate_of_the_table(model, data, key, adapt, moved):
    recipe = AsPublished(projections=3)
    settings = replace(SMALL, regression=recipe, adapt=adapt)
    prepared = alws.prepare(model, data, key=key, steps=10, settings=settings)
    state, _ = prepared.step(prepared.state, 0)
    parts = {
        "bandwidth": lambda r: r.kernel.log_bandwidth,
        "ridge": lambda r: r.log_ridge,
        "features": lambda r: r.kernel.features.weight,
    }
    for name, part in parts.items():
        change = np.abs(np.asarray(part(state.regression) - part(prepared.state.regression)))
        # Adam's first step has the length of its rate in every entry.
        expected = 1e-3 if name in moved else 0.0
        np.testing.assert_allclose(change, expected, rtol=0.02, atol=1e-8)


def test_gamma_goes_down_the_held_out_error_of_the_objective(model, data, key):
    assert alws.PAPER.adapt.criterion == "objective"
    assert alws.PAPER.adapt.clip_norm == math.inf
    # A ridge that is far too large is lowered, since that predicts held-out J better.
    settings = replace(SMALL, regression=AsPublished(ridge=30.0))
    prepared = alws.prepare(model, data, key=key, steps=20, settings=settings)
    state = prepared.state
    for number in range(5):
        state, _ = prepared.step(state, number)
    assert float(state.regression.log_ridge) < math.log(30.0) - 4e-3


def test_theta_takes_steps_of_a_constant_rate_in_its_own_units(model, data, key):
    # Noise of 1e-3 makes natural units of the offset a thousandth of its own.
    sharp = eqx.tree_at(lambda m: m.log_noise, model, jnp.full(5, -7.0))
    prepared = alws.prepare(sharp, data, key=key, steps=10, settings=SMALL)
    state, _ = prepared.step(prepared.state, 0)
    change = np.abs(np.asarray(state.model.offset - sharp.offset))
    np.testing.assert_allclose(change, 1e-3, rtol=0.02)
    optimiser = prepared.algorithm.optimiser
    parameters, memory = jnp.zeros(()), optimiser.init(jnp.zeros(()))
    for _ in range(300):
        update, memory = optimiser.update(jnp.full((), 50.0), memory, parameters)
    np.testing.assert_allclose(update, -1e-3, rtol=1e-3)


def test_a_fit_with_it_can_be_resumed_and_says_when_the_recipe_differs(model, data, key, tmp_path):
    path = tmp_path / "fit.npz"
    common = {"key": key, "progress": False}
    arguments = common | {"checkpoint": path, "settings": SMALL}
    whole = alws.fit(model, data, steps=6, **common, settings=SMALL)
    alws.fit(model, data, steps=3, **arguments)
    resumed = alws.fit(model, data, steps=6, resume=True, **arguments)
    np.testing.assert_array_equal(resumed.model.loadings, whole.model.loadings)
    other = arguments | {"settings": replace(SMALL, regression=AsPublished(ridge=0.1))}
    with pytest.raises(ValueError, match=r"regression\.ridge was 0\.01, is 0\.1"):
        alws.fit(model, data, steps=6, resume=True, **other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ridge": 0.0}, "`ridge` must be positive"),
        ({"projections": 0}, "`projections` must be"),
        ({"batch_norm": True}, "`batch_norm` is of projections, and `projections` is None"),
    ],
)
def test_bad_recipes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AsPublished(**arguments)


def test_a_clip_norm_must_be_positive():
    with pytest.raises(ValueError, match="`clip_norm` must be positive"):
        alws.Adapt(clip_norm=0.0)
