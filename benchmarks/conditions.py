"""One regression for all conditions: nats below the maximum, and seconds, against quadrature.

    python benchmarks/conditions.py [--units 100] [--seed 0] [--steps 1000] [--quick]

Units of four rows with three covariates of their own and a random intercept, with Gaussian,
Bernoulli and Poisson outcomes. The maximum is BFGS's on the sum over 61 Gauss–Hermite nodes, in
float64. The ways:

- scores   `alws.fit` as it is, its latent given twice so that no posterior can be integrated;
- kernel   wake-sleep with default settings: one kernel ridge regression on (covariates, outcomes);
- products wake-sleep with a linear readout of all products of two entries, its ridge held.

The last line has the seconds of a pass over all units, of one regression for each unit over those
of one for all.
"""

import argparse
import time
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import alws
from alws.likelihoods import Bernoulli, Gaussian, Poisson

ROWS, COVARIATES, NODES = 4, 3, 61
KINDS = ("gaussian", "bernoulli", "poisson")


class RandomIntercept(eqx.Module):
    """z ~ N(0, 1), η_i = β₀ + c_i·β + exp(log_spread) z; the noise is a Gaussian's."""

    coefficients: jax.Array
    log_spread: jax.Array
    log_noise: jax.Array | None
    kind: str = eqx.field(static=True)

    def sample_latent(self, key, c):
        return jax.random.normal(key)

    def log_prior(self, z, c):
        return jax.scipy.stats.norm.logpdf(z)

    def likelihood(self, z, c):
        fixed = self.coefficients[0] + c @ self.coefficients[1:]
        linear = fixed + jnp.exp(self.log_spread) * z
        if self.log_noise is not None:
            return Gaussian(linear, jnp.exp(self.log_noise))
        return Bernoulli(linear) if self.kind == "bernoulli" else Poisson(linear)


class Twice(RandomIntercept):
    """The same with its latent given twice: neither can be summed or integrated."""

    def sample_latent(self, key, c):
        z = jax.random.normal(key)
        return z, 2 * z

    def log_prior(self, z, c):
        return super().log_prior(z[0], c)

    def likelihood(self, z, c):
        return super().likelihood(z[0], c)


def problem(kind, units, seed):
    """A start, the covariates of every unit, and its outcomes."""
    rng = np.random.default_rng(seed)
    c = rng.normal(size=(units, ROWS, COVARIATES))
    c[:, :, 0] = rng.integers(0, 2, units)[:, None]
    c[:, :, 1] = np.arange(ROWS) / 2 - 0.75
    linear = c @ [0.8, -0.5, 0.6] - 0.3 + 0.9 * rng.normal(size=(units, 1))
    y = {
        "gaussian": lambda: linear + 0.7 * rng.normal(size=linear.shape),
        "bernoulli": lambda: (rng.random(linear.shape) < 1 / (1 + np.exp(-linear))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(linear)).astype(float),
    }[kind]()
    noise = jnp.array(0.0) if kind == "gaussian" else None
    return RandomIntercept(jnp.zeros(1 + COVARIATES), jnp.array(-0.5), noise, kind), c, y


class Quadrature:
    """Σ log p(y | c) of a model in float64, and its maximum."""

    def __init__(self, start, c, y):
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        theta, rest = eqx.partition(start, eqx.is_inexact_array)

        def below(flat):
            model = eqx.combine(self.unravel(flat), rest)

            def one(c, y):
                terms = jax.vmap(lambda z: model.likelihood(z, c).log_prob(y))(jnp.asarray(nodes))
                return jax.nn.logsumexp(terms + np.log(weights / weights.sum()))

            return -jax.vmap(one)(jnp.asarray(c), jnp.asarray(y)).sum()

        with jax.enable_x64(True):
            flat, self.unravel = ravel_pytree(jax.tree.map(lambda a: a.astype(float), theta))
            self.below = jax.jit(jax.value_and_grad(below))
            found = minimize(self._numbers, flat, jac=True, method="BFGS")
        self.maximum, self.free = -found.fun, flat.size

    def _numbers(self, flat):
        value, slope = self.below(jnp.asarray(flat))
        return float(value), np.asarray(slope)

    def gap(self, model):
        """Nats below the maximum."""
        with jax.enable_x64(True):
            parameters = eqx.filter(model, eqx.is_inexact_array)
            flat = ravel_pytree(jax.tree.map(lambda a: a.astype(float), parameters))[0]
            return self.maximum + self._numbers(flat)[0]


def products(pair):
    """All entries of (covariates, outcomes) and their products."""
    entries = jnp.concatenate([jnp.ravel(pair[0]), jnp.ravel(pair[1])])
    rows, others = np.triu_indices(entries.size)
    return jnp.concatenate([entries, entries[rows] * entries[others]])


def ways(steps):
    """The arguments of `fit` for each way."""
    readout = alws.regressions.LinearReadout(alws.features.Network(products), ridge=1e-2)
    decay = optax.cosine_decay_schedule(0.05, steps)
    held = alws.Settings(
        readout,
        optimiser=alws.natural_units(optax.adam(decay)),
        sleep_samples=2000,
        adapt=alws.ALWS_F,
    )
    return {
        "scores": {},
        "kernel": {"steps": steps, "settings": alws.Settings()},
        "products": {"steps": steps, "settings": held},
    }


def seconds_of_a_pass(start, c, y, conditions, batch_size):
    """Seconds that all units take once, compilation left out."""
    settings = alws.Settings(conditions=conditions)
    prepared = alws.prepare(
        start, y, key=jax.random.key(0), steps=9, settings=settings, conditions=c,
        batch_size=batch_size,
    )  # fmt: skip
    state, _ = prepared.step(prepared.state, 0)
    jax.block_until_ready(state.model)
    begun = time.process_time()
    state, _ = prepared.step(state, 1)
    jax.block_until_ready(state.model)
    return (time.process_time() - begun) * len(y) / batch_size


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--ways", nargs="*", default=("scores", "kernel", "products"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    units, steps = (20, 5) if options.quick else (options.units, options.steps)
    warnings.simplefilter("ignore", RuntimeWarning)
    print(f"{'outcomes':10} {'way':9} {'nats below':>10} {'a parameter':>12} {'cpu s':>6}  verdict")
    for kind in options.kinds:
        start, c, y = problem(kind, units, options.seed)
        exact = Quadrature(start, c, y)
        for way in options.ways:
            arguments = ways(steps)[way]
            model = start if arguments else Twice(*vars(start).values())
            if options.quick and not arguments:
                arguments = {"seconds": 5.0}
            begun = time.process_time()
            result = alws.fit(
                model, y, key=jax.random.key(options.seed), conditions=c, progress=False,
                **arguments,
            )  # fmt: skip
            seconds = time.process_time() - begun
            gap = exact.gap(result.model)
            told = result.verdict if way == "scores" else ""
            print(
                f"{kind:10} {way:9} {gap:10.4f} {gap / exact.free:12.4f} {seconds:6.0f}  {told}",
                flush=True,
            )
    start, c, y = problem("bernoulli", units, options.seed)
    separate = seconds_of_a_pass(start, c, y, "separate", 4)
    pooled = seconds_of_a_pass(start, c, y, "pooled", units)
    print(f"a pass over {units} units: {separate / pooled:.0f} times the seconds of one regression")


if __name__ == "__main__":
    main()
