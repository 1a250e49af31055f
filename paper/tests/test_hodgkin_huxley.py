"""The neuron's equations against a direct transcription, its currents, and spike counting."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import alws
from alws_paper.neuron import experiment as page
from alws_paper.neuron.spikes import SpikeTrains, spike_trains


def by_hand(p, first, noise, current):
    """Forward Euler with the rates as printed by Pospischil et al., one step at a time."""
    voltage, m, h, n = first
    voltages, means = [voltage], []
    for t in range(1, len(current)):
        v = voltage - p.V_T
        alpha_m = -0.32 * (v - 13) / (np.exp(-(v - 13) / 4) - 1)
        beta_m = 0.28 * (v - 40) / (np.exp((v - 40) / 5) - 1)
        alpha_h = 0.128 * np.exp(-(v - 17) / 18)
        beta_h = 4 / (1 + np.exp(-(v - 40) / 5))
        alpha_n = -0.032 * (v - 15) / (np.exp(-(v - 15) / 5) - 1)
        beta_n = 0.5 * np.exp(-(v - 10) / 40)
        flow = (
            -p.g_l * (voltage - p.E_l)
            - p.g_Na * m**3 * h * (voltage - p.E_Na)
            - p.g_K * n**4 * (voltage - p.E_K)
            + current[t]
        )
        means.append(voltage + 0.05 * flow / p.C)
        m = np.clip(m + 0.05 * (alpha_m * (1 - m) - beta_m * m), 0, 1)
        h = np.clip(h + 0.05 * (alpha_h * (1 - h) - beta_h * h), 0, 1)
        n = np.clip(n + 0.05 * (alpha_n * (1 - n) - beta_n * n), 0, 1)
        voltage = means[-1] + p.process_noise * noise[t - 1]
        voltages.append(voltage)
    return np.array(voltages), np.array(means)


def test_the_neuron_is_the_published_one(key):
    model = page.HodgkinHuxley(page.TRUE)
    current = page.training_current(key, 200) + 5.0
    z, x = eqx.filter_jit(model.sample)(key, alws.Given(current))
    noise = np.zeros(199)
    path = np.asarray(z.steps, float)
    # Replay the drawn voltages through the printed equations, one residual at a time.
    first = np.asarray(model.start(None), float)
    for t in range(199):
        _, means = by_hand(page.TRUE, first.copy(), noise, np.asarray(current[: t + 2]))
        noise[t] = (path[t] - means[t]) / page.TRUE.process_noise
    assert path.max() > 0  # it spiked
    expected = (
        norm.logpdf(noise).sum()
        - 199 * np.log(page.TRUE.process_noise)
        + norm.logpdf(np.asarray(x), np.append(first[0], path), 1.0).sum()
    )
    ours = eqx.filter_jit(model.log_joint)(z, x, alws.Given(current))
    np.testing.assert_allclose(ours, expected, rtol=2e-3)


@pytest.mark.parametrize("v", [13.0, 40.0, 15.0])
def test_rates_and_their_slopes_are_finite_where_the_formula_is_0_over_0(v):
    opening, closing = page.rates(jnp.array(v))
    near = page.rates(jnp.array(v + 0.05))
    np.testing.assert_allclose(opening, near[0], rtol=0.02)
    np.testing.assert_allclose(closing, near[1], rtol=0.02)
    slopes = jax.jacfwd(page.rates)(jnp.array(v))
    assert np.isfinite(np.asarray(slopes)).all()
    np.testing.assert_allclose(page.over_expm1(jnp.array(2.0)), 2 / np.expm1(2.0), rtol=1e-5)


def test_a_diverging_voltage_is_replaced_and_counted(key):
    bad = page.Parameters(*page.START)._replace(C=1e-7)
    given = alws.Given(jnp.full(40, 10.0))
    mixed = jax.vmap(page.HodgkinHuxley(page.START).sample, in_axes=(0, None))
    good = mixed(jax.random.split(key, 20), given)
    worse = jax.vmap(page.HodgkinHuxley(bad).sample, in_axes=(0, None))
    diverged = worse(jax.random.split(key, 5), given)
    assert not np.isfinite(np.asarray(diverged[1])).all()
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), good, diverged)
    draws, replaced = alws.model.replace_nonfinite(alws.Draws(*both))
    assert int(replaced) == 5
    assert np.isfinite(np.asarray(draws.x)).all()


def test_spikes_are_counted_once_and_timed():
    voltages = np.full((3, 200), -70.0)
    voltages[0, [20, 100]] = 10.0
    voltages[1, [20, 22, 100, 160]] = 10.0  # the second rise is within a millisecond of the first
    voltages[2, [30]] = 10.0
    trains = spike_trains(voltages, step=0.1)
    np.testing.assert_array_equal(trains.counts, [2, 3, 1])
    np.testing.assert_allclose(trains.mean_times, [7 / 3, 10.0, 16.0])
    assert trains.mean_count == 2.0
    assert trains.common == 1
    np.testing.assert_allclose(trains.time_jitter, np.std([2.0, 2.0, 3.0]))


def test_distance_of_spike_times():
    early = SpikeTrains(np.array([2, 2]), np.array([[1.0, 5.0], [2.0, 6.0]]))
    late = SpikeTrains(np.array([1, 1]), np.array([[3.0], [4.0]]))
    np.testing.assert_allclose(early.apart(late), [2.0])
    np.testing.assert_allclose(late.apart(early), [2.0, np.inf])


def test_summaries_follow_time_and_noise(key):
    x = jnp.full(1000, -70.0).at[400:420].set(30.0)
    later = jnp.roll(x, 200)
    noisy = x + 5 * jax.random.normal(key, (1000,))
    first, second, third = (page.summaries(a) for a in (x, later, noisy))
    assert first.shape == second.shape
    assert float(jnp.abs(first - second).max()) > 1.0
    assert float(third[-4] - first[-4]) > 1.0  # the logarithm of the roughness at lag one
