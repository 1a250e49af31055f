"""Claims on the scores of image methods: who is lowest, and at which epoch or time.

At equal epochs they are the paper's, and decided from a tenth of its 50 epochs on; in equal time
they are ours. A score that is not shown makes no claim.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from alws_paper.claim import LEAST_SHARE, all_of, is_lower, short_of_budget
from alws_paper.images.curves import Axis, Compared, Score, compare
from alws_paper.images.grid import ADAPTED, IMAGES, Finished
from alws_paper.images.plan import PAPER, WITHOUT_LIKELIHOOD
from alws_paper.run import Claim, significant

NAMES = {"frechet": "Fréchet distance", "kernel": "kernel distance"}
OURS = "ALWS-A"
BOTH = ("ALWS-F", "ALWS-A")
AGREE = 0.7
"""The rank correlation over methods from which two generators are said to agree."""
EQUAL = {"epochs": "at equal epochs", "seconds": "in equal time"}
HIGHEST = "the highest held-out likelihood of the maximum-likelihood methods in equal time"
TRAINED = 0.5
"""The share of the worst first score that the best method must reach for an order to count."""


class Group(NamedTuple):
    """A data set and a generator: the cells that can be compared."""

    dataset: str
    generator: str

    def __str__(self) -> str:
        return f"{self.dataset}, {self.generator}"


Cells = dict[str, list[Finished]]
Groups = dict[Group, Cells]


def grouped(finished: Sequence[Finished]) -> Groups:
    """For each group, every method's cells, one for each seed.

    Example: `grouped(cells)[Group("mnist", "connected")]["VAE"][0].curve`.
    """
    groups: Groups = {}
    for one in finished:
        group = Group(one.cell.dataset, one.cell.generator)
        groups.setdefault(group, {}).setdefault(one.cell.method, []).append(one)
    return groups


def compared(cells: Cells, axis: Axis, score: Score) -> Compared:
    """All methods at the largest epoch or the longest time that every cell reached."""
    return compare({m: [one.curve for one in of] for m, of in cells.items()}, axis, score)


def likelihood_methods(cells: Cells) -> list[str]:
    """The methods of maximum likelihood among those that were run."""
    return [name for name in cells if name not in WITHOUT_LIKELIHOOD]


def place_of(found: Compared) -> str:
    """Where curves were compared, in words."""
    if found.axis == "epochs":
        return f"after {significant(found.place)} epochs"
    return f"after {significant(found.place)} s of training"


def listed(medians: dict[str, float]) -> str:
    """Methods and their numbers, the lowest first."""
    order = sorted(medians, key=lambda name: (np.isnan(medians[name]), medians[name]))
    return ", ".join(f"{name} {significant(medians[name])}" for name in order)


def lowest_claim(
    group: Group, cells: Cells, axis: Axis, score: Score, paper: str, ours: str = OURS
) -> list[Claim]:
    """That `ours` is lower than each other maximum-likelihood method, in every seed.

    In equal time all are compared at once. At equal epochs `ours` is compared with each other one
    at the last epoch that both reached: some methods take minutes for what others do in seconds.
    """
    rivals = [name for name in likelihood_methods(cells) if name != ours]
    if ours not in cells or not rivals or not is_shown(cells, score):
        return []
    if axis == "seconds":
        found = compared(only(cells, ours, *rivals), axis, score)
        pairs = dict.fromkeys(rivals, found)
        measured = f"{place_of(found)}, median of {len(cells[ours])}: {listed(found.medians)}"
    else:
        pairs = {rival: compared(only(cells, ours, rival), axis, score) for rival in rivals}
        rows = [
            f"{significant(pair.medians[ours])} against {rival}'s "
            f"{significant(pair.medians[rival])} {place_of(pair)}"
            if np.isfinite(pair.place)
            else f"no epoch at which both it and {rival} were scored"
            for rival, pair in pairs.items()
        ]
        measured = f"median of {len(cells[ours])}: " + "; ".join(rows)
    claim = Claim(
        f"{group}: {ours} has the lowest {NAMES[score]} of the maximum-likelihood methods "
        f"{EQUAL[axis]}",
        paper,
        measured,
        all_of([pair.lower(ours, rival) for rival, pair in pairs.items()]),
    )
    return [weighed(claim, axis, list(pairs.values()), cells)]


def both_claim(group: Group, cells: Cells, axis: Axis, score: Score, paper: str) -> list[Claim]:
    """That ALWS-F and ALWS-A are both lower than every other method of likelihood."""
    rivals = [name for name in likelihood_methods(cells) if not name.startswith("ALWS")]
    if not set(BOTH) <= set(cells) or not rivals or not is_shown(cells, score):
        return []
    rows, lower, pairs = [], [], []
    for rival in rivals:
        for ours in BOTH:
            pairs.append(compared(only(cells, ours, rival), axis, score))
            lower.append(pairs[-1].lower(ours, rival))
            medians = pairs[-1].medians
            rows.append(
                f"{ours} {significant(medians[ours])}, {rival} {significant(medians[rival])}"
            )
    claim = Claim(
        f"{group}: ALWS-F and ALWS-A both have a lower {NAMES[score]} than the other "
        f"maximum-likelihood methods {EQUAL[axis]}",
        paper,
        f"lower in {lower.count(True)} of {len(lower)} pairs: " + "; ".join(rows),
        all_of(lower),
    )
    return [weighed(claim, axis, pairs, cells)]


def weighed(claim: Claim, axis: Axis, pairs: Sequence[Compared], cells: Cells) -> Claim:
    """The claim with its source, and with the reason where it is undecided."""
    sizes = {one.summary[IMAGES] for of in cells.values() for one in of if IMAGES in one.summary}
    size = f"{max(sizes):,} training images: " if sizes else ""
    claim = replace(
        claim, source="paper" if axis == "epochs" else "ours", measured=size + claim.measured
    )
    if OURS in claim.claim and not all(one.summary.get(ADAPTED, 1) for one in cells[OURS]):
        return replace(claim, holds=None, undecided="the run ended before ALWS-A began to adapt")
    places = [pair.place for pair in pairs]
    if not np.isfinite(places).all():
        return replace(claim, holds=None, undecided="methods were never scored at equal epochs")
    if claim.holds is None:
        claim = replace(claim, undecided="seeds or standard errors overlap")
    elif axis == "epochs" and min(places) < LEAST_SHARE * PAPER:
        claim = short_of_budget(claim, min(places) / PAPER)
    return claim


def is_shown(cells: Cells, score: Score) -> bool:
    """Whether there were pictures enough for a score."""
    return not any(np.isnan(getattr(one.curve, score)).all() for of in cells.values() for one in of)


def only(cells: Cells, *methods: str) -> Cells:
    """The cells of some methods.

    Example: `compared(only(cells, "AL-P", "VAE"), "epochs", "frechet")`.
    """
    return {name: cells[name] for name in methods}


def particles_claim(groups: Groups) -> list[Claim]:
    """That AL-P is worse than the VAE, by both distances at equal epochs."""
    rows, worse, pairs = [], [], []
    for group, cells in groups.items():
        if not {"AL-P", "VAE"} <= set(cells):
            continue
        for score in ("frechet", "kernel"):
            if not is_shown(cells, score):
                continue
            found = compared(only(cells, "AL-P", "VAE"), "epochs", score)
            medians = found.medians
            pairs.append(found)
            worse.append(found.lower("VAE", "AL-P"))
            rows.append(
                f"{group}: {NAMES[score]} {significant(medians['AL-P'])} against "
                f"{significant(medians['VAE'])} {place_of(found)}"
            )
    if not rows:
        return []
    claim = Claim(
        "amortised learning by particles is worse than the VAE",
        "in general worse than even the vanilla VAE (bar: both distances on every data set, "
        "at equal epochs)",
        "; ".join(rows),
        all_of(worse),
    )
    return [weighed(claim, "epochs", pairs, {})]


def agreement_claim(groups: Groups) -> list[Claim]:
    """That both generators put the methods in about the same order, by Spearman's correlation.

    At the last epoch that all methods reached, which is an early one where one of them is slow, and
    at the end of the time each generator had. Where the best method has not yet halved the worst
    first score, the order is that of untrained networks, and nothing is said of it.
    """
    claims = []
    for dataset in dict.fromkeys(group.dataset for group in groups):
        both = [groups.get(Group(dataset, name)) for name in ("connected", "dcgan")]
        if both[0] is None or both[1] is None or len(set(both[0]) & set(both[1])) < 3:
            continue
        common = [name for name in both[0] if name in both[1]]
        pair = [only(cells, *common) for cells in both if cells]
        claims += [_agreement(dataset, pair, axis) for axis in ("epochs", "seconds")]
    return claims


def _agreement(dataset: str, both: list[Cells], axis: Axis) -> Claim:
    """Of connected networks and the DCGAN, on the same methods."""
    found = [compared(cells, axis, "frechet") for cells in both]
    equal = EQUAL[axis]
    claim = f"{dataset}: connected networks and the DCGAN agree on the order of the methods {equal}"
    paper = (
        f"ALWS outperforms with both (bar: rank correlation of the Fréchet distances {equal} at "
        f"least {AGREE:g})"
    )
    if not np.isfinite([one.place for one in found]).all():
        measured = "not measured: no epoch at which all methods were scored with both"
        return Claim(claim, paper, measured, None, "ours", undecided="not measured")
    for name, cells, one in zip(("connected networks", "the DCGAN"), both, found, strict=True):
        best, first = np.nanmin(list(one.medians.values())), _worst_first(cells)
        if not best <= TRAINED * first:
            measured = (
                f"not measured: of {name} {place_of(one)} the best has {significant(best)}, more "
                f"than half of the {significant(first)} that the worst began with"
            )
            return Claim(claim, paper, measured, None, "ours", undecided="not measured")
    medians = [one.medians for one in found]
    ranks = [rankdata([one[name] for name in both[0]]) for one in medians]
    correlation = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    return Claim(
        claim,
        paper,
        f"rank correlation {significant(correlation, 2)}; connected {place_of(found[0])}: "
        f"{listed(medians[0])}; DCGAN {place_of(found[1])}: {listed(medians[1])}",
        bool(correlation >= AGREE),
        source="ours",
    )


def _worst_first(cells: Cells) -> float:
    """The largest finite first score of any run."""
    first = np.array([one.curve.frechet[0] for of in cells.values() for one in of])
    return float(first[np.isfinite(first)].max(initial=0.0))


def likelihood_claim(group: Group, cells: Cells, ours: str = OURS) -> list[Claim]:
    """That `ours` has the highest held-out likelihood: as trained, and with σ refitted."""
    where = {"": "", "refitted_": ", every σ refitted to training images"}
    return [
        claim
        for prefix, words in where.items()
        for claim in _likelihood(group, cells, prefix, words, ours)
    ]


def _likelihood(group: Group, cells: Cells, prefix: str, words: str, ours: str) -> list[Claim]:
    name_of = f"{prefix}log_likelihood"
    known = {m: of for m, of in cells.items() if all(name_of in one.summary for one in of)}
    if ours not in known or len(known) < 2:
        return []

    def seeds(method: str, name: str, lost: float) -> list[float]:
        values = [one.summary.get(name) for one in known[method]]
        return [lost if value is None else value for value in values]

    def median(method: str, name: str, lost: float) -> float:
        return float(np.median(seeds(method, name, lost)))

    medians = {method: median(method, name_of, -np.inf) for method in known}
    order = sorted(medians, key=lambda method: -medians[method])
    rows = []
    for method in order:
        noise = median(method, f"{prefix}noise", np.nan)
        shown = f" (σ {significant(noise, 2)})" if np.isfinite(noise) else ""
        rows.append(f"{method} {significant(medians[method], 4)}{shown}")
    lacks = {m: [-v for v in seeds(m, name_of, -np.inf)] for m in known}
    errors = {m: seeds(m, f"{name_of}_error", 0.0) for m in known}
    holds = all_of(
        [
            is_lower(lacks[ours], lacks[rival], errors[ours], errors[rival])
            for rival in known
            if rival != ours
        ]
    )
    return [
        Claim(
            f"{group}: {ours} has {HIGHEST}{words}",
            "not given; maximum likelihood is the aim (bar: the highest median over seeds)",
            f"nats an image: {', '.join(rows)}; standard error over test images "
            f"{significant(max(errors[ours]), 2)}",
            holds,
            source="ours",
            undecided="seeds or standard errors overlap" if holds is None else "",
        )
    ]
