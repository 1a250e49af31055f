"""How near a fit is to a maximum of the likelihood, in nats."""

from typing import NamedTuple

LEAST_SAID = 0.01
"""Nats below which nobody needs to know how many exactly."""

LEAST_FALL = 0.1
"""Nats that a fit may end below its start without a word."""


class Verdict(NamedTuple):
    """The log likelihood still to be gained over all data: an estimate and a bound, in nats.

    `trusted` says whether the fit is near enough a maximum to be used: the bound is below a fifth
    of a nat for every free parameter. Where nothing can be told, `why` says why not. `fallen` has
    the nats by which the fit ended below its start, and is 0 where it did not. `idle` counts the
    parameters that play no part in what the fitted model simulates: the means of a cluster that has
    died out, say. Such a fit may be at a maximum, but other starts are likely to lead higher.
    `maxima` is of how many distinct maxima this is the highest, where other starts were tried.
    `unused` says of which parts of its arrays the density does not depend, if there are any.
    `of_model` says that the reason is the model itself, and no other fit would be better.

    Example: `str(result.verdict)` is "within 0.3 nats of a maximum (at most 0.9)" or the like.
    """

    left: float
    most: float
    trusted: bool
    why: str
    fallen: float = 0.0
    idle: int = 0
    maxima: int = 1
    of_model: bool = False
    unused: str = ""

    def __str__(self) -> str:
        if self.unused:
            return f"{self._replace(unused='')}; {self.unused}"
        if self.fallen:
            ended = f"ended {self.fallen:.2g} nats below its start"
            return f"{ended}, {self._replace(fallen=0.0)}"
        if self.idle and not self.why:
            gone = f"{self.idle} parameters play no part any more, other starts may lead higher"
            return f"{gone}; {self.left:.2g} to {self.most:.2g} nats are left here"
        if self.why:
            return f"cannot tell, because {self.why}"
        which = f"the highest of {self.maxima} maxima found" if self.maxima > 1 else "a maximum"
        if self.trusted and self.most < LEAST_SAID:
            return f"within {LEAST_SAID} nats of {which}"
        if self.trusted:
            return f"within {self.left:.2g} nats of {which} (at most {self.most:.2g})"
        return f"not at a maximum: {self.left:.2g} to {self.most:.2g} nats are left"

    def since(self, began: float, ended: float, error: float = 0.0) -> "Verdict":
        """The same, not to be trusted if the log likelihood ended below where it began.

        Example: `verdict.since(-120.0, -118.5).fallen` is 0.
        """
        fallen = began - ended
        if not fallen > max(LEAST_FALL, 4 * error):
            return self
        return self._replace(trusted=False, fallen=float(fallen))
