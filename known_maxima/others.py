"""Four that are like none of the rest: censored, on a circle, of mixed kinds, hidden Markov."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float
from numpyro.distributions import VonMises

from alws.likelihoods import Bernoulli, Gaussian, Poisson, Product
from known_maxima.base import (
    Exact,
    Problem,
    array,
    best_of,
    by_scipy,
    jitter,
    normal_grid,
)


class Tobit(eqx.Module):
    """z ~ N(mean, spread²), x_t = max(0, z + noise ε_t), t = 1 … 4: the negative is seen as 0."""

    mean: Float[Array, ""]
    log_spread: Float[Array, ""]
    log_noise: Float[Array, ""]

    def sample(self, key):
        person_key, noise_key = jax.random.split(key)
        z = self.mean + jnp.exp(self.log_spread) * jax.random.normal(person_key)
        return z, jnp.maximum(z + jnp.exp(self.log_noise) * jax.random.normal(noise_key, (4,)), 0)

    def log_joint(self, z, x):
        noise = jnp.exp(self.log_noise)
        censored, seen = norm.logcdf(-z / noise), norm.logpdf(x, z, noise)
        prior = norm.logpdf(z, self.mean, jnp.exp(self.log_spread))
        return prior + jnp.where(x > 0, seen, censored).sum()


def tobit_log_marginal(model: Tobit, x: Array) -> Array:
    """log ∫ N(u; 0, 1) Π_t p(x_t | mean + spread u) du by the trapezoidal rule."""
    u, weights = normal_grid()
    z, noise = model.mean + jnp.exp(model.log_spread) * u[:, None], jnp.exp(model.log_noise)
    censored, seen = norm.logcdf(-z / noise), norm.logpdf(x, z, noise)
    return logsumexp(weights + jnp.where(x > 0, seen, censored).sum(axis=1))


def spending(seed: int) -> Problem:
    """What three hundred households spent in four months, nothing in 40 % of them: panel Tobit."""
    rng = np.random.default_rng(71)
    z = 0.5 + 1.5 * rng.standard_normal((300, 1))
    data = np.maximum(z + 1.2 * rng.standard_normal((300, 4)), 0)
    exact = Exact(tobit_log_marginal, data)

    def make(seed: int) -> Tobit:
        return Tobit(*(array(n) for n in jitter(seed, 3, scale=0.3 if seed else 0.0)))

    return Problem(
        name="spending",
        start=make(0),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-1621.321787,
        rival=by_scipy(exact, make(0), "quadrature"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Arc(eqx.Module):
    """z ~ VonMises(direction, κ), x | z ~ N(centre + radius (cos z, sin z), noise²)."""

    centre: Float[Array, " 2"]
    log_radius: Float[Array, ""]
    direction: Float[Array, ""]
    log_concentration: Float[Array, ""]
    log_noise: Float[Array, ""]

    def sample_latent(self, key):
        return VonMises(self.direction, jnp.exp(self.log_concentration)).sample(key)

    def log_prior(self, z):
        return VonMises(self.direction, jnp.exp(self.log_concentration)).log_prob(z)

    def likelihood(self, z):
        on_circle = jnp.exp(self.log_radius) * jnp.stack([jnp.cos(z), jnp.sin(z)])
        return Gaussian(self.centre + on_circle, jnp.exp(self.log_noise))


def arc_log_marginal(model: Arc, x: Array) -> Array:
    """log ∫ p(z) p(x | z) dz by the trapezoidal rule, exact to rounding for a periodic function."""
    z = jnp.arange(720) * (2 * jnp.pi / 720)
    k = jnp.exp(model.log_concentration)
    log_bessel = jnp.log(jax.scipy.special.i0e(k)) + k
    prior = k * jnp.cos(z - model.direction) - jnp.log(2 * jnp.pi) - log_bessel
    on_circle = jnp.exp(model.log_radius) * jnp.stack([jnp.cos(z), jnp.sin(z)], axis=1)
    seen = norm.logpdf(x, model.centre + on_circle, jnp.exp(model.log_noise)).sum(axis=1)
    return logsumexp(prior + seen) + jnp.log(2 * jnp.pi / 720)


def arc(seed: int) -> Problem:
    """Four hundred points along a circle, more of them on one side."""
    rng = np.random.default_rng(72)
    z = rng.vonmises(1.0, 0.8, 400)
    on_circle = 2 * np.stack([np.cos(z), np.sin(z)], axis=1)
    data = np.array([1.0, -0.5]) + on_circle + 0.3 * rng.standard_normal((400, 2))
    exact = Exact(arc_log_marginal, data)

    def make(seed: int) -> Arc:
        noise = jitter(seed, 6, scale=0.2 if seed else 0.0)
        return Arc(
            array(noise[:2]), array(noise[2]), array(noise[3]), array(noise[4]), array(noise[5])
        )

    return Problem(
        name="arc",
        start=make(0),
        data=data,
        parameters=6,
        log_likelihood=exact,
        maximum=-1029.538377,
        rival=by_scipy(exact, make(0), "quadrature"),
        source="simulated",
        recompute=best_of(exact, make, 6),
    )


class Health(eqx.Module):
    """z ~ N(0, 1) behind a number of visits, two measurements and an answer yes or no."""

    visits: Float[Array, " 2"]  # log rate: offset and slope
    offsets: Float[Array, " 2"]
    slopes: Float[Array, " 2"]
    log_noise: Float[Array, " 2"]
    well: Float[Array, " 2"]  # logit: offset and slope

    def sample_latent(self, key):
        return jax.random.normal(key)

    def log_prior(self, z):
        return norm.logpdf(z)

    def likelihood(self, z):
        return Product(
            {
                "visits": Poisson(self.visits[0] + self.visits[1] * z),
                "measured": Gaussian(self.offsets + self.slopes * z, jnp.exp(self.log_noise)),
                "well": Bernoulli(self.well[0] + self.well[1] * z),
            }
        )


def health_log_marginal(model: Health, x: dict[str, Array]) -> Array:
    """log ∫ N(z; 0, 1) p(visits | z) p(measured | z) p(well | z) dz by the trapezoidal rule."""
    z, weights = normal_grid()
    log_rate, logit = (a[0] + a[1] * z for a in (model.visits, model.well))
    visits = x["visits"] * log_rate - jnp.exp(log_rate) - gammaln(x["visits"] + 1)
    means = model.offsets + z[:, None] * model.slopes
    measured = norm.logpdf(x["measured"], means, jnp.exp(model.log_noise)).sum(axis=1)
    well = jnp.where(x["well"] > 0.5, log_sigmoid(logit), log_sigmoid(-logit))
    return logsumexp(weights + visits + measured + well)


def health(seed: int) -> Problem:
    """Four hundred patients: a count, two real numbers and a yes or no, in a dictionary."""
    rng = np.random.default_rng(73)
    z = rng.standard_normal(400)
    data = {
        "visits": rng.poisson(np.exp(0.7 - 0.6 * z)).astype(float),
        "measured": [3.0, -1.0]
        + z[:, None] * [1.0, 0.5]
        + rng.standard_normal((400, 2)) * [0.6, 1],
        "well": (rng.random(400) < 1 / (1 + np.exp(-0.5 - 1.2 * z))).astype(float),
    }
    exact = Exact(health_log_marginal, data)

    def make(seed: int) -> Health:
        noise = jitter(seed, 5, 2, scale=0.2 if seed else 0.0)
        noise[[0, 4], 1] += [-0.5, 0.5]
        return Health(*(array(row) for row in noise + np.array([[0], [0], [0.5], [0], [0]])))

    return Problem(
        name="health",
        start=make(0),
        data=data,
        parameters=10,
        log_likelihood=exact,
        maximum=-2170.801738,
        rival=by_scipy(exact, make(0), "quadrature"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


LENGTH = 8


class HiddenMarkov(eqx.Module):
    """Two states, z_1 ~ Bernoulli, z_t by a transition matrix, x_t | z_t ~ Poisson, t = 1 … 8."""

    first: Float[Array, ""]  # logit of state 1 at the beginning
    moves: Float[Array, " 2"]  # logit of state 1 after state 0 and after state 1
    log_rates: Float[Array, " 2"]

    def sample(self, key):
        keys = jax.random.split(key, LENGTH + 2)
        first = jax.random.bernoulli(keys[0], jax.nn.sigmoid(self.first)).astype(int)

        def step(z, key):
            z = jax.random.bernoulli(key, jax.nn.sigmoid(self.moves[z])).astype(int)
            return z, z

        _, rest = jax.lax.scan(step, first, keys[2 : LENGTH + 1])
        z = jnp.concatenate([first[None], rest])
        x = jax.random.poisson(keys[1], jnp.exp(self.log_rates[z]))
        return z, x.astype(self.log_rates.dtype)

    def log_joint(self, z, x):
        logits = jnp.concatenate([self.first[None], self.moves[z[:-1]]])
        path = jnp.where(z == 1, log_sigmoid(logits), log_sigmoid(-logits))
        log_rates = self.log_rates[z]
        return (path + x * log_rates - jnp.exp(log_rates) - gammaln(x + 1)).sum()


def hidden_markov_log_marginal(model: HiddenMarkov, x: Array) -> Array:
    """The forward algorithm, in logarithms."""

    def both(logit: Array) -> Array:
        return jnp.stack([log_sigmoid(-logit), log_sigmoid(logit)], axis=-1)

    log_rates = model.log_rates
    seen = x[:, None] * log_rates - jnp.exp(log_rates) - gammaln(x[:, None] + 1)
    ahead, moves = both(model.first) + seen[0], both(model.moves)
    for t in range(1, LENGTH):
        ahead = logsumexp(ahead[:, None] + moves, axis=0) + seen[t]
    return logsumexp(ahead)


def bursts(seed: int) -> Problem:
    """Two hundred sequences of eight counts that come in bursts, hidden Markov."""
    rng = np.random.default_rng(74)
    z = [(rng.random(200) < 0.3).astype(int)]
    while len(z) < LENGTH:
        z.append((rng.random(200) < np.array([0.15, 0.75])[z[-1]]).astype(int))
    data = rng.poisson(np.array([1.0, 4.0])[np.stack(z, axis=1)]).astype(float)
    exact = Exact(hidden_markov_log_marginal, data)

    def make(seed: int) -> HiddenMarkov:
        about = np.log(data.mean()) + np.array([-0.5, 0.5])
        noise = jitter(seed, 5)
        return HiddenMarkov(array(0.0), array(noise[:2]), array(about + noise[2:4]))

    return Problem(
        name="bursts",
        start=make(seed),
        data=data,
        parameters=5,
        log_likelihood=exact,
        maximum=-3012.144986,
        rival=by_scipy(exact, make(seed), "forward algorithm"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )
