"""The likelihood of sequences: every filter against one that is exact, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from exact.level import Level, level_log_likelihood
from scipy.integrate import quad
from scipy.stats import gamma, norm, poisson

import alws
from alws.state_space import (
    Filter,
    find_filter,
    increments,
    particle_increments,
    sequence_log_likelihood,
)
from alws.state_space.grid import place, why_no_grid

LEVEL = Level(jnp.array(-0.5), 25)


def some(model, key, number=3):
    return jax.vmap(lambda k: model.sample(k)[1])(jax.random.split(key, number))


def test_a_linear_gaussian_model_is_filtered_exactly(key):
    x = some(LEVEL, key)
    found = sequence_log_likelihood(LEVEL, x, key=key)
    assert "Kalman" in found.method
    np.testing.assert_array_equal(found.error, 0)
    np.testing.assert_allclose(
        found.value, [level_log_likelihood(row, -0.5) for row in x], rtol=1e-6
    )


def test_the_grid_agrees_with_the_kalman_filter_and_so_do_its_scores(key):
    with jax.enable_x64(True):
        model = Level(jnp.array(-0.5), 25)
        x = some(model, key)
        placed = place(model, x, None, key)
        assert placed.error < 1e-6
        grid, exact = Filter("grid", jnp.asarray(placed.nodes), ""), find_filter(model, key)
        assert exact.kind == "kalman"

        def total(log_noise, kind):
            return jax.vmap(lambda x: increments(Level(log_noise, 25), kind, x))(x).sum()

        ours = jax.jit(jax.value_and_grad(lambda a: total(a, grid)))(jnp.array(-0.5))
        known = jax.jit(jax.value_and_grad(lambda a: total(a, exact)))(jnp.array(-0.5))
        np.testing.assert_allclose(ours, known, rtol=1e-7)


def test_missing_times_count_for_nothing_in_every_filter(key):
    rows = np.array(some(LEVEL, key, 2), float)
    rows[0, [3, 4, 9]] = np.nan
    x, given = alws.sequences([rows[0], rows[1][:18]])
    known = [
        level_log_likelihood(rows[0], -0.5, ~np.isnan(rows[0])),
        level_log_likelihood(rows[1][:18], -0.5),
    ]
    exact = sequence_log_likelihood(LEVEL, x, given, key=key)
    np.testing.assert_allclose(exact.value, known, rtol=1e-6)
    with jax.enable_x64(True):
        model = Level(jnp.array(-0.5), 25)
        first = jax.tree.map(lambda a: a[0], given)
        nodes = jnp.asarray(place(model, x, given, key).nodes)
        one = increments(model, Filter("grid", nodes, ""), x[0], first)
        np.testing.assert_allclose(one.sum(), known[0], rtol=1e-6)
        np.testing.assert_array_equal(one[jnp.array([3, 4, 9])], 0)
    rough = sequence_log_likelihood(LEVEL, x, given, key=key, particles=2000)
    assert (np.abs(rough.value - known) < 4 * rough.error).all()


@pytest.mark.parametrize("particles", [50, 400])
def test_the_error_of_particles_is_as_large_as_it_says(particles, key):
    x = some(LEVEL, key, 60)
    exact = np.array([level_log_likelihood(row, -0.5) for row in x])
    found = sequence_log_likelihood(LEVEL, x, key=key, particles=particles)
    z = (found.value - exact) / found.error
    assert abs(z.mean()) < 3 / len(z) ** 0.5
    assert 0.75 < z.std() < 1.35  # of 60 with 15 degrees of freedom


def test_the_error_of_few_particles_in_long_sequences_is_as_large_as_it_says(key):
    model = Level(jnp.array(-0.5), 1500)
    x = some(model, key, 16)
    exact = sequence_log_likelihood(model, x, key=key)
    found = sequence_log_likelihood(model, x, key=key, particles=30)
    z = (found.value - exact.value) / found.error
    assert found.error.min() > 1
    assert 0.5 < (z**2).mean() ** 0.5 < 1.5


class Switching(alws.StateSpace):
    logits: jax.Array
    rates: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Categorical(logits=jnp.array([0.0, 0.0, -30.0]))

    def transition(self, state):
        return dist.Categorical(logits=self.logits[state])

    def observation(self, state):
        return dist.Poisson(jnp.exp(self.rates[state]))


def test_particles_agree_with_the_forward_algorithm_and_rare_values_are_not_forgotten(key):
    logits = jnp.array([[1.0, 0.0, -30.0], [0.0, 1.0, -30.0], [0.0, 0.0, 0.0]])
    model = Switching(logits, jnp.array([0.0, 1.0, 3.0]), 20)
    kind = find_filter(model, key)
    assert (kind.kind, len(kind.values)) == ("forward", 3)
    x = some(model, key, 20)
    exact = sequence_log_likelihood(model, x, key=key)
    rough = sequence_log_likelihood(model, x, key=key, particles=300)
    z = (rough.value - exact.value) / rough.error
    assert abs(z.mean()) < 4 / len(z) ** 0.5
    assert 0.6 < z.std() < 1.6


class Thinned(alws.StateSpace):
    """Of six, each goes on with probability p; what is left is counted imperfectly."""

    logit: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Binomial(6, 0.9)

    def transition(self, state):
        return dist.Binomial(state, logits=self.logit)

    def observation(self, state):
        return dist.Poisson(0.5 + state)


def test_values_that_depend_on_the_value_before_are_all_found(key):
    kind = find_filter(Thinned(jnp.array(5.0), 4), key)
    np.testing.assert_array_equal(kind.values, np.arange(7))


class Counted(Thinned):
    def transition(self, state):
        return dist.Poisson(jnp.exp(self.logit))


def test_counts_without_a_bound_are_no_few_values(key):
    kind = find_filter(Counted(jnp.array(0.0), 4), key)
    assert kind.kind == "none"
    assert "no greatest value" in kind.reason


class Growth(alws.StateSpace):
    """A positive number with gamma noise, counted: two times, so that quadrature can tell."""

    log_rate: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Gamma(3.0, 1.0)

    def transition(self, state):
        return dist.Gamma(4.0, 4.0 / (state * jnp.exp(self.log_rate)))

    def observation(self, state):
        return dist.Poisson(state)


def test_a_positive_state_is_integrated_as_by_quadrature(key):
    model = Growth(jnp.array(0.3), 2)

    def inner(s):
        scale = s * np.exp(0.3) / 4
        return quad(lambda t: gamma.pdf(t, 4.0, scale=scale) * poisson.pmf(7, t), 0, 60)[0]

    known = quad(lambda s: gamma.pdf(s, 3.0) * poisson.pmf(2, s) * inner(s), 0, 40)[0]
    found = sequence_log_likelihood(model, np.array([[2, 7]]), key=key)
    assert "grid" in found.method
    np.testing.assert_allclose(found.value[0], np.log(known), atol=1e-5)


class Diffuse(Level):
    """Nothing is known of the start, as is usual."""

    def initial(self):
        return dist.Normal(0.0, 1e4)

    def transition(self, state):
        return dist.StudentT(30.0, state, 0.3)


def test_a_diffuse_start_needs_no_wide_grid(key):
    x = some(LEVEL, key, 1) + 3000.0
    with jax.enable_x64(True):
        model = Diffuse(jnp.array(-0.5), 25)
        placed = place(model, jnp.asarray(x, float), None, key)
    assert placed.error < 1e-4
    assert placed.nodes.shape[1] < 512


class Volatility(alws.StateSpace):
    bend: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state):
        return dist.Normal(0.9 * state + self.bend * jnp.tanh(state), 0.4)

    def observation(self, state):
        return dist.Normal(0.0, jnp.exp(state / 2))


def test_a_volatility_by_particles_is_that_of_the_grid(key):
    model = Volatility(jnp.array(0.0), 40)
    x = some(model, key, 5)
    exact = sequence_log_likelihood(model, x, key=key)
    assert "grid" in exact.method
    assert exact.error.max() < 1e-4
    rough = sequence_log_likelihood(model, x, key=key, particles=1000)
    assert (np.abs(rough.value - exact.value) < 4 * rough.error).all()


class Bent(Level):
    bend: jax.Array = eqx.field(default_factory=lambda: jnp.array(0.0))

    def transition(self, state):
        return dist.Normal(0.9 * state + self.bend * jnp.tanh(state), 0.3)


def test_a_term_whose_coefficient_starts_at_nothing_is_seen(key):
    kind = find_filter(Bent(jnp.array(-0.5), 25), key)
    assert kind.kind == "grid"
    assert "transitions is not linear" in kind.reason


class Echo(alws.StateSpace):
    """s_t = 0.5 s_{t−1} + 0.3 x_{t−1} + noise, from 0.5 and unseen: remembers what was seen."""

    scale: jax.Array
    times: int = eqx.field(static=True)
    observe_start = False

    def initial(self):
        return None

    def start(self, z):
        return jnp.array([0.5, 0.0])

    def transition(self, state):
        return dist.Normal(0.0, 1.0)

    def update(self, state, z):
        return jnp.stack([0.5 * state[0] + self.scale * z + 0.3 * state[1], state[1]])

    def feed_back(self, state, x):
        return state.at[1].set(x)

    def observation(self, state):
        return dist.Normal(state[0], 0.5)


def test_particles_remember_what_was_fed_back(key):
    model = Echo(jnp.array(0.7), 30)
    x = some(model, key, 4)
    exact = sequence_log_likelihood(model, x, key=key)
    assert "Kalman" in exact.method
    rough = sequence_log_likelihood(model, x, key=key, particles=500)
    assert (np.abs(rough.value - exact.value) < 4 * rough.error).all()
    assert why_no_grid(model) == "it remembers more than its latent"


def test_what_no_particle_explains_has_no_finite_value(key):
    class Sharp(Level):
        def observation(self, state):
            return dist.Uniform(state, state + 1e-9)

    model = Sharp(jnp.array(0.0), 25)
    found = sequence_log_likelihood(model, np.zeros((1, 25)), key=key, particles=100)
    assert found.value[0] == -np.inf
    assert found.error[0] == np.inf


def test_increments_sum_to_what_independent_times_give(key):
    class Independent(Level):
        def transition(self, state):
            return dist.Normal(0.0, 1.0)

    x = some(LEVEL, key, 1)[0]
    model = Independent(jnp.array(-0.5), 25)
    each = particle_increments(model, x, key=key, particles=40_000)
    known = norm.logpdf(np.asarray(x), 0, np.sqrt(1 + np.exp(-1.0)))
    np.testing.assert_allclose(each, known, atol=0.1)


class Undefined(Level):
    def transition(self, state):
        return dist.Normal(jnp.log(state - 100.0), 0.3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k: sequence_log_likelihood(LEVEL, np.zeros((2, 24)), key=k), r"shape.*\(24,\)"),
        (
            lambda k: sequence_log_likelihood(
                Level(jnp.array(jnp.nan), 25), np.zeros((1, 25)), key=k
            ),
            "parameters must be finite",
        ),
        (
            lambda k: sequence_log_likelihood(LEVEL, np.full((1, 25), np.nan), key=k),
            "NaN",
        ),
        (
            lambda k: sequence_log_likelihood(
                LEVEL, np.zeros((2, 25)), alws.Given(observed=jnp.eye(2, 25, k=-1) > 0), key=k
            ),
            "an observed time; 1 have none, the first of them at index 0",
        ),
        (
            lambda k: sequence_log_likelihood(
                LEVEL, np.zeros((2, 25)), alws.Given(observed=jnp.ones((3, 25), bool)), key=k
            ),
            "one entry for each observation, 2; got 3",
        ),
        (lambda k: sequence_log_likelihood(LEVEL, np.zeros((0, 25)), key=k), "observation"),
        (lambda k: sequence_log_likelihood(LEVEL, np.zeros((1, 25)), key=k, particles=2), "10"),
        (lambda k: sequence_log_likelihood(LEVEL, np.zeros((1, 25)), key=k, repeats=1), "repeats"),
        (
            lambda k: sequence_log_likelihood(
                Level(jnp.array(1e6), 25), np.zeros((1, 25)), key=k, particles=10
            ),
            "every one of 16 draws",
        ),
        (
            lambda k: sequence_log_likelihood(
                Undefined(jnp.array(0.0), 25), np.zeros((1, 25)), key=k
            ),
            "every one of 16 draws",
        ),
        (
            lambda k: sequence_log_likelihood(
                LEVEL, np.zeros((1, 25)), alws.Given(control=jnp.full((1, 25), jnp.nan)), key=k
            ),
            "conditions.*finite|NaN",
        ),
    ],
)
def test_bad_input(call, message, key):
    with pytest.raises(ValueError, match=message):
        call(key)
