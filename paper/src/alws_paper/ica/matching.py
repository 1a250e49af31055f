"""Which of two sets of filters stand for each other."""

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment


def match_filters(
    found: Float[np.ndarray, "pixels filters"], truth: Float[np.ndarray, "pixels filters"]
) -> tuple[Int[np.ndarray, " filters"], Float[np.ndarray, " filters"]]:
    """For each true filter the one found that stands for it, and their correlation.

    One to one, so that the sum of |correlation| is the greatest there is; the correlation has its
    sign. Filters are columns.

    Example: `order, correlation = match_filters(w, truth)`; `w[:, order] * np.sign(correlation)`
    looks like `truth`.
    """
    ours, theirs = (w - w.mean(axis=0) for w in (found, truth))
    ours, theirs = (w / (np.linalg.norm(w, axis=0) + 1e-12) for w in (ours, theirs))
    correlation = theirs.T @ ours
    _, order = linear_sum_assignment(-np.abs(correlation))
    return order, correlation[np.arange(len(order)), order]
