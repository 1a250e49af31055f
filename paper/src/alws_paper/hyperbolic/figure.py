"""The figure of the `hyperbolic` experiment."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from alws_paper.hyperbolic.data import Tree
from alws_paper.hyperbolic.recovery import Recovery


def figure(tree: Tree, disk: Any, plane: Any, found: dict[str, list[Recovery]]) -> Figure:
    """Latents with the tree's edges, distance by depth, and the recovered parameters."""
    fig, grid = plt.subplots(4, 2, figsize=(9, 14))
    axes = grid.reshape(2, 4)
    dots = _latents(axes[0, 0], tree, disk.z, "Poincaré disk: latents by depth")
    axes[0, 0].add_patch(plt.Circle((0, 0), 1, fill=False, color="0.3"))
    _latents(axes[0, 2], tree, plane.z, "flat plane: latents by depth")
    for axis in (axes[0, 0], axes[0, 2]):
        ticks = range(int(tree.depth.max()) + 1)
        fig.colorbar(dots, ax=axis, label="depth in the tree", shrink=0.8, ticks=ticks)
    _depths(axes[0, 1], tree, disk, "hyperbolic distance from the origin")
    _depths(axes[0, 3], tree, plane, "distance from the origin")
    for row, (name, group) in zip(axes[1].reshape(2, 2), found.items(), strict=True):
        spread, place = group[0].parameters
        _spread(row[0], group, spread)
        _place(row[1], group, spread, place)
        row[0].set_title(f"{name}: {spread}")
        row[1].set_title(f"{name}: {place}")
    axes[1, 0].legend(fontsize=8, loc="upper center", ncols=2)
    axes[1, 0].margins(y=0.25)
    fig.tight_layout()
    plt.close(fig)
    return fig


def _latents(axis: Axes, tree: Tree, z: np.ndarray, title: str) -> Any:
    """Posterior modes of the observations; edges between the means of each node's."""
    node = np.array([z[tree.node == i].mean(axis=0) for i in range(len(tree.depth))])
    ends = np.stack([node[1:], node[tree.parent[1:]]], axis=1)
    axis.add_collection(LineCollection(list(ends), colors="0.75", linewidths=0.6))
    axis.set(title=title, aspect="equal", xticks=[], yticks=[])
    return axis.scatter(*z.T, c=tree.depth[tree.node], s=7, cmap="viridis", zorder=2)


def _depths(axis: Axes, tree: Tree, latents: Any, label: str) -> None:
    """Boxes of the distances at each depth."""
    levels = list(range(int(tree.depth.max()) + 1))
    depth = tree.depth[tree.node]
    axis.boxplot([latents.distance[depth == i] for i in levels], positions=levels, widths=0.6)
    axis.set(xlabel="depth in the tree", ylabel=label)
    axis.set_title(f"rank correlation {latents.correlation:.2f}")


def _spread(axis: Axes, group: list[Recovery], name: str) -> None:
    """Concentration or scale over the generator's, one place on the axis for each generator."""
    for i, r in enumerate(group):
        p = r.parameters[name]
        label = None if i else "exact estimate, 2 s.e."
        error = 2 * p.error / p.truth
        axis.errorbar(
            i - 0.1, p.exact / p.truth, error, fmt="o", color="0.4", capsize=3, label=label
        )
        label = None if i else "ALWS"
        axis.plot(i + 0.1, p.learnt / p.truth, "D", color="tab:red", label=label)
    axis.axhline(1, color="0.8", zorder=0)
    labels = [f"{float(r.parameters[name].truth):.3g}" for r in group]
    axis.set(xticks=range(len(group)), xticklabels=labels, xlim=(-0.5, len(group) - 0.5))
    axis.set(xlabel=f"generator's {name}", ylabel="estimate / generator's")


def _place(axis: Axes, group: list[Recovery], spread: str, place: str) -> None:
    """How far direction or location are from the generator's, and the standard error."""
    at = np.arange(len(group))
    parts = [r.parameters[place] for r in group]
    exact = [np.linalg.norm(p.exact - p.truth) for p in parts]
    axis.bar(at, [p.error for p in parts], 0.6, color="0.9", label="standard error")
    axis.plot(at - 0.1, exact, "o", color="0.4", label="exact estimate")
    axis.plot(at + 0.1, [p.off for p in parts], "D", color="tab:red", label="ALWS")
    labels = [f"{float(r.parameters[spread].truth):.3g}" for r in group]
    axis.set(xticks=at, xticklabels=labels, xlim=(-0.5, len(group) - 0.5))
    axis.set(xlabel=f"generator's {spread}", ylabel="distance from the generator's")
    axis.set_ylim(0, 1.4 * float(max(*exact, *(max(p.off, p.error) for p in parts))))
    axis.legend(fontsize=8, loc="upper center", ncols=3, columnspacing=0.8, handletextpad=0.4)
