"""The maximum of the likelihood of sequences that no filter computes, climbed by particles.

    ĝ(θ) = mean of R scores by N particles,   I = Σ_t s_t s_tᵀ from pairs of repeats

The score of a filter of particles (`alws.state_space.particles`) is noisy, and biased by 1/N. What
it tells is measured in nats: a gradient g is worth ½ gᵀI⁻¹g. The information is that of the scores
of increments, whose products are taken between repeats, for their noise is independent.

1. With few particles steps I⁻¹ĝ are taken, as far as log p̂ follows, until they are lost in noise.
2. Half as long steps are then taken and θ averaged, until the noise of the average is small.
3. Eight times as many particles judge where that ended. If they find a slope, they go on from 1.

Of n times a climb ends ½ p T/n nats below the maximum of all T, and the noise of a gradient, in
nats, is that of any length, while their bias grows. So stage 1 of long series is first that of
some stretches, then of seven times as many, then of the whole; and instead of stage 2 a few steps
are taken by what the many particles of stage 3 find. A stretch is filtered after a run-in, whose
times count nothing; a model that does not forget within it how it began is climbed at the
beginning of the series instead.

How long paths are looked back at (λ) is chosen by all gradients since stage 2 began: the shortest
that no longer one contradicts.
"""

from collections.abc import Callable
from time import process_time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from alws.maximum.climb import Metric
from alws.maximum.maximise import Found, NotIntegrable, Round, Watch
from alws.maximum.starts import SPREAD, Maxima, distinct_maxima, height
from alws.maximum.verdict import Verdict
from alws.state_space.likelihood import combined
from alws.state_space.model import Given, StateSpace
from alws.state_space.particles import particle_scores

MOST_PARAMETERS = 200
"""How many parameters a model may have: every particle carries a score."""

KEEPS = (0.8, 0.92, 0.97, 0.99, 0.997)
"""The shares of a path's score that are kept from one time to the next."""

REPEATS = 4
"""How many filters make a gradient."""

FEWEST, MORE, MOST = 128, 8, 8192
"""Particles to begin with, by how much their number grows, and the most."""

LOUD = 0.5
"""The nats of a gradient's noise, for each parameter, above which there are too few particles."""

OUTLYING = 10.0
"""How many times the usual information is that of a place where no average should go."""

MOST_LOOKS = 32
"""How many gradients judge at most where a stage ended."""

LOOKS_AGAIN = 4
"""How often a look is taken again of which the derivatives overflow."""

MOST_STEPS = 400
"""How many steps are averaged at most."""

MOST_CORRECTIONS = 3
"""How many steps are taken by what the judging particles find."""

AT_ONCE = 4096
"""How many particles are moved side by side, of all sequences and repeats."""

SAMPLE, GROWTH = 2000, 7
"""Of how many times the first climb is, and how many times as many the next ones are."""

STRETCH, RUN_IN = 500, 150
"""How many times of a series are filtered in one go, and how many of them count nothing."""

SCATTER, SCATTER_EACH = 3.0, 0.003
"""The variance of log p̂ up to which its gradient is near that of log p: in all, and of a time."""

NOWHERE = -1e4
"""What a time counts that no particle explains."""


def climb_particles(
    model: StateSpace,
    x: PyTree[Array],
    given: Given | None,
    *,
    key: Key[Array, ""],
    log_prior: Callable[[Any], Array] | None = None,
    starts: int = 1,
    seconds: float = 120.0,
    watch: Watch | None = None,
) -> tuple[Found, Maxima]:
    """Climb the log likelihood of sequences by particles, from one or several starts.

    Arguments:
        model, x, given, key, log_prior, starts, seconds, watch: as `climb_filtered` takes them.

    Example: `climb_particles(model, x, None, key=key)[0].verdict`.
    """

    watch = watch or Watch()
    before = watch.number

    def attempt(wide: bool) -> tuple[Found, Maxima]:
        with jax.enable_x64(wide or jnp.zeros(()).dtype == jnp.float64):
            climb = _Climb(model, x, given, key, log_prior)
            first = climb.theta
            done = [climb.run(seconds, watch)]
            end, units = climb.theta, climb.units() if starts > 1 else np.zeros(climb.p)
            rng = np.random.default_rng(climb.seed)
            for i in range(1, 1 if watch.stopped else starts):
                climb.theta = (end if i % 2 else first) + SPREAD * units * rng.normal(size=climb.p)
                done.append(climb.run(seconds, Watch()))
            return max(done, key=height), distinct_maxima(done)

    try:
        return attempt(True)
    except TypeError:  # the model's own code holds it to one precision
        if watch.number > before:
            raise
        return attempt(False)


class _Look(NamedTuple):
    """What repeats tell of a θ: log p̂ of each, their gradients for each λ, and the information.

    `plain` is the information with the noise of the scores in it, `increments` are log p̂ of each
    sequence, repeat and time; `dead` counts the times that no particle explains.
    """

    heights: Float[np.ndarray, " repeats"]
    gradients: Float[np.ndarray, "repeats keeps p"]
    crossed: Float[np.ndarray, "p p"]
    plain: Float[np.ndarray, "p p"]
    increments: Float[np.ndarray, "sequences repeats times"]
    prior: float
    dead: int

    @property
    def sound(self) -> bool:
        """Whether the information is finite: derivatives of paths explode where θ leads far off."""
        return bool(np.isfinite(self.plain).all() and np.isfinite(self.crossed).all())

    @property
    def height(self) -> float:
        return float(self.heights.mean())

    @property
    def error(self) -> float:
        return float(self.heights.std(ddof=1) / len(self.heights) ** 0.5)


class _Judged(NamedTuple):
    """Looks at one θ, their mean gradient, its nats, those of its noise and of too short a λ."""

    seen: list[_Look]
    gradient: Float[np.ndarray, " p"]
    worth: float
    blur: float
    bias: float

    @property
    def known(self) -> float:
        """The nats of the slope that are not there by chance."""
        return self.worth - 4 * self.blur


class _Climb:
    """A climb: θ, how many particles there are, and what has been seen of the information."""

    def __init__(
        self,
        model: StateSpace,
        x: PyTree[Array],
        given: Given | None,
        key: Key[Array, ""],
        log_prior: Callable[[Any], Array] | None,
    ):
        parameters, self.rest = eqx.partition(model, eqx.is_inexact_array)
        self.types = jax.tree.map(lambda a: a.dtype, parameters)
        flat, self.ravelled = ravel_pytree(jax.tree.map(_floating, parameters))
        self.theta, self.p = np.asarray(flat), flat.size
        if self.p > MOST_PARAMETERS:
            raise NotIntegrable(f"the scores of {self.p} parameters at each particle are too many")
        given = Given() if given is None else given
        self.whole: tuple[PyTree, Given] = jax.tree.map(_floating, (x, given))
        self.data, self.size = self.whole, int(np.prod(jax.tree.leaves(x)[0].shape[:2]))
        self.run_in: Array | None = None
        self.each = np.inf
        self.seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        self.tolerance, self.still = 0.01 * self.p, np.ones(self.p, bool)
        prior = (lambda t: log_prior(self.at(t))) if log_prior else (lambda t: 0.0 * t.sum())
        self.prior = jax.jit(lambda t: (prior(t), jax.grad(prior)(t), jax.hessian(prior)(t)))

    def at(self, theta: Array) -> Any:
        """The model with these parameters."""
        return eqx.combine(self.ravelled(theta), self.rest)

    def fitted(self) -> Any:
        """The model as it is now, its parameters as long as they came."""
        whole = self.ravelled(jnp.asarray(self.theta))
        return eqx.combine(jax.tree.map(lambda a, t: a.astype(t), whole, self.types), self.rest)

    def units(self) -> np.ndarray:
        """The standard deviation of each parameter as one time of a sequence leaves it."""
        m = self.metric
        information = ((m.vectors**2) @ m.values) / m.unit**2
        return np.sqrt(self.rows / information)

    # What particles tell of a θ ------------------------------------------------------------------

    def look(self, particles: int, theta: np.ndarray | None = None) -> _Look:
        """log p̂, its gradients and the information at θ, with new random numbers."""
        began = process_time()
        at = jnp.asarray(self.theta if theta is None else theta)
        key = jax.random.key(int(self.rng.integers(2**31)))
        found = self._several(at, self.data, self.run_in, key, jnp.asarray(self.keep), particles)
        heights, gradients, crossed, plain, increments, rows = jax.tree.map(np.asarray, found)
        self.still &= ~gradients.any(axis=(0, 1))
        value, slope, bend = jax.tree.map(np.asarray, self.prior(at))
        share = increments.size / (REPEATS * self.size)
        self.each = min(self.each, (process_time() - began) / (particles * share))
        self.rows = int(rows)
        dead = int((~np.isfinite(increments)).any(axis=1).sum())
        return _Look(
            heights + float(value), gradients + slope, crossed - bend, plain - bend, increments,
            float(value), dead,
        )  # fmt: skip

    def see(self, particles: int) -> _Look:
        """A look at the present θ, again where derivatives exploded on the way of a few paths."""
        for _ in range(LOOKS_AGAIN):
            seen = self.look(particles)
            if seen.sound:
                return seen
        raise NotIntegrable("the derivatives of simulated paths overflow")

    @eqx.filter_jit
    def _several(
        self,
        theta: Array,
        data: tuple[PyTree, Given],
        run_in: Array | None,
        key: Key[Array, ""],
        chosen: Array,
        particles: int,
    ) -> tuple:
        sequences, repeats = len(jax.tree.leaves(data[0])[0]), REPEATS

        def one(item: tuple) -> tuple[Array, Array, Array]:
            sequence, key = item
            (x, given), begun = jax.tree.map(lambda a: a[sequence], (data, run_in))
            found, sums = particle_scores(
                self.at, theta, x, given, key=key, particles=particles, keep=KEEPS, guided=True,
                run_in=begun,
            )  # fmt: skip
            return found, sums[-1], jnp.diff(sums[:, chosen], axis=0, prepend=0.0)

        which = jnp.repeat(jnp.arange(sequences), repeats)
        keys = jax.random.split(key, len(which))
        side = min(max(1, AT_ONCE // particles), len(which))
        found, ends, steps = jax.tree.map(
            lambda a: a.reshape(sequences, repeats, *a.shape[1:]),
            jax.lax.map(one, (which, keys), batch_size=side),
        )
        heights = jnp.where(jnp.isfinite(found), found, NOWHERE).sum(axis=(0, 2))
        plain = jnp.einsum("srtp,srtq->pq", steps, steps)
        together = steps.sum(axis=1)
        both = jnp.einsum("stp,stq->pq", together, together)
        crossed = (both - plain) / (repeats * (repeats - 1))
        rows = (jnp.abs(together).sum(axis=2) > 0).sum()
        return heights, ends.sum(axis=0), crossed, plain / repeats, found, rows

    def learn(self, seen: _Look, share: float) -> None:
        """The metric, of which this look makes a share; what is known of it by chance is not less.

        Directions of which no information is seen count as if there were as much as is lost in the
        noise of what was seen.
        """
        new = np.stack([seen.crossed, seen.plain])
        known = 1.0 if self.information is None else 1 - share
        self.information = (
            new if self.information is None else known * self.information + share * new
        )
        self.weights = share**2 + known**2 * self.weights if known < 1 else 1.0
        crossed, plain = self.information
        diagonal = np.maximum(np.diag(plain), 1e-12 * max(np.diag(plain).max(), 1e-200))
        unit = diagonal**-0.5
        values, vectors = np.linalg.eigh(unit[:, None] * crossed * unit)
        pairs = len(seen.heights) * (len(seen.heights) - 1) / 2
        least = max(2 * (self.weights / (max(self.rows, 1) * pairs)) ** 0.5, 1e-6)
        self.metric = Metric(unit, vectors, np.maximum(values, min(least, 1.0)))

    def late(self, share: float = 1.0) -> bool:
        """Whether this share of the time is up."""
        return self.watch.stopped or process_time() - self.began > share * self.seconds

    def say(self, *what: object) -> None:
        """Note what a round did."""
        self.log.append((round(process_time() - self.began, 2), *what))

    def tell(self, seen: _Look, left: float, ended: bool = False) -> None:
        """Show a round to who watches."""
        self.number += 1
        if self.data is self.whole and not self.watch.stopped:
            self.watch(Round(self.number, seen.height, self.fitted(), left, ended))

    # The fit -------------------------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")  # where derivatives overflow no step is taken
    def run(self, seconds: float, watch: Watch) -> Found:
        """Climb, average, judge, with more and more particles."""
        self.began, self.seconds, self.watch = process_time(), seconds, watch
        self.rng = np.random.default_rng([*self.seed, 2])
        self.log, self.number, self.keep = [], 0, 1
        self.information, particles = None, FEWEST
        start = self.see(particles)
        self.say(f"log likelihood {start.height:.2f} at the start, {start.dead} times unexplained")
        here = self.approach(start, particles)
        sampled = here is not start
        while True:
            noise, here = self.climb(particles, here), None
            loud, passed = noise > LOUD * self.p, 0.0
            if loud and not watch.stopped and particles < self.affordable(MORE * particles, 20):
                particles *= MORE
                continue
            finer = self.affordable(MORE * particles, 4)
            if not (sampled and finer > particles):
                noise = self.average(particles)
            found = self.judge(finer, 1 if sampled else 2)
            for _ in range(MOST_CORRECTIONS if sampled else 0):
                if found.known < self.tolerance or self.late(0.8):
                    break
                noise, passed = found.blur, passed or found.worth
                self.theta = self.theta + self.metric.solve(found.gradient)
                found = self.judge(finer, 1 if sampled else 2)
            tilt, scatter = self.tilt(found.seen)
            least = max(found.known, noise - self.tolerance, tilt, passed / MORE**2)
            enough = least < self.tolerance and scatter < 1
            if enough or sampled or particles >= MOST or self.late(0.6):
                break
            particles = min(self.affordable(MORE * particles, 20), MOST)
        slope = max(found.worth - found.blur, 0.0)
        if sampled and slope < 0.2 * self.p:  # the rest of the way is one step
            sure = slope / max(found.worth, 1e-12)
            self.theta = self.theta + sure * self.metric.solve(found.gradient)
        bias = found.bias + tilt + passed / MORE**2
        self.tell(found.seen[-1], noise + slope + bias, ended=True)
        return self.conclude(start, found.seen, (noise, slope, found.blur, bias, scatter), finer)

    def approach(self, start: _Look, particles: int) -> _Look:
        """Climb samples of long series, each larger than the last; all data where that ends."""
        if 0.25 * self.size <= SAMPLE:
            return start
        size, first, forgets = SAMPLE, self.theta, self.forgets(start, particles)
        while size < 0.25 * self.size:
            self.data, self.run_in = self.stretches(size)[:2] if forgets else self.beginning(size)
            self.climb(particles)
            self.information, size = None, size * GROWTH
        self.data, self.run_in = self.whole, None
        here = self.see(particles)
        self.say(f"log likelihood {here.height:.2f} of all data where samples of them led")
        if here.height < start.height:
            self.theta = first
            here = self.see(particles)
        return here

    def stretches(self, size: int) -> tuple[tuple[PyTree, Given], Array, tuple]:
        """So many times in stretches, spread evenly, their run-ins, and which times they are."""
        sequences, times = jax.tree.leaves(self.whole[0])[0].shape[:2]
        long = min(times, STRETCH)
        places, number = times - long + 1, size // long
        bins = np.arange(number) + self.rng.random(number)
        which, where = np.divmod((bins * (sequences * places / number)).astype(int), places)
        rows = which[:, None], where[:, None] + np.arange(long)
        stretches = jax.tree.map(lambda a: a[rows], self.whole)
        return stretches, jnp.asarray(np.minimum(where, RUN_IN)), rows

    def beginning(self, size: int) -> tuple[tuple[PyTree, Given], None]:
        """So many times: the first ones of the first sequences."""
        times = jax.tree.leaves(self.whole[0])[0].shape[1]
        few = max(1, size // min(times, size))
        return jax.tree.map(lambda a: a[:few, :size], self.whole), None

    def forgets(self, start: _Look, particles: int) -> bool:
        """Whether stretches are as likely after a run-in as after all that was before them."""
        self.data, self.run_in, (which, times) = self.stretches(SAMPLE)
        here = self.see(particles).increments
        there = start.increments[which, :, times].swapaxes(1, 2)
        counted = np.arange(times.shape[1]) >= np.asarray(self.run_in)[:, None, None]
        here, there = ((np.maximum(a, NOWHERE) * counted).sum(axis=2) for a in (here, there))
        chance = ((here.var(axis=1, ddof=1) + there.var(axis=1, ddof=1)) / REPEATS).sum() ** 0.5
        apart = abs((here - there).mean(axis=1).sum())
        told = apart < 4 * chance + 0.5 * self.p
        self.say(
            f"{len(which)} stretches cost {apart:.2g} nats, {chance:.2g} by chance: "
            f"{'stretches' if told else 'beginnings'} are climbed first"
        )
        return bool(told)

    def affordable(self, particles: int, looks: int) -> int:
        """So many particles, or as many as leave time for so many looks."""
        left = max(self.seconds - (process_time() - self.began), 0.05 * self.seconds)
        while particles > FEWEST and particles * self.each * looks > left:
            particles //= MORE
        return int(np.clip(particles, FEWEST, MOST))

    def climb(self, particles: int, here: _Look | None = None) -> float:
        """Steps I⁻¹ĝ, each as long as log p̂ does not fall, until noise covers what they promise.

        `here` is a look at where they begin. The nats of that noise.
        """
        here, radius, refused = here or self.see(particles), 1.0, 0
        highest = here
        for _ in range(100):
            self.learn(here, 0.5)
            g = here.gradients[:, self.keep]
            worth, noise = self.metric.nats(g.mean(axis=0)), self.metric.noise(g) / len(g)
            self.tell(here, max(worth - noise, 0.0))
            self.say(f"{here.height:.2f} ± {here.error:.2g}, {worth:.3g} nats ahead ± {noise:.2g}")
            if worth < 3 * noise + self.tolerance or self.late(0.5):
                break
            length = (2 * worth / max(self.rows, 1)) ** 0.5
            move = self.metric.solve(g.mean(axis=0)) * min(1.0, radius / length)
            there = self.look(particles, self.theta + move)
            slack = 3 * (highest.error**2 + there.error**2) ** 0.5
            if there.sound and there.height > highest.height - slack:
                self.theta, here, refused = self.theta + move, there, 0
                highest = max(highest, here, key=lambda seen: seen.height - seen.error)
                radius *= 2.0 if radius < length else 1.0
                continue
            radius, refused = min(radius, length) / 4, refused + 1
            self.keep = min(self.keep + 1, len(KEEPS) - 1)
            if refused == 6:
                break
            here = self.see(particles)
        return noise

    def average(self, particles: int) -> float:
        """Take half steps, and their average; the nats of noise that it leaves."""
        thetas, gradients, heights, rate, began = [], [], [], 0.5, True
        while len(thetas) < MOST_STEPS:
            seen = self.look(particles) if thetas else self.see(particles)
            below = 10 + 10 * seen.error + 10 * np.std(heights or [0.0])
            usual = np.median(heights) - below if heights else -np.inf
            louder = (np.diag(seen.plain) * self.metric.unit**2).sum() / self.p
            near = seen.height >= usual and louder <= OUTLYING
            if thetas and not (near and seen.sound):
                self.theta, rate = np.mean(thetas, axis=0), rate / 2
                if rate < 0.01:
                    break
                continue
            self.learn(seen, 1.0 if not thetas else 1 / (len(thetas) + 1))
            thetas.append(self.theta)
            heights.append(seen.height)
            gradients.append(seen.gradients)
            if began and len(thetas) == 6:  # the way there does not count
                thetas, gradients, heights, began = thetas[-1:], gradients[-1:], heights[-1:], False
            self.keep = self.choose(np.concatenate(gradients))
            noise = np.mean([self.metric.noise(g[:, self.keep]) for g in gradients])
            noise = float(noise / len(gradients) / REPEATS)
            self.tell(seen, noise)
            if len(thetas) >= 10 and (noise < self.tolerance or self.late(0.7)):
                break
            if self.late(0.85):
                break
            g = seen.gradients[:, self.keep].mean(axis=0)
            length = (2 * self.metric.nats(g) / max(self.rows, 1)) ** 0.5
            self.theta = self.theta + rate * min(1.0, 1.0 / length) * self.metric.solve(g)
        self.theta = np.mean(thetas, axis=0)
        self.say(
            f"{len(thetas)} steps averaged with {particles} particles, {noise:.2g} nats of noise"
        )
        return noise

    def judge(self, particles: int, fewest: int) -> _Judged:
        """What so many particles see of the slope, looking until its noise is small."""
        seen, blur = [], np.inf
        while len(seen) < fewest or (
            len(seen) < MOST_LOOKS and blur > 2 * self.tolerance and not self.late(0.8)
        ):
            seen.append(self.see(particles))
            gradients = np.concatenate([s.gradients for s in seen])
            self.keep = self.choose(gradients)
            gradient = gradients[:, self.keep]
            blur = self.metric.noise(gradient) / len(gradient)
        worth = self.metric.nats(gradient.mean(axis=0))
        self.say(
            f"{particles} particles: log likelihood {seen[-1].height:.2f}, a slope of {worth:.3g} "
            f"nats, {blur:.2g} by chance, with λ = {KEEPS[self.keep]}"
        )
        bias = self.short(gradients)[self.keep]
        return _Judged(seen, gradient.mean(axis=0), worth, blur, bias)

    def tilt(self, seen: list[_Look]) -> tuple[float, float]:
        """The nats by which the maximum of E log p̂ misses that of log E p̂; the scatter of log p̂.

        To first order their gradients differ by the covariance of log p̂ and its gradient.
        """
        heights = np.concatenate([s.heights for s in seen])
        gradients = np.concatenate([s.gradients for s in seen])[:, self.keep]
        variance, number = float(heights.var(ddof=1)), len(heights)
        products = (heights - heights.mean())[:, None] * (gradients - gradients.mean(axis=0))
        chance = self.metric.noise(products) / number
        known = self.metric.nats(products.sum(axis=0) / (number - 1)) - 3 * chance
        return max(known, 0.0), variance / (SCATTER + SCATTER_EACH * self.rows)

    def short(self, gradients: Float[np.ndarray, "n keeps p"]) -> np.ndarray:
        """The nats by which every λ is known to look back at too few times."""
        found = np.zeros(len(KEEPS))
        for i in range(len(KEEPS) - 1):
            for j in range(i + 1, len(KEEPS)):
                apart = gradients[:, i] - gradients[:, j]
                chance = self.metric.noise(apart) / len(apart)
                known = self.metric.nats(apart.mean(axis=0)) - 4 * chance
                found[i] = max(found[i], known)
        return found

    def choose(self, gradients: Float[np.ndarray, "n keeps p"]) -> int:
        """The λ with the least of bias, as far as it is known, and noise."""
        bias = self.short(gradients)
        noise = [self.metric.noise(g) / len(g) for g in np.moveaxis(gradients, 1, 0)]
        return int(np.argmin(bias + np.array(noise)))

    def conclude(
        self, start: _Look, seen: list[_Look], parts: tuple[float, ...], particles: int
    ) -> Found:
        """What was reached, with the nats still to be gained."""
        noise, slope, blur, bias, scatter = parts
        every = np.concatenate([s.increments for s in seen], axis=1)
        totals = [combined(e) for e in every]
        values = np.array([t[0] for t in totals])
        error = float(np.sqrt(sum(t[1] ** 2 for t in totals)))
        left = noise + slope + bias
        most = 3 * noise + (slope**0.5 + (2 * blur) ** 0.5) ** 2 + 2 * bias
        dead = max(s.dead for s in seen)
        why = f"{particles} particles are too few for data that are so precise"
        why = why if scatter > 1 else ""
        why = f"no particle explains {dead} of the times" if dead else why
        trusted = bool(most < 0.2 * self.p and not why)
        verdict = Verdict(float(left), float(most), trusted, why)
        method = f"scores of {particles} particles, because no filter is exact"
        value = float(values.sum()) + seen[0].prior
        return Found(
            self.fitted(), value, error, values, verdict, self.p, method, self.number, self.log,
            start.height, self.still,
        )  # fmt: skip


def _floating(a: Any) -> Array:
    a = jnp.asarray(a)
    return a.astype(float) if jnp.issubdtype(a.dtype, jnp.floating) else a


__all__ = ["climb_particles"]
