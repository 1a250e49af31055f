"""Fit a Gaussian mixture written in NumPyro, without enumerating its discrete latent.

Run with `python examples/numpyro_mixture.py`; takes less than a minute.
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.infer import Predictive

import alws


def mixture(x=None, n=1000):
    """Three components with their own weights, means and scales."""
    weights = numpyro.param("weights", jnp.ones(3) / 3, constraint=constraints.simplex)
    means = numpyro.param("means", jnp.array([-2.0, 0.0, 2.0]))
    scales = numpyro.param("scales", 2 * jnp.ones(3), constraint=constraints.positive)
    with numpyro.plate("data", n):
        z = numpyro.sample("z", dist.Categorical(weights))
        numpyro.sample("x", dist.Normal(means[z], scales[z]), obs=x)


if __name__ == "__main__":
    truth = {"weights": [0.5, 0.3, 0.2], "means": [-4.0, 0.0, 3.0], "scales": [0.5, 1.0, 0.7]}
    truth = {name: jnp.array(value) for name, value in truth.items()}
    data = Predictive(mixture, params=truth, num_samples=1)(jax.random.key(1))["x"][0]

    model = alws.from_numpyro(mixture, observed="x")
    result = alws.fit(model, data, key=jax.random.key(0), steps=500)

    fitted = result.model.parameters()
    print("fitted", *(f"{name}: {value.round(2)}" for name, value in fitted.items()))
    simulated = Predictive(mixture, params=fitted, num_samples=1)(jax.random.key(2))["x"][0]
    print(f"mean and spread of the data: {data.mean():.2f}, {data.std():.2f}")
    print(f"of data simulated by the fit: {simulated.mean():.2f}, {simulated.std():.2f}")
