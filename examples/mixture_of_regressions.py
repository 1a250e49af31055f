"""Subjects of two unknown kinds, each with a regression line of its own.

    z ~ Categorical(weights),    y_i ~ N(a_z + b_z x_i, noise²) for all rows i of a subject

Run with `python examples/mixture_of_regressions.py`; takes less than a minute.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import alws
from alws.likelihoods import Gaussian


class MixtureOfRegressions(eqx.Module):
    """An intercept and a slope for each kind."""

    logits: jax.Array
    lines: jax.Array
    log_noise: jax.Array

    def sample_latent(self, key, rows):
        return jax.random.categorical(key, self.logits)

    def log_prior(self, z, rows):
        return jax.nn.log_softmax(self.logits)[z]

    def likelihood(self, z, rows):
        intercept, slope = self.lines[z]
        mean = intercept + slope * rows["dose"]
        return Gaussian(mean, jnp.exp(self.log_noise), mask=rows.observed)


def simulate(subjects=150, seed=0):
    """One to four rows for each subject; a third of them respond to the dose."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(subjects), rng.integers(1, 5, subjects))
    dose, responds = rng.uniform(0, 2, len(subject)), (rng.random(subjects) < 1 / 3)[subject]
    mean = np.where(responds, 1.0 + 2.0 * dose, 2.0 - 0.3 * dose)
    return {"subject": subject, "dose": dose, "y": mean + 0.5 * rng.normal(size=len(subject))}


def fit(subjects=150, seed=0):
    """The simulated table as groups, and the result."""
    table = simulate(subjects, seed)
    grouped = alws.groups(table, by="subject", outcome="y", covariates="dose")
    lines = 0.5 * jax.random.normal(jax.random.key(seed), (2, 2))  # no two alike
    start = MixtureOfRegressions(jnp.zeros(2), lines, jnp.zeros(()))
    key = jax.random.key(seed)
    return grouped, alws.fit(start, grouped.data, conditions=grouped.conditions, key=key)


if __name__ == "__main__":
    _, result = fit()
    print("weights (simulated with 1/3 and 2/3)", jax.nn.softmax(result.model.logits))
    print("lines (simulated with 1 + 2 x and 2 - 0.3 x)", result.model.lines)
    print("log likelihood", result.log_likelihood, "·", result.verdict)
