"""The figure of the blowflies: data and simulations of each method, and the fit's parameters."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SHOWN = 3
"""How many simulated sequences are drawn for each method."""
LABELS = {
    "P": "$P$",
    "N0": "$N_0$ (flies)",
    "delta": r"$\delta$",
    "sigma_p": r"$\sigma_p$",
    "sigma_d": r"$\sigma_d$",
    "sigma_n": r"$\sigma_n$",
}


def figure(
    counts: Float[np.ndarray, " times"],
    past: Float[np.ndarray, " delays"],
    ours: Float[np.ndarray, "simulations longer"],
    rivals: Mapping[str, Float[Array | np.ndarray, "simulations times"]],
    trace: Mapping[str, Float[np.ndarray, " reports"]],
) -> Figure:
    """Sequences by ALWS, for twice the time, and by the rivals; parameters and delays by step."""
    fig = plt.figure(figsize=(11, 9.5))
    top, bottom = fig.add_gridspec(2, 1, height_ratios=[3, 1.9], hspace=0.2)
    rows = top.subgridspec(1 + len(rivals), 1, hspace=0.35)
    axis = fig.add_subplot(rows[0])
    draw(axis, counts, ours, "tab:blue")
    axis.plot(np.arange(-len(past), 0), past / 1000, color="black", ls=":", lw=1.2)
    axis.set_title("ALWS (dotted: the learnt past)", fontsize=9, loc="left", pad=2)
    for i, (method, sequences) in enumerate(rivals.items()):
        axis = fig.add_subplot(rows[i + 1])
        draw(axis, counts, sequences, ("tab:orange", "tab:green")[i % 2])
        axis.set_title(method, fontsize=9, loc="left", pad=2)
    axis.set_xlabel("count (every second day)")
    grid = bottom.subgridspec(2, 5, hspace=0.5, wspace=0.4)
    for i, (name, label) in enumerate(LABELS.items()):
        axis = fig.add_subplot(grid[divmod(i, 3)])
        unit = counts.max() if name == "N0" else 1.0
        axis.plot(trace["step"], unit * trace[name], color="tab:blue", lw=1)
        axis.set_title(label, fontsize=9)
        axis.tick_params(labelsize=7)
        if i >= 3:
            axis.set_xlabel("step", fontsize=8)
    axis = fig.add_subplot(grid[:, 3:])
    delays = np.stack([trace[f"delay {i + 1}"] for i in range(len(past))])
    edges = trace["step"][0], trace["step"][-1], 0.5, len(past) + 0.5
    image = axis.imshow(
        delays, aspect="auto", origin="lower", extent=edges, cmap="Blues", vmin=0, vmax=1
    )
    axis.set_title(r"probability of each delay $\tau$", fontsize=9)
    axis.set_xlabel("step", fontsize=8)
    axis.tick_params(labelsize=7)
    fig.colorbar(image, ax=axis, pad=0.02)
    plt.close(fig)
    return fig


def draw(
    axis: Axes,
    counts: Float[np.ndarray, " times"],
    sequences: Float[Array | np.ndarray, "simulations longer"],
    colour: str,
) -> None:
    """A few sequences, each in a shade of one colour, and the counts in black."""
    for sequence, alpha in zip(np.asarray(sequences[:SHOWN]), (0.9, 0.6, 0.4), strict=False):
        axis.plot(sequence / 1000, color=colour, lw=0.9, alpha=alpha)
    axis.plot(counts / 1000, color="black", lw=1.2)
    axis.set(ylabel="thousands", ylim=(0, 1.6 * counts.max() / 1000))
    axis.set_xlim(-20, 360)
