"""What a likelihood of a sequence costs a time as the sequence grows, by each filter; a table.

    python benchmarks/filters.py [--lengths 1000 100000] [--json filters.json]

Processor time per time and evaluation, compiled: the forward algorithm with three states, the
Kalman filter with one and with five dimensions, a grid, and 1000 particles, of which the gradient
is their score. The ratio is that of the longest to the shortest sequence. Each length is its own
process, whose highest memory is given.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

import alws
from alws.state_space import find_filter, increments, particle_increments, particle_scores
from alws.state_space.grid import place

LENGTHS = (1000, 100_000)
PARTICLES = 1000


class Chain(alws.StateSpace):
    logits: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Categorical(logits=jnp.zeros(3))

    def transition(self, state):
        return dist.Categorical(logits=self.logits[state])

    def observation(self, state):
        return dist.Normal(2.0 * state, 1.0)


class Level(alws.StateSpace):
    log_noise: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state):
        return dist.Normal(0.9 * state, 0.3)

    def observation(self, state):
        return dist.Normal(state, jnp.exp(self.log_noise))


class Seasons(Level):
    def initial(self):
        return dist.Normal(jnp.zeros(5), 1.0)

    def transition(self, state):
        return dist.Normal(jnp.zeros(3), 0.1)

    def update(self, state, z):
        level, slope, *seasons = state
        parts = [0.9 * level + slope + z[0], 0.9 * slope + z[1], z[2] - sum(seasons), *seasons[:2]]
        return jnp.stack(parts)

    def observation(self, state):
        return dist.Normal(state[0] + state[2], jnp.exp(self.log_noise))


class Volatility(Level):
    def observation(self, state):
        return dist.Normal(0.0, jnp.exp(self.log_noise + state / 2))


MODELS = {
    "forward, 3 states": lambda times: Chain(jnp.eye(3), times),
    "kalman, 1": lambda times: Level(jnp.array(0.0), times),
    "kalman, 5": lambda times: Seasons(jnp.array(0.0), times),
    "grid": lambda times: Volatility(jnp.array(0.0), times),
    "particles": lambda times: Volatility(jnp.array(0.0), times),
}


def measure(name, times):
    """Microseconds a time for the likelihood and for its gradient, and the highest memory."""
    model, key = MODELS[name](times), jax.random.key(0)
    with jax.enable_x64(True):
        x = jnp.asarray(model.sample(key)[1], float)
        if name == "particles":
            total = eqx.filter_jit(
                lambda m, k: particle_increments(m, x, key=k, particles=PARTICLES).sum()
            )
            flat, at = ravel_pytree(model)
            score = eqx.filter_jit(
                lambda m, k: particle_scores(at, flat, x, key=k, particles=PARTICLES, keep=(0.95,))[
                    1
                ][-1]
            )
            value, gradient = (timed(f, model, key, times) for f in (total, score))
            return {"value": value, "gradient": gradient, "memory": memory()}
        kind = find_filter(model, key)
        if kind.kind == "grid":
            nodes = jnp.asarray(place(model, x[None], None, key).nodes)
            kind = kind._replace(values=nodes)

        def likelihood(model, key):
            return increments(model, kind, x).sum()

        value = timed(eqx.filter_jit(likelihood), model, key, times)
        gradient = timed(eqx.filter_jit(eqx.filter_grad(likelihood)), model, key, times)
    return {"value": value, "gradient": gradient, "memory": memory()}


def timed(function, model, key, times):
    """The median of three calls after the first, in microseconds of the processor a time."""
    seconds = []
    for _ in range(4):
        began = time.process_time()
        jax.block_until_ready(function(model, key))
        seconds.append(time.process_time() - began)
    return 1e6 * sorted(seconds[1:])[1] / times


def memory():
    """The most memory that this process had, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", nargs=2, type=int, default=LENGTHS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, help="a filter and a length, for a process of its own")
    arguments = parser.parse_args()
    if arguments.one:
        name, times = arguments.one
        print(json.dumps(measure(name, int(times))))
        return
    line = "{:<20}{:>9}{:>12}{:>12}{:>10}"
    print(line.format("filter", "times", "value, µs", "gradient", "GiB"))
    report = {}
    for name in MODELS:
        for times in arguments.lengths:
            command = [sys.executable, __file__, "--one", name, str(times)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = report.setdefault(name, {})[times] = json.loads(done.stdout)
            gradient = f"{found['gradient']:.2f}" if "gradient" in found else ""
            shown = f"{found['value']:.2f}", gradient, f"{found['memory']:.2f}"
            print(line.format(name, times, *shown), flush=True)
        short, long = (report[name][times] for times in arguments.lengths)
        ratios = [f"{long[k] / short[k]:.2f}" for k in ("value", "gradient") if k in long]
        print(line.format("", "ratio", *ratios, *[""] * (3 - len(ratios))), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
