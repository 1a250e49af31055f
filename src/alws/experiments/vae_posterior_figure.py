"""The figure of the VAE's posteriors: the latent plane, five digits, exact and the encoder's."""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from alws.baselines.vae import DiagonalGaussian

SHOWN = (0.5, 0.75, 0.9, 0.97, 1.0)
"""The images in the figure, as quantiles of the distance from the best Gaussian."""


class Panel(NamedTuple):
    """A digit, log p(z, x) on the grid, the encoder's posterior, nats to the best and to it."""

    digit: Float[np.ndarray, "28 28"]
    log_joint: Float[np.ndarray, " nodes"]
    encoder: DiagonalGaussian
    to_best: float
    to_encoder: float


def figure(
    means: Float[np.ndarray, "rows columns 28 28"],
    panels: list[Panel],
    axis: Float[np.ndarray, " side"],
) -> Figure:
    """Decoded means over the latent plane; five digits, exact posteriors, the encoder's."""
    fig = plt.figure(figsize=(7.5, 11), layout="constrained")
    top, bottom = fig.subfigures(2, 1, height_ratios=(1.2, 1))  # pyright: ignore
    plane = top.subplots()
    mosaic = np.concatenate(np.concatenate(means, axis=1), axis=1)
    plane.imshow(mosaic, cmap="gray", extent=(-3, 3, -3, 3))
    plane.set(title="mean images over the latent plane", xlabel="$z_1$", ylabel="$z_2$")
    axes = bottom.subplots(3, len(panels))
    for column, panel in zip(axes.T, panels, strict=True):
        draw(column, panel, axis)
    for first, text in zip(axes[:, 0], ("digit", "exact", "encoder"), strict=True):
        first.set_ylabel(text)
    bottom.suptitle(
        "five test digits, at the 50, 75, 90, 97 and 100 % quantiles of the distance of the exact\n"
        "posterior from its best Gaussian (middle row); below, its distance from the encoder's",
        fontsize=9,
    )
    plt.close(fig)
    return fig


def draw(axes: np.ndarray, panel: Panel, axis: Float[np.ndarray, " side"]) -> None:
    """One digit, its exact posterior and the encoder's, over one window that holds both."""
    x, y = np.meshgrid(axis, axis)
    exact = np.exp(panel.log_joint - panel.log_joint.max()).reshape(x.shape)
    mean, scale = np.asarray(panel.encoder.mean), np.exp(np.asarray(panel.encoder.log_scale))
    squares = ((x - mean[0]) / scale[0]) ** 2 + ((y - mean[1]) / scale[1]) ** 2
    gaussian = np.exp(-squares / 2)
    held = (exact > 0.01) | (gaussian > 0.01)
    places = np.stack([x[held], y[held]])
    centre = (places.min(axis=1) + places.max(axis=1)) / 2
    half = 1.15 * np.ptp(places, axis=1).max() / 2 + 2 * (axis[1] - axis[0])
    axes[0].imshow(panel.digit, cmap="gray")
    axes[0].set(xticks=[], yticks=[])
    nats = (panel.to_best, panel.to_encoder)
    for place, density, value in zip(axes[1:], (exact, gaussian), nats, strict=True):
        edges = (axis[0], axis[-1], axis[0], axis[-1])
        place.imshow(density, origin="lower", extent=edges, cmap="magma")
        place.set(
            xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half)
        )
        place.set_title(f"{value:.2f} nats", fontsize=8)
        place.tick_params(labelsize=6)
