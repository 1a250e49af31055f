"""The figures of §4.7 in one: scores of each method, scores during training, samples."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter

from alws.experiments.images_claims import NAMES, Cells, Group, Groups
from alws.images.grid import mosaic
from alws.images.methods import METHODS

COLUMNS = 16
COLOURS = plt.get_cmap("tab10")
WIDE = 3.0
"""How many times the lowest score the highest must be to be drawn on a logarithmic scale."""


def figure(groups: Groups) -> Figure:
    """A row of scores and curves for each data set and generator, and below it their samples."""
    number = len(groups)
    most = max(len(cells) for cells in groups.values())
    heights = (2.8 * number, (0.62 * most + 0.4) * -(-number // 2))
    fig = plt.figure(figsize=(14, sum(heights)), layout="constrained")
    top, bottom = fig.subfigures(2, 1, height_ratios=heights)  # pyright: ignore
    axes = top.subplots(number, 4, squeeze=False)
    for row, (group, cells) in zip(axes, groups.items(), strict=True):
        draw_scores(row[0], cells, "frechet", f"{group}: end of training")
        draw_scores(row[1], cells, "kernel", "")
        draw_curves(row[2], cells, "epochs")
        draw_curves(row[3], cells, "seconds")
    axes[0, 3].legend(fontsize=6)
    blocks = np.atleast_1d(bottom.subfigures(-(-number // 2), min(2, number))).ravel()
    for block, (group, cells) in zip(blocks, groups.items(), strict=False):
        draw_samples(block, group, cells)
    plt.close(fig)
    return fig


def draw_scores(place: Axes, cells: Cells, score: str, title: str) -> None:
    """A dot for each seed, the kernel distance's with its standard error; bars at the medians."""
    for x, of in enumerate(cells.values()):
        values = np.array([getattr(one.curve, score)[-1] for one in of])
        errors = np.array([one.curve.kernel_error[-1] for one in of])
        seen = np.isfinite(values)
        if not seen.any():
            place.text(x, 0, "diverged", rotation=90, fontsize=6, ha="center", va="bottom")
            continue
        places = x + np.linspace(-0.15, 0.15, len(of)) * (len(of) > 1)
        bars = errors[seen] if score == "kernel" else None
        place.errorbar(
            places[seen], values[seen], bars, fmt="o", color="firebrick", ms=3.5, elinewidth=1
        )
        place.hlines(np.median(values), x - 0.35, x + 0.35, color="black", lw=1.5)
    place.set_xticks(range(len(cells)), list(cells), rotation=60, fontsize=7)
    place.set_ylabel(NAMES[score], fontsize=8)
    place.set_title(title, fontsize=9)
    low, high = place.get_ylim()
    place.set_ylim(min(0.0, low), 1.08 * high)
    place.tick_params(axis="y", labelsize=7)


def draw_curves(place: Axes, cells: Cells, axis: str) -> None:
    """The Fréchet distance of every seed during training."""
    for method, of in cells.items():
        colour = COLOURS(list(METHODS).index(method))
        for seed, one in enumerate(of):
            x, y = getattr(one.curve, axis), one.curve.frechet
            seen = np.isfinite(y)
            label = method if seed == 0 else None
            place.plot(x[seen], y[seen], "-o", ms=2, lw=1, color=colour, label=label)
    low, high = place.get_ylim()
    scales = ["x", "y"] if high > WIDE * low else ["x"]
    for name in scales:
        getattr(place, f"set_{name}scale")("log")
        ticks = getattr(place, f"{name}axis")
        ticks.set_minor_formatter(FuncFormatter(_some))
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    place.set_xlabel("epochs" if axis == "epochs" else "seconds of training", fontsize=8)
    place.set_ylabel(NAMES["frechet"], fontsize=8)
    place.tick_params(labelsize=7, which="both")


def _some(value: float, _: object) -> str:
    """Minor ticks at 2 and 5 only have room for their labels."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def draw_samples(block: SubFigure, group: Group, cells: Cells) -> None:
    """Two rows of pictures for each method, of its first seed."""
    block.suptitle(f"samples: {group}", fontsize=9)
    places = block.subplots(len(cells), 1, squeeze=False)[:, 0]
    for place, (method, of) in zip(places, cells.items(), strict=True):
        place.imshow(mosaic(of[0].samples[: 2 * COLUMNS], COLUMNS), cmap="gray", vmin=0, vmax=1)
        place.set(xticks=[], yticks=[])
        place.set_ylabel(method, rotation=0, ha="right", va="center", fontsize=7)
