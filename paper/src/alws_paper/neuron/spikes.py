"""Spikes in voltage traces: how many, when, and how much they vary from trace to trace."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

LEVEL = -20.0
"""A spike is where the voltage rises through this many millivolts."""
REFRACTORY = 1.0
"""A rise within so many milliseconds of the last belongs to the same spike."""


class SpikeTrains(NamedTuple):
    """The times of the spikes of many traces, in ms; NaN where a trace has fewer than others."""

    counts: Int[np.ndarray, " traces"]
    times: Float[np.ndarray, "traces spikes"]

    @property
    def mean_count(self) -> float:
        """Spikes per trace."""
        return float(self.counts.mean())

    @property
    def count_jitter(self) -> float:
        """Standard deviation of the number of spikes."""
        return float(self.counts.std())

    @property
    def common(self) -> int:
        """How many spikes nine in ten of the traces have; the time of a rarer one has no mean."""
        return int(np.quantile(self.counts, 0.1, method="lower"))

    @property
    def mean_times(self) -> Float[np.ndarray, " spikes"]:
        """The mean time of the k-th spike, over the traces that have one."""
        have = ~np.isnan(self.times)
        total = np.where(have, self.times, 0.0).sum(axis=0)
        return total / have.sum(axis=0)

    @property
    def time_jitter(self) -> float:
        """Standard deviation of the time of the k-th spike, averaged over the common ones."""
        return float(np.nanstd(self.times[:, : self.common], axis=0).mean()) if self.common else 0.0

    def apart(self, reference: "SpikeTrains") -> Float[np.ndarray, " spikes"]:
        """|difference| of the mean time of each of the reference's common spikes, in ms.

        Infinite for a spike that these traces never have.
        """
        ours = np.full(reference.common, np.inf)
        some = self.mean_times[: reference.common]
        ours[: len(some)] = some
        return np.abs(ours - reference.mean_times[: reference.common])


def spike_trains(voltages: Float[np.ndarray, "traces times"], step: float) -> SpikeTrains:
    """The spikes of each trace; `step` is the time between two of its entries, in ms.

    Example: `spike_trains(voltages, step=0.05).mean_count`.
    """
    rising = (voltages[:, 1:] > LEVEL) & (voltages[:, :-1] <= LEVEL)
    trains = []
    for row in rising:
        kept: list[float] = []
        for time in step * (np.flatnonzero(row) + 1):
            if not kept or time - kept[-1] >= REFRACTORY:
                kept.append(float(time))
        trains.append(kept)
    times = np.full((len(trains), max(map(len, trains), default=0)), np.nan)
    for row, kept in zip(times, trains, strict=True):
        row[: len(kept)] = kept
    return SpikeTrains(np.array([len(kept) for kept in trains]), times)
