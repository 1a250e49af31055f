"""Answers of persons to items, the persons' abilities regressed on what is known of them.

    z_p ~ N(age_p·β + [trained_p]·γ, 1),    P(answer to item i is right) = sigmoid(a_i z_p − b_i)

A row is an answer, a group a person; not everybody was asked every item. Run with
`python examples/item_response.py`; takes less than a minute.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import alws
from alws.likelihoods import Bernoulli


class ItemResponse(eqx.Module):
    """Two numbers for each item, and what moves the mean ability."""

    slopes: jax.Array
    difficulties: jax.Array
    effects: jax.Array

    def ability(self, rows):
        """The mean of a person's: its covariates are the same in all rows, so the first will do."""
        return rows.design("age", "training")[0] @ self.effects

    def sample_latent(self, key, rows):
        return self.ability(rows) + jax.random.normal(key)

    def log_prior(self, z, rows):
        return norm.logpdf(z, self.ability(rows))

    def likelihood(self, z, rows):
        item = rows["item"]
        logits = self.slopes[item] * z - self.difficulties[item]
        return Bernoulli(logits, mask=rows.observed)


def simulate(persons=400, seed=0):
    """Five items, of which each person got some."""
    rng = np.random.default_rng(seed)
    age, trained = rng.normal(size=persons), rng.random(persons) < 0.5
    ability = 0.7 * age + 0.8 * trained + rng.normal(size=persons)
    person, item = (a.ravel() for a in np.meshgrid(np.arange(persons), np.arange(5), indexing="ij"))
    slopes, difficulties = (
        np.array([1.0, 1.5, 0.8, 1.2, 1.0]),
        np.array([-1.0, -0.5, 0.0, 0.5, 1.0]),
    )
    chance = 1 / (1 + np.exp(difficulties[item] - slopes[item] * ability[person]))
    asked = (rng.random(len(item)) < 0.8) | (item == person % 5)
    table = {
        "person": person,
        "item": np.array([f"item {i + 1}" for i in item]),
        "right": rng.random(len(item)) < chance,
        "age": age[person],
        "training": np.where(trained[person], "yes", "no"),
    }
    return {name: column[asked] for name, column in table.items()}


def fit(persons=400, seed=0):
    """The simulated answers as groups, and the result."""
    covariates = ["item", "age", "training"]
    grouped = alws.groups(
        simulate(persons, seed), by="person", outcome="right", covariates=covariates
    )
    start = ItemResponse(jnp.ones(5), jnp.zeros(5), jnp.zeros(2))
    key = jax.random.key(seed)
    return grouped, alws.fit(start, grouped.data, conditions=grouped.conditions, key=key)


if __name__ == "__main__":
    grouped, result = fit()
    for i, name in enumerate(grouped.levels["item"]):
        print(name, f"{result.model.slopes[i]:.2f} {result.model.difficulties[i]:.2f}")
    print("age and training (simulated with 0.7 and 0.8)", result.model.effects)
    print("log likelihood", result.log_likelihood, "·", result.verdict)
