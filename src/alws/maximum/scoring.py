"""The maximum of the likelihood by regression, from nothing but simulations and their scores.

With sleep samples (z_n, x_n) ~ p_θ, their scores s_n = ∇_θ log p_θ(z_n, x_n), features φ(x) and M
data x*,

    B = Cov(φ)⁻¹ Cov(φ, s),   ĝ = Bᵀ(φ̄* − φ̄) + I I_c⁻¹ s̄,   I = Bᵀ Cov(φ) B,   I_c = E[s sᵀ].

The first term of ĝ is the mean over the data of the regressed score, its intercept left out: E[s]
is known to be zero. The second is the best multiple of s̄ as a control variate for the noise of φ̄.
With it the noise of ĝ costs ½ M tr(1 − I I_c⁻¹)/N nats at most, however little of z the data tell;
with the intercept in its place it costs ½ M tr(I_c I⁻¹ − 1)/N, without bound. I is the information
of one observation as the features see it, so that θ + I⁻¹ĝ is a step of Fisher's scoring.

With conditions an observation is the pair (condition, x). Sleep samples are drawn under conditions
in the data's own proportions, and one regression serves all of them.

Where x tells next to nothing of what the scores of a long simulation are made of, Cov(φ, s) drowns
in their noise. As it is ∇_θ E[φ], it is then taken along the simulator's own paths, the mean of
∇_θ φ(x_n) at the same random numbers, if simulations show that both agree.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import process_time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Key, PyTree
from scipy.linalg import cho_factor, cho_solve

from alws.features import Features, flatten
from alws.maximum.maximise import Round, Watch
from alws.maximum.verdict import Verdict
from alws.model import (
    AnyModel,
    Draws,
    Pooled,
    condition_arguments,
    draw,
    has_likelihood,
    log_joint,
    sample,
    separated,
    simulate,
)

# Features ---------------------------------------------------------------------------------------


class Statistics(Features):
    """s(x) of a model that gives a likelihood, all entries side by side."""

    model: Any
    condition: Pooled | None = None

    def __call__(self, x: PyTree[Array]) -> Float[Array, "batch features"]:
        return flatten(jax.vmap(self._one)(x))

    def _one(self, point: PyTree) -> PyTree:
        x, own = separated(point, self.condition)
        args = condition_arguments(own)
        z = self.model.sample_latent(jax.random.key(0), *args)
        return self.model.likelihood(z, *args).sufficient_statistics(x)


class Posterior(Features):
    """The score expected after seeing x, by self-normalised importance sampling of K latents:

        ŝ(x) = Σ_k r_k(x) ∇_θ log p_θ(z_k, x),   r_k(x) ∝ p_θ(z_k, x)/c_k,   z_k ~ p_θ(z).

    c_k = p_θ(z_k), from the model's prior or, without one, from the fixed point of
    c_k = Σ_j p(z_k, x_j)/a_j and a_j = Σ_k p(z_k, x_j)/c_k, x_j draws with the z_k. As features of
    a regression ŝ need not be right: it is weighed by how well it predicts the scores of draws.
    With conditions the z_k are drawn under some of them, and c_k is the mixture of their priors.
    """

    model: Any
    key: Key[Array, ""]
    number: int = eqx.field(static=True, default=64)
    condition: Pooled | None = None

    def __call__(self, x: PyTree[Array]) -> Float[Array, "batch features"]:
        theta, rest = eqx.partition(self.model, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(theta)
        draws, _ = draw(self.model, self.key, self.number, self.condition)

        def joints(flat: Array, point: PyTree) -> Array:
            model = eqx.combine(unravel(flat), rest)
            return jnp.nan_to_num(
                jax.vmap(lambda z: log_joint(model, z, point, self.condition))(draws.z),
                nan=-1e30,
                neginf=-1e30,
            )

        if has_likelihood(self.model):
            prior = self._log_prior(draws)
        else:
            prior = _balance(jax.vmap(partial(joints, flat))(draws.x))
        total = jax.grad(lambda flat, point: jax.nn.logsumexp(joints(flat, point) - prior))
        return jnp.nan_to_num(jax.lax.map(lambda p: total(flat, p), x, batch_size=256))

    def _log_prior(self, draws: Draws) -> Float[Array, " latents"]:
        """log c, given the model's own prior."""
        if self.condition is None:
            return jax.vmap(self.model.log_prior)(draws.z)
        under_each = jax.vmap(lambda z, c: self.model.log_prior(z, c), (None, 0))
        return jax.nn.logsumexp(jax.vmap(lambda z: under_each(z, draws.x[0]))(draws.z), axis=1)


def _balance(joints: Float[Array, "points latents"]) -> Float[Array, " latents"]:
    """log c of c_k = Σ_j p(z_k, x_j)/a_j, a_j = Σ_k p(z_k, x_j)/c_k, after ten rounds."""
    lse = jax.nn.logsumexp

    def round(_: int, c: Array) -> Array:
        return lse(joints - lse(joints - c, axis=1, keepdims=True), axis=0)

    return jax.lax.fori_loop(0, 10, round, jnp.zeros(joints.shape[1]))


def _location_and_scale(a: Float[Array, "batch columns"]) -> tuple[Array, Array]:
    scale = a.std(axis=0)
    tiny = 1e-12 * jnp.abs(a).max(axis=0)
    return jax.lax.stop_gradient((a.mean(axis=0), jnp.where(scale > tiny, scale, 1.0)))


# Moments, and what they tell --------------------------------------------------------------------


class Moments(NamedTuple):
    """Means over N sleep samples of products of features φ and scores s, and φ̄* over the data.

    `slope` is ∇_θ φ̄ along the simulator's paths, without columns where it is not asked for.

    The last three are for samples in groups that depend on each other, such as the times of a
    sequence: with Φ the sum of a group's features, each times the root of its weight, and c that of
    these roots, ΣΦΦᵀ, ΣcΦ and Σc² over groups. Of independent samples they are φφᵀ, φ and 1.
    """

    number: Float[Array, ""]
    bad: Float[Array, ""]
    phi: Float[Array, " d"]
    s: Float[Array, " p"]
    phi_phi: Float[Array, "d d"]
    phi_s: Float[Array, "d p"]
    s_s: Float[Array, "p p"]
    target: Float[Array, " d"]
    sum_sum: Float[Array, "d d"]
    sum: Float[Array, " d"]
    square: Float[Array, ""]
    slope: Float[Array, "d p"] = np.zeros((0, 0))  # pyright: ignore


class Frame(NamedTuple):
    """Where entries and features lie over sleep samples, and how wide: constants of φ."""

    mean: Float[Array, " entries"]
    deviation: Float[Array, " entries"]
    median: Float[Array, " entries"]
    width: Float[Array, " entries"]
    location: Float[Array, " d"]
    scale: Float[Array, " d"]


def entries_frame(entries: Float[Array, "batch entries"]) -> tuple[Array, ...]:
    """Mean, deviation, median and width (the inner four fifths, as a deviation) of every entry."""
    mean, deviation = _location_and_scale(entries)
    low, median, high = jnp.quantile(entries, jnp.array([0.1, 0.5, 0.9]), axis=0)
    width = (high - low) / 2.56
    return mean, deviation, median, jnp.where(width > 1e-3 * deviation, width, deviation)


@dataclass(frozen=True)
class Columns:
    """All features that any candidate uses, by groups: entries, statistics, products, waves, …

    Waves are cos(ω·u + b) of u = arcsinh((x − median)/width), frequencies over several octaves.
    """

    products: bool
    waves: int
    posterior: int
    paths: bool = False
    seed: int = 0
    condition: Pooled | None = None

    def groups(self, model: Any, x: PyTree, frame: Frame) -> dict[str, Float[Array, "batch _"]]:
        """φ(x), a matrix for each group."""
        entries = flatten(x)
        u = (entries - frame.mean) / frame.deviation
        found = {"entries": u}
        if has_likelihood(model):
            found["statistics"] = Statistics(model, self.condition)(x)
        if self.products:
            rows, others = np.triu_indices(u.shape[1])
            found["products"] = u[:, rows] * u[:, others]
        for i in range(2 if self.waves else 0):
            omega, shift = self.frequencies(u.shape[1], self.seed + i)
            found[f"waves{i}"] = jnp.cos(
                jnp.arcsinh((entries - frame.median) / frame.width) @ omega + shift
            )
        if self.posterior:
            key = jax.random.key(1)
            found["posterior"] = Posterior(model, key, self.posterior, self.condition)(x)
        return found

    def frequencies(self, entries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """ω and b."""
        rng = np.random.default_rng(seed)
        fastest = max(6 / math.sqrt(entries), 1.5)
        pace = np.exp(rng.uniform(math.log(0.3), math.log(fastest), self.waves))
        omega = rng.standard_normal((entries, self.waves)) / math.sqrt(entries)
        return pace * omega, rng.uniform(0, 2 * np.pi, self.waves)


def moments(
    unflatten: Callable, columns: Columns, size: int, theta: Array, key: Array, frame: Frame,
    x: PyTree, share: Array, condition: Pooled | None,
) -> tuple[Moments, Frame]:  # fmt: skip
    """Draw `size` sleep samples at θ and score them; their moments, and the frame they suggest."""
    model = unflatten(theta)
    z, x_n = simulate(model, key, size, condition)
    one = jax.grad(lambda theta, z, x: log_joint(unflatten(theta), z, x, condition))
    s = jax.vmap(one, (None, 0, 0))(theta, z, x_n)
    entries = flatten(x_n)
    groups = columns.groups(model, x_n, frame)
    raw = jnp.concatenate(list(groups.values()), axis=1)
    good = (jnp.isfinite(s).all(axis=1) & jnp.isfinite(raw).all(axis=1))[:, None]
    s, raw, entries = (
        jnp.where(good, s, 0.0),
        jnp.where(good, raw, 0.0),
        jnp.where(good, entries, 0.0),
    )
    phi = (raw - frame.location) / frame.scale
    data = jnp.concatenate(list(columns.groups(model, x, frame).values()), axis=1)

    def along(theta: Array) -> Array:
        own = unflatten(theta)
        _, x_n = jax.vmap(partial(sample, own))(jax.random.split(key, size))
        raw = jnp.concatenate(list(columns.groups(model, x_n, frame).values()), axis=1)
        return (jnp.where(good, raw, 0.0) / frame.scale).mean(axis=0)

    slope = jax.jacfwd(along)(theta) if columns.paths else jnp.zeros((phi.shape[1], 0))
    second, mean = phi.T @ phi / size, phi.mean(axis=0)
    found = Moments(
        jnp.asarray(size, s.dtype), 1 - good.mean(), mean, s.mean(axis=0),
        second, phi.T @ s / size, s.T @ s / size,
        share @ ((data - frame.location) / frame.scale), second, mean, jnp.ones((), s.dtype), slope,
    )  # fmt: skip
    return found, Frame(*entries_frame(entries), *_location_and_scale(raw))  # pyright: ignore


def pool(runs: list[Moments]) -> Moments:
    """The moments of all these samples together."""
    n = np.array([run.number for run in runs])
    mean = jax.tree.map(lambda *a: np.tensordot(n / n.sum(), np.stack(a), 1), *runs)
    return mean._replace(number=n.sum())


class Fitted:
    """The regression of scores on some columns, from moments: B, I and I_c.

    Columns are standardised; `ridge` is relative to a variance of 1.
    """

    def __init__(self, m: Moments, columns: np.ndarray, ridge: float = 1e-7):
        self.columns = columns
        cov = m.phi_phi[np.ix_(columns, columns)] - np.outer(m.phi[columns], m.phi[columns])
        paths = m.slope.shape[1] > 0
        covariance = m.phi_s[columns] - np.outer(m.phi[columns], m.s)
        cross = m.slope[columns] if paths else covariance
        deviation = np.sqrt(np.maximum(np.diag(cov), 0))
        self.live = deviation > 1e-9
        scale = np.where(self.live, deviation, np.inf)
        gram = cov / scale[:, None] / scale
        self.factor = cho_factor(gram + ridge * np.eye(len(gram)), lower=True)
        self.scale = scale
        solved = cho_solve(self.factor, cross / scale[:, None])
        self.b = solved / scale[:, None]
        self.freedom = float(np.sum(cho_solve(self.factor, gram).diagonal()))
        self.complete, self.number, self.paths = m.s_s, m.number, paths
        if paths:  # nothing of the complete data's noise is in it
            self.information, self.complete = self.b.T @ cov @ self.b, _along_paths(m)
            return
        rest = m.s_s - np.outer(m.s, m.s) - self.b.T @ cov @ self.b
        crossed = np.outer(m.sum - m.square * m.phi / 2, m.phi)
        spread = (m.sum_sum - crossed - crossed.T)[np.ix_(columns, columns)]
        whole = self.b.T @ spread @ self.b
        along = float(np.sum(cho_solve(self.factor, spread / scale[:, None] / scale).diagonal()))
        self.information = whole - along / max(m.number - self.freedom - 1, 1.0) * rest

    def gradient(self, m: Moments) -> tuple[Any, Any]:
        """Bᵀ(φ̄* − φ̄) and s̄ of these sleep samples."""
        mean = np.zeros_like(m.s) if self.paths else m.s
        return (m.target - m.phi)[self.columns] @ self.b, mean

    def distance(self, m: Moments) -> float:
        """How far the data's means are from the model's, (φ̄* − φ̄)ᵀ Cov(φ)⁻¹ (φ̄* − φ̄)."""
        d = (m.target - m.phi)[self.columns] / self.scale
        return float(d @ cho_solve(self.factor, d))


def _along_paths(m: Moments) -> np.ndarray:
    """Twice what all columns tell, in place of the complete data's information."""
    cov, slope = np.asarray(m.phi_phi) - np.outer(m.phi, m.phi), np.asarray(m.slope)
    variances = np.diag(cov)
    solid = cov + np.diag(np.where(variances > 1e-18, 1e-3 * variances, 1.0))
    told = slope.T @ np.linalg.solve(solid, slope)
    return 2 * told + 1e-6 * np.diag(np.diag(told)) + 1e-200 * np.eye(len(told))


class Metric:
    """The information on θ in all M observations, what is known of less than `floor` left out.

    I v = ρ I_c v has eigenvalues ρ, the shares of the complete information that x tells: 0 to 1.
    """

    def __init__(
        self,
        fitted: Fitted,
        observations: float,
        floor: float = 1e-3,
        prior: np.ndarray | None = None,
    ):
        size = np.diag(fitted.complete)
        unit = np.where(size > 0, 1 / np.sqrt(np.where(size > 0, size, 1.0)), 0.0)
        values, vectors = np.linalg.eigh(fitted.complete * unit[:, None] * unit)
        root = vectors / np.sqrt(np.maximum(values, 1e-6 * values.max()))
        i = root.T @ (fitted.information * unit[:, None] * unit) @ root
        share, turn = np.linalg.eigh((i + i.T) / 2)
        self.share = np.clip(share, 0.0, 1.0)
        self.basis = unit[:, None] * (root @ turn)  # columns v with vᵀI_c v = 1, vᵀI v = ρ
        self.back = fitted.complete @ self.basis
        self.observations, self.prior = observations, prior
        self.known = self.share > floor

    def gradient(self, fitted: Fitted, m: Moments) -> np.ndarray:
        """ĝ of one observation, in the coordinates of `basis`."""
        regressed, mean = fitted.gradient(m)
        prior = 0.0 if self.prior is None else self.basis.T @ self.prior / self.observations
        return self.basis.T @ regressed + self.share * (self.basis.T @ mean) + prior

    def nats(self, g: np.ndarray) -> float:
        """½ M gᵀI⁻¹g of a gradient in these coordinates."""
        return float(0.5 * self.observations * (g[self.known] ** 2 / self.share[self.known]).sum())

    def noise(self, g: np.ndarray) -> float:
        """What `nats` is on average for the noise of one of these gradients, a row each."""
        return self.nats(g.std(axis=0, ddof=1))

    def wobble(self, g: np.ndarray) -> float:
        """The same from differences of rows that follow each other: a trend does not count."""
        return (
            self.nats(np.sqrt((np.diff(g, axis=0) ** 2).mean(axis=0) / 2)) if len(g) > 1 else np.inf
        )

    def step(self, g: np.ndarray, damping: float, longest: float) -> np.ndarray:
        """(I + damping·I_c)⁻¹ ĝ, in the same coordinates, no longer than `longest` in I_c."""
        move = g / (self.share + damping)
        return move * min(1.0, longest / max(float(np.linalg.norm(move)), 1e-300))


# The fit ----------------------------------------------------------------------------------------


BLOCK = 1024
"""How many sleep samples are drawn at once."""

RIDGES = (1e-3, 1e-7)
"""Relative to a variance of 1."""

LITTLE = 0.01
"""The least share of the complete information that regressed scores can be trusted with."""

MANY = 100
"""At one step of each so many parameters, or at every one, the information is decomposed."""

MOST_PATHS = 50
"""The most parameters that a simulation is differentiated in."""

POSTERIOR = 64
"""How many latents the features of `Posterior` weigh."""


class Scored(NamedTuple):
    """The model reached, the verdict, which regression was chosen and what every stage did.

    `rounds` is how often those who watch were told of it, `still` marks the entries of θ that never
    had a score.
    """

    model: Any
    verdict: Verdict
    chosen: str
    log: list[str]
    rounds: int
    still: Bool[np.ndarray, " p"]


class Scoring:
    """A fit by Fisher's scoring with regressed scores; `run` takes it to its end.

    Arguments:
        model: the model at its start.
        data: observations as leading axis.
        key: on which all random numbers depend.
        conditions: one entry for each observation, or None.
        log_prior: log p(θ) for the whole data set.
        seconds: of the processor, the most that `run` takes.
        watch: is told every tenth step, and the end, without a log likelihood; it may stop the fit.

    Example: `Scoring(model, data, key=jax.random.key(0)).run().model`.
    """

    def __init__(
        self,
        model: AnyModel,
        data: PyTree,
        *,
        key: Key[Array, ""],
        conditions: PyTree | None = None,
        log_prior: Callable[[Any], Array] | None = None,
        seconds: float = 60.0,
        watch: Watch | None = None,
    ):
        self.watch, self.rounds = watch or Watch(), 0
        theta, self.rest = eqx.partition(model, eqx.is_inexact_array)
        self.types = jax.tree.map(lambda a: a.dtype, theta)
        theta = jax.tree.map(lambda a: jnp.asarray(a, float), theta)
        flat, self.unravel = ravel_pytree(theta)
        self.theta, self.p = np.asarray(flat, np.float64), flat.size
        self.still = np.ones(self.p, bool)
        self.began, self.limit = process_time(), seconds
        self.tolerance, self.log = 0.02, []
        self.conditioned = conditions is not None
        data = jax.tree.map(_double, (conditions, data) if self.conditioned else data)
        rows = np.asarray(flatten(jax.tree.map(jnp.asarray, data)))
        _, first, count = np.unique(rows, axis=0, return_index=True, return_counts=True)
        self.data = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[first]), data)
        self.total, self.entries = len(rows), rows.shape[1]
        self.share = jnp.asarray(count / self.total)
        self.rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
        prior = (lambda theta: log_prior(self.unflatten(theta))) if log_prior else None
        self.prior = jax.jit(jax.grad(prior)) if prior else None
        pairs = self.entries * (self.entries + 1) // 2 <= 500
        self.columns = Columns(pairs, 100, POSTERIOR, condition=self.some_conditions(POSTERIOR))
        self.compiled = {}
        self.plan()

    def some_conditions(self, number: int) -> Pooled | None:
        """So many conditions in the data's proportions, as near as may be; None without any."""
        if not self.conditioned:
            return None
        order = self.rng.permutation(len(self.share))
        ends = np.cumsum(np.asarray(self.share)[order])
        at = (np.arange(number) + self.rng.uniform()) / number * ends[-1]
        chosen = order[np.minimum(np.searchsorted(ends, at), len(order) - 1)]
        return Pooled(jax.tree.map(lambda c: c[chosen], self.data[0]))

    def unflatten(self, theta: Any) -> Any:
        """The model with these parameters."""
        return eqx.combine(self.unravel(theta), self.rest)

    def say(self, *words: object) -> None:
        """Note what a stage did."""
        self.log.append(f"{self.spent():6.1f} " + " ".join(str(w) for w in words))

    def spent(self) -> float:
        """Seconds of the processor so far."""
        return process_time() - self.began

    def late(self, share: float) -> bool:
        """Whether this share of the time is up, or the fit was stopped."""
        return self.watch.stopped or self.spent() > share * self.limit

    def tell(self, left: float, ended: bool = False) -> None:
        """Show who watches where θ stands, with the nats left."""
        if not self.watch.stopped:
            self.rounds += 1
            self.watch(Round(self.rounds, math.nan, self.fitted(), left, ended))

    def fitted(self) -> Any:
        """The model as it is now, its parameters as long as they came."""
        whole = self.unravel(jnp.asarray(self.theta))
        return eqx.combine(jax.tree.map(lambda a, t: a.astype(t), whole, self.types), self.rest)

    def plan(self) -> None:
        """The columns of each group and of each candidate, the simplest first."""
        frame = Frame(*(jnp.ones(self.entries) for _ in range(4)), jnp.zeros(()), jnp.ones(()))  # pyright: ignore
        few = jax.tree.map(lambda a: a[:1], self.data)
        shapes = jax.eval_shape(lambda: self.columns.groups(self.unflatten(self.theta), few, frame))
        self.at, start = {}, 0
        for name, shape in shapes.items():
            self.at[name] = np.arange(start, start + shape.shape[1])
            start += shape.shape[1]
        zero, one = np.zeros(start), np.ones(start)
        self.frame = Frame(*(np.asarray(a) for a in frame[:4]), zero, one)  # pyright: ignore
        plain = [g for g in ("entries", "statistics") if g in self.at]
        pairs = [g for g in ("products",) if g in self.at]
        wanted = {
            "linear": plain,
            "products": plain + pairs if pairs else None,
            "posterior": [*plain, "posterior"] if "posterior" in self.at else None,
            "waves": [*plain, *pairs, "waves0"],
            "all": list(self.at),
        }
        self.candidates = {
            f"{name} {ridge:g}": (np.concatenate([self.at[g] for g in groups]), ridge)
            for name, groups in wanted.items()
            if groups
            for ridge in RIDGES
        }

        def finer(a: str, b: str) -> bool:
            (columns, ridge), (others, other) = self.candidates[a], self.candidates[b]
            return a != b and ridge >= other and set(columns) <= set(others)

        self.finer = {a: [b for b in self.candidates if finer(a, b)] for a in self.candidates}

    def look(self, posterior: bool = True, blocks: int = 1) -> list[Moments]:
        """Moments of fresh sleep samples at θ, a set for each block."""
        return [self.one(posterior) for _ in range(blocks)]

    def one(self, posterior: bool) -> Moments:
        """Moments of one block of fresh sleep samples."""
        posterior = posterior and "posterior" in self.at
        d = len(self.frame.location) - (
            0 if posterior or "posterior" not in self.at else len(self.at["posterior"])
        )
        if posterior not in self.compiled:
            columns = replace(self.columns, posterior=self.columns.posterior if posterior else 0)
            self.compiled[posterior] = jax.jit(partial(moments, self.unflatten, columns, BLOCK))
        frame = self.frame._replace(location=self.frame.location[:d], scale=self.frame.scale[:d])
        key = jax.random.key(self.rng.integers(2**31))
        found, self.suggested = jax.tree.map(
            np.asarray,
            self.compiled[posterior](
                self.theta, key, frame, self.data, self.share, self.some_conditions(BLOCK)
            ),
        )
        self.still &= np.diag(found.s_s) == 0
        return found

    def reframe(self) -> None:
        """Constants of the features anew, from sleep samples at θ."""
        self.one(True)
        self.frame = self.suggested._replace(
            location=np.zeros_like(self.frame.location), scale=np.ones_like(self.frame.scale)
        )
        self.one(True)
        self.frame = self.suggested

    def stale(self, m: Moments) -> bool:
        """Whether entries have moved out of the frame."""
        e = self.at["entries"]
        deviation = np.sqrt(np.maximum(np.diag(m.phi_phi)[e] - m.phi[e] ** 2, 0))
        narrow = (deviation < 0.5) & (deviation > 1e-6)  # but no constant
        return bool((np.abs(m.phi[e]) > 1).any() or (deviation > 2).any() or narrow.any())

    def ran_off(self, m: Moments) -> bool:
        """Whether θ has gone where draws have no finite scores, or none that tell anything."""
        arrays = (m.phi, m.s_s, m.phi_phi, m.target, m.slope)
        return not (all(np.isfinite(a).all() for a in arrays) and m.bad < 0.5 and m.s_s.any())

    def choose(self, blocks: int = 8) -> str:
        """The regression with the least bias² + noise of the mean gradient, in nats."""
        self.reframe()
        return self.compare(self.look(True, blocks), 50)[0]

    def compare(self, runs: list[Moments], steps: int) -> tuple[str, dict, Metric]:
        """Lepski's choice of a regression, and of each its nats left, bias² and noise.

        All are fitted to the same draws. Against each finer one r (more columns, less ridge)

            bias_c² = max_r (½ M‖ĝ_c − ĝ_r‖² in I⁻¹ − its noise)₊,

        so that a fine one drowned in its noise accuses none. Regressions in whose features the
        data's means are further off than a few deviations of one draw extrapolate, and are left
        out; not along paths, where a far mean is a reason to go on. The noise, from replicates that
        leave out a quarter of the draws in turn, counts as that of a mean over so many `steps` of a
        fit, or as it is if that is 0.
        """
        parts = [pool(runs[i::4]) for i in range(4)]
        sets = [pool(runs), *(pool(parts[:i] + parts[i + 1 :]) for i in range(4))]
        fits = {n: [Fitted(m, *c) for m in sets] for n, c in self.candidates.items()}
        far = {
            n: max(f.distance(m) for f, m in zip(fs, sets, strict=True)) for n, fs in fits.items()
        }
        near = [
            n
            for n in fits
            if self.columns.paths
            or far[n] < max(5 + 2 * fits[n][0].freedom / self.total, 4 * min(far.values()))
        ]
        metric = Metric(fits[near[-1]][0], self.total, prior=self.slope())
        self.least_told = float(metric.share.min())
        self.known = max(self.known, int(metric.known.sum()))
        g = {
            n: np.array([metric.gradient(f, m) for f, m in zip(fs, sets, strict=True)])
            for n, fs in fits.items()
        }

        def noise(g: np.ndarray) -> float:
            return 9 / 4 * metric.noise(g[1:])

        table = {}
        for n in near:
            against = [
                (metric.nats(g[n][0] - g[r][0]), noise(g[n] - g[r]))
                for r in self.finer[n]
                if r in near
            ]
            bias = max((max(d - 2 * e, 0.0) for d, e in against), default=0.0)
            unseen = min((e for _, e in against), default=0.0)
            table[n] = {
                "nats": metric.nats(g[n][0]),
                "bias": bias,
                "noise": noise(g[n]),
                "unseen": unseen,
                "distance": fits[n][0].distance(sets[0]),
                "freedom": fits[n][0].freedom,
            }
        draws = sets[0].number / BLOCK
        shrink = {n: draws / self.size(n) / steps if steps else 1.0 for n in table}
        scores = {n: t["bias"] + shrink[n] * t["noise"] for n, t in table.items()}
        least = min(scores.values())
        chosen = next(n for n in scores if scores[n] <= 1.3 * least + 0.1 * self.tolerance * self.p)
        found = {n: f"{t['bias']:.2g}+{t['noise']:.2g}" for n, t in table.items()}
        self.say("choose", chosen, found, f"distance {table[chosen]['distance']:.3g}")
        return chosen, table, metric

    def slope(self) -> np.ndarray | None:
        """∇ log p(θ), if there is such a prior."""
        return None if self.prior is None else np.asarray(self.prior(self.theta), np.float64)

    def size(self, name: str) -> int:
        """Blocks a step takes."""
        return int(np.clip(np.ceil(2 * len(self.candidates[name][0]) / BLOCK), 1, 4))

    def first_choice(self) -> str:
        """The first regression; along the simulator's paths where scores tell too little."""
        self.radius, self.held, self.runaways, self.known = 0.5, self.theta, 0, 0
        name = self.choose()
        told = self.least_told > LITTLE
        if told or self.p > MOST_PATHS or self.conditioned:
            return name
        before = self.columns
        self.columns, self.compiled = replace(before, posterior=0, paths=True), {}
        self.plan()
        self.reframe()
        if self.paths_agree(self.look(False, 8)):
            self.say("along the simulator's paths")
        else:
            self.columns, self.compiled = before, {}
            self.plan()
        self.known = 0
        return self.choose()

    def paths_agree(self, runs: list[Moments]) -> bool:
        """Whether ∇_θ E[φ] along paths is what Cov(φ, s) says, as far as its noise lets one see."""
        slopes = np.array([m.slope for m in runs])
        if not (np.isfinite(slopes).all() and slopes.any(axis=(0, 1)).all()):
            return False
        by_scores = np.array([m.phi_s - np.outer(m.phi, m.s) for m in runs])
        apart = by_scores - slopes
        t = apart.mean(axis=0) / (apart.std(axis=0, ddof=1) / len(runs) ** 0.5 + 1e-12)
        self.say("paths and scores differ by", f"{(t**2).mean(axis=0).max():.3g}")
        return bool((t**2).mean(axis=0).max() < 4)

    def run(self) -> Scored:
        """Choose a regression, search, average, judge; again while time is left."""
        name, verdict = self.first_choice(), Verdict(0.0, np.inf, False, "no time was left")
        for _ in range(4):
            for _ in range(3):
                self.search(name)
                better = self.choose()
                if better == name or self.late(0.5):
                    break
                name, self.radius = better, max(self.radius, 0.2)
            self.average(name)
            verdict, name, noise = self.judge(name)
            self.say("verdict", verdict)
            if self.late(0.7) or verdict.left < max(self.tolerance * self.p, noise):
                break
        self.tell(verdict.left, ended=True)
        return Scored(self.fitted(), verdict, name, self.log, self.rounds, self.still)

    def verdict(self) -> Verdict:
        """The verdict on the model as it came, without a step."""
        return self.judge(self.first_choice())[0]

    def steps(self, name: str, rate: float) -> Iterator[tuple]:
        """Endless (moments, fitted, metric, gradient), B averaged over the last 1/rate steps."""
        posterior = name.split()[0] in ("posterior", "all")
        count, average, metric, nearest = 0, None, None, np.inf
        far = False
        while True:
            m = pool(self.look(posterior, self.size(name)))
            if self.ran_off(m) or far:
                self.say("ran off", f"bad {m.bad:.2f}")
                far = False
                self.theta, self.radius = self.held, 0.3 * self.radius
                self.runaways += 1
                if self.runaways > 5:
                    return
                self.reframe()
                m, average, count = pool(self.look(posterior, self.size(name))), None, 0
            if self.stale(m):
                self.reframe()
                m, average, count = pool(self.look(posterior, self.size(name))), None, 0
            now = max(1 / (count + 1), rate)
            average = m if average is None else _mix(average, m, now)
            n = m.number * min(count + 1, 2 / rate - 1)
            count += 1
            fitted = Fitted(average._replace(number=n), *self.candidates[name])
            if metric is None or count < 3 or count % max(1, self.p // MANY) == 0:
                metric = Metric(fitted, self.total, prior=self.slope())
            distance = fitted.distance(m)
            far = distance > 10 * nearest + 20
            if count % 5 == 0 and distance < 2 * min(nearest, distance):
                self.held, nearest = self.theta, min(nearest, distance)
            yield m, fitted, metric, metric.gradient(fitted, m)

    def doubt(self, fitted: Fitted, m: Moments) -> float:
        """The noise of B in ĝ, in units of √I_c: below it no direction has its full length."""
        return math.sqrt(fitted.distance(m) / fitted.number)

    def search(self, name: str) -> None:
        """Fisher's scoring in a trust region until the gradients of ten steps cancel into noise."""
        last, recent, signal, t = None, [], np.inf, 0
        for t, (m, fitted, metric, g) in enumerate(self.steps(name, 0.2)):
            if not np.isfinite(g).all():
                self.say("not finite at step", t)
                break
            step = metric.step(g, 0.02 + self.doubt(fitted, m), self.radius)
            length, move = np.linalg.norm(step), metric.basis @ step
            if last is not None:
                a, b = metric.back.T @ move, metric.back.T @ last
                cosine = a @ b / math.sqrt((a @ a) * (b @ b) + 1e-300)
                if length > 0.999 * self.radius and cosine > 0.5:
                    self.radius = min(1.5 * self.radius, 5.0)
                if cosine < -0.3:
                    self.radius = max(0.7 * self.radius, 0.05)
            last, self.theta = move, self.theta + move
            recent = [*recent[-9:], m]
            if t >= 14 or t % 20 == 0:
                gs = np.array([metric.gradient(fitted, r) for r in recent])
                signal, noise = metric.nats(gs.mean(axis=0)), metric.wobble(gs) / len(gs)
                if t % 20 == 0:
                    told = f"signal {signal:.3g} noise {noise:.3g} length {length:.3g}"
                    self.say("search", name, t, told, f"radius {self.radius:.3g}")
                if t >= 14 and (signal < 2 * noise or signal < 0.1 * self.tolerance * self.p):
                    break
            if t % 10 == 9:
                self.tell(signal)
            if self.late(0.6):
                break
        self.say("search", name, "ended at step", t, f"radius {self.radius:.3g}")

    def average(self, name: str) -> None:
        """Robbins and Monro's steps of t^-0.6, their mean over the later two thirds.

        Until the noise of the mean gradient over these steps is below a quarter of the tolerance.
        """
        path, recent, noise, t = [self.theta], [], np.nan, 0
        for t, (m, fitted, metric, g) in enumerate(self.steps(name, 0.05)):
            step = metric.step(g, 0.01 + self.doubt(fitted, m), 2 * self.radius) * (t + 2) ** -0.6
            self.theta = self.theta + metric.basis @ step
            path.append(self.theta)
            recent = [*recent[-29:], m]
            late = self.late(0.8)
            if t >= 9 and (t % 10 == 9 or late):
                gs = np.array([metric.gradient(fitted, r) for r in recent])
                noise = metric.wobble(gs) / (2 * t / 3)
                self.tell(noise)
                if (t >= 29 and noise < 0.25 * self.tolerance * self.p) or late or t > 600:
                    break
        self.theta = np.mean(path[len(path) // 3 :], axis=0)
        self.say("average", name, "ended at step", t, f"noise {noise:.3g}")

    def judge(self, name: str, blocks: int = 16) -> tuple[Verdict, str, float]:
        """The nats left by the best regression of many draws, its name, and its noise."""
        self.reframe()
        runs = self.look(True, blocks)
        chosen, table, metric = self.compare(runs, 0)
        best = table[chosen]
        noise, free = best["noise"], max(int(metric.known.sum()), 1)
        left = max(best["nats"] - noise, 0.0)
        spread = 2 * math.sqrt(noise * noise / free + 2 * noise * left)
        most = left + spread + noise + best["bias"] + best["unseen"]
        why = ""
        if not (np.isfinite(left) and np.isfinite(most)):
            why = "the gradient is not finite"
        elif not metric.known.any():
            why = "the data tell nothing of the parameters here"
        elif free < 0.9 * self.known:
            gone = self.known - free
            why = f"the data no longer tell of {gone} directions that they told of before"
        trusted = not why and most < 0.15 * free
        return Verdict(float(left), float(most), bool(trusted), why), chosen, noise


def _mix(old: Moments, new: Moments, rate: float) -> Moments:
    return jax.tree.map(lambda a, b: a + rate * (b - a), old, new)


def _double(a: Any) -> np.ndarray:
    a = np.asarray(a)
    return a.astype(np.float64) if np.issubdtype(a.dtype, np.floating) else a


def impossible(
    model: AnyModel, data: PyTree, key: Key[Array, ""], draws: int = 1000, most: int = 500
) -> int:
    """How many of the first `most` data have no density with any of so many simulated latents.

    The regression never asks for the density of the data themselves, so it would not notice.

    Example: `impossible(model, data, jax.random.key(0))` is 0 for data that the model can make.
    """
    z = draw(model, key, draws)[0].z
    own = jax.eval_shape(lambda k: sample(model, k).x, key)
    some = jax.tree.map(lambda a, x: jnp.asarray(np.asarray(a)[:most], x.dtype), data, own)

    @jax.jit
    def none(z: PyTree, x: PyTree) -> Array:
        return jax.lax.map(lambda x: ~_finite(model, z, x).any(), x, batch_size=64).sum()

    return int(none(z, some))


def _finite(model: AnyModel, z: PyTree, x: PyTree) -> Array:
    return jnp.isfinite(jax.vmap(lambda z: log_joint(model, z, x))(z))
