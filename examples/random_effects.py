"""Random intercepts and slopes of grouped rows, for outcomes of six kinds.

    row i of a group:  predictor_i = β₀ + x_i·β + d_i·R z,    z ~ N(0, I),    d_i = (1, days_i)

Run with `python examples/random_effects.py poisson`, or another kind of `OUTCOMES`; takes less than
a minute. With `slopes=False` only the intercept is random.
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.stats import norm

import alws

OUTCOMES = {
    "gaussian": lambda line, extra, rows: dist.Normal(line, jnp.exp(extra)),
    "bernoulli": lambda line, extra, rows: dist.Bernoulli(logits=line),
    "binomial": lambda line, extra, rows: dist.Binomial(rows["trials"].astype(int), logits=line),
    "poisson": lambda line, extra, rows: dist.Poisson(jnp.exp(line)),
    "negative binomial": lambda line, extra, rows: dist.NegativeBinomial2(
        jnp.exp(line), jnp.exp(extra)
    ),
    "zero-inflated": lambda line, extra, rows: dist.ZeroInflatedPoisson(
        jax.nn.sigmoid(extra), jnp.exp(line)
    ),
}
"""Distributions of the outcome by its linear predictor; `extra` is a noise, a shape or a share."""

WITH_EXTRA = ("gaussian", "negative binomial", "zero-inflated")


class RandomEffects(eqx.Module):
    """Rows of a group with an intercept and, if asked for, a slope in days of its own."""

    coefficients: jax.Array  # of 1, days and arm
    log_spreads: jax.Array  # of the intercepts and the slopes
    tie: jax.Array | None  # of slopes to intercepts: R = [[s₁, 0], [tie, s₂]]
    extra: jax.Array | None
    kind: str = eqx.field(static=True)

    @classmethod
    def start(cls, kind, slopes=True):
        """Zeros, as one writes without a look at the data."""
        extra = jnp.zeros(()) if kind in WITH_EXTRA else None
        tie = jnp.zeros(()) if slopes else None
        return cls(jnp.zeros(3), jnp.zeros(1 + slopes) - 1.0, tie, extra, kind)

    def effects(self, z, rows):
        """d_i·R z of every row."""
        intercept = jnp.exp(self.log_spreads[0]) * z[0]
        if self.tie is None:
            return intercept
        return intercept + (self.tie * z[0] + jnp.exp(self.log_spreads[1]) * z[1]) * rows["days"]

    def outcome(self, z, rows):
        """The distribution of each row's outcome."""
        line = self.coefficients[0] + rows.design("days", "arm") @ self.coefficients[1:]
        return OUTCOMES[self.kind](line + self.effects(z, rows), self.extra, rows)

    def sample(self, key, rows):
        """Effects of a group, and its outcomes."""
        effect_key, outcome_key = jax.random.split(key)
        z = jax.random.normal(effect_key, self.log_spreads.shape)
        return z, rows.sample(self.outcome(z, rows), outcome_key)

    def log_joint(self, z, x, rows):
        """Log density of both."""
        return norm.logpdf(z).sum() + rows.log_prob(self.outcome(z, rows), x)


def simulate(truth, subjects, seed):
    """A table in long form: three to eight rows for each subject, half of them in either arm."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(subjects), rng.integers(3, 9, subjects))
    rows = len(subject)
    table = {
        "subject": subject,
        "days": rng.uniform(-1, 1, rows),
        "arm": np.where(subject % 2, "drug", "placebo"),
        "trials": rng.integers(1, 12, rows),
    }
    grouped = group(table, np.zeros(rows))
    keys = jax.random.split(jax.random.key(seed), subjects)
    x = jax.vmap(truth.sample)(keys, grouped.conditions)[1]
    there = grouped.positions >= 0
    y = np.zeros(rows)
    y[grouped.positions[there]] = np.asarray(x)[there]
    return table | {"y": y}


def group(table, y):
    """The table by subjects."""
    covariates = ["days", "arm", "trials"]
    return alws.groups({**table, "y": y}, by="subject", outcome="y", covariates=covariates)


def fit(kind, subjects=200, seed=0, slopes=True):
    """Simulate a table and fit it: the truth, the table as groups, the result."""
    start = RandomEffects.start(kind, slopes)
    truth = eqx.tree_at(lambda m: m.coefficients, start, jnp.array([0.5, 0.8, -0.6]))
    truth = eqx.tree_at(
        lambda m: m.log_spreads, truth, jnp.log(jnp.array([0.8, 0.5])[: 1 + slopes])
    )
    table = simulate(truth, subjects, seed)
    grouped = group(table, table["y"])
    key = jax.random.key(seed)
    return truth, grouped, alws.fit(start, grouped.data, conditions=grouped.conditions, key=key)


if __name__ == "__main__":
    truth, grouped, result = fit(sys.argv[1] if len(sys.argv) > 1 else "poisson")
    for name, value, true in zip(
        ("intercept", *grouped.coefficients[:2]),
        result.model.coefficients,
        truth.coefficients,
        strict=True,
    ):
        print(f"{name:<14} {value:6.2f}   (simulated with {true:.2f})")
    print("spreads", jnp.exp(result.model.log_spreads), "simulated with 0.8 and 0.5")
    print("log likelihood", result.log_likelihood, "·", result.verdict)
