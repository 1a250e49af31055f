"""Climbs from a snapshot, sequences by their filters, and latents as their draws show them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from exact.base import sample_many
from exact.hidden_markov import HiddenMarkov
from exact.level import Level, level_log_likelihood
from jax.scipy.stats import norm
from scipy.stats import multivariate_normal

import alws
from alws.maximum import Climber, NotIntegrable, Scoring, impossible
from alws.maximum.latents import are_all_combinations, describe, position_of
from alws.state_space.filters import find_filter, increments
from alws.state_space.model import Path


class Effect(eqx.Module):
    """z ~ N(0, e^log_scale), three numbers x_i ~ N(mean + z, 1)."""

    mean: jax.Array
    log_scale: jax.Array

    def sample(self, key):
        z, *noise = jax.random.normal(key, (4,))
        z = jnp.exp(self.log_scale) * z
        return z, self.mean + z + jnp.stack(noise)

    def log_joint(self, z, x):
        prior = norm.logpdf(z, 0.0, jnp.exp(self.log_scale))
        return prior + norm.logpdf(x, self.mean + z).sum()


DATA = np.random.default_rng(0).normal(size=(40, 1)) + np.random.default_rng(1).normal(size=(40, 3))
START = Effect(jnp.array(1.0), jnp.array(-1.0))


def exact(model):
    covariance = np.eye(3) + np.exp(2 * float(model.log_scale))
    return multivariate_normal.logpdf(DATA, np.full(3, float(model.mean)), covariance).sum()


def test_the_log_likelihood_is_the_exact_one():
    result = alws.fit(START, DATA, key=jax.random.key(0))
    np.testing.assert_allclose(result.log_likelihood, exact(result.model), atol=1e-3)
    assert result.log_likelihood_error < 1e-3
    assert "one continuous latent" in result.method


def test_a_penalty_is_part_of_what_is_climbed():
    free = alws.fit(START, DATA, key=jax.random.key(0)).model
    held = alws.fit(
        START, DATA, key=jax.random.key(0), log_prior=lambda m: -1e4 * (m.mean - 3.0) ** 2
    ).model
    assert abs(float(free.mean)) < 1
    np.testing.assert_allclose(held.mean, 3.0, atol=0.05)


def test_a_fit_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    path = tmp_path / "fit.npz"
    key = jax.random.key(0)
    whole = alws.fit(START, DATA, key=key, checkpoint=tmp_path / "whole.npz", checkpoint_every=1)
    with pytest.warns(RuntimeWarning, match="should end at a maximum"):
        alws.fit(
            START,
            DATA,
            key=key,
            checkpoint=path,
            checkpoint_every=1,
            callbacks=[lambda report: report.step == 1],
        )
    again = Climber(START, DATA.astype(np.float32), key=key)
    assert not again.at.ended
    assert whole.verdict.trusted


def test_a_fit_that_ends_below_its_start_says_so():
    near = Effect(jnp.array(0.0), jnp.array(0.0))
    wild = alws.Settings(sleep_samples=100, optimiser=optax.adam(1.0))
    result = alws.fit(near, DATA, key=jax.random.key(0), steps=3, settings=wild)
    fallen = exact(near) - exact(result.model)
    assert fallen > 1
    np.testing.assert_allclose(result.verdict.fallen, fallen, rtol=0.05)
    assert not result.verdict.trusted
    assert "below its start, not at a maximum" in str(result.verdict)


def test_a_climb_goes_on_from_its_snapshot_bit_for_bit():
    with jax.enable_x64(True):
        first, second = (Climber(START, DATA, key=jax.random.key(0)) for _ in range(2))
        first.round()
        second.restore(*first.snapshot())
        ends = [climber.run() for climber in (first, second)]
    np.testing.assert_array_equal(ends[0].model.mean, ends[1].model.mean)
    np.testing.assert_array_equal(ends[0].model.log_scale, ends[1].model.log_scale)


def test_latents_are_split_by_what_their_draws_show():
    rng = np.random.default_rng(0)
    z = {
        "kind": rng.integers(0, 3, 5000),
        "real": rng.normal(size=5000),
        "positive": rng.exponential(size=5000),
        "angle": rng.uniform(-np.pi, np.pi, 5000),
    }
    found = describe(z)
    assert len(found.values) == 3
    assert found.kind.tolist() == [3, 1, 0]  # angle, positive, real, by name
    assert "values" in describe({"path": rng.integers(0, 2, (5000, 14))})


def test_all_combinations_of_the_values_of_many_discrete_latents_are_summed():
    rng = np.random.default_rng(0)
    path = rng.integers(0, 2, (5000, 12)) * rng.integers(1, 2, 12)
    found = describe({"path": path})
    assert len(found.values) == 2**12
    assert len(np.unique(path, axis=0)) < 2**12  # some were never drawn
    at = position_of(found.values, path[:50])
    np.testing.assert_array_equal(found.values[at], path[:50])
    assert position_of(found.values, path[:1] + 2)[0] == -1
    also_real = describe({"path": path, "real": rng.normal(size=5000)})
    assert "values" in also_real


def test_a_chain_of_twelve_times_is_summed_as_the_forward_algorithm_does():
    moves, scales = jnp.array([[1.5, -0.5], [-0.5, 1.0]]), jnp.zeros(2)
    chain = HiddenMarkov(jnp.zeros(2), moves, jnp.array([-1.0, 1.0]), scales, steps=12)
    data = sample_many(chain, jax.random.split(jax.random.key(1), 40))[1]
    result = alws.fit(chain, data, key=jax.random.key(0))
    assert "4096 values" in result.method
    forward = float(jax.vmap(result.model.log_marginal)(data).sum())
    np.testing.assert_allclose(result.log_likelihood, forward, atol=0.02)
    assert forward > float(jax.vmap(chain.log_marginal)(data).sum())
    assert result.verdict.trusted


class Large(eqx.Module):
    """z ~ N(0, 1), three counts with rate exp(mean + exp(log_scale) z)."""

    mean: jax.Array
    log_scale: jax.Array

    def sample_latent(self, key):
        return jax.random.normal(key)

    def log_prior(self, z):
        return norm.logpdf(z)

    def likelihood(self, z):
        return alws.likelihoods.Poisson(jnp.full(3, self.mean + jnp.exp(self.log_scale) * z))


def test_counts_in_thousands_are_reached_from_a_start_that_expects_one():
    """On the way the model draws billions, whose scores say nothing of the data."""
    rng = np.random.default_rng(62)
    data = rng.poisson(np.exp(8 + 0.5 * rng.normal(size=(60, 1))), (60, 3)).astype(float)
    far = alws.fit(Large(jnp.array(0.0), jnp.array(0.0)), data, key=jax.random.key(0))
    effects = np.log(data.mean(axis=1))  # known to 0.01
    np.testing.assert_allclose(far.model.mean, effects.mean(), atol=0.01)
    np.testing.assert_allclose(np.exp(far.model.log_scale), effects.std(), atol=0.01)
    assert far.verdict.trusted


def test_parameters_without_a_matrix_of_information_are_refused_with_their_number():
    class Wide(Effect):
        weights: jax.Array

    wide = Wide(jnp.array(1.0), jnp.array(-1.0), jnp.zeros(5000))
    with pytest.raises(NotIntegrable, match="5002 parameters are more than the 3000"):
        Climber(wide, DATA, key=jax.random.key(0)).run()


def test_many_valued_latents_are_refused_with_the_reason():
    class Walks(eqx.Module):
        logit: jax.Array

        def sample(self, key):
            steps = jax.random.bernoulli(key, jax.nn.sigmoid(self.logit), (14,))
            return steps.astype(int), steps.sum() + 0.0

        def log_joint(self, z, x):
            each = jnp.where(z > 0, jax.nn.log_sigmoid(self.logit), jax.nn.log_sigmoid(-self.logit))
            return each.sum() + norm.logpdf(x, z.sum(), 0.5)

    with jax.enable_x64(True), pytest.raises(NotIntegrable, match="values"):
        Climber(Walks(jnp.array(0.0)), np.full(20, 7.0), key=jax.random.key(0)).run()


def test_the_kalman_filter_is_found_and_exact(key):
    model = Level(jnp.array(-0.5), 30)
    _, x = model.sample(key)
    kind = find_filter(model, key)
    assert kind.kind == "kalman"
    np.testing.assert_allclose(
        increments(model, kind, x).sum(), level_log_likelihood(x, -0.5), rtol=1e-5
    )


class Hidden(alws.StateSpace):
    logits: jax.Array
    rates: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Categorical(logits=jnp.zeros(2))

    def transition(self, state):
        return dist.Categorical(logits=self.logits[state])

    def observation(self, state):
        return dist.Poisson(jnp.exp(self.rates[state]))


def test_the_forward_algorithm_is_found_and_exact(key):
    model = Hidden(jnp.array([[1.0, -1.0], [0.0, 0.5]]), jnp.array([0.0, 2.0]), 5)
    _, x = model.sample(key)
    kind = find_filter(model, key)
    assert kind.kind == "forward"
    paths = np.stack(np.meshgrid(*[[0, 1]] * 5, indexing="ij"), axis=-1).reshape(-1, 5)
    terms = [model.log_joint(Path(jnp.array(p[0]), jnp.array(p[1:])), x) for p in paths]
    total = jax.nn.logsumexp(jnp.stack(terms))
    np.testing.assert_allclose(increments(model, kind, x).sum(), total, rtol=1e-5)


def test_a_long_sequence_is_fitted_to_its_maximum(key):
    model = Level(jnp.array(-0.5), 100)
    _, x = model.sample(key)
    result = alws.fit(Level(jnp.array(1.0), 100), x[None], key=key, starts=3)
    grid = np.linspace(-2, 1, 3001)
    small = [level_log_likelihood(np.asarray(x), g) for g in grid[::50]]
    best = max(small)
    assert result.verdict.trusted
    assert level_log_likelihood(np.asarray(x), float(result.model.log_noise)) > best - 0.01
    assert [number for _, number in result.maxima] == [3]


class Two(eqx.Module):
    """Two clusters on the line, their spreads known."""

    logit: jax.Array
    means: jax.Array

    def sample(self, key):
        first, second = jax.random.split(key)
        z = jax.random.bernoulli(first, jax.nn.sigmoid(self.logit)).astype(int)
        return z, self.means[z] + jax.random.normal(second)

    def log_joint(self, z, x):
        prior = jnp.where(z > 0, jax.nn.log_sigmoid(self.logit), jax.nn.log_sigmoid(-self.logit))
        return prior + norm.logpdf(x, self.means[z])


def test_a_cluster_that_has_died_out_is_told():
    data = np.random.default_rng(0).normal(size=50)
    start = Two(jnp.array(0.0), jnp.array([0.0, 1e4]))
    with pytest.warns(RuntimeWarning, match="play no part any more"):
        result = alws.fit(start, data, key=jax.random.key(0))
    assert result.verdict.idle == 1
    assert not result.verdict.trusted
    np.testing.assert_allclose(result.model.means[0], data.mean(), atol=1e-3)


class Waits(eqx.Module):
    """Exponential waiting times, their rate log-normal: none is negative."""

    level: jax.Array

    def sample(self, key):
        first, second = jax.random.split(key)
        z = jnp.exp(self.level + jax.random.normal(first))
        return z, jax.random.exponential(second) / z

    def log_joint(self, z, x):
        return dist.LogNormal(self.level, 1.0).log_prob(z) + jnp.where(
            x >= 0, jnp.log(z) - z * x, -jnp.inf
        )


def test_data_that_no_latent_explains_are_counted(key):
    data = np.array([0.5, -1.0, 2.0, -0.1])
    assert impossible(Waits(jnp.array(0.0)), data, key) == 2
    assert impossible(Waits(jnp.array(0.0)), np.abs(data), key) == 0


class Sum(eqx.Module):
    """Two hundred numbers, of which only a noisy sum is seen: `rounded` where they are signs."""

    log_scale: jax.Array
    rounded: bool = eqx.field(static=True)

    def sample(self, key):
        first, second = jax.random.split(key)
        z = jax.random.normal(first, (200,))
        z = jnp.sign(z - self.log_scale) if self.rounded else jnp.exp(self.log_scale) * z
        return z, z.sum() / 10 + jax.random.normal(second)

    def log_joint(self, z, x):
        on, off = norm.logcdf(-self.log_scale), norm.logcdf(self.log_scale)
        signs = jnp.where(z > 0, on, off)
        each = signs if self.rounded else norm.logpdf(z, 0.0, jnp.exp(self.log_scale))
        return each.sum() + norm.logpdf(x, z.sum() / 10)


@pytest.mark.slow
def test_long_simulations_are_differentiated_along_their_paths_where_these_have_slopes(key):
    data = 3 * np.random.default_rng(0).normal(size=300)
    with jax.enable_x64(True):
        smooth = Scoring(Sum(jnp.array(0.0), False), data, key=key)
        smooth.first_choice()
        assert smooth.columns.paths
        signs = Scoring(Sum(jnp.array(0.0), True), data, key=key)
        signs.first_choice()
        assert not signs.columns.paths
        scale = np.exp(float(smooth.run().model.log_scale))
    np.testing.assert_allclose(2 * scale**2 + 1, data.var() + data.mean() ** 2, rtol=0.05)


def test_a_sampler_that_does_not_follow_the_density_is_told():
    class Doubled(Effect):
        def sample(self, key):
            z, x = super().sample(key)
            return z, x + z  # the density has x = mean + z + noise

    class Shifted(Effect):
        def sample(self, key):
            z, x = super().sample(key)
            return z, x + 1.0

    for kind in (Doubled, Shifted):
        with pytest.warns(RuntimeWarning, match="`sample` does not follow `log_joint`"):
            result = alws.fit(kind(START.mean, START.log_scale), DATA, key=jax.random.key(0))
        assert not result.verdict.trusted


def test_latents_of_which_all_combinations_are_summed_leave_nothing_unseen():
    assert are_all_combinations(np.array([[0, 0], [0, 1], [1, 0], [1, 1]]))
    assert not are_all_combinations(np.array([[0, 1], [1, 0]]))


class Unused(Effect):
    """Both parameters are left out of the density."""

    def log_joint(self, z, x):
        return norm.logpdf(z) + norm.logpdf(x, z).sum()


def test_a_density_without_the_parameters_is_told():
    with pytest.warns(RuntimeWarning, match="does not depend on the parameters; check that"):
        result = alws.fit(Unused(jnp.array(0.0), jnp.array(0.0)), DATA, key=jax.random.key(0))
    assert not result.verdict.trusted
