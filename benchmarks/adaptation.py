"""γ adapted on Ĵ, the paper's criterion, or on its gradient, at equal cost: gradient error as JSON.

    python benchmarks/adaptation.py [--quick] [--steps 300]

The toy model of the `gradient` experiment and the exact gradient of `gradient_error.py`. θ is held
at three b in turn while σ and λ are adapted, from the usual start, from one far too wide and stiff
and from one far too narrow. The paper's criterion is given as many more steps as the other takes
longer for each. Errors are the root mean square of ‖g − exact‖/‖exact‖ over b and fresh sleep sets,
with γ as it then is; `spread` is their standard error over repetitions of the whole.
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
from gradient_error import PLACES, estimate, exact_gradient, observed, toy_at
from models import relative_error, root_mean_square

import alws
from alws.kernels import SquaredExponential
from alws.regressions.base import one_lapack_thread
from alws.wake_sleep import WakeSleep

SLEEP, HELD_OUT, RATE, SETS = 500, 200, 0.03, 20
STARTS = {"usual": (1.0, 0.01), "wide and stiff": (8.0, 1.0), "narrow": (0.1, 0.01)}


def algorithm(criterion):
    """Wake-sleep by this criterion of adaptation, θ held by a rate of nothing."""
    return WakeSleep(
        alws.regressions.KernelRidge(SquaredExponential(track=False)),
        alws.estimates.Natural(),
        alws.natural_units(optax.sgd(0.0)),
        SLEEP,
        HELD_OUT,
        alws.Adapt(criterion=criterion, learning_rate=RATE),
    )


def first_state(chosen, b, start, key):
    """The state with the bandwidth so many times the median distance, and this ridge."""
    toy = toy_at(b)
    state = chosen.init(toy, alws.draw(toy, key, SLEEP)[0])
    gamma = state.regression
    gamma = eqx.tree_at(
        lambda g: (g.kernel.log_bandwidth, g.log_ridge),
        gamma,
        (gamma.kernel.log_bandwidth + np.log(start[0]), jnp.log(jnp.array(start[1]))),
    )
    return state._replace(regression=gamma)


def adapted(step, state, x, steps, key):
    began = time.perf_counter()
    for i in range(steps):
        state, _ = step(state, x, jax.random.fold_in(key, i))
    jax.block_until_ready(state)
    return state.regression, (time.perf_counter() - began) / max(steps, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 steps, one repetition")
    parser.add_argument("--steps", type=int, default=300, help="steps on the gradient's criterion")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    steps, repeats = (5, 1) if arguments.quick else (arguments.steps, arguments.repeats)
    x = observed()
    exact = [exact_gradient(b, x) for b in PLACES]
    gradient = eqx.filter_jit(lambda gamma, b, key: estimate(gamma, x, b, key, SLEEP))
    choices = {name: algorithm(name) for name in ("objective", "gradient")}
    step = {name: eqx.filter_jit(chosen.step) for name, chosen in choices.items()}

    def errors(gamma, i, key):
        found = [gradient(gamma, jnp.array(PLACES[i]), k) for k in jax.random.split(key, SETS)]
        return [relative_error(g, exact[i]) for g in found]

    def row(name, start, number):
        """Error and γ after so many steps on one criterion."""
        whole, times, gammas = [], [], []
        for r in range(repeats):
            some = []
            for i, b in enumerate(PLACES):
                key = jax.random.key(1000 * r + i)
                state = first_state(choices[name], b, start, key)
                gamma, seconds = adapted(step[name], state, x, number, key)
                some += errors(gamma, i, jax.random.fold_in(key, 10**6))
                times.append(seconds)
                gammas.append([gamma.kernel.log_bandwidth, gamma.log_ridge])
            whole.append(root_mean_square(some))
        bandwidth, ridge = np.exp(np.mean(gammas, axis=0))
        return {
            "steps": number,
            "error": round(float(np.mean(whole)), 4),
            "spread": round(float(np.std(whole) / np.sqrt(repeats)), 4),
            "seconds_per_step": round(float(np.median(times)), 5),
            "bandwidth": round(float(bandwidth), 3),
            "ridge": round(float(ridge), 4),
        }

    report = {}
    with one_lapack_thread():
        for name in choices:  # compile both before anything is timed
            state = first_state(choices[name], PLACES[0], STARTS["usual"], jax.random.key(1))
            adapted(step[name], state, x, 2, jax.random.key(1))
        ratio = None
        for label, start in STARTS.items():
            rows = {"not adapted": row("objective", start, 0)}
            rows["gradient"] = row("gradient", start, steps)
            if ratio is None:
                short = row("objective", start, min(steps, 50))["seconds_per_step"]
                ratio = rows["gradient"]["seconds_per_step"] / short
                report["cost of a step, gradient over objective"] = round(ratio, 3)
            rows["objective, equal steps"] = row("objective", start, steps)
            rows["objective, equal cost"] = row("objective", start, round(steps * ratio))
            report[label] = rows
            print(label, rows, file=sys.stderr, flush=True)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
