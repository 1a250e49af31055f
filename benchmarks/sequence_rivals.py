"""Sequences with a known maximum, fitted by others beside `alws.fit`: how near, and how soon.

    pip install hmmlearn statsmodels pypomp
    python benchmarks/sequence_rivals.py [--problems chain_300 ricker] [--json FILE]
        [--table docs/benchmarks.md] [--quick]

| problems | others |
|---|---|
| hidden Markov chains | EM by hmmlearn, from ten of its own starts, one after the other |
| linear and Gaussian | statsmodels, from its own start |
| volatility, Ricker, hunted, epidemic | iterated filtering (IF2) by pypomp, from our start |

All in one process. Seconds are of the processor, compilation included, until the exact log
likelihood is at most 0.05 nats a parameter below the known maximum, and in all. IF2 has 1000
particles, random walks of 0.02 that are halved every 50 iterations, and 200 iterations; the exact
likelihood of its mean is looked at after every 20 of them, and that does not count. What is not
installed is left out.
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import alws

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this file's own directory
from known_maxima import PROBLEMS

BAR = 0.05
"""Nats for each free parameter that a fit may be below the maximum."""
CHAINS = ("discoveries_2_states", "discoveries_3_states", "chain_300", "chain_10000")
LINEAR = ("huron_level", "huron_returning", "gas_seasons")
SIMULATED = ("volatility", "ricker", "hunted", "epidemic")
PARTICLES, ITERATIONS, CHUNK, WALK, HALVED = 1000, 200, 20, 0.02, 50


def by_alws(problem):
    """Where the default fit ends: one point of the way."""
    began = time.process_time()
    data, given = problem.data, problem.conditions
    result = alws.fit(problem.start, data, conditions=given, key=jax.random.key(0))
    jax.block_until_ready(jax.tree.leaves(result.model))
    yield time.process_time() - began, problem.log_likelihood(result.model)


def by_hmmlearn(problem):
    """The log likelihood after every iteration of EM, of one start after the other."""
    from hmmlearn import hmm

    states, counts = len(problem.start.first), hasattr(problem.start, "log_rates")
    column = problem.data.reshape(-1, 1).astype(int if counts else float)
    kind, spent = hmm.PoissonHMM if counts else hmm.GaussianHMM, 0.0
    for start in range(10):
        began = time.process_time()
        theirs = kind(states, n_iter=1000, tol=1e-4, random_state=start).fit(column)
        took, found = time.process_time() - began, list(theirs.monitor_.history)
        for i, value in enumerate(found):
            yield spent + took * (i + 1) / len(found), value
        spent += took
        yield spent, theirs.score(column)


def by_statsmodels(problem):
    """Where the rival of the problem, a fit of statsmodels by its own likelihood, ends."""
    began = time.process_time()
    reached = problem.rival()[1]
    yield time.process_time() - began, reached


def by_pypomp(problem):
    """The exact log likelihood of the mean parameters of IF2 after every so many iterations."""
    import pandas as pd
    import pypomp

    start, x = problem.start, np.asarray(problem.data[0])
    leaves = {k: v for k, v in vars(start).items() if eqx.is_inexact_array(v)}
    columns = x.reshape(len(x), -1)
    seen = [f"x{j}" for j in range(columns.shape[1])]
    size = np.size(start.start(start.initial().sample(jax.random.key(0))))
    states = [f"s{j}" for j in range(size)]

    def at(theta):
        return eqx.tree_at(
            lambda m: [getattr(m, name) for name in leaves],
            start,
            [jnp.asarray(theta[name]) for name in leaves],
        )

    def named(state, moved):
        return {**dict(zip(states, jnp.atleast_1d(state), strict=True)), "moved": moved}

    def numbers(named):
        state = jnp.stack([named[name] for name in states])
        return state if size > 1 else state[0]

    def rinit(theta_, key, covars, t0):
        model = at(theta_)
        return named(model.start(model.initial().sample(key)), jnp.array(0.0))

    def rproc(X_, theta_, key, covars, t, dt):  # the first x is of the start itself
        model, state = at(theta_), numbers(X_)
        after = model.update(state, model.transition(state).sample(key))
        return named(jnp.where(X_["moved"] > 0, after, state), jnp.array(1.0))

    def dmeas(Y_, X_, theta_, covars, t):
        y = jnp.stack([Y_[name] for name in seen])
        return at(theta_).observation(numbers(X_)).log_prob(y.reshape(x.shape[1:])).sum()

    data = pd.DataFrame(columns, index=np.arange(1.0, len(x) + 1), columns=seen)
    theta = pypomp.PompParameters({name: float(v) for name, v in leaves.items()})
    theirs = pypomp.Pomp(
        ys=data, theta=theta, statenames=[*states, "moved"], t0=0.0,
        rinit=rinit, rproc=rproc, dmeas=dmeas, nstep=1,
    )  # fmt: skip
    spent = 0.0
    for done in range(0, ITERATIONS, CHUNK):
        began = time.process_time()
        walks = {name: WALK * 0.5 ** (done / HALVED) for name in leaves}
        walks = pypomp.RWSigma(walks).geometric_cooling(0.5)
        theirs.mif(J=PARTICLES, M=CHUNK, rw_sd=walks, key=jax.random.key(done))
        spent += time.process_time() - began
        end = theirs.results().iloc[-1]
        yield spent, problem.log_likelihood(at({name: float(end[name]) for name in leaves}))


OTHERS = {
    **dict.fromkeys(CHAINS, ("hmmlearn", "EM by hmmlearn, ten starts", by_hmmlearn)),
    **dict.fromkeys(LINEAR, ("statsmodels", "statsmodels", by_statsmodels)),
    **dict.fromkeys(SIMULATED, ("pypomp", "IF2 by pypomp", by_pypomp)),
}


def measure(problem, name, way):
    """The seconds to the bar, those in all and the gap of the highest, of one way of fitting."""
    found = list(way(problem))
    near = problem.maximum - BAR * problem.parameters
    soon = [seconds for seconds, value in found if value >= near]
    gap = problem.maximum - max(value for _, value in found)
    return {"by": name, "gap": gap, "to_bar": min(soon, default=None), "in_all": found[-1][0]}


def markdown(report):
    """A row for each problem and way."""
    lines = ["| problem | by | gap, nats | seconds to the bar | in all |", "|---|---|---|---|---|"]
    for problem, rows in report.items():
        for row in rows:
            soon = "never" if row["to_bar"] is None else f"{row['to_bar']:.1f}"
            lines.append(
                f"| `{problem}` | {row['by']} | {row['gap']:.3f} | {soon} | {row['in_all']:.1f} |"
            )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="+", default=list(OTHERS), choices=list(OTHERS))
    parser.add_argument("--json", type=Path, help="fits that it has are not made again")
    parser.add_argument("--table", type=Path, metavar="DOCUMENT")
    parser.add_argument("--quick", action="store_true", help="one problem, none of the others")
    arguments = parser.parse_args()
    kept = arguments.json is not None and arguments.json.exists()
    report = json.loads(arguments.json.read_text()) if kept else {}
    for name in ["huron_level"] if arguments.quick else arguments.problems:
        if name in report:
            continue
        problem, (package, other, way) = PROBLEMS[name](0), OTHERS[name]
        report[name] = [measure(problem, "`alws.fit`", by_alws)]
        if importlib.util.find_spec(package) and not arguments.quick:
            report[name].append(measure(problem, other, way))
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=1) + "\n")
        print(markdown({name: report[name]}), flush=True)
    if arguments.table:
        begin, end = "<!-- rivals of sequences -->\n", "\n<!-- end of rivals of sequences -->"
        before, found, rest = arguments.table.read_text().partition(begin)
        if not found or end not in rest:
            raise SystemExit(f"{arguments.table} must have {begin}and{end}, between which it goes.")
        text = before + begin + markdown(report) + end + rest.partition(end)[2]
        arguments.table.write_text(text)


if __name__ == "__main__":
    main()
