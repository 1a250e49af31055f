"""How the gradient of `alws.estimates.Local` nears the exact one: with its windows, and its pairs.

    python benchmarks/windows.py [DIRECTORY] [--quick]

On one sequence from a random walk seen through noise, whose likelihood the Kalman filter gives, and
one from a hidden Markov model, by the forward algorithm. Away from the maximum, every parameter
moved by two standard errors, the error of a gradient g is √((g − g*)ᵀ I⁻¹ (g − g*)/p), with I the
information of the filter's own increments: in standard errors of the fit, 1 is as bad as chance.

- With many pairs, windows of 0, 1, 2 … times on either side: the error that is left falls as the
  model forgets, by a factor for each time of the window.
- With a window wide enough, 1000 to 64000 pairs: it falls as pairs^-1/2.

Prints the tables with their rates, and writes them as JSON.
"""

import argparse
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

import alws
from alws.estimates import Local
from alws.features import Network
from alws.state_space.filters import increments
from alws.state_space.kinds import find_filter

WINDOWS = (0, 1, 2, 3, 4)
PAIRS = (1000, 4000, 16000, 64000)
REPEATS, EACH = 6, 20


class Walk(alws.StateSpace):
    """A random walk seen through noise."""

    log_step: jax.Array
    log_noise: jax.Array
    times: int = eqx.field(static=True, default=200)

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state):
        return dist.Normal(state, jnp.exp(self.log_step))

    def observation(self, state):
        return dist.Normal(state, jnp.exp(self.log_noise))


class Returning(Walk):
    """The same, drawn back to zero."""

    def transition(self, state):
        return dist.Normal(0.6 * state, jnp.exp(self.log_step))


class Chain(alws.StateSpace):
    """A hidden Markov model with two states that shows one of two signs at each time."""

    stay: jax.Array
    shows: jax.Array
    times: int = eqx.field(static=True, default=500)

    def initial(self):
        return dist.Categorical(logits=jnp.zeros(2))

    def transition(self, state):
        return dist.Bernoulli(logits=self.stay[state] * (2 * state - 1))

    def observation(self, state):
        return dist.Bernoulli(logits=self.shows[state])


PROBLEMS = {
    "random walk, Kalman filter": Walk(jnp.array(-0.7), jnp.array(0.0)),
    "hidden Markov model, forward algorithm": Chain(jnp.array([2.0, 2.5]), jnp.array([-1.5, 1.5])),
}


def differences(view):
    """What a regression on one window compares: x off its centre, the ends, and all products."""
    x, inside = view.x, view.inside
    middle = len(x) // 2
    u = jnp.concatenate([x - x[middle], x[middle : middle + 1], inside - 1.0])
    rows, columns = np.triu_indices(len(u))
    return jnp.concatenate([u, u[rows] * u[columns]])


def patterns(view):
    """One feature for each pattern that a window of signs can have, and for the ends."""
    places = 2 ** jnp.arange(len(view.x))
    seen = jnp.where(view.inside == 1, view.x, 0) @ places
    return jnp.concatenate([seen == jnp.arange(2 ** len(view.x)), view.inside]).astype(float)


FEATURES = dict(zip(PROBLEMS, (differences, patterns), strict=True))


def exact(model, x, kind):
    """The gradient of log p(x), and the information of its increments."""
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)
    scores = jax.jacfwd(lambda theta: increments(eqx.combine(unravel(theta), rest), kind, x))(flat)
    return np.asarray(scores.sum(axis=0)), np.asarray(scores.T @ scores)


def local(model, x, features, window, pairs, key):
    """The gradient of `Local` with a regression on these features."""
    estimate = Local(window, pairs=pairs)
    sleep, _ = alws.draw(model, key, max(pairs // EACH, 10))
    regression = alws.regressions.LinearReadout(Network(features), ridge=1e-4, reach=100.0)
    smoother = regression.fit(estimate.views(model, sleep.x, None))
    weights = estimate.weigh(model, smoother, sleep, x[None], None)
    gradient = eqx.filter_grad(lambda m: estimate.objective(m, sleep, weights, None))(model)
    return ravel_pytree(eqx.filter(gradient, eqx.is_inexact_array))[0]


def errors(name, windows, pairs, repeats):
    """The error of the gradient for each window with many pairs, and for each number of pairs."""
    true = PROBLEMS[name]
    with jax.enable_x64(True):
        true = jax.tree.map(lambda a: jnp.asarray(a, float), true)
        _, x = true.sample(jax.random.key(1))
        kind = find_filter(true, jax.random.key(0))
        flat, unravel = ravel_pytree(true)
        spread = np.sqrt(np.diag(np.linalg.inv(exact(true, x, kind)[1])))
        model = unravel(flat + 2 * jnp.asarray(spread))
        wanted, information = exact(model, x, kind)
        root = np.linalg.cholesky(np.linalg.inv(information))

        def error(window, number, average):
            run = eqx.filter_jit(lambda key: local(model, x, FEATURES[name], window, number, key))
            found = np.stack([run(k) for k in jax.random.split(jax.random.key(2), repeats)])
            off = (found - wanted) @ root
            off = off.mean(axis=0, keepdims=True) if average else off
            return float(np.sqrt((off**2).mean()))

        return (
            [error(w, pairs[-1], average=True) for w in windows],
            [error(windows[-1], n, average=False) for n in pairs],
        )


def rate(at, found):
    """The slope of log error."""
    return float(np.polyfit(at, np.log(found), 1)[0])


def main():
    """Measure, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", nargs="?", type=Path, default=Path("runs/windows"))
    parser.add_argument("--quick", action="store_true", help="whether it runs, not how well")
    options = parser.parse_args()
    windows, pairs, repeats = WINDOWS, PAIRS, REPEATS
    if options.quick:
        windows, pairs, repeats = (0, 2), (1000, 2000), 2
    found = {}
    for name in PROBLEMS:
        by_window, by_pairs = errors(name, windows, pairs, repeats)
        found[name] = {
            "windows": dict(zip(windows, by_window, strict=True)),
            "pairs": dict(zip(pairs, by_pairs, strict=True)),
            "factor for each time of the window": float(np.exp(rate(windows, by_window))),
            "power of the pairs": rate(np.log(pairs), by_pairs),
        }
        print(name)
        print("  window  " + "".join(f"{w:>9}" for w in windows))
        print("  error   " + "".join(f"{e:9.3f}" for e in by_window))
        print("  pairs   " + "".join(f"{n:>9}" for n in pairs))
        print("  error   " + "".join(f"{e:9.3f}" for e in by_pairs))
        last = list(found[name].items())[2:]
        print("  " + ", ".join(f"{what}: {value:.2f}" for what, value in last))
    options.directory.mkdir(parents=True, exist_ok=True)
    path = options.directory / "windows.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
