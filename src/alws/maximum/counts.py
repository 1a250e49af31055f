"""Latents that count: the values beyond those that were drawn, as far as the data have any mass.

Draws show the values that are common under the model as it stands. The posterior of an observation
far from it lies on rarer ones, a hundred animals where the start expects five. They are looked for
in blocks, downwards to 0 and upwards, until a block adds nothing to any observation. Whether they
are values at all is told by simulated observations: on what a model cannot draw, such as a category
that it has not, their posteriors would have mass without a draw ever showing it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import logsumexp

from alws.maximum.latents import MOST_COMBINATIONS, Latents

BLOCK = 64
"""How many values are looked at together."""

NOTHING = 1e-10
"""The posterior mass of an observation that may be left out."""

BY_CHANCE = 2e-3
"""The mean mass that simulated posteriors may have on values that no draw shows."""


def widened(
    latents: Latents,
    log_p: Callable[[np.ndarray], np.ndarray],
    simulated: Callable[[np.ndarray], np.ndarray],
    most: int = MOST_COMBINATIONS,
) -> Latents | None:
    """The latents with all values that the data need; None if they are no single count.

    Arguments:
        latents: as draws show them.
        log_p: log p(z, x_m) of the data at a block of values, observations as rows.
        simulated: the same of simulated observations.
        most: how many values there may be.

    Example: `widened(describe(draws.z), log_p, simulated)`.
    """
    seen = np.unique(latents.values)
    if latents.values.shape[1] != 1 or len(latents.continuous) or len(seen) < 2:
        return None
    if not (seen == np.round(seen)).all() or seen[-1] - seen[0] >= most:
        return None
    values = np.arange(seen[0], seen[-1] + 1)
    tables = [_at(f, values) for f in (log_p, simulated)]
    for step in (-1, 1):
        while len(values) < most:
            block = values[0 if step < 0 else -1] + step * np.arange(1, BLOCK + 1)
            block = np.sort(block if seen[0] < 0 else block[block >= 0])
            if not len(block):
                break
            values = np.concatenate([block, values][::-step])
            new = [_at(f, block) for f in (log_p, simulated)]
            tables = [
                np.concatenate([a, b][::-step], axis=1) for a, b in zip(new, tables, strict=True)
            ]
            shares = [_share(table) for table in tables]
            if shares[1][:, ~np.isin(values, seen)].sum(axis=1).mean() > BY_CHANCE:
                return None
            lost = (tables[0] == -np.inf).all(axis=1).any()
            if shares[0][:, np.isin(values, block)].max() < NOTHING and not lost:
                break
    needed = np.isin(values, seen) | (_share(tables[0]).max(axis=0) > NOTHING / BLOCK)
    first, *_, last = np.flatnonzero(needed)
    return latents._replace(values=values[first : last + 1, None])


def _at(log_p: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    """log p at all these values, a block after the other, so that one shape is compiled."""
    padded = np.append(values, np.repeat(values[-1:], -len(values) % BLOCK)).reshape(-1, BLOCK, 1)
    found = np.concatenate([log_p(block) for block in padded], axis=1)[:, : len(values)]
    return np.where(np.isnan(found), -np.inf, found)


def _share(table: np.ndarray) -> np.ndarray:
    """The posterior mass on each value; zeros for an observation without density anywhere."""
    total: Any = logsumexp(table, axis=1, keepdims=True)
    return np.exp(table - np.where(np.isfinite(total), total, 0.0))
