"""Sample quality beside the main comparison: other data, and convolutional generators.

Three parts: binarised digits with the fully connected generator, all methods; digits with a narrow
DCGAN and, to see whether the two agree, with the connected one, all methods; and natural patches,
CIFAR-10 and CelebA with ALWS-F, ALWS-A and the VAE. The last are scored on EfficientNet's features
with few pictures, as each costs 40 ms on one core, and by the kernel distance alone: of fewer
pictures than twice the features no Fréchet distance is shown.
"""

from dataclasses import dataclass, field, replace

from alws_paper.images.claims import Group, Groups, agreement_claim, lowest_claim
from alws_paper.images.experiment import ALL, LONGER, run_plans, shifted
from alws_paper.images.plan import Plan
from alws_paper.run import Claim, Experiment, Run, Scale

FEW = ("ALWS-F", "ALWS-A", "VAE")
PAPER = {
    "b-mnist": "the best maximum-likelihood method by FID (convolutional, 50 epochs)",
    "mnist": "much smaller than other maximum-likelihood methods (50 epochs)",
    "natural": "fully connected: outperforms other methods by FID on all data sets but this one",
    "cifar-10": "the best maximum-likelihood method by FID (50 epochs)",
    "celeba": "fully connected: ALWS outperforms other maximum-likelihood methods by FID",
}
TIME = "not compared (bar: the lowest median over seeds)"


@dataclass(frozen=True)
class Settings(Plan):
    """A plan whose data sets with the names in `few` are fitted by three methods only.

    Digits have all the generators, the other data sets connected ones. The DCGAN's steps take three
    times as long or more, so it has seconds of its own. `few_adapt_after` has, for data sets whose
    epochs are shorter or longer, the epochs after which ALWS-A adapts its kernel.
    """

    dcgan_seconds: float | None = None
    few: tuple[str, ...] = ("natural", "cifar-10", "celeba")
    few_adapt_after: dict[str, float] = field(default_factory=dict)
    slow_first: float = 0.1
    slow_ratio: float = 4.0

    def scale(self) -> Scale:
        """What a run compares, the DCGAN's own seconds included."""
        compared = super().scale().compared
        if self.dcgan_seconds is not None:
            compared += f"; {self.dcgan_seconds:g} s for the DCGAN"
        return Scale(compared)

    def parts(self) -> list[Plan]:
        """A plan for each data set, and one for the DCGAN."""
        main = [s for s in self.datasets if s not in self.few]
        parts: list[Plan] = [
            replace(self, datasets=(name,), generators=("connected",)) for name in main
        ]
        if "mnist" in main and "dcgan" in self.generators:
            seconds = self.dcgan_seconds or self.seconds
            digits = {"datasets": ("mnist",), "generators": ("dcgan",)}
            parts.append(replace(self, seconds=seconds, **digits))
        methods = tuple(m for m in self.methods if m in FEW)
        for name in (s for s in self.datasets if s in self.few):
            parts.append(
                replace(
                    self,
                    datasets=(name,),
                    generators=("connected",),
                    methods=methods,
                    adapt_after_epochs=self.few_adapt_after.get(name, self.adapt_after_epochs),
                    first_mark=self.slow_first,
                    mark_ratio=self.slow_ratio,
                    time_marks=2,
                )
            )
        return parts


def run(settings: Settings, run: Run) -> list[Claim]:
    """Run the parts, draw the figure, check the claims."""
    groups = run_plans([shifted(plan, run.seed) for plan in settings.parts()], run)
    return claims(groups)


def claims(groups: Groups) -> list[Claim]:
    """Who is lowest on each data set; of the DCGAN, whether it agrees with connected networks."""
    found = []
    for group, cells in groups.items():
        for axis in ("epochs", "seconds"):
            paper = PAPER.get(group.dataset, "not given") if axis == "epochs" else TIME
            found += lowest_claim(group, cells, axis, "frechet", paper)
            if group == Group("mnist", "dcgan") or group.dataset not in ("b-mnist", "mnist"):
                found += lowest_claim(group, cells, axis, "kernel", paper)
    return found + agreement_claim(groups)


EXPERIMENT = Experiment(
    name="images-others",
    title="sample quality on binarised digits, with a DCGAN, on patches, CIFAR-10 and faces",
    presets={
        "quick": Settings(
            ("b-mnist",),
            ("connected",),
            ("ALWS-A", "VAE"),
            epochs=1.0,
            data_size=100,
            batch_size=50,
            hidden=8,
            sleep_samples=20,
            adapt_after_epochs=0.5,
            scored=170,
            first_mark=1.0,
        ),
        "desk": Settings(
            ("b-mnist", "mnist", "natural", "cifar-10", "celeba"),
            ("connected", "dcgan"),
            ALL,
            seconds=45.0,
            dcgan_seconds=240.0,
            width=16,
            sleep_samples=1000,
            adapt_after_epochs=0.03,
            few_adapt_after={"natural": 0.02, "cifar-10": 0.1, "celeba": 0.1},
            scored_slowly=300,
            first_mark=0.05,
            mark_ratio=2.0,
            time_marks=2,
            workers=2,
        ),
        "paper": Settings(
            ("b-mnist", "mnist", "natural", "cifar-10", "celeba"),
            ("connected", "dcgan"),
            ALL,
            tuple(range(10)),
            epochs=50.0,
            longer=LONGER,
            scored=10_000,
            scored_slowly=10_000,
            annealed=100,
            workers=2,
        ),
    },
    run=run,
    scale=Settings.scale,
    not_printed="As for `images`.",
)
