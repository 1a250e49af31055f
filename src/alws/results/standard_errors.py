"""Standard errors of fitted parameters: from the curvature of the likelihood, or from regressions.

The inverse of the information on θ is the covariance of the estimate. After a fit that chose for
itself and summed or integrated the latents it is minus the curvature of the log likelihood, by
differences of its gradient, which is all but exact (`alws.maximum.curvature`).

After any other fit only the gradients are known that a regression estimates. The information is
then the sum over observations of s sᵀ, with the same mean, where s(x) = ∇_θ log p_θ(x) is the
score. Regressing t = ∇_θ log p_θ(z, x) on x estimates s by ĝ, as in a fit. The error of ĝ would
spoil ĝ ĝᵀ in two ways, and each has its remedy:

- noise makes ĝ ĝᵀ too large. Regressions a ≠ b on sleep samples of their own have noises that know
  nothing of each other, so that ĝ_a ĝ_bᵀ has none on average. All pairs of phases are averaged.
- smoothing makes ĝ too small, or bends it. On fresh draws from the model the truth can be asked, as
  E[t | x] = s(x): with ĝ centred over fresh draws, B = E[t ĝᵀ] = E[s ĝᵀ] and A = E[ĝ_a ĝ_bᵀ], the
  best line is s ≈ C ĝ, C = B A⁻¹.

So the information in M observations is

    observed    Σ_m C ĝ_a(x_m) ĝ_b(x_m)ᵀ Cᵀ         over the data,
    expected    M E[C ĝ_a ĝ_bᵀ Cᵀ] = M B A⁻¹ Bᵀ     over the model's own draws.

The expected one lies below the truth by what no linear function of ĝ explains of s: a poor
regression gives standard errors that are too large, not too small. Everything is done again without
each phase and its share of the fresh draws; how much that changes says how noisy the result is.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Key, PyTree

from alws.fit import Result
from alws.maximum import Information, NotIntegrable, observed_information, precise_data
from alws.model import in_own_precision
from alws.regressions.base import Regression, check_regression
from alws.results.score_products import Products, products
from alws.state_space import StateSpace
from alws.validation import (
    FEWEST_SLEEP_SAMPLES,
    at_least,
    check_cost,
    check_data,
    check_key,
    check_support,
    instance,
    match_conditions,
    match_data,
    one_of,
)

SETS = 4
"""The most sets of points by which the curvature is measured."""

CERTAIN, NOTHING = 1.0, 1e-6
"""A positive eigenvalue is above this many of its standard deviations, and above this."""

LEAST = 1e-3
"""What differences of gradients can tell from nothing, in units of one complete observation."""


class StandardErrors(NamedTuple):
    """The covariance of fitted parameters, and what follows from it.

    `errors` is the model with a standard error in place of every parameter; `noise` has in their
    place the relative error of these that finitely many simulations leave. `covariance` has the
    parameters in the order of the model's leaves, as `jax.flatten_util.ravel_pytree` does. Where a
    change of parameters does not change the model at all, as a constant added to all logits of a
    softmax, it counts as no change.
    """

    model: Any
    errors: Any
    noise: Any
    covariance: Float[Array, "parameters parameters"]

    def of(self, function: Callable[[Any], PyTree]) -> PyTree[Array]:
        """Standard errors of any function of the model, by the delta method: √diag(J Σ Jᵀ).

        Example: `found.of(lambda model: jnp.exp(model.log_rate))`.
        """
        parameters, rest = eqx.partition(self.model, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(parameters)
        value, back = ravel_pytree(function(self.model))
        slope = jax.jacobian(lambda p: ravel_pytree(function(eqx.combine(unravel(p), rest)))[0])
        jacobian = slope(flat)
        variance = jnp.sum((jacobian @ self.covariance) * jacobian, axis=1)
        return back(jnp.sqrt(variance).astype(value.dtype))


@in_own_precision
def standard_errors(
    result: Result,
    data: PyTree,
    *,
    key: Key[Array, ""],
    conditions: PyTree | None = None,
    information: str = "observed",
    phases: int = 8,
    sleep_samples: int | None = None,
    regression: Regression | None = None,
) -> StandardErrors:
    """Standard errors of the parameters of a fit.

    The curvature of the fit's `log_prior` is added: the covariance is then that of Laplace's
    approximation to the posterior.

    Arguments:
        result: what `alws.fit` returned.
        data: what it was fitted to.
        key: a JAX key.
        conditions: those it was fitted with, if it was.
        information: "observed" is what the data say: minus the curvature of the log likelihood,
            after a fit that chose for itself and summed or integrated the latents; a sum over the
            data, which must be more than there are parameters, after any other. "expected" takes
            the model at its word and asks its simulations, so that a single long sequence will do.
        phases: how many sets of simulations, or of points up to 4; their spread gives the noise.
        sleep_samples: the size of each set of simulations, by default the fit's.
        regression: another regression of the scores than the fit's. Where this or `sleep_samples`
            is given, scores are regressed after any fit.

    Example:
        >>> found = alws.standard_errors(result, data, key=jax.random.key(1))
        >>> found.errors.means, found.of(lambda model: jax.nn.softmax(model.logits)[0])
    """
    instance("result", result, Result, "the result of a fit", "Give what `alws.fit` returned.")
    check_key(key)
    one_of("information", information, ("observed", "expected"))
    at_least("phases", phases, 3, " Two must be left when one is taken out to measure the noise.")
    if sleep_samples is not None:
        at_least("sleep_samples", sleep_samples, FEWEST_SLEEP_SAMPLES)
    size = check_data(data)
    conditions = match_conditions(conditions, size)
    first = jax.tree.map(lambda c: c[0], conditions)
    given, data = data, match_data(result.model, data, key, first)
    check_support(result.model, data, key, first, conditions=conditions)
    parameters, rest = eqx.partition(result.model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)
    names, log_prior = _names(parameters), result.algorithm.log_prior
    curvature = np.zeros((flat.size, flat.size))
    if log_prior is not None:
        prior = lambda p: log_prior(eqx.combine(unravel(p), rest))  # noqa: E731
        curvature = -np.asarray(jax.hessian(prior)(flat), np.float64)
    measured = None
    if information == "observed" and regression is None and sleep_samples is None:
        measured = _measured(result, precise_data(given, data), conditions, key, phases)
    if measured is not None:
        complete = measured.complete / size
        middle = _without_each(measured.observed)
        covariances = _covariances_of_curvature(complete, middle, curvature, names)
    else:
        found, middle = _regressed(
            result,
            data,
            conditions,
            key,
            information=information,
            phases=phases,
            sleep_samples=sleep_samples,
            regression=regression,
        )
        covariances = _covariances(found, middle, curvature, names)
    with np.errstate(invalid="ignore"):
        logs = np.log(np.diagonal(covariances, axis1=1, axis2=2)) / 2
        noise = np.sqrt((len(logs) - 2) * logs[:-1].var(axis=0))
        noise = np.nan_to_num(noise, nan=np.inf)

    def like_the_model(values: np.ndarray) -> Any:
        return eqx.combine(unravel(jnp.asarray(values, flat.dtype)), rest)

    return StandardErrors(
        result.model,
        like_the_model(np.exp(logs[-1])),
        like_the_model(noise),
        jnp.asarray(covariances[-1], flat.dtype),
    )


def _measured(
    result: Result, data: PyTree, conditions: PyTree | None, key: Key[Array, ""], phases: int
) -> Information | None:
    """The curvature of the log likelihood, if the fit climbed one by sums or points."""
    if isinstance(result.model, StateSpace) or not math.isfinite(result.log_likelihood):
        return None
    sets = min(phases, SETS)
    try:
        return observed_information(result.model, data, key=key, conditions=conditions, sets=sets)
    except NotIntegrable:
        return None


def _without_each(
    sets: Float[np.ndarray, "sets parameters parameters"],
) -> Float[np.ndarray, "without parameters parameters"]:
    """The means without set 0, without set 1, … and, last, of all."""
    total, number = sets.sum(axis=0), len(sets)
    return np.stack([*((total - one) / (number - 1) for one in sets), total / number])


def _regressed(
    result: Result,
    data: PyTree,
    conditions: PyTree | None,
    key: Key[Array, ""],
    *,
    information: str,
    phases: int,
    sleep_samples: int | None,
    regression: Regression | None,
) -> tuple[Products, Float[np.ndarray, "without parameters parameters"]]:
    """Products of regressed scores, and those that are summed over the data or their like."""
    parameters = ravel_pytree(eqx.filter(result.model, eqx.is_inexact_array))[0].size
    size = len(jax.tree.leaves(data)[0])
    observed = information == "observed"
    if observed and result.algorithm.log_prior is None and size <= parameters:
        raise ValueError(
            "the observed information adds up one outer product for each observation, so it needs "
            f"more observations than there are parameters, {parameters}; got {size}. Use "
            '`information="expected"`, which asks the simulations, or a model with fewer.'
        )
    number = result.algorithm.sleep_samples if sleep_samples is None else sleep_samples
    regression = result.regression if regression is None else regression
    check_regression(regression)
    check_cost(regression, number)
    found = products(
        result.model,
        regression,
        data if observed else None,
        conditions,
        key,
        size=size,
        phases=phases,
        sleep_samples=number,
        separate=result.algorithm.conditions == "separate",
    )
    if not all(np.isfinite(product).all() for product in found):
        raise ValueError(
            "the gradient of log p(z, x) in the parameters must be finite on the model's own "
            "draws; it is not. Check `log_joint` where its value is finite but its slope is not."
        )
    return found, np.asarray(found.data if observed else size * found.own)


def _covariances_of_curvature(
    complete: Float[np.ndarray, "parameters parameters"],
    observed: Float[np.ndarray, "without parameters parameters"],
    curvature: Float[np.ndarray, "parameters parameters"],
    names: list[str],
) -> Float[np.ndarray, "without parameters parameters"]:
    """(observed + curvature)⁻¹ without each set of points and, last, with all."""
    squares, kept, projection = _basis(complete, curvature, names)
    information = kept.T @ (squares * (observed + curvature)) @ kept
    return _inverses(information, squares, kept, projection, names, LEAST)


def _covariances(
    found: Products,
    middle: Float[np.ndarray, "without parameters parameters"],
    curvature: Float[np.ndarray, "parameters parameters"],
    names: list[str],
) -> Float[np.ndarray, "without parameters parameters"]:
    """(C · middle · Cᵀ + curvature)⁻¹ without each phase and, last, with all.

    Parameters are measured by what complete data would tell of them, so that eigenvalues of A are
    shares of that. Where A cannot be told from zero all the information is the prior's.
    """
    squares, kept, projection = _basis(np.asarray(found.complete[-1]), curvature, names)
    own, truth, middle, prior = (
        kept.T @ (squares * np.asarray(m)) @ kept
        for m in (found.own, found.truth, middle, curvature)
    )
    clear, v = _clear(own, kept, names, refuse=not prior.any())
    own, truth, middle = (v[:, clear].T @ m @ v[:, clear] for m in (own, truth, middle))
    line = v[:, clear] @ truth @ np.linalg.inv(own)
    information = line @ middle @ line.swapaxes(1, 2) + prior
    return _inverses(information, squares, kept, projection, names)


def _basis(
    complete: Float[np.ndarray, "parameters parameters"],
    curvature: Float[np.ndarray, "parameters parameters"],
    names: list[str],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Units of the products of two parameters; a basis of what counts; what takes off the rest."""
    known = np.diagonal(complete)
    unused = [n for n, k, c in zip(names, known, curvature, strict=True) if k == 0 and not c.any()]
    if unused:
        raise ValueError(
            f"every parameter must enter log p(z, x); {', '.join(unused)} does not, so nothing can "
            "be told of it. Make it a constant: a Python number or a static field."
        )
    scale = 1 / np.sqrt(np.where(known > 0, known, 1.0))
    return np.outer(scale, scale), *_without_idle_directions(complete, curvature, scale)


def _inverses(
    information: Float[np.ndarray, "without kept kept"],
    squares: Float[np.ndarray, "parameters parameters"],
    kept: Float[np.ndarray, "parameters kept"],
    projection: Float[np.ndarray, "parameters parameters"],
    names: list[str],
    least: float = NOTHING,
) -> Float[np.ndarray, "without parameters parameters"]:
    """The inverses in the parameters' own units, if there are any."""
    _clear(information, kept, names, least=least)
    covariance = squares * (kept @ np.linalg.inv(information) @ kept.T)
    return projection @ covariance @ projection.T


def _without_idle_directions(
    complete: Float[np.ndarray, "parameters parameters"],
    curvature: Float[np.ndarray, "parameters parameters"],
    scale: Float[np.ndarray, " parameters"],
) -> tuple[Float[np.ndarray, "parameters kept"], Float[np.ndarray, "parameters parameters"]]:
    """A basis without directions that change neither density nor prior, and what takes them off.

    A constant added to all logits of a softmax is such a direction.
    """
    squares = np.outer(scale, scale)
    bent, axes = np.linalg.eigh(squares * curvature)
    values, vectors = np.linalg.eigh(squares * complete + (axes * np.abs(bent)) @ axes.T)
    idle = values < NOTHING
    nothing = np.eye(len(scale))
    if not idle.any():
        return nothing, nothing
    directions = np.linalg.qr(scale[:, None] * vectors[:, idle])[0]
    return vectors[:, ~idle], nothing - directions @ directions.T


def _clear(
    matrices: Float[np.ndarray, "without kept kept"],
    kept: Float[np.ndarray, "parameters kept"],
    names: list[str],
    *,
    least: float = NOTHING,
    refuse: bool = True,
) -> tuple[Bool[np.ndarray, " kept"], Float[np.ndarray, "kept kept"]]:
    """Which eigenvalues are clear of zero, given their noise by the jackknife; the vectors."""
    values, vectors = np.linalg.eigh(matrices[-1])
    others = np.einsum("ji,kjl,li->ki", vectors, matrices[:-1], vectors)
    deviations = np.sqrt((len(others) - 1) * others.var(axis=0))
    clear = (values > CERTAIN * deviations) & (values > least)
    if clear.all() or not refuse:
        return clear, vectors
    worst = np.flatnonzero(~clear)[0]
    vector = kept @ vectors[:, worst]
    largest = [i for i in np.argsort(-np.abs(vector))[:4] if abs(vector[i]) > 0.1]
    direction = " ".join(f"{vector[i]:+.2f} {names[i]}" for i in largest)
    raise ValueError(
        "the information must be positive in every direction, clear of the simulations' noise; "
        f"along {direction} (in units of what complete data tell) it is {values[worst]:.2g} ± "
        f"{deviations[worst]:.1g}. If the data cannot tell these parameters apart, make one of "
        "them a constant (a Python number or a static field); if they can, raise `phases` or "
        "`sleep_samples`, or give a `regression` with more ridge."
    )


def _names(parameters: PyTree) -> list[str]:
    """A name for every entry of the flattened parameters, such as `means[0, 1]`."""
    names = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]:
        name = jax.tree_util.keystr(path).removeprefix(".")
        entries = np.ndindex(leaf.shape)
        names += [name + (str(list(entry)) if entry else "") for entry in entries]
    return names
