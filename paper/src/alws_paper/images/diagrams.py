"""The five graphs drawn, as the appendix on complex networks has them.

Squares are bits, circles Gaussian latents, rounded boxes ReLU units, the grey circle the pixels.
"""

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from alws_paper.images.graphs import GRAPHS

Edge = tuple[str, str]


def chain(*nodes: str) -> tuple[Edge, ...]:
    """The edges from each node to the next.

    Example: `chain("zd", "zc", "h") == (("zd", "zc"), ("zc", "h"))`.
    """
    return tuple(pairwise(nodes))


EDGES: dict[str, tuple[Edge, ...]] = {
    "direct": chain("zd", "zc", "h", "x"),
    "skip": (*chain("zd", "zc", "h", "x"), ("zd", "h")),
    "merged": (*chain("zd", "h1", "h2", "x"), ("zc", "h1")),
    "feedback": (*chain("zd1", "zc1", "zd2", "zc2", "h", "x"), ("zc1", "h")),
    "feedback-skip": (
        *chain("zd1", "zc1", "zd2", "zc2", "h", "x"),
        ("zc1", "h"),
        ("zd1", "h"),
    ),
}
"""What every node's parameters are a function of."""

SHORT = {"zd": (0, 3), "zc": (0, 2), "h": (0, 1), "x": (0, 0)}
LONG = {"zd1": (-1, 3), "zc1": (-1, 2), "zd2": (1, 3), "zc2": (1, 2), "h": (0, 1), "x": (0, 0)}
PLACES = {
    "direct": SHORT,
    "skip": SHORT,
    "merged": {"zd": (-1, 3), "zc": (1, 3), "h1": (0, 2), "h2": (0, 1), "x": (0, 0)},
    "feedback": LONG,
    "feedback-skip": LONG,
}
"""Where the nodes stand, the latents on top."""
BENT = {("zd", "h"): -0.5, ("zd1", "h"): 0.85}
"""Edges that go around a node."""


def draw_graphs(block: Figure | SubFigure) -> None:
    """All five graphs side by side.

    Example: `draw_graphs(plt.figure(figsize=(7.2, 1.8)))`.
    """
    for axis, name in zip(block.subplots(1, len(GRAPHS)), GRAPHS, strict=True):
        draw_graph(axis, name)


def draw_graph(axis: Axes, name: str) -> None:
    """One graph.

    Example: `draw_graph(plt.gca(), "skip")`.
    """
    places = PLACES[name]
    for start, end in EDGES[name]:
        bend = BENT.get((start, end), 0.0)
        axis.annotate(
            "",
            places[end],
            places[start],
            arrowprops={
                "arrowstyle": "-|>",
                "shrinkA": 8,
                "shrinkB": 8,
                "lw": 0.8,
                "fc": "black",
                "connectionstyle": f"arc3,rad={bend}",
            },
        )
    for node, place in places.items():
        kind = node.rstrip("12")
        shape = {"zd": "square", "zc": "circle", "h": "round", "x": "circle"}[kind]
        label = {"zd": "z^d", "zc": "z^c"}.get(kind, kind) + "".join(
            f"_{number}" for number in node[len(kind) :]
        )
        box = {"boxstyle": f"{shape},pad=0.25", "fc": "0.85" if node == "x" else "white", "lw": 0.8}
        axis.text(*place, f"${label}$", ha="center", va="center", fontsize=7, bbox=box)
    axis.set(xlim=(-1.8, 1.8), ylim=(-0.5, 3.5))
    axis.set_title(name, fontsize=7)
    axis.axis("off")


__all__ = ["EDGES", "draw_graph", "draw_graphs"]
