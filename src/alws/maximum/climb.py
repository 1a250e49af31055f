"""Going uphill: the metric that nats are measured in, and L-BFGS in it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

NOTHING = 1e-190
"""The information below which a parameter plays no part in the model."""


class Metric(NamedTuple):
    """A positive definite matrix for the information, as the eigenvectors of its scaled form."""

    unit: np.ndarray
    vectors: np.ndarray
    values: np.ndarray

    def solve(self, g: np.ndarray) -> np.ndarray:
        return self.unit * (self.vectors @ ((self.vectors.T @ (self.unit * g)) / self.values))

    def nats(self, g: np.ndarray) -> float:
        return 0.5 * float(g @ self.solve(g))

    def noise(self, gradients: np.ndarray) -> float:
        """½ tr(I⁻¹ V), V the covariance of independent gradients."""
        centred = gradients - gradients.mean(axis=0)
        return sum(self.nats(c) for c in centred) / (len(gradients) - 1)


def metric(information: np.ndarray, least: np.ndarray, damping: float = 1e-6) -> Metric:
    """Scale to a unit diagonal, which is not below `least`, damp, and decompose.

    A parameter of which nothing is told, not even a least, has a unit of 0 and stays where it is.
    """
    told = np.maximum(np.diag(information), least)
    unit = np.where(told > NOTHING, told, np.inf) ** -0.5
    scaled = unit[:, None] * information * unit
    values, vectors = np.linalg.eigh(scaled)
    return Metric(unit, vectors, np.abs(values) + damping)


@np.errstate(over="ignore", invalid="ignore")  # steps that overflow are not taken
def climb(
    evaluate: Callable[[np.ndarray], tuple],
    theta: np.ndarray,
    f: float,
    g: np.ndarray,
    solve: Callable[[np.ndarray], np.ndarray],
    length: Callable[[np.ndarray], float],
    steps: int,
    enough: float,
    pairs: list,
    radius: float = 1.0,
    reach: float = 2.0,
    memory: int = 40,
) -> tuple[np.ndarray, float, np.ndarray, int, list, float]:
    """L-BFGS ascent from θ with `solve` as its first inverse Hessian; Armijo, curvature kept.

    A step is at most `radius` long, and all of them about `reach`, in `length`. Stops when the
    prospect of three steps is below `enough`. Returns θ, f, g, how many evaluations there were, the
    pairs (step, change of g) to go on with, and what the last step promised.
    """
    evaluations, small, failed, origin, prospect = 0, 0, 0, theta, np.inf
    for _ in range(steps):
        q, alphas = g.copy(), []
        for s, y, rho in reversed(pairs):
            a = rho * (s @ q)
            q -= a * y
            alphas.append(a)
        move = solve(q)
        if pairs:
            s, y, rho = pairs[-1]
            move = move * np.clip((s @ y) / (y @ solve(y)), 1e-3, 1e6)
        for (s, y, rho), a in zip(pairs, reversed(alphas), strict=True):
            move += s * (a - rho * (y @ move))
        slope = g @ move
        if not slope > 0:
            if not pairs:
                prospect = 0.0 if slope == 0 else prospect  # the very top
                break
            pairs = []
            continue
        longest = radius / max(length(move), 1e-300)
        prospect = slope * min(1.0, longest) * (1 - min(1.0, longest) / 2)
        small = small + 1 if prospect < enough else 0
        if small == 3:
            break
        rate, best = min(1.0, longest), None
        for _ in range(15):
            tried = theta + rate * move
            f1, g1, aux = evaluate(tried)
            evaluations += 1
            fine = np.isfinite(f1) and np.isfinite(g1).all()
            if fine and f1 >= f + 1e-4 * rate * slope and (best is None or f1 > best[1]):
                best = tried, f1, g1, aux, rate
                if g1 @ move > 0.7 * slope and 4 * rate < longest and not pairs:
                    rate *= 4.0
                    continue
                break
            if best is not None:
                break
            if fine:
                curved = f + rate * slope - f1
                rate *= np.clip(rate * slope / (2 * curved), 0.05, 0.5)
            else:
                rate *= 0.1
        if best is None:
            failed += 1
            if not pairs or failed == 2:
                break
            pairs = []
            continue
        failed = 0
        tried, f1, g1, aux, rate = best
        s, y = tried - theta, g - g1
        if s @ y > 1e-10 * abs(s @ g):
            pairs = [*pairs, (s, y, 1 / (s @ y))][-memory:]
        theta, f, g = tried, f1, g1
        if length(theta - origin) > reach:
            break
    return theta, f, g, evaluations, pairs, float(prospect)
