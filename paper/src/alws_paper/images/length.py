"""Sample quality at the paper's length, §4.7: one plan of runs, some thirty hours of one core.

    MNIST     50 epochs, one seed, every method (WGAN-GP 500); where 50 epochs of a method take more
              than four hours of one core it runs as long as that
    MNIST     two further seeds of ALWS-F, ALWS-A and the VAE, to epoch 10
    Fashion   to epoch 20, ALWS-F, ALWS-A, ALWS with the library's regression, VAE and RWS

Fully connected generators, 2000 sleep samples, 10,000 pictures scored at the same epochs in all
runs. ALWS-A is as published: it adapts from the sixth epoch on, of Fashion's twenty as of MNIST's
fifty. The first seeds are compared at the last epoch they reached, and in equal time; the methods
with several seeds at the last epoch that all of these reached.

`desk` has 20 epochs or eleven minutes of training, whichever ends first: ALWS-F passes epoch 7 and
RWS epoch 5, a tenth of the paper's. ALWS-A as published begins to adapt there; before that it is
ALWS-F, and is left out. So is SIVI, which the paper trains twenty times as long as the others.

Every run has a folder of its own and goes on where it was stopped: `alws-paper bench length` is the
command that begins and that goes on. The gallery keeps the finished runs, and the command takes
them from there: another machine runs those that are missing. `--finished` makes figure and claims
of the runs that there are.
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from alws_paper.claim import Scale
from alws_paper.gallery import CELLS, RECORD, copy_cells
from alws_paper.images.claims import (
    EQUAL,
    HIGHEST,
    NAMES,
    Cells,
    Group,
    Groups,
    both_claim,
    likelihood_claim,
    likelihood_methods,
    lowest_claim,
    only,
    particles_claim,
)
from alws_paper.images.curves import Axis, Score
from alws_paper.images.experiment import ALL, PAPER, run_plans, shifted
from alws_paper.images.grid import is_done, tasks_of
from alws_paper.images.plan import Plan
from alws_paper.run import CLAIMS, Claim, Experiment, Run, RunError, start_or_resume

FIRST_MARK = 0.625
"""With this as the first epoch scored, 5, 10 and 20 are among the later ones."""


@dataclass(frozen=True)
class Settings(Plan):
    """The plan of the first part, and how far the others go."""

    again: tuple[str, ...] = ("ALWS-F", "ALWS-A", "VAE")
    again_seeds: tuple[int, ...] = (1, 2)
    again_epochs: float = 10.0
    fashion: tuple[str, ...] = ("ALWS-F", "ALWS-A", "ALWS", "VAE", "RWS")
    fashion_epochs: float = 20.0

    def parts(self) -> list[Plan]:
        """MNIST at length, further seeds of some methods, and Fashion."""
        shared = {name: getattr(self, name) for name in Plan.__dataclass_fields__}
        parts = [Plan(**shared)]
        rest = replace(parts[0], longer={})
        if self.again:
            again = replace(rest, methods=self.again, epochs=self.again_epochs)
            parts.append(replace(again, seeds=self.again_seeds))
        if self.fashion:
            fashion = replace(rest, methods=self.fashion, epochs=self.fashion_epochs)
            parts.append(replace(fashion, datasets=("fashion",)))
        return parts


def bench_length(
    preset: str, seed: int, directory: Path, *, finished: bool = False, published: Path
) -> list[Claim]:
    """Run a preset in a directory, or go on with it, with the runs that the gallery keeps.

    Arguments:
        preset, seed: as for any experiment; the first seed.
        directory: the run's; new, or one that holds the same preset and seed.
        finished: make figure and claims of the finished runs, and run nothing.
        published: the gallery. Its runs count if they are of the same settings and seed.

    Example: `bench_length("desk", 0, Path("runs/length"), published=Path("docs/gallery"))`.
    """

    def scale(settings: Settings) -> Scale:
        """What is compared, with the runs that are missing."""
        plans = [shifted(plan, seed) for plan in settings.parts()]
        cells = [cell for cell, _ in tasks_of(plans) if not is_done(cell, directory)]
        left = [f"{c.method} on {c.dataset}" + (f" (seed {c.seed})" * (c.seed > 0)) for c in cells]
        found = EXPERIMENT.scale(settings)
        if not finished or not left:
            return found
        return replace(found, compared=f"{found.compared}; not run yet: {', '.join(left)}")

    here = partial(run, finished_only=finished, published=published / EXPERIMENT.name)
    (directory / CLAIMS).unlink(missing_ok=True)  # it may be of fewer runs
    return start_or_resume(replace(EXPERIMENT, run=here, scale=scale), preset, seed, directory)


def run(
    settings: Settings, run: Run, *, finished_only: bool = False, published: Path | None = None
) -> list[Claim]:
    """Run the parts in their order, draw the figure, check the claims."""
    if published is not None and _is_same(published / RECORD, settings, run.seed):
        taken = copy_cells(published / CELLS, run.directory)
        run.tell(f"taken from {published}: {', '.join(taken) or 'nothing new'}")
    plans = [shifted(plan, run.seed) for plan in settings.parts()]
    groups = run_plans(plans, run, finished_only=finished_only)
    if not groups:
        raise RunError(f"no run of {run.directory} is finished. Leave out --finished to go on.")
    return claims(groups)


def _is_same(record: Path, settings: Settings, seed: int) -> bool:
    """Whether a published run had these settings and this seed."""
    if not record.exists():
        return False
    known = json.loads(record.read_text())
    wanted = json.loads(json.dumps(asdict(settings)))
    return known.get("seed") == seed and known.get("settings") == wanted


def claims(groups: Groups) -> list[Claim]:
    """The paper's at equal epochs, ours in equal time and by likelihood: one seed, and several."""
    first = {group: {m: of[:1] for m, of in cells.items()} for group, cells in groups.items()}
    found = particles_claim(first)
    for group, cells in groups.items():
        several = {m: of for m, of in cells.items() if len(of) > 1}
        for name, part in (("first seeds", first[group]), ("several seeds", several)):
            made = [
                claim
                for axis in ("epochs", "seconds")
                for score in ("frechet", "kernel")
                for how in (lowest_claim, both_claim)
                for claim in how(group, part, axis, score, PAPER[axis])
            ]
            made += _unadapted(group, part)
            if part is first[group]:
                made += likelihood_claim(group, part)
            found += [replace(claim, claim=f"{claim.claim}, {name}") for claim in made]
    return found


def _unadapted(group: Group, cells: Cells) -> list[Claim]:
    """ALWS-F and the library's own regression, each against the methods that are not ALWS."""
    rivals = [name for name in likelihood_methods(cells) if not name.startswith("ALWS")]
    than = " and ".join([", ".join(rivals[:-1]), rivals[-1]] if rivals[1:] else rivals)
    found = []
    both: tuple[Axis, ...] = ("epochs", "seconds")
    scores: tuple[Score, ...] = ("frechet", "kernel")
    for ours, axes in (("ALWS-F", both), ("ALWS", both[1:])):
        if ours not in cells or not rivals:
            continue
        part = only(cells, ours, *rivals)
        for axis in axes:
            for score in scores:
                words = f"{group}: {ours} has a lower {NAMES[score]} than {than} {EQUAL[axis]}"
                made = lowest_claim(group, part, axis, score, PAPER[axis], ours)
                found += [replace(claim, claim=words) for claim in made]
        if ours == "ALWS-F" and "ALWS-A" not in cells:
            words = f"a higher held-out likelihood than {than} at the end of training"
            for claim in likelihood_claim(group, part, ours):
                found.append(replace(claim, claim=claim.claim.replace(HIGHEST, words)))
    return found


EXPERIMENT = Experiment(
    name="images-at-length",
    title="sample quality at the paper's 50 epochs, some thirty hours of one core",
    presets={
        "quick": Settings(
            ("mnist",),
            ("connected",),
            ("ALWS-A", "VAE"),
            epochs=2.0,
            data_size=100,
            batch_size=50,
            hidden=8,
            sleep_samples=20,
            adapt_after_epochs=0.5,
            scored=170,
            first_mark=1.0,
            mark_ratio=2.0,
            again=("VAE",),
            again_seeds=(1,),
            again_epochs=1.0,
            fashion=("VAE",),
            fashion_epochs=1.0,
        ),
        "desk": Settings(
            ("mnist",),
            ("connected",),
            ("ALWS-F", "VAE", "RWS", "ALWS", "WGAN-GP", "VAE-SNF", "AL-P"),
            epochs=20.0,
            seconds=660.0,
            scored=10_000,
            first_mark=FIRST_MARK,
            annealed=50,
            again=(),
            fashion=("ALWS-F", "VAE"),
        ),
        "paper": Settings(
            ("mnist",),
            ("connected",),
            ALL,
            epochs=50.0,
            seconds=4 * 3600.0,
            longer={"WGAN-GP": 10.0},
            scored=10_000,
            first_mark=FIRST_MARK,
            annealed=100,
            temperatures=1000,
            chains=16,
        ),
    },
    run=run,
    scale=Plan.scale,
    not_printed="One seed, three of some methods, where the paper has ten; SIVI has 50 epochs, not "
    "1000. Methods whose 50 epochs take more than four hours of one core stop there.",
)
