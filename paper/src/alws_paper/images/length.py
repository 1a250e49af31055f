"""Sample quality at the paper's length, §4.7: one plan of runs, some thirty hours of one core.

    MNIST     50 epochs, one seed, every method (WGAN-GP 500); where 50 epochs of a method take more
              than four hours of one core it runs as long as that
    MNIST     two further seeds of ALWS-F, ALWS-A and the VAE, to epoch 10
    Fashion   to epoch 20, ALWS-F, ALWS-A, ALWS with the library's regression, VAE and RWS

Fully connected generators, 2000 sleep samples, 10,000 pictures scored at the same epochs in all
runs. ALWS-A is as published: it adapts from the sixth epoch on, of Fashion's twenty as of MNIST's
fifty. The first seeds are compared at the last epoch they reached, and in equal time; the methods
with several seeds at the last epoch that all of these reached.

Every run has a folder of its own and goes on where it was stopped: `alws-paper bench length` is the
command that begins and that goes on.
"""

from dataclasses import dataclass, replace

from alws_paper.images.claims import (
    Groups,
    both_claim,
    likelihood_claim,
    lowest_claim,
    particles_claim,
)
from alws_paper.images.experiment import ALL, PAPER, run_plans, shifted
from alws_paper.images.plan import Plan
from alws_paper.run import Claim, Experiment, Run

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
        whole = Plan(**shared)
        rest = replace(whole, longer={}, methods=self.again, epochs=self.again_epochs)
        again = replace(rest, seeds=self.again_seeds)
        fashion = replace(
            rest, datasets=("fashion",), methods=self.fashion, epochs=self.fashion_epochs
        )
        return [whole, again, fashion]


def run(settings: Settings, run: Run) -> list[Claim]:
    """Run the parts in their order, draw the figure, check the claims."""
    return claims(run_plans([shifted(plan, run.seed) for plan in settings.parts()], run))


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
            made += likelihood_claim(group, part) if part is first[group] else []
            found += [replace(claim, claim=f"{claim.claim}, {name}") for claim in made]
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
            ALL,
            epochs=10.0,
            seconds=3600.0,
            adapt_after_epochs=1.0,
            scored=10_000,
            first_mark=FIRST_MARK,
            annealed=50,
            again_epochs=5.0,
            fashion_epochs=5.0,
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
