"""γ fixed, adapted on Ĵ (the paper's criterion) or on its gradient: the fit after equal time, JSON.

    python benchmarks/criteria.py [--quick] [--seconds 60] [--seeds 2] [--problems pinwheel mnist]

Where `adaptation.py` looks at the gradient's error at a fixed θ, this one looks at whole fits.

- pinwheel: the experiment's model and penalties, Adam at a constant rate; the score is the mean log
  likelihood of the data, log (1/K) Σ_k p(x | z_k) with many z_k from the prior; higher is better.
- mnist: the fully connected generator with 1000 sleep samples, γ adapted from step 100 on; the
  score is the Fréchet distance on LeNet's features; lower is better.

Run it held to one core (`taskset -c 0`): time is then that core's, whatever else runs beside it.
"""

import argparse
import json
import sys
import time
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import alws
from alws.features import Standardise
from alws.kernels import SquaredExponential
from alws_paper.images.data.images import images
from alws_paper.images.plan import Plan, method_of
from alws_paper.images.scorer import Scorer
from alws_paper.images.trainer import train
from alws_paper.pinwheel.data import pinwheel
from alws_paper.pinwheel.experiment import EXPERIMENT, Pinwheel, penalty

CRITERIA = ("fixed", "objective", "gradient")
DRAWS = 20_000
SETTINGS = EXPERIMENT.settings("desk")


def mean_log_likelihood(model, data, key):
    z = jax.vmap(model.sample_latent)(jax.random.split(key, DRAWS))
    centres, noise = jax.vmap(model.network)(z[1]), jnp.exp(model.log_noise)

    def one(x):
        densities = jax.scipy.stats.norm.logpdf(x, centres, noise).sum(axis=1)
        return jax.nn.logsumexp(densities) - np.log(DRAWS)

    return jax.lax.map(one, data, batch_size=100).mean()


def fit_pinwheel(criterion, seconds, seed):
    """The score, and the steps taken in the time."""
    data_key, start_key, fit_key, score_key = jax.random.split(jax.random.key(seed), 4)
    data, _ = pinwheel(data_key, points_per_arm=SETTINGS.points_per_arm)
    adapt = alws.ALWS_F if criterion == "fixed" else alws.Adapt(criterion=criterion)
    kernel = SquaredExponential(Standardise.from_data(data))
    began = []

    def stop(report):
        began.append(time.process_time())
        return began[-1] - began[0] > seconds

    result = alws.fit(
        Pinwheel(start_key),
        data,
        key=fit_key,
        steps=10**6,
        batch_size=SETTINGS.batch_size,
        log_prior=lambda model: len(data) * penalty(model, SETTINGS),
        settings=alws.Settings(
            regression=alws.regressions.KernelRidge(kernel, ridge=SETTINGS.ridge),
            optimiser=optax.adam(2e-3),
            sleep_samples=SETTINGS.sleep_samples,
            adapt=adapt,
        ),
        callbacks=[stop],
        progress=False,
    )
    score = eqx.filter_jit(mean_log_likelihood)
    return float(score(result.model, data, score_key)), len(began) * alws.Settings().measure_every


def fit_mnist(criterion, seconds, seed):
    method = "ALWS-F" if criterion == "fixed" else "ALWS-A"
    plan = Plan(("mnist",), ("connected",), (method,), (seed,), seconds=seconds, sleep_samples=1000)
    data = images("mnist")
    method = method_of(plan.cells()[0], plan, data)
    if criterion != "fixed":
        adapt = replace(method.adapt, after=100, learning_rate=1e-4, criterion=criterion)
        method = replace(method, adapt=adapt)
    train_key, score_key = jax.random.split(jax.random.key(seed))
    trained = train(method, jnp.asarray(data.train), key=train_key, seconds=seconds)
    frechet, _ = Scorer(data, number=plan.scored)(method.generator(trained.state), score_key)
    return frechet, trained.steps


PROBLEMS = {"pinwheel": fit_pinwheel, "mnist": fit_mnist}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five seconds, one seed")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    arguments = parser.parse_args()
    seconds, seeds = (5.0, 1) if arguments.quick else (arguments.seconds, arguments.seeds)
    report = {}
    for problem in arguments.problems:
        for criterion in CRITERIA:
            found = [PROBLEMS[problem](criterion, seconds, 10 + seed) for seed in range(seeds)]
            scores, steps = zip(*found, strict=True)
            report[f"{problem}, {criterion}"] = {
                "scores": [round(score, 4) for score in scores],
                "steps": [int(number) for number in steps],
            }
            print(problem, criterion, scores, steps, file=sys.stderr, flush=True)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
