"""Many units with covariates of their own: seconds, memory, and nats below the maximum.

    python benchmarks/many_units.py [--units 100000] [--seed 0] [--quick]

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


def quadrature(grouped, model):
    """θ of a model, and θ ↦ Σ log p(y) with gradient and curvature, block by block."""
    z = jnp.linspace(-7, 7, NODES)
    weights = norm.logpdf(z) + jnp.log(z[1] - z[0])
    data = jax.tree.map(np.asarray, (grouped.data, grouped.conditions))
    flat, unravel = ravel_pytree(jax.tree.map(lambda a: jnp.asarray(a, float), model))

    def log_marginal(flat, x, rows):
        model = unravel(flat)
        return logsumexp(weights + jax.vmap(lambda z: model.likelihood(z, rows).log_prob(x))(z))

    def total(flat, x, rows):
        return jax.vmap(log_marginal, (None, 0, 0))(flat, x, rows).sum()

    both = jax.jit(lambda *args: (*jax.value_and_grad(total)(*args), jax.hessian(total)(*args)))

    def evaluate(flat):
        starts = range(0, len(grouped.data), BLOCK)
        blocks = (jax.tree.map(lambda a, i=i: a[i : i + BLOCK], data) for i in starts)
        parts = [jax.tree.map(np.asarray, both(flat, *block)) for block in blocks]
        return tuple(sum(part) for part in zip(*parts, strict=True))

    return flat, evaluate


def gap_of(grouped, model):
    """Nats that Newton's method gains from the fit, over all data, in float64."""
    with jax.enable_x64(True):
        flat, evaluate = quadrature(grouped, model)
        reached, gradient, curvature = evaluate(flat)
        value = reached
        for _ in range(3):
            flat = flat - np.linalg.solve(curvature, gradient)
            value, gradient, curvature = evaluate(flat)
        return float(value - reached)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="300 units")
    arguments = parser.parse_args()
    units = 300 if arguments.quick else arguments.units
    table = simulate(units, arguments.seed)
    began = time.perf_counter(), time.process_time()
    grouped = alws.groups(table, by="unit", outcome="y", covariates=["time", "dose"])
    start = RandomIntercept(jnp.zeros(3), jnp.zeros(()))
    key = jax.random.key(arguments.seed)
    result = alws.fit(start, grouped.data, conditions=grouped.conditions, key=key)
    seconds, of_processor = time.perf_counter() - began[0], time.process_time() - began[1]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    gap = gap_of(grouped, result.model)
    took = f"{seconds:.1f} s, {of_processor:.1f} s of the processor, {memory:.2f} GiB"
    print(f"{units} units of {ROWS} rows: {took}")
    print(f"gap {gap:.4f} nats, {gap / 4:.4f} a parameter; {result.verdict}")
    for line in result.log:
        print("   ", *line)


if __name__ == "__main__":
    main()
