"""Many units with covariates of their own: seconds, memory, and nats below the maximum.

    python benchmarks/many_units.py [--units 100000] [--seed 0]

A logistic regression with a random intercept, four rows a unit, two covariates that differ from row
to row, fitted by `alws.fit` with no argument but the key. The gap is against Newton's method on the
trapezoidal sum over z, 61 nodes, from where the fit ended; the bars are three minutes, 4 GiB and
0.05 nats a parameter.
"""

import argparse
import resource
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

import alws
from alws.likelihoods import Bernoulli

ROWS, NODES, BLOCK = 4, 61, 2000


class RandomIntercept(eqx.Module):
    """z ~ N(0, 1), logit P(y_i = 1) = β₀ + x_i·β + exp(log_spread) z."""

    coefficients: jax.Array
    log_spread: jax.Array

    def sample_latent(self, key, rows):
        return jax.random.normal(key)

    def log_prior(self, z, rows):
        return norm.logpdf(z)

    def likelihood(self, z, rows):
        fixed = self.coefficients[0] + rows.design() @ self.coefficients[1:]
        return Bernoulli(fixed + jnp.exp(self.log_spread) * z, mask=rows.observed)


def simulate(units, seed):
    """A table in long form, of units × four rows."""
    rng = np.random.default_rng(seed)
    unit, n = np.repeat(np.arange(units), ROWS), units * ROWS
    time, dose = np.tile(np.arange(ROWS, dtype=float), units), rng.normal(size=n)
    logits = -0.5 + 0.4 * time - 0.7 * dose + 0.9 * rng.normal(size=units)[unit]
    y = rng.random(n) < 1 / (1 + np.exp(-logits))
    return {"unit": unit, "time": time, "dose": dose, "y": y}


def quadrature(grouped):
    """θ ↦ Σ log p(y), its gradient and its curvature, block by block, in float64."""
    z = jnp.linspace(-7, 7, NODES)
    weights = norm.logpdf(z) + jnp.log(z[1] - z[0])
    size = len(grouped.data)
    data = jax.tree.map(lambda a: np.asarray(a), (grouped.data, grouped.conditions))

    def one(flat, unravel, x, rows):
        model = unravel(flat)
        logs = jax.vmap(lambda z: model.likelihood(z, rows).log_prob(x))(z)
        return logsumexp(weights + logs)

    def total(model):
        flat, unravel = ravel_pytree(jax.tree.map(lambda a: jnp.asarray(a, float), model))

        @jax.jit
        def block(flat, x, rows):
            def some(flat):
                return jax.vmap(lambda x, r: one(flat, unravel, x, r))(x, rows).sum()

            return some(flat), jax.grad(some)(flat), jax.hessian(some)(flat)

        def evaluate(flat):
            parts = [
                block(flat, *jax.tree.map(lambda a: a[i : i + BLOCK], data))  # noqa: B023
                for i in range(0, size, BLOCK)
            ]
            return tuple(sum(np.asarray(p) for p in part) for part in zip(*parts, strict=True))

        return flat, evaluate

    return total


def gap_of(grouped, model):
    """Nats that Newton's method gains from the fit, over all data."""
    with jax.enable_x64(True):
        flat, evaluate = quadrature(grouped)(model)
        reached, g, h = evaluate(flat)
        value = reached
        for _ in range(5):
            flat = flat - np.linalg.solve(h, g)
            value, g, h = evaluate(flat)
        return float(value - reached)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    table = simulate(arguments.units, arguments.seed)
    began = time.perf_counter(), time.process_time()
    grouped = alws.groups(table, by="unit", outcome="y", covariates=["time", "dose"])
    start = RandomIntercept(jnp.zeros(3), jnp.zeros(()))
    key = jax.random.key(arguments.seed)
    result = alws.fit(start, grouped.data, conditions=grouped.conditions, key=key)
    seconds, of_processor = time.perf_counter() - began[0], time.process_time() - began[1]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    gap = gap_of(grouped, result.model)
    print(f"{arguments.units} units of {ROWS} rows: {seconds:.1f} s, {of_processor:.1f} s of the "
          f"processor, {memory:.2f} GiB")  # fmt: skip
    print(f"gap {gap:.4f} nats, {gap / 4:.4f} a parameter; {result.verdict}")
    for line in result.log:
        print("   ", *line)


if __name__ == "__main__":
    main()
