"""Floating-point operations of one image step, counted for each regression.

With N sleep samples, M wake points, P pixels, F kernel features and d features of a regression
(inducing points, or two for each frequency), besides what every step needs, the generator forward
once and backward twice that, and φ of all N + M images:

- exact: distances 2N(N + M)F, factor N³/3, a solve for each wake point 2N²M, cotangents 2NM(P + 1);
- adapted: also the held-out draws, their prediction, and its way back to the features;
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

from sizes import BATCH, FEATURES, HELD_OUT, HIDDEN, LATENT, PIXELS, SLEEP

N, M, F, TARGETS = SLEEP, BATCH, FEATURES, PIXELS + 1
CONNECTED = 2 * (LATENT * HIDDEN + HIDDEN * HIDDEN + HIDDEN * PIXELS)
"""Multiplications and additions of one pass of the generator over one latent."""


def shared(generator=CONNECTED):
    """Generator and features."""
    return 3 * N * generator + 2 * (N + M) * PIXELS * F


def exact(adapted=False, generator=CONNECTED):
    total = shared(generator) + 2 * N * (N + M) * F
    total += N**3 / 3 + 2 * N**2 * M + 2 * N * M * TARGETS
    if adapted:
        held_out = HELD_OUT
        total += held_out * generator  # held-out draws
        total += 4 * N**2 * held_out + 4 * N * held_out * PIXELS  # solves, and their prediction
        total += 2 * N**2 * held_out + 2 * 2 * N**2 * F  # back to the Gram matrix, distances
        total += 2 * 2 * N * PIXELS * F  # and to the features
    return total


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
