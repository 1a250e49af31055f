"""A fit's model and data, checked, with the batch of each step."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, Key, PyTree

from alws import defaults
from alws.blocks import by_blocks
from alws.checks import (
    FEWEST_SLEEP_SAMPLES,
    as_arrays,
    at_least,
    check_data,
    check_key,
    check_log_joint,
    check_model,
    match_data,
)
from alws.model import Draws, condition_arguments, finite, splits
from alws.runtime import compiled
from alws.sharding import check_divides, place, using
from alws.wake_sleep import Settings


class Problem(eqx.Module):
    """What is fitted to what."""

    model: Any
    data: PyTree[Array]
    conditions: PyTree[Array] | None
    first_draws: Draws
    size: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    @property
    def numbers(self) -> int:
        """How many random numbers a sleep phase draws."""
        return sum(jnp.size(leaf) for leaf in jax.tree.leaves(self.first_draws))

    def batch(self, step: int, seed: tuple[int, ...]) -> Int[Array, " batch"] | None:
        """The observations a step sees: None for all, or its share of each epoch's fresh order."""
        if self.batch_size == self.size:
            return None
        epoch, position = divmod(step, self.size // self.batch_size)
        order = np.random.default_rng((*seed, epoch)).permutation(self.size)
        return jnp.asarray(order[position * self.batch_size :][: self.batch_size])

    def on(self, mesh: Mesh | None) -> "Problem":
        """The same with the data divided among the devices and the conditions on each of them."""
        data = place(self.data, mesh, divided=self.conditions is None)
        conditions = place(self.conditions, mesh)
        return Problem(self.model, data, conditions, self.first_draws, self.size, self.batch_size)

    def select(self, chosen: Int[Array, " batch"] | None) -> tuple[PyTree, PyTree | None]:
        """These observations and their conditions."""
        if chosen is None:
            return self.data, self.conditions
        return jax.tree.map(lambda a: a[chosen], (self.data, self.conditions))


def prepare(
    model: Any,
    data: PyTree,
    key: Key[Array, ""],
    steps: int,
    settings: Settings,
    conditions: PyTree | None,
    batch_size: int | None,
    mesh: Mesh | None = None,
) -> Problem:
    """Check everything the user gave, before any long work."""
    check_key(key)
    at_least("steps", steps, 1)
    at_least("measure_every", settings.measure_every, 1)
    at_least("theta_steps", settings.theta_steps, 1)
    at_least("validation_samples", settings.validation_samples, 2)
    at_least(
        "sleep_samples",
        settings.sleep_samples,
        FEWEST_SLEEP_SAMPLES,
        " The median distance and the regression need that many; 500 to 2000 is usual.",
    )
    check_divides(
        1 if mesh is None else mesh.size,
        sleep_samples=settings.sleep_samples,
        validation_samples=settings.validation_samples,
    )
    check_model(model)
    model = _strongly_typed(model)
    size = check_data(data)
    if conditions is not None:
        given = check_data(conditions, "conditions")
        if given != size:
            raise ValueError(
                f"`conditions` must have one entry for each observation, {size}; got {given}."
            )
        conditions = jax.tree.map(jnp.asarray, as_arrays(conditions))
    if batch_size is None:
        batch_size = defaults.batch_size(size, conditional=conditions is not None)
    at_least("batch_size", batch_size, 1)
    if batch_size > size:
        raise ValueError(
            f"`batch_size` must be at most the number of observations, {size}; got {batch_size}."
        )
    condition = jax.tree.map(lambda c: c[0], conditions)
    data = match_data(model, data, key, condition)
    placed, *rest = place((model, key, condition), mesh)
    with using(mesh):
        draws = check_log_joint(placed, rest[0], settings.sleep_samples, rest[1])
    _check_support(model, data, key, condition)
    return Problem(placed, data, conditions, draws, size, batch_size)


def _check_support(
    model: Any, data: PyTree[Array], key: Key[Array, ""], condition: PyTree | None
) -> None:
    """Refuse observations that the likelihood gives no density to, where the model has one."""
    if not splits(model):
        return
    inside = np.asarray(compiled(_in_support, once=True)(model, data, key, condition))
    outside = np.flatnonzero(~inside)
    if outside.size:
        first = jax.tree.map(lambda a: np.asarray(a[outside[0]]), data)
        raise ValueError(
            f"every observation must lie where `likelihood(z)` has a density; of {inside.size}, "
            f"{outside.size} do not, the first of them at index {outside[0]}: {first}. Leave "
            "them out, or choose a likelihood that has a density there."
        )


def _in_support(
    model: Any, data: PyTree[Array], key: Key[Array, ""], condition: PyTree | None
) -> Bool[Array, " observations"]:
    """Whether s(x) and log h(x) are finite, which depend on z and θ by their shapes alone."""
    args = condition_arguments(condition)
    likelihood = model.likelihood(model.sample_latent(key, *args), *args)

    def some(x: PyTree) -> Array:
        found = jax.vmap(lambda x: (likelihood.sufficient_statistics(x), likelihood.log_base(x)))(x)
        return finite(found)

    return by_blocks(some, data)


def _strongly_typed(model: Any) -> Any:
    """Arrays made from Python numbers are weakly typed; an update would change that."""
    return jax.tree.map(
        lambda a: jax.lax.convert_element_type(a, a.dtype) if eqx.is_array(a) else a, model
    )
