"""Answers to a few items: a normal trait or a class behind them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from alws.likelihoods import Bernoulli, Categorical
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
from known_maxima.tables import repeated, source


class TwoParameter(eqx.Module):
    """z ~ N(0, 1), P(x_j = 1 | z) = sigmoid(easiness_j + slope_j z)."""

    easiness: Float[Array, " items"]
    slopes: Float[Array, " items"]

    def sample_latent(self, key):
        return jax.random.normal(key)

    def log_prior(self, z):
        return norm.logpdf(z)

    def likelihood(self, z):
        return Bernoulli(self.easiness + self.slopes * z)


class OneParameter(eqx.Module):
    """z ~ N(0, 1), P(x_j = 1 | z) = sigmoid(easiness_j + slope z): one slope for all items."""

    easiness: Float[Array, " items"]
    slope: Float[Array, ""]

    def sample_latent(self, key):
        return jax.random.normal(key)

    def log_prior(self, z):
        return norm.logpdf(z)

    def likelihood(self, z):
        return Bernoulli(self.easiness + self.slope * z)


def answers(x: Array, logits: Array) -> Array:
    """Σ_j log p(x_j), P(x_j = 1) = sigmoid(logits_j)."""
    return jnp.where(x > 0.5, log_sigmoid(logits), log_sigmoid(-logits)).sum(axis=-1)


def two_parameter_log_marginal(model: TwoParameter, x: Array) -> Array:
    """log ∫ N(z; 0, 1) Π_j p(x_j | z) dz, by the trapezoidal rule."""
    z, weights = normal_grid(401)
    return logsumexp(weights + answers(x, model.easiness + z[:, None] * model.slopes))


def one_parameter_log_marginal(model: OneParameter, x: Array) -> Array:
    """The same with one slope."""
    z, weights = normal_grid(401)
    return logsumexp(weights + answers(x, model.easiness + z[:, None] * model.slope))


def _by_svi(data: np.ndarray, exact: Exact) -> Rival:
    """NumPyro's SVI with a normal guide for the trait of each person."""

    def run() -> tuple[str, float]:
        import numpyro
        import numpyro.distributions as dist
        from numpyro.infer import SVI, Trace_ELBO
        from numpyro.infer.autoguide import AutoNormal

        def program(x):
            easiness = jnp.asarray(numpyro.param("easiness", jnp.zeros(x.shape[1])))
            slopes = jnp.asarray(numpyro.param("slopes", jnp.ones(x.shape[1])))
            with numpyro.plate("people", len(x)):
                z = jnp.asarray(numpyro.sample("z", dist.Normal(0, 1)))
                logits = easiness + slopes * z[:, None]
                numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

        svi = SVI(program, AutoNormal(program), numpyro.optim.Adam(0.01), Trace_ELBO())
        found = svi.run(jax.random.key(0), 4000, jnp.asarray(data), progress_bar=False).params
        fitted = TwoParameter(found["easiness"], found["slopes"])
        return "NumPyro SVI, normal guide", exact(fitted)

    return run


def lsat7_two_parameter(seed: int) -> Problem:
    """LSAT-7, 1000 × 5, two-parameter logistic: −2658.805."""
    data = repeated("lsat7")
    exact = Exact(two_parameter_log_marginal, data)

    def make(seed: int) -> TwoParameter:
        noise = jitter(seed, 2, 5, scale=0.3 if seed else 0.0)
        return TwoParameter(array(noise[0]), array(1 + noise[1]))

    return Problem(
        name="lsat7_two_parameter",
        start=make(0),
        data=data,
        parameters=10,
        log_likelihood=exact,
        maximum=-2658.805114,
        rival=_by_svi(data, exact),
        source=source("lsat7") + "; R package mirt",
        recompute=best_of(exact, make, 3),
    )


def lsat7_one_parameter(seed: int) -> Problem:
    """LSAT-7, one slope for all items (Rasch with a free spread of the trait)."""
    data = repeated("lsat7")
    exact = Exact(one_parameter_log_marginal, data)

    def make(seed: int) -> OneParameter:
        noise = jitter(seed, 6, scale=0.3 if seed else 0.0)
        return OneParameter(array(noise[:5]), array(1 + noise[5]))

    return Problem(
        name="lsat7_one_parameter",
        start=make(0),
        data=data,
        parameters=6,
        log_likelihood=exact,
        maximum=-2664.900891,
        rival=by_scipy(exact, make(0), "quadrature"),
        source=source("lsat7"),
        recompute=best_of(exact, make, 3),
    )


class LatentClasses(eqx.Module):
    """z ~ Categorical(softmax(sizes)), P(x_j = 1 | z) = sigmoid(items[z, j])."""

    sizes: Float[Array, " classes"]
    items: Float[Array, "classes items"]

    def sample(self, key):
        class_key, answer_key = jax.random.split(key)
        z = jax.random.categorical(class_key, self.sizes)
        x = jax.random.bernoulli(answer_key, jax.nn.sigmoid(self.items[z]))
        return z, x.astype(self.items.dtype)

    def log_joint(self, z, x):
        logits = self.items[z]
        return jax.nn.log_softmax(self.sizes)[z] + (x * logits - jax.nn.softplus(logits)).sum()


def classes_log_marginal(model: LatentClasses, x: Array) -> Array:
    """log Σ_k π_k Π_j p(x_j | k)."""
    return logsumexp(jax.nn.log_softmax(model.sizes) + answers(x, model.items))


def lsat7_classes(seed: int) -> Problem:
    """LSAT-7, two latent classes."""
    data = repeated("lsat7")
    exact = Exact(classes_log_marginal, data)

    def make(seed: int) -> LatentClasses:
        return LatentClasses(array([0.0, 0.0]), array(jitter(seed, 2, 5, scale=0.5)))

    return Problem(
        name="lsat7_classes",
        start=make(seed),
        data=data,
        parameters=11,
        log_likelihood=exact,
        maximum=-2660.296827,
        rival=by_scipy(exact, make(seed), "exact sum"),
        source=source("lsat7") + "; the best of many starts",
        recompute=best_of(exact, make, 12),
    )


class GradedResponse(eqx.Module):
    """z ~ N(0, 1), P(x_j ≥ k | z) = sigmoid(slope_j z − threshold_jk), categories 0, 1, 2.

    The second threshold lies exp(log_gap) above the first (Samejima 1969).
    """

    slopes: Float[Array, " items"]
    thresholds: Float[Array, " items"]
    log_gaps: Float[Array, " items"]

    def sample_latent(self, key):
        return jax.random.normal(key)

    def log_prior(self, z):
        return norm.logpdf(z)

    def likelihood(self, z):
        lower = self.slopes * z - self.thresholds
        upper = lower - jnp.exp(self.log_gaps)
        between = log_sigmoid(lower) + log_sigmoid(-upper)
        middle = between + jnp.log(-jnp.expm1(-jnp.exp(self.log_gaps)))
        return Categorical(jnp.stack([log_sigmoid(-lower), middle, log_sigmoid(upper)], axis=-1))


def graded_log_marginal(model: GradedResponse, x: Array) -> Array:
    """log ∫ N(z; 0, 1) Π_j p(x_j | z) dz, by the trapezoidal rule."""
    z, weights = normal_grid(401)
    lower = z[:, None] * model.slopes - model.thresholds
    above, top = jax.nn.sigmoid(lower), jax.nn.sigmoid(lower - jnp.exp(model.log_gaps))
    chances = jnp.where(x == 0, 1 - above, jnp.where(x == 1, above - top, top))
    return logsumexp(weights + jnp.log(jnp.maximum(chances, 1e-300)).sum(axis=1))


def graded(seed: int) -> Problem:
    """Five hundred people, four items with three ordered answers."""
    rng = np.random.default_rng(41)
    z, noise = rng.standard_normal((500, 1)), rng.logistic(size=(500, 4))
    quality = z * [0.8, 1.2, 1.6, 2.0] + noise
    data = (quality > [-1.0, 0.0, 0.5, 1.0]).astype(int) + (quality > [0.5, 1.5, 3.0, 2.0])
    exact = Exact(graded_log_marginal, data)

    def make(seed: int) -> GradedResponse:
        noise = jitter(seed, 3, 4, scale=0.2 if seed else 0.0)
        return GradedResponse(array(1 + noise[0]), array(noise[1]), array(noise[2]))

    return Problem(
        name="graded",
        start=make(0),
        data=data,
        parameters=12,
        log_likelihood=exact,
        maximum=-1828.669631,
        rival=by_scipy(exact, make(0), "quadrature"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )
