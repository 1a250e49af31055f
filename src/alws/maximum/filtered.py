"""The maximum of the likelihood of sequences whose filter is exact.

Σ_t log p(x_t | x_1 … x_{t−1}) of all sequences is climbed by L-BFGS. The information is first that
of the increments' own scores, Σ_t s_t s_tᵀ, whose sum is a martingale, and near the end minus the
second derivative; from that, too, the verdict.
"""

from collections.abc import Callable
from time import process_time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Key, PyTree

from alws.maximum.climb import climb, metric
from alws.maximum.maximise import Found, Round
from alws.maximum.verdict import Verdict
from alws.state_space.filters import Filter, increments
from alws.state_space.model import Given, StateSpace

ROUNDS = 60
"""The most rounds of a climb."""


def climb_filtered(
    model: StateSpace,
    x: PyTree[Array],
    given: Given | None,
    kind: Filter,
    *,
    key: Key[Array, ""],
    log_prior: Callable[[Any], Array] | None = None,
    seconds: float = 120.0,
    watch: Callable[[Round], bool] | None = None,
) -> Found:
    """Climb the exact log likelihood of some sequences, in float64.

    Arguments:
        model: the model at its start.
        x: the sequences, one a row.
        given: their conditions, or None.
        kind: what `find_filter` found.
        key, log_prior, seconds, watch: as `climb_likelihood` takes them.

    Example: `climb_filtered(model, x, None, find_filter(model, key), key=key).verdict`.
    """
    with jax.enable_x64(True):
        began, log = process_time(), []
        parameters, rest = eqx.partition(model, eqx.is_inexact_array)
        types = jax.tree.map(lambda a: a.dtype, parameters)
        flat, unravel = ravel_pytree(jax.tree.map(lambda a: jnp.asarray(a, float), parameters))
        x, given = jax.tree.map(_floating, (x, given))
        theta, p = np.asarray(flat), flat.size

        def each(theta: Array) -> Array:
            whole = eqx.combine(unravel(theta), rest)
            if given is None:
                return jax.vmap(lambda x: increments(whole, kind, x))(x)
            return jax.vmap(lambda x, g: increments(whole, kind, x, g))(x, given)

        def total(theta: Array) -> Array:
            prior = 0.0 if log_prior is None else log_prior(eqx.combine(unravel(theta), rest))
            return each(theta).sum() + prior

        value = jax.jit(jax.value_and_grad(total))
        scores = jax.jit(jax.jacfwd(lambda theta: each(theta).ravel()))
        sums = jax.jit(lambda theta: each(theta).sum(axis=1))

        def evaluate(theta: np.ndarray) -> tuple:
            f, g = value(theta)
            return float(f), np.asarray(g), 1.0

        def curvature(theta: np.ndarray, unit: np.ndarray) -> np.ndarray:
            steps = 1e-3 * unit
            columns = [
                (evaluate(theta - u)[1] - evaluate(theta + u)[1]) / (2 * h)
                for h, u in zip(steps, np.diag(steps), strict=True)
            ]
            matrix = np.stack(columns)
            return (matrix + matrix.T) / 2

        tolerance, pairs, radius, last, why = 0.004 * p, [], 1.0, np.inf, "time is up"
        f, g, _ = evaluate(theta)
        began_at = f
        number, observed, least = 0, np.eye(p), np.zeros(p)
        while number < ROUNDS and process_time() - began < seconds:
            number += 1
            if not (np.isfinite(f) and np.isfinite(g).all()):
                why = "the data have no density under the model, or its gradient is not finite"
                break
            s = np.asarray(scores(theta))
            rows = max(int((np.abs(s).sum(axis=1) > 0).sum()), 1)
            observed = s.T @ s
            least = np.maximum(np.diag(observed), 0.1 * least) + 1e-200
            if last < 20 * tolerance and p <= 60:
                exact = curvature(theta, least**-0.5)
                observed = exact if np.isfinite(exact).all() else observed
            m = metric(observed, 1e-6 * least, 1e-8)
            scale = s.T @ s / rows

            def length(move: np.ndarray, scale: np.ndarray = scale) -> float:
                return float(np.sqrt(max(move @ scale @ move, 0.0)))

            started = f
            new, f, g, count, pairs, prospect = climb(
                evaluate,
                theta,
                f,
                g,
                m.solve,
                length,
                100,
                0.05 * tolerance,
                pairs,
                radius,
                2 * radius,
            )
            far = length(new - theta) > 2 * radius
            radius *= 2.0 if far else 1.0
            theta, gained = new, f - started
            last = max(gained, prospect)
            log.append(f"{started:.4f} to {f:.4f} in {count} evaluations")
            whole = eqx.combine(unravel(jnp.asarray(theta)), rest)
            if watch is not None and watch(Round(number, f, whole)):
                why = "it was stopped"
                break
            if not far and last < tolerance and number > 1:
                why = ""
                break
        fitted = jax.tree.map(lambda a, t: a.astype(t), unravel(jnp.asarray(theta)), types)
        model = eqx.combine(fitted, rest)
        exact = curvature(theta, least**-0.5) if p <= 60 and np.isfinite(f) else observed
        fine = np.isfinite(exact).all() and np.isfinite(g).all()
        m = metric(exact if fine else observed, 1e-6 * least, 1e-8)
        slope = m.nats(g) if np.isfinite(g).all() else np.inf
        late = why in ("time is up", "it was stopped")
        most = max(last, slope) * (3.0 if late else 1.0)
        trusted = bool(most < 0.2 * p and (not why or late))
        verdict = Verdict(float(min(last, slope)), float(most), trusted, "" if late else why)
        names = {"forward": "the forward algorithm", "kalman": "the Kalman filter"}
        each_sum = np.asarray(sums(theta))
        method = f"the exact likelihood of {names[kind.kind]}"
        return Found(model, float(f), 0.0, each_sum, verdict, p, method, number, log, began_at)


def _floating(a: Any) -> Array:
    a = jnp.asarray(a)
    return a.astype(float) if jnp.issubdtype(a.dtype, jnp.floating) else a
