"""What a problem is, exact likelihoods in float64, and the search for their maxima."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from scipy.optimize import minimize

Model = TypeVar("Model")
Rival = Callable[[], tuple[str, float]]


@dataclass(frozen=True)
class Problem:
    """A model and data to fit it to, with the maximum of Σ_i log p_θ(x_i), all constants included.

    `parameters` counts free parameters: what softmax, rotations and unused entries leave over.
    `rival()` fits the same in another way, as a user would, and returns its name and the log
    likelihood it reaches; `others` are further such ways. `recompute()` finds the maximum anew,
    independently of what is stored. `conditions` are those of `alws.fit`.
    """

    name: str
    start: Any
    data: PyTree[np.ndarray]
    parameters: int
    log_likelihood: Callable[[Any], float]
    maximum: float
    rival: Rival
    source: str
    recompute: Callable[[], float]
    conditions: PyTree | None = None
    others: tuple[Rival, ...] = ()


def in_double(function: Callable[..., Any], *trees: Any) -> Any:
    """`function(*trees)` in float64, as NumPy arrays; floating-point leaves are converted first."""

    def convert(leaf: Any) -> Any:
        return jnp.asarray(np.asarray(leaf, np.float64)) if eqx.is_inexact_array(leaf) else leaf

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, function(*jax.tree.map(convert, trees)))


class Exact:
    """Σ_i log p_θ(x_i) in float64, from a function `log_marginal(model, x)` of one observation.

    Rows that repeat are computed once. An instance is called with a model, its parameters in any
    precision.

    Example: `Exact(log_marginal, data)(model)` is a float.
    """

    def __init__(self, log_marginal: Callable[[Any, Any], Array], data: PyTree[np.ndarray]):
        self.log_marginal = log_marginal
        self.rows, self.counts = _distinct(data)
        self._total = eqx.filter_jit(self._sum)

    def __call__(self, model: Any) -> float:
        return float(in_double(self._total, model, self.rows, self.counts))

    def maximise(self, *starts: Model) -> tuple[Model, float]:
        """The best model that L-BFGS in float64 finds from these starts, and its value.

        Parameters are scaled by the root mean square of their scores; each search goes on from
        where it ended until that gains nothing.
        """
        found = [in_double(self._search, start, self.rows, self.counts) for start in starts]
        value, flat, start = max(
            zip((f[0] for f in found), (f[1] for f in found), starts, strict=True),
            key=lambda triple: triple[0],
        )
        return _unflatten(start, flat), float(value)

    def by_scipy(self, start: Model) -> Model:
        """Where SciPy's L-BFGS-B ends with this likelihood and its gradient, as it comes."""
        flat = in_double(self._plain, start, self.rows, self.counts)
        return _unflatten(start, flat)

    def _sum(self, model: Any, rows: Any, counts: Array) -> Array:
        return jnp.vdot(counts, jax.vmap(self.log_marginal, (None, 0))(model, rows))

    def _loss(self, start: Any, rows: Any, counts: Array) -> tuple[np.ndarray, Callable, Callable]:
        """θ as a vector, −Σ log p with its gradient, and the scores' root mean square."""
        theta, rest = eqx.partition(start, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(theta)

        def one(flat: Array, x: Any) -> Array:
            return self.log_marginal(eqx.combine(unravel(flat), rest), x)

        @jax.jit
        def evaluate(flat: Array) -> tuple[Array, Array]:
            def loss(flat: Array) -> Array:
                return -jnp.vdot(counts, jax.vmap(one, (None, 0))(flat, rows))

            return jax.value_and_grad(loss)(flat)

        @jax.jit
        def spread(flat: Array) -> Array:
            scores = jax.vmap(jax.grad(one), (None, 0))(flat, rows)
            return jnp.sqrt((counts[:, None] * scores**2).sum(axis=0) / counts.sum())

        return np.asarray(flat), evaluate, spread

    def _search(self, start: Any, rows: Any, counts: Array) -> tuple[Any, Any]:
        flat, evaluate, spread = self._loss(start, rows, counts)
        typical = np.asarray(spread(flat))
        unit = 1 / np.maximum(typical, 1e-3 * np.median(typical[typical > 0]))
        best, position = np.inf, flat
        for _ in range(20):
            value, position = _descend(evaluate, position, unit)
            if best - value < 1e-8:
                break
            best = value
        return np.asarray(-min(best, value)), position

    def _plain(self, start: Any, rows: Any, counts: Array) -> np.ndarray:
        flat, evaluate, _ = self._loss(start, rows, counts)
        return _descend(evaluate, flat, np.ones_like(flat), {})[1]


def by_scipy(exact: Exact, start: Any, how: str) -> Rival:
    """The rival that hands the exact likelihood to SciPy; `how` says what makes it exact."""
    return lambda: (f"SciPy, {how}", exact(exact.by_scipy(start)))


def best_of(exact: Exact, make: Callable[[int], Any], seeds: int) -> Callable[[], float]:
    """A function that climbs from the starts `make(0)`, `make(1)`, … and returns the highest."""
    return lambda: exact.maximise(*(make(seed) for seed in range(seeds)))[1]


def array(value: Any) -> Float[Array, "..."]:
    """A parameter of a start, in JAX's precision of the moment."""
    return jnp.asarray(np.asarray(value, np.float64))


def jitter(seed: int, *shape: int, scale: float = 0.1) -> np.ndarray:
    """Numbers N(0, scale²) that a start is moved by where a symmetry must be broken."""
    return scale * np.random.default_rng(seed).standard_normal(shape)


def normal_grid(nodes: int = 1201, end: float = 9.0) -> tuple[Array, Array]:
    """Nodes and log weights of ∫ f(z) N(z; 0, 1) dz ≈ Σ_i w_i f(z_i), by the trapezoidal rule.

    Its error vanishes faster than any power of the step as long as f is smooth on that scale.
    """
    z = jnp.linspace(-end, end, nodes)
    return z, jax.scipy.stats.norm.logpdf(z) + jnp.log(z[1] - z[0])


def gaussian(
    x: Float[Array, " d"], mean: Float[Array, " d"], covariance: Float[Array, "d d"]
) -> Float[Array, ""]:
    """log N(x; mean, covariance), by a Cholesky factor that `vmap` over x makes once."""
    factor = jnp.linalg.cholesky(covariance)
    white = jax.scipy.linalg.solve_triangular(factor, x - mean, lower=True)
    half_log_det = jnp.log(jnp.diagonal(factor)).sum()
    return -0.5 * (white @ white + x.size * np.log(2 * np.pi)) - half_log_det


def _descend(
    evaluate: Callable, start: np.ndarray, unit: np.ndarray, options: dict | None = None
) -> tuple[float, np.ndarray]:
    """L-BFGS-B in units of `unit`, to the last digit unless `options` say otherwise."""
    tight = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}

    def loss(position: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = (np.asarray(a) for a in evaluate(unit * position))
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return 1e30, np.zeros_like(position)
        return float(value), unit * gradient

    options = tight if options is None else options
    with np.errstate(all="ignore"):
        end = minimize(loss, start / unit, jac=True, method="L-BFGS-B", options=options)
    return float(end.fun), unit * end.x


def _unflatten(start: Any, flat: np.ndarray) -> Any:
    theta, rest = eqx.partition(start, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(theta)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = zip(np.split(np.asarray(flat), ends), leaves, strict=True)
    made = [part.reshape(leaf.shape) for part, leaf in parts]
    return eqx.combine(jax.tree.unflatten(structure, made), rest)


def _distinct(data: PyTree[np.ndarray]) -> tuple[Any, np.ndarray]:
    """The rows that differ and how often each occurs, as float64; of a pytree all rows, once."""
    if not isinstance(data, np.ndarray):
        n = len(jax.tree.leaves(data)[0])
        return data, np.ones(n)
    rows, counts = np.unique(data, axis=0, return_counts=True)
    return rows, counts.astype(float)
