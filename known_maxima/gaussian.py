"""Models whose observations are Gaussian once the latents are integrated out.

x | z ~ N(m + Λz, Ψ) with Gaussian z, so that x is Gaussian, and log p(x) is closed-form.
"""

from collections.abc import Callable
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import multivariate_normal, norm
from jaxtyping import Array, Float

from alws.likelihoods import Gaussian
from known_maxima.base import Exact, Problem, Rival, array, best_of, by_scipy, gaussian, jitter
from known_maxima.tables import source, table

TWO_PI = 2 * np.pi


class Factors(eqx.Module):
    """z ~ N(0, I_k), x | z ~ N(mean + loadings z, exp(2 log_noise)), the noise one number or many.

    With a noise for each entry this is factor analysis, with one for all probabilistic PCA.
    """

    mean: Float[Array, " d"]
    loadings: Float[Array, "d k"]
    log_noise: Float[Array, "*d"]

    def sample_latent(self, key):
        return jax.random.normal(key, self.loadings.shape[1:])

    def log_prior(self, z):
        return norm.logpdf(z).sum()

    def likelihood(self, z):
        return Gaussian(self.mean + self.loadings @ z, jnp.exp(self.log_noise))


def factors_log_marginal(model: Factors, x: Array) -> Array:
    """log N(x; mean, ΛΛᵀ + Ψ)."""
    noise = jnp.broadcast_to(jnp.exp(2 * model.log_noise), x.shape)
    return gaussian(x, model.mean, model.loadings @ model.loadings.T + jnp.diag(noise))


def free_parameters(entries: int, latents: int, noises: int) -> int:
    """Mean, noise, and loadings up to a rotation: d + noises + dk − k(k−1)/2."""
    return entries + noises + entries * latents - latents * (latents - 1) // 2


def principal_components(data: np.ndarray, latents: int) -> tuple[Factors, float]:
    """Tipping and Bishop's maximum: W = U (Λ − σ²I)^½, σ² the mean of the other eigenvalues of S.

    −2 log L / n = d log 2π + Σ_{i≤k} log λ_i + (d − k) log σ² + d.
    """
    n, d = data.shape
    mean = data.mean(axis=0)
    values, vectors = np.linalg.eigh((data - mean).T @ (data - mean) / n)
    values, vectors = values[::-1], vectors[:, ::-1]
    top, noise = values[:latents], values[latents:].mean()
    terms = d * np.log(TWO_PI) + np.log(top).sum() + (d - latents) * np.log(noise) + d
    model = Factors(mean, vectors[:, :latents] * np.sqrt(top - noise), np.log(noise) / 2)
    return model, float(-n / 2 * terms)


def _by_pca(data: np.ndarray, latents: int) -> Rival:
    def run() -> tuple[str, float]:
        from sklearn.decomposition import PCA

        fitted = PCA(latents).fit(data)
        return "scikit-learn PCA", float(fitted.score_samples(data).sum())

    return run


def _by_factor_analysis(data: np.ndarray, latents: int) -> Rival:
    def run() -> tuple[str, float]:
        from sklearn.decomposition import FactorAnalysis

        fitted = FactorAnalysis(latents, random_state=0).fit(data)
        return "scikit-learn FactorAnalysis", float(fitted.score_samples(data).sum())

    return run


def _components(name: str, data: np.ndarray, latents: int, start: Factors, origin: str) -> Problem:
    """Probabilistic PCA of any data."""
    exact = Exact(factors_log_marginal, data)
    best, maximum = principal_components(data, latents)
    return Problem(
        name=name,
        start=start,
        data=data,
        parameters=free_parameters(data.shape[1], latents, 1),
        log_likelihood=exact,
        maximum=maximum,
        rival=_by_pca(data, latents),
        source=f"{origin}; closed-form maximum",
        recompute=lambda: exact(best),
    )


def spread_start(data: np.ndarray, latents: int, seed: int, *, isotropic: bool) -> Factors:
    """Means of the columns, their spread as noise, loadings small and random in those units."""
    spread = data.std(axis=0)
    if isotropic:
        spread = np.full_like(spread, np.sqrt((spread**2).mean()))
    loadings = spread[:, None] * jitter(seed, data.shape[1], latents)
    noise = spread[0] if isotropic else spread
    return Factors(array(data.mean(axis=0)), array(loadings), array(np.log(noise)))


def unit_start(entries: int, latents: int, seed: int, *, isotropic: bool) -> Factors:
    """What one writes without a look at the data: means 0, noise 1, small random loadings."""
    noise = np.zeros(() if isotropic else entries)
    return Factors(array(np.zeros(entries)), array(jitter(seed, entries, latents)), array(noise))


@cache
def _scikit_learn_table(name: str) -> np.ndarray:
    import sklearn.datasets

    return getattr(sklearn.datasets, f"load_{name}")().data


def profile_search(data: np.ndarray, latents: int, seeds: int = 6) -> float:
    """The supremum of factor analysis by Jöreskog's profile likelihood in the noises, ψ > e⁻¹⁸.

    With R the correlations, λ the eigenvalues of Ψ^-½ R Ψ^-½ in falling order,
    −2 log L / n = const + Σ log ψ_j + Σ_{i≤k} (log λ_i + 1) + Σ_{i>k} λ_i.
    """
    from scipy.optimize import minimize

    n, d = data.shape
    correlation = np.corrcoef(data.T)
    constant = -n / 2 * d * np.log(TWO_PI) - n * np.log(data.std(axis=0)).sum()

    def loss(log_noise: np.ndarray) -> tuple[float, np.ndarray]:
        noise = np.exp(log_noise)
        root = noise**-0.5
        values, vectors = np.linalg.eigh(correlation * np.outer(root, root))
        values, vectors = values[::-1], vectors[:, ::-1]
        top = np.maximum(values[:latents], 1)
        value = log_noise.sum() + (np.log(top) + values[:latents] / top).sum()
        loadings = vectors[:, :latents] * np.sqrt(top - 1) / root[:, None]
        inverse = np.linalg.inv(loadings @ loadings.T + np.diag(noise))
        slope = np.diag(inverse - inverse @ correlation @ inverse) * noise
        return n / 2 * (value + values[latents:].sum()), n / 2 * slope

    rng = np.random.default_rng(0)
    starts = [-np.log(np.diag(np.linalg.inv(correlation))), *rng.uniform(-3, 0, (seeds, d))]
    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-8}
    ends = [
        minimize(loss, s, jac=True, method="L-BFGS-B", bounds=[(-18, 2)] * d, options=options)
        for s in starts
    ]
    return constant - min(end.fun for end in ends)


def breast_cancer_factors(seed: int) -> Problem:
    """Factor analysis with two factors, 569 × 30, spreads from 0.003 to 570."""
    data = _scikit_learn_table("breast_cancer")
    return Problem(
        name="breast_cancer_factors",
        start=spread_start(data, 2, seed, isotropic=False),
        data=data,
        parameters=free_parameters(30, 2, 30),
        log_likelihood=Exact(factors_log_marginal, data),
        maximum=9224.115436,
        rival=_by_factor_analysis(data, 2),
        source="scikit-learn, load_breast_cancer; profile likelihood",
        recompute=lambda: profile_search(data, 2),
    )


def breast_cancer_components(seed: int) -> Problem:
    """Probabilistic PCA with four components, 569 × 30, spreads from 0.003 to 570."""
    data = _scikit_learn_table("breast_cancer")
    start = spread_start(data, 4, seed, isotropic=True)
    origin = "scikit-learn, load_breast_cancer"
    return _components("breast_cancer_components", data, 4, start, origin)


def diabetes_factors(seed: int) -> Problem:
    """Factor analysis with two factors, 442 × 10, all spreads 0.048.

    The likelihood rises as two noises go to zero (a Heywood case): `maximum` is its finite limit.
    """
    data = _scikit_learn_table("diabetes")
    return Problem(
        name="diabetes_factors",
        start=unit_start(10, 2, seed, isotropic=False),
        data=data,
        parameters=free_parameters(10, 2, 10),
        log_likelihood=Exact(factors_log_marginal, data),
        maximum=8407.62895,
        rival=_by_factor_analysis(data, 2),
        source="scikit-learn, load_diabetes; profile likelihood, a limit as two noises vanish",
        recompute=lambda: profile_search(data, 2, 20),
    )


def diabetes_components(seed: int) -> Problem:
    """Probabilistic PCA with three components, 442 × 10, all spreads 0.048."""
    data = _scikit_learn_table("diabetes")
    start = unit_start(10, 3, seed, isotropic=True)
    return _components("diabetes_components", data, 3, start, "scikit-learn, load_diabetes")


def digits_components(seed: int) -> Problem:
    """Probabilistic PCA with ten components, 1797 × 64, some pixels constant or nearly so."""
    data = _scikit_learn_table("digits")
    start = spread_start(data, 10, seed, isotropic=True)
    return _components("digits_components", data, 10, start, "scikit-learn, load_digits")


LADDER = {5: (500, 2), 20: (500, 3), 60: (1000, 5), 200: (1000, 5)}
"""Entries, and with how many observations and components."""


@cache
def ladder_data(entries: int, on_model: bool) -> np.ndarray:
    """Data from probabilistic PCA, or with tails of t₄, unequal spreads and correlated noise."""
    n, latents = LADDER[entries]
    rng = np.random.default_rng(entries + 1000 * on_model)
    mean, loadings = rng.standard_normal(entries), rng.standard_normal((entries, latents))
    z, noise = rng.standard_normal((n, latents)), rng.standard_normal((n, entries))
    loadings *= np.linspace(1.5, 0.75, latents)
    if on_model:
        return mean + z @ loadings.T + 0.7 * noise
    tails = np.sqrt(4 / rng.chisquare(4, (n, 1)))
    spreads = np.exp(rng.uniform(np.log(0.02), np.log(3), entries))
    noise[:, 1:] = 0.6 * noise[:, :-1] + 0.8 * noise[:, 1:]
    return mean + tails * spreads * (z @ loadings.T + 0.7 * noise)


def ladder(entries: int, *, on_model: bool) -> Callable[[int], Problem]:
    """Probabilistic PCA of simulated data with so many entries, on the model or off it."""
    name = f"ladder_{entries}_{'on' if on_model else 'off'}"

    def problem(seed: int) -> Problem:
        latents = LADDER[entries][1]
        start = unit_start(entries, latents, seed, isotropic=True)
        data = ladder_data(entries, on_model)
        return _components(name, data, latents, start, "simulated")

    problem.__doc__ = ladder.__doc__
    problem.__name__ = name
    return problem


class RandomSlopes(eqx.Module):
    """(a, b) ~ N(fixed, Σ), x_t | a, b ~ N(a + b t, noise²) on days t = 0 … 9."""

    fixed: Float[Array, " 2"]
    log_spreads: Float[Array, " 2"]
    correlation: Float[Array, ""]  # through tanh
    log_noise: Float[Array, ""]

    @property
    def covariance(self):
        spreads, correlation = jnp.exp(self.log_spreads), jnp.tanh(self.correlation)
        ones = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        return jnp.outer(spreads, spreads) * (ones + correlation * (1 - ones))

    def sample_latent(self, key):
        return jax.random.multivariate_normal(key, self.fixed, self.covariance)

    def log_prior(self, z):
        return multivariate_normal.logpdf(z, self.fixed, self.covariance)

    def likelihood(self, z):
        return Gaussian(z[0] + z[1] * jnp.arange(10.0), jnp.exp(self.log_noise))


def random_slopes_log_marginal(model: RandomSlopes, x: Array) -> Array:
    """log N(x; D fixed, D Σ Dᵀ + noise² I), D the ones beside the days."""
    design = jnp.stack([jnp.ones(10), jnp.arange(10.0)], axis=1)
    noise = jnp.exp(2 * model.log_noise) * jnp.eye(10)
    return gaussian(x, design @ model.fixed, design @ model.covariance @ design.T + noise)


def sleepstudy(seed: int) -> Problem:
    """Reaction times over ten days without sleep, random intercept and slope: −875.970 (lme4)."""
    data = table("sleepstudy")[:, 1:]
    exact = Exact(random_slopes_log_marginal, data)

    def make(seed: int) -> RandomSlopes:
        noise = jitter(seed, 6, scale=0.2 if seed else 0.0)
        return RandomSlopes(
            array(np.array([300.0, 0.0]) + noise[:2]),
            array(np.log([50.0, 10.0]) + noise[2:4]),
            array(noise[4]),
            array(np.log(50.0) + noise[5]),
        )

    return Problem(
        name="sleepstudy",
        start=make(0),
        data=data,
        parameters=6,
        log_likelihood=exact,
        maximum=-875.969672,
        rival=by_scipy(exact, make(0), "closed form"),
        source=source("sleepstudy") + "; lme4's maximum likelihood fit, deviance 1751.94",
        recompute=best_of(exact, make, 3),
    )


class Replicates(eqx.Module):
    """A quantity z ~ N(mean, spread²) measured twice, and a response that is linear in it.

    x₁, x₂ | z ~ N(z, error²), x₃ | z ~ N(a + b z, residual²).
    """

    mean: Float[Array, ""]
    log_spread: Float[Array, ""]
    log_error: Float[Array, ""]
    line: Float[Array, " 2"]
    log_residual: Float[Array, ""]

    def sample_latent(self, key):
        return self.mean + jnp.exp(self.log_spread) * jax.random.normal(key)

    def log_prior(self, z):
        return norm.logpdf(z, self.mean, jnp.exp(self.log_spread))

    def likelihood(self, z):
        means = jnp.stack([z, z, self.line[0] + self.line[1] * z])
        scales = jnp.stack([self.log_error, self.log_error, self.log_residual])
        return Gaussian(means, jnp.exp(scales))


def replicates_log_marginal(model: Replicates, x: Array) -> Array:
    """log N(x; c + l mean, l lᵀ spread² + noise), l = (1, 1, b) and c = (0, 0, a)."""
    loading = jnp.array([1.0, 1.0, 0.0]).at[2].set(model.line[1])
    offset = jnp.zeros(3).at[2].set(model.line[0])
    noise = jnp.stack([model.log_error, model.log_error, model.log_residual])
    covariance = jnp.exp(2 * model.log_spread) * jnp.outer(loading, loading)
    mean = offset + loading * model.mean
    return gaussian(x, mean, covariance + jnp.diag(jnp.exp(2 * noise)))


def replicates(seed: int) -> Problem:
    """Errors in variables. Six moments, six parameters: the fit has the moments of the data.

    So the maximum is −n/2 (3 log 2π + log|S| + 3), S the covariance made the same for x₁ and x₂.
    """
    rng = np.random.default_rng(31)
    z, noise = 4 + 1.5 * rng.standard_normal(300), rng.standard_normal((300, 3))
    data = np.stack([z, z, 2 - 0.8 * z], axis=1) + noise * [0.8, 0.8, 0.5]
    exact = Exact(replicates_log_marginal, data)
    both = np.concatenate([data, data[:, [1, 0, 2]]])
    maximum = -150 * (3 * np.log(TWO_PI) + np.linalg.slogdet(np.cov(both.T, bias=True))[1] + 3)

    def make(seed: int) -> Replicates:
        noise = jitter(seed, 6, scale=0.2 if seed else 0.0)
        return Replicates(
            array(noise[0]),
            array(noise[1]),
            array(noise[2]),
            array(np.array([0.0, 1.0]) + noise[3:5]),
            array(noise[5]),
        )

    return Problem(
        name="replicates",
        start=make(0),
        data=data,
        parameters=6,
        log_likelihood=exact,
        maximum=float(maximum),
        rival=by_scipy(exact, make(0), "closed form"),
        source="simulated; closed-form maximum",
        recompute=best_of(exact, make, 3),
    )


STEPS = 12


class Walk(eqx.Module):
    """z_1 ~ N(mean, spread²), z_t ~ N(z_{t−1}, step²), x_t ~ N(z_t, noise²), t = 1 … 12."""

    mean: Float[Array, ""]
    log_spread: Float[Array, ""]
    log_step: Float[Array, ""]
    log_noise: Float[Array, ""]

    def sample(self, key):
        first_key, walk_key, noise_key = jax.random.split(key, 3)
        first = self.mean + jnp.exp(self.log_spread) * jax.random.normal(first_key)
        steps = jnp.exp(self.log_step) * jax.random.normal(walk_key, (STEPS - 1,))
        z = jnp.concatenate([first[None], first + jnp.cumsum(steps)])
        return z, z + jnp.exp(self.log_noise) * jax.random.normal(noise_key, (STEPS,))

    def log_joint(self, z, x):
        first = norm.logpdf(z[0], self.mean, jnp.exp(self.log_spread))
        walk = norm.logpdf(jnp.diff(z), 0, jnp.exp(self.log_step)).sum()
        return first + walk + norm.logpdf(x, z, jnp.exp(self.log_noise)).sum()


def walk_log_marginal(model: Walk, x: Array) -> Array:
    """log N(x; mean, spread² + step² min(s, t) + noise² I)."""
    t = jnp.arange(float(STEPS))
    covariance = jnp.exp(2 * model.log_spread) + jnp.exp(2 * model.log_step) * jnp.minimum(
        t[:, None], t
    )
    return gaussian(
        x, jnp.full(STEPS, model.mean), covariance + jnp.exp(2 * model.log_noise) * jnp.eye(STEPS)
    )


def walks(seed: int) -> Problem:
    """A hundred and fifty random walks of twelve steps, seen through noise."""
    rng = np.random.default_rng(32)
    first, steps = 2 + 1.5 * rng.standard_normal((150, 1)), rng.standard_normal((150, STEPS - 1))
    z = np.concatenate([first, first + np.cumsum(0.6 * steps, axis=1)], axis=1)
    data = z + 0.4 * rng.standard_normal(z.shape)
    exact = Exact(walk_log_marginal, data)

    def make(seed: int) -> Walk:
        return Walk(*(array(n) for n in jitter(seed, 4, scale=0.3 if seed else 0.0)))

    return Problem(
        name="walks",
        start=make(0),
        data=data,
        parameters=4,
        log_likelihood=exact,
        maximum=-2288.740881,
        rival=by_scipy(exact, make(0), "closed form"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )
