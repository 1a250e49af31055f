"""Five graphs with Bernoulli and Gaussian latents fitted by ALWS-A, appendix on complex networks.

    direct  zᵈ → zᶜ → h → x       skip  and zᵈ → h       merged  (zᵈ, zᶜ) → h₁ → h₂ → x
    feedback  zᵈ₁ → zᶜ₁ → zᵈ₂ → zᶜ₂, (zᶜ₁, zᶜ₂) → h → x        feedback-skip  and zᵈ₁ → h

The bar for "no strong effect" was set before any run: the worst graph's Fréchet distance is at most
1.5 times the best one's. Every graph is scored at the same epoch.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from alws_paper.gallery import TABLE
from alws_paper.images.claims import NAMES, listed, place_of
from alws_paper.images.curves import Compared, Score, compare
from alws_paper.images.experiment import desk_adapts, shifted
from alws_paper.images.figure import extractor_of, from_zero
from alws_paper.images.graphs import GRAPHS
from alws_paper.images.grid import Finished, mosaic, run_grid, write_table
from alws_paper.images.plan import Plan
from alws_paper.run import Claim, Experiment, Run, significant

MOST = 1.5
BETTER = ("direct", "merged", "feedback")
COLUMNS = 12


def run(settings: Plan, run: Run) -> list[Claim]:
    """Fit every graph, draw the figure, check the claims."""
    finished = run_grid([shifted(settings, run.seed)], run.directory)
    (run.directory / "metrics.jsonl").unlink(missing_ok=True)
    for number, one in enumerate(finished, start=1):
        scores = {name: float(getattr(one.curve, name)[-1]) for name in NAMES}
        run.log(number, len(finished), **scores)
    write_table(finished, run.directory / TABLE)
    run.save_figure(figure(finished, settings.datasets))
    claims = []
    for dataset in settings.datasets:
        found = compared(by_graph(finished, dataset), "frechet")
        claims.append(spread_claim(dataset, found))
        if set(found.medians) == set(GRAPHS) and dataset in ("b-mnist", "mnist"):
            claims.append(order_claim(dataset, found))
    return claims


def by_graph(finished: list[Finished], dataset: str) -> dict[str, list[Finished]]:
    """Every graph's cells on one data set."""
    found: dict[str, list[Finished]] = {}
    for one in finished:
        if one.cell.dataset == dataset:
            found.setdefault(one.cell.generator, []).append(one)
    return found


def compared(cells: dict[str, list[Finished]], score: Score) -> Compared:
    """Every graph at the largest epoch that all of them were scored at."""
    return compare({name: [one.curve for one in of] for name, of in cells.items()}, "epochs", score)


def figure(finished: list[Finished], datasets: tuple[str, ...]) -> Figure:
    """Both distances of each graph, and samples."""
    fig = plt.figure(figsize=(12, 4.2 * len(datasets)), layout="constrained")
    rows: Any = np.atleast_1d(fig.subfigures(len(datasets), 1))  # pyright: ignore
    for row, dataset in zip(rows, datasets, strict=True):
        cells = by_graph(finished, dataset)
        left, right = row.subfigures(1, 2)
        for axis, score in zip(left.subplots(1, 2), ("frechet", "kernel"), strict=True):
            found = compared(cells, score)
            for x, values in enumerate(found.scores.values()):
                axis.plot([x] * len(values), values, "o", color="firebrick", ms=4)
                axis.hlines(np.median(values), x - 0.35, x + 0.35, color="black")
            axis.set_xticks(range(len(cells)), list(cells), fontsize=8)
            plt.setp(axis.get_xticklabels(), rotation=45, ha="right", rotation_mode="anchor")
            axis.set_xlim(-0.6, len(cells) - 0.4)
            from_zero(axis)
            axis.set_ylabel(f"{NAMES[score]}, {extractor_of(cells)}", fontsize=9)
            axis.set_title(f"{dataset} {place_of(found)}", fontsize=9)
            axis.tick_params(axis="y", labelsize=8)
        for axis, (name, of) in zip(right.subplots(len(cells), 1), cells.items(), strict=True):
            axis.imshow(mosaic(of[0].samples[: 2 * COLUMNS], COLUMNS), cmap="gray", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    plt.close(fig)
    return fig


def spread_claim(dataset: str, found: Compared) -> Claim:
    """That the worst graph is at most `MOST` times as far as the best."""
    values = np.array(list(found.medians.values()))
    ratio = values.max() / values.min()
    return Claim(
        f"{dataset}: the architecture of the latent graph has no strong effect",
        f"no strong effect (bar: largest Fréchet distance at most {MOST:g} times the smallest)",
        f"ratio {significant(ratio)} {place_of(found)}: {listed(found.medians)}",
        bool(ratio <= MOST),
    )


def order_claim(dataset: str, found: Compared) -> Claim:
    """That direct, merged and feedback are better than the two graphs with skips."""
    medians = found.medians
    good = max(medians[name] for name in BETTER)
    other = min(value for name, value in medians.items() if name not in BETTER)
    return Claim(
        f"{dataset}: direct, merged and feedback are better than the graphs with skips",
        "clearly better by FID on the two sets of digits",
        f"the worst of the three {significant(good)}, the better of the two {significant(other)}",
        bool(good < other),
    )


EXPERIMENT = Experiment(
    name="architectures",
    title="five graphs with Bernoulli and Gaussian latents, by ALWS-A",
    presets={
        "quick": Plan(
            ("mnist",),
            ("direct", "skip"),
            ("ALWS-F",),
            epochs=1.0,
            data_size=100,
            batch_size=50,
            hidden=8,
            sleep_samples=20,
            scored=50,
            first_mark=1.0,
        ),
        "desk": Plan(
            ("b-mnist", "mnist"),
            tuple(GRAPHS),
            ("ALWS-A",),
            seconds=60.0,
            sleep_samples=1000,
            **desk_adapts(after_epochs=1 / 3),
            workers=2,
        ),
        "paper": Plan(
            ("b-mnist", "mnist", "fashion", "natural", "cifar-10", "celeba"),
            tuple(GRAPHS),
            ("ALWS-A",),
            tuple(range(10)),
            epochs=50.0,
            scored=10_000,
            scored_slowly=10_000,
            workers=2,
        ),
    },
    run=run,
)
