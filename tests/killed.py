"""Fits that are made to be killed, each in a process of its own.

`python killed.py` reads a job a line and forks a child for it: the library is imported once.
The child says its number, `report` after each report of the fit, and `writing` where a job wants it
to stop inside the writing of a checkpoint; there it waits to be killed. A fit that comes to its end
leaves its parameters in `result.npy`.
"""

import json
import os
import sys
import time
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import alws


class Effect(eqx.Module):
    """z ~ N(0, e^log_scale), three numbers x_i ~ N(mean + z, 1)."""

    mean: jax.Array
    log_scale: jax.Array

    def sample(self, key):
        z, *noise = jax.random.normal(key, (4,))
        z = jnp.exp(self.log_scale) * z
        return z, self.mean + z + jnp.stack(noise)

    def log_joint(self, z, x):
        prior = norm.logpdf(z, 0.0, jnp.exp(self.log_scale))
        return prior + norm.logpdf(x, self.mean + z).sum()


STEPS = 60


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def wait_inside(where: str, number: int) -> None:
    """Stop in the writing of checkpoint `number`: before it takes its name, or half-way through."""
    kept = os.replace, zipfile.ZipFile.writestr
    counts = {"replace": 0, "half": 0}

    def replace(old, new):
        counts["replace"] += 1
        if where == "replace" and counts["replace"] == number:
            say("writing")
            time.sleep(600)
        kept[0](old, new)

    def writestr(archive, name, content):
        if name == alws.checkpoint.HEADER:
            counts["half"] += 1
        elif where == "half" and counts["half"] == number:
            archive.fp.write(content[: len(content) // 2])
            archive.fp.flush()
            say("writing")
            time.sleep(600)
        kept[1](archive, name, content)

    os.replace, zipfile.ZipFile.writestr = replace, writestr


def fit(folder: str, kind: str, inside: str = "", number: int = 0) -> None:
    """Fit from where the checkpoint in the folder is, or from the start."""
    if inside:
        wait_inside(inside, number)
    path = Path(folder) / "checkpoint.npz"
    if not path.exists():  # it begins anew; what was killed before its first checkpoint goes
        (Path(folder) / "metrics.jsonl").unlink(missing_ok=True)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(40, 1)) + rng.normal(size=(40, 3))
    small = alws.Settings(sleep_samples=40, validation_samples=10, measure_every=1)
    asked = {"steps": STEPS, "settings": small} if kind == "steps" else {}
    result = alws.fit(
        Effect(jnp.array(2.0), jnp.array(-1.0)),
        data,
        key=jax.random.key(0),
        checkpoint=path,
        checkpoint_every=5 if kind == "steps" else 1,
        resume=path.exists(),
        callbacks=[
            alws.MetricsFile(Path(folder) / "metrics.jsonl"),
            lambda report: say("report", report.step),
        ],
        **asked,
    )
    np.save(Path(folder) / "result.npy", [result.model.mean, result.model.log_scale])


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            say("pid", os.getpid())
            try:
                fit(**json.loads(line))
            finally:
                say("ended")
                os._exit(0)
        os.waitpid(child, 0)
        say("over")


if __name__ == "__main__":
    serve()
