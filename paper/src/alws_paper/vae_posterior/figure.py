"""The figure of the VAE's posteriors: the latent plane, five digits, exact and the encoder's."""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator

from alws_paper.shared.vae import DiagonalGaussian

SHOWN = (0.5, 0.75, 0.9, 0.97, 1.0)
"""The images in the figure, as quantiles of the distance from the best Gaussian."""


DEPTH = 8.0
"""Nats below the highest density down to which colours go, and windows reach."""
ACROSS = 161
"""Nodes along each side of a window."""


class Window(NamedTuple):
    """A square part of the latent plane, as nodes along both axes."""

    x: Float[np.ndarray, " side"]
    y: Float[np.ndarray, " side"]

    @property
    def z(self) -> Float[np.ndarray, "nodes 2"]:
        """Its nodes, row by row, first coordinate along columns."""
        return np.stack(np.meshgrid(self.x, self.y), axis=-1).reshape(-1, 2)


class Panel(NamedTuple):
    """A digit, log p(z, x) over a window, the encoder's posterior, nats to the best and to it."""

    digit: Float[np.ndarray, "28 28"]
    window: Window
    log_joint: Float[np.ndarray, " nodes"]
    encoder: DiagonalGaussian
    to_best: float
    to_encoder: float


def window_around(
    axis: Float[np.ndarray, " side"], log_joint: Float[np.ndarray, " nodes"]
) -> Window:
    """The smallest square, and a margin, that holds all within `DEPTH` of the highest value.

    Example: `window_around(grid.axis, values).z` are nodes for a closer look.
    """
    x, y = np.meshgrid(axis, axis)
    likely = log_joint.reshape(x.shape) > log_joint.max() - DEPTH
    places = np.stack([x[likely], y[likely]])
    centre = (places.min(axis=1) + places.max(axis=1)) / 2
    half = np.ptp(places, axis=1).max() / 2 + 2 * (axis[1] - axis[0])
    return _square(centre, half)


def _square(centre: Float[np.ndarray, "2"], half: float) -> Window:
    return Window(*(np.linspace(c - half, c + half, ACROSS) for c in centre))


def figure(
    means: Float[np.ndarray, "rows columns 28 28"],
    panels: list[Panel],
) -> Figure:
    """Decoded means over the latent plane; five digits, exact posteriors, the encoder's."""
    fig = plt.figure(figsize=(9, 12.5), layout="constrained")
    top, bottom = fig.subfigures(2, 1, height_ratios=(1.2, 1))  # pyright: ignore
    plane = top.subplots()
    mosaic = np.concatenate(np.concatenate(means, axis=1), axis=1)
    plane.imshow(mosaic, cmap="gray", extent=(-3, 3, -3, 3))
    plane.set(title="mean images over the latent plane", xlabel="$z_1$", ylabel="$z_2$")
    axes = bottom.subplots(3, len(panels))
    for column, panel in zip(axes.T, panels, strict=True):
        draw(column, panel)
    for first, text in zip(axes[:, 0], ("digit", "exact", "encoder"), strict=True):
        first.set_ylabel(text)
    bottom.suptitle(
        "five test digits, at the 50, 75, 90, 97 and 100 % quantiles of the distance of the exact "
        "posterior\nfrom its best Gaussian (middle row); below, its distance from the encoder's, "
        "each over its own part of\nthe plane; colours: log density, "
        f"{DEPTH:g} nats deep; blue: two standard deviations of the encoder's",
        fontsize=9,
    )
    plt.close(fig)
    return fig


def draw(axes: np.ndarray, panel: Panel) -> None:
    """One digit, its exact posterior and the encoder's, the latter's ellipse over both."""
    mean, scale = np.asarray(panel.encoder.mean), np.exp(np.asarray(panel.encoder.log_scale))
    around = _square(mean, float(np.sqrt(2 * DEPTH) * scale.max()))
    gaussian = -0.5 * (((around.z - mean) / scale) ** 2).sum(axis=1)
    axes[0].imshow(panel.digit, cmap="gray")
    axes[0].set(xticks=[], yticks=[])
    rows = (
        (panel.window, panel.log_joint, panel.to_best),
        (around, gaussian, panel.to_encoder),
    )
    for axis, (window, value, nats) in zip(axes[1:], rows, strict=True):
        edges = (window.x[0], window.x[-1], window.y[0], window.y[-1])
        shown = (value - value.max()).reshape(ACROSS, ACROSS)
        axis.imshow(shown, origin="lower", extent=edges, cmap="magma", vmin=-DEPTH, vmax=0)
        axis.add_patch(Ellipse(tuple(mean), *(4 * scale), fill=False, ec="deepskyblue", lw=1))
        axis.set(xlim=edges[:2], ylim=edges[2:])
        axis.set_title(f"{nats:.2f} nats", fontsize=9)
        axis.tick_params(labelsize=7)
        for ticks in (axis.xaxis, axis.yaxis):
            ticks.set_major_locator(MaxNLocator(3))
