"""The figure of the neuron: currents, responses of three neurons to both, and every parameter."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

SHOWN = 20
"""How many simulated traces are drawn in each panel."""
COLOURS = {"true": "tab:orange", "learnt": "tab:blue", "start": "tab:grey"}


def figure(
    data: Float[np.ndarray, " times"],
    responses: Mapping[str, Any],
    trace: Mapping[str, Float[np.ndarray, " reports"]],
    truth: Mapping[str, float],
    step: float,
) -> Figure:
    """The panels of the paper's figure: seven rows of traces, then one panel for each parameter."""
    fig = plt.figure(figsize=(11, 13))
    top, bottom = fig.add_gridspec(2, 1, height_ratios=[7, 3.4], hspace=0.16)
    panels = [("training", None), ("training", "learnt"), ("training", "start"), ("unseen", None)]
    panels += [("unseen", name) for name in ("true", "learnt", "start")]
    rows = top.subgridspec(len(panels), 1, hspace=0.35)
    for i, (name, model) in enumerate(panels):
        axis = fig.add_subplot(rows[i])
        response = responses[name]
        times = step * np.arange(len(response.current))
        if model is None:
            axis.plot(times, response.current, color="black", linewidth=0.6)
            axis.set_ylabel("I (µA/cm²)")
            axis.set_title(f"{name} current", fontsize=9, loc="left", pad=2)
        else:
            axis.plot(
                times[1:],
                response.voltages[model][:SHOWN].T,
                color=COLOURS[model],
                linewidth=0.5,
                alpha=0.5,
            )
            if name == "training" and model == "learnt":
                axis.plot(times, data, color="black", linestyle=":", linewidth=1, label="data")
                axis.legend(fontsize=8, loc="upper right")
            axis.set_ylabel("V (mV)")
            title = f"{model} parameters, {name} current"
            axis.set_title(title, fontsize=9, loc="left", pad=2)
        axis.set_xlim(0, times[-1])
        if i < len(panels) - 1:
            axis.set_xticklabels([])
        else:
            axis.set_xlabel("time (ms)")
    grid = bottom.subgridspec(2, 5, hspace=0.45, wspace=0.45)
    for i, (name, true) in enumerate(truth.items()):
        axis = fig.add_subplot(grid[divmod(i, 5)])
        axis.plot(trace["step"], trace[name], color="tab:blue")
        axis.axhline(true, color="tab:orange", linestyle="--")
        axis.set_title(_label(name), fontsize=9)
        axis.tick_params(labelsize=7)
        if i >= 5:
            axis.set_xlabel("step", fontsize=8)
    plt.close(fig)
    return fig


def _label(name: str) -> str:
    """A parameter's name with its index set as one: g_Na, process noise."""
    if "noise" in name:
        return name.replace("_", " ")
    letter, _, index = name.partition("_")
    return f"${letter}_{{{index}}}$" if index else f"${letter}$"
