"""Counts: too many zeros, too much variance, shared shocks, birds caught again, photons."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from jax.scipy.special import betaln, gammaln, logsumexp
from jax.scipy.stats import beta as beta_distribution
from jax.scipy.stats import gamma as gamma_distribution
from jax.scipy.stats import norm, poisson
from jaxtyping import Array, Float

from alws.likelihoods import Poisson
from known_maxima.base import (
    Exact,
    Problem,
    Rival,
    array,
    best_of,
    by_scipy,
    jitter,
    normal_grid,
)
from known_maxima.tables import repeated, source, table


class ZeroInflated(eqx.Module):
    """z ~ Bernoulli(sigmoid(never)); x = 0 if z, else x ~ Poisson(exp(log_rate))."""

    never: Float[Array, ""]
    log_rate: Float[Array, ""]

    def sample(self, key):
        never_key, count_key = jax.random.split(key)
        z = jax.random.bernoulli(never_key, jax.nn.sigmoid(self.never))
        count = jax.random.poisson(count_key, jnp.exp(self.log_rate))
        return z, jnp.where(z, 0, count).astype(self.log_rate.dtype)

    def log_joint(self, z, x):
        nothing = jnp.where(x == 0, 0.0, -jnp.inf)
        count = poisson.logpmf(x, jnp.exp(self.log_rate))
        prior = jnp.where(z, log_sigmoid(self.never), log_sigmoid(-self.never))
        return prior + jnp.where(z, nothing, count)


def zero_inflated_log_marginal(model: ZeroInflated, x: Array) -> Array:
    """log(π 1[x = 0] + (1 − π) Poisson(x; r))."""
    count = x * model.log_rate - jnp.exp(model.log_rate) - gammaln(x + 1)
    some = log_sigmoid(-model.never) + count
    return jnp.where(x == 0, jnp.logaddexp(log_sigmoid(model.never), some), some)


def _by_svi(counts: np.ndarray, exact: Exact) -> Rival:
    """NumPyro's SVI with its zero-inflated Poisson, whose indicator is summed out."""

    def run() -> tuple[str, float]:
        import numpyro
        import numpyro.distributions as dist
        from numpyro.infer import SVI, Trace_ELBO

        def program(x):
            never = jnp.asarray(numpyro.param("never", jnp.array(0.0)))
            log_rate = jnp.asarray(numpyro.param("log_rate", jnp.array(0.0)))
            inflated = dist.ZeroInflatedPoisson(jax.nn.sigmoid(never), jnp.exp(log_rate))
            with numpyro.plate("people", len(x)):
                numpyro.sample("x", inflated, obs=x)

        svi = SVI(program, lambda x: None, numpyro.optim.Adam(0.01), Trace_ELBO())
        x = jnp.asarray(counts, int)
        found = svi.run(jax.random.key(0), 2000, x, progress_bar=False).params
        fitted = ZeroInflated(found["never"], found["log_rate"])
        return "NumPyro SVI, indicator summed out", exact(fitted)

    return run


def articles_zero_inflated(seed: int) -> Problem:
    """Articles of 915 doctoral students, zero-inflated Poisson without regressors."""
    data = repeated("articles")[:, 0]
    exact = Exact(zero_inflated_log_marginal, data)

    def make(seed: int) -> ZeroInflated:
        return ZeroInflated(*(array(n) for n in jitter(seed, 2, scale=0.3 if seed else 0.0)))

    return Problem(
        name="articles_zero_inflated",
        start=make(0),
        data=data,
        parameters=2,
        log_likelihood=exact,
        maximum=-1679.391084,
        rival=_by_svi(data, exact),
        source=source("articles"),
        recompute=best_of(exact, make, 3),
    )


class GammaPoisson(eqx.Module):
    """z ~ Gamma(shape, mean shape / mean), x | z ~ Poisson(z): negative binomial."""

    log_mean: Float[Array, ""]
    log_shape: Float[Array, ""]

    def sample_latent(self, key):
        shape = jnp.exp(self.log_shape)
        return jnp.exp(jax.random.loggamma(key, shape) + self.log_mean - self.log_shape)

    def log_prior(self, z):
        shape = jnp.exp(self.log_shape)
        return gamma_distribution.logpdf(z, shape, scale=jnp.exp(self.log_mean) / shape)

    def likelihood(self, z):
        return Poisson(jnp.log(z))


def gamma_poisson_log_marginal(model: GammaPoisson, x: Array) -> Array:
    """log Γ(x+k) − log Γ(k) − log x! + k log(k/(k+m)) + x log(m/(k+m))."""
    k, m = jnp.exp(model.log_shape), jnp.exp(model.log_mean)
    powers = k * jnp.log(k / (k + m)) + x * jnp.log(m / (k + m))
    return gammaln(x + k) - gammaln(k) - gammaln(x + 1) + powers


def articles_negative_binomial(seed: int) -> Problem:
    """Articles of 915 doctoral students, negative binomial without regressors."""
    data = repeated("articles")[:, 0]
    exact = Exact(gamma_poisson_log_marginal, data)

    def make(seed: int) -> GammaPoisson:
        return GammaPoisson(*(array(n) for n in jitter(seed, 2, scale=0.3 if seed else 0.0)))

    return Problem(
        name="articles_negative_binomial",
        start=make(0),
        data=data,
        parameters=2,
        log_likelihood=exact,
        maximum=-1609.936743,
        rival=by_scipy(exact, make(0), "closed form"),
        source=source("articles"),
        recompute=best_of(exact, make, 3),
    )


class LogNormalPoisson(eqx.Module):
    """z ~ N(0, 1), x_t | z ~ Poisson(exp(log_rates_t + spread z)); one count or many."""

    log_rates: Float[Array, "*periods"]
    log_spread: Float[Array, ""]

    def sample_latent(self, key):
        return jax.random.normal(key)

    def log_prior(self, z):
        return norm.logpdf(z)

    def likelihood(self, z):
        return Poisson(self.log_rates + jnp.exp(self.log_spread) * z)


def log_normal_poisson_log_marginal(model: LogNormalPoisson, x: Array) -> Array:
    """log ∫ N(z; 0, 1) Π_t Poisson(x_t; exp(a_t + s z)) dz, by the trapezoidal rule."""
    z, weights = normal_grid(2401)
    log_rates = jnp.atleast_1d(model.log_rates) + jnp.exp(model.log_spread) * z[:, None]
    x = jnp.atleast_1d(x)
    logs = (x * log_rates - jnp.exp(log_rates) - gammaln(x + 1)).sum(axis=1)
    return logsumexp(weights + logs)


def _by_guide(data: np.ndarray, exact: Exact) -> Rival:
    """NumPyro's SVI with a normal guide for the effect of each patient."""

    def run() -> tuple[str, float]:
        import numpyro
        import numpyro.distributions as dist
        from numpyro.infer import SVI, Trace_ELBO
        from numpyro.infer.autoguide import AutoNormal

        def program(x):
            log_rates = jnp.asarray(numpyro.param("log_rates", jnp.zeros(x.shape[1])))
            log_spread = jnp.asarray(numpyro.param("log_spread", jnp.array(0.0)))
            with numpyro.plate("patients", len(x)):
                z = jnp.asarray(numpyro.sample("z", dist.Normal(0, 1)))
                rates = jnp.exp(log_rates + jnp.exp(log_spread) * z[:, None])
                numpyro.sample("x", dist.Poisson(rates).to_event(1), obs=x)

        svi = SVI(program, AutoNormal(program), numpyro.optim.Adam(0.01), Trace_ELBO())
        found = svi.run(jax.random.key(0), 4000, jnp.asarray(data), progress_bar=False).params
        fitted = LogNormalPoisson(found["log_rates"], found["log_spread"])
        return "NumPyro SVI, normal guide", exact(fitted)

    return run


def seizures(seed: int) -> Problem:
    """Seizures of 59 patients in four periods, each with its rate, a log-normal effect of each."""
    data = table("epil")[:, 1:]
    exact = Exact(log_normal_poisson_log_marginal, data)

    def make(seed: int) -> LogNormalPoisson:
        noise = jitter(seed, 5, scale=0.2 if seed else 0.0)
        return LogNormalPoisson(array(noise[:4]), array(noise[4]))

    return Problem(
        name="seizures",
        start=make(0),
        data=data,
        parameters=5,
        log_likelihood=exact,
        maximum=-695.944078,
        rival=_by_guide(data, exact),
        source=source("epil"),
        recompute=best_of(exact, make, 3),
    )


def discoveries(seed: int) -> Problem:
    """Great inventions in each of 100 years, Poisson with a log-normal effect of the year."""
    data = table("discoveries")[:, 1]
    exact = Exact(log_normal_poisson_log_marginal, data)

    def make(seed: int) -> LogNormalPoisson:
        return LogNormalPoisson(*(array(n) for n in jitter(seed, 2, scale=0.3 if seed else 0.0)))

    return Problem(
        name="discoveries",
        start=make(0),
        data=data,
        parameters=2,
        log_likelihood=exact,
        maximum=-210.559894,
        rival=by_scipy(exact, make(0), "quadrature"),
        source=source("discoveries"),
        recompute=best_of(exact, make, 3),
    )


CHILDREN = 12


class BetaBinomial(eqx.Module):
    """z ~ Beta(exp(log_a), exp(log_b)), x | z ~ Binomial(12, z)."""

    log_a: Float[Array, ""]
    log_b: Float[Array, ""]

    def sample(self, key):
        chance_key, count_key = jax.random.split(key)
        z = jax.random.beta(chance_key, jnp.exp(self.log_a), jnp.exp(self.log_b))
        boys = jax.random.bernoulli(count_key, z, (CHILDREN,)).sum()
        return z, boys.astype(z.dtype)

    def log_joint(self, z, x):
        ways = -jnp.log(CHILDREN + 1.0) - betaln(x + 1, CHILDREN - x + 1)
        prior = beta_distribution.logpdf(z, jnp.exp(self.log_a), jnp.exp(self.log_b))
        return prior + ways + x * jnp.log(z) + (CHILDREN - x) * jnp.log1p(-z)


def beta_binomial_log_marginal(model: BetaBinomial, x: Array) -> Array:
    """log C(12, x) + log B(x + a, 12 − x + b) − log B(a, b)."""
    a, b = jnp.exp(model.log_a), jnp.exp(model.log_b)

    def log_beta(a: Array, b: Array) -> Array:
        return gammaln(a) + gammaln(b) - gammaln(a + b)  # JAX's `betaln` is off by 1e-7

    ways = -jnp.log(CHILDREN + 1.0) - log_beta(x + 1, CHILDREN - x + 1.0)
    return ways + log_beta(x + a, CHILDREN - x + b) - log_beta(a, b)


def families(seed: int) -> Problem:
    """Boys in 6115 families of twelve, beta-binomial: hardly more than the binomial spread."""
    data = repeated("families")[:, 0]
    exact = Exact(beta_binomial_log_marginal, data)

    def make(seed: int) -> BetaBinomial:
        return BetaBinomial(*(array(n) for n in jitter(seed, 2, scale=0.3 if seed else 0.0)))

    return Problem(
        name="families",
        start=make(0),
        data=data,
        parameters=2,
        log_likelihood=exact,
        maximum=-12492.871359,
        rival=by_scipy(exact, make(0), "closed form"),
        source=source("families"),
        recompute=best_of(exact, make, 3),
    )


class SharedShocks(eqx.Module):
    """x_1 = z + u_1, x_2 = z + u_2 with z, u_1, u_2 Poisson: bivariate Poisson."""

    log_shared: Float[Array, ""]
    log_own: Float[Array, " 2"]

    def sample(self, key):
        shared_key, own_key = jax.random.split(key)
        z = jax.random.poisson(shared_key, jnp.exp(self.log_shared))
        x = z + jax.random.poisson(own_key, jnp.exp(self.log_own))
        return z, x.astype(self.log_own.dtype)

    def log_joint(self, z, x):
        own = x - z
        logs = own * self.log_own - jnp.exp(self.log_own) - gammaln(jnp.maximum(own, 0) + 1)
        possible = jnp.where((own >= 0).all(), 0.0, -jnp.inf)
        return poisson.logpmf(z, jnp.exp(self.log_shared)) + logs.sum() + possible


def shared_shocks_log_marginal(model: SharedShocks, x: Array) -> Array:
    """log Σ_z Poisson(z; r) Π_j Poisson(x_j − z; r_j), z ≤ min x."""
    z = jnp.arange(40.0)
    own = x - z[:, None]
    logs = own * model.log_own - jnp.exp(model.log_own) - gammaln(jnp.maximum(own, 0) + 1)
    shared = z * model.log_shared - jnp.exp(model.log_shared) - gammaln(z + 1)
    return logsumexp(jnp.where((own >= 0).all(axis=1), shared + logs.sum(axis=1), -jnp.inf))


def shocks(seed: int) -> Problem:
    """Four hundred pairs of counts with a part in common."""
    rng = np.random.default_rng(51)
    z, own = rng.poisson(1.5, (400, 1)), rng.poisson([1.0, 2.5], (400, 2))
    data = (z + own).astype(float)
    exact = Exact(shared_shocks_log_marginal, data)

    def make(seed: int) -> SharedShocks:
        noise = jitter(seed, 3, scale=0.3 if seed else 0.0)
        return SharedShocks(array(noise[0]), array(noise[1:]))

    return Problem(
        name="shocks",
        start=make(0),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-1493.857691,
        rival=by_scipy(exact, make(0), "exact sum"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Detector(eqx.Module):
    """z ~ Poisson(exp(log_rate)) photons, x | z ~ N(offset + gain z, noise²) the reading."""

    log_rate: Float[Array, ""]
    offset: Float[Array, ""]
    gain: Float[Array, ""]
    log_noise: Float[Array, ""]

    def sample(self, key):
        photon_key, noise_key = jax.random.split(key)
        z = jax.random.poisson(photon_key, jnp.exp(self.log_rate)).astype(self.gain.dtype)
        noise = jnp.exp(self.log_noise) * jax.random.normal(noise_key)
        return z, self.offset + self.gain * z + noise

    def log_joint(self, z, x):
        photons = z * self.log_rate - jnp.exp(self.log_rate) - gammaln(z + 1)
        return photons + norm.logpdf(x, self.offset + self.gain * z, jnp.exp(self.log_noise))


def detector_log_marginal(model: Detector, x: Array) -> Array:
    """log Σ_z Poisson(z; r) N(x; offset + gain z, noise²), z < 100."""
    z = jnp.arange(100.0)
    photons = z * model.log_rate - jnp.exp(model.log_rate) - gammaln(z + 1)
    readings = norm.logpdf(x, model.offset + model.gain * z, jnp.exp(model.log_noise))
    return logsumexp(photons + readings)


def detector(seed: int) -> Problem:
    """Six hundred readings of 1.8 photons on average; the peaks of none, one, two … are apart."""
    rng = np.random.default_rng(52)
    data = 0.5 + 1.4 * rng.poisson(1.8, 600) + 0.4 * rng.standard_normal(600)
    exact = Exact(detector_log_marginal, data)

    def make(seed: int) -> Detector:
        noise = jitter(seed, 4, scale=0.2 if seed else 0.0)
        return Detector(array(noise[0]), array(noise[1]), array(1 + noise[2]), array(noise[3]))

    return Problem(
        name="detector",
        start=make(0),
        data=data,
        parameters=4,
        log_likelihood=exact,
        maximum=-1167.36494,
        rival=by_scipy(exact, make(0), "exact sum"),
        source="simulated",
        recompute=best_of(exact, make, 8),
    )


RELEASED = (22, 60, 78, 80, 88, 98)
RECAPTURED = ((11, 2), (24, 1), (34, 2), (45, 1, 2), (51, 0), (52,))
"""European dippers: released in years 1 to 6, and first recaptured one, two, … years later."""
YEARS = 7


def dipper_histories() -> np.ndarray:
    """A row for each release, a column for each year, 1 where the bird was released or recaptured.

    A bird that is recaptured and let go again is a release of its own: survival and recapture
    depend on the present alone, so that the likelihood of a bird's history is the product of these.
    """
    rows = []
    for year, (released, recaptured) in enumerate(zip(RELEASED, RECAPTURED, strict=True)):
        histories = np.zeros((released, YEARS))
        histories[:, year] = 1
        later = np.repeat(np.arange(len(recaptured)), recaptured)
        histories[np.arange(len(later)), year + 1 + later] = 1
        rows.append(histories)
    return np.concatenate(rows)


class Dippers(eqx.Module):
    """A bird survives each year with one chance and is seen, if alive, with another.

    z_t says whether it is alive in year t. Releases fall on the six years in known proportions,
    which is no part of the likelihood; a history ends with the first recapture.
    """

    survival: Float[Array, ""]
    recapture: Float[Array, ""]

    def sample(self, key):
        release_key, life_key, eye_key = jax.random.split(key, 3)
        release = jax.random.categorical(release_key, jnp.log(jnp.array(RELEASED, float)))
        years = jnp.arange(YEARS)
        later = years > release
        survives = jax.random.bernoulli(life_key, jax.nn.sigmoid(self.survival), (YEARS,))
        z = jnp.cumprod(jnp.where(later, survives, True)).astype(bool)
        seen = jax.random.bernoulli(eye_key, jax.nn.sigmoid(self.recapture), (YEARS,))
        met = later & z & seen
        x = (years == release) | (met & (jnp.cumsum(met) == 1))
        return z, x.astype(self.survival.dtype)

    def log_joint(self, z, x):
        years = jnp.arange(YEARS)
        release, last = jnp.argmax(x), YEARS - 1 - jnp.argmax(x[::-1])
        last = jnp.where(last == release, YEARS - 1, last)
        before = jnp.concatenate([z[:1], z[:-1]])
        lives = jnp.where(z, log_sigmoid(self.survival), log_sigmoid(-self.survival))
        sight = jnp.where(x > 0, log_sigmoid(self.recapture), log_sigmoid(-self.recapture))
        possible = jnp.where(x > 0, z, z <= before).all()
        terms = jnp.where((years > release) & before, lives, 0)
        terms += jnp.where((years > release) & (years <= last) & z, sight, 0)
        return terms.sum() + jnp.where(possible, 0.0, -jnp.inf)


def dippers_log_marginal(model: Dippers, x: Array) -> Array:
    """log φ^g (1−p)^{g−1} p if seen after g years, else log(1 − Σ_{g≤T} φ^g (1−p)^{g−1} p)."""
    survive, see = jax.nn.sigmoid(model.survival), jax.nn.sigmoid(model.recapture)
    release, last = jnp.argmax(x), YEARS - 1 - jnp.argmax(x[::-1])
    miss = survive * (1 - see)
    unseen = 1 - survive * see * (1 - miss ** (YEARS - 1.0 - release)) / (1 - miss)
    seen = survive * see * miss ** (last - release - 1.0)
    return jnp.where(last == release, jnp.log(unseen), jnp.log(seen))


def dippers(seed: int) -> Problem:
    """Capture histories of European dippers: −2 log L = 666.8377."""
    data = dipper_histories()
    exact = Exact(dippers_log_marginal, data)

    def make(seed: int) -> Dippers:
        return Dippers(*(array(n) for n in jitter(seed, 2, scale=0.3 if seed else 0.0)))

    return Problem(
        name="dippers",
        start=make(0),
        data=data,
        parameters=2,
        log_likelihood=exact,
        maximum=-333.418831,
        rival=by_scipy(exact, make(0), "closed form"),
        source="Lebreton and others 1992, R package RMark; −2 log L 666.8377",
        recompute=best_of(exact, make, 3),
    )
