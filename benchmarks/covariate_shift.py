"""What helps where the data lie outside the model's samples: error of the gradient, as JSON.

    python benchmarks/covariate_shift.py [--quick] [--repeats 20]

Factor analysis with one factor, whose likelihood is known exactly. The data are a cloud of a third
of the model's width, moved along its main axis by 0 to 4 of the model's standard deviations; in the
last row, "model's own", they are draws from the model. Errors are the root mean square, over sleep
sets, of ‖g − exact‖ over ‖exact‖, or, for the model's own draws, whose gradient is nearly zero,
as it is. Three regressions: one that suits the problem, one that is too stiff, and a linear one,
which cannot fit the quadratic log joint everywhere. The over-dispersed start is another model,
with its noise raised until the data lie inside its samples; its error is the plain regression's.
"""

import argparse
import json
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import multivariate_normal, norm
from models import estimated_gradient, root_mean_square

import alws
from alws.kernels import DotProduct, SquaredExponential
from alws.likelihoods import Gaussian
from alws.regressions.base import one_lapack_thread

SLEEP, DATA = 500, 100
DISTANCES = (0.0, 1.0, 2.0, 3.0, 4.0)
REGRESSIONS = {
    "suited, ridge 0.01": (SquaredExponential, 0.01),
    "stiff, four times the median bandwidth, ridge 1": (
        lambda: SquaredExponential(bandwidth=4.0, track=True),
        1.0,
    ),
    "linear, ridge 0.01": (DotProduct, 0.01),
}
SHIFTS = {
    "plain": None,
    "mean matching": alws.contrib.MeanMatching(),
    "mean matching, weights to 100": alws.contrib.MeanMatching(most=100.0),
    "density ratio": alws.contrib.DensityRatio(),
    "density ratio, weights to 100": alws.contrib.DensityRatio(most=100.0),
}


class Factors(eqx.Module):
    """z ~ N(0, 1), x | z ~ N(w z + b, diag exp(2 log_noise))."""

    loadings: jax.Array
    offset: jax.Array
    log_noise: jax.Array

    def sample_latent(self, key):
        return jax.random.normal(key)

    def log_prior(self, z):
        return norm.logpdf(z)

    def likelihood(self, z):
        return Gaussian(self.loadings * z + self.offset, jnp.exp(self.log_noise))

    def log_marginal(self, x):
        noise = jnp.diag(jnp.exp(2 * self.log_noise))
        covariance = jnp.outer(self.loadings, self.loadings) + noise
        return multivariate_normal.logpdf(x, self.offset, covariance)


MODEL = Factors(jnp.array([1.0, 0.5]), jnp.zeros(2), jnp.full(2, -0.5))


def flat(tree):
    return ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0]


def data_at(distance, key):
    """A small cloud at so many of the model's standard deviations; its own draws for None."""
    if distance is None:
        return alws.draw(MODEL, key, DATA)[0].x
    covariance = np.outer(MODEL.loadings, MODEL.loadings) + np.diag(np.exp(2 * MODEL.log_noise))
    sizes, axes = np.linalg.eigh(covariance)
    width = np.sqrt(sizes[-1])
    return distance * width * axes[:, -1] + width / 3 * jax.random.normal(key, (DATA, 2))


def estimated(estimate, regression, model, data, key):
    sleep, _ = alws.draw(model, key, SLEEP)
    smoother = regression.initialise(sleep.x).fit(sleep.x, data)
    gradient = estimated_gradient(model, smoother, sleep, data, estimate)
    return flat(gradient), smoother.outside(data)


def error(step, regression, model, data, repeats, relative):
    """Root mean square error of the gradient, and the share of data outside the samples."""
    exact = flat(eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(data).mean())(model))
    found = [step(regression, model, data, jax.random.key(i)) for i in range(repeats)]
    errors = np.linalg.norm(np.stack([g for g, _ in found]) - exact, axis=1)
    size = float(np.linalg.norm(exact)) if relative else 1.0
    return root_mean_square(errors) / size, float(np.mean([o for _, o in found]))


def measure(estimate, problems, repeats):
    step = eqx.filter_jit(lambda *arguments: estimated(estimate, *arguments))
    report = {}
    for label, (kernel, ridge) in REGRESSIONS.items():
        rows = []
        for distance, (data, start) in problems.items():
            row = {"distance": "model's own" if distance is None else distance}
            for name, by in SHIFTS.items():
                plain = by is None
                regression = (
                    alws.regressions.KernelRidge(kernel(), ridge=ridge)
                    if plain
                    else alws.contrib.Reweighted(kernel(), by=by, ridge=ridge)
                )
                relative = distance is not None
                value, outside = error(step, regression, MODEL, data, repeats, relative)
                row[name] = round(value, 4)
                if plain:
                    row["outside"] = round(outside, 3)
                    value, outside = error(step, regression, start, data, repeats, relative)
                    row["over-dispersed start"] = round(value, 4)
                    row["its outside"] = round(outside, 3)
                    widened = float(jnp.exp(start.log_noise - MODEL.log_noise)[0])
                    row["its noise over the model's"] = round(widened, 2)
            rows.append(row)
            print(type(estimate).__name__, label, row, file=sys.stderr, flush=True)
        report[label] = rows
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two distances and 5 sleep sets only")
    parser.add_argument("--repeats", type=int, default=20, help="sleep sets for each number")
    arguments = parser.parse_args()
    distances = DISTANCES[::3] if arguments.quick else DISTANCES
    repeats = 5 if arguments.quick else arguments.repeats
    problems = {}
    for distance in (*distances, None):
        data = data_at(distance, jax.random.key(100))
        start = alws.contrib.over_dispersed(
            MODEL, data, where=lambda m: m.log_noise, key=jax.random.key(5)
        )
        problems[distance] = data, start
    with one_lapack_thread():
        report = {
            type(estimate).__name__: measure(estimate, problems, repeats)
            for estimate in (alws.estimates.Joint(), alws.estimates.Natural())
        }
    print(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
