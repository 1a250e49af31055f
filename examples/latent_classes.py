"""Two classes of voters, known by four yes-or-no answers; who belongs where depends on age.

    P(z = 1) = sigmoid(c + d·age),    P(answer j is yes | z) = sigmoid(logits[z, j])

A group is a voter, with one row and four outcomes, some of them missing. Run with
`python examples/latent_classes.py`; takes less than a minute.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid

import alws
from alws.likelihoods import Bernoulli, Product

ANSWERS = ("taxes", "roads", "schools", "parks")


class LatentClasses(eqx.Module):
    """Answers by class, and the odds of the second class by age."""

    logits: jax.Array
    odds: jax.Array

    def log_odds(self, rows):
        """Of the second class, for a voter."""
        return self.odds[0] + self.odds[1] * rows["age"][0]

    def sample_latent(self, key, rows):
        return jax.random.bernoulli(key, jax.nn.sigmoid(self.log_odds(rows))).astype(int)

    def log_prior(self, z, rows):
        odds = self.log_odds(rows)
        return jnp.where(z == 1, log_sigmoid(odds), log_sigmoid(-odds))

    def likelihood(self, z, rows):
        logits = dict(zip(ANSWERS, self.logits[z], strict=True))
        return Product({n: Bernoulli(logits[n][None], rows.observed[n]) for n in ANSWERS})


def simulate(voters=500, seed=0):
    """A row for each voter; one answer in ten was not given."""
    rng = np.random.default_rng(seed)
    age = rng.normal(size=voters)
    second = rng.random(voters) < 1 / (1 + np.exp(0.5 - 1.2 * age))
    chances = np.where(second[:, None], [0.8, 0.3, 0.9, 0.7], [0.2, 0.6, 0.3, 0.4])
    answers = (rng.random((voters, 4)) < chances).astype(float)
    answers[(rng.random((voters, 4)) < 0.1) & (np.arange(4) > 0)] = np.nan
    return {"voter": np.arange(voters), "age": age, **dict(zip(ANSWERS, answers.T, strict=True))}


def fit(voters=500, seed=0):
    """The simulated answers as groups, and the result."""
    table = simulate(voters, seed)
    grouped = alws.groups(table, by="voter", outcome=ANSWERS, covariates="age")
    start = LatentClasses(0.5 * jax.random.normal(jax.random.key(seed), (2, 4)), jnp.zeros(2))
    key = jax.random.key(seed)
    return grouped, alws.fit(start, grouped.data, conditions=grouped.conditions, key=key)


if __name__ == "__main__":
    _, result = fit()
    print("P(yes) by class", jax.nn.sigmoid(result.model.logits))
    print("odds of the second class (simulated with -0.5 and 1.2)", result.model.odds)
    print("log likelihood", result.log_likelihood, "·", result.verdict)
