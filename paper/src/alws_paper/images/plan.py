"""What a comparison runs: cells of data set, generator, method and seed, under one budget.

Every cell has the same budget, in seconds of training, in epochs, or whichever ends first. Scores
are taken at the epochs f, fr, fr², … for a first mark f and a ratio r, the same ones in all cells
whatever the method's speed, and at even parts of the seconds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from alws.validation import at_least
from alws.wake_sleep import Adapt
from alws_paper.images.amortised import Amortised
from alws_paper.images.data.images import Images, Name
from alws_paper.images.encoders import connected, convolutional
from alws_paper.images.generators import Binary, Bounded, Output, Unbounded
from alws_paper.images.graphs import GRAPHS
from alws_paper.images.methods import METHODS, PAPER_ADAPTS
from alws_paper.images.protocol import Method
from alws_paper.run import Scale

DATASETS: tuple[str, ...] = get_args(Name)
GENERATORS: tuple[str, ...] = ("connected", "dcgan", *GRAPHS)
WITHOUT_LIKELIHOOD = ("WGAN-GP",)
"""Methods whose generator is not one of maximum likelihood, and has no density."""
LENET = {"b-mnist": "mnist", "mnist": "mnist", "fashion": "fashion"}
"""Which LeNet the features come from; those of all other sets come from EfficientNet."""
FEATURES = {True: 84, False: 1280}
"""How many features LeNet and EfficientNet have."""
PAPER = 50
"""The paper's epochs."""


@dataclass(frozen=True)
class Cell:
    """One run: a method fits a generator to a data set.

    Example: `Cell("mnist", "connected", "VAE", 0).name == "mnist-connected-VAE-0"`.
    """

    dataset: str
    generator: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.dataset}-{self.generator}-{self.method}-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """All cells of data sets × generators × methods × seeds, and how each is trained and scored.

    `hidden` is the width of connected networks and `width` that of the DCGAN, `scored` the number
    of pictures scored on LeNet's features, `scored_slowly` on EfficientNet's or the network in an
    ONNX file, the `extractor`. `annealed` test images get a held-out likelihood. `longer` has
    factors on the epochs of some methods.

    Example: `Plan(("mnist",), ("connected",), ("VAE", "ALWS-F"), (0, 1), seconds=300)`.
    """

    datasets: tuple[str, ...]
    generators: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    seconds: float | None = None
    epochs: float | None = None
    data_size: int | None = None
    batch_size: int = 100
    hidden: int = 512
    width: int = 64
    sleep_samples: int = 2000
    adapt_after_epochs: float = 5.0
    scored: int = 5000
    scored_slowly: int = 500
    first_mark: float = 0.25
    mark_ratio: float = math.sqrt(2)
    time_marks: int = 4
    annealed: int = 0
    temperatures: int = 200
    chains: int = 4
    extractor: str | None = None
    longer: dict[str, float] = field(default_factory=dict)
    workers: int = 1

    def __post_init__(self):
        _known("datasets", self.datasets, DATASETS)
        _known("generators", self.generators, GENERATORS)
        _known("methods", self.methods, METHODS)
        if not self.seeds:
            raise ValueError("`seeds` must hold at least one seed, got none.")
        if self.seconds is None and self.epochs is None:
            raise ValueError("give every run a number of `epochs`, of `seconds`, or both.")
        for name in ("seconds", "epochs", "first_mark"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"`{name}` must be positive, got {value}.")
        if not self.mark_ratio > 1:
            raise ValueError(f"`mark_ratio` must be above 1, got {self.mark_ratio}.")
        for name in ("scored", "scored_slowly"):
            at_least(name, getattr(self, name), 10)
        at_least("annealed", self.annealed, 0)
        at_least("time_marks", self.time_marks, 1)
        at_least("workers", self.workers, 1)
        if not self.adapt_after_epochs >= 0:
            raise ValueError(
                f"`adapt_after_epochs` must not be negative, got {self.adapt_after_epochs}."
            )
        if self.longer:
            _known("longer", tuple(self.longer), METHODS)
        for name, factor in self.longer.items():
            if not factor > 0:
                raise ValueError(f"`longer` must hold positive factors, got {factor} for {name}.")
        self._check_adaptation()
        for cell in self.cells():
            if cell.generator in GRAPHS and not cell.method.startswith("ALWS"):
                raise ValueError(
                    f"the graph {cell.generator!r} has bits among its latents, which only ALWS-F "
                    f"and ALWS-A can fit; got {cell.method}. Use the generators connected or dcgan."
                )

    def _check_adaptation(self) -> None:
        """Refuse an ALWS-A that would be ALWS-F to the end."""
        if "ALWS-A" not in self.methods or self.epochs is None:
            return
        end = self.epochs * self.longer.get("ALWS-A", 1.0)
        if self.adapt_after_epochs >= end:
            raise ValueError(
                "ALWS-A must begin to adapt before its run ends: `adapt_after_epochs` is "
                f"{self.adapt_after_epochs:g} and the run has {end:g} epochs. The paper's 5 of 50 "
                f"would be {end / 10:g} here; or leave ALWS-A out."
            )

    def adapt(self, images: int) -> Adapt:
        """How ALWS-A adapts its kernel, for so many training images.

        Example: `plan.adapt(60_000).after == 3000`, five epochs in batches of 100.
        """
        return replace(PAPER_ADAPTS, after=round(self.adapt_after_epochs * self.per_epoch(images)))

    def cells(self) -> tuple[Cell, ...]:
        """Every cell, the first seed of all of them first."""
        return tuple(
            Cell(dataset, generator, method, seed)
            for seed in self.seeds
            for dataset in self.datasets
            for generator in self.generators
            for method in self.methods
        )

    def steps(self, images: int, method: str) -> int | None:
        """The most steps a method may take, for so many training images."""
        if self.epochs is None:
            return None
        return max(1, round(self.longer.get(method, 1.0) * self.epochs * self.per_epoch(images)))

    def per_epoch(self, images: int) -> int:
        """Steps in an epoch."""
        return images // self.batch_size

    def scale(self) -> Scale:
        """What a run compares; each claim says itself which share of 50 epochs it is after."""
        sizes = "all training images" if self.data_size is None else f"{self.data_size} images"
        widths = f"connected networks of width {self.hidden}"
        if "dcgan" in self.generators:
            widths += f", DCGAN of width {self.width} (paper: 64)"
        budget = [] if self.seconds is None else [f"{self.seconds:g} s of training"]
        budget += [] if self.epochs is None else [f"{self.epochs:g} epochs"]
        seeds = "one seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        slow = "" if set(self.datasets) <= set(LENET) else f", {self.scored_slowly} of others"
        return Scale(
            f"{sizes}, {widths}, {' or '.join(budget)}, {self.scored} pictures of digits and "
            f"garments{slow}, {seeds}"
        )

    def pictures(self, dataset: str) -> int:
        """How many pictures are scored."""
        return self.scored if dataset in LENET and not self.extractor else self.scored_slowly


class Marks:
    """Whether a score is due after `steps` that took `seconds`: true once for each mark passed.

    Example: `marks = Marks(plan, 60_000); marks(150, 2.0)` is true, then `marks(151, 2.1)` false.
    """

    def __init__(self, plan: Plan, images: int, steps: int = 0, seconds: float = 0.0):
        """What was passed before `steps` and `seconds` is not due again."""
        self.per_epoch, self.plan = plan.per_epoch(images), plan
        self.passed = self._passed(steps, seconds)

    def __call__(self, steps: int, seconds: float) -> bool:
        before, self.passed = self.passed, self._passed(steps, seconds)
        return self.passed != before

    def _passed(self, steps: int, seconds: float) -> tuple[int, int]:
        plan, number = self.plan, 0
        while max(1, round(plan.first_mark * plan.mark_ratio**number * self.per_epoch)) <= steps:
            number += 1
        in_time = 0 if plan.seconds is None else int(seconds / plan.seconds * plan.time_marks)
        return number, in_time


def output_of(dataset: str) -> Output:
    """Bernoulli pixels for binarised digits, unbounded for natural patches, else tanh means.

    Example: `output_of("b-mnist")` is `Binary()`.
    """
    if dataset == "b-mnist":
        return Binary()
    return Unbounded() if dataset == "natural" else Bounded()


def method_of(cell: Cell, plan: Plan, data: Images) -> Method:
    """The cell's method, with its networks.

    Example: `method_of(cell, plan, images("mnist")).step`.
    """
    shape: Any = data.train.shape[1:]
    output = output_of(cell.dataset)
    if cell.generator == "dcgan":
        architecture = convolutional(output, shape, width=plan.width)
    else:
        architecture = connected(output, shape, hidden=plan.hidden)
    settings: dict[str, Any] = {}
    if cell.method.startswith("ALWS"):
        settings["sleep_samples"] = plan.sleep_samples
    if cell.method == "ALWS-A":
        settings["adapt"] = plan.adapt(len(data.train))
    method = METHODS[cell.method](architecture, **settings)
    if cell.generator not in GRAPHS:
        return method
    assert isinstance(method, Amortised)
    graph = GRAPHS[cell.generator]
    return Amortised(
        method.name,
        lambda key: graph(shape, output, hidden=plan.hidden, key=key),
        method.adapt,
        method.sleep_samples,
        method.learning_rate,
    )


def has_likelihood(cell: Cell) -> bool:
    """Whether annealed importance sampling can be used: no bits, and a density.

    Example: `has_likelihood(Cell("mnist", "connected", "WGAN-GP", 0))` is false.
    """
    return cell.method not in WITHOUT_LIKELIHOOD and cell.generator not in GRAPHS


def _known(name: str, given: tuple[str, ...], known: Iterable[str]) -> None:
    wrong = [repr(value) for value in given if value not in known]
    if wrong or not given:
        raise ValueError(
            f"`{name}` must be among {', '.join(known)}; got {', '.join(wrong) or 'none'}."
        )


__all__ = [
    "DATASETS",
    "GENERATORS",
    "WITHOUT_LIKELIHOOD",
    "Cell",
    "Marks",
    "Plan",
    "has_likelihood",
    "method_of",
    "output_of",
]
