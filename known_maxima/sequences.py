"""Sequences: levels and seasons by the Kalman filter, chains of states, volatility, a population.

The exact likelihoods here share nothing with the library's filters.
"""

import importlib
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float
from scipy.optimize import minimize

from alws import StateSpace, sequences
from known_maxima.base import Exact, Problem, array, best_of, by_scipy, in_double, jitter
from known_maxima.tables import source, table


def kalman(
    x: Array,
    observed: Array,
    move: Array,
    noise: Array,
    see: Array,
    blur: Array,
    m: Array,
    p: Array,
) -> Array:
    """log p(x), x_t = see·s_t + N(0, blur), s_t = move s_{t−1} + N(0, noise), s_1 ~ N(m, p)."""

    def step(carry: tuple, item: tuple) -> tuple[tuple, Array]:
        (m, p), (x, seen) = carry, item
        variance = see @ p @ see + blur
        error, gain = x - see @ m, p @ see / variance
        found = jnp.where(seen, norm.logpdf(error, 0, jnp.sqrt(variance)), 0.0)
        m = m + jnp.where(seen, gain * error, 0.0)
        p = p - jnp.where(seen, jnp.outer(gain, gain) * variance, 0.0)
        return (move @ m, move @ p @ move.T + noise), found

    return jax.lax.scan(step, (m, p), (x, observed))[1].sum()


class Level(StateSpace):
    """A random walk from N(580, 10²), seen through noise."""

    log_step: Float[Array, ""]
    log_noise: Float[Array, ""]
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(580.0, 10.0)

    def transition(self, state):
        return dist.Normal(state, jnp.exp(self.log_step))

    def observation(self, state):
        return dist.Normal(state, jnp.exp(self.log_noise))


def level_log_marginal(model: Level, x: Array) -> Array:
    """The Kalman filter of a random walk."""
    one, variances = jnp.ones((1, 1)), jnp.exp(2 * jnp.stack([model.log_step, model.log_noise]))
    start = jnp.full(1, 580.0), 100.0 * one
    return kalman(x, jnp.ones(len(x), bool), one, variances[0] * one, one[0], variances[1], *start)


def _by_components(data: np.ndarray, kind: str, mean: list[float], variance: float, **more: Any):
    """statsmodels' own fit of level, slope and seasons, from its own start."""

    def run() -> tuple[str, float]:
        from statsmodels.tsa.statespace.structural import UnobservedComponents

        theirs: Any = UnobservedComponents(data, cast(Any, kind), **more)
        theirs.ssm.initialize_known(np.array(mean), variance * np.eye(len(mean)))
        theirs.ssm.loglikelihood_burn = 0
        return "statsmodels", float(theirs.fit(disp=0).llf)

    return run


def _huron() -> np.ndarray:
    return table("huron")[:, 1]


def huron_level(seed: int) -> Problem:
    """The level of Lake Huron in 98 years, a random walk seen through noise that may be none."""
    data = _huron()[None]
    exact = Exact(level_log_marginal, data)

    def make(seed: int) -> Level:
        step, noise = jitter(seed, 2, scale=0.3 if seed else 0.0)
        return Level(array(step), array(noise), 98)

    return Problem(
        name="huron_level",
        start=make(0),
        data=data,
        parameters=2,
        log_likelihood=exact,
        maximum=-112.330125,
        rival=_by_components(data[0], "local level", [580.0], 100.0),
        source=source("huron") + "; statsmodels",
        recompute=best_of(exact, make, 3),
    )


class Returning(StateSpace):
    """A deviation from the mean that dies out, seen through noise."""

    mean: Float[Array, ""]
    keep: Float[Array, ""]
    log_step: Float[Array, ""]
    log_noise: Float[Array, ""]
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(0.0, jnp.exp(self.log_step) / jnp.sqrt(1 - jnp.tanh(self.keep) ** 2))

    def transition(self, state):
        return dist.Normal(jnp.tanh(self.keep) * state, jnp.exp(self.log_step))

    def observation(self, state):
        return dist.Normal(self.mean + state, jnp.exp(self.log_noise))


def returning_log_marginal(model: Returning, x: Array, observed: Array | None = None) -> Array:
    """The Kalman filter of an autoregression."""
    observed = jnp.ones(len(x), bool) if observed is None else observed
    one, keep = jnp.ones((1, 1)), jnp.tanh(model.keep)
    step, noise = jnp.exp(2 * jnp.stack([model.log_step, model.log_noise]))
    start = jnp.zeros(1), one * step / (1 - keep**2)
    return kalman(x - model.mean, observed, keep * one, step * one, one[0], noise, *start)


def huron_returning(seed: int) -> Problem:
    """The same levels as an autoregression of the first order seen through noise."""
    data = _huron()[None]
    exact = Exact(returning_log_marginal, data)

    def make(seed: int) -> Returning:
        a, b, c, d = jitter(seed, 4, scale=0.3 if seed else 0.0)
        return Returning(array(579.0 + a), array(1 + b), array(c), array(d), 98)

    def rival() -> tuple[str, float]:
        from statsmodels.tsa.statespace.sarimax import SARIMAX

        theirs: Any = SARIMAX(data[0], order=(1, 0, 0), trend="c", measurement_error=True)
        return "statsmodels", float(theirs.fit(disp=0).llf)

    return Problem(
        name="huron_returning",
        start=make(0),
        data=data,
        parameters=4,
        log_likelihood=exact,
        maximum=-106.597975,
        rival=rival,
        source=source("huron") + "; statsmodels",
        recompute=best_of(exact, make, 3),
    )


class Seasons(StateSpace):
    """Level, slope and the seasons of the last three quarters, all moving, seen through noise."""

    log_level: Float[Array, ""]
    log_slope: Float[Array, ""]
    log_season: Float[Array, ""]
    log_noise: Float[Array, ""]
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(jnp.array([5.0, 0.0, 0.0, 0.0, 0.0]), 1.0)

    def transition(self, state):
        scales = jnp.stack([self.log_level, self.log_slope, self.log_season])
        return dist.Normal(jnp.zeros(3), jnp.exp(scales))

    def update(self, state, z):
        level, slope, *seasons = state
        season = -sum(seasons)
        return jnp.stack([level + slope + z[0], slope + z[1], season + z[2], *seasons[:2]])

    def observation(self, state):
        return dist.Normal(state[0] + state[2], jnp.exp(self.log_noise))


def seasons_log_marginal(model: Seasons, x: Array) -> Array:
    """The Kalman filter in five dimensions."""
    move = jnp.array(
        [[1.0, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, -1, -1, -1], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]
    )
    scales = jnp.stack([model.log_level, model.log_slope, model.log_season])
    noise = jnp.diag(jnp.concatenate([jnp.exp(2 * scales), jnp.zeros(2)]))
    see, blur = jnp.array([1.0, 0, 1, 0, 0]), jnp.exp(2 * model.log_noise)
    start = jnp.array([5.0, 0, 0, 0, 0]), jnp.eye(5)
    return kalman(x, jnp.ones(len(x), bool), move, noise, see, blur, *start)


def gas_seasons(seed: int) -> Problem:
    """The logarithm of the consumption of gas in 108 quarters: local linear trend and seasons."""
    data = np.log(table("gas")[:, 1])[None]
    exact = Exact(seasons_log_marginal, data)

    def make(seed: int) -> Seasons:
        a, b, c, d = (array(n - 2.0) for n in jitter(seed, 4, scale=0.3 if seed else 0.0))
        return Seasons(a, b, c, d, 108)

    return Problem(
        name="gas_seasons",
        start=make(0),
        data=data,
        parameters=4,
        log_likelihood=exact,
        maximum=79.052235,
        rival=_by_components(data[0], "local linear trend", [5.0, 0, 0, 0, 0], 1.0, seasonal=4),
        source=source("gas") + "; statsmodels",
        recompute=best_of(exact, make, 3),
    )


def several_short(seed: int) -> Problem:
    """Thirty sequences of 4 to 15 times with gaps: autoregressions seen through noise."""
    rng = np.random.default_rng(71)
    rows = []
    for _ in range(30):
        state, row = rng.standard_normal() * 0.8 / 0.6, []
        for _ in range(rng.integers(4, 16)):
            row.append(2.0 + state + 0.5 * rng.standard_normal())
            state = 0.8 * state + 0.8 * rng.standard_normal()
        row = np.array(row)
        row[1:][rng.random(len(row) - 1) < 0.1] = np.nan
        rows.append(row)
    x, given = sequences(rows)
    observed = np.asarray(given.observed)
    data = np.where(observed, np.stack([np.resize(r, x.shape[1]) for r in rows]), 0.0)
    exact = Exact(lambda model, item: returning_log_marginal(model, *item), (data, observed))

    def make(seed: int) -> Returning:
        a, b, c, d = (array(n) for n in jitter(seed, 4, scale=0.3 if seed else 0.0))
        return Returning(a, b, c, d, 15)

    return Problem(
        name="several_short",
        start=make(0),
        data=data,
        conditions=given,
        parameters=4,
        log_likelihood=exact,
        maximum=-349.474109,
        rival=by_scipy(exact, make(0), "Kalman filter"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Chain(StateSpace):
    """A Markov chain; the subclass says what is seen of each state."""

    first: Float[Array, " states"]
    moves: Float[Array, "states states"]

    def initial(self):
        return dist.Categorical(logits=self.first)

    def transition(self, state):
        return dist.Categorical(logits=self.moves[state])


class Counts(Chain):
    """Poisson counts, a rate for each state."""

    log_rates: Float[Array, " states"]
    times: int = eqx.field(static=True)

    def observation(self, state):
        return dist.Poisson(jnp.exp(self.log_rates[state]))


class Bells(Chain):
    """Normal numbers, a mean and a scale for each state."""

    means: Float[Array, " states"]
    log_scales: Float[Array, " states"]
    times: int = eqx.field(static=True)

    def observation(self, state):
        return dist.Normal(self.means[state], jnp.exp(self.log_scales[state]))


def _forward(model: Chain, logs: Array) -> Array:
    """The forward algorithm, log densities of each time under each state given."""
    moves = jax.nn.log_softmax(model.moves, axis=1)

    def step(alpha: Array, logs: Array) -> tuple[Array, None]:
        return logsumexp(alpha[:, None] + moves, axis=0) + logs, None

    return logsumexp(jax.lax.scan(step, jax.nn.log_softmax(model.first) + logs[0], logs[1:])[0])


def counts_log_marginal(model: Counts, x: Array) -> Array:
    """The forward algorithm with Poisson densities."""
    logs = x[:, None] * model.log_rates - jnp.exp(model.log_rates) - gammaln(x + 1)[:, None]
    return _forward(model, logs)


def bells_log_marginal(model: Bells, x: Array) -> Array:
    """The forward algorithm with normal densities."""
    return _forward(model, norm.logpdf(x[:, None], model.means, jnp.exp(model.log_scales)))


def _hmmlearn(kind: str, data: np.ndarray, states: int) -> Callable[[], tuple[str, float]]:
    """EM by hmmlearn, the best of ten of its own starts."""

    def run() -> tuple[str, float]:
        hmm = importlib.import_module("hmmlearn.hmm")
        reached = []
        for start in range(10):
            settings = {"n_components": states, "n_iter": 1000, "tol": 1e-4, "random_state": start}
            theirs = hmm.PoissonHMM(**settings) if kind == "counts" else hmm.GaussianHMM(**settings)
            column = data.reshape(-1, 1).astype(int if kind == "counts" else float)
            reached.append(theirs.fit(column).score(column))
        return "hmmlearn, best of ten starts", float(max(reached))

    return run


def _chain_counts(states: int, maximum: float) -> Callable[[int], Problem]:
    def problem(seed: int) -> Problem:
        data = table("discoveries")[:, 1][None]
        exact = Exact(counts_log_marginal, data)
        shares = (np.arange(states) + 0.5) / states

        def make(seed: int) -> Counts:
            noise = jitter(seed, states + 2, states, scale=0.3 if seed else 0.0)
            rates = np.log(np.quantile(data, shares) + 0.5)
            moves = array(2 * np.eye(states) + noise[:states])
            return Counts(array(noise[-2]), moves, array(rates + noise[-1]), 100)

        return Problem(
            name=f"discoveries_{states}_states",
            start=make(seed),
            data=data,
            parameters=states**2 - 1 + states,
            log_likelihood=exact,
            maximum=maximum,
            rival=_hmmlearn("counts", data, states),
            source=source("discoveries"),
            recompute=best_of(exact, make, 20),
        )

    return problem


def _chain_bells(times: int, maximum: float) -> Callable[[int], Problem]:
    def problem(seed: int) -> Problem:
        rng = np.random.default_rng(72)
        moves = np.array([[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.05, 0.15, 0.8]])
        states = [0]
        for _ in range(times - 1):
            states.append(rng.choice(3, p=moves[states[-1]]))
        means, scales = np.array([-2.0, 0.0, 2.5]), np.array([0.7, 1.0, 0.8])
        data = (means[states] + scales[states] * rng.standard_normal(times))[None]
        exact = Exact(bells_log_marginal, data)

        def make(seed: int) -> Bells:
            noise = jitter(seed, 6, 3, scale=0.3 if seed else 0.0)
            means = np.quantile(data, [1 / 6, 1 / 2, 5 / 6])
            moves = array(2 * np.eye(3) + noise[1:4])
            return Bells(array(noise[0]), moves, array(means + noise[4]), array(noise[5]), times)

        return Problem(
            name=f"chain_{times}",
            start=make(seed),
            data=data,
            parameters=14,
            log_likelihood=exact,
            maximum=maximum,
            rival=_hmmlearn("bells", data, 3),
            source="simulated",
            recompute=best_of(exact, make, 3),
        )

    return problem


discoveries_two = _chain_counts(2, -206.054100)
discoveries_three = _chain_counts(3, -201.341442)  # by hmmlearn: the sixth of ten of its starts
chain_300 = _chain_bells(300, -464.081693)
chain_10000 = _chain_bells(10_000, -16262.642353)


def _on_grid(s: Array, volume: Array, first: Array, moves: Array, logs: Array) -> Array:
    """The forward recursion on nodes s with their volumes; log densities of states and data."""
    kernel = jnp.exp(moves) * volume

    def step(alpha: Array, logs: Array) -> tuple[Array, Array]:
        top = logs.max()
        alpha = alpha * jnp.exp(logs - top)
        total = alpha.sum()
        return (alpha / total) @ kernel, top + jnp.log(total)

    return jax.lax.scan(step, jnp.exp(first) * volume, logs)[1].sum()


class Volatility(StateSpace):
    """The logarithm of a variance moves; the returns have that variance."""

    log_scale: Float[Array, ""]
    keep: Float[Array, ""]
    log_step: Float[Array, ""]
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(0.0, jnp.exp(self.log_step) / jnp.sqrt(1 - jnp.tanh(self.keep) ** 2))

    def transition(self, state):
        return dist.Normal(jnp.tanh(self.keep) * state, jnp.exp(self.log_step))

    def observation(self, state):
        return dist.Normal(0.0, jnp.exp(self.log_scale + state / 2))


def volatility_log_marginal(model: Volatility, x: Array) -> Array:
    """Sums over 801 log variances up to nine standard deviations away."""
    keep, step = jnp.tanh(model.keep), jnp.exp(model.log_step)
    spread = step / jnp.sqrt(1 - keep**2)
    s = spread * jnp.linspace(-9.0, 9.0, 801)
    moves = norm.logpdf(s, keep * s[:, None], step)
    logs = norm.logpdf(x[:, None], 0, jnp.exp(model.log_scale + s / 2))
    return _on_grid(s, jnp.full(801, s[1] - s[0]), norm.logpdf(s, 0, spread), moves, logs)


def volatility(seed: int) -> Problem:
    """A thousand returns whose variance moves."""
    rng = np.random.default_rng(73)
    state, data = 0.0, np.zeros((1, 1000))
    for t in range(1000):
        data[0, t] = 0.8 * np.exp(state / 2) * rng.standard_normal()
        state = 0.95 * state + 0.25 * rng.standard_normal()
    exact = Exact(volatility_log_marginal, data)

    def make(seed: int) -> Volatility:
        noise = jitter(seed, 3, scale=0.3 if seed else 0.0)
        return Volatility(array(noise[0]), array(1 + noise[1]), array(noise[2] - 0.5), 1000)

    return Problem(
        name="volatility",
        start=make(0),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-1242.829796,
        rival=by_scipy(exact, make(0), "on a grid"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Ricker(StateSpace):
    """log N moves to log r + log N − N + noise; the animals caught are Poisson."""

    log_growth: Float[Array, ""]
    log_step: Float[Array, ""]
    log_catch: Float[Array, ""]
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state):
        return dist.Normal(self.log_growth + state - jnp.exp(state), jnp.exp(self.log_step))

    def observation(self, state):
        return dist.Poisson(jnp.exp(self.log_catch + state))


def ricker_log_marginal(model: Ricker, x: Array) -> Array:
    """Sums over 1600 log sizes s, even in w = s + e^s, along which the map is never steep."""
    w = jnp.linspace(-25.0, 45.0, 1600)
    s = jnp.where(w > 1, jnp.log(jnp.maximum(w, 1.0)), w)
    for _ in range(30):
        s = s - (s + jnp.exp(s) - w) / (1 + jnp.exp(s))
    volume = (w[1] - w[0]) / (1 + jnp.exp(s))
    moves = norm.logpdf(s, (model.log_growth + s - jnp.exp(s))[:, None], jnp.exp(model.log_step))
    size = model.log_catch + s
    logs = x[:, None] * size - jnp.exp(size) - gammaln(x + 1)[:, None]
    return _on_grid(s, volume, norm.logpdf(s), moves, logs)


def ricker(seed: int) -> Problem:
    """A population of chaotic size caught sixty times."""
    rng = np.random.default_rng(74)
    state, data = 0.0, np.zeros((1, 60))
    for t in range(60):
        data[0, t] = rng.poisson(10 * np.exp(state))
        state = 3.0 + state - np.exp(state) + 0.3 * rng.standard_normal()
    exact = Exact(ricker_log_marginal, data)

    def make(seed: int) -> Ricker:
        noise = jitter(seed, 3, scale=0.2 if seed else 0.0)
        return Ricker(array(2.5 + noise[0]), array(noise[1] - 0.5), array(2 + noise[2]), 60)

    return Problem(
        name="ricker",
        start=make(0),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-219.837039,
        rival=by_scipy(exact, make(0), "on a grid"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Simulated:
    """log p(x) of one sequence by states simulated from the model, which are resampled every time.

    With the same random numbers for every model: the mean of repeats plus half their variance.
    `first` makes states of normal numbers, `move` makes the next, `logs` are their log p(x_t).
    """

    def __init__(
        self,
        x: np.ndarray,
        width: int,
        first: Callable[[Any, Array], Array],
        move: Callable[[Any, Array, Array], Array],
        logs: Callable[[Any, Array, Array], Array],
        particles: int = 20_000,
        repeats: int = 8,
    ):
        self.x, self.particles, self.repeats = x, particles, repeats

        def one(model: Any, x: Array, key: Array, number: int) -> Array:
            def step(state: Array, item: tuple[Array, Array]) -> tuple[Array, Array]:
                x, key = item
                places, moves = jax.random.split(key)
                weights = logs(model, state, x)
                top = weights.max()
                share = jnp.exp(weights - top)
                below = jnp.cumsum(share)
                at = (jnp.arange(number) + jax.random.uniform(places)) / number * below[-1]
                chosen = jnp.minimum(jnp.searchsorted(below, at), number - 1)
                noise = jax.random.normal(moves, (number, width))
                return move(model, state[chosen], noise), top + jnp.log(share.mean())

            begin, rest = jax.random.split(key)
            state = first(model, jax.random.normal(begin, (number, width)))
            return jax.lax.scan(step, state, (x, jax.random.split(rest, len(x))))[1].sum()

        def every(model: Any, x: Array, keys: Array, number: int) -> Array:
            return jax.lax.map(lambda key: one(model, x, key, number), keys)

        self._every = eqx.filter_jit(every)

    def __call__(self, model: Any) -> float:
        return self.of(model, self.particles, self.repeats)

    def of(self, model: Any, particles: int, repeats: int) -> float:
        """The same with so many particles and repeats."""
        keys = jax.random.split(jax.random.key(17), repeats)
        found = in_double(lambda m, x: self._every(m, x, keys, particles), model, self.x)
        return float(found.mean() + found.var(ddof=1) / 2)

    def maximise(self, start: Any, particles: int, repeats: int) -> Any:
        """Where Nelder and Mead's search with these particles ends, started again where it ends."""
        theta, rest = eqx.partition(start, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(theta)

        def at(flat: np.ndarray) -> Any:
            return eqx.combine(unravel(jnp.asarray(flat, jnp.float32)), rest)

        def loss(flat: np.ndarray) -> float:
            return -self.of(at(flat), particles, repeats)

        end = np.asarray(flat, float)
        for _ in range(3):
            end = minimize(loss, end, method="Nelder-Mead", options={"xatol": 1e-3}).x
        return at(end)


class Hunted(StateSpace):
    """The logarithms of the numbers of hunted and hunters, pushed at random; both are counted."""

    log_growth: Float[Array, ""]
    log_bites: Float[Array, ""]
    log_deaths: Float[Array, ""]
    log_step: Float[Array, ""]
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(jnp.array([3.5, 3.0]), 0.3)

    def transition(self, state):
        return dist.Normal(self.onward(state), jnp.exp(self.log_step))

    def onward(self, state):
        hunted, hunters = jnp.exp(jnp.minimum(state[..., 0], 10.0)), jnp.exp(state[..., 1])
        bites = jnp.exp(self.log_bites) * jnp.minimum(hunters, 1e4)
        gained = jnp.exp(self.log_bites) * hunted - jnp.exp(self.log_deaths)
        return state + jnp.stack([jnp.exp(self.log_growth) - bites, gained], axis=-1)

    def observation(self, state):
        return dist.Poisson(jnp.exp(state))


def hunted_log_marginal(model: Hunted, x: Array) -> Array:
    """Sums over 40 × 40 pairs of log numbers, seven standard deviations of the filter to each side.

    Where they lie is found by zooming in, from where the move may lead to what the counts leave of
    it. Below e⁻¹² animals are as good as none: they do not come back within these times.
    """
    line, reach = jnp.linspace(-1.0, 1.0, 40), 7.0
    step = jnp.exp(model.log_step)

    def filtered(density: Callable, x: Array, middle: Array, spread: Array) -> tuple:
        for zoom in range(3):
            middle, spread = jax.lax.stop_gradient((middle, spread))
            a = middle[:, None] + reach * spread[:, None] * line
            s = jnp.stack(jnp.meshgrid(*a, indexing="ij"), axis=-1).reshape(-1, 2)
            apart = a[:, 1] - a[:, 0]
            logs = (x * s - jnp.exp(s) - gammaln(x + 1)).sum(axis=1)
            top = logs.max()
            mass = density(a, s) * jnp.exp(logs - top) * apart.prod()
            total = mass.sum()
            mass = mass / total
            middle = mass @ s
            spread = jnp.sqrt(mass @ (s - middle) ** 2)
            spread = jnp.maximum(spread, 2 * apart / reach) if zoom < 2 else spread
        return (mass, s), top + jnp.log(total)

    def first(a: Array, s: Array) -> Array:
        return jnp.exp(norm.logpdf(s, jnp.array([3.5, 3.0]), 0.3).sum(axis=1))

    @jax.checkpoint
    def onward(carry: tuple, x: Array) -> tuple[tuple, Array]:
        mass, s = carry
        to = jnp.maximum(model.onward(s), -12.0)
        middle = mass @ to

        def density(a: Array, _: Array) -> Array:
            each = [jnp.exp(norm.logpdf(a[i], to[:, i, None], step)) for i in (0, 1)]
            return ((mass[:, None] * each[0]).T @ each[1]).ravel()

        return filtered(density, x, middle, jnp.sqrt(mass @ (to - middle) ** 2 + step**2))

    carry, begin = filtered(first, x[0], jnp.array([3.5, 3.0]), jnp.full(2, 0.3))
    return begin + jax.lax.scan(onward, carry, x[1:])[1].sum()


def hunted(seed: int) -> Problem:
    """A hundred counts of the hunted and their hunters, of numbers drawn as the model says."""
    rng = np.random.default_rng(75)
    state, data = np.array([3.5, 3.0]), np.zeros((1, 100, 2))
    for t in range(100):
        data[0, t] = rng.poisson(np.exp(state))
        prey, hunters = np.exp(state)
        gained = np.array([0.2 - 0.0075 * hunters, 0.0075 * prey - 0.2])
        state = state + gained + 0.14 * rng.standard_normal(2)
    exact = Exact(hunted_log_marginal, data)

    def make(seed: int) -> Hunted:
        a, b, c, d = jitter(seed, 4, scale=0.2 if seed else 0.0)
        return Hunted(array(a - 1.2), array(b - 4.5), array(c - 1.2), array(d - 1.0), 100)

    return Problem(
        name="hunted",
        start=make(0),
        data=data,
        parameters=4,
        log_likelihood=exact,
        maximum=-587.783789,
        rival=by_scipy(exact, make(0), "on a grid"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Epidemic(StateSpace):
    """The susceptible and the infected among 5000; how infectious they are moves; some are seen."""

    log_spread: Float[Array, ""]
    log_recovery: Float[Array, ""]
    seen: Float[Array, ""]
    log_step: Float[Array, ""]
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(2.3, 0.5)

    def start(self, z):
        return jnp.stack([5000.0 - jnp.exp(z), jnp.exp(z), jnp.exp(z)])

    def transition(self, state):
        return dist.Normal(0.0, jnp.exp(self.log_step))

    def update(self, state, z):
        return jnp.stack(self.onward(state[0], state[1], z))

    def onward(self, susceptible, infected, z):
        rate = jnp.exp(self.log_spread + z) * infected / 5000
        new = susceptible * (1 - jnp.exp(-rate))
        recovered = infected * (1 - jnp.exp(-jnp.exp(self.log_recovery)))
        return susceptible - new, infected + new - recovered, new

    def observation(self, state):
        return dist.Poisson(jax.nn.sigmoid(self.seen) * state[2] + 0.1)


def epidemic(seed: int) -> Problem:
    """The cases of an epidemic in sixty weeks, of numbers drawn as the model says."""
    rng = np.random.default_rng(76)
    first = np.exp(2.3 + 0.5 * rng.standard_normal())
    susceptible, infected, new = 5000 - first, first, first
    data = np.zeros((1, 60))
    for t in range(60):
        data[0, t] = rng.poisson(0.4 * new + 0.1)
        rate = np.exp(-0.7 + 0.2 * rng.standard_normal()) * infected / 5000
        new = susceptible * (1 - np.exp(-rate))
        susceptible, infected = susceptible - new, infected * np.exp(-0.25) + new

    def cases(model: Epidemic, state: Array, x: Array) -> Array:
        rate = jax.nn.sigmoid(model.seen) * state[:, 2] + 0.1
        return x * jnp.log(rate) - rate - gammaln(x + 1)

    def first_state(model: Epidemic, e: Array) -> Array:
        return jax.vmap(model.start)(2.3 + 0.5 * e[:, 0])

    def moved(model: Epidemic, s: Array, e: Array) -> Array:
        noise = jnp.exp(model.log_step) * e[:, 0]
        return jnp.stack(model.onward(s[:, 0], s[:, 1], noise), axis=1)

    simulated = Simulated(data[0], 1, first_state, moved, cases)

    def make(seed: int) -> Epidemic:
        a, b, c, d = jitter(seed, 4, scale=0.2 if seed else 0.0)
        return Epidemic(array(a - 0.4), array(b - 1.0), array(c), array(d - 0.7), 60)

    def rival() -> tuple[str, float]:
        return "Nelder and Mead, 1000 particles", simulated(simulated.maximise(make(0), 1000, 2))

    return Problem(
        name="epidemic",
        start=make(0),
        data=data,
        parameters=4,
        log_likelihood=simulated,
        maximum=-160.86,
        rival=rival,
        source="simulated; pypomp, from its end the top of a quadratic through places around, by "
        "16 times 50,000 particles: an error of 0.01",
        recompute=lambda: simulated(simulated.maximise(make(0), 4000, 4)),
    )
