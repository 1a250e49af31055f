"""A claim against what a run measured: whose it is, what was compared, and one of three outcomes.

A claim holds, does not hold, or is undecided: the run cannot tell. It cannot where the seeds of two
methods overlap, or their values within standard errors; where methods were never seen at equal
epochs; and where the paper's own claim was tried on less than a tenth of the paper's budget. Only
the first two outcomes count in the tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Source = Literal["paper", "ours"]

LEAST_SHARE = 0.1
"""The share of the paper's budget from which on a run decides a claim of the paper."""


@dataclass(frozen=True)
class Claim:
    """One claim against what this run measured.

    Arguments:
        claim: what is claimed.
        paper: what the paper says or measured, or the bar that was set.
        measured: what this run found.
        holds: None where the run does not decide it.
        source: "paper" for a claim the paper makes, "ours" for a bar set here.
        compared: what was compared: how many data, how large a model, for how long.
        undecided: why, where `holds` is None.

    Example: `Claim("the arms are found", "five of ten", "five", True, compared="2500 points")`.
    """

    claim: str
    paper: str
    measured: str
    holds: bool | None
    source: Source = "paper"
    compared: str = ""
    undecided: str = ""

    @property
    def outcome(self) -> str:
        """The outcome in words."""
        return outcome(self.holds)


def outcome(holds: bool | None) -> str:
    """An outcome in words.

    Example: `outcome(None) == "undecided"`.
    """
    return "undecided" if holds is None else ("holds" if holds else "does not hold")


@dataclass(frozen=True)
class Scale:
    """What a run compares, in words, and the share it spends of the paper's budget.

    Arguments:
        compared: stands with every claim of the run that does not say more itself.
        share: observations seen, of those that the paper's training saw; None where the paper
            prints no length.

    Example: `Scale("2500 points, 8000 steps of 200", share=0.256)`.
    """

    compared: str = ""
    share: float | None = None


def settled(claim: Claim, scale: Scale) -> Claim:
    """The claim with what was compared; the paper's own is undecided on too small a budget.

    Example: `settled(Claim("a", "b", "c", True), Scale("", share=0.01)).holds is None`.
    """
    claim = replace(claim, compared=claim.compared or scale.compared)
    if claim.source == "ours" or claim.holds is None or scale.share is None:
        return claim
    return claim if scale.share >= LEAST_SHARE else short_of_budget(claim, scale.share)


def short_of_budget(claim: Claim, share: float) -> Claim:
    """The claim undecided, with the share of the paper's budget that it was tried on.

    Example: `short_of_budget(claim, 0.04).undecided` begins "4 % of the paper's budget".
    """
    found = "meets" if claim.holds else "misses"
    why = f"{100 * share:.2g} % of the paper's budget; what was measured {found} the bar"
    return replace(claim, holds=None, undecided=why)


def is_lower(
    ours: Sequence[float],
    theirs: Sequence[float],
    our_errors: Sequence[float] = (),
    their_errors: Sequence[float] = (),
) -> bool | None:
    """Whether all seeds of one method lie below all of another; None where they overlap.

    Arguments:
        ours, theirs: a number for each seed.
        our_errors, their_errors: their standard errors, if known.

    Example: `is_lower([1.0, 2.0], [3.0, 4.0])` is true, `is_lower([1.0, 3.5], [3.0, 4.0])` None.
    """
    low, high = _reach(ours, our_errors)
    other_low, other_high = _reach(theirs, their_errors)
    if np.isnan([low, high, other_low, other_high]).any():
        return None
    if high < other_low:
        return True
    return False if low > other_high else None


def _reach(values: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """The lowest and highest value, errors included."""
    middle = np.asarray(values, float)
    error = np.asarray(errors, float) if len(errors) else np.zeros_like(middle)
    return float(np.min(middle - error)), float(np.max(middle + error))


def all_of(outcomes: Sequence[bool | None]) -> bool | None:
    """Whether all hold: false if one does not, else None if one is undecided.

    Example: `all_of([True, None]) is None`.
    """
    if any(one is False for one in outcomes):
        return False
    return None if any(one is None for one in outcomes) else True


__all__ = [
    "LEAST_SHARE",
    "Claim",
    "Scale",
    "Source",
    "all_of",
    "is_lower",
    "outcome",
    "settled",
    "short_of_budget",
]
