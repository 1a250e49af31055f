"""Groups of rows with covariates of their own: random intercepts, random slopes, regressed counts.

Each model takes the rows of its group, made by `alws.groups`, as its condition.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import log_sigmoid
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import gamma as gamma_distribution
from jax.scipy.stats import norm, poisson
from jaxtyping import Array, Float
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import alws
from alws.likelihoods import Bernoulli, Binomial, Gaussian, Likelihood, Poisson
from known_maxima.base import (
    Exact,
    Problem,
    Rival,
    array,
    best_of,
    by_scipy,
    gaussian,
    jitter,
    normal_grid,
)
from known_maxima.tables import columns, large, source, table


class RandomIntercept(eqx.Module):
    """z ~ N(0, 1), the linear predictor of row i β₀ + x_i·β + exp(log_spread) z.

    That is a logit or, with `family="poisson"`, a log rate. Of "binomial" rows the first covariate
    is the number of trials.
    """

    coefficients: Float[Array, " p"]
    log_spread: Float[Array, ""]
    family: str = eqx.field(static=True)

    def sample_latent(self, key: Any, rows: alws.Rows) -> Array:
        return jax.random.normal(key)

    def log_prior(self, z: Array, rows: alws.Rows) -> Array:
        return norm.logpdf(z)

    def likelihood(self, z: Array, rows: alws.Rows) -> Likelihood:
        used = rows.order[self.family == "binomial" :]
        fixed = self.coefficients[0] + rows.design(*used) @ self.coefficients[1:]
        predictor = fixed + jnp.exp(self.log_spread) * z
        if self.family == "binomial":
            return Binomial(rows[rows.order[0]], predictor, mask=rows.observed)
        kind = Bernoulli if self.family == "bernoulli" else Poisson
        return kind(predictor, mask=rows.observed)


def random_intercept_log_marginal(model: RandomIntercept, group: tuple[Array, Any]) -> Array:
    """log ∫ N(z; 0, 1) Π_i p(x_i | z) dz, by the trapezoidal rule."""
    x, rows = group
    z, weights = normal_grid(801)
    return logsumexp(weights + jax.vmap(lambda z: model.likelihood(z, rows).log_prob(x))(z))


def _by_guide(start: Any, grouped: Any, exact: Exact) -> Rival:
    """NumPyro's SVI with independent normals as guide for each group's latent, N(0, I) before."""
    shape = start.sample_latent(jax.random.key(0), None).shape

    def prior(model: Any) -> dist.Distribution:
        return dist.Normal(jnp.zeros(shape), 1.0).to_event(len(shape))

    def log_x(model: Any, z: Array, x: Array, rows: alws.Rows) -> Array:
        return model.likelihood(z, rows).log_prob(x)

    return _by_svi("NumPyro SVI, normal guide", start, grouped, exact, prior, log_x)


def _by_svi(
    name: str,
    start: Any,
    grouped: Any,
    exact: Exact,
    prior: Callable[[Any], dist.Distribution] | None,
    log_x: Callable[..., Array],
) -> Rival:
    """NumPyro's SVI from log p(x | z) and the prior of each group's z, None if there is no z.

    The guide is normal for each z, or for its logarithm where z is positive.
    """

    def run() -> tuple[str, float]:
        theta, rest = eqx.partition(start, eqx.is_inexact_array)
        x, rows = jnp.asarray(grouped.data), grouped.conditions

        def program() -> None:
            found = jax.tree.map(jnp.asarray, numpyro.param("theta", theta))
            model = eqx.combine(found, rest)
            with numpyro.plate("groups", len(x)):
                z = jnp.zeros(len(x)) if prior is None else numpyro.sample("z", prior(model))
                numpyro.factor("x", jax.vmap(log_x, (None, 0, 0, 0))(model, z, x, rows))

        guide = (lambda: None) if prior is None else AutoNormal(program)
        svi = SVI(program, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
        found = svi.run(jax.random.key(0), 4000, progress_bar=False).params["theta"]
        return name, exact(eqx.combine(found, rest))

    return run


def _by_bayes_mixed(start: Any, grouped: Any, exact: Exact) -> Rival:
    """statsmodels' mixed model of this family: variational Bayes under very wide priors.

    Covariates are standardised, and a binomial row is as many Bernoulli rows as it has trials.
    """

    def run() -> tuple[str, float]:
        from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM, PoissonBayesMixedGLM

        rows, there = grouped.conditions, np.asarray(grouped.conditions.observed)
        used = rows.order[start.family == "binomial" :]
        design = np.asarray(rows.design(*used), float)[there]
        y, group = grouped.data[there], np.nonzero(there)[0]
        if start.family == "binomial":
            trials = np.asarray(rows[rows.order[0]])[there].astype(int)
            each = np.repeat(np.arange(len(y)), trials)
            nth = np.arange(len(each)) - np.repeat(np.cumsum(trials) - trials, trials)
            y, design, group = (nth < y[each]).astype(float), design[each], group[each]
        kind = PoissonBayesMixedGLM if start.family == "poisson" else BinomialBayesMixedGLM
        mean, scale = design.mean(axis=0), design.std(axis=0)
        fixed = np.column_stack([np.ones(len(y)), (design - mean) / scale])
        effects, same = np.eye(len(grouped.names))[group], np.zeros(len(grouped.names), int)
        found = kind(y, fixed, effects, same, vcp_p=10, fe_p=100).fit_vb()
        slopes = found.fe_mean[1:] / scale
        coefficients = array([found.fe_mean[0] - mean @ slopes, *slopes])
        fitted = RandomIntercept(coefficients, array(found.vcp_mean[0]), start.family)
        return f"statsmodels {kind.__name__}", exact(fitted)

    return run


def _intercepts(
    name: str, grouped: Any, family: str, seed: int, maximum: float, origin: str
) -> Problem:
    """Random intercepts for the groups of a table."""
    terms = len(grouped.coefficients) + (family != "binomial")
    exact = Exact(random_intercept_log_marginal, (grouped.data, grouped.conditions))

    def make(seed: int) -> RandomIntercept:
        noise = jitter(seed, terms + 1, scale=0.1 if seed else 0.0)
        return RandomIntercept(array(noise[:-1]), array(noise[-1]), family)

    return Problem(
        name=name,
        start=make(seed),
        data=grouped.data,
        parameters=terms + 1,
        log_likelihood=exact,
        maximum=maximum,
        rival=by_scipy(exact, make(0), "quadrature"),
        source=origin,
        recompute=best_of(exact, make, 3),
        conditions=grouped.conditions,
        others=(_by_bayes_mixed(make(0), grouped, exact), _by_guide(make(0), grouped, exact)),
    )


def cattle(seed: int) -> Problem:
    """New cases among cattle, a random intercept for each of 15 herds: −91.98337 (lme4)."""
    found = columns("cbpp")
    grouped = alws.groups(
        found, by="herd", outcome="cases", covariates=["size", "period"], levels="period"
    )
    return _intercepts("cattle", grouped, "binomial", seed, -91.983368, source("cbpp"))


def bacteria(seed: int) -> Problem:
    """Bacteria found in 50 children at up to five visits, a random intercept for each: −95.897."""
    found = columns("bacteria")
    found["late"] = found["week"] > 2
    covariates = ["treatment", "late"]
    grouped = alws.groups(
        found, by="child", outcome="present", covariates=covariates, levels="treatment"
    )
    return _intercepts("bacteria", grouped, "bernoulli", seed, -95.897057, source("bacteria"))


def _contraception(seed: int, name: str, by: list[str], maximum: float) -> Problem:
    found = large("Contraception")
    found["use"] = found["use"] == "Y"
    found["age²"] = found["age"] ** 2
    covariates = ["age", "age²", "urban", "livch"]
    grouped = alws.groups(found, by=by, outcome="use", covariates=covariates)
    origin = "R package mlmRev, Contraception: use of contraceptives by 1934 women in Bangladesh"
    return _intercepts(name, grouped, "bernoulli", seed, maximum, origin)


def contraception(seed: int) -> Problem:
    """Use by 1934 women, a random intercept for the urban and the rural part of each district.

    −2 log L = 2360.876 by seven-point adaptive quadrature.
    """
    return _contraception(seed, "contraception", ["urban", "district"], -1180.438005)


def contraception_districts(seed: int) -> Problem:
    """The same with one random intercept for each of 60 districts, of 2 to 118 women."""
    return _contraception(seed, "contraception_districts", ["district"], -1186.229443)


def seizure_rates(seed: int) -> Problem:
    """Seizures of 59 patients, regressed on treatment, baseline, age and the last period."""
    patients, counts = columns("epil_patients"), table("epil")[:, 1:]
    long = {name: np.repeat(column, 4) for name, column in patients.items()}
    for name, of in (("log_base", "base"), ("log_age", "age")):
        log = np.log(patients[of])
        long[name] = np.repeat(log - log.mean(), 4)
    long["treated_log_base"] = long["treatment"] * long["log_base"]
    long["last"], long["seizures"] = np.tile([0.0, 0, 0, 1], len(counts)), counts.ravel()
    covariates = ["log_base", "treatment", "log_age", "last", "treated_log_base"]
    grouped = alws.groups(long, by="subject", outcome="seizures", covariates=covariates)
    return _intercepts("seizure_rates", grouped, "poisson", seed, -665.406569, source("epil"))


class ZeroInflatedRegression(eqx.Module):
    """z ~ Bernoulli(sigmoid(x·never)); the count is 0 if z, else Poisson(exp(x·rate))."""

    never: Float[Array, " p"]
    rate: Float[Array, " p"]

    def predictors(self, rows: alws.Rows) -> tuple[Array, Array]:
        """Logit of never publishing, and log rate, of the one row there is."""
        x = jnp.concatenate([jnp.ones(1), rows.design()[0]])
        return x @ self.never, x @ self.rate

    def sample(self, key: Any, rows: alws.Rows) -> tuple[Array, Array]:
        never, log_rate = self.predictors(rows)
        gate_key, count_key = jax.random.split(key)
        z = jax.random.bernoulli(gate_key, jax.nn.sigmoid(never))
        count = jax.random.poisson(count_key, jnp.exp(log_rate))
        return z, jnp.where(z, 0, count).astype(float)[None]

    def log_joint(self, z: Array, x: Array, rows: alws.Rows) -> Array:
        never, log_rate = self.predictors(rows)
        nothing = jnp.where(x[0] == 0, 0.0, -jnp.inf)
        count = poisson.logpmf(x[0], jnp.exp(log_rate))
        return jnp.where(z, log_sigmoid(never) + nothing, log_sigmoid(-never) + count)


def zero_inflated_regression_log_marginal(
    model: ZeroInflatedRegression, group: tuple[Array, Any]
) -> Array:
    """log(π 1[x = 0] + (1 − π) Poisson(x; r))."""
    (x,), rows = group
    never, log_rate = model.predictors(rows)
    some = log_sigmoid(-never) + x * log_rate - jnp.exp(log_rate) - gammaln(x + 1)
    return jnp.where(x == 0, jnp.logaddexp(log_sigmoid(never), some), some)


class GammaPoissonRegression(eqx.Module):
    """z ~ Gamma(shape, shape), the count Poisson(z exp(x·rate)): negative binomial."""

    rate: Float[Array, " p"]
    log_shape: Float[Array, ""]

    def log_rate(self, rows: alws.Rows) -> Float[Array, " 1"]:
        """Of the one row there is, before z."""
        return self.rate[0] + rows.design() @ self.rate[1:]

    def sample_latent(self, key: Any, rows: alws.Rows) -> Array:
        return jnp.exp(jax.random.loggamma(key, jnp.exp(self.log_shape)) - self.log_shape)

    def log_prior(self, z: Array, rows: alws.Rows) -> Array:
        shape = jnp.exp(self.log_shape)
        return gamma_distribution.logpdf(z, shape, scale=1 / shape)

    def likelihood(self, z: Array, rows: alws.Rows) -> Likelihood:
        return Poisson(self.log_rate(rows) + jnp.log(z), mask=rows.observed)


def gamma_poisson_regression_log_marginal(
    model: GammaPoissonRegression, group: tuple[Array, Any]
) -> Array:
    """log Γ(x+k) − log Γ(k) − log x! + k log(k/(k+m)) + x log(m/(k+m))."""
    (x,), rows = group
    k, log_mean = jnp.exp(model.log_shape), model.log_rate(rows)[0]
    both = jnp.logaddexp(model.log_shape, log_mean)
    powers = k * (model.log_shape - both) + x * (log_mean - both)
    return gammaln(x + k) - gammaln(k) - gammaln(x + 1) + powers


def _doctorates() -> Any:
    """Articles of 915 people with all regressors, each person a group of one row."""
    found = large("bioChemists")
    found["person"] = np.arange(len(found["art"]))
    covariates = ["fem", "mar", "kid5", "phd", "ment"]
    return alws.groups(found, by="person", outcome="art", covariates=covariates)


def _gamma(model: Any) -> dist.Distribution:
    """Of the effect of each person."""
    shape = jnp.exp(model.log_shape)
    return dist.Gamma(shape, shape)


def _by_statsmodels(grouped: Any, kind: str) -> Rival:
    def run() -> tuple[str, float]:
        import statsmodels.api as sm

        x = sm.add_constant(np.asarray(grouped.conditions.design()[:, 0], float))
        y = grouped.data[:, 0]
        parts = {"exog_infl": x} if kind.startswith("ZeroInflated") else {}
        fitted = getattr(sm, kind)(y, x, **parts).fit(disp=0, maxiter=500)
        return f"statsmodels {kind}", float(fitted.llf)

    return run


DOCTORATES = "R package pscl, bioChemists: articles of 915 doctoral students, all regressors"


def doctorates_zero_inflated(seed: int) -> Problem:
    """Zero-inflated Poisson with all regressors in both parts: −1604.773 (pscl)."""
    grouped = _doctorates()
    exact = Exact(zero_inflated_regression_log_marginal, (grouped.data, grouped.conditions))

    def make(seed: int) -> ZeroInflatedRegression:
        noise = jitter(seed, 2, 6, scale=0.05 if seed else 0.0)
        return ZeroInflatedRegression(array(noise[0]), array(noise[1]))

    def log_x(model: Any, z: Array, x: Array, rows: alws.Rows) -> Array:
        return zero_inflated_regression_log_marginal(model, (x, rows))

    by_svi = _by_svi("NumPyro SVI, z summed", make(0), grouped, exact, None, log_x)
    return Problem(
        name="doctorates_zero_inflated",
        start=make(seed),
        data=grouped.data,
        parameters=12,
        log_likelihood=exact,
        maximum=-1604.772853,
        rival=_by_statsmodels(grouped, "ZeroInflatedPoisson"),
        source=DOCTORATES,
        recompute=best_of(exact, make, 3),
        conditions=grouped.conditions,
        others=(by_scipy(exact, make(0), "closed form"), by_svi),
    )


def doctorates_negative_binomial(seed: int) -> Problem:
    """Negative binomial with all regressors."""
    grouped = _doctorates()
    exact = Exact(gamma_poisson_regression_log_marginal, (grouped.data, grouped.conditions))

    def make(seed: int) -> GammaPoissonRegression:
        noise = jitter(seed, 7, scale=0.05 if seed else 0.0)
        return GammaPoissonRegression(array(noise[:-1]), array(noise[-1]))

    def log_x(model: Any, z: Array, x: Array, rows: alws.Rows) -> Array:
        return model.likelihood(z, rows).log_prob(x)

    by_svi = _by_svi("NumPyro SVI, log-normal guide", make(0), grouped, exact, _gamma, log_x)
    return Problem(
        name="doctorates_negative_binomial",
        start=make(seed),
        data=grouped.data,
        parameters=7,
        log_likelihood=exact,
        maximum=-1560.958338,
        rival=_by_statsmodels(grouped, "NegativeBinomial"),
        source=DOCTORATES,
        recompute=best_of(exact, make, 3),
        conditions=grouped.conditions,
        others=(by_scipy(exact, make(0), "closed form"), by_svi),
    )


class InflatedGammaPoisson(eqx.Module):
    """Never publishes, or does as `GammaPoissonRegression` says; z is whether, and the effect."""

    never: Float[Array, " p"]
    rate: Float[Array, " p"]
    log_shape: Float[Array, ""]

    @property
    def parts(self) -> tuple[ZeroInflatedRegression, GammaPoissonRegression]:
        """The two regressions this one is made of."""
        zero_inflated = ZeroInflatedRegression(self.never, self.rate)
        return zero_inflated, GammaPoissonRegression(self.rate, self.log_shape)

    def sample(self, key: Any, rows: alws.Rows) -> tuple[tuple[Array, Array], Array]:
        zero_inflated, counts = self.parts
        never, log_rate = zero_inflated.predictors(rows)
        never_key, effect_key, count_key = jax.random.split(key, 3)
        z = jax.random.bernoulli(never_key, jax.nn.sigmoid(never))
        effect = counts.sample_latent(effect_key, rows)
        count = jax.random.poisson(count_key, jnp.exp(log_rate) * effect)
        return (z, effect), jnp.where(z, 0, count).astype(float)[None]

    def log_joint(self, z: tuple[Array, Array], x: Array, rows: alws.Rows) -> Array:
        never, effect = z
        zero_inflated, counts = self.parts
        log_odds, log_rate = zero_inflated.predictors(rows)
        nothing = jnp.where(x[0] == 0, 0.0, -jnp.inf)
        count = poisson.logpmf(x[0], jnp.exp(log_rate) * effect)
        outcome = jnp.where(never, log_sigmoid(log_odds) + nothing, log_sigmoid(-log_odds) + count)
        return counts.log_prior(effect, rows) + outcome


def inflated_gamma_poisson_log_marginal(
    model: InflatedGammaPoisson, group: tuple[Array, Any]
) -> Array:
    """log(π 1[x = 0] + (1 − π) p(x)), p negative binomial."""
    (x,), rows = group
    zero_inflated, counts = model.parts
    never = zero_inflated.predictors(rows)[0]
    some = log_sigmoid(-never) + gamma_poisson_regression_log_marginal(counts, group)
    return jnp.where(x == 0, jnp.logaddexp(log_sigmoid(never), some), some)


def doctorates_inflated(seed: int) -> Problem:
    """Zero-inflated negative binomial with all regressors in both parts: −1549.991 (pscl)."""
    grouped = _doctorates()
    exact = Exact(inflated_gamma_poisson_log_marginal, (grouped.data, grouped.conditions))

    def make(seed: int) -> InflatedGammaPoisson:
        noise = jitter(seed, 13, scale=0.05 if seed else 0.0)
        return InflatedGammaPoisson(array(noise[:6]), array(noise[6:12]), array(noise[12]))

    def log_x(model: Any, z: Array, x: Array, rows: alws.Rows) -> Array:
        both = [model.log_joint((never, z), x, rows) for never in (jnp.array(1), jnp.array(0))]
        return jnp.logaddexp(*both) - model.parts[1].log_prior(z, rows)

    name = "NumPyro SVI, never summed, log-normal guide"
    by_svi = _by_svi(name, make(0), grouped, exact, _gamma, log_x)
    return Problem(
        name="doctorates_inflated",
        start=make(seed),
        data=grouped.data,
        parameters=13,
        log_likelihood=exact,
        maximum=-1549.990887,
        rival=_by_statsmodels(grouped, "ZeroInflatedNegativeBinomialP"),
        source=DOCTORATES,
        recompute=best_of(exact, make, 3),
        conditions=grouped.conditions,
        others=(by_scipy(exact, make(0), "closed form"), by_svi),
    )


class RandomLine(eqx.Module):
    """z ~ N(0, I₂), (intercept, slope) = centre + R z with R triangular, y ~ N(line, noise²)."""

    centre: Float[Array, " 2"]
    log_spreads: Float[Array, " 2"]
    tie: Float[Array, ""]
    log_noise: Float[Array, ""]

    def root(self) -> Float[Array, "2 2"]:
        """R, its diagonal positive."""
        return jnp.diag(jnp.exp(self.log_spreads)).at[1, 0].set(self.tie)

    def sample_latent(self, key: Any, rows: alws.Rows) -> Array:
        return jax.random.normal(key, (2,))

    def log_prior(self, z: Array, rows: alws.Rows) -> Array:
        return norm.logpdf(z).sum()

    def likelihood(self, z: Array, rows: alws.Rows) -> Likelihood:
        intercept, slope = self.centre + self.root() @ z
        mean = intercept + slope * rows["days"]
        return Gaussian(mean, jnp.exp(self.log_noise), mask=rows.observed)


def random_line_log_marginal(model: RandomLine, group: tuple[Array, Any]) -> Array:
    """log N(y; X centre, X R Rᵀ Xᵀ + noise² I), X = (1, days)."""
    x, rows = group
    design = jnp.stack([jnp.ones_like(rows["days"]), rows["days"]], axis=1)
    spread = design @ model.root()
    noise = jnp.exp(2 * model.log_noise) * jnp.eye(len(x))
    return gaussian(x, design @ model.centre, spread @ spread.T + noise)


def sleepstudy_rows(seed: int) -> Problem:
    """Reaction times in long form, correlated random intercept and slope: −875.970 (lme4)."""
    wide = table("sleepstudy")
    long = {
        "subject": np.repeat(wide[:, 0], 10),
        "days": np.tile(np.arange(10.0), len(wide)),
        "reaction": wide[:, 1:].ravel(),
    }
    grouped = alws.groups(long, by="subject", outcome="reaction", covariates="days")
    exact = Exact(random_line_log_marginal, (grouped.data, grouped.conditions))

    def make(seed: int) -> RandomLine:
        noise = jitter(seed, 6, scale=0.2 if seed else 0.0)
        return RandomLine(
            array(np.array([300.0, 0.0]) + noise[:2]),
            array(np.log([50.0, 10.0]) + noise[2:4]),
            array(noise[4]),
            array(np.log(50.0) + noise[5]),
        )

    def by_statsmodels() -> tuple[str, float]:
        import statsmodels.api as sm

        days = sm.add_constant(long["days"])
        mixed = sm.MixedLM(long["reaction"], days, long["subject"], exog_re=days)
        return "statsmodels MixedLM", float(mixed.fit(reml=False).llf)

    return Problem(
        name="sleepstudy_rows",
        start=make(seed),
        data=grouped.data,
        parameters=6,
        log_likelihood=exact,
        maximum=-875.969672,
        rival=by_statsmodels,
        source=source("sleepstudy") + "; lme4's maximum likelihood fit, deviance 1751.94",
        recompute=best_of(exact, make, 3),
        conditions=grouped.conditions,
        others=(by_scipy(exact, make(0), "closed form"), _by_guide(make(0), grouped, exact)),
    )
