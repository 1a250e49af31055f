"""How to make the most of a sleep phase: seconds to a given likelihood, as JSON.

    PYTHONPATH=tests python benchmarks/sleep_phase.py [--quick] [--seeds 3]

Two problems of `tests/exact`, from their bad starts: factor analysis and the mixture of Gaussians.
A run ends when the exact mean log likelihood comes within 0.05 nats per data point of its maximum.
The variants differ from the default, one θ step on independent draws, in one thing each:

- 2, 4 or 8 θ steps on each sleep phase;
- no control variate: the mean score is not taken off in `Joint`;
- antithetic draws: (z, x) is a function of standard normal numbers u, and half of them are −u;
- quasi-random draws: u from Sobol' points, shifted at random so that each is standard normal.

Each variant runs at every rate of Adam, constant and in natural units, and is judged by the best of
them. Steps are medians over seeds; null means more than 1500, or than at a rate tried before.
Seconds are these steps times the seconds of one, the least measured, compilation apart.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from exact import PROBLEMS, maximum_likelihood
from jax.scipy.special import ndtr, ndtri
from scipy.stats import qmc

import alws
from alws.kernels import SquaredExponential
from alws.model import Draws, simulate
from alws.runtime import compiled, one_lapack_thread

BAR, SLEEP, HELD_OUT, BLOCK, MOST = 0.05, 256, 100, 10, 1500
RATES = (0.1, 0.05, 0.2, 0.025)
VARIANTS = {
    "default": {},
    "2 theta steps": {"theta_steps": 2},
    "4 theta steps": {"theta_steps": 4},
    "8 theta steps": {"theta_steps": 8},
    "no control variate": {"control": False},
    "antithetic": {"draws": "antithetic"},
    "quasi-random": {"draws": "quasi-random"},
}


class Uncontrolled(alws.Joint):
    """`Joint` with the mean score left in."""

    def objective(self, model, sleep, held, condition):
        return held.mean_weights @ jax.vmap(model.log_joint)(*sleep)


def factor_analysis(model, u):
    """(z, x) from seven standard normal numbers."""
    factors = model.loadings.shape[1]
    noise = jnp.exp(model.log_noise) * u[factors:]
    return u[:factors], model.loadings @ u[:factors] + model.offset + noise


def mixture(model, u):
    """(z, x) from three standard normal numbers, the first through its quantile."""
    ends = jnp.cumsum(jax.nn.softmax(model.logits))
    z = jnp.minimum(jnp.searchsorted(ends, ndtr(u[0])), len(ends) - 1)
    return z, model.means[z] + jnp.exp(model.log_scales[z]) * u[1:]


FROM_NORMAL = {"linear_gaussian": (factor_analysis, 7), "gaussian_mixture": (mixture, 3)}


def normals(kind, key, number, dimension):
    """`number` standard normal vectors, each of exactly that distribution."""
    if kind == "antithetic":
        half = jax.random.normal(key, (number // 2, dimension))
        return jnp.concatenate([half, -half])
    points = qmc.Sobol(dimension, scramble=True, bits=30, rng=0).random(number)
    whole = jnp.asarray((points * 2**30).astype(np.uint32))
    shift = jax.random.bits(key, (dimension,), "uint32") >> 2
    inside = ((whole ^ shift) >> 7).astype(jnp.float32) + 0.5  # 23 bits: 1 is not reached
    return ndtri(inside / 2**23)


@dataclass(frozen=True)
class Controlled(alws.WakeSleep):
    """The algorithm with sleep samples made of controlled normal numbers."""

    kind: str = "antithetic"
    from_normal: tuple = (None, 0)

    def _draw(self, model, key, condition):
        function, dimension = self.from_normal
        sleep_key, validation_key = jax.random.split(key)
        u = normals(self.kind, sleep_key, SLEEP, dimension)
        held = jax.lax.stop_gradient(model)
        sleep = Draws(*jax.vmap(lambda one: function(held, one))(u))
        return sleep, lambda: simulate(model, validation_key, HELD_OUT, condition)


def adam(learning_rate):
    return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(learning_rate))


def algorithm(name, *, theta_steps=1, control=True, draws="independent"):
    settings = alws.Settings(
        sleep_samples=SLEEP,
        validation_samples=HELD_OUT,
        theta_steps=theta_steps,
        measure_every=10**6,
    )
    parts = (
        alws.KernelRidge(SquaredExponential(), ridge=0.01),
        alws.Joint() if control else Uncontrolled(),
        optax.inject_hyperparams(adam)(learning_rate=RATES[0]),
        settings,
    )
    if draws == "independent":
        return alws.WakeSleep(*parts, natural_units=True)
    return Controlled(*parts, natural_units=True, kind=draws, from_normal=FROM_NORMAL[name])


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

    return compiled(block)


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


def measure(name, variant, problem, bar, seeds, rates, most):
    chosen = algorithm(name, **VARIANTS[variant])
    draws, _ = alws.draw(problem.start, jax.random.key(5), SLEEP)
    start = compiled(chosen.init, once=True)(problem.start, draws, jax.random.key(6))
    advance = advancing(chosen, problem.data)
    jax.block_until_ready(advance(start, jax.random.key(7))[1])
    steps, seconds = {}, []
    for rate in rates:
        most = int(min([most, *(n for n in steps.values() if n is not None)]))
        found = [run(advance, start, rate, jax.random.key(s), bar, most) for s in range(seeds)]
        median = float(np.median([np.inf if n is None else n for n, _ in found]))
        steps[rate] = median if np.isfinite(median) else None
        seconds += [s for _, times in found for s in times]
    best = min((n for n in steps.values() if n is not None), default=None)
    each = min(seconds) / BLOCK
    return {
        "steps at each rate": steps,
        "steps": best,
        "milliseconds of a step": round(1000 * each, 3),
        "seconds": None if best is None else round(best * each, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, one rate, 50 steps")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    seeds, rates, most = arguments.seeds, RATES, MOST
    if arguments.quick:
        seeds, rates, most = 1, RATES[:1], 50
    report = {}
    with one_lapack_thread():
        for name in FROM_NORMAL:
            problem = PROBLEMS[name](jax.random.key(0))
            best = maximum_likelihood(problem.truth, problem.data, problem.start)[1]
            rows = {}
            for variant in VARIANTS:
                rows[variant] = measure(name, variant, problem, best - BAR, seeds, rates, most)
                for measured in ("steps", "seconds"):
                    mine, default = rows[variant][measured], rows["default"][measured]
                    if mine and default:
                        rows[variant][f"{measured} over default"] = round(mine / default, 3)
                print(name, variant, rows[variant], file=sys.stderr, flush=True)
            report[name] = rows
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
