"""The figure of the neural process: functions, and posterior samples of two ways to train it."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from alws_paper.neural_process.data import Sinusoids, grid, posterior_moments


def figure(
    drawn: dict[tuple[str, int], np.ndarray],
    data: Sinusoids,
    test: Sinusoids,
    names: tuple[str, str],
    most: int,
) -> Figure:
    """Top: functions and what is seen of them. Below: posterior samples, for 1 to 4 pairs."""
    x, rows = np.asarray(grid()), 3
    fig, axes = plt.subplots(rows + 1, 2 * most, figsize=(11, 7), sharex=True, sharey=True)
    for column, axis in enumerate(axes[0]):
        axis.plot(x, data.f[column], "k", lw=1.2)
        axis.plot(data.x[column], data.y[column], "o", color="0.6", ms=3)
        axis.set(xlim=(-3.3, 3.3), ylim=(-1.4, 1.4), xticks=[-3, 0, 3], yticks=[-1, 0, 1])
        name, pairs = names[column % 2], column // 2 + 1
        axes[1, column].set_title(f"{name}, {pairs}", fontsize=9)
        mean, spread = posterior_moments(test.x[:rows, :pairs], test.y[:rows, :pairs])
        for i, axis in enumerate(axes[1:, column]):
            low, high = mean[i] - 2 * spread[i], mean[i] + 2 * spread[i]
            axis.fill_between(x, low, high, color="0.88", lw=0)
            axis.plot(x, drawn[name, pairs][i, :20].T, "C0", lw=0.6, alpha=0.5)
            axis.plot(x, test.f[i], "C1", lw=1.6)
            axis.plot(test.x[i, :pairs], test.y[i, :pairs], "ko", ms=4)
    axes[0, 0].set_title("functions and noisy observations", fontsize=10, loc="left")
    fig.tight_layout()
    plt.close(fig)
    return fig
