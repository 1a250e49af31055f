"""The settings of a fit."""

from dataclasses import dataclass, field

import optax

from alws.adaptation import Adapt
from alws.estimates import Estimate
from alws.gradient_models.protocols import GradientModel
from alws.sharding import Devices


@dataclass(frozen=True)
class Settings:
    """How to run the algorithm; `alws.fit` fills in what is left out to suit the problem.

    - `gradient_model`: the regression, `KernelRidge` on the data as they are by default;
    - `estimate`: how J is written as one, `Natural` if the model gives a likelihood, else `Joint`;
    - `optimiser` on θ: Adam by default, its rate falling over the fit's steps;
    - `sleep_samples` is N and `validation_samples` L of Algorithm 1;
    - `adapt`: which parts of γ are adapted, and when (see `alws.adaptation`);
    - `theta_steps` are taken on each sleep phase, its draws and weights held;
    - `natural_units` (see `alws.natural_units`) is on unless you give an optimiser;
    - `measure_every`: at each so many steps the diagnostics that cost extra are measured, metrics
      are kept and callbacks called;
    - `devices`, a number, "all" or a mesh, share the samples (see `alws.sharding`).

    Example: `Settings(sleep_samples=2000, adapt=alws.ALWS_F, optimiser=optax.adam(1e-3))`.
    """

    gradient_model: GradientModel | None = None
    estimate: Estimate | None = None
    optimiser: optax.GradientTransformation | None = None
    sleep_samples: int = 1000
    validation_samples: int = 200
    adapt: Adapt = field(default_factory=Adapt)
    theta_steps: int = 1
    natural_units: bool | None = None
    measure_every: int = 50
    devices: Devices = None
