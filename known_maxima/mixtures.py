"""Finite mixtures: z is the component, p(x) = Σ_k π_k p(x | k); in one case a factor with it."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from alws.likelihoods import Gamma, Gaussian, Poisson
from known_maxima.base import Exact, Problem, Rival, array, best_of, by_scipy, gaussian, jitter
from known_maxima.tables import repeated, source, table


class Mixture1D(eqx.Module):
    """z ~ Categorical(softmax(logits)), x | z ~ N(means[z], exp(2 log_scales[z])), x a number."""

    logits: Float[Array, " k"]
    means: Float[Array, " k"]
    log_scales: Float[Array, " k"]

    def sample_latent(self, key):
        return jax.random.categorical(key, self.logits)

    def log_prior(self, z):
        return jax.nn.log_softmax(self.logits)[z]

    def likelihood(self, z):
        return Gaussian(self.means[z], jnp.exp(self.log_scales[z]))


def mixture_1d_log_marginal(model: Mixture1D, x: Array) -> Array:
    """log Σ_k π_k N(x; m_k, s_k²)."""
    densities = norm.logpdf(x, model.means, jnp.exp(model.log_scales))
    return logsumexp(jax.nn.log_softmax(model.logits) + densities)


class MixtureOfGaussians(eqx.Module):
    """Full covariances L Lᵀ, L the lower triangle of `factors` with its diagonal on a log scale."""

    logits: Float[Array, " k"]
    means: Float[Array, "k d"]
    factors: Float[Array, "k d d"]

    def cholesky(self, z):
        factor = self.factors[z]
        return jnp.tril(factor, -1) + jnp.diag(jnp.exp(jnp.diagonal(factor)))

    def sample(self, key):
        component_key, noise_key = jax.random.split(key)
        z = jax.random.categorical(component_key, self.logits)
        noise = jax.random.normal(noise_key, self.means.shape[1:])
        return z, self.means[z] + self.cholesky(z) @ noise

    def log_joint(self, z, x):
        factor = self.cholesky(z)
        white = jax.scipy.linalg.solve_triangular(factor, x - self.means[z], lower=True)
        log_det = jnp.log(jnp.diagonal(factor)).sum()
        return jax.nn.log_softmax(self.logits)[z] + norm.logpdf(white).sum() - log_det


def mixture_log_marginal(model: MixtureOfGaussians, x: Array) -> Array:
    """log Σ_k π_k N(x; m_k, L_k L_kᵀ)."""
    logs = [
        gaussian(x, mean, factor @ factor.T)
        for mean, factor in zip(
            model.means, [model.cholesky(k) for k in range(len(model.means))], strict=True
        )
    ]
    return logsumexp(jax.nn.log_softmax(model.logits) + jnp.stack(logs))


def mixture_start(data: np.ndarray, components: int, seed: int) -> MixtureOfGaussians:
    """Means at observations drawn at random, the spreads of the columns, no correlations."""
    chosen = np.random.default_rng(seed).choice(len(data), components, replace=False)
    spreads = np.diag(np.log(data.std(axis=0)))
    return MixtureOfGaussians(
        array(np.zeros(components)), array(data[chosen]), array(np.stack([spreads] * components))
    )


def _by_scikit_learn(data: np.ndarray, components: int, starts: int = 1) -> Rival:
    def run() -> tuple[str, float]:
        from sklearn.mixture import GaussianMixture

        fitted = GaussianMixture(components, n_init=starts, random_state=0).fit(data)
        return "scikit-learn GaussianMixture", float(fitted.score_samples(data).sum())

    return run


def em_of_many(data: np.ndarray, components: int, starts: int) -> float:
    """The best of so many runs of scikit-learn's EM to the end, collapsed ones left out.

    The likelihood has no upper bound: a component may shrink onto values that occur repeatedly. A
    run counts as collapsed if, in units of the columns, a covariance has an eigenvalue below 1e-3.
    """
    from sklearn.mixture import GaussianMixture

    spread, best = data.std(axis=0), -np.inf
    scaled = data / spread
    for seed in range(starts):
        kind = "random_from_data" if seed % 2 else "kmeans"
        em = GaussianMixture(
            components,
            tol=1e-10,
            max_iter=5000,
            reg_covar=1e-9,
            init_params=kind,
            random_state=seed,
        ).fit(scaled)
        if np.linalg.eigvalsh(np.asarray(em.covariances_)).min() > 1e-3:
            best = max(best, em.score_samples(scaled).sum() - len(data) * np.log(spread).sum())
    return float(best)


def _full_mixture(
    name: str, data: np.ndarray, components: int, seed: int, maximum: float, origin: str
) -> Problem:
    d = data.shape[1]
    return Problem(
        name=name,
        start=mixture_start(data, components, seed),
        data=data,
        parameters=components * (1 + d + d * (d + 1) // 2) - 1,
        log_likelihood=Exact(mixture_log_marginal, data),
        maximum=maximum,
        rival=_by_scikit_learn(data, components),
        source=origin,
        recompute=lambda: em_of_many(data, components, 30),
    )


def faithful_waiting(seed: int) -> Problem:
    """Waiting times at Old Faithful, two Gaussians: −1034.002."""
    data = table("faithful")[:, 1]
    exact = Exact(mixture_1d_log_marginal, data)

    def make(seed: int) -> Mixture1D:
        chosen = np.random.default_rng(seed).choice(data, 2, replace=False)
        return Mixture1D(array([0.0, 0.0]), array(chosen), array(np.full(2, np.log(data.std()))))

    return Problem(
        name="faithful_waiting",
        start=make(seed),
        data=data,
        parameters=5,
        log_likelihood=exact,
        maximum=-1034.001750,
        rival=_by_scikit_learn(data[:, None], 2),
        source=source("faithful") + "; R package mixtools, normalmixEM",
        recompute=best_of(exact, make, 5),
    )


def faithful(seed: int) -> Problem:
    """Eruptions and waiting times, two full Gaussians: −1130.264."""
    origin = source("faithful") + "; R package mclust, model VVV with two components"
    return _full_mixture("faithful", table("faithful"), 2, seed, -1130.263960, origin)


def penguins(seed: int) -> Problem:
    """Bill length and depth, flipper length and body mass of 342 penguins, three full Gaussians."""
    origin = source("penguins") + "; scikit-learn's EM from many starts"
    return _full_mixture("penguins", table("penguins"), 3, seed, -5150.688084, origin)


class PoissonMixture(eqx.Module):
    """z ~ Categorical(softmax(logits)), x | z ~ Poisson(exp(log_rates[z]))."""

    logits: Float[Array, " k"]
    log_rates: Float[Array, " k"]

    def sample_latent(self, key):
        return jax.random.categorical(key, self.logits)

    def log_prior(self, z):
        return jax.nn.log_softmax(self.logits)[z]

    def likelihood(self, z):
        return Poisson(self.log_rates[z])


def poisson_mixture_log_marginal(model: PoissonMixture, x: Array) -> Array:
    """log Σ_k π_k Poisson(x; r_k)."""
    logs = x * model.log_rates - jnp.exp(model.log_rates) - gammaln(x + 1)
    return logsumexp(jax.nn.log_softmax(model.logits) + logs)


def _by_svi(counts: np.ndarray, exact: Exact) -> Rival:
    """NumPyro's SVI with the component summed out by `MixtureSameFamily`."""

    def run() -> tuple[str, float]:
        import numpyro
        import numpyro.distributions as dist
        from numpyro.infer import SVI, Trace_ELBO

        def program(x):
            logits = numpyro.param("logits", jnp.zeros(2))
            rates = numpyro.param(
                "rates", jnp.array([1.0, 4.0]), constraint=dist.constraints.positive
            )
            mixed = dist.MixtureSameFamily(dist.Categorical(logits=logits), dist.Poisson(rates))
            with numpyro.plate("days", len(x)):
                numpyro.sample("x", mixed, obs=x)

        svi = SVI(program, lambda x: None, numpyro.optim.Adam(0.01), Trace_ELBO())
        found = svi.run(jax.random.key(0), 3000, jnp.asarray(counts), progress_bar=False).params
        fitted = PoissonMixture(found["logits"], jnp.log(found["rates"]))
        return "NumPyro SVI, component summed out", exact(fitted)

    return run


def deaths(seed: int) -> Problem:
    """Deaths of women over 80 in The Times, two Poissons (Hasselblad 1969): −1989.946."""
    data = repeated("deaths")[:, 0]
    exact = Exact(poisson_mixture_log_marginal, data)

    def make(seed: int) -> PoissonMixture:
        return PoissonMixture(array([0.0, 0.0]), array(np.log([1.0, 4.0]) + jitter(seed, 2)))

    return Problem(
        name="deaths",
        start=make(seed),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-1989.945860,
        rival=_by_svi(data, exact),
        source=source("deaths") + "; Lange, Numerical Analysis for Statisticians",
        recompute=best_of(exact, make, 3),
    )


class BinomialMixture(eqx.Module):
    """z ~ Categorical(softmax(logits)), x | z ~ Binomial(5, sigmoid(chances[z]))."""

    logits: Float[Array, " k"]
    chances: Float[Array, " k"]

    def sample(self, key):
        component_key, score_key = jax.random.split(key)
        z = jax.random.categorical(component_key, self.logits)
        right = jax.random.bernoulli(score_key, jax.nn.sigmoid(self.chances[z]), (5,))
        return z, right.sum().astype(self.chances.dtype)

    def log_joint(self, z, x):
        ways = gammaln(6.0) - gammaln(x + 1) - gammaln(6 - x)
        binomial = ways + x * self.chances[z] - 5 * jax.nn.softplus(self.chances[z])
        return jax.nn.log_softmax(self.logits)[z] + binomial


def binomial_mixture_log_marginal(model: BinomialMixture, x: Array) -> Array:
    """log Σ_k π_k Binomial(x; 5, p_k)."""
    ways = gammaln(6.0) - gammaln(x + 1) - gammaln(6 - x)
    logs = x * jax.nn.log_sigmoid(model.chances) + (5 - x) * jax.nn.log_sigmoid(-model.chances)
    return ways + logsumexp(jax.nn.log_softmax(model.logits) + logs)


def scores(seed: int) -> Problem:
    """How many of the five items of LSAT-7 were right, two binomials."""
    data = repeated("lsat7").sum(axis=1)
    exact = Exact(binomial_mixture_log_marginal, data)

    def make(seed: int) -> BinomialMixture:
        return BinomialMixture(array([0.0, 0.0]), array(np.array([-1.0, 1.0]) + jitter(seed, 2)))

    return Problem(
        name="scores",
        start=make(seed),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-1482.911974,
        rival=by_scipy(exact, make(seed), "exact sum"),
        source=source("lsat7"),
        recompute=best_of(exact, make, 5),
    )


class Survival(eqx.Module):
    """z ~ Bernoulli(sigmoid(frail)), x | z ~ Exponential with mean exp(log_means[z])."""

    frail: Float[Array, ""]
    log_means: Float[Array, " 2"]

    def sample_latent(self, key):
        return jax.random.bernoulli(key, jax.nn.sigmoid(self.frail)).astype(int)

    def log_prior(self, z):
        return jax.nn.log_sigmoid(jnp.where(z == 1, self.frail, -self.frail))

    def likelihood(self, z):
        return Gamma(1.0, jnp.exp(-self.log_means[z]))


def survival_log_marginal(model: Survival, x: Array) -> Array:
    """log Σ_k π_k exp(−x / m_k) / m_k."""
    weights = jax.nn.log_sigmoid(jnp.stack([-model.frail, model.frail]))
    return logsumexp(weights - model.log_means - x * jnp.exp(-model.log_means))


def survival(seed: int) -> Problem:
    """Four hundred survival times, two exponentials with means 10 and 1."""
    rng = np.random.default_rng(21)
    means = np.where(rng.random(400) < 0.4, 1.0, 10.0)
    data = -means * np.log1p(-rng.random(400))
    exact = Exact(survival_log_marginal, data)

    def make(seed: int) -> Survival:
        about = np.log(data.mean()) + np.array([0.5, -0.5])
        return Survival(array(0.0), array(about + jitter(seed, 2)))

    return Problem(
        name="survival",
        start=make(seed),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-1049.860612,
        rival=by_scipy(exact, make(seed), "exact sum"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class FactorAnalysers(eqx.Module):
    """k ~ Categorical(softmax(logits)), f ~ N(0, 1), x | k, f ~ N(means_k + loadings_k f, noise²).

    One noise for each entry, the same in all components.
    """

    logits: Float[Array, " k"]
    means: Float[Array, "k d"]
    loadings: Float[Array, "k d"]
    log_noise: Float[Array, " d"]

    def sample_latent(self, key):
        component_key, factor_key = jax.random.split(key)
        return {
            "component": jax.random.categorical(component_key, self.logits),
            "factor": jax.random.normal(factor_key),
        }

    def log_prior(self, z):
        return jax.nn.log_softmax(self.logits)[z["component"]] + norm.logpdf(z["factor"])

    def likelihood(self, z):
        k = z["component"]
        return Gaussian(self.means[k] + z["factor"] * self.loadings[k], jnp.exp(self.log_noise))


def factor_analysers_log_marginal(model: FactorAnalysers, x: Array) -> Array:
    """log Σ_k π_k N(x; m_k, l_k l_kᵀ + Ψ)."""
    noise = jnp.diag(jnp.exp(2 * model.log_noise))
    logs = [
        gaussian(x, mean, jnp.outer(loading, loading) + noise)
        for mean, loading in zip(model.means, model.loadings, strict=True)
    ]
    return logsumexp(jax.nn.log_softmax(model.logits) + jnp.stack(logs))


@cache
def _iris() -> np.ndarray:
    from sklearn.datasets import load_iris

    return np.asarray(load_iris(return_X_y=True)[0])


@cache
def _iris_centres() -> np.ndarray:
    from sklearn.cluster import KMeans

    return KMeans(2, random_state=0).fit(_iris()).cluster_centers_


def iris(seed: int) -> Problem:
    """Fisher's irises, two factor analysers of one factor each with a common noise, 150 × 4.

    The start has its means where k-means puts them: there are many poor maxima.
    """
    data = _iris()
    exact = Exact(factor_analysers_log_marginal, data)

    spread = data.std(axis=0)

    def make(seed: int) -> FactorAnalysers:
        return FactorAnalysers(
            array([0.0, 0.0]),
            array(_iris_centres()),
            array(spread * jitter(seed, 2, 4, scale=0.3)),
            array(np.log(spread)),
        )

    return Problem(
        name="iris",
        start=make(seed),
        data=data,
        parameters=21,
        log_likelihood=exact,
        maximum=-262.034945,
        rival=by_scipy(exact, make(seed), "closed form"),
        source="scikit-learn, load_iris; the best of many starts",
        recompute=best_of(exact, make, 3),
    )
