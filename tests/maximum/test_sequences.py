"""Sequences fitted by particles, against the Kalman filter and the forward algorithm."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

import alws
from alws.maximum import climb_filtered, climb_particles
from alws.state_space import find_filter, increments, particle_scores


class Swing(alws.StateSpace):
    """A swing that dies down and is pushed again, of which the position is seen through noise."""

    log_pace: jax.Array
    log_push: jax.Array
    log_noise: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(jnp.zeros(2), 2.0)

    def transition(self, state):
        return dist.Normal(self.onward(state), jnp.exp(self.log_push))

    def onward(self, state):
        c, s = jnp.cos(jnp.exp(self.log_pace)), jnp.sin(jnp.exp(self.log_pace))
        return 0.9 * jnp.stack([c * state[0] - s * state[1], s * state[0] + c * state[1]])

    def observation(self, state):
        return dist.Normal(state[0], jnp.exp(self.log_noise))


class Pushed(Swing):
    """The same, its latents the pushes: the state follows from them."""

    def start(self, z):
        return 2.0 * z

    def initial(self):
        return dist.Normal(jnp.zeros(2), 1.0)

    def transition(self, state):
        return dist.Normal(jnp.zeros(2), 1.0)

    def update(self, state, z):
        return self.onward(state) + jnp.exp(self.log_push) * z


class Chain(alws.StateSpace):
    """Two states that are left now and then, counted."""

    stay: jax.Array
    log_rates: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Bernoulli(0.5)

    def transition(self, state):
        return dist.Bernoulli(logits=jnp.where(state == 1, self.stay[1], -self.stay[0]))

    def observation(self, state):
        return dist.Poisson(jnp.exp(self.log_rates[state]))


def numbers(kind, times, *values):
    return kind(*(jnp.asarray(v, float) for v in values), times=times)


def swing(kind, times):
    return numbers(kind, times, -0.7, -0.5, 0.0)


def chain(times):
    return numbers(Chain, times, [2.0, 1.5], [0.5, 2.0])


@pytest.mark.parametrize("kind", [Swing, Pushed])
def test_scores_of_particles_are_those_of_the_kalman_filter(kind):
    with jax.enable_x64(True):
        model = swing(kind, 60)
        x = model.sample(jax.random.key(3))[1]
        exact = find_filter(model, jax.random.key(0))
        parameters, rest = eqx.partition(model, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(parameters)

        def at(theta):
            return eqx.combine(unravel(theta), rest)

        def run(key):
            return particle_scores(at, flat, x, key=key, particles=500, keep=(0.97,))

        each = jax.jacfwd(lambda t: increments(at(t), exact, x))(flat)
        keys = jax.random.split(jax.random.key(1), 24)
        heights, scores = jax.jit(lambda keys: jax.lax.map(run, keys, batch_size=8))(keys)
        information = np.asarray(each.T @ each)
        found = np.asarray(scores)[:, -1, 0]
        height = float(increments(model, exact, x).sum())
    root = np.linalg.cholesky(np.linalg.inv(information))
    apart = (found - np.asarray(each).sum(axis=0)) @ root
    noise = apart.var(axis=0, ddof=1).sum() / 2
    assert noise < 1
    assert (apart.mean(axis=0) ** 2).sum() / 2 < 0.02 + 2 * noise / len(found)
    assert abs(np.asarray(heights).sum(axis=1).mean() - height) < 0.3


@pytest.mark.parametrize("kind", [Swing, Pushed])
def test_after_a_run_in_scores_are_those_of_the_later_times_given_the_earlier(kind):
    with jax.enable_x64(True):
        model = swing(kind, 60)
        x = model.sample(jax.random.key(3))[1]
        exact = find_filter(model, jax.random.key(0))
        flat, at = ravel_pytree(model)

        def run(key):
            return particle_scores(
                at, flat, x, key=key, particles=500, keep=(0.97,), run_in=jnp.array(20)
            )

        each = np.asarray(jax.jacfwd(lambda t: increments(at(t), exact, x))(flat))
        keys = jax.random.split(jax.random.key(1), 24)
        heights, scores = jax.jit(lambda keys: jax.lax.map(run, keys, batch_size=8))(keys)
        height = float(increments(model, exact, x)[20:].sum())
    heights, found = np.asarray(heights), np.asarray(scores)[:, :, 0]
    assert not heights[:, :20].any()
    assert not found[:, :20].any()
    assert abs(heights.sum(axis=1).mean() - height) < 0.3
    apart = found[:, -1] - each[20:].sum(axis=0)
    apart = apart @ np.linalg.cholesky(np.linalg.inv(each.T @ each))
    noise = apart.var(axis=0, ddof=1).sum() / 2
    assert (apart.mean(axis=0) ** 2).sum() / 2 < 0.02 + 2 * noise / len(found)


def test_what_comes_after_the_last_observed_time_counts_nothing():
    model = swing(Swing, 20)
    x = model.sample(jax.random.key(0))[1]
    flat, unravel = ravel_pytree(model)
    longer = jnp.concatenate([x, jnp.full(7, 3.0)])
    given = alws.Given(observed=jnp.arange(27) < 20)

    def run(x, given):
        key = jax.random.key(1)
        return particle_scores(unravel, flat, x, given, key=key, particles=64, keep=(0.9, 1.0))

    values, scores = run(x, alws.Given())
    padded, ended = run(longer, given)
    np.testing.assert_allclose(padded[:20], values, rtol=1e-5)
    np.testing.assert_array_equal(padded[20:], 0)
    np.testing.assert_allclose(ended[-1, 1], scores[-1, 1], rtol=1e-3, atol=1e-3)


def gap(start, x, model):
    """Nats below the maximum of the exact likelihood that a climb from the start finds."""
    kind = find_filter(start, jax.random.key(0))
    best, _ = climb_filtered(start, x, None, kind, key=jax.random.key(0))
    there, _ = climb_filtered(model, x, None, kind, key=jax.random.key(0))
    return best.log_likelihood - there.began_at


def test_a_climb_by_particles_ends_at_the_maximum_of_the_forward_algorithm(monkeypatch):
    monkeypatch.setattr("alws.maximum.paths.MOST", 1024)
    x = chain(100).sample(jax.random.key(5))[1][None]
    start = numbers(Chain, 100, [1.0, 1.0], [0.0, 1.5])
    found, maxima = climb_particles(start, x, None, key=jax.random.key(0))
    left = gap(start, x, found.model)
    assert left < 0.05 * 4
    assert left < found.verdict.most
    assert found.verdict.trusted
    assert len(maxima) == 1


class Drifting(Swing):
    """A level that keeps what it began with for ever, and noise around it."""

    def start(self, z):
        return jnp.stack([30.0 * z[0], z[1]])

    def transition(self, state):
        return dist.Normal(0.0, jnp.exp(self.log_push))

    def update(self, state, z):
        return jnp.stack([state[0], 0.5 * state[1] + z])

    def observation(self, state):
        return dist.Normal(state.sum(), 0.3 * jnp.exp(self.log_noise))


@pytest.mark.parametrize(("kind", "told"), [(Swing, "stretches"), (Drifting, "beginnings")])
def test_long_series_are_climbed_by_samples_of_them_first(kind, told, monkeypatch):
    for name, value in {"SAMPLE": 100, "STRETCH": 50, "RUN_IN": 15, "MOST": 1024}.items():
        monkeypatch.setattr(f"alws.maximum.paths.{name}", value)
    x = swing(kind, 800).sample(jax.random.key(5))[1][None]
    start = numbers(kind, 800, -1.0, 0.0, 0.7)
    seconds = 60 if kind is Swing else 10
    found, _ = climb_particles(start, x, None, key=jax.random.key(0), seconds=seconds)
    assert any(f"{told} are climbed first" in str(entry) for entry in found.log)
    assert found.log_likelihood > found.began_at
    if kind is Swing:
        left = gap(start, x, found.model)
        assert left < 0.05 * 3
        assert left < found.verdict.most


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Swing, Pushed])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_climb_by_particles_ends_at_the_maximum_of_the_kalman_filter(kind, seed):
    x = swing(kind, 300).sample(jax.random.key(seed))[1][None]
    start = numbers(kind, 300, -1.0, 0.0, 0.7)
    found, _ = climb_particles(start, x, None, key=jax.random.key(seed))
    left = gap(start, x, found.model)
    assert left < 0.05 * 3
    assert left < found.verdict.most


def test_scores_that_overflow_end_a_climb_and_it_says_so(monkeypatch):
    x = chain(50).sample(jax.random.key(5))[1][None]
    start = numbers(Chain, 50, [1.0, 1.0], [0.0, 1.5])
    kind = find_filter(start, jax.random.key(0))
    monkeypatch.setattr(
        "alws.maximum.filtered._Sequences.scores", lambda self, _: np.full((5, self.p), 1e200)
    )
    found, _ = climb_filtered(start, x, None, kind, key=jax.random.key(0), starts=2)
    assert not found.verdict.trusted
    assert "gradient is not finite" in found.verdict.why
