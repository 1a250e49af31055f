"""Tails and skews: Gaussians whose scale or shift is random, and times with a frailty."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import gamma as gamma_distribution
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from alws.likelihoods import Gamma, Gaussian
from known_maxima.base import Exact, Problem, array, best_of, by_scipy, jitter
from known_maxima.tables import source, table


class StudentT(eqx.Module):
    """z ~ Gamma(ν/2, ν/2), x | z ~ N(location, scale² / z): a t distribution."""

    location: Float[Array, ""]
    log_scale: Float[Array, ""]
    log_freedom: Float[Array, ""]

    def sample_latent(self, key):
        half = jnp.exp(self.log_freedom) / 2
        return jax.random.gamma(key, half) / half

    def log_prior(self, z):
        half = jnp.exp(self.log_freedom) / 2
        return gamma_distribution.logpdf(z, half, scale=1 / half)

    def likelihood(self, z):
        return Gaussian(self.location, jnp.exp(self.log_scale) / jnp.sqrt(z))


def student_t_log_marginal(model: StudentT, x: Array) -> Array:
    """The density of t with ν degrees of freedom."""
    return jax.scipy.stats.t.logpdf(
        x, jnp.exp(model.log_freedom), model.location, jnp.exp(model.log_scale)
    )


def gas(seed: int) -> Problem:
    """Growth of the consumption of gas over four quarters, 104 log ratios, a t distribution."""
    logs = np.log(table("gas")[:, 1])
    data = logs[4:] - logs[:-4]
    exact = Exact(student_t_log_marginal, data)

    def make(seed: int) -> StudentT:
        noise = jitter(seed, 3, scale=0.3 if seed else 0.0)
        return StudentT(
            array(data.std() * noise[0]),
            array(np.log(data.std()) + noise[1]),
            array(np.log(5.0) + noise[2]),
        )

    return Problem(
        name="gas",
        start=make(0),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=106.334148,
        rival=by_scipy(exact, make(0), "closed form"),
        source=source("gas") + "; scipy.stats.t.fit",
        recompute=best_of(exact, make, 3),
    )


class NormalInverseGaussian(eqx.Module):
    """z ~ InverseGaussian(mean 1, shape κ), x | z ~ N(location + skew z, scale² z)."""

    location: Float[Array, ""]
    skew: Float[Array, ""]
    log_scale: Float[Array, ""]
    log_shape: Float[Array, ""]

    def sample_latent(self, key):
        shape = jnp.exp(self.log_shape)
        return shape * jax.random.wald(key, 1 / shape)  # Wald(μ) has mean μ and shape 1

    def log_prior(self, z):
        shape = jnp.exp(self.log_shape)
        exponent = shape * (z - 1) ** 2 / (2 * z)
        return (self.log_shape - jnp.log(2 * jnp.pi) - 3 * jnp.log(z)) / 2 - exponent

    def likelihood(self, z):
        return Gaussian(self.location + self.skew * z, jnp.exp(self.log_scale) * jnp.sqrt(z))


def inverse_gaussian_log_marginal(model: NormalInverseGaussian, x: Array) -> Array:
    """log ∫ p(z) p(x | z) dz by the trapezoidal rule in log z."""
    u = jnp.linspace(-14.0, 10.0, 1501)
    z, shape = jnp.exp(u), jnp.exp(model.log_shape)
    prior = (model.log_shape - jnp.log(2 * jnp.pi) - 3 * u) / 2 - shape * (z - 1) ** 2 / (2 * z)
    spread = jnp.exp(model.log_scale + u / 2)
    logs = prior + norm.logpdf(x, model.location + model.skew * z, spread) + u
    return logsumexp(logs) + jnp.log(u[1] - u[0])


def returns(seed: int) -> Problem:
    """Six hundred returns with heavy tails and a skew, normal-inverse-Gaussian."""
    rng = np.random.default_rng(61)
    z = rng.wald(1.0, 1.2, 600)
    data = 0.5 - 0.4 * z + 0.9 * np.sqrt(z) * rng.standard_normal(600)
    exact = Exact(inverse_gaussian_log_marginal, data)

    def make(seed: int) -> NormalInverseGaussian:
        noise = jitter(seed, 4, scale=0.2 if seed else 0.0)
        return NormalInverseGaussian(*(array(n) for n in noise))

    return Problem(
        name="returns",
        start=make(0),
        data=data,
        parameters=4,
        log_likelihood=exact,
        maximum=-821.171014,
        rival=by_scipy(exact, make(0), "quadrature"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Frontier(eqx.Module):
    """x = best + v − z, v ~ N(0, noise²), z half normal with scale `waste`: a stochastic frontier.

    Both scales go through softplus.
    """

    best: Float[Array, ""]
    noise: Float[Array, ""]
    waste: Float[Array, ""]

    def sample_latent(self, key):
        return jax.nn.softplus(self.waste) * jnp.abs(jax.random.normal(key))

    def log_prior(self, z):
        return jnp.log(2.0) + norm.logpdf(z, 0, jax.nn.softplus(self.waste))

    def likelihood(self, z):
        return Gaussian(self.best - z, jax.nn.softplus(self.noise))


def frontier_log_marginal(model: Frontier, x: Array) -> Array:
    """log 2 + log φ(r/s)/s + log Φ(−λ r/s), r = x − best, s² = noise² + waste², λ their ratio."""
    noise, waste = jax.nn.softplus(model.noise), jax.nn.softplus(model.waste)
    scale = jnp.sqrt(noise**2 + waste**2)
    residual = (x - model.best) / scale
    return (
        jnp.log(2.0)
        + norm.logpdf(residual)
        - jnp.log(scale)
        + norm.logcdf(-residual * waste / noise)
    )


def frontier(seed: int) -> Problem:
    """Output of five hundred firms, some far below what is possible."""
    rng = np.random.default_rng(62)
    noise = rng.standard_normal((2, 500))
    data = 6 + 0.5 * noise[0] - 1.5 * np.abs(noise[1])
    exact = Exact(frontier_log_marginal, data)

    def make(seed: int) -> Frontier:
        noise = jitter(seed, 3, scale=0.2 if seed else 0.0)
        return Frontier(array(data.mean() + noise[0]), array(1 + noise[1]), array(1 + noise[2]))

    return Problem(
        name="frontier",
        start=make(0),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-666.450985,
        rival=by_scipy(exact, make(0), "closed form"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Frailty(eqx.Module):
    """z ~ Gamma(k, k), two times x_j | z ~ Exponential(z rate_j)."""

    log_rates: Float[Array, " 2"]
    log_shape: Float[Array, ""]

    def sample_latent(self, key):
        shape = jnp.exp(self.log_shape)
        return jax.random.gamma(key, shape) / shape

    def log_prior(self, z):
        shape = jnp.exp(self.log_shape)
        return gamma_distribution.logpdf(z, shape, scale=1 / shape)

    def likelihood(self, z):
        return Gamma(1.0, z * jnp.exp(self.log_rates))


def frailty_log_marginal(model: Frailty, x: Array) -> Array:
    """log r_1 r_2 + k log k + log Γ(k+2)/Γ(k) − (k+2) log(k + r_1 x_1 + r_2 x_2)."""
    k, rates = jnp.exp(model.log_shape), jnp.exp(model.log_rates)
    front = model.log_rates.sum() + k * model.log_shape + gammaln(k + 2) - gammaln(k)
    return front - (k + 2) * jnp.log(k + rates @ x)


def frailty(seed: int) -> Problem:
    """Failure times of the two parts of four hundred machines that share a frailty."""
    rng = np.random.default_rng(63)
    z = rng.gamma(2.0, 0.5, (400, 1))
    data = rng.exponential(size=(400, 2)) / (z * [0.5, 2.0])
    exact = Exact(frailty_log_marginal, data)

    def make(seed: int) -> Frailty:
        noise = jitter(seed, 3, scale=0.3 if seed else 0.0)
        return Frailty(array(noise[:2]), array(noise[2]))

    return Problem(
        name="frailty",
        start=make(0),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-1216.083093,
        rival=by_scipy(exact, make(0), "closed form"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )
