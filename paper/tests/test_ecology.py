"""The blowfly model, its summaries and its metrics against SciPy, NumPy and plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import alws
from alws_paper.blowflies import closeness as blowfly
from alws_paper.blowflies import experiment as ecology
from alws_paper.blowflies import rivals as blowflies
from alws_paper.blowflies.closeness import Closeness
from alws_paper.blowflies.data import blowfly_counts
from alws_paper.blowflies.experiment import Blowflies, Settings, begin, log_prior, optimiser
from alws_paper.blowflies.features import summaries
from alws_paper.shared.mmd import mmd_squared

VALUES = {"P": 5.0, "N0": 0.1, "delta": 0.3, "sigma_p": 0.5, "sigma_d": 0.4, "sigma_n": 0.2}


def populations(model, delay, born, died, x):
    """z_t for observed counts x, by the equation."""
    p = {name: float(np.exp(log)) for name, log in model.logs.items()}
    line = [*(1 / (1 + np.exp(-np.asarray(model.past, float))))[::-1], *x]
    z = []
    for t in range(len(x)):
        now = t + ecology.LONGEST
        old = line[now - delay]
        births = p["P"] * old * np.exp(-old / p["N0"]) * born[t]
        z.append(births + line[now - 1] * np.exp(-p["delta"] * died[t]))
    return np.array(z)


@pytest.fixture
def model(key):
    made = Blowflies.at(30, 0.3, **VALUES)
    logits, past = jax.random.normal(key, (2, ecology.LONGEST))
    return Blowflies(logits, made.logs, past, 30)


def test_the_counts_are_those_of_nicholson():
    counts = blowfly_counts()
    assert counts.shape == (180,)
    assert (counts.sum(), counts.min(), counts.max()) == (446569, 60, 8921)


def test_density_is_that_of_scipy(model, key):
    z, x = model.sample(key)
    born, died = (np.exp(np.asarray(v, float)) for v in z.steps)
    seen = populations(model, int(z.start) + 1, born, died, np.asarray(x, float))
    p_shape, d_shape = VALUES["sigma_p"] ** -2, VALUES["sigma_d"] ** -2
    expected = (
        jax.nn.log_softmax(model.logits)[z.start]
        + (stats.gamma.logpdf(born, p_shape, scale=1 / p_shape) + np.log(born)).sum()
        + (stats.gamma.logpdf(died, d_shape, scale=1 / d_shape) + np.log(died)).sum()
        + stats.lognorm.logpdf(np.asarray(x), VALUES["sigma_n"], scale=seen).sum()
    )
    np.testing.assert_allclose(model.log_joint(z, x), expected, rtol=1e-4)


def test_draws_have_the_moments_of_their_distributions(key):
    """Delays as often as they should be, noise of mean 1, log x around log z with its deviation."""
    model = Blowflies.at(20, 0.3, **VALUES)
    draws, replaced = alws.draw(model, key, 4000)
    assert replaced == 0
    frequency = np.bincount(draws.z.start, minlength=ecology.LONGEST) / 4000
    np.testing.assert_allclose(frequency, 1 / 20, atol=0.015)
    for noise, name in zip(draws.z.steps, ("sigma_p", "sigma_d"), strict=True):
        np.testing.assert_allclose(jnp.exp(noise).mean(), 1, atol=0.01)
        np.testing.assert_allclose(jnp.exp(noise).std(), VALUES[name], rtol=0.02)
    states = jax.vmap(lambda z, x: model.states(z, x)[1][2])(draws.z, draws.x)
    residual = jnp.log(draws.x / states)
    np.testing.assert_allclose(residual.mean(), 0, atol=3e-3)
    np.testing.assert_allclose(residual.std(), VALUES["sigma_n"], rtol=0.02)


def test_noise_too_small_for_its_own_number_has_a_finite_score(key):
    model = Blowflies.at(100, 0.3, **{**VALUES, "sigma_p": 4.0})
    draws, _ = alws.draw(model, key, 200)
    assert (jnp.exp(draws.z.steps[0]) == 0).any()
    scores = jax.vmap(jax.grad(lambda m, z, x: m.log_joint(z, x)), (None, 0, 0))(model, *draws)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(scores))


def test_a_simulator_that_overflows_is_counted_and_the_fit_goes_on(key):
    """Short delays grow beyond all numbers within 60 steps, long ones do not."""
    model = Blowflies.at(60, 0.3, **{**VALUES, "P": 1e9, "N0": 1e38})
    _, replaced = alws.draw(model, key, 200)
    assert 20 < replaced < 180
    settings = Settings(steps=2, sleep_samples=100)
    data = jnp.asarray(blowfly_counts()[:60] / 8921, jnp.float32)
    with pytest.warns(RuntimeWarning, match="copies of finite ones took their places"):
        result = alws.fit(
            model,
            data[None],
            key=key,
            steps=2,
            settings=alws.Settings(
                regression=alws.regressions.LinearReadout(
                    alws.features.Network(summaries(data)), ridge=0.5
                ),
                sleep_samples=settings.sleep_samples,
                validation_samples=20,
                adapt=alws.ALWS_F,
            ),
        )
    assert result.diagnostics["replaced_draws"] > 20
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.model))


def test_start_is_that_of_the_authors():
    model = begin(180)
    values = {name: float(np.exp(log)) for name, log in model.logs.items()}
    assert values.pop("sigma_n") == pytest.approx(0.3)
    assert all(v == 1 for v in values.values())
    np.testing.assert_allclose(jax.nn.sigmoid(model.past), 0.5)


def test_prior_is_that_of_the_rivals(model):
    """Both models have P, δ, N0 (in flies) and two noises; the rivals' delay comes on top."""
    flies = [np.log(VALUES[n]) for n in ("P", "delta", "N0", "sigma_d", "sigma_p")]
    flies[2] += np.log(8921)
    theirs = blowflies.log_prior(jnp.array([*flies, blowflies.PRIOR_MEAN[5]], jnp.float32))
    theirs -= stats.norm.logpdf(0) - np.log(blowflies.PRIOR_DEVIATION[5])
    np.testing.assert_allclose(log_prior(model, 8921.0, 0.0), theirs, rtol=1e-5)
    dirichlet = stats.dirichlet(np.full(ecology.LONGEST, 0.9)).logpdf
    p, q = np.asarray(jax.nn.softmax(model.logits), float), np.full(ecology.LONGEST, 0.05)
    even = Blowflies(jnp.zeros(ecology.LONGEST), model.logs, model.past, 30)
    found = log_prior(model, 8921.0, 0.1) - log_prior(even, 8921.0, 0.1)
    np.testing.assert_allclose(found, dirichlet(p / p.sum()) - dirichlet(q), rtol=1e-3)


def test_delays_are_held_at_first(model):
    method = optimiser(Settings(10, 100, hold_delays=2))
    state = method.init(model)
    gradient = jax.tree.map(jnp.ones_like, model)
    for held in (True, True, False):
        updates, state = method.update(gradient, state, model)
        assert (not np.any(updates.logits)) == held
        assert np.all(updates.past)


def test_summaries_hold_distributions_and_autocorrelations():
    counts = blowfly_counts() / 8921
    data = jnp.asarray(counts, jnp.float32)
    found = np.asarray(summaries(data)(data))
    np.testing.assert_allclose(found[:20], np.log(counts[:20]), rtol=1e-5)
    np.testing.assert_allclose(found[20:32], 1 - np.linspace(0.04, 0.96, 12), atol=0.07)
    centred = np.sqrt(counts) - np.sqrt(counts).mean()
    lagged = [np.sum(centred[k:] * centred[: 180 - k]) for k in range(25)]
    np.testing.assert_allclose(found[44:68], np.array(lagged[1:]) / lagged[0], atol=1e-4)
    for extreme in (jnp.zeros(180), jnp.full(180, 1e30)):
        assert np.isfinite(summaries(data)(extreme)).all()


def peaks_by_loop(x, rise):
    """Billauer's peak detection, as published: the number of maxima."""
    low, high, looking_for_peak, found = np.inf, -np.inf, True, 0
    for value in x:
        low, high = min(low, value), max(high, value)
        if looking_for_peak and value < high - rise:
            found, low, looking_for_peak = found + 1, value, False
        elif not looking_for_peak and value > low + rise:
            high, looking_for_peak = value, True
    return found


@pytest.mark.parametrize("rise", [0.1, 0.5, 1.5])
def test_peaks_are_those_of_the_published_loop(rise):
    x = np.random.default_rng(0).normal(size=(20, 60)).cumsum(axis=1)
    found = jax.vmap(lambda v: blowfly.number_of_peaks(v, rise))(jnp.array(x))
    np.testing.assert_array_equal(found, [peaks_by_loop(v, rise) for v in x])


def test_statistics_are_those_of_numpy():
    counts = blowfly_counts()
    quarters = np.sort(counts).reshape(4, 45).mean(axis=1)
    changes = np.split(np.sort(np.diff(counts)), [45, 90, 134])
    peaks = [peaks_by_loop(counts / counts.std(), rise) for rise in (0.5, 1.5)]
    expected = [*np.log(quarters / 1000), *(c.mean() / 1000 for c in changes), *peaks]
    found = blowfly.summary_statistics(jnp.asarray(counts, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_statistics_of_wood_are_those_of_numpy():
    generator = np.random.default_rng(0)
    counts = blowfly_counts()
    other = counts * generator.gamma(4, 1 / 4, 180)
    x, reference = other / 1000, counts / 1000
    ordered, model = (np.sort(np.diff(v)) for v in (x, reference))
    ordered, model = ordered - ordered.mean(), model - model.mean()
    shape = np.linalg.lstsq(np.stack([model, model**2, model**3], 1), ordered, rcond=None)[0]
    c = x - x.mean()
    terms = np.stack([c[:-6], c[:-6] ** 2, c[:-6] ** 3, c[5:-1], c[5:-1] ** 2], 1)
    autoregression = np.linalg.lstsq(terms, c[6:], rcond=None)[0]
    covariances = [np.mean(c[k:] * c[: 180 - k]) for k in range(12)]
    rising = np.diff(x) > 0
    turning = np.sum(rising[1:] != rising[:-1])
    expected = [*shape, *autoregression, x.mean(), x.mean() - np.median(x), *covariances, turning]
    found = blowfly.wood_statistics(*(jnp.asarray(v, jnp.float32) for v in (other, counts)))
    np.testing.assert_allclose(found, expected, rtol=0.01, atol=2e-3)


def test_distances_vanish_at_the_data_and_follow_their_definitions():
    counts = jnp.asarray(blowfly_counts(), jnp.float32)
    other = counts[::-1] * 1.3
    scale = blowfly.summary_scale(counts, number=200)
    found = blowfly.summary_distance(jnp.stack([counts, other]), counts, scale)
    off = blowfly.summary_statistics(other) - blowfly.summary_statistics(counts)
    np.testing.assert_allclose(found, [0, np.linalg.norm(off / scale)], rtol=1e-4)

    windows = np.lib.stride_tricks.sliding_window_view
    bandwidth = float(alws.kernels.median_distance(jnp.array(windows(counts, 20))))
    expected = mmd_squared(jnp.array(windows(other, 20)), jnp.array(windows(counts, 20)), bandwidth)
    found = blowfly.window_mmd(jnp.stack([counts, other]), counts)
    np.testing.assert_allclose(found[1], expected, rtol=1e-3)
    assert found[0] < 0 < found[1]  # unbiased: below zero for the very same windows
    with pytest.raises(ValueError, match="between 1 and 179"):
        blowfly.window_mmd(counts[None], counts, 180)


def test_bootstrap_keeps_blocks_together():
    again = blowfly.block_bootstrap(jnp.arange(100.0), 30, 50)
    assert again.shape == (50, 100)
    steps = np.diff(np.asarray(again), axis=1)
    inside = np.ones(99, bool)
    inside[[29, 59, 89]] = False
    assert (steps[:, inside] == 1).all()
    assert (steps[:, ~inside] != 1).mean() > 0.9
    with pytest.raises(ValueError, match="between 1 and the 100"):
        blowfly.block_bootstrap(jnp.arange(100.0), 101, 1)


def test_what_is_not_finite_is_far_from_the_data():
    counts = jnp.asarray(blowfly_counts(), jnp.float32)
    found = blowfly.closeness(
        {"same": jnp.tile(counts, (3, 1)), "burst": jnp.full((3, 180), jnp.inf)}, counts
    )
    assert found["same"].statistics < 1e-3
    assert found["burst"] == Closeness(np.inf, np.inf, np.inf)


def test_claims_compare_with_what_suits_the_rival_best():
    scores = {
        "ALWS": {"fitted": Closeness(3.0, 1.0, 0.001)},
        "K2-ABC": {
            "posterior": Closeness(9.0, 4.0, 0.0005),
            "posterior mean": Closeness(4.0, 2.0, 0.01),
            "posterior mean, in hindsight ε = 1.0e-03": Closeness(2.0, 0.5, 0.0),
        },
        "synthetic likelihood": {"posterior": Closeness(2.5, 1.0, 0.02)},
    }
    found = ecology.claims(scores)
    assert [claim.holds for claim in found] == [True, False, False, True]
    assert "3 against 4 (posterior mean)" in found[0].measured
    assert "best of 1 ε in hindsight 2" in found[0].measured
