"""Error of the likelihood's gradient against seconds, for every regression: a figure and JSON.

    python benchmarks/gradient_error.py [DIRECTORY] [--quick]

On the toy model of the `gradient` experiment, z ~ N(0, I), x | z ~ N(softplus(b·z) − ‖b‖², σ_x²),
only s = b·z/‖b‖ ~ N(0, 1) matters, so that log p(x) is one integral over s, done on a fine grid.
Each regression gets more and more sleep samples; the error is the root mean square, over sleep
sets and over three b, of ‖g − exact‖/‖exact‖. Seconds are those of drawing, fitting and pulling;
the bandwidth is set once, beforehand.
"""

import argparse
import json
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from models import estimated_gradient, relative_error, root_mean_square

import alws
from alws.features import Network
from alws.kernels import SquaredExponential
from alws.regressions.base import one_lapack_thread
from alws_paper.gradient.experiment import TRUE_B, TRUE_NOISE, Toy

NOISE, RIDGE, DATA, REPEATS = 0.3, 0.01, 100, 10
PLACES = ((0.5, 0.75), (1.5, 0.75), (0.75, 1.75))
FEW, MANY = (250, 500, 1000, 2000, 4000), (500, 1000, 2000, 4000, 8000, 16000, 32000)


def polynomial(x):
    return jnp.stack([x**i for i in range(1, 7)])


def regressions():
    """Every regression, and the numbers of sleep samples it is tried with."""
    kernel = SquaredExponential(track=False)
    return {
        "exact": (alws.regressions.KernelRidge(kernel, ridge=RIDGE), FEW),
        "Nyström, 100 points": (
            alws.regressions.Nystrom(kernel, inducing=100, ridge=RIDGE, selection="k-means++"),
            MANY,
        ),
        "random features, 100 frequencies": (
            alws.regressions.RandomFeatures(kernel, frequencies=100, ridge=RIDGE),
            MANY,
        ),
        "conjugate gradients": (
            alws.regressions.ConjugateGradients(kernel, rank=100, ridge=RIDGE),
            MANY[:-2],
        ),
        "linear readout, 6 powers": (
            alws.regressions.LinearReadout(Network(polynomial), ridge=RIDGE),
            MANY,
        ),
    }


def toy_at(b):
    return Toy(jnp.array(b), jnp.array(NOISE))


def observed():
    """Data from the toy at its true parameters."""
    true = Toy(jnp.array(TRUE_B), jnp.array(TRUE_NOISE))
    return alws.draw(true, jax.random.key(0), DATA)[0].x


def exact_gradient(b, x):
    """∇_b (1/M) Σ_m log ∫ N(s; 0, 1) N(x_m; softplus(‖b‖s) − ‖b‖², σ²) ds on a grid."""
    s = np.linspace(-8, 8, 4001)

    def log_likelihood(b):
        size = jnp.sqrt(b @ b)
        mean = jax.nn.softplus(size * s) - size**2
        logpdf = jax.scipy.stats.norm.logpdf
        return jax.nn.logsumexp(logpdf(s) + logpdf(x[:, None], mean, NOISE), axis=1).mean()

    return np.asarray(jax.grad(log_likelihood)(jnp.array(b)))


def estimate(regression, x, b, key, number):
    """∇_b J̄ at b, on so many sleep samples."""
    toy = Toy(b, jnp.array(NOISE))
    sleep, _ = alws.draw(toy, key, number)
    return estimated_gradient(toy, regression.fit(sleep.x), sleep, x).b


def measure(regression, number, x):
    """Root mean square relative error, and seconds for one gradient."""
    step = eqx.filter_jit(lambda model, b, key: estimate(model, x, b, key, number))
    errors, times = [], []
    for i, b in enumerate(PLACES):
        first, exact = alws.draw(toy_at(b), jax.random.key(7), 500)[0].x, exact_gradient(b, x)
        started = regression.initialise(first)
        for j in range(REPEATS):
            key = jax.random.key(100 * i + j)
            if i == j == 0:
                jax.block_until_ready(step(started, jnp.array(b), key))
            began = time.perf_counter()
            found = np.asarray(step(started, jnp.array(b), key))
            times.append(time.perf_counter() - began)
            errors.append(relative_error(found, exact))
    return root_mean_square(errors), float(np.median(times))


def draw_figure(report, path):
    fig, axis = plt.subplots(figsize=(6.4, 4.4))
    for (name, rows), marker in zip(report.items(), "osD^v", strict=True):
        axis.plot(
            [row["seconds"] for row in rows],
            [row["error"] for row in rows],
            marker=marker,
            label=name,
        )
        last = rows[-1]
        axis.annotate(
            f"{last['sleep_samples']:,}",
            (last["seconds"], last["error"]),
            xytext=(4, 5),
            textcoords="offset points",
            fontsize=7,
        )
    axis.set(xscale="log", yscale="log", xlabel="seconds for one gradient")
    axis.set_ylabel("relative error of the gradient")
    axis.set_title("At the end of each line, the most sleep samples", fontsize=9)
    axis.grid(which="both", alpha=0.2)
    axis.legend(fontsize=8)
    fig.tight_layout()
    fig.savefig(path, dpi=150)
    plt.close(fig)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", default="runs/benchmarks", type=Path)
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes only")
    arguments = parser.parse_args()
    x, report = observed(), {}
    with one_lapack_thread():
        for name, (regression, sizes) in regressions().items():
            rows = []
            for number in sizes[:2] if arguments.quick else sizes:
                error, seconds = measure(regression, number, x)
                rows.append({"sleep_samples": number, "error": error, "seconds": seconds})
                print(name, rows[-1], flush=True)
            report[name] = rows
    arguments.directory.mkdir(parents=True, exist_ok=True)
    (arguments.directory / "gradient_error.json").write_text(json.dumps(report, indent=2) + "\n")
    draw_figure(report, arguments.directory / "gradient_error.png")


if __name__ == "__main__":
    main()
