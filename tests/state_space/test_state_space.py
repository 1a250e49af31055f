"""State-space models against the Kalman filter, the forward algorithm and closed forms."""

import itertools

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from exact.hidden_markov import HiddenMarkov
from jax.scipy.stats import multivariate_normal

import alws
from alws.state_space.model import Given, Path, StateSpace, sequences


class Tracking(StateSpace):
    """s_t = A s_{t−1} + b u_t + noise in two dimensions, x_t = c·s_t + noise."""

    matrix: jax.Array
    input_weight: jax.Array
    readout: jax.Array
    log_noise: jax.Array

    def initial(self):
        return dist.Normal(jnp.array([1.0, -1.0]), 0.7).to_event(1)

    def transition(self, state, control):
        mean = self.matrix @ state + self.input_weight * control
        return dist.Normal(mean, 0.4).to_event(1)

    def observation(self, state, control):
        return dist.Normal(self.readout @ state, jnp.exp(self.log_noise))


TRACKING = Tracking(
    jnp.array([[0.9, 0.3], [-0.3, 0.8]]),
    jnp.array([0.5, 0.2]),
    jnp.array([1.0, 0.5]),
    jnp.array(-0.5),
)
CONTROL = jnp.array([0.0, 1.0, 0.5, -1.0, 0.3, 0.0])


def kalman(model, x, control, observed=None):
    """The exact log likelihood, by prediction and correction."""
    observed = jnp.ones(len(x), bool) if observed is None else observed
    mean, cov = jnp.array([1.0, -1.0]), 0.49 * jnp.eye(2)
    total = 0.0
    for t in range(len(x)):
        if t > 0:
            mean = model.matrix @ mean + model.input_weight * control[t]
            cov = model.matrix @ cov @ model.matrix.T + 0.16 * jnp.eye(2)
        variance = model.readout @ cov @ model.readout + jnp.exp(2 * model.log_noise)
        residual = x[t] - model.readout @ mean
        gain = cov @ model.readout / variance
        density = -0.5 * (residual**2 / variance + jnp.log(2 * jnp.pi * variance))
        total = total + jnp.where(observed[t], density, 0.0)
        mean = jnp.where(observed[t], mean + gain * residual, mean)
        cov = jnp.where(observed[t], cov - jnp.outer(gain, gain) * variance, cov)
    return total


def posterior_log_prob(model, z, x, control):
    """log p(z | x) of the linear-Gaussian system, from its joint covariance."""
    steps = len(control)
    rows, cov, mean = [jnp.eye(2)], [], [jnp.array([1.0, -1.0])]
    for t in range(1, steps):
        mean.append(model.matrix @ mean[-1] + model.input_weight * control[t])
    # z = mean + L e with unit noise e, block lower triangular L.
    blocks = [[jnp.zeros((2, 2))] * steps for _ in range(steps)]
    for j in range(steps):
        blocks[j][j] = (0.7 if j == 0 else 0.4) * rows[0]
        for t in range(j + 1, steps):
            blocks[t][j] = model.matrix @ blocks[t - 1][j]
    factor = jnp.block(blocks)
    cov = factor @ factor.T
    mean = jnp.concatenate(mean)
    see = jnp.kron(jnp.eye(steps), model.readout[None])
    noise = jnp.exp(2 * model.log_noise) * jnp.eye(steps)
    gain = cov @ see.T @ jnp.linalg.inv(see @ cov @ see.T + noise)
    return multivariate_normal.logpdf(z, mean + gain @ (x - see @ mean), cov - gain @ see @ cov)


def test_log_joint_is_the_kalman_likelihood_times_the_posterior(key):
    given = Given(CONTROL)
    with jax.enable_x64(True):
        model = jax.tree.map(lambda a: a.astype(jnp.float64), TRACKING)
        z, x = model.sample(jax.random.key(3), given)
        path = jnp.concatenate([z.start[None], z.steps]).ravel()

        def log_likelihood(model):
            return model.log_joint(z, x, given) - posterior_log_prob(model, path, x, CONTROL)

        exact = eqx.filter_jit(eqx.filter_value_and_grad(kalman))(model, x, CONTROL)
        ours = eqx.filter_jit(eqx.filter_value_and_grad(log_likelihood))(model)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, exact)


def test_simulated_sequences_have_the_moments_of_the_linear_gaussian_process(key):
    """All draws are made before the scan; they must not repeat in time, nor between z and x."""
    number, m = 20_000, TRACKING
    x = np.asarray(alws.draw(m, key, number, Given(CONTROL))[0].x)
    means, covs = [jnp.array([1.0, -1.0])], [0.49 * jnp.eye(2)]
    for u in CONTROL[1:]:
        means.append(m.matrix @ means[-1] + m.input_weight * u)
        covs.append(m.matrix @ covs[-1] @ m.matrix.T + 0.16 * jnp.eye(2))
    exact = np.zeros((len(CONTROL), len(CONTROL)))
    for s, t in itertools.combinations_with_replacement(range(len(CONTROL)), 2):
        power = jnp.linalg.matrix_power(m.matrix, t - s)
        exact[s, t] = exact[t, s] = m.readout @ power @ covs[s] @ m.readout
    exact += np.exp(2 * float(m.log_noise)) * np.eye(len(exact))
    spread = np.sqrt(np.diag(exact))
    errors = (x.mean(axis=0) - np.stack(means) @ np.asarray(m.readout)) / spread
    np.testing.assert_allclose(errors, 0, atol=4 / number**0.5)
    errors = (np.cov(x.T) - exact) / np.outer(spread, spread)
    np.testing.assert_allclose(errors, 0, atol=4 * (2 / number) ** 0.5)


def test_estimated_gradient_approaches_that_of_the_kalman_filter(key):
    data = alws.draw(TRACKING, key, 200, Given(CONTROL))[0].x
    model = eqx.tree_at(lambda m: m.readout, TRACKING, jnp.array([0.6, 0.9]))

    @eqx.filter_jit
    @eqx.filter_grad
    def score(model):
        return jnp.mean(jax.vmap(lambda x: kalman(model, x, CONTROL))(data))

    exact = jax.flatten_util.ravel_pytree(score(model))[0]

    @eqx.filter_jit
    def estimate(number, key):
        sleep = alws.draw(model, key, number, Given(CONTROL))[0]
        smoother = alws.regressions.KernelRidge(alws.kernels.SquaredExponential(), ridge=0.1)
        smoother = smoother.initialise(sleep.x).fit(sleep.x)
        held = alws.estimates.Joint().weigh(model, smoother, sleep, data, Given(CONTROL))
        gradient = eqx.filter_grad(alws.estimates.Joint().objective)(
            model, sleep, held, Given(CONTROL)
        )
        return jax.flatten_util.ravel_pytree(gradient)[0]

    errors = {
        n: jnp.mean(
            jnp.array([jnp.sum((estimate(n, k) - exact) ** 2) for k in jax.random.split(key, 3)])
        )
        for n in (50, 1500)
    }
    assert errors[1500] < 0.3**2 * jnp.sum(exact**2)
    assert errors[1500] < 0.3 * errors[50]


class Chain(StateSpace):
    """The hidden Markov chain of the exact tests, written as a state-space model."""

    exact: HiddenMarkov
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Categorical(logits=self.exact.initial)

    def transition(self, state):
        return dist.Categorical(logits=self.exact.transition[state])

    def observation(self, state):
        return dist.Normal(self.exact.means[state], jnp.exp(self.exact.log_scales[state]))


def test_discrete_chain_sums_to_the_forward_algorithm(key):
    keys = jax.random.split(key, 4)
    exact = HiddenMarkov(
        jax.random.normal(keys[0], (3,)),
        jax.random.normal(keys[1], (3, 3)),
        jnp.array([-1.0, 0.5, 2.0]),
        jnp.array([-0.5, 0.0, 0.2]),
    )
    chain = Chain(exact, 5)
    z, x = chain.sample(keys[2])
    assert z.steps.shape == (4,)
    paths = jnp.array(list(itertools.product(range(3), repeat=5)))

    def log_likelihood(exact):
        joint = jax.vmap(lambda p: Chain(exact, 5).log_joint(Path(p[0], p[1:]), x))
        return jax.scipy.special.logsumexp(joint(paths))

    ours = eqx.filter_jit(eqx.filter_value_and_grad(log_likelihood))(exact)
    known = eqx.filter_jit(eqx.filter_value_and_grad(lambda m: m.log_marginal(x)))(exact)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), ours, known)


class Accumulator(StateSpace):
    """s_t = a s_{t−1} + z_t + b x_{t−1}: deterministic given its noise and the observations."""

    decay: jax.Array
    echo: jax.Array
    times: int = eqx.field(static=True)
    observe_start = False

    def initial(self):
        return None

    def start(self, z):
        return jnp.array([0.5, 0.0])

    def transition(self, state):
        return dist.Normal(0.0, 1.0)

    def update(self, state, z):
        return jnp.stack([self.decay * state[0] + z + self.echo * state[1], state[1]])

    def feed_back(self, state, x):
        return state.at[1].set(x)

    def observation(self, state):
        return dist.Normal(state[0], 0.5)


def test_deterministic_states_carry_their_gradient_through_time(key):
    model = Accumulator(jnp.array(0.8), jnp.array(0.3), 6)
    z, x = model.sample(key)

    def by_hand(decay, echo):
        state, seen, total = 0.5, 0.0, 0.0
        for t in range(6):
            state = decay * state + z.steps[t] + echo * seen
            seen = x[t]
            total += jax.scipy.stats.norm.logpdf(z.steps[t])
            total += jax.scipy.stats.norm.logpdf(x[t], state, 0.5)
        return total

    value, gradient = eqx.filter_jit(eqx.filter_value_and_grad(lambda m: m.log_joint(z, x)))(model)
    known, slopes = jax.jit(jax.value_and_grad(by_hand, argnums=(0, 1)))(model.decay, model.echo)
    np.testing.assert_allclose(value, known, rtol=1e-5)
    np.testing.assert_allclose((gradient.decay, gradient.echo), slopes, rtol=1e-4)


def test_observations_are_fed_back_as_they_were_drawn(key):
    model = Accumulator(jnp.array(0.5), jnp.array(0.4), 4000)
    z, x = model.sample(key)
    residual = x - model.states(z, x)[1][:, 0]
    assert abs(float(residual.std()) - 0.5) < 0.02
    shuffled = model.states(z, x[::-1])[1][:, 0]
    assert float((x - shuffled).std()) > 0.55


def test_missing_times_are_left_out_of_the_likelihood(key):
    observed = jnp.array([True, False, True, True, False, True])
    given = Given(CONTROL, observed)
    z, x = TRACKING.sample(key, given)
    assert np.all(np.asarray(x)[~np.asarray(observed)] == 0.0)
    log_joint = TRACKING.log_joint(z, x, given)
    assert log_joint == TRACKING.log_joint(z, x.at[1].set(7.0), given)
    # p(x_observed) by importance sampling from the prior, against the filter that skips.
    many = jax.vmap(lambda k: TRACKING.sample(k, Given(CONTROL))[0])(jax.random.split(key, 200_000))
    weights = jax.vmap(
        lambda z: (
            TRACKING.log_joint(z, x, given)
            - TRACKING.log_joint(z, x, Given(CONTROL, jnp.zeros(6, bool)))
        )
    )(many)
    estimate = jax.scipy.special.logsumexp(weights) - jnp.log(200_000.0)
    assert abs(float(estimate - kalman(TRACKING, x, CONTROL, observed))) < 0.05


def test_unequal_and_missing_sequences_become_data_and_conditions():
    x, given = sequences([[1.0, np.nan, 3.0], [4.0, 5.0]], control=[[1, 2, 3], [4, 5]])
    np.testing.assert_array_equal(x, [[1, 0, 3], [4, 5, 0]])
    np.testing.assert_array_equal(given.observed, [[True, False, True], [True, True, False]])
    np.testing.assert_array_equal(given.control, [[1, 2, 3], [4, 5, 0]])


def test_a_fit_on_unequal_sequences_moves_towards_the_truth(key):
    keys = jax.random.split(key, 60)
    drawn = jax.vmap(lambda k: TRACKING.sample(k, Given(CONTROL))[1])(keys)
    lengths = [4 + i % 3 for i in range(60)]
    x, given = sequences(
        [np.asarray(d[:n]) for d, n in zip(drawn, lengths, strict=True)],
        control=[np.asarray(CONTROL[:n]) for n in lengths],
    )
    start = eqx.tree_at(lambda m: m.readout, TRACKING, jnp.array([0.0, 0.0]))
    likelihood = eqx.filter_jit(jax.vmap(kalman, in_axes=(None, 0, 0, 0)))

    def exact(model):
        return float(likelihood(model, x, given.control, given.observed).mean())

    result = alws.fit(
        start,
        x,
        conditions=given,
        key=key,
        steps=40,
        batch_size=6,
        settings=alws.Settings(sleep_samples=200, validation_samples=50),
    )
    assert exact(result.model) > 0.5 * (exact(start) + exact(TRACKING))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TRACKING.sample(jax.random.key(0)), "must know how many times.*got None.*times"),
        (
            lambda: TRACKING.sample(jax.random.key(0), Given(CONTROL, jnp.ones(4, bool))),
            r"one length.*\[4, 6\]",
        ),
        (
            lambda: Accumulator(jnp.array(0.8), jnp.array(0.3), 6).sample(
                jax.random.key(0), Given(None, jnp.ones(6, bool))
            ),
            "feeds observations back.*latents",
        ),
        (lambda: sequences([[1.0], [np.nan]]), "an observed time; one has none"),
        (lambda: sequences([np.ones((3, 2)), np.ones((3, 1))]), "the same entries at each time"),
        (lambda: sequences([[1.0, 2.0]], control=[[1.0]]), "as long as its sequence"),
        (lambda: sequences([[1.0, 2.0]], control=[[1.0, np.nan]]), "known at all times"),
        (lambda: sequences([[1.0, np.inf]]), "must have finite numbers"),
        (
            lambda: alws.fit(
                Chain(HiddenMarkov(*[jnp.zeros(3)] * 4), 3),
                [np.ones(3), np.ones(2)],
                key=jax.random.key(0),
                steps=1,
            ),
            "alws.sequences",
        ),
        (
            lambda: alws.fit(
                Chain(HiddenMarkov(*[jnp.zeros(3)] * 4), 3),
                np.array([[1.0, np.nan, 2.0]]),
                key=jax.random.key(0),
                steps=1,
            ),
            "NaN.*alws.sequences",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
