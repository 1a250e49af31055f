"""Sample quality, §4.7: nine methods fit one generator, all in the same time.

    z ~ N(0, I₁₆),  x | z ~ N(tanh(NN_w(z)), σ²)   (Bernoulli for binarised digits)

Fréchet and kernel distances of pictures from the test images, lower is better, on features of LeNet
or, for all but digits and garments, EfficientNet; they cannot be compared with published FID and
KID. Two comparisons: at equal epochs, as the paper's, and at equal wall-clock time. WGAN-GP is
shown beside but is not a method of maximum likelihood.

`desk` has fully connected networks, 16 → 512 → 512 → pixels, and a budget that lets two seeds of
all methods end on two cores within two hours. ALWS has 1000 sleep samples there, which in equal
time measured better than the paper's 2000 (one minute of MNIST, seed 0, the same score), and ALWS-A
adapts its kernel from a fifth of an epoch on, about a tenth of its run, as the paper waits for five
epochs of fifty. All else is the paper's. `paper` trains SIVI for 1000 epochs and WGAN-GP for 500,
the others for 50.
"""

from dataclasses import replace

from alws_paper.gallery import TABLE
from alws_paper.images.claims import (
    Groups,
    agreement_claim,
    both_claim,
    grouped,
    likelihood_claim,
    lowest_claim,
    particles_claim,
)
from alws_paper.images.figure import figure
from alws_paper.images.grid import examples, run_grid, write_table
from alws_paper.images.methods import METHODS
from alws_paper.images.plan import DATASETS, Plan
from alws_paper.run import Claim, Experiment, Run

ALL = tuple(METHODS)
PAPER = {
    "epochs": "much smaller than other maximum-likelihood methods on MNIST and Fashion (50 epochs)",
    "seconds": "not compared: a step is much slower (bar: the lowest median over seeds)",
}
LONGER = {"SIVI": 20.0, "WGAN-GP": 10.0}
"""How many times the others' 50 epochs the paper trains these."""


def shifted(plan: Plan, seed: int) -> Plan:
    """The plan with every seed counted from the run's.

    Example: `shifted(plan, 3).seeds == (3, 4)` for a plan with seeds 0 and 1.
    """
    return replace(plan, seeds=tuple(seed + s for s in plan.seeds))


def run(settings: Plan, run: Run) -> list[Claim]:
    """Run the grid, draw the figure, check the claims."""
    groups = run_plans([shifted(settings, run.seed)], run)
    claims = []
    for group, cells in groups.items():
        for axis in ("epochs", "seconds"):
            for score in ("frechet", "kernel"):
                claims += lowest_claim(group, cells, axis, score, PAPER[axis])
                claims += both_claim(group, cells, axis, score, PAPER[axis])
    claims += particles_claim(groups) + agreement_claim(groups)
    for group, cells in groups.items():
        claims += likelihood_claim(group, cells)
    return claims


def run_plans(plans: list[Plan], run: Run, *, finished_only: bool = False) -> Groups:
    """Run the grid in the run's directory, keep the last scores as metrics, draw the figure.

    With `finished_only` nothing is run; without a finished run nothing is drawn.
    """

    def progress(finished: int, cells: int) -> None:
        run.tell(f"{finished} of {cells} runs finished", end="\r")

    finished = run_grid(plans, run.directory, progress=progress, finished_only=finished_only)
    if not finished:
        return {}
    (run.directory / "metrics.jsonl").unlink(missing_ok=True)
    for number, one in enumerate(finished, start=1):
        summary = {k: float("nan") if v is None else v for k, v in one.summary.items()}
        numbers = {k: float(v) for k, v in summary.items() if not isinstance(v, str)}
        numbers.pop("steps")
        run.log(number, len(finished), **numbers)
    groups = grouped(finished)
    write_table(finished, run.directory / TABLE)
    data = {name: examples(name) for name in dict.fromkeys(group.dataset for group in groups)}
    run.save_figure(figure(groups, data, run.setting), dpi=170)
    return groups


EXPERIMENT = Experiment(
    name="images",
    title="sample quality of nine methods at equal epochs and in equal time",
    presets={
        "quick": Plan(
            ("mnist",),
            ("connected",),
            ("ALWS-A", "VAE"),
            epochs=1.0,
            data_size=400,
            hidden=8,
            sleep_samples=30,
            adapt_after_epochs=0.25,
            scored=200,
            first_mark=0.5,
            mark_ratio=4.0,
        ),
        "desk": Plan(
            ("mnist", "fashion"),
            ("connected",),
            ALL,
            (0, 1),
            seconds=200.0,
            sleep_samples=1000,
            adapt_after_epochs=0.2,
            annealed=50,
            workers=2,
        ),
        "paper": Plan(
            DATASETS,
            ("dcgan", "connected"),
            ALL,
            tuple(range(10)),
            epochs=50.0,
            longer=LONGER,
            scored=10_000,
            scored_slowly=10_000,
            annealed=100,
            temperatures=1000,
            chains=16,
            workers=2,
        ),
    },
    run=run,
    scale=Plan.scale,
    not_printed="The features of natural images, CIFAR-10 and CelebA are EfficientNet's, not "
    "Inception's; natural images are of another set than van Hateren's, and faces those that are "
    "there. Ten seeds of 50 epochs of all methods take months of one core.",
)
