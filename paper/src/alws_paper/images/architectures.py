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

from alws_paper.claim import all_of
from alws_paper.gallery import TABLE
from alws_paper.images.claims import NAMES, Group, listed, place_of, weighed
from alws_paper.images.curves import Compared, Score, compare
from alws_paper.images.diagrams import draw_graphs
from alws_paper.images.experiment import shifted
from alws_paper.images.figure import SMALL, TEXT, WIDTH, draw_samples, extractor_of, from_zero
from alws_paper.images.graphs import GRAPHS
from alws_paper.images.grid import Finished, examples, run_grid, write_table
from alws_paper.images.plan import Plan
from alws_paper.run import Claim, Experiment, Run, significant

MOST = 1.5
BETTER = ("direct", "merged", "feedback")


def run(settings: Plan, run: Run) -> list[Claim]:
    """Fit every graph, draw the figure, check the claims."""
    finished = run_grid([shifted(settings, run.seed)], run.directory)
    (run.directory / "metrics.jsonl").unlink(missing_ok=True)
    for number, one in enumerate(finished, start=1):
        scores = {name: float(getattr(one.curve, name)[-1]) for name in NAMES}
        run.log(number, len(finished), **scores)
    write_table(finished, run.directory / TABLE)
    run.save_figure(figure(finished, settings), dpi=170)
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


def figure(finished: list[Finished], settings: Plan) -> Figure:
    """The graphs; for each data set both distances of each, then a row of data and samples."""
    datasets = settings.datasets
    fig = plt.figure(figsize=(WIDTH, 7.2 * len(datasets) + 1.8), layout="constrained")
    ratios = [0.8, *([1, 2.2] * len(datasets))]
    rows: Any = fig.subfigures(len(ratios), 1, height_ratios=ratios)  # pyright: ignore
    draw_graphs(rows[0])
    for top, bottom, dataset in zip(rows[1::2], rows[2::2], datasets, strict=True):
        cells = by_graph(finished, dataset)
        for axis, score in zip(top.subplots(1, 2), ("frechet", "kernel"), strict=True):
            found = compared(cells, score)
            for x, (name, values) in enumerate(found.scores.items()):
                bars = found.errors.get(name)
                axis.errorbar([x] * len(values), values, bars, fmt="o", color="firebrick", ms=3)
                axis.hlines(np.median(values), x - 0.35, x + 0.35, color="black", lw=1.2)
            axis.set_xticks(range(len(cells)), list(cells), fontsize=SMALL)
            plt.setp(axis.get_xticklabels(), rotation=45, ha="right", rotation_mode="anchor")
            axis.set_xlim(-0.6, len(cells) - 0.4)
            from_zero(axis)
            axis.set_ylabel(NAMES[score], fontsize=SMALL)
            axis.set_title(f"{dataset} {place_of(found)}, {extractor_of(cells)}", fontsize=SMALL)
            axis.tick_params(axis="y", labelsize=SMALL)
        draw_samples(bottom, Group(dataset, "every graph"), cells, examples(dataset))
    fig.suptitle(settings.scale().compared, fontsize=TEXT, wrap=True)
    plt.close(fig)
    return fig


def spread_claim(dataset: str, found: Compared) -> Claim:
    """That the worst graph is at most `MOST` times as far as the best."""
    values = np.array(list(found.medians.values()))
    ratio = values.max() / values.min()
    claim = Claim(
        f"{dataset}: the architecture of the latent graph has no strong effect",
        f"no strong effect (bar: largest Fréchet distance at most {MOST:g} times the smallest)",
        f"ratio {significant(ratio)} {place_of(found)}: {listed(found.medians)}",
        bool(ratio <= MOST),
    )
    return weighed(claim, "epochs", [found], {})


def order_claim(dataset: str, found: Compared) -> Claim:
    """That direct, merged and feedback are better than the two graphs with skips."""
    medians = found.medians
    good = max(medians[name] for name in BETTER)
    other = min(value for name, value in medians.items() if name not in BETTER)
    rest = [name for name in medians if name not in BETTER]
    claim = Claim(
        f"{dataset}: direct, merged and feedback are better than the graphs with skips",
        "clearly better by FID on the two sets of digits",
        f"the worst of the three {significant(good)}, the better of the two {significant(other)}",
        all_of([found.lower(one, two) for one in BETTER for two in rest]),
    )
    return weighed(claim, "epochs", [found], {})


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
            scored=170,
            first_mark=1.0,
        ),
        "desk": Plan(
            ("b-mnist", "mnist"),
            tuple(GRAPHS),
            ("ALWS-A",),
            seconds=60.0,
            sleep_samples=1000,
            adapt_after_epochs=0.05,
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
    scale=Plan.scale,
    not_printed="The drawing of the two graphs with feedback is not in the text: see `graphs.py`. "
    "Else as for `images`.",
)
