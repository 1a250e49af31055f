"""Which parts of γ are adapted, and how: §3.4. ALWS-F and ALWS-A are two values of one setting."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import optax
from jaxtyping import Array, Bool, Int

CRITERIA = ("objective", "gradient")
BANDWIDTH_NAMES = frozenset({"log_bandwidth", "log_scale", "log_weight"})


@dataclass(frozen=True)
class Adapt:
    """Adapt the bandwidth σ, the ridge λ and the weights of the features φ, from step `after` on.

    γ takes a step at each so many (`every`) of θ's: it changes slowly, and its gradient can cost as
    much as all the rest of a step. It goes down the held-out error of Ĵ, the paper's `criterion`,
    or with "gradient" down that of Ĵ's gradient in θ along some random `directions` (see
    `alws.held_out`).

    Example: `Adapt(ridge=False, after=3000)` adapts σ and φ once 3000 steps are done.
    """

    bandwidth: bool = True
    ridge: bool = True
    features: bool = True
    after: int = 0
    every: int = 1
    learning_rate: float = 0.01
    criterion: str = "objective"
    directions: int = 1

    def __post_init__(self) -> None:
        if self.criterion not in CRITERIA:
            raise ValueError(f"`criterion` must be one of {CRITERIA}, got {self.criterion!r}.")
        if self.directions < 1:
            raise ValueError(f"`directions` must be at least 1, got {self.directions}.")
        if self.every < 1:
            raise ValueError(f"`every` must be at least 1, got {self.every}.")
        if self.after < 0:
            raise ValueError(f"`after` must not be negative, got {self.after}.")
        if not self.learning_rate > 0:
            raise ValueError(f"`learning_rate` must be positive, got {self.learning_rate}.")

    @property
    def anything(self) -> bool:
        """Whether anything is adapted at all."""
        return self.bandwidth or self.ridge or self.features

    @property
    def always(self) -> bool:
        """Whether γ takes a step whenever θ does."""
        return self.anything and self.after == 0 and self.every == 1

    def due(self, step: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether γ takes a step at this one of θ's.

        Example: `Adapt(after=10, every=5).due(15)` is true.
        """
        return (step >= self.after) & (step % self.every == 0)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam on γ."""
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(self.learning_rate))


ALWS_F = Adapt(bandwidth=False, ridge=False, features=False)
"""The paper's ALWS-F: γ fixed at its start values."""

ALWS_A = Adapt(ridge=False)
"""The paper's ALWS-A for images: σ and φ adapted, λ fixed."""


def hold_fixed(gradient_model: Any, adapt: Adapt) -> Any:
    """The gradient model with the parts that are not adapted held constant."""

    def hold(path: tuple, leaf: Any) -> Any:
        names = {getattr(entry, "name", None) for entry in path}
        if "log_ridge" in names:
            adapted = adapt.ridge
        elif names & BANDWIDTH_NAMES and "features" not in names:
            adapted = adapt.bandwidth
        else:
            adapted = adapt.features
        return leaf if adapted else jax.lax.stop_gradient(leaf)

    arrays, rest = eqx.partition(gradient_model, eqx.is_inexact_array)
    return eqx.combine(jax.tree_util.tree_map_with_path(hold, arrays), rest)
