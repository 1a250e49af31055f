"""Sequences fitted by windows, against the Kalman filter."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import alws
from alws.maximum import WindowScoring, climb_filtered
from alws.maximum.scoring import Fitted, Frame, Metric, pool
from alws.maximum.sequences import Entries, Layout, Plan, fitting_windows, observed_lengths
from alws.regressions.base import one_lapack_thread
from alws.state_space.filters import increments
from alws.state_space.kinds import find_filter
from alws.state_space.windows import view_windows


class Autoregression(alws.StateSpace):
    """A stationary autoregression seen through noise."""

    level: jax.Array
    pull: jax.Array
    log_step: jax.Array
    log_noise: jax.Array
    times: int = eqx.field(static=True, default=80)

    def initial(self):
        return dist.Normal(0.0, jnp.exp(self.log_step) / jnp.sqrt(1 - jnp.tanh(self.pull) ** 2))

    def transition(self, state):
        return dist.Normal(jnp.tanh(self.pull) * state, jnp.exp(self.log_step))

    def observation(self, state):
        return dist.Normal(self.level + state, jnp.exp(self.log_noise))


class Walk(Autoregression):
    """The same with a state that goes where it goes."""

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state):
        return dist.Normal(state, jnp.exp(self.log_step))


def numbers(kind, times, *values):
    return kind(*(jnp.asarray(v, float) for v in values), times=times)


@pytest.mark.parametrize("lengths", [[400], [400, 90, 30]], ids=["one", "three"])
def test_stretches_weigh_every_time_the_same(lengths):
    layout = Layout(np.array(lengths), length=60, run_in=16, window=4)
    rng, total = np.random.default_rng(0), sum(lengths)
    weight = np.zeros((len(lengths), max(lengths) + 60))
    for _ in range(400):
        drawn = layout.draw(rng, 40)
        at = drawn.begin[:, None] + np.arange(60)
        np.add.at(weight, (drawn.sequence[:, None], at), drawn.weight / 400)
    for row, length in zip(weight, lengths, strict=True):
        np.testing.assert_allclose(row[:length] * total, 1, atol=0.5)
        np.testing.assert_allclose(row[:length].mean() * total, 1, atol=0.05)
        assert row[length:].sum() == 0


def test_narrow_windows_have_part_of_what_wide_ones_have():
    x = jax.random.normal(jax.random.key(0), (30,))
    view = view_windows(x, None, jnp.arange(30) % 5 > 0, 8)
    plan = Plan.make(Entries(8, 30), (2, 4, 8), view)
    frame_of = np.ones(len(plan.reach))
    one = jnp.asarray(frame_of)
    frame = Frame(one, one, one, one, jnp.zeros(1), jnp.ones(1))
    groups, at, start = plan.groups(view, frame), {}, 0
    for name, a in groups.items():
        at[name] = np.arange(start, start + a.shape[1])
        start += a.shape[1]
    chosen = plan.candidates(at)
    for kind in ("linear", "products"):
        sets = [set(chosen[f"{kind} {w}"].tolist()) for w in (2, 4, 8)]
        assert sets[0] < sets[1] < sets[2]
    # What a window of 2 sees of a time does not change with x further away.
    moved = view_windows(x.at[11].add(5.0), None, jnp.arange(30) % 5 > 0, 8)
    columns = chosen["products 2"]
    before, after = (
        np.concatenate(list(plan.groups(v, frame).values()), axis=1) for v in (view, moved)
    )
    changed = np.flatnonzero((before[:, columns] != after[:, columns]).any(axis=1))
    assert set(changed) <= {9, 10, 11, 12, 13}
    assert len(changed)


def test_windows_fit_the_sequence():
    x = jnp.zeros((1, 6))
    assert fitting_windows((2, 4, 8), x, alws.Given()) == (2, 4, 5)
    wide = jnp.zeros((1, 100, 40))
    assert max(fitting_windows((2, 4, 8), wide, alws.Given())) == 1


def test_times_after_the_last_observed_do_not_count():
    observed = jnp.array([[True, False, True, False], [True, True, True, True]])
    np.testing.assert_array_equal(observed_lengths(observed, 2, 4), [3, 4])


@pytest.mark.slow
def test_regressed_scores_of_times_add_up_to_the_score_of_the_kalman_filter():
    """Of sequences simulated and given; the information is that of many simulated ones."""
    with jax.enable_x64(True), one_lapack_thread():
        true = numbers(Autoregression, 80, 0.5, 0.6, -0.3, -0.7)
        x = jax.vmap(lambda k: true.sample(k)[1])(jax.random.split(jax.random.key(1), 6))
        model = numbers(Autoregression, 80, 0.6, 0.45, -0.25, -0.6)
        scoring = WindowScoring(model, x, None, key=jax.random.key(0), windows=(2, 6))
        scoring.begin()
        scoring.reframe()
        m = pool(scoring.look(True, 10))
        fitted = Fitted(m, *scoring.candidates["products 6 1e-07"])
        metric = Metric(fitted, scoring.total)
        found = scoring.total * (metric.back @ metric.gradient(fitted, m))
        kind = find_filter(model, jax.random.key(0))

        def exact(x):
            def log_likelihood(theta):
                return increments(scoring.unflatten(theta), kind, x).sum()

            return jax.grad(log_likelihood)(jnp.asarray(scoring.theta))

        def regressed(x):
            groups = scoring.features.groups(view_windows(x, window=6), scoring.frame)
            raw = jnp.concatenate(list(groups.values()), axis=1)
            phi = (raw - scoring.frame.location) / scoring.frame.scale
            return (phi - m.phi)[:, fitted.columns].sum(axis=0) @ fitted.b

        drawn = jax.vmap(lambda k: model.sample(k)[1])(jax.random.split(jax.random.key(2), 100))
        truth, scores = jax.lax.map(lambda x: (exact(x), regressed(x)), drawn)
        score = sum(np.asarray(exact(one)) for one in x)
    truth, scores = np.asarray(truth), np.asarray(scores)
    for ours, theirs in zip(scores.T, truth.T, strict=True):
        assert np.corrcoef(ours, theirs)[0, 1] > 0.93
    information = len(x) * truth.T @ truth / len(truth)
    root = np.linalg.cholesky(np.linalg.inv(information))
    assert np.linalg.norm(score @ root) > 4
    assert np.linalg.norm((found - score) @ root) < 0.4 * np.linalg.norm(score @ root)
    # Of the noise, the last, the data tell a hundredth of what z would: too little to be compared.
    ratio = np.diag(scoring.total * fitted.information) / np.diag(information)
    np.testing.assert_allclose(ratio[:3], 1, atol=0.35)


@pytest.mark.slow
def test_a_fit_by_windows_ends_at_the_maximum():
    """Of a random walk; what an autoregression does is in docs/limits.md."""
    true, start = numbers(Walk, 100, 0.0, 0.0, -1.0, 0.0), numbers(Walk, 100, 1.0, 0.0, 0.0, 1.0)
    with jax.enable_x64(True), one_lapack_thread():
        x = true.sample(jax.random.key(3))[1][None]
        kind = find_filter(start, jax.random.key(0))
        best, _ = climb_filtered(start, x, None, kind, key=jax.random.key(0))
        done = WindowScoring(start, x, None, key=jax.random.key(0)).run()
        reached = float(increments(done.model, kind, x[0]).sum())
        gap = best.log_likelihood - reached
    assert gap < 0.5, gap
    assert gap < done.verdict.most + 0.1 or done.verdict.why
