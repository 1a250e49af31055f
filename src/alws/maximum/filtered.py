"""The maximum of the likelihood of sequences that a filter without chance computes.

Σ_t log p(x_t | x_1 … x_{t−1}) of all sequences is climbed by L-BFGS. The information is first that
of the increments' own scores, Σ_t s_t s_tᵀ, whose sum is a martingale, and near the end minus the
second derivative; from that, too, the verdict. The nodes of a grid are placed anew after every
round.
"""

import contextlib
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
from alws.maximum.maximise import Found, NotIntegrable, Round, Watch
from alws.maximum.starts import SPREAD, Maxima, distinct_maxima, height
from alws.maximum.verdict import Verdict
from alws.state_space.filters import increments
from alws.state_space.grid import Placed, place
from alws.state_space.kinds import NAMES, Filter
from alws.state_space.model import Given, StateSpace

ROUNDS = 60
"""The most rounds of a climb."""

MANY = 60
"""From how many parameters on no second derivative is taken."""

MOST_RETURNS, FLAT = 2, 0.1
"""How often parameters that ran off are brought back, and the nats that their return should change
at most, by slope and curvature, where they are."""

MOST_LOST = 5
"""How often a climb may step to where no grid does, before it ends."""

AT_ONCE = 8
"""How many columns of the scores are computed side by side."""


def climb_filtered(
    model: StateSpace,
    x: PyTree[Array],
    given: Given | None,
    kind: Filter,
    *,
    key: Key[Array, ""],
    log_prior: Callable[[Any], Array] | None = None,
    starts: int = 1,
    seconds: float = 120.0,
    watch: Watch | None = None,
) -> tuple[Found, Maxima]:
    """Climb the log likelihood of some sequences, in float64, from one or several starts.

    `NotIntegrable` says why a grid does not do at the start.

    Arguments:
        model: the model at its start.
        x: the sequences, one a row.
        given: their conditions, or None.
        kind: what `find_filter` found.
        key, log_prior, starts, seconds, watch: as `climb_likelihood` takes them.

    Example: `climb_filtered(model, x, None, find_filter(model, key), key=key)[0].verdict`.
    """

    watch = watch or Watch()
    before = watch.number

    def attempt(wide: bool) -> tuple[Found, Maxima]:
        with jax.enable_x64(wide or jnp.zeros(()).dtype == jnp.float64):
            data = _Sequences(model, x, given, kind, key, log_prior)
            done = _from_starts(data, starts, seconds, watch)
            return max(done, key=height), distinct_maxima(done)

    try:
        return attempt(True)
    except TypeError:  # the model's own code holds it to one precision
        if watch.number > before:
            raise
        return attempt(False)


def _from_starts(data: "_Sequences", starts: int, seconds: float, watch: Watch) -> list[Found]:
    """The climb from the start given, and those from starts around it and around where it led."""
    first, (found, end) = data.theta, _climb(data, data.theta, seconds, watch)
    for _ in range(MOST_RETURNS):
        if watch.stopped or found.verdict.why:
            break
        again = _returned(data, first, end)
        if again is None:
            break
        better, where = _climb(data, again, seconds)
        if not better.log_likelihood > found.log_likelihood + 0.004 * data.p:
            break
        found, end = better._replace(began_at=found.began_at), where
    done = [found]
    rng = np.random.default_rng([*np.asarray(jax.random.key_data(data.key)).ravel().tolist(), 1])
    units = data.units(end) if starts > 1 else np.zeros(data.p)
    for i in range(1, 1 if watch.stopped else starts):
        data.placed, data.kind = None, data.kind._replace(values=data.first_values)
        away = SPREAD * units * rng.normal(size=data.p)
        with contextlib.suppress(NotIntegrable):
            done.append(_climb(data, (end if i % 2 else first) + away, seconds)[0])
    return done


def _returned(data: "_Sequences", first: np.ndarray, end: np.ndarray) -> np.ndarray | None:
    """θ with the parameters that have run off to where nothing depends on them back at their start.

    A logit that went far to the wrong side has no slope and no curvature left to come back by,
    which looks like a maximum. None where no parameter is so, or its return changes nothing.
    """
    if data.p > MANY or not np.isfinite(data.evaluate(end)[0]):
        return None
    f, g, _ = data.evaluate(end)
    away = first - end
    least = 1e-6 * (np.abs(away) + 1e-3) ** -2
    curvature = np.diag(data.curvature(end, np.maximum(data.units(end) ** -2, least) ** -0.5))
    flat = np.abs(g * away) + 0.5 * np.abs(curvature) * away**2 < FLAT
    again = np.where(flat, first, end)
    return again if abs(data.evaluate(again)[0] - f) > 2 * FLAT else None


class _Sequences:
    """The log likelihood of some sequences as a function of θ as a vector, and its derivatives."""

    def __init__(
        self,
        model: StateSpace,
        x: PyTree[Array],
        given: Given | None,
        kind: Filter,
        key: Key[Array, ""],
        log_prior: Callable[[Any], Array] | None,
    ):
        parameters, self.rest = eqx.partition(model, eqx.is_inexact_array)
        self.types = jax.tree.map(lambda a: a.dtype, parameters)
        flat, self.ravelled = ravel_pytree(jax.tree.map(_floating, parameters))
        self.x, self.given = jax.tree.map(_floating, (x, given))
        self.theta, self.p, self.key = np.asarray(flat), flat.size, key
        self.kind: Filter = kind
        self.first_values = kind.values
        self.placed: Placed | None = None

        def each(theta: Array, values: PyTree) -> Array:
            whole, its = self.at(theta), kind._replace(values=values)
            given = Given() if self.given is None else self.given
            return jax.vmap(lambda x, g: increments(whole, its, x, g))(self.x, given)

        def total(theta: Array, values: PyTree) -> Array:
            prior = 0.0 if log_prior is None else log_prior(self.at(theta))
            return each(theta, values).sum() + prior

        def scores(theta: Array, values: PyTree) -> Array:
            def along(direction: Array) -> Array:
                return jax.jvp(lambda t: each(t, values).ravel(), (theta,), (direction,))[1]

            return jax.lax.map(along, jnp.eye(len(theta)), batch_size=AT_ONCE).T

        self._value = jax.jit(jax.value_and_grad(total))
        self._scores = jax.jit(scores)
        self._sums = jax.jit(lambda theta, values: each(theta, values).sum(axis=1))

    def at(self, theta: Array) -> Any:
        """The model with these parameters."""
        return eqx.combine(self.ravelled(theta), self.rest)

    def fitted(self, theta: np.ndarray) -> Any:
        """The same, its parameters as long as they came."""
        whole = self.ravelled(jnp.asarray(theta))
        return eqx.combine(jax.tree.map(lambda a, t: a.astype(t), whole, self.types), self.rest)

    def place(self, theta: np.ndarray, tolerance: float) -> str:
        """Put the nodes of a grid where this θ needs them; why that cannot be done, or nothing."""
        if self.kind.kind != "grid":
            return ""
        model = self.at(jnp.asarray(theta))
        placed = place(model, self.x, self.given, self.key, tolerance=tolerance, near=self.placed)
        if placed.reason:
            return placed.reason
        self.kind, self.placed = self.kind._replace(values=jnp.asarray(placed.nodes)), placed
        return ""

    @property
    def error(self) -> float:
        """What the grid leaves, in nats."""
        return 0.0 if self.placed is None else self.placed.error

    def evaluate(self, theta: np.ndarray) -> tuple[float, np.ndarray, float]:
        """Log likelihood and log prior, their gradient, and 1: there is no noise."""
        f, g = self._value(theta, self.kind.values)
        return float(f), np.asarray(g), 1.0

    def scores(self, theta: np.ndarray) -> np.ndarray:
        """The gradient of every increment."""
        return np.asarray(self._scores(theta, self.kind.values))

    @np.errstate(over="ignore", invalid="ignore")
    def units(self, theta: np.ndarray) -> np.ndarray:
        """The standard deviation of each parameter as one time of a sequence leaves it."""
        s = self.scores(theta)
        squares = (s**2).sum(axis=0) / max(int((np.abs(s).sum(axis=1) > 0).sum()), 1)
        known = np.isfinite(squares) & (squares > 0)
        return 1 / np.sqrt(np.where(known, squares, 1.0))

    def sums(self, theta: np.ndarray) -> np.ndarray:
        """The log likelihood of every sequence."""
        return np.asarray(self._sums(theta, self.kind.values))

    def curvature(self, theta: np.ndarray, unit: np.ndarray) -> np.ndarray:
        """Minus the second derivative, from gradients a thousandth of `unit` apart."""
        steps = 1e-3 * unit
        columns = [
            (self.evaluate(theta - u)[1] - self.evaluate(theta + u)[1]) / (2 * h)
            for h, u in zip(steps, np.diag(steps), strict=True)
        ]
        matrix = np.stack(columns)
        return (matrix + matrix.T) / 2


def _climb(
    data: _Sequences,
    theta: np.ndarray,
    seconds: float,
    watch: Watch | None = None,
) -> tuple[Found, np.ndarray]:
    """Where a climb from θ ends, and θ there."""
    began, log, p = process_time(), [], data.p
    tolerance, pairs, radius, last, why = 0.004 * p, [], 1.0, np.inf, "time is up"
    lost, nowhere = 0, data.place(theta, 1.0)
    if nowhere:
        raise NotIntegrable(nowhere)
    f, g, _ = data.evaluate(theta)
    began_at = f
    number, observed, least, still = 0, np.eye(p), np.zeros(p), np.ones(p, bool)
    while number < ROUNDS and process_time() - began < seconds:
        number += 1
        s = data.scores(theta)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = s.T @ s
        if not (np.isfinite(f) and np.isfinite(g).all() and np.isfinite(squares).all()):
            why = "the data have no density under the model, or its gradient is not finite"
            break
        rows = max(int((np.abs(s).sum(axis=1) > 0).sum()), 1)
        observed, still = squares, still & ~s.any(axis=0)
        least = np.maximum(np.diag(observed), 0.1 * least) + 1e-200
        if last < 20 * tolerance and p <= MANY:
            exact = data.curvature(theta, least**-0.5)
            observed = exact if np.isfinite(exact).all() else observed
        m = metric(observed, 1e-6 * least, 1e-8)
        scale = squares / rows

        def length(move: np.ndarray, scale: np.ndarray = scale) -> float:
            return float(np.sqrt(max(move @ scale @ move, 0.0)))

        started, enough = f, 0.05 * tolerance
        new, f, g, count, pairs, prospect = climb(
            data.evaluate, theta, f, g, m.solve, length, 100, enough, pairs, radius, 2 * radius
        )
        far = length(new - theta) > 2 * radius
        nowhere = data.place(new, max(tolerance / 4, 0.01 * min(f - started, 100.0)))
        if nowhere:
            lost, radius, pairs = lost + 1, radius / 4, []
            f, g, _ = data.evaluate(theta)
            why = nowhere
            if lost < MOST_LOST:
                continue
            break
        radius, why = radius * (2.0 if far else 1.0), "time is up"
        if data.kind.kind == "grid":
            f, g, _ = data.evaluate(new)
        theta, gained = new, f - started
        last = max(gained, prospect)
        log.append(f"{started:.4f} to {f:.4f} in {count} evaluations")
        whole = data.at(jnp.asarray(theta))
        ended = not far and last < tolerance and number > 1
        stop = watch is not None and watch(Round(number, f, whole, float(last), ended))
        if ended or stop:
            why = "" if ended else "it was stopped"
            break
    fine = p <= MANY and np.isfinite(f) and bool(least.all())
    exact = data.curvature(theta, least**-0.5) if fine else observed
    fine = np.isfinite(exact).all() and np.isfinite(g).all()
    m = metric(exact if fine else observed, 1e-6 * least, 1e-8)
    slope = m.nats(g) if np.isfinite(g).all() else np.inf
    late = why in ("time is up", "it was stopped")
    most = max(last, slope) * (3.0 if late else 1.0) + data.error
    trusted = bool(most < 0.2 * p and (not why or late))
    verdict = Verdict(float(min(last, slope)), float(most), trusted, "" if late else why)
    exact_ = "" if data.kind.kind == "grid" else "exact "
    method = f"the {exact_}likelihood of {NAMES[data.kind.kind]}"
    model, each = data.fitted(theta), data.sums(theta)
    found = Found(
        model, float(f), data.error, each, verdict, p, method, number, log, began_at, still
    )
    return found, theta


def _floating(a: Any) -> Array:
    a = jnp.asarray(a)
    return a.astype(float) if jnp.issubdtype(a.dtype, jnp.floating) else a
