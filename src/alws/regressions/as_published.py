"""The regression as the paper describes it: §3.2, §3.4, "Kernel architecture" and its table.

    k(x, x') = exp(−‖φ(x) − φ(x')‖²/2σ²),  Ĵ(x*) = k*ᵀ (K + λI)⁻¹ y

φ is the identity, a linear projection, or one with batch normalisation; σ starts at the median
distance of the φ of sleep samples. There is no intercept, and data are not drawn into the range of
the samples. λ is on the scale of the paper's table, added to the diagonal as it is.
"""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Key, PyTree

from alws.features import Features, Identity, Linear, flatten
from alws.kernels.stationary import SquaredExponential
from alws.regressions.base import Recipe, check_ridge
from alws.regressions.kernel_ridge import KernelRidge
from alws.validation import at_least, yes_or_no

PROJECTION_SCALE = 0.01
"""The standard deviation of the projection's weights at the start, the authors' value."""


@dataclass(frozen=True)
class AsPublished(Recipe):
    """Kernel ridge regression as published, made for the data at hand: for `alws.PAPER`.

    Arguments:
        ridge: λ, added to the diagonal as it is; the table has 0.01, 0.001 and 0.1.
        projections: how many linear projections the kernel sees; None for the data as they are.
        batch_norm: whether these are normalised over the batch at hand, as for images.

    Example: `AsPublished(ridge=0.1, projections=300, batch_norm=True)` is the table's for images.
    """

    ridge: float = 0.01
    projections: int | None = None
    batch_norm: bool = False

    def __post_init__(self) -> None:
        check_ridge(self.ridge)
        yes_or_no("batch_norm", self.batch_norm)
        if self.projections is not None:
            at_least("projections", self.projections, 1)
        elif self.batch_norm:
            raise ValueError(
                "`batch_norm` is of projections, and `projections` is None. Say how many, "
                "`AsPublished(projections=300, batch_norm=True)`, or leave `batch_norm` out."
            )

    def features(self, data: PyTree[Array], key: Key[Array, ""]) -> Features:
        """φ: the entries of x, or linear projections of them with random weights.

        Example: `AsPublished(projections=300).features(data, key)(data).shape[1] == 300`.
        """
        if self.projections is None:
            return Identity()
        entries = flatten(jax.tree.map(lambda leaf: leaf[:1], data)).shape[1]
        return Linear.random(
            jax.random.fold_in(key, 1),
            entries,
            self.projections,
            batch_norm=self.batch_norm,
            scale=PROJECTION_SCALE,
        )

    def make(self, data: PyTree[Array], key: Key[Array, ""]) -> KernelRidge:
        """The regression, σ to be set from the first sleep samples.

        Example: `AsPublished().make(data, key).initialise(sleep.x).fit(sleep.x)`.
        """
        kernel = SquaredExponential(self.features(data, key), track=False)
        return KernelRidge(kernel, ridge=self.ridge, intercept=False, clip=False)
