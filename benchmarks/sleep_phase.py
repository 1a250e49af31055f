"""How to make the most of a sleep phase: seconds to a given likelihood, as JSON.

    PYTHONPATH=tests python benchmarks/sleep_phase.py [--quick] [--seeds 3] [--variants antithetic]

Two problems of `tests/exact`, from their bad starts: factor analysis and the mixture of Gaussians.
A run ends when the exact mean log likelihood comes within 0.05 nats per data point of its maximum.
The variants differ from the default, one θ step on independent draws, in one thing each:

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

What was found stands in `docs/benchmarks.md`; of the variants only θ steps are in the library.
"""

import argparse
import json
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from alws.runtime import one_lapack_thread
from exact import PROBLEMS, GaussianMixture, LinearGaussian, maximum_likelihood
from jax.flatten_util import ravel_pytree
from jax.scipy.special import ndtr, ndtri
from scipy.stats import qmc

import alws
from alws.kernels import SquaredExponential
from alws.model import Draws, simulate
from alws.natural_units import units

BAR, SLEEP, HELD_OUT, BLOCK, MOST = 0.05, 256, 100, 10, 1500
RATES = (0.1, 0.05, 0.2, 0.025)


class Varied(alws.estimates.Joint):
    """`Joint` with the mean score taken off."""

    def objective(self, model, sleep, held, condition):
        return (held.mean_weights - 1 / SLEEP) @ jax.vmap(model.log_joint)(*sleep)


class FactorAnalysis(LinearGaussian):
    """The exact model, and how it draws from seven normal numbers."""

    normals = 7

    def sample_from(self, u):
        noise = jnp.exp(self.log_noise) * u[2:]
        return u[:2], self.loadings @ u[:2] + self.offset + noise


class Mixture(GaussianMixture):
    """The exact model, and how it draws from three normal numbers, z by its quantile."""

    normals = 3

    def sample_from(self, u):
        ends = jnp.cumsum(jax.nn.softmax(self.logits))
        z = jnp.minimum(jnp.searchsorted(ends, ndtr(u[0])), len(ends) - 1)
        return z, self.means[z] + jnp.exp(self.log_scales[z]) * u[1:]


MODELS = {"linear_gaussian": FactorAnalysis, "gaussian_mixture": Mixture}


def antithetic(key, number, dimension):
    half = jax.random.normal(key, (number // 2, dimension))
    return jnp.concatenate([half, -half])


def quasi_random(key, number, dimension):
    """Sobol' points, their binary digits shifted at random, through the normal quantile."""
    points = qmc.Sobol(dimension, scramble=False, bits=30).random(number)
    shift = jax.random.bits(key, (dimension,), "uint32") >> 2
    shifted = (jnp.asarray((points * 2**30).astype(np.uint32)) ^ shift) >> 7
    return ndtri((shifted.astype(jnp.float32) + 0.5) / 2**23)


class Controlled(alws.WakeSleep):
    """The algorithm with sleep samples made of controlled normal numbers."""

    def _draw(self, model, key, condition):
        sleep_key, validation_key = jax.random.split(key)
        u = self.normals(sleep_key, SLEEP, model.normals)
        sleep = Draws(*jax.vmap(jax.lax.stop_gradient(model).sample_from)(u))
        return sleep, lambda: simulate(model, validation_key, HELD_OUT, condition)


class Antithetic(Controlled):
    normals = staticmethod(antithetic)


class QuasiRandom(Controlled):
    normals = staticmethod(quasi_random)


VARIANTS = {
    "default": {},
    "2 theta steps": {"theta_steps": 2},
    "4 theta steps": {"theta_steps": 4},
    "8 theta steps": {"theta_steps": 8},
    "control variate": {"estimate": Varied()},
    "antithetic": {"kind": Antithetic},
    "quasi-random": {"kind": QuasiRandom},
}


def adam(learning_rate):
    return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(learning_rate))


def algorithm(*, theta_steps=1, estimate=alws.estimates.Joint(), kind=alws.WakeSleep):
    settings = alws.Settings(
        sleep_samples=SLEEP,
        validation_samples=HELD_OUT,
        theta_steps=theta_steps,
        measure_every=10**6,
    )
    return kind(
        alws.regressions.KernelRidge(SquaredExponential(), ridge=0.01),
        estimate,
        optax.inject_hyperparams(adam)(learning_rate=RATES[0]),
        settings,
        natural_units=True,
    )


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
    hyper = start.theta_optimiser.hyperparams | {"learning_rate": jnp.asarray(rate)}
    state = start._replace(theta_optimiser=start.theta_optimiser._replace(hyperparams=hyper))
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


def gradient_errors(chosen, data, models, sets):
    """The error of the gradient at each of these models, and of what size the exact one is."""

    def at(model, key):
        draws, _ = alws.draw(model, key, SLEEP)
        state = chosen.init(model, draws, key)
        scale = flat(units(state.information))

        def one(key):
            return scale * flat(chosen.phases(state, data, key, None)[1].gradient)

        exact = eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(data).mean())(model)
        found = jax.lax.map(one, jax.random.split(key, sets)) - scale * flat(exact)
        return jnp.sqrt((found**2).sum(axis=1).mean()), jnp.linalg.norm(scale * flat(exact))

    step = eqx.filter_jit(at)
    return [[float(a) for a in step(model, jax.random.key(8))] for model in models]


def flat(tree):
    return ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0]


def halfway(start, end):
    """The model halfway between two in all parameters."""
    middle = jax.tree.map(
        lambda a, b: (a + b) / 2, *(eqx.filter(m, eqx.is_array) for m in (start, end))
    )
    return eqx.combine(middle, start)


def measure(variant, problem, bar, seeds, rates, most):
    chosen = algorithm(**VARIANTS[variant])
    draws, _ = alws.draw(problem.start, jax.random.key(5), SLEEP)
    start = eqx.filter_jit(chosen.init)(problem.start, draws, jax.random.key(6))
    advance = advancing(chosen, problem.data)
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
    parser.add_argument("--quick", action="store_true", help="one seed, one rate, 50 steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    arguments = parser.parse_args()
    seeds, rates, most, sets = arguments.seeds, RATES, MOST, 200
    if arguments.quick:
        seeds, rates, most, sets = 1, RATES[:1], 50, 10
    report = {}
    with one_lapack_thread():
        for name in arguments.problems:
            problem = PROBLEMS[name](jax.random.key(0))
            end, best = maximum_likelihood(problem.truth, problem.data, problem.start)
            start, end = (MODELS[name](*jax.tree.leaves(m)) for m in (problem.start, end))
            problem = problem._replace(start=start)
            rows = {}
            for variant in dict.fromkeys(["default", *arguments.variants]):
                changes = VARIANTS[variant]
                rows[variant] = row = {}
                if "theta_steps" not in changes:
                    models = end, halfway(start, end)
                    chosen = algorithm(**changes)
                    (last, _), (middle, size) = gradient_errors(chosen, problem.data, models, sets)
                    row["gradient error at the maximum"] = round(last, 4)
                    row["gradient error halfway, relative"] = round(middle / size, 4)
                row |= measure(variant, problem, best - BAR, seeds, rates, most)
                for measured in ("steps", "seconds"):
                    mine, default = row[measured], rows["default"][measured]
                    if mine and default:
                        row[f"{measured} over default"] = round(mine / default, 3)
                print(name, variant, row, file=sys.stderr, flush=True)
            report[name] = rows
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
