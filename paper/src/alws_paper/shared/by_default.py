"""A fit as `alws.fit` makes it with nothing set: raw data, no features, no number of steps.

The experiments on sequences have it beside the fit by regression, and the same claims of both.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from jaxtyping import Array, Key, PyTree

import alws
from alws import checkpoint
from alws.model import AnyModel
from alws_paper.run import Claim, Run

Model = TypeVar("Model", bound=AnyModel)
NAME = "default"
BAR = "not the paper's method, a bar set here; of its own the paper says: "


@dataclass(frozen=True)
class ByDefault(Generic[Model]):
    """A fitted model, and what the fit says of itself."""

    model: Model
    told: str

    def claims(self, claims: Sequence[Claim]) -> list[Claim]:
        """The claims as this fit's: whose it is, and what it says of itself, are added."""
        return [
            replace(
                claim,
                claim=f"default fit, raw data: {claim.claim}",
                paper=claim.paper if claim.source == "ours" else BAR + claim.paper,
                measured=f"{claim.measured} ({self.told})",
                source="ours",
                compared="the same data, `alws.fit` with nothing set",
            )
            for claim in claims
        ]


def fit_by_default(
    run: Run,
    start: Model,
    data: PyTree,
    *,
    key: Key[Array, ""],
    seconds: float,
    conditions: PyTree | None = None,
    log_prior: Callable[[Any], Array] | None = None,
) -> ByDefault[Model]:
    """The fit, or what a run that was stopped has of it.

    Arguments:
        run: its directory keeps the fit.
        start, data, key, conditions, log_prior: as `alws.fit` takes them.
        seconds: of the processor, after which the fit ends wherever it is.

    Example: `fit_by_default(run, start, data, key=key, seconds=120.0).model`.
    """
    path = run.directory / f"{NAME}.npz"
    if not path.exists():
        run.tell("fitting by default")
        with warnings.catch_warnings():  # the verdict, which warns, stands in the claims
            warnings.filterwarnings("ignore", "the fit should end at a maximum")
            result = alws.fit(
                start,
                data,
                key=key,
                conditions=conditions,
                log_prior=log_prior,
                seconds=seconds,
                progress=False,
            )
        told = f"{result.method}; {result.verdict}"
        checkpoint.save(path, result.model, {"told": told})
    return ByDefault(checkpoint.load(path, start), str(checkpoint.header(path)["told"]))


__all__ = ["ByDefault", "fit_by_default"]
