"""The paper's table of parameters, row by row, and `alws.PAPER` with the values of a row.

λ is on the table's scale, added to the diagonal as it is; those marked (f) are not adapted. The
batch size is 100, and 1 for dynamical models and neural processes.
"""

from dataclasses import dataclass, replace

import optax

import alws
from alws.regressions import AsPublished


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Arguments:
        data: M, the observations in an epoch.
        epochs: how many there are; 0 where nothing is trained.
        sleep_samples, validation_samples: N and L.
        ridge, fixed_ridge: λ, and whether it stays as it is.
        projections, batch_norm: φ; None for x itself.
        theta_rate, gamma_rate: constant rates of Adam on θ and γ, "gen lr" and "grad lr".
        batch_size: observations in a step.

    Example: `TABLE["pinwheel"].steps == 62_500`.
    """

    data: int
    epochs: int
    sleep_samples: int = 2000
    validation_samples: int = 200
    ridge: float = 0.01
    fixed_ridge: bool = False
    projections: int | None = None
    batch_norm: bool = False
    theta_rate: float = 1e-3
    gamma_rate: float = 1e-3
    batch_size: int = 100

    @property
    def steps(self) -> int:
        """Steps in all epochs."""
        return self.epochs * (self.data // self.batch_size)

    def share(self, steps: int, batch_size: int) -> float:
        """The share that such a training sees of the observations the paper's saw.

        Example: `TABLE["pinwheel"].share(31_250, 100) == 0.5`.
        """
        return steps * batch_size / (self.epochs * self.data)

    def settings(self, sleep_samples: int | None = None) -> alws.Settings:
        """`alws.PAPER` with the values of the row, and nothing else.

        Arguments:
            sleep_samples: another N than the row's, to try it out.

        Example: `alws.fit(model, data, key=key, steps=row.steps, settings=row.settings())`.
        """
        adapt = replace(alws.PAPER.adapt, ridge=not self.fixed_ridge, learning_rate=self.gamma_rate)
        return replace(
            alws.PAPER,
            regression=AsPublished(self.ridge, self.projections, self.batch_norm),
            optimiser=optax.adam(self.theta_rate),
            sleep_samples=sleep_samples or self.sleep_samples,
            validation_samples=self.validation_samples,
            adapt=adapt,
        )


_IMAGES = Row(60_000, 50, ridge=0.1, fixed_ridge=True, projections=300, batch_norm=True)
_SEQUENCE = Row(1, 50_000, ridge=0.001, batch_size=1)

TABLE: dict[str, Row] = {
    "gradient": Row(100, 0, sleep_samples=5000, fixed_ridge=True),
    "gabor": Row(10_000, 30, projections=300),
    "pinwheel": Row(2500, 2500, sleep_samples=1000),
    "ica": Row(100_000, 100, ridge=0.001, fixed_ridge=True, projections=300, gamma_rate=0.01),
    "matrix-factorisation": Row(
        5000, 300, validation_samples=150, ridge=0.001, projections=300, batch_norm=True
    ),
    "neural-process": Row(
        10_000, 50, 4000, ridge=0.001, theta_rate=1e-4, gamma_rate=1e-4, batch_size=1
    ),
    "oscillation": replace(_SEQUENCE, epochs=5000, projections=200),
    "hodgkin-huxley": replace(_SEQUENCE, projections=200),
    "ecology": _SEQUENCE,
    "b-mnist": _IMAGES,
    "mnist": _IMAGES,
    "fashion": _IMAGES,
    "natural": replace(_IMAGES, data=100_000),
    "cifar-10": replace(_IMAGES, data=50_000),
    "celeba": replace(_IMAGES, data=100_000),
}
"""The table, by the names of experiments and of image data sets."""

__all__ = ["TABLE", "Row"]
