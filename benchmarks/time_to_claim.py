"""Seconds of training to the end of `desk` and of `paper`, for five experiments, as JSON.

    python benchmarks/time_to_claim.py [--quick] [--quality] [--experiments pinwheel ica]

Of each fit of a preset some reports are timed, and the preset's number of steps is counted at that
speed, so that the paper's hours need not be waited for; both presets run on today's code. `paper`
has the paper's numbers of samples and steps and its rates, and its kernel in the gradient, the
pinwheel and ICA; ecology and the neuron have one regression in both presets. The pinwheel's penalty
is the printed one in `paper`, that of the authors' code in `desk`. Rivals and figures are not
counted.

What quality `desk` ends with is in its claims (`docs/gallery`), of which the share that holds is
given. With `--quality` the paper's settings are run too, each fit for that share of its steps which
takes twice the time of `desk`, and their claims are given beside: where fewer hold, `desk` is at
least twice as fast at the quality it has. Rivals get the effort that `desk` gives them.

The `gradient` experiment has no fit. Its seconds are those of one estimate, and its error is that
against the exact gradient, the root mean square over sleep sets and over three b.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gradient_error import NOISE, PLACES, exact_gradient, observed
from models import relative_error, root_mean_square

import alws
from alws.regressions.base import one_lapack_thread
from alws_paper.experiments import EXPERIMENTS
from alws_paper.gradient.experiment import by_published, by_regression
from alws_paper.run import Run

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
FITS = ("pinwheel", "ica", "ecology", "hodgkin-huxley")
SETS = 20


TWICE = 2.0
RIVALS = {
    "pinwheel": ("sin_steps",),
    "ica": ("vae_steps",),
    "ecology": ("k2_draws", "pilot_draws", "chain_steps", "chain_simulations"),
    "hodgkin-huxley": (),
}
"""What of a preset is the rivals' effort."""


class Enough(Exception):
    """Every fit of the experiment was timed."""


@dataclass(frozen=True)
class Timed(Run):
    """A run whose every fit stops after some steps and is timed; `fits` is how many there are."""

    fits: int = 1
    most: int = 4
    seconds: dict[str, float] = field(default_factory=dict)

    def fit_arguments(self, name: str = "checkpoint", trace: Any = None) -> dict[str, Any]:
        seen: list[tuple[int, float]] = []

        def callback(report: alws.Report) -> bool:
            jax.block_until_ready(report.model)
            seen.append((report.step, time.perf_counter()))
            if len(seen) < self.most:
                return False
            steps, seconds = np.diff(np.array(seen), axis=0).T
            self.seconds[name] = float(np.min(seconds / steps)) * report.steps
            if len(self.seconds) == self.fits:
                raise Enough
            return True

        return {"callbacks": [callback], "progress": False}


@dataclass(frozen=True)
class Limited(Run):
    """A run whose every fit stops after this share of its steps."""

    share: float = 1.0

    def fit_arguments(self, name: str = "checkpoint", trace: Any = None) -> dict[str, Any]:
        arguments = super().fit_arguments(name, trace)

        def stop(report: alws.Report) -> bool:
            return report.step >= self.share * report.steps

        return arguments | {"callbacks": [*arguments["callbacks"], stop]}


def claims_after(name: str, share: float) -> list[Any]:
    """The claims of the paper's settings after a share of their steps."""
    experiment = EXPERIMENTS[name]
    desk, paper = (experiment.settings(preset) for preset in ("desk", "paper"))
    effort = {field: getattr(desk, field) for field in RIVALS[name]}
    with tempfile.TemporaryDirectory() as directory:
        run = Limited(Path(directory), 0, False, share=share)
        return experiment.run(replace(paper, **effort), run)


def whole_fit(name: str, preset: str, most: int) -> float:
    """Seconds of all the fits of a preset."""
    experiment = EXPERIMENTS[name]
    settings = experiment.settings(preset)
    fits = 2 + len(settings.held_noise) if name == "ica" else 1
    with tempfile.TemporaryDirectory() as directory:
        run = Timed(Path(directory), 0, False, fits=fits, most=most)
        try:
            experiment.run(settings, run)
        except Enough:
            return sum(run.seconds.values())
    raise RuntimeError(f"{name} ended after {len(run.seconds)} of {fits} fits.")


def estimate(preset: str, sets: int) -> tuple[float, float]:
    """Seconds of one estimate of the gradient experiment, and its relative error."""
    settings = EXPERIMENTS["gradient"].settings(preset)
    x, noise = observed(), jnp.array(NOISE)
    way = by_published if preset == "paper" else by_regression
    gradient = eqx.filter_jit(lambda b, key: way(b, noise, x, key, settings))
    jax.block_until_ready(gradient(jnp.array(PLACES[0]), jax.random.key(0)))
    errors, times = [], []
    for place in PLACES:
        exact = exact_gradient(place, x)
        for key in jax.random.split(jax.random.key(1), sets):
            began = time.perf_counter()
            found = np.asarray(gradient(jnp.array(place), key))
            times.append(time.perf_counter() - began)
            errors.append(relative_error(found, exact))
    return min(times), root_mean_square(errors)


def held(claims: list[dict[str, Any]]) -> str:
    decided = [claim["holds"] for claim in claims if claim["holds"] is not None]
    return f"{sum(decided)} of {len(decided)}, {len(claims) - len(decided)} undecided"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps of each fit")
    parser.add_argument("--quality", action="store_true", help="also run the paper's settings")
    parser.add_argument("--experiments", nargs="+", default=["gradient", *FITS])
    arguments = parser.parse_args()
    most, sets = (2, 2) if arguments.quick else (4, SETS)
    report = {}
    with one_lapack_thread():
        for name in arguments.experiments:
            if name == "gradient":
                (desk, error), (paper, paper_error) = (estimate(p, sets) for p in ("desk", "paper"))
                quality = {"desk_error": round(error, 4), "paper_error": round(paper_error, 4)}
            else:
                desk, paper = (whole_fit(name, preset, most) for preset in ("desk", "paper"))
                claims = json.loads((GALLERY / name / "claims.json").read_text())
                quality: dict[str, Any] = {"claims_of_desk_that_hold": held(claims)}
                if arguments.quality:
                    share = min(1.0, TWICE * desk / paper)
                    found = [asdict(claim) for claim in claims_after(name, share)]
                    quality["share_of_paper_run"] = round(share, 4)
                    quality["claims_of_paper_that_hold"] = held(found)
                    quality["claims_of_paper"] = found
            report[name] = {
                "desk_seconds": round(desk, 3),
                "paper_seconds": round(paper, 3),
                "times_as_fast": round(paper / desk, 2),
            } | quality
            print(json.dumps({name: report[name]}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
