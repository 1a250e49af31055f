"""The maximum of the likelihood of sequences, every term's score regressed on a window of the data.

`Scoring` with the times of sequences in the place of observations. With s_t the score of the term
of time t and φ features of the window around t,

    B = Cov(φ)⁻¹ Cov(φ, s),   ĝ = Σ_t Bᵀ(φ*_t − φ̄) + …,   I = Cov(Σ_t Bᵀφ_t)/times,

the information being that of sums over stretches of time, whose terms depend on each other. The
means φ̄* over the data are taken once for all steps. What a step costs does not grow with the
sequence: it simulates stretches, each with a run-in of times that are thrown away, as long as it
takes the model to forget how it started. Of a model that does not forget, such as a random walk,
and of short sequences, it simulates whole sequences. States that follow from their noise are made
anew within each stretch, gradients through time flow from the beginning of its run-in.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from alws.maximum.maximise import Found, NotIntegrable
from alws.maximum.scoring import (
    BLOCK,
    RIDGES,
    Columns,
    Fitted,
    Frame,
    Metric,
    Moments,
    Scored,
    Scoring,
    entries_frame,
    pool,
)
from alws.maximum.verdict import Verdict
from alws.state_space.likelihood import sequence_log_likelihood
from alws.state_space.model import Given, StateSpace, with_times
from alws.state_space.windows import View, view_windows

MOST_PARAMETERS = 200
"""How many parameters a model may have: the score of every term is computed."""

FIRST_WINDOWS = (2, 4, 8)
"""The first windows that are compared, narrowest first."""

WIDEST_WINDOW = 64
"""The widest that are tried, in times on either side."""

MOST_PRODUCTS = 300
"""How many products of entries are features; those nearest the middle of the window."""

MIDDLE, MOST_MIDDLE = 2, 6
"""Products of x at so many times around, or so few entries, differ at the ends."""

MOST_ENTRIES = 160
"""The most entries that a window may have."""

MOST_FILTERED, PARTICLES = 2000, 2048
"""Of how many times in all the log likelihood of a fit is worked out, and by how many particles."""

RUN_INS = (16, 32, 64, 128, 256)
"""Run-ins that are tried."""


def climb_windows(
    model: StateSpace,
    x: PyTree[Array],
    given: Given | None,
    *,
    key: Key[Array, ""],
    log_prior: Callable[[Any], Array] | None = None,
    seconds: float = 120.0,
) -> Found:
    """Fit sequences by `WindowScoring` in float64; the log likelihood found is that of particles.

    Arguments:
        model, x, given, key, log_prior, seconds: as `climb_filtered` takes them.

    Example: `climb_windows(model, x, None, key=jax.random.key(0)).verdict`.
    """
    with jax.enable_x64(True):
        scoring = WindowScoring(model, x, given, key=key, log_prior=log_prior, seconds=seconds)
        try:
            done = scoring.run()
        except np.linalg.LinAlgError as error:
            raise NotIntegrable(f"the scores of times cannot be regressed: {error}") from error
        few = scoring.total <= MOST_FILTERED
        value, error = by_particles(done.model, scoring, key) if few else (math.nan, math.nan)
        start, doubt = by_particles(model, scoring, key) if few else (-math.inf, 0.0)
    method = f"regression of the scores of times on windows ({done.chosen})"
    began = start - 4 * doubt
    if not few:
        raise NotIntegrable(f"no likelihood of {scoring.total} times checks a fit by windows")
    if not value > began:
        raise NotIntegrable(f"a fit by windows ended at {value:.1f}, below its start, {start:.1f}")
    told = np.zeros(0), done.verdict, scoring.p, method, len(done.log), done.log
    return Found(done.model, value, error, *told, began)


def by_particles(
    model: StateSpace, scoring: "WindowScoring", key: Key[Array, ""]
) -> tuple[float, float]:
    """log p of all sequences of a fit and its standard error; NaN where no particle explains one.

    Example: `by_particles(done.model, scoring, jax.random.key(0))`.
    """
    given = scoring.given if jax.tree.leaves(scoring.given) else None
    value, error, _ = sequence_log_likelihood(model, scoring.x, given, key=key, particles=PARTICLES)
    every, spread = float(value.sum()), float(np.sqrt((error**2).sum()))
    return (every, spread) if math.isfinite(every) else (math.nan, math.nan)


# Features of windows ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Entries:
    """What stands in a window of w times on either side, and how wide one must be to have it.

    x is taken off its value in the middle, so that where the sequence wanders to is one entry.
    """

    window: int
    times: int

    def __call__(self, view: View) -> Float[Array, "at entries"]:
        """All entries of the windows, side by side."""
        return jnp.concatenate([part for part, _ in self._parts(view)], axis=1)

    def reach(self, view: View) -> np.ndarray:
        """The least window that has each entry; ends and what is missing are negative − 1."""
        return np.concatenate([reach for _, reach in self._parts(view)])

    def middle(self, view: View) -> np.ndarray:
        """The positions of x at the times nearest the middle."""
        numbers = sum(leaf[0].size for leaf in jax.tree.leaves(view.x))
        reach = self.reach(view)[:numbers]
        near = np.flatnonzero((reach >= 0) & (reach <= MIDDLE))
        return near[np.argsort(reach[near], kind="stable")[:MOST_MIDDLE]]

    def ends(self, view: View) -> np.ndarray:
        """The positions of the flags of the times nearest the ends."""
        parts, start, found = self._parts(view), 0, []
        for part, reach in parts:
            if part.shape[1] == 1 and -2 - MIDDLE <= reach[0] <= -2:
                found.append(start)
            start += len(reach)
        return np.array(found, int)

    def _parts(self, view: View) -> list[tuple[Array, np.ndarray]]:
        at, w = len(view.inside), self.window
        lags = np.abs(np.arange(-w, w + 1))
        parts = []
        for leaf in jax.tree.leaves(view.x):
            x = leaf.reshape(at, 2 * w + 1, -1).astype(float)
            middle = jnp.where((lags == 0)[:, None], 0.0, x[:, w : w + 1])
            parts.append(((x - middle).reshape(at, -1), np.repeat(lags, x.shape[2])))
        for leaf in jax.tree.leaves(view.control):
            u = leaf.reshape(at, 2 * w + 1, -1).astype(float)
            parts.append((u.reshape(at, -1), np.repeat(lags, u.shape[2])))
        for side in (view.inside[:, :w], view.inside[:, w + 1 :]):
            there, low = side.sum(axis=1), 0
            while low < w:
                high = max(2 * low, 1)
                near = (there >= low) & (there < high) & (there < w)
                parts.append((near[:, None].astype(float), np.array([-low - 2])))
                low = high
        if view.observed is not None:
            parts.append((view.observed, -lags - 1))
        return parts


@dataclass(frozen=True)
class Plan:
    """Which features there are: entries, products of pairs of them, waves of each window."""

    entries: Entries
    windows: tuple[int, ...]
    reach: np.ndarray
    pairs: tuple[np.ndarray, np.ndarray]
    at_ends: tuple[np.ndarray, np.ndarray, np.ndarray]
    waves: int

    @classmethod
    def make(cls, entries: Entries, windows: tuple[int, ...], view: View) -> "Plan":
        """Products of x and u with all entries, the nearest to the middle first.

        Those of x in the middle also by themselves at each of the times nearest the ends.
        """
        reach = entries.reach(view)
        rows, others = np.triu_indices(len(reach))
        some = (reach[rows] >= 0) | (reach[others] >= 0)
        rows, others = rows[some], others[some]
        far = np.abs(reach[rows]) + np.abs(reach[others])
        first = np.sort(np.argsort(far, kind="stable")[:MOST_PRODUCTS])
        inner, ends = entries.middle(view), entries.ends(view)
        a, b = (inner[i] for i in np.triu_indices(len(inner)))
        triples = np.tile(a, len(ends)), np.tile(b, len(ends)), np.repeat(ends, len(a))
        return cls(entries, windows, reach, (rows[first], others[first]), triples, 100)

    def groups(self, view: View, frame: Frame) -> dict[str, Float[Array, "at _"]]:
        """φ of every window, a matrix for each group."""
        entries = self.entries(view)
        u = (entries - frame.mean) / frame.deviation
        found = {"entries": u, "products": u[:, self.pairs[0]] * u[:, self.pairs[1]]}
        a, b, end = self.at_ends
        found["ends"] = u[:, a] * u[:, b] * entries[:, end]
        flat = jnp.arcsinh((entries - frame.median) / frame.width)
        for w in self.windows[-2:]:
            near = self.near(self.reach, w)
            omega, shift = Columns(False, self.waves, 0).frequencies(len(near), w)
            found[f"waves {w}"] = jnp.cos(flat[:, near] @ omega + shift)
        return found

    def near(self, reach: np.ndarray, window: int) -> np.ndarray:
        """The positions of what a window has."""
        return np.flatnonzero(np.where(reach < 0, -reach - 1, reach) <= window)

    def candidates(self, at: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The columns of each regression: entries, products and waves of each window."""
        rows, others = (self.near_of(p) for p in self.pairs)
        found = {}
        for w in self.windows:
            entries = at["entries"][self.near(self.reach, w)]
            products = at["products"][(rows <= w) & (others <= w)]
            ends = at["ends"][np.max([self.near_of(p) for p in self.at_ends], axis=0) <= w]
            products = np.concatenate([products, ends])
            found[f"linear {w}"] = entries
            found[f"products {w}"] = np.concatenate([entries, products])
            if f"waves {w}" in at:
                waves = [at[f"waves {v}"] for v in self.windows[-2:] if v <= w]
                found[f"waves {w}"] = np.concatenate([entries, products, *waves])
        return found

    def near_of(self, positions: np.ndarray) -> np.ndarray:
        """How wide a window must be to have these entries."""
        reach = self.reach[positions]
        return np.where(reach < 0, -reach - 1, reach)


# Stretches --------------------------------------------------------------------------------------


class Stretches(NamedTuple):
    """Which sequence each simulated stretch belongs to, where it begins, and what its times weigh.

    A weight is 0 at times that do not count, those of a run-in and those without a whole window.
    """

    sequence: np.ndarray
    begin: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class Layout:
    """How the times of sequences are covered by stretches of `length` times.

    Arguments:
        lengths: how many times of each sequence count.
        length: the times of a stretch; those of the longest sequence for whole ones.
        run_in: how many times at its beginning do not count, where it does not begin the sequence.
        window: how many times on either side a window has.
    """

    lengths: np.ndarray
    length: int
    run_in: int
    window: int
    ENDS = (0.2, 0.1)

    def draw(self, rng: np.random.Generator, number: int) -> Stretches:
        """Stretches that together weigh every time of the data the same, on average."""
        total = self.lengths.sum()
        cuts = (np.arange(number) + rng.uniform()) / number * total
        sequence = np.searchsorted(np.cumsum(self.lengths), cuts, side="right")
        last = np.maximum(self.lengths[sequence] - self.length, 0)
        kind = rng.permutation((np.arange(number) + rng.uniform()) / number)
        first, final = self.ENDS
        begin = np.where(
            kind < first + final, last, np.floor(rng.uniform(size=number) * (last + 1))
        )
        begin = np.where(kind < first, 0, begin).astype(int)
        local = np.arange(self.length)
        absolute = begin[:, None] + local
        lengths = self.lengths[sequence]
        counts = (absolute < lengths[:, None]) & (
            (begin[:, None] == 0) | (local >= self.run_in + self.window)
        )
        ends = (begin + self.length >= lengths)[:, None]
        counts &= ends | (local < self.length - self.window)
        covered = self.coverage(lengths[:, None], absolute)
        share = lengths[:, None] / total
        weight = np.where(counts, 1 / (number * total * share * np.maximum(covered, 1e-12)), 0.0)
        return Stretches(sequence, begin, weight)

    def coverage(self, lengths: np.ndarray, time: np.ndarray) -> np.ndarray:
        """How often a stretch of a sequence counts this time."""
        first, final = self.ENDS
        last = lengths - self.length
        start, stop = self.run_in + self.window, self.length - self.window
        at_first = time < stop
        at_final = time >= last + start
        low, high = np.maximum(time - stop + 1, 1), np.minimum(time - start, last - 1)
        inner = np.maximum(high - low + 1, 0) + at_first + at_final
        some = first * at_first + final * at_final
        some = some + (1 - first - final) * inner / np.maximum(last + 1, 1)
        return np.where(last <= 0, 1.0, some)


class WindowScoring(Scoring):
    """A fit of sequences by Fisher's scoring, scores of times regressed on windows.

    Arguments:
        model: the model at its start.
        x: the sequences as leading axis, then time.
        given: their conditions, or None.
        key: on which all random numbers depend.
        log_prior: log p(θ) for the whole data set.
        seconds: of the processor, the most that `run` takes.
        windows: the windows compared first, narrowest first; found as the fit goes.

    Example: `WindowScoring(model, x, None, key=jax.random.key(0)).run().model`.
    """

    FOLLOWS_PATHS = False

    def __init__(
        self,
        model: StateSpace,
        x: PyTree,
        given: Given | None,
        *,
        key: Key[Array, ""],
        log_prior: Callable[[Any], Array] | None = None,
        seconds: float = 60.0,
        windows: tuple[int, ...] = FIRST_WINDOWS,
    ):
        numbers = sum(a.size for a in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
        if numbers > MOST_PARAMETERS:
            raise NotIntegrable(f"the scores of {numbers} parameters at each time are too many")
        self.x = jax.tree.map(jnp.asarray, x)
        self.given = Given() if given is None else jax.tree.map(jnp.asarray, given)
        self.sequences, self.times = jax.tree.leaves(self.x)[0].shape[:2]
        self.windows = fitting_windows(windows, self.x, self.given)
        self.lengths = observed_lengths(self.given.observed, self.sequences, self.times)
        super().__init__(model, self.x, key=key, log_prior=log_prior, seconds=seconds)

    def plan(self) -> None:
        """Columns for the present windows; stretches for the widest of them."""
        self.total = int(self.lengths.sum())
        self.known, self.compiled = 0, {}
        self.widest = self.windows[-1]
        self.entries_of = Entries(self.widest, self.times)
        view = self.some_views()
        self.features = Plan.make(self.entries_of, self.windows, view)
        self.entries = len(self.features.reach)
        ones = np.ones(self.entries)
        frame = Frame(*(ones for _ in range(4)), np.zeros(()), np.ones(()))  # pyright: ignore
        shapes = jax.eval_shape(lambda: self.features.groups(view, frame))
        self.at, start = {}, 0
        for name, shape in shapes.items():
            self.at[name] = np.arange(start, start + shape.shape[1])
            start += shape.shape[1]
        self.frame = Frame(*frame[:4], np.zeros(start), np.ones(start))  # pyright: ignore
        self.candidates = {
            f"{name} {ridge:g}": (columns, ridge)
            for name, columns in self.features.candidates(self.at).items()
            for ridge in RIDGES
        }
        self.finer = finer_than(self.candidates)
        self.run_in = self.settle()
        self.layout = self.lay_out()
        self.means, self.framed = np.zeros(start), None

    def lay_out(self) -> Layout:
        """Stretches with a run-in, or whole sequences."""
        counted = max(16, 4 * self.widest)
        length = 0 if self.run_in is None else self.run_in + counted + 2 * self.widest
        whole = self.run_in is None or self.times <= 2 * length
        length = self.times if whole else length
        self.say("stretches of", length, "run-in", 0 if whole else self.run_in)
        layout = Layout(self.lengths, length, 0 if whole else self.run_in or 0, self.widest)
        useful = counted if not whole else float(np.mean(self.lengths))
        self.each = max(32, math.ceil(BLOCK / useful))
        return layout

    def some_views(self) -> View:
        """The windows around the first times of the first sequence."""
        x, given = jax.tree.map(lambda a: a[0], (self.x, self.given))
        return view_windows(x, given.control, given.observed, self.widest, jnp.arange(2))

    # Whether the model forgets -------------------------------------------------------------------

    def settle(self) -> int | None:
        """A run-in after which what is simulated does not tell how it began; None if there is none.

        The same times are simulated with a run-in and with one four times as long. Where x, and how
        large it and the scores are, agree within noise, a few times that run-in is taken: what is
        left of the start then falls from that noise to less than the data can tell.
        """
        for run_in in RUN_INS:
            span = 4 * run_in + 16
            if span > self.times // 2:
                return None
            if self.forgets(run_in, span):
                return run_in * max(2, math.ceil(0.5 + 0.5 * math.log10(self.total)))
        return None

    def forgets(self, run_in: int, span: int, number: int = 400) -> bool:
        """Whether the last 16 of `span` times look the same after this run-in alone."""
        begin = self.rng.integers(0, self.times - span + 1, number)
        sequence = self.rng.integers(0, self.sequences, number)

        def summaries(late: int) -> np.ndarray:
            length = span - late
            keys = jax.random.split(jax.random.key(self.rng.integers(2**31)), number)
            run = jax.jit(partial(self.simulate, length))
            x, s = run(self.theta, keys, sequence, begin + late)[:2]
            x = np.asarray(flatten_times(x))[:, -16:]
            s = np.asarray(s)[:, -16:]
            return np.concatenate([x, np.log1p(x**2), np.log1p(s**2)], axis=2).mean(axis=1)

        long, short = summaries(0), summaries(span - run_in - 16)
        spread = np.sqrt((long.var(axis=0) + short.var(axis=0)) / number) + 1e-12
        off = np.abs(long.mean(axis=0) - short.mean(axis=0)) / spread
        return bool(np.isfinite(off).all() and off.max() < 4)

    def simulate(
        self, length: int, theta: Array, keys: Array, sequence: Array, begin: Array
    ) -> tuple[PyTree, Float[Array, "number times p"], Given]:
        """Stretches x, the scores of their terms and their conditions."""

        def whole(theta: Array) -> StateSpace:
            return with_times(eqx.combine(self.unravel(theta), self.rest), length)

        def one(key: Array, sequence: Array, begin: Array) -> tuple[PyTree, Array, Given]:
            given = jax.tree.map(
                lambda a: jax.lax.dynamic_slice_in_dim(a[sequence], begin, length), self.given
            )
            z, x = whole(theta).sample(key, given)
            s = jax.jacfwd(lambda theta: whole(theta).terms(z, x, given))(theta)
            return x, s, given

        return jax.vmap(one)(keys, sequence, begin)

    # Moments -------------------------------------------------------------------------------------

    def one(self, posterior: bool) -> Moments:
        """Moments of one block of fresh stretches."""
        if "moments" not in self.compiled:
            self.compiled["moments"] = jax.jit(self.moments)
            self.compiled["means"] = jax.jit(self.data_means)
        drawn = self.layout.draw(self.rng, self.each)
        keys = jax.random.split(jax.random.key(self.rng.integers(2**31)), self.each)
        if self.framed is None or self.frame.mean is not self.framed.mean:
            self.means = np.asarray(self.compiled["means"](self.frame))
            self.framed = self.frame
        found, self.suggested = jax.tree.map(
            np.asarray, self.compiled["moments"](self.theta, keys, *drawn, self.frame)
        )
        return found._replace(target=(self.means - self.frame.location) / self.frame.scale)

    def moments(
        self,
        theta: Array,
        keys: Array,
        sequence: Array,
        begin: Array,
        weight: Float[Array, "number times"],
        frame: Frame,
    ) -> tuple[Moments, Frame]:
        """Moments of the windows of some stretches, and the frame they suggest."""
        x, s, given = self.simulate(self.layout.length, theta, keys, sequence, begin)
        views = jax.vmap(lambda x, g: view_windows(x, g.control, g.observed, self.widest))(x, given)
        number, times = weight.shape
        views = jax.tree.map(lambda a: a.reshape(number * times, *a.shape[2:]), views)
        s = s.reshape(number * times, -1)
        groups = self.features.groups(views, frame)
        raw = jnp.concatenate(list(groups.values()), axis=1)
        good = (jnp.isfinite(s).all(axis=1) & jnp.isfinite(raw).all(axis=1))[:, None]
        s, raw = jnp.where(good, s, 0.0), jnp.where(good, raw, 0.0)
        phi = (raw - frame.location) / frame.scale
        share = jnp.where(good[:, 0], weight.ravel(), 0.0)
        whole = share.sum()
        share = share / whole
        root = jnp.sqrt(share).reshape(number, times)
        sums = jnp.einsum("nt,ntd->nd", root, phi.reshape(number, times, -1))
        roots = root.sum(axis=1)
        weighted = share[:, None] * phi
        counted = weight.ravel() > 0
        found = Moments(
            counted.sum().astype(s.dtype),
            1 - (good[:, 0] & counted).sum() / counted.sum(),
            weighted.sum(axis=0),
            share @ s,
            weighted.T @ phi,
            weighted.T @ s,
            (share[:, None] * s).T @ s,
            jnp.zeros(phi.shape[1]),
            sums.T @ sums,
            roots @ sums,
            (roots**2).sum(),
        )
        entries = jnp.where(good, self.entries_of(views), 0.0)
        centre = share @ raw
        scale = jnp.sqrt(jnp.maximum(share @ (raw - centre) ** 2, 0.0))
        scale = jnp.where(scale > 1e-12 * jnp.abs(raw).max(axis=0), scale, 1.0)
        return found, Frame(*entries_frame(entries), centre, scale)  # pyright: ignore

    def data_means(self, frame: Frame) -> Float[Array, " d"]:
        """φ̄* over all times of the data, so many at a time."""
        some = min(self.times, 1024)
        parts = math.ceil(self.times / some)
        times = np.arange(parts * some).reshape(parts, some)

        def part(item: tuple[Array, Array, Array]) -> Array:
            sequence, times, counted = item
            x, given = jax.tree.map(lambda a: a[sequence], (self.x, self.given))
            view = view_windows(
                x, given.control, given.observed, self.widest, jnp.minimum(times, self.times - 1)
            )
            groups = self.features.groups(view, frame)
            return counted @ jnp.concatenate(list(groups.values()), axis=1)

        sequence = np.repeat(np.arange(self.sequences), parts)
        everywhere = np.tile(times, (self.sequences, 1))
        counted = (everywhere < self.lengths[sequence][:, None]).astype(float)
        return jax.lax.map(part, (sequence, everywhere, counted)).sum(axis=0) / self.total

    # The fit -------------------------------------------------------------------------------------

    def run(self) -> Scored:
        """Choose windows and a regression, search, average, judge; wider while that helps."""
        self.begin()
        self.widen(self.choose())
        done = super().run()
        limit = self.limit
        while self.spent() < 0.5 * limit and self.widen(done.chosen):
            done = super().run()
        return done

    def verdict(self) -> Verdict:
        """The verdict on the model as it came, without a step."""
        self.begin()
        self.widen(self.choose())
        return self.judge(self.choose())[0]

    def begin(self) -> None:
        """What a choice of regression wants to be set."""
        self.radius, self.held, self.runaways, self.slow, self.known = 0.5, self.theta, 0, 1.0, 0

    def compare(self, runs: list[Moments], steps: int) -> tuple[str, dict, Metric]:
        """As `Scoring` does; the first steps lean on these draws, for stretches are few at once."""
        self.seen = pool(runs)
        return super().compare(runs, steps)

    def overlooked(self, fitted: Fitted, metric: Metric) -> float:
        """Nats that a regression misses of a move by a standard error: ½ Σ (1 − I_c/I)².

        Near a maximum all gradients are small, and a regression that tells nothing of some
        direction looks as good as any.
        """
        own = np.diag(metric.basis.T @ fitted.information @ metric.basis)[metric.known]
        return 0.5 * float(((1 - np.clip(own / metric.share[metric.known], 0, 1)) ** 2).sum())

    def widen(self, chosen: str) -> bool:
        """Wider windows as long as the regression chosen has the widest; whether there are any."""
        widened = False
        while int(chosen.split()[1]) == self.widest and self.spent() < 0.3 * self.limit:
            wider = fitting_windows((*self.windows[1:], 2 * self.widest), self.x, self.given)
            if wider[-1] <= self.widest:
                break
            self.windows, widened = wider, True
            self.plan()
            self.begin()
            chosen = self.choose()
        return widened

    def judge(self, name: str, blocks: int = 16) -> tuple[Verdict, str, float]:
        """The nats left, by as many draws as the data need; wider windows count as unseen."""
        begun = process_time()
        self.look(True, 1)
        lasts = max(process_time() - begun, 1e-3)
        wanted = 10 * self.total / BLOCK
        affordable = 0.3 * max(self.limit - self.spent(), 0.1 * self.limit) / lasts
        blocks = int(np.clip(min(wanted, affordable), blocks, 1000))
        verdict, chosen, noise = super().judge(name, blocks)
        run_in = self.layout.run_in
        span = min(4 * run_in + 16, self.times)
        if run_in and not self.forgets(run_in, span):
            why = "the model no longer forgets how it began within the stretches simulated"
            verdict = verdict._replace(trusted=False, why=why)
        return verdict, chosen, noise


def fitting_windows(windows: tuple[int, ...], x: PyTree, given: Given) -> tuple[int, ...]:
    """Those of the windows that are less than the sequence and have few enough entries.

    Example: `fitting_windows((2, 4, 8), x, Given())` is `(2, 4, 5)` for sequences of 6 times.
    """
    times = jax.tree.leaves(x)[0].shape[1]
    numbers = [math.prod(a.shape[2:]) for a in jax.tree.leaves((x, given))]
    most = max((MOST_ENTRIES // sum(numbers) - 1) // 2, 1)
    return tuple(sorted({min(w, times - 1, WIDEST_WINDOW, most) for w in windows}))


def observed_lengths(observed: Bool[Array, "n times"] | None, n: int, times: int) -> np.ndarray:
    """How many times of each sequence count: those up to the last that was observed.

    What comes after it the data do not tell of, and its scores are zero on average.

    Example: `observed_lengths(jnp.array([[True, False, True, False]]), 1, 4)` is `[3]`.
    """
    if observed is None:
        return np.full(n, times)
    seen = np.asarray(observed)
    return times - np.argmax(seen[:, ::-1], axis=1)


def finer_than(candidates: dict[str, tuple[np.ndarray, float]]) -> dict[str, list[str]]:
    """For each regression those that have all its columns and no more ridge."""
    sets = {name: (set(columns.tolist()), ridge) for name, (columns, ridge) in candidates.items()}
    return {
        a: [
            b
            for b, (others, other) in sets.items()
            if a != b and ridge >= other and columns <= others
        ]
        for a, (columns, ridge) in sets.items()
    }


def flatten_times(x: PyTree[Array]) -> Float[Array, "number times entries"]:
    """All entries of each time side by side."""
    leaves = jax.tree.leaves(x)
    flat = [a.reshape(*a.shape[:2], -1).astype(float) for a in leaves]
    return jnp.concatenate(flat, axis=2)


__all__ = ["WindowScoring", "climb_windows", "fitting_windows", "observed_lengths"]
