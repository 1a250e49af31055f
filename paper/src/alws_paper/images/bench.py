"""`alws-paper bench images`: the comparison of image methods with lists of the user's own."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from alws_paper.images.experiment import ALL, EXPERIMENT
from alws_paper.images.plan import Plan
from alws_paper.images.scores.extractors import OnnxExtractor
from alws_paper.run import Claim, RunError, resume, start

SHARE = 0.1
"""The share of its epochs after which the kernel of ALWS-A is adapted, as in the paper."""
MOST_UNADAPTED = 1.0
"""The most epochs without adaptation where seconds end the run."""


def bench_images(
    datasets: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[str | int],
    directory: Path,
    *,
    generators: Sequence[str] = ("connected",),
    epochs: float | None = None,
    seconds: float | None = None,
    width: int = 64,
    sleep_samples: int = 2000,
    extractor: Path | None = None,
    likelihood: int = 0,
    workers: int = 1,
) -> list[Claim]:
    """Run the grid in a directory, or go on with it if it holds the same one.

    `extractor` is an ONNX file whose features the scores are made with; `likelihood` test images
    get a held-out likelihood.

    Example: `bench_images(["mnist"], ["VAE", "ALWS-F"], [0], Path("runs/mine"), epochs=1)`.
    """
    try:
        plan = Plan(
            tuple(datasets),
            tuple(generators),
            ALL if list(methods) == ["all"] else tuple(methods),
            tuple(_whole(seed) for seed in seeds),
            seconds=seconds,
            epochs=epochs,
            width=width,
            sleep_samples=sleep_samples,
            adapt_after_epochs=_unadapted(epochs, seconds),
            annealed=likelihood,
            extractor=None if extractor is None else str(extractor.resolve()),
            workers=workers,
        )
        if extractor is not None:
            OnnxExtractor(extractor)  # say at once that it cannot be read
    except (ValueError, FileNotFoundError, ImportError) as error:
        raise RunError(str(error)) from error
    if not (directory / "settings.json").exists():
        return start(EXPERIMENT, "own", 0, directory, settings=plan)
    before = json.loads((directory / "settings.json").read_text()).get("settings", {})
    wanted = json.loads(json.dumps(asdict(plan)))
    other = [name for name in wanted if name != "workers" and before.get(name) != wanted[name]]
    if other:
        raise RunError(
            f"{directory} holds a comparison with other {', '.join(other)}: {before.get(other[0])} "
            f"there, {wanted[other[0]]} here. Give the same, or another directory with --out."
        )
    return resume({EXPERIMENT.name: EXPERIMENT}, directory)


def _unadapted(epochs: float | None, seconds: float | None) -> float:
    """Epochs before the kernel is adapted: a tenth of all, fewer if seconds end the run."""
    share = MOST_UNADAPTED if epochs is None else SHARE * epochs
    return share if seconds is None else min(share, MOST_UNADAPTED)


def _whole(seed: str | int) -> int:
    try:
        return int(seed)
    except ValueError:
        raise ValueError(f"seeds must be whole numbers, got {seed!r}.") from None
