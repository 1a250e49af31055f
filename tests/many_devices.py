"""Fits that `test_many_devices.py` runs in processes of their own: `python many_devices.py JOB`.

JOB is JSON: a list of fits, each with the devices, the regression, the steps and where the result
goes, and how to join other processes, if any.
"""

import json
import os
import signal
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import alws
from alws.devices import device_put, make_mesh, over_devices, using
from alws.kernels import SquaredExponential
from alws.model import simulate


class Line(eqx.Module):
    """x_i = a_i z + noise, in three dimensions, in float64."""

    slope: jax.Array
    double = True

    def sample(self, key):
        normal = jax.random.normal(key, (4,))
        return normal[0], self.slope * normal[0] + normal[1:]

    def log_joint(self, z, x):
        return -0.5 * z**2 - 0.5 * jnp.sum((x - self.slope * z) ** 2)


class Moved(Line):
    """The same, moved by a condition."""

    def sample(self, key, c):
        z, x = super().sample(key)
        return z, x + c

    def log_joint(self, z, x, c):
        return super().log_joint(z, x - c)


REGRESSIONS = {
    "exact": lambda: alws.regressions.KernelRidge(SquaredExponential()),
    "nystrom": lambda: alws.regressions.Nystrom(SquaredExponential(), inducing=20),
    "leverage": lambda: alws.regressions.Nystrom(
        SquaredExponential(), inducing=20, selection="leverage"
    ),
    "random features": lambda: alws.regressions.RandomFeatures(
        SquaredExponential(), frequencies=20
    ),
    "conjugate gradients": lambda: alws.regressions.ConjugateGradients(
        SquaredExponential(), rank=16, tolerance=1e-8
    ),
}


def data(number):
    normal = np.random.default_rng(1).normal(size=(number, 4))
    return np.array([1.0, -1.0, 2.0]) * normal[:, :1] + normal[:, 1:]


def run(job):
    def die(report):
        if report.step == job.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)

    adam = optax.adam(0.05)
    settings = alws.Settings(
        REGRESSIONS[job.get("regression", "exact")](),
        alws.estimates.Centred(alws.estimates.Joint(), points=24) if job.get("centred") else None,
        optimiser=alws.natural_units(adam) if job.get("natural_units") else adam,
        sleep_samples=job.get("sleep_samples", 64),
        validation_samples=16,
        adapt=alws.Adapt() if job.get("adapt") else alws.ALWS_F,
        measure_every=1,
        devices=job["devices"],
        conditions=job.get("conditions", "pooled"),
    )
    number = job.get("data", 40)
    kind, conditions = Line, None
    if "conditions" in job:
        kind, conditions = Moved, np.linspace(-1, 1, number)
    if job.get("die_drawing"):
        Line.sample = lambda self, key: os.kill(os.getpid(), signal.SIGKILL)
    result = alws.fit(
        kind(jnp.array([0.5, 0.0, 0.5])),
        data(number) + job.get("shift", 0.0),
        conditions=conditions,
        key=jax.random.key(0, impl=job.get("impl", "threefry2x32")),
        steps=job.get("steps", 4),
        settings=settings,
        batch_size=job.get("batch_size"),
        checkpoint=job.get("checkpoint"),
        checkpoint_every=job.get("checkpoint_every", 500),
        resume=job.get("resume", False),
        callbacks=[die, *map(alws.MetricsFile, job.get("metrics", []))],
    )
    leaves = jax.tree.leaves(eqx.filter(result.state, eqx.is_inexact_array))
    values = [np.asarray(leaf).ravel() for leaf in leaves]
    np.save(job["out"], np.concatenate([*values, *(result.metrics[m] for m in METRICS)]))


def shares(number, out):
    """How often the program of a simulation speaks of all draws, and of an eighth of them."""
    mesh = make_mesh(8)
    slope, key = device_put((jnp.ones(3), jax.random.key(0)), mesh)
    with using(mesh):
        draw = jax.jit(lambda slope, key: simulate(Line(slope), key, number))
        text = draw.lower(slope, key).compile().as_text()
    np.save(out, [text.count(f"[{number}"), text.count(f"[{number // 8}")])


def exchanges(number, out):
    """How many collectives the program of a regression has whose factor is made in blocks."""
    mesh = make_mesh(8)
    with using(mesh):

        def weights(x, points):
            x, points = over_devices((x, points))
            smoother = alws.regressions.KernelRidge(SquaredExponential(), ridge=0.1).fit(x)
            return smoother.weights(points)

        arguments = device_put((jnp.ones((number, 3)), jnp.ones((16, 3))), mesh, divided=True)
        text = jax.jit(weights).lower(*arguments).compile().as_text()
    np.save(out, sum(text.count(f" {kind}(") for kind in COLLECTIVES))


COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
METRICS = (
    "objective",
    "gradient_norm",
    "held_out_r2",
    "outside",
    "effective_samples",
    "solver_residual",
    "ridge",
)


def main():
    everything = json.loads(sys.argv[1])
    if "join" in everything:
        alws.devices.start(**everything["join"])
    if "rows" in everything:
        alws.devices.ROWS = everything["rows"]
    if "shares" in everything:
        shares(4096, everything["shares"])
        exchanges(alws.regressions.base.LARGE + 7, everything["exchanges"])
    for job in everything["fits"]:
        run(job)


if __name__ == "__main__":
    main()
