"""What a fitted model says of its latents: the posterior's mode, and any posterior expectation.

`posterior_mode` maximises log p_θ(z, x*) over z by gradient ascent, §4.4 of the paper.

`expectation` estimates E[f(z) | x*] by the weighted points of a fit that had some. In other cases
it does as the paper does with the gradient: draw sleep samples (z_n, x_n) ~ p_θ and regress f(z_n)
on x_n. The regression that minimises the squared error is the conditional expectation, so nothing
but the simulator is needed and z may be discrete.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from alws.features import follow
from alws.fit import Result, default_regression, opened
from alws.maximum import NotIntegrable, precise_data, weighted_expectation
from alws.model import (
    AnyModel,
    draw,
    finite,
    in_own_precision,
    log_joint,
    sample,
)
from alws.regressions.base import Regression, check_regression, one_lapack_thread
from alws.state_space import StateSpace
from alws.validation import (
    FEWEST_SLEEP_SAMPLES,
    at_least,
    bounded,
    check_cost,
    check_data,
    check_discrete,
    check_key,
    check_log_joint,
    check_model,
    check_simulator,
    check_support,
    check_targets,
    draws_of_each,
    function,
    match_conditions,
    match_data,
    match_start,
    positive,
    refuse_bad_targets,
    refuse_discrete,
    transforms_of,
    warn_of_extrapolation,
)
from alws.wake_sleep import pooled

FARTHEST = 30.0
"""Where a start on the edge of its support is put, in unconstrained coordinates."""

SLEEP_SAMPLES = 2000
"""How many simulations are regressed by default."""

BANDWIDTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)


class Mode(NamedTuple):
    """The posterior modes, observations as leading axis, and log p_θ(z, x*) there."""

    z: PyTree[Array]
    log_joint: Float[Array, " observations"]


@in_own_precision
def posterior_mode(
    model: AnyModel | Result,
    x: PyTree,
    *,
    key: Key[Array, ""],
    steps: int = 500,
    learning_rate: float = 0.1,
    starts: int = 20,
    start: PyTree | None = None,
    support: Any = None,
    conditions: PyTree | None = None,
) -> Mode:
    """argmax_z log p_θ(z, x*) for every observation at once, z any pytree of floats.

    Adam starts from the best of some draws from the prior, as there may be several modes, and the
    best z that it saw is returned. The mode is that of the density in z itself: coordinates are
    changed to stay inside the support, without a Jacobian.

    Arguments:
        model: a model, or the result of a fit, which warns of conditions outside those it had.
        x: the observations, as leading axis.
        key: a JAX key.
        steps, learning_rate: of Adam.
        starts: from how many draws the start of an observation is chosen.
        start: one z for each observation to start from in their place.
        support: where latents are bounded: a NumPyro constraint or transform for all of z, or a
            pytree of them, one for each leaf of z.
        conditions: one for each observation, if the model takes a condition.

    Example:
        >>> from numpyro.distributions import constraints
        >>> alws.posterior_mode(model, x, key=key, support=constraints.unit_interval).z
    """
    at_least("steps", steps, 1)
    at_least("starts", starts, 1)
    positive("learning_rate", learning_rate, " 0.1 is usual.")
    check_key(key)
    own, seen = opened(model)
    check_model(own, parameters=False)
    size = check_data(x, "x")
    conditions = match_conditions(conditions, size)
    warn_of_extrapolation(seen, conditions)
    first = jax.tree.map(lambda c: c[0], conditions)
    x = match_data(own, x, key, first, "x")
    check_support(own, x, key, first, "x", conditions=conditions)
    latent = jax.eval_shape(lambda k: sample(own, k, first).z, key)
    refuse_discrete(latent)
    transforms = transforms_of(support, latent)
    draws = check_log_joint(own, key, max(starts, FEWEST_SLEEP_SAMPLES), first)
    if conditions is not None:
        draws = draws_of_each(own, conditions, key, FEWEST_SLEEP_SAMPLES)
    check_discrete(draws, x, "x")
    if start is not None:
        start = match_start(start, latent, size)
    keys = jax.random.split(key, size)
    return _ascend_all(own, x, conditions, start, keys, transforms, steps, learning_rate, starts)


@eqx.filter_jit
def _ascend_all(
    model: AnyModel,
    x: PyTree,
    conditions: PyTree | None,
    start: PyTree | None,
    keys: Key[Array, " observations"],
    transforms: list[Any],
    steps: int,
    rate: float,
    starts: int,
) -> Mode:
    ascend = partial(_ascend, model, transforms=transforms, steps=steps, rate=rate, starts=starts)
    return jax.vmap(ascend)(x, conditions, start, keys)


def _ascend(
    model: AnyModel,
    x: PyTree,
    condition: PyTree | None,
    start: PyTree | None,
    key: Key[Array, ""],
    *,
    transforms: list[Any],
    steps: int,
    rate: float,
    starts: int,
) -> Mode:
    """The mode for one observation, in unconstrained coordinates u with z = T(u)."""

    def score(z: PyTree) -> Array:
        value = log_joint(model, z, x, condition)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    if start is None:
        draws = jax.vmap(lambda k: sample(model, k, condition).z)(jax.random.split(key, starts))
        best = jnp.argmax(jax.vmap(score)(draws))
        start = jax.tree.map(lambda leaf: leaf[best], draws)
    leaves, structure = jax.tree.flatten(start)
    u = [
        jnp.nan_to_num(jnp.clip(t.inv(leaf), -FARTHEST, FARTHEST)) if bounded(t) else leaf
        for t, leaf in zip(transforms, leaves, strict=True)
    ]

    def place(u: list[Array]) -> PyTree:
        return structure.unflatten([t(v) for t, v in zip(transforms, u, strict=True)])

    optimiser = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def improve(carry: tuple, _: None) -> tuple[tuple, None]:
        u, state, best, highest = carry
        value, gradient = jax.value_and_grad(lambda u: score(place(u)))(u)
        better = value > highest
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), u, best)
        downhill = jax.tree.map(lambda g: -jnp.nan_to_num(g), gradient)
        updates, state = optimiser.update(downhill, state)
        return (optax.apply_updates(u, updates), state, best, jnp.maximum(value, highest)), None

    lowest = jnp.full_like(score(start), -jnp.inf)
    (u, _, best, highest), _ = jax.lax.scan(improve, (u, optimiser.init(u), u, lowest), None, steps)
    last = score(place(u))
    best = jax.tree.map(lambda new, old: jnp.where(last > highest, new, old), u, best)
    return Mode(place(best), jnp.maximum(last, highest))


@in_own_precision
def expectation(
    model: AnyModel | Result,
    f: Callable[[PyTree], PyTree],
    x: PyTree,
    *,
    key: Key[Array, ""],
    sleep_samples: int | None = None,
    regression: Regression | None = None,
    condition: PyTree | None = None,
    conditions: PyTree | None = None,
) -> PyTree[Array]:
    """E[f(z) | x*] for every observation of `x`.

    `f` takes one latent to a pytree of arrays; the result has its structure, observations as
    leading axis. Given the result of a fit that chose for itself, and summed or integrated the
    latents, it is the mean over the points by which it did so. In all other cases sleep samples of
    f(z) are regressed on x, for which only the model's simulator is used: by kernel ridge
    regression, each leaf of f with the bandwidth and ridge that predict it best on a fifth as many
    samples held out, or by a `regression` of your own as it is, such as `result.regression`.

    Arguments:
        model: a model, or the result of a fit, which warns of conditions outside those it had.
        f, x, key: as above.
        sleep_samples: how many simulations are regressed, 2000 by default.
        regression: another regression than the default one. Where this or `sleep_samples` is given
            f(z) is regressed after any fit.
        condition: one condition, of all observations.
        conditions: one for each observation: one regression on pairs (condition, x) serves all.

    Example:
        >>> alws.expectation(model, lambda z: jax.nn.one_hot(z, 3), x, key=key)  # P(z = k | x)
    """
    number = SLEEP_SAMPLES if sleep_samples is None else sleep_samples
    at_least("sleep_samples", number, FEWEST_SLEEP_SAMPLES)
    check_key(key)
    own, seen = opened(model)
    check_model(own, parameters=False, density=False)
    function("f", f, "of one z")
    size = check_data(x, "x")
    if condition is not None and conditions is not None:
        raise ValueError(
            "one of `condition`, for all observations, and `conditions`, one for each, must be "
            "given; got both. Leave one out."
        )
    conditions = match_conditions(conditions, size)
    warn_of_extrapolation(seen, conditions)
    if conditions is not None:
        condition = jax.tree.map(lambda c: c[0], conditions)
    given, x = x, match_data(own, x, key, condition, "x")
    check_support(own, x, key, condition, "x", conditions=conditions)
    check_simulator(own, key, condition)
    latent = jax.eval_shape(lambda k: sample(own, k, condition).z, key)
    refuse_bad_targets(f, latent)
    if regression is None and sleep_samples is None and _climbed(model):
        found = _by_points(own, f, precise_data(given, x), key, condition, conditions)
        if found is not None:
            return found
    if conditions is not None:
        x, condition = pooled(x, conditions)
    draw_key, feature_key = jax.random.split(key)
    chosen = regression
    if chosen is None:
        chosen = default_regression(x, feature_key)
    check_regression(chosen)
    check_cost(chosen, number)
    choose = regression is None
    with one_lapack_thread():
        found, bad, checked = _predict(f, number, choose, own, chosen, x, draw_key, condition)
    check_targets(f, latent, bad)
    known, varied = checked
    if not known:
        raise ValueError(
            "every draw from the model holds NaN or infinite numbers. Check `sample` and the "
            "parameters."
        )
    if not varied:
        raise ValueError(
            "the model must draw another x for another key; all draws have the same, of which "
            "nothing can be told. Take random numbers from `jax.random` and the key, or check the "
            "parameters."
        )
    return found


def _climbed(fitted: Any) -> bool:
    """Whether this is a fit that climbed a likelihood, but of no sequence."""
    is_result = isinstance(fitted, Result) and not isinstance(fitted.model, StateSpace)
    return is_result and math.isfinite(fitted.log_likelihood)


def _by_points(
    model: AnyModel,
    f: Callable[[PyTree], PyTree],
    x: PyTree,
    key: Key[Array, ""],
    condition: PyTree | None,
    conditions: PyTree | None,
) -> PyTree[Array] | None:
    """The expectations by weighted points, or None if there are none of finite numbers."""
    if conditions is None and condition is not None:
        size = len(jax.tree.leaves(x)[0])
        conditions = jax.tree.map(lambda c: jnp.repeat(jnp.asarray(c)[None], size, 0), condition)
    try:
        found = weighted_expectation(model, f, x, key=key, conditions=conditions)
    except NotIntegrable:
        return None
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found)):
        return None
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), found)


@eqx.filter_jit
def _predict(
    f: Callable[[PyTree], PyTree],
    number: int,
    choose: bool,
    model: AnyModel,
    regression: Any,
    x: PyTree,
    key: Key[Array, ""],
    condition: PyTree | None,
) -> tuple[PyTree[Array], list[Array], tuple[Array, Array]]:
    """The expectations, for each leaf of f the number of draws where it is not finite, and whether
    any draws are finite, and their x differ."""
    held_out = max(number // 5, 2)
    draws, replaced = draw(model, key, number + held_out, condition)
    varied = [(leaf != leaf[:1]).any() for leaf in jax.tree.leaves(draws.x)]
    values = jax.vmap(f)(draws.z)
    bad = [jnp.sum(~finite(leaf)) for leaf in jax.tree.leaves(values)]
    rows = jax.vmap(_flat)(values)
    sleep, targets = jax.tree.map(lambda a: a[:number], (draws.x, rows))
    validation, truth = jax.tree.map(lambda a: a[number:], (draws.x, rows))
    regression = follow(regression, model).initialise(sleep)
    one = jax.tree.map(lambda leaf: leaf[0], values)
    if choose:
        owner = _flat([jnp.full(leaf.shape, i) for i, leaf in enumerate(jax.tree.leaves(one))])
        predicted = _best(regression, sleep, targets, validation, truth, owner, x)
    else:
        predicted = regression.fit(sleep, x).predict(x, targets)
    return (
        jax.vmap(partial(_unflat, one))(predicted),
        bad,
        (replaced < number + held_out, jnp.stack(varied).any()),
    )


def _best(
    regression: Any,
    sleep: PyTree,
    targets: Float[Array, "sleep targets"],
    validation: PyTree,
    truth: Float[Array, "held_out targets"],
    owner: Float[Array, " targets"],
    x: PyTree,
) -> Float[Array, "observations targets"]:
    """Predictions at x; each leaf of f has the bandwidth and ridge best for it on `validation`."""
    grid = jnp.log(jnp.array([(b, r) for b in BANDWIDTHS for r in RIDGES], targets.dtype))
    scale = targets.std(axis=0) + jnp.finfo(targets.dtype).tiny
    same_leaf = (owner[:, None] == owner).astype(targets.dtype)

    def improve(carry: tuple[Array, Array], choice: Float[Array, "2"]) -> tuple[tuple, None]:
        lowest, best = carry

        def moved(leaf: Array, log_factor: Array) -> Array:
            return leaf + log_factor.astype(leaf.dtype)

        wider = eqx.tree_at(
            lambda g: g.bandwidths(), regression, replace_fn=lambda a: moved(a, choice[0])
        )
        fitted = eqx.tree_at(
            lambda g: g.ridges(), wider, replace_fn=lambda _: choice[1].astype(targets.dtype)
        ).fit(sleep)
        errors = (((fitted.predict(validation, targets) - truth) / scale) ** 2).mean(axis=0)
        errors = same_leaf @ errors
        best = jnp.where(errors < lowest, fitted.predict(x, targets), best)
        return (jnp.minimum(errors, lowest), best), None

    observations = jax.tree.leaves(x)[0].shape[0]
    none = (
        jnp.full(targets.shape[1], jnp.inf, targets.dtype),
        jnp.zeros((observations, targets.shape[1]), targets.dtype),
    )
    return jax.lax.scan(improve, none, grid)[0][1]


def _flat(tree: PyTree) -> Float[Array, " targets"]:
    leaves = [jnp.ravel(jnp.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves)


def _unflat(one: PyTree, row: Float[Array, " targets"]) -> PyTree[Array]:
    leaves, structure = jax.tree.flatten(one)
    ends, parts = 0, []
    for leaf in leaves:
        parts.append(row[ends : ends + leaf.size].reshape(leaf.shape))
        ends += leaf.size
    return structure.unflatten(parts)
