"""Steps in natural units: each parameter measured by how much one complete observation tells of it.

F_i = E[(∂ log p_θ(z, x)/∂θ_i)²] over sleep samples is the complete-data information on θ_i, and
1/√F_i the change in θ_i that one observation could tell from noise. An optimiser that works in
θ_i·√F_i sees no difference between metres and millimetres: the mean of data near 50 with deviation
7 and one of deviation 0.02 move at the pace each deserves.

One pullback of signs ε_n estimates all F_i at once: E[(Σ_n ε_n s_ni)²] = N F_i. The scores s_n of
sleep samples are independent with mean zero, so any signs will do; a step takes +1 and −1 in turn.
A single estimate may be far too small, and a first step in its units far too long: the first update
starts from the mean of sixteen, with random signs on one set of samples.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from alws.model import AnyModel
from alws.validation import OPTIMISER, TRANSFORMATION, instance

FIRST = 16
"""How many estimates a fit starts from."""

SLOWEST = 0.02
"""The least weight of a new estimate in the running mean."""

LogJoints = Callable[[AnyModel], Float[Array, " sleep"]]


class NaturalUnitsState(NamedTuple):
    """The inner optimiser's state, F as estimated so far, and the number of updates."""

    inner: PyTree
    information: PyTree
    count: Int[Array, ""]


def natural_units(
    optimiser: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """An optimiser that sees gradients, and makes updates, in natural units.

    Its `update` asks for three more arguments, which `alws.fit` gives: the `model`, `log_joints`,
    a function of the model that gives log p(z_n, x_n) of the sleep samples, and a `key`.

    Arguments:
        optimiser: any optax transformation; its learning rate is in standard deviations of θ as
            one complete observation leaves it.

    Example: `alws.Settings(optimiser=natural_units(optax.adam(0.05)))`.
    """
    instance("optimiser", optimiser, TRANSFORMATION, "an optax transformation", OPTIMISER)
    inner = optax.with_extra_args_support(optimiser)

    def init(params: PyTree) -> NaturalUnitsState:
        ones = jax.tree.map(jnp.ones_like, params)
        return NaturalUnitsState(inner.init(params), ones, jnp.zeros((), int))

    def update(
        updates: PyTree,
        state: NaturalUnitsState,
        params: PyTree | None = None,
        *,
        model: AnyModel,
        log_joints: LogJoints,
        key: Key[Array, ""],
        **extra: object,
    ) -> tuple[PyTree, NaturalUnitsState]:
        estimate = _estimator(model, log_joints)
        now = jax.lax.cond(
            state.count == 0,
            lambda: estimate(_random_signs(estimate.number, key)),
            lambda: estimate((1 - 2 * (jnp.arange(estimate.number) % 2))[None]),
        )
        information = _running_mean(state.information, now, state.count)
        scale = _units(information)
        scaled = jax.tree.map(jnp.multiply, updates, scale)
        steps, within = inner.update(scaled, state.inner, params, **extra)
        steps = jax.tree.map(jnp.multiply, steps, scale)
        return steps, NaturalUnitsState(within, information, state.count + 1)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore


def units_of(optimiser_state: PyTree, parameters: PyTree[Array]) -> PyTree[Array]:
    """The units an optimiser works in: 1/√F_i with `natural_units`, one otherwise.

    Example: `units_of(result.state.theta_optimiser, eqx.filter(model, eqx.is_inexact_array))`.
    """

    def is_natural(node: object) -> bool:
        return isinstance(node, NaturalUnitsState)

    found = [n for n in jax.tree.leaves(optimiser_state, is_leaf=is_natural) if is_natural(n)]
    return _units(found[0].information) if found else jax.tree.map(jnp.ones_like, parameters)


class _estimator:
    """F̂ for each row of signs, their mean."""

    def __init__(self, model: AnyModel, log_joints: LogJoints):
        values, self.pullback = eqx.filter_vjp(log_joints, model)
        self.number, self.dtype = values.size, values.dtype

    def __call__(self, signs: Int[Array, "estimates sleep"]) -> PyTree[Array]:
        def one(signs: Int[Array, " sleep"]) -> PyTree[Array]:
            pulled = self.pullback(signs.astype(self.dtype))[0]
            return jax.tree.map(lambda g: g**2 / self.number, pulled)

        if signs.shape[0] == 1:
            return one(signs[0])
        found = jax.lax.map(one, signs)
        return jax.tree.map(lambda f: f.mean(axis=0), found)


def _random_signs(number: int, key: Key[Array, ""]) -> Int[Array, "estimates sleep"]:
    return jax.random.rademacher(key, (FIRST, number))


def _running_mean(old: PyTree[Array], new: PyTree[Array], count: Int[Array, ""]) -> PyTree[Array]:
    """The mean of the estimates so far, old ones forgotten, what is not finite left out.

    The first counts as sixteen.
    """
    rate = jnp.where(count == 0, 1.0, jnp.maximum(1 / (count + FIRST + 0.0), SLOWEST))

    def move(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(jnp.isfinite(b), a + rate.astype(a.dtype) * (b - a), a)

    return jax.tree.map(move, old, new)


def _units(information: PyTree[Array]) -> PyTree[Array]:
    """1/√F_i, at most 100: a parameter that the data say nothing of must not run away."""
    return jax.tree.map(lambda f: jax.lax.rsqrt(f + 1e-4), information)
