"""Floating-point operations of one image step, counted for each gradient model.

With N sleep samples, M wake points, P pixels, F kernel features and d features of a regression
(inducing points, or two for each frequency), besides what every step needs, the generator forward
once and backward twice that, and φ of all N + M images:

- exact: distances 2N(N + M)F, factor N³/3, a solve for each wake point 2N²M, cotangents 2NM(P + 1);
- adapted: also the held-out draws, their prediction, and its way back to the features (`step.py`);
- Nyström: distances 2(N + M)dF + 2d²F, factor of K_mm d³/3, whitening (N + M)d², then as below;
- random features: angles 2(N + M)dF/2, then as below;
- both: ΦᵀΦ 2Nd², its factor d³/3, and Wᵀ·cotangents in the cheaper order, by wake point
  2d²M + 2NdM + 2NM(P + 1) or by pixel 2(M + d + N)d(P + 1);
- conjugate gradients: a Nyström preconditioner with the eigenvalues of its matrix, 4d³/3, distances
  to the wake points, then for each iteration half the distances N²F, products 2N²M and the
  preconditioner 4NdM + 2d²M, and the cotangents;
- scikit-learn and PyTorch: as exact.

Matrix products are counted in full, factorisations and triangular solves as what they need. Random
numbers, exponentials, sines and memory traffic are not counted.
"""

from sizes import BATCH, FEATURES, HIDDEN, LATENT, PIXELS, SLEEP
from step import work as exact

N, M, F, TARGETS = SLEEP, BATCH, FEATURES, PIXELS + 1


def shared():
    """Generator and features."""
    weights = LATENT * HIDDEN + HIDDEN * HIDDEN + HIDDEN * PIXELS
    return 3 * 2 * N * weights + 2 * (N + M) * PIXELS * F


def on_features(d):
    """The regression on d features, and what the wake points ask of each sleep sample."""
    by_point = 2 * d**2 * M + 2 * N * d * M + 2 * N * M * TARGETS
    by_pixel = 2 * (M + d + N) * d * TARGETS
    return 2 * N * d**2 + d**3 / 3 + min(by_point, by_pixel)


def nystrom(d):
    distances = 2 * (N + M) * d * F + 2 * d**2 * F
    return shared() + distances + d**3 / 3 + (N + M) * d**2 + on_features(d)


def random_features(frequencies):
    return shared() + 2 * (N + M) * frequencies * F + on_features(2 * frequencies)


def conjugate_gradients(d, iterations):
    total = shared() + 2 * N * d * F + 2 * d**2 * F + 2 * d**3 / 3  # two factors
    total += N * d**2 + 2 * N * d**2 + 4 * d**3 / 3  # whitening, ΦᵀΦ, its eigenvalues
    preconditioner = 4 * N * d * M + 2 * d**2 * M
    total += 2 * N * M * F + preconditioner
    total += iterations * (N**2 * F + 2 * N**2 * M + preconditioner)
    return total + 2 * N * M * TARGETS


__all__ = ["conjugate_gradients", "exact", "nystrom", "random_features"]
