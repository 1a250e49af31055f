"""Two methods on the same examples: the paired t-test and the Wilcoxon signed-rank test."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import ttest_rel, wilcoxon


class Paired(NamedTuple):
    """Mean and median of each method, and the two-tailed p-values of both tests."""

    means: tuple[float, float]
    medians: tuple[float, float]
    t_test: float
    wilcoxon: float

    def first_is_lower(self, level: float = 0.05) -> bool | None:
        """Whether the first method is lower in mean and median; None if a test cannot tell."""
        lower = {first < second for first, second in (self.means, self.medians)}
        if len(lower) > 1 or max(self.t_test, self.wilcoxon) >= level:
            return None
        return lower.pop()

    def __str__(self) -> str:
        return (
            f"mean {self.means[0]:.3g} against {self.means[1]:.3g}, median {self.medians[0]:.3g} "
            f"against {self.medians[1]:.3g}, paired t-test p = {self.t_test:.2g}, Wilcoxon p = "
            f"{self.wilcoxon:.2g}"
        )


def paired_tests(
    first: Float[np.ndarray, " examples"], second: Float[np.ndarray, " examples"]
) -> Paired:
    """Compare one number for each example, such as an error, between two methods.

    Example: `paired_tests(errors["ALWS"], errors["VAE"]).first_is_lower()`.
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(
            "both methods must have one number for each of the same examples, at least 2; got "
            f"{len(first)} and {len(second)}."
        )
    t_test, ranks = (test(first, second).pvalue for test in (ttest_rel, wilcoxon))  # pyright: ignore
    return Paired(
        (float(np.mean(first)), float(np.mean(second))),
        (float(np.median(first)), float(np.median(second))),
        float(t_test),
        float(ranks),
    )
