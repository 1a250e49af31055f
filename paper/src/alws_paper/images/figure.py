"""The figures of §4.7 in one: scores of each method, scores during training, data and samples.

Text has the size it is read at on a page: the figure is as wide as one.
"""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter

from alws_paper.images.claims import NAMES, Cells, Group, Groups, is_shown
from alws_paper.images.curves import Score
from alws_paper.images.grid import mosaic
from alws_paper.images.methods import METHODS

WIDTH, ROW = 7.2, 2.1
"""Inches of a page's width, and of a row of scores."""
COLUMNS = 18
"""Pictures in a row."""
LABEL, TITLE, STRIP = 0.8, 0.3, 0.05
"""Inches for the names beside samples, the title above them, and between methods."""
TEXT, SMALL = 8, 7
"""Points of titles, and of labels."""
COLOURS = plt.get_cmap("tab10")
WIDE = 3.0
"""How many times the lowest score the highest must be to be drawn on a logarithmic scale."""
LONG = 300.0
"""From such a ratio of its ends on, a logarithmic axis has room for powers of ten only."""

Pictures = Mapping[str, Float[np.ndarray, "number channels height width"]]


def figure(groups: Groups, data: Pictures, setting: str = "") -> Figure:
    """For each data set and generator its scores and curves, then a row of data and its samples.

    Arguments:
        groups: the finished cells.
        data: some test images of each data set, black 0 and white 1.
        setting: what is the same for all, in the title.

    Example: `figure(grouped(finished), {"mnist": examples("mnist")}, "200 s of training")`.
    """
    above = [2 * ROW + TITLE for _ in groups]
    tile = (WIDTH - LABEL) / COLUMNS
    below = [TITLE + tile + (STRIP + 2 * tile) * len(cells) for cells in groups.values()]
    heights = [h for pair in zip(above, below, strict=True) for h in pair]
    fig = plt.figure(figsize=(WIDTH, sum(heights) + 0.6), layout="constrained")
    blocks = np.atleast_1d(fig.subfigures(len(heights), 1, height_ratios=heights))  # pyright: ignore
    for top, bottom, (group, cells) in zip(blocks[::2], blocks[1::2], groups.items(), strict=True):
        draw_group(top, group, cells)
        draw_samples(bottom, group, cells, data.get(group.dataset))
    fig.suptitle(setting, fontsize=TEXT, wrap=True)
    plt.close(fig)
    return fig


def scores_alone(groups: Groups, setting: str = "") -> Figure:
    """The two scores at the end of training alone, for runs whose curves and samples are gone.

    Example: `scores_alone(grouped(finished))`.
    """
    size = WIDTH, ROW * len(groups) + TITLE
    fig, axes = plt.subplots(len(groups), 2, figsize=size, squeeze=False, layout="constrained")
    for row, (group, cells) in zip(axes, groups.items(), strict=True):
        for axis, score in zip(row, NAMES, strict=True):
            draw_scores(axis, cells, score)  # pyright: ignore
            axis.set_title(f"{group}: end of training", fontsize=SMALL)
    fig.suptitle(setting, fontsize=TEXT, wrap=True)
    plt.close(fig)
    return fig


def draw_group(block: SubFigure, group: Group, cells: Cells) -> None:
    """Both scores at the end of training, and one during it by epochs and by seconds."""
    axes = block.subplots(2, 2)
    draw_scores(axes[0, 0], cells, "frechet")
    draw_scores(axes[0, 1], cells, "kernel")
    during = "frechet" if is_shown(cells, "frechet") else "kernel"
    draw_curves(axes[1, 0], cells, "epochs", during)
    draw_curves(axes[1, 1], cells, "seconds", during)
    lines = {line.get_label(): line for line in axes[1, 1].get_lines()}
    shown = [name for name in METHODS if name in lines]
    handles = [lines[name] for name in shown]
    block.legend(handles, shown, loc="outside lower center", ncols=5, fontsize=SMALL)
    seeds = max(map(len, cells.values()))
    many = f"{seeds} seeds" if seeds > 1 else "one seed"
    block.suptitle(f"{group}: {many}; scores on {extractor_of(cells)}", fontsize=TEXT)


def extractor_of(cells: Cells) -> str:
    """The network that a group's scores were made with."""
    first = next(iter(cells.values()))[0]
    return str(first.summary.get("extractor", ""))


def draw_scores(axis: Axes, cells: Cells, score: Score) -> None:
    """A dot for each seed, the kernel distance's with its standard error; bars at the medians."""
    for x, of in enumerate(cells.values()):
        values = np.array([getattr(one.curve, score)[-1] for one in of])
        errors = np.array([one.curve.kernel_error[-1] for one in of])
        seen = np.isfinite(values)
        if not seen.any():
            why = "too few pictures" if np.isnan(values).any() else "diverged"
            axis.text(x, 0, why, rotation=90, fontsize=SMALL, ha="center", va="bottom")
            continue
        places = x + np.linspace(-0.15, 0.15, len(of)) * (len(of) > 1)
        bars = errors[seen] if score == "kernel" else None
        axis.errorbar(
            places[seen], values[seen], bars, fmt="o", color="firebrick", ms=3, elinewidth=1
        )
        axis.hlines(np.median(values), x - 0.35, x + 0.35, color="black", lw=1.2)
    axis.set_xticks(range(len(cells)), list(cells), fontsize=SMALL)
    plt.setp(axis.get_xticklabels(), rotation=45, ha="right", rotation_mode="anchor")
    axis.set_xlim(-0.6, len(cells) - 0.4)
    axis.set_ylabel(NAMES[score], fontsize=SMALL)
    axis.set_title("end of training", fontsize=SMALL)
    from_zero(axis)
    axis.tick_params(axis="y", labelsize=SMALL)
    if not axis.has_data():
        axis.set_yticks([])


def from_zero(axis: Axes) -> None:
    """Let the vertical axis begin at 0, or below it, and end well above the highest dot."""
    low, high = axis.get_ylim()
    axis.set_ylim(min(0.0, low), 1.1 * high)


def draw_curves(axis: Axes, cells: Cells, along: str, score: Score) -> None:
    """A score of every seed during training."""
    for method, of in cells.items():
        colour = COLOURS(list(METHODS).index(method))
        for seed, one in enumerate(of):
            x, y = getattr(one.curve, along), getattr(one.curve, score)
            seen = np.isfinite(y)
            label = method if seed == 0 else None
            axis.plot(x[seen], y[seen], "-o", ms=2, lw=1, color=colour, label=label)
    low, high = axis.get_ylim()
    scales = ["x", "y"] if high > WIDE * low > 0 else ["x"]
    for name in scales:
        getattr(axis, f"set_{name}scale")("log")
        ticks = getattr(axis, f"{name}axis")
        first, last = getattr(axis, f"get_{name}lim")()
        ticks.set_minor_formatter(FuncFormatter(_some if last < LONG * first else _none))
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("epochs" if along == "epochs" else "seconds of training", fontsize=SMALL)
    axis.set_ylabel(NAMES[score], fontsize=SMALL)
    axis.tick_params(labelsize=SMALL, which="both")


def _none(value: float, _: object) -> str:
    return ""


def _some(value: float, _: object) -> str:
    """Minor ticks at 2 and 5 only have room for their labels."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def draw_samples(
    block: SubFigure,
    group: Group,
    cells: Cells,
    data: Float[np.ndarray, "number channels height width"] | None,
) -> None:
    """A row of data, then two rows of pictures for each method, of its first seed."""
    block.suptitle(f"{group}: test images, and samples at the end of training", fontsize=TEXT)
    rows = {} if data is None else {"data": data[:COLUMNS]}
    rows |= {method: of[0].samples[: 2 * COLUMNS] for method, of in cells.items()}
    ratios = [len(pictures) // COLUMNS for pictures in rows.values()]
    places = block.subplots(len(rows), 1, squeeze=False, height_ratios=ratios)[:, 0]
    for axis, (name, pictures) in zip(places, rows.items(), strict=True):
        axis.imshow(mosaic(pictures, COLUMNS), cmap="gray", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
        axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=SMALL)
