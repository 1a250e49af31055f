"""`alws bench images`: the comparison of image methods with lists of the user's own."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from alws.experiments.experiment import Claim, RunError, resume, start
from alws.experiments.images import ALL, EXPERIMENT
from alws.images.plan import Plan

SHARE = 0.1
"""The share of its epochs after which the kernel of ALWS-A is adapted, as in the paper."""
PER_EPOCH = 600
MOST_UNADAPTED = 600


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
    workers: int = 1,
) -> list[Claim]:
    """Run the grid in a directory, or go on with it if it holds the same one.

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
            adapt_after=_unadapted(epochs, seconds),
            workers=workers,
        )
    except ValueError as error:
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


def _unadapted(epochs: float | None, seconds: float | None) -> int:
    """Steps before the kernel is adapted: a tenth of the epochs, fewer if seconds end the run."""
    share = MOST_UNADAPTED if epochs is None else round(SHARE * epochs * PER_EPOCH)
    return share if seconds is None else min(share, MOST_UNADAPTED)


def _whole(seed: str | int) -> int:
    try:
        return int(seed)
    except ValueError:
        raise ValueError(f"seeds must be whole numbers, got {seed!r}.") from None
