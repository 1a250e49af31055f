"""How near a fit is to a maximum of the likelihood, in nats."""

from typing import NamedTuple

LEAST_SAID = 0.01
"""Nats below which nobody needs to know how many exactly."""


class Verdict(NamedTuple):
    """The log likelihood still to be gained over all data: an estimate and a bound, in nats.

    `trusted` says whether the fit is near enough a maximum to be used: the bound is below a fifth
    of a nat for every free parameter. Where nothing can be told, `why` says why not.

    Example: `str(result.verdict)` is "within 0.3 nats of a maximum (at most 0.9)" or the like.
    """

    left: float
    most: float
    trusted: bool
    why: str

    def __str__(self) -> str:
        if self.why:
            return f"cannot tell, because {self.why}"
        if self.trusted and self.most < LEAST_SAID:
            return f"within {LEAST_SAID} nats of a maximum"
        if self.trusted:
            return f"within {self.left:.2g} nats of a maximum (at most {self.most:.2g})"
        return f"not at a maximum: {self.left:.2g} to {self.most:.2g} nats are left"
