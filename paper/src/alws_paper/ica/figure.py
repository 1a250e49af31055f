"""The figure of the independent components: true and found filters, best found first."""

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from alws_paper.ica.matching import match_filters


def figure(
    filters: dict[str, Float[np.ndarray, "pixels filters"]],
    truth: Float[np.ndarray, "pixels filters"],
) -> Figure:
    """True and found filters side by side, the best found (by ALWS with λ fixed) first."""
    ranking = np.argsort(-np.abs(match_filters(filters["λ fixed"], truth)[1]))
    panels = [("true filters", truth, np.ones(truth.shape[1]))]
    for name, weight in filters.items():
        order, correlation = match_filters(weight, truth)
        title = f"{'VAE' if name == 'VAE' else 'ALWS, ' + name}: {np.abs(correlation).mean():.2f}"
        panels.append((title, weight[:, order], correlation))
    fig, axes = plt.subplots(2, 2, figsize=(8, 8.6))
    for axis, (title, weight, correlation) in zip(axes.ravel(), panels, strict=True):
        signed = weight * np.sign(correlation)
        axis.imshow(mosaic(signed[:, ranking]), cmap="gray", vmin=-1, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
    fig.suptitle(
        "filters in the same order in every panel; mean |correlation| with the truth", fontsize=10
    )
    fig.tight_layout()
    plt.close(fig)
    return fig


def mosaic(weight: Float[np.ndarray, "pixels filters"]) -> Float[np.ndarray, "height width"]:
    """All filters on a square grid, each scaled to its largest entry."""
    side, across = int(np.sqrt(weight.shape[0])), int(np.ceil(np.sqrt(weight.shape[1])))
    tile = side + 1
    grid = np.ones((across * tile - 1, across * tile - 1))
    for i, filter in enumerate(weight.T):
        row, column = divmod(i, across)
        picture = filter.reshape(side, side) / (np.abs(filter).max() + 1e-12)
        grid[row * tile :, column * tile :][:side, :side] = picture
    return grid
