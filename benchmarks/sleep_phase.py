"""How to make the most of a sleep phase: seconds to a given likelihood, as JSON.

    python benchmarks/sleep_phase.py [--quick] [--seeds 3] [--variants antithetic]

Two problems from bad starts, factor analysis and a mixture of Gaussians, their columns on scales
from 0.02 to 7. A run ends when the exact mean log likelihood comes within 0.05 nats per data point
of its maximum. The variants differ from the default, one θ step on independent draws, in one thing
each:

- 2, 4 or 8 θ steps on each sleep phase;
- control variate: the mean score over sleep samples, zero in expectation, is taken off in `Joint`;
- antithetic draws: (z, x) is a function of standard normal numbers u, and half of them are −u;
- quasi-random draws: u from Sobol' points, shifted at random so that each is standard normal.

Each variant runs at every rate of Adam, constant and in natural units, and is judged by the best of
them. Steps are medians over seeds; null means more than 1500, or than at a rate tried before.
Seconds are these steps times the seconds of one, the least measured, compilation apart.

Steps to a bar vary from seed to seed; the error of the gradient varies less. For each kind of draws
it is the root mean square over sleep sets of ‖g − exact‖ in natural units, at the maximum (where
the exact gradient is zero) and halfway to it from the start, where it is divided by ‖exact‖.

What was found stands in `docs/laboratory-notes.md`; of the variants only θ steps are in the
library. The others put draws of their own in the place of its `simulate`.
"""

import argparse
import json
import sys
import time
from contextlib import contextmanager
from functools import partial
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp, ndtr, ndtri
from jax.scipy.stats import multivariate_normal, norm
from scipy.optimize import minimize
from scipy.stats import qmc

import alws
from alws.kernels import SquaredExponential
from alws.model import simulate
from alws.natural_units import units_of
from alws.regressions.base import one_lapack_thread
from alws.wake_sleep import WakeSleep

BAR, SLEEP, HELD_OUT, BLOCK, MOST = 0.05, 256, 100, 10, 1500
RATES = (0.1, 0.05, 0.2, 0.025)


class Varied(alws.estimates.Joint):
    """`Joint` with the mean score taken off."""

    def objective(self, model, sleep, weights, condition):
        return (weights.mean - 1 / SLEEP) @ jax.vmap(model.log_joint)(*sleep)


class FromNormals(eqx.Module):
    """A model that draws (z, x) from standard normal numbers u, and whose log p(x) is known."""

    def sample(self, key):
        return self.sample_from(jax.random.normal(key, (self.normals,)))


class FactorAnalysis(FromNormals):
    """z ~ N(0, I), x | z ~ N(W z + b, diag exp(2 log_noise))."""

    normals = 7

    loadings: jax.Array
    offset: jax.Array
    log_noise: jax.Array

    def sample_from(self, u):
        noise = jnp.exp(self.log_noise) * u[2:]
        return u[:2], self.loadings @ u[:2] + self.offset + noise

    def log_joint(self, z, x):
        mean = self.loadings @ z + self.offset
        return norm.logpdf(z).sum() + norm.logpdf(x, mean, jnp.exp(self.log_noise)).sum()

    def log_marginal(self, x):
        covariance = self.loadings @ self.loadings.T + jnp.diag(jnp.exp(2 * self.log_noise))
        return multivariate_normal.logpdf(x, self.offset, covariance)


class Mixture(FromNormals):
    """z ~ Categorical, x | z = k ~ N(mean_k, diag exp(2 log_scale_k)); z by its quantile."""

    normals = 3

    logits: jax.Array
    means: jax.Array
    log_scales: jax.Array

    def sample_from(self, u):
        ends = jnp.cumsum(jax.nn.softmax(self.logits))
        z = jnp.minimum(jnp.searchsorted(ends, ndtr(u[0])), len(ends) - 1)
        return z, self.means[z] + jnp.exp(self.log_scales[z]) * u[1:]

    def log_joint(self, z, x):
        density = norm.logpdf(x, self.means[z], jnp.exp(self.log_scales[z])).sum()
        return jax.nn.log_softmax(self.logits)[z] + density

    def log_marginal(self, x):
        densities = norm.logpdf(x, self.means, jnp.exp(self.log_scales)).sum(axis=1)
        return logsumexp(jax.nn.log_softmax(self.logits) + densities)


def factor_analysis():
    """The truth and a start that ignores the data."""
    scale = np.array([7.0, 0.02, 1.0, 3.0, 0.3])
    shape = np.array([[0.8, 0.0], [0.7, 0.3], [-0.6, 0.5], [0.1, 0.8], [-0.4, -0.7]])
    noise = np.sqrt(1 - (shape**2).sum(axis=1))
    truth = FactorAnalysis(
        jnp.array(scale[:, None] * shape),
        jnp.array([50.0, 0.3, -4.0, 12.0, 0.0]),
        jnp.array(np.log(scale * noise)),
    )
    loadings = jax.random.normal(jax.random.key(3), (5, 2))
    return truth, FactorAnalysis(loadings, jnp.zeros(5), jnp.zeros(5))


def mixture():
    """The truth, three overlapping clusters, and a start two to five deviations away."""
    truth = Mixture(
        jnp.array(np.log([0.5, 0.3, 0.2])),
        jnp.array([[46.0, 1.21], [58.0, 1.22], [51.0, 1.165]]),
        jnp.array(np.log([[3.0, 0.012], [4.5, 0.008], [2.5, 0.006]])),
    )
    means = jnp.array([[30.0, 1.25], [70.0, 1.15], [65.0, 1.28]])
    return truth, Mixture(jnp.zeros(3), means, jnp.array(np.log([[20.0, 0.06]] * 3)))


PROBLEMS = {"factor analysis": (factor_analysis, 400), "mixture": (mixture, 600)}


def maximum(truth, data):
    """The model of the highest likelihood near the truth, and its mean log likelihood."""
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (truth, data))
        flat, unravel = ravel_pytree(exact[0])

        @jax.jit
        def loss(flat):
            return -jax.vmap(unravel(flat).log_marginal)(exact[1]).mean()

        # Parameters in units of what the scores say of them: columns differ by a factor of 350.
        scores = jax.vmap(jax.grad(lambda f, x: unravel(f).log_marginal(x)), (None, 0))(
            flat, exact[1]
        )
        unit = 1 / np.sqrt(np.mean(np.square(scores), axis=0))
        step = jax.jit(jax.value_and_grad(lambda place: loss(flat + unit * place)))
        found = minimize(lambda p: jax.tree.map(np.asarray, step(p)), 0 * unit, jac=True)
        best = unravel(flat + unit * found.x)
    return jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float32), best), -float(found.fun)


def antithetic(key, number, dimension):
    half = jax.random.normal(key, (number // 2, dimension))
    return jnp.concatenate([half, -half])


def quasi_random(key, number, dimension):
    """Sobol' points, their binary digits shifted at random, through the normal quantile."""
    points = qmc.Sobol(dimension, scramble=False, bits=30).random(number)
    shift = jax.random.bits(key, (dimension,), "uint32") >> 2
    shifted = (jnp.asarray((points * 2**30).astype(np.uint32)) ^ shift) >> 7
    return ndtri((shifted.astype(jnp.float32) + 0.5) / 2**23)


@contextmanager
def drawing(normals):
    """Within this context sleep samples are made of these normal numbers; None as they are."""

    def controlled(model, key, number, condition=None):
        """The first are sleep samples, the rest for validation."""
        sleep_key, validation_key = jax.random.split(key)
        held = jax.lax.stop_gradient(model)
        sleep = alws.Draws(*jax.vmap(held.sample_from)(normals(sleep_key, SLEEP, model.normals)))
        rest = simulate(model, validation_key, number - SLEEP, condition)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), sleep, rest)

    if normals is None:
        yield
    else:
        with mock.patch.object(sys.modules[WakeSleep.__module__], "simulate", controlled):
            yield


VARIANTS = {
    "default": {},
    "2 theta steps": {"theta_steps": 2},
    "4 theta steps": {"theta_steps": 4},
    "8 theta steps": {"theta_steps": 8},
    "control variate": {"estimate": Varied()},
    "antithetic": {"normals": antithetic},
    "quasi-random": {"normals": quasi_random},
}


def adam(learning_rate):
    return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(learning_rate))


def algorithm(*, theta_steps=1, estimate=alws.estimates.Joint(), normals=None):
    """The algorithm, and the context in which it is to be traced."""
    optimiser = optax.inject_hyperparams(adam)(learning_rate=RATES[0])
    chosen = WakeSleep(
        alws.regressions.KernelRidge(SquaredExponential(), ridge=0.01),
        estimate,
        alws.natural_units(optimiser),
        SLEEP,
        HELD_OUT,
        theta_steps=theta_steps,
        measure_every=10**6,
    )
    return chosen, partial(drawing, normals)


def advancing(chosen, data):
    """A block of steps, with the exact mean log likelihood after each."""

    def block(state, key):
        arrays, static = eqx.partition(state, eqx.is_array)

        def one(arrays, key):
            state, _ = chosen.step(eqx.combine(arrays, static), data, key)
            value = jax.vmap(state.model.log_marginal)(data).mean()
            return eqx.filter(state, eqx.is_array), value

        arrays, values = jax.lax.scan(one, arrays, jax.random.split(key, BLOCK))
        return eqx.combine(arrays, static), values

    return eqx.filter_jit(block)


def run(advance, start, rate, key, bar, most):
    """Steps until the bar is reached, None if it is not, and the seconds of every block."""
    units = start.theta_optimiser
    hyper = units.inner.hyperparams | {"learning_rate": jnp.asarray(rate)}
    inner = units.inner._replace(hyperparams=hyper)
    state = start._replace(theta_optimiser=units._replace(inner=inner))
    seconds = []
    for i in range(-(-most // BLOCK)):
        began = time.perf_counter()
        state, values = advance(state, jax.random.fold_in(key, i))
        values = np.asarray(values)
        seconds.append(time.perf_counter() - began)
        reached = np.flatnonzero(values >= bar)
        if len(reached):
            return i * BLOCK + int(reached[0]) + 1, seconds
        if not np.isfinite(values).all():
            break
    return None, seconds


def gradient_errors(changes, data, models, sets):
    """The error of the gradient at each of these models, and of what size the exact one is."""
    chosen, traced = algorithm(**changes)

    def at(model, key):
        state = chosen.init(model, alws.draw(model, key, SLEEP)[0])
        after, _ = chosen.step(state, data, key)
        scale = flat(units_of(after.theta_optimiser, eqx.filter(model, eqx.is_inexact_array)))

        def one(key):
            return scale * flat(chosen.phases(state, data, key, None).gradient)

        exact = eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(data).mean())(model)
        found = jax.lax.map(one, jax.random.split(key, sets)) - scale * flat(exact)
        return jnp.sqrt((found**2).sum(axis=1).mean()), jnp.linalg.norm(scale * flat(exact))

    step = eqx.filter_jit(at)
    with traced():
        return [[float(a) for a in step(model, jax.random.key(8))] for model in models]


def flat(tree):
    return ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0]


def halfway(start, end):
    """The model halfway between two in all parameters."""
    middle = jax.tree.map(
        lambda a, b: (a + b) / 2, *(eqx.filter(m, eqx.is_array) for m in (start, end))
    )
    return eqx.combine(middle, start)


def measure(variant, first, data, bar, seeds, rates, most):
    chosen, traced = algorithm(**VARIANTS[variant])
    draws, _ = alws.draw(first, jax.random.key(5), SLEEP)
    start = eqx.filter_jit(chosen.init)(first, draws)
    advance = advancing(chosen, data)
    with traced():
        jax.block_until_ready(advance(start, jax.random.key(7))[1])
    steps, every, seconds = {}, {}, []
    for rate in rates:
        most = int(min([most, *(n for n in steps.values() if n is not None)]))
        found = [run(advance, start, rate, jax.random.key(s), bar, most) for s in range(seeds)]
        median = float(np.median([np.inf if n is None else n for n, _ in found]))
        steps[rate] = median if np.isfinite(median) else None
        every[steps[rate]] = [n for n, _ in found]
        seconds += [s for _, times in found for s in times]
    best = min((n for n in steps.values() if n is not None), default=None)
    each = min(seconds) / BLOCK
    return {
        "steps at each rate": steps,
        "steps": best,
        "steps of every seed": every[best],
        "milliseconds of a step": round(1000 * each, 3),
        "seconds": None if best is None else round(best * each, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, one rate, 20 steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    arguments = parser.parse_args()
    seeds, rates, most, sets = arguments.seeds, RATES, MOST, 200
    if arguments.quick:
        seeds, rates, most, sets = 1, RATES[:1], 20, 3
    report = {}
    with one_lapack_thread():
        for name in arguments.problems:
            make, size = PROBLEMS[name]
            truth, start = make()
            data = alws.draw(truth, jax.random.key(0), size)[0].x
            end, best = maximum(truth, data)
            rows = {}
            for variant in dict.fromkeys(["default", *arguments.variants]):
                changes = VARIANTS[variant]
                rows[variant] = row = {}
                if "theta_steps" not in changes:
                    models = end, halfway(start, end)
                    (last, _), (middle, exact) = gradient_errors(changes, data, models, sets)
                    row["gradient error at the maximum"] = round(last, 4)
                    row["gradient error halfway, relative"] = round(middle / exact, 4)
                row |= measure(variant, start, data, best - BAR, seeds, rates, most)
                for measured in ("steps", "seconds"):
                    mine, default = row[measured], rows["default"][measured]
                    if mine and default:
                        row[f"{measured} over default"] = round(mine / default, 3)
                print(name, variant, row, file=sys.stderr, flush=True)
            report[name] = rows
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
