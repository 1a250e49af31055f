"""The figures of §4.7 in one: scores of each method, scores during training, samples."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter

from alws_paper.images.claims import NAMES, Cells, Group, Groups
from alws_paper.images.grid import mosaic
from alws_paper.images.methods import METHODS

WIDTH, ROW = 13.0, 2.7
"""Inches of the figure's width, and of a row of scores."""
BESIDE = {1: 1, 2: 2, 3: 3, 4: 2}
"""How many groups have their samples side by side, three where there are more groups."""
COLUMNS = {1: 20, 2: 16, 3: 12}
"""Pictures in a row, for so many groups side by side."""
LABEL, TITLE, STRIP = 0.75, 0.35, 0.06
"""Inches for the names beside samples, the title above them, and between methods."""
COLOURS = plt.get_cmap("tab10")
WIDE = 3.0
"""How many times the lowest score the highest must be to be drawn on a logarithmic scale."""
LONG = 300.0
"""From such a ratio of its ends on, a logarithmic axis has room for powers of ten only."""


def figure(groups: Groups) -> Figure:
    """A row of scores and curves for each data set and generator, and below it their samples."""
    number = len(groups)
    beside = BESIDE.get(number, 3)
    most = [len(cells) for cells in groups.values()]
    strip = STRIP + (WIDTH / beside - LABEL) * 2 / COLUMNS[beside]
    below = [TITLE + strip * max(most[i : i + beside]) for i in range(0, number, beside)]
    heights = (ROW * number + 0.4, sum(below))
    fig = plt.figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    top, bottom = fig.subfigures(2, 1, height_ratios=heights)  # pyright: ignore
    axes = top.subplots(number, 4, squeeze=False)
    for row, (group, cells) in zip(axes, groups.items(), strict=True):
        draw_scores(row[0], cells, "frechet", f"{group}: end of training")
        draw_scores(row[1], cells, "kernel", "")
        draw_curves(row[2], cells, "epochs")
        draw_curves(row[3], cells, "seconds")
    lines = {line.get_label(): line for axis in axes[:, 3] for line in axis.get_lines()}
    shown = [name for name in METHODS if name in lines]
    handles = [lines[name] for name in shown]
    top.legend(handles, shown, loc="outside upper center", ncols=len(shown), fontsize=10)
    rows = len(below)
    blocks = np.atleast_1d(bottom.subfigures(rows, beside, height_ratios=below)).ravel()
    for block, (group, cells) in zip(blocks, groups.items(), strict=False):
        draw_samples(block, group, cells, COLUMNS[beside])
    plt.close(fig)
    return fig


def extractor_of(cells: Cells) -> str:
    """The network that a group's scores were made with."""
    first = next(iter(cells.values()))[0]
    return str(first.summary.get("extractor", ""))


def draw_scores(axis: Axes, cells: Cells, score: str, title: str) -> None:
    """A dot for each seed, the kernel distance's with its standard error; bars at the medians."""
    for x, of in enumerate(cells.values()):
        values = np.array([getattr(one.curve, score)[-1] for one in of])
        errors = np.array([one.curve.kernel_error[-1] for one in of])
        seen = np.isfinite(values)
        if not seen.any():
            axis.text(x, 0, "diverged", rotation=90, fontsize=8, ha="center", va="bottom")
            continue
        places = x + np.linspace(-0.15, 0.15, len(of)) * (len(of) > 1)
        bars = errors[seen] if score == "kernel" else None
        axis.errorbar(
            places[seen], values[seen], bars, fmt="o", color="firebrick", ms=4, elinewidth=1
        )
        axis.hlines(np.median(values), x - 0.35, x + 0.35, color="black", lw=1.5)
    axis.set_xticks(range(len(cells)), list(cells), fontsize=8)
    plt.setp(axis.get_xticklabels(), rotation=45, ha="right", rotation_mode="anchor")
    axis.set_xlim(-0.6, len(cells) - 0.4)
    axis.set_ylabel(f"{NAMES[score]}\n{extractor_of(cells)}", fontsize=9)
    axis.set_title(title, fontsize=10)
    from_zero(axis)
    axis.tick_params(axis="y", labelsize=8)


def from_zero(axis: Axes) -> None:
    """Let the vertical axis begin at 0, or below it, and end well above the highest dot."""
    low, high = axis.get_ylim()
    axis.set_ylim(min(0.0, low), 1.1 * high)


def draw_curves(axis: Axes, cells: Cells, along: str) -> None:
    """The Fréchet distance of every seed during training."""
    for method, of in cells.items():
        colour = COLOURS(list(METHODS).index(method))
        for seed, one in enumerate(of):
            x, y = getattr(one.curve, along), one.curve.frechet
            seen = np.isfinite(y)
            label = method if seed == 0 else None
            axis.plot(x[seen], y[seen], "-o", ms=2.5, lw=1.2, color=colour, label=label)
    low, high = axis.get_ylim()
    scales = ["x", "y"] if high > WIDE * low else ["x"]
    for name in scales:
        getattr(axis, f"set_{name}scale")("log")
        ticks = getattr(axis, f"{name}axis")
        first, last = getattr(axis, f"get_{name}lim")()
        ticks.set_minor_formatter(FuncFormatter(_some if last < LONG * first else _none))
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("epochs" if along == "epochs" else "seconds of training", fontsize=9)
    axis.set_ylabel(f"{NAMES['frechet']}\n{extractor_of(cells)}", fontsize=9)
    axis.tick_params(labelsize=8, which="both")


def _none(value: float, _: object) -> str:
    return ""


def _some(value: float, _: object) -> str:
    """Minor ticks at 2 and 5 only have room for their labels."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def draw_samples(block: SubFigure, group: Group, cells: Cells, columns: int) -> None:
    """Two rows of pictures for each method, of its first seed."""
    block.suptitle(f"samples: {group}", fontsize=10)
    places = block.subplots(len(cells), 1, squeeze=False)[:, 0]
    for axis, (method, of) in zip(places, cells.items(), strict=True):
        axis.imshow(mosaic(of[0].samples[: 2 * columns], columns), cmap="gray", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
        axis.set_ylabel(method, rotation=0, ha="right", va="center", fontsize=8)
