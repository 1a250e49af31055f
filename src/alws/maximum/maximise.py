"""The maximum of the likelihood where every observation's posterior can be summed or integrated.

    propose points for every posterior → climb log p̂ → look at the noise → conclude

Far from the maximum the first rounds are EM's: the weights of the points stay as they are while
E[log p_θ(z, x_m) | x_m] is climbed in the metric of the complete data. Then log p̂ itself is climbed
by L-BFGS, on points that follow θ, until what a step promises is below a tolerance, or below what
the noise of the points lets one see; then with more points. Everything rests on what can be
measured: the effective share of the points, the spread of the gradient over independent sets of
points, and, because draws (z, x) ~ p_θ are exact posterior draws, whether the points cover the z of
simulated x.
"""

from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Key, PyTree
from scipy.stats import chi2

from alws.maximum.climb import Metric, climb, metric
from alws.maximum.latents import (
    MOST_COMBINATIONS,
    Grid,
    Latents,
    are_all_combinations,
    describe,
    flat_rows,
    follow,
    grid_of,
    position_of,
    to_line,
    too_many,
    widened,
)
from alws.maximum.points import Comparison, Points, Proposal, Shape, build, design, lattice
from alws.maximum.verdict import Verdict
from alws.model import AnyModel, sample
from alws.validation import at_least, one_of

DRAWS = 8192
"""How many draws tell what the latents are like, and check the points."""

ROUNDS = 300
"""The most rounds of a climb."""

FEW_PARAMETERS, MANY = 30, 300
"""Up to how many parameters the curvature is always measured by differences near a maximum; from
how many on the information is measured at some rounds only, and the curvature never so."""

MOST_POINTS, MOST_SETS = 1024, 8
"""The most points of an observation, and the most sets of them."""

MOST_WORK = 2e7
"""About how many entries of observations all points look at; more sets follow if needed."""

MOST_NUMBERS, MOST_CURVATURES = 2e9, 2e8
"""The most numbers that points, and that curvatures, may hold."""

MOST_PARAMETERS = 3000
"""The most parameters, on which the information is a matrix that is decomposed many times."""

MOST_EVERYWHERE = 2**24
"""The most points there may be for all observations where they lie everywhere."""

MOST_TABLE = 2**27
"""The most densities that are looked at for values of a count that no draw shows."""

LOOK = 1024
"""How many simulations tell whether such values are any."""

RARE = 3
"""The most draws in which a parameter that plays no part any more may have a score."""

UNTOLD = 1e-6
"""The share of the complete information below which the data tell nothing of a parameter."""

LEAPS = [sign * n for n in (1, 2, *range(4, 68, 4)) for sign in (1, -1)]
"""How far a parameter is moved of which the data tell nothing, in units of a complete observation.

Steps of 4 do not pass over a scale that would fit, of which the logarithm is the parameter.
"""

WILD, OVERSTATED = 1e4, 1e-4
"""How far a mean square of draws' scores is above their median, and the share of it in the data,
where what the draws tell is replaced by what the data tell."""

FARTHEST = 3.0
"""How far a slope is trusted, in standard deviations of one complete observation."""

SHARP = 1e5
"""How many times the precision of numbers a posterior must be wide."""

MISSED = 0.02
"""The share of simulated latents that points may miss."""

FEW = 0.01
"""The share of observations that may be treated badly."""

SOUND = 0.3
"""The effective share from which on weighted points are as good as draws of the posterior."""

COMMON = 100
"""In how many draws scores of few values are above 0, and below 0, that tell of their mean."""

MOST_SCORES = 2e7
"""The most numbers that scores of draws may hold."""

CONTRADICTED = (
    "the model's own draws contradict its density: either `sample` does not follow `log_joint`, "
    "or the support of a latent moves with a parameter"
)

DISAGREES = (
    "the model's own draws contradict its density: given x, simulated z do not lie where "
    "log p(z, x) puts them; compare the two term by term, such as for a prior or for weights that "
    "are left out or exchanged"
)

NOTHING_TOLD = (
    "log p(z, x) does not depend on the parameters; check that the model's density uses them"
)

NO_FAULT = "time is up", "it was stopped"
"""How a climb ends before its end of which the verdict can tell all the same."""

DONE = "done"
"""How a climb ends that came to its end."""


class NotIntegrable(Exception):
    """The posteriors cannot be summed or integrated; the message says why."""


def check_parameters(number: int) -> None:
    """Refuse so many parameters that there is no matrix of the information on them.

    Example: `check_parameters(20)`.
    """
    if number > MOST_PARAMETERS:
        raise NotIntegrable(f"{number} parameters are more than the {MOST_PARAMETERS} of a climb")


class Round(NamedTuple):
    """Where a climb stands after a round, for those who watch it; `left` nats, as the last step
    promised, and whether it was the last round."""

    number: int
    log_likelihood: float
    model: Any
    left: float = np.inf
    ended: bool = False


class Watch:
    """Who watches a fit: is told every round, numbered on over all its climbs, and may stop it.

    Arguments:
        see: is told of a round, and returns True to stop the fit.

    Example: `Watch(print)`.
    """

    def __init__(self, see: Callable[[Round], Any] | None = None):
        self.see, self.number, self.stopped = see, 0, False
        self.before: Callable[[], None] | None = None

    def __call__(self, seen: Round) -> bool:
        if self.before is not None:
            self.before()
        self.number = max(self.number + 1, seen.number)
        if self.see is not None and self.see(seen._replace(number=self.number)):
            self.stopped = True
        return self.stopped


class Found(NamedTuple):
    """The model reached, its log likelihood with the error the points leave, and the verdict.

    `each` has log p(x_m) of every observation, `began_at` the log likelihood at the start; `method`
    says how the posteriors were treated, `log` what every round did. `still` marks the entries of θ
    that never had a slope.
    """

    model: Any
    log_likelihood: float
    error: float
    each: Float[np.ndarray, " observations"]
    verdict: Verdict
    free: int
    method: str
    rounds: int
    log: list
    began_at: float = -np.inf
    still: Bool[np.ndarray, " p"] = np.zeros(0, bool)


class Standing(NamedTuple):
    """Where a climb stands between two rounds; `ended` says why there is no further one."""

    number: int = 0
    stage: str = "em"
    log_likelihood: float = -np.inf
    before: float = -np.inf
    noise: float = 0.0
    near: bool = False
    shaken: bool = False
    tries: int = 0
    radius: float = 1.0
    heat: float = 1.0
    pairs: list = []  # noqa: RUF012
    ended: str = ""


class Climber:
    """A climb: θ, the points, what is known of the noise. `run` takes it to its end.

    Arguments:
        model: the model at its start.
        data: observations as leading axis, with the model's own structure and shapes.
        key: on which all random numbers depend.
        conditions: one entry for each observation, or None.
        log_prior: log p(θ) for the whole data set.
        seconds: of the processor, the most that `run` takes.

    Example: `Climber(model, data, key=jax.random.key(0)).run().model`.
    """

    def __init__(
        self,
        model: AnyModel,
        data: PyTree[Array],
        *,
        key: Key[Array, ""],
        conditions: PyTree | None = None,
        log_prior: Callable[[Any], Array] | None = None,
        seconds: float = 120.0,
    ):
        self.began, self.seconds, self.log = process_time(), seconds, []
        parameters, self.rest = eqx.partition(model, eqx.is_inexact_array)
        self.types = jax.tree.map(lambda a: a.dtype, parameters)
        theta, self.ravelled = ravel_pytree(jax.tree.map(_floating, parameters))
        self.theta, self.p = np.asarray(theta, np.float64), theta.size
        self.tolerance = 0.004 * self.p
        self.conditioned = conditions is not None
        everything = (jax.tree.map(_floating, data), jax.tree.map(_floating, conditions))
        first, self.inverse, self.copies = _distinct(everything)
        self.obs = jax.tree.map(lambda a: a[first], everything)
        self.size, self.total = len(first), self.copies.sum()
        self.rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
        self.latents: Latents | None = None
        self.metric: dict[str, Metric] = {}
        self.whole: np.ndarray | None = None
        self.room, self.least, self.last, self.at = 0, np.zeros(self.p), np.inf, Standing()
        self.played, self.silent = np.zeros(self.p, bool), np.zeros(self.p, bool)
        self.first, self.began_at = self.theta, -np.inf
        self.still = np.ones(self.p, bool)
        self.counted: bool | None = None
        self.everywhere = False

        def draw(theta: Array, keys: Array, conditions: PyTree) -> tuple:
            args = (keys, conditions) if self.conditioned else (keys,)
            return jax.vmap(lambda k, *c: tuple(sample(self.unravel(theta), k, *c)))(*args)

        self.draw = jax.jit(draw)
        prior = (lambda theta: log_prior(self.unravel(theta))) if log_prior else None
        self.prior = jax.jit(jax.value_and_grad(prior)) if prior else None

    def unravel(self, theta: Array) -> Any:
        """The model with these parameters."""
        return eqx.combine(self.ravelled(theta), self.rest)

    def fitted(self) -> Any:
        """The model as it is now, its parameters as long as they came."""
        whole = self.ravelled(jnp.asarray(self.theta))
        return eqx.combine(jax.tree.map(lambda a, t: a.astype(t), whole, self.types), self.rest)

    def say(self, *what: object) -> None:
        """Note what a round did."""
        self.log.append((round(process_time() - self.began, 2), *what))

    def late(self) -> bool:
        """Whether the time is up."""
        return process_time() - self.began > self.seconds

    # What a climb goes on from -------------------------------------------------------------------

    def begin_again(self, theta: np.ndarray) -> None:
        """Start from other parameters, with what was compiled."""
        self.theta, self.at, self.began = np.asarray(theta), Standing(), process_time()
        self.least, self.last, self.log = np.zeros(self.p), np.inf, []
        if self.latents is not None:
            self.choose()
            self.restart()

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and plain numbers from which `restore` goes on bit for bit."""
        assert self.latents is not None
        at = self.at
        arrays = {"theta": self.theta, "mode": self.mode, "least": self.least}
        arrays |= {f"shape.{n}": a for n, a in self.shape._asdict().items()}
        found = self.latents._asdict()
        arrays |= {f"latents.{n}": a for n, a in found.items() if n != "shapes"}
        drawn = jax.tree.leaves((self.z, self.simulated))
        arrays |= {f"drawn.{i}": a for i, a in enumerate(drawn)}
        empty = np.zeros((0, self.p))
        arrays["moves"] = np.stack([s for s, _ in at.pairs]) if at.pairs else empty
        arrays["turns"] = np.stack([y for _, y in at.pairs]) if at.pairs else empty
        numbers = {
            "at": {n: _plain(v) for n, v in at._asdict().items() if n != "pairs"},
            "last": float(self.last),
            "began_at": float(self.began_at),
            "room": self.room,
            "points": self.points,
            "style": self.style,
            "styled": bool(self.styled),
            "sets": self.sets,
            "newton": self.newton,
            "counted": self.counted,
            "everywhere": self.everywhere,
            "random": self.rng.bit_generator.state,
        }
        return {name: np.asarray(a) for name, a in arrays.items()}, numbers

    def restore(self, arrays: dict[str, np.ndarray], numbers: dict[str, Any]) -> None:
        """Go on from a snapshot of a climb that began with the same things; refuse any other."""
        _check_numbers(numbers)
        shapes = jax.eval_shape(self.draw, self.theta, *self._draw_arguments())
        treedef = jax.tree.structure(shapes[0])
        leaves = [(a.shape[1:], a.dtype) for a in jax.tree.leaves(shapes[0])]
        kept = {
            n.removeprefix("latents."): a for n, a in arrays.items() if n.startswith("latents.")
        }
        self.latents = Latents(shapes=(treedef, tuple(leaves)), **kept)
        self.dimension = len(self.latents.continuous)
        self.machine = build(self.unravel, self.latents, self.conditioned)
        self.theta, self.least = arrays["theta"], arrays["least"]
        self.mode = arrays["mode"]
        self.shape = Shape(*(arrays[f"shape.{n}"] for n in Shape._fields))
        pairs = list(zip(arrays["moves"], arrays["turns"], strict=True))
        self.at = Standing(**numbers["at"], pairs=pairs)
        names = ("last", "began_at", "room", "points", "style", "styled", "sets", "newton")
        for name in (*names, "counted", "everywhere"):
            setattr(self, name, numbers[name])
        self.rng.bit_generator.state = numbers["random"]
        self.lattice = lattice(self.points, self.dimension)
        structure = jax.tree.structure((shapes[0], (shapes[1], self.obs[1])))
        drawn = [jnp.asarray(arrays[f"drawn.{i}"]) for i in range(structure.num_leaves)]
        self.z, self.simulated = structure.unflatten(drawn)
        self.see_latents(self.latents)

    # Draws, and what they say of z ---------------------------------------------------------------

    def simulate(self) -> None:
        """Draws (z, (x, condition)) at θ, conditions as in the data."""
        keys, c = self._draw_arguments()
        z, x = self.draw(self.theta, keys, c)
        self.z, self.simulated = z, (x, c)

    def _draw_arguments(self) -> tuple[Array, PyTree]:
        chosen = self.rng.choice(self.size, DRAWS, p=self.copies / self.total)
        keys = jax.random.split(jax.random.key(self.rng.integers(2**31)), DRAWS)
        return keys, jax.tree.map(lambda a: a[chosen], self.obs[1])

    def look(self) -> None:
        """Split the latents, or follow them to the present θ."""
        self.simulate()
        before = self.latents
        latents = None if before is None else follow(before, self.z)
        if latents is None:
            found = describe(self.z)
            if isinstance(found, str):
                raise NotIntegrable(found)
            latents = found
            self.dimension = len(latents.continuous)
            self.machine = build(self.unravel, latents, self.conditioned)
            self.room, before = 0, None
        elif too_many(latents):
            raise NotIntegrable(f"the discrete latents take {len(latents.values)} values or more")
        latents = self.count_on(latents)
        if len(latents.values) > self.room:
            self.room = len(latents.values)
            if before is not None:
                self.room = int(2 ** np.ceil(np.log2(self.room)))
            self.choose()
            leaves = jax.tree.leaves((self.z, self.simulated))
            numbers = sum(np.asarray(a).size // DRAWS for a in leaves)
            many = self.size * self.room * self.points * numbers > MOST_NUMBERS
            if many or self.size * self.dimension**2 > MOST_CURVATURES:
                raise NotIntegrable("the posteriors of so many latents are too many numbers")
            self.restart()
        elif self.dimension and before is not None:
            shift, scale = before.location - latents.location, before.scale / latents.scale
            self.mode = shift / latents.scale + np.asarray(self.mode) * scale
        self.see_latents(latents)

    def count_on(self, latents: Latents) -> Latents:
        """The latents with values that no draw shows, where they count something."""
        if self.counted is False:
            return latents
        frame = Grid(None, None, latents.location, latents.scale)
        some = jax.tree.map(lambda a: a[:LOOK], self.simulated)

        def log_p(obs: PyTree) -> Callable[[np.ndarray], np.ndarray]:
            table = partial(self.machine.table, self.theta, frame, obs)
            return lambda values: np.asarray(table(values), np.float64)

        most = int(min(MOST_COMBINATIONS, MOST_TABLE // self.size))
        found = widened(latents, log_p(self.obs), log_p(some), most)
        self.counted = found is not None
        return latents if found is None else found

    def see_latents(self, latents: Latents) -> None:
        """What follows from the split: the grid, and where modes may be looked for."""
        self.latents, self.grid = latents, grid_of(latents, self.room)
        c = (to_line(latents, flat_rows(self.z)[:32]) - latents.location) / latents.scale
        self.candidates = np.nan_to_num(c, posinf=0.0, neginf=0.0)

    def restart(self) -> None:
        """Modes and shapes of all cells as if nothing were known of them."""
        self.mode, self.shape = self.unknown()
        self.newton = 10

    def unknown(self) -> tuple[np.ndarray, Shape]:
        """A mode and shape for every cell of which nothing is known."""
        cells, one = (self.size, self.room), np.eye(self.dimension)
        mode = np.zeros((*cells, self.dimension))
        return mode, Shape(mode, np.broadcast_to(one, (*cells, *one.shape)), np.zeros(cells))

    def choose(self) -> None:
        """How many points a cell gets, and of which style at first."""
        dimension = self.dimension
        cells = self.size * self.room
        entries = sum(a[0].size for a in jax.tree.leaves(self.obs))
        few = 32 if dimension == 1 or cells * entries > 5e4 else 64
        wanted = min(30000 / cells, MOST_WORK / (cells * entries))
        number = np.clip(wanted, max(few, 4 * dimension), MOST_POINTS)
        self.points = int(2 ** np.ceil(np.log2(number))) if dimension else 1
        self.style = "student" if dimension <= 3 else "wide"
        self.lattice = lattice(self.points, dimension)
        self.sets, self.styled = 1, dimension == 0
        if self.everywhere:
            self.spread_points()

    def spread_points(self) -> None:
        """Points over all that the prior covers, for posteriors of more than one mode."""
        self.everywhere, self.styled, self.style = True, True, "student"
        self.points, self.sets = MOST_POINTS, 1
        self.lattice = lattice(self.points, self.dimension)
        self.say("points everywhere")

    def may_spread(self) -> bool:
        """Whether points everywhere are few enough, and not there yet."""
        few = self.size * self.room * MOST_POINTS <= MOST_EVERYWHERE
        return 1 <= self.dimension <= 2 and few and not self.everywhere

    def share_missed(self) -> float:
        """The share of simulated latents that are far from the points of their observations."""
        return float(np.mean([far for *_, far in self.batches_of_simulations(LOOK)]))

    def go_on_everywhere(self) -> None:
        """Climb on with points everywhere, if others miss modes at θ."""
        self.simulate()
        self.adapt()
        if self.share_missed() > MISSED:
            self.spread_points()
            self.at = Standing(self.at.number, before=self.at.log_likelihood)

    def spread_if_better(self) -> None:
        """Points everywhere where others miss modes, if these have next to no noise."""
        if not self.share_missed() > MISSED:
            return
        before = self.points, self.sets, self.lattice, self.style
        self.spread_points()
        if self.metric["observed"].noise(self.replicates(3)[1]) > self.tolerance:
            self.everywhere = False
            self.points, self.sets, self.lattice, self.style = before
            self.adapt()

    # Points and what they give -------------------------------------------------------------------

    def design(self) -> tuple[np.ndarray, np.ndarray]:
        """A fresh set of points for every observation, in units of its proposal."""
        return design(self.rng, self.size, self.lattice, self.style)

    def propose(
        self,
        theta: np.ndarray,
        rounds: int = 0,
        newton: int = 3,
        obs: PyTree | None = None,
        start: tuple[np.ndarray, Shape] | None = None,
    ) -> tuple[Any, Shape, Proposal]:
        """Modes, shapes and proposals at θ: warm, with the shapes as they are, if `rounds` is 0."""
        cells = (self.size, self.room)
        mode, shape = start or (self.mode, self.shape)
        if self.dimension == 0:
            nothing = Proposal(np.zeros((*cells, 0)), np.zeros((*cells, 0, 0)), np.zeros(cells))
            return mode, shape, nothing
        if self.everywhere:
            mode, shape = self.unknown()
            return mode, shape, Proposal(mode, shape.root, shape.log_volume)
        points = self.design() if rounds else self.fixed
        obs = self.obs if obs is None else obs
        rest = (self.candidates, *points, newton, rounds)
        return self.machine.propose(theta, self.grid, obs, mode, shape, *rest)

    def adapt(self) -> None:
        """Modes and shapes at the present θ."""
        if self.dimension:
            self.fixed = self.design()
            self.mode, self.shape, _ = self.propose(self.theta, rounds=2, newton=self.newton)
            self.newton = 3

    def place(self, theta: np.ndarray, proposal: Proposal, points: tuple, *heat: float) -> Points:
        """Latents at these points of the proposals."""
        return self.machine.place(theta, self.grid, self.obs, proposal, *points, *heat)

    def evaluation(
        self, designs: list[tuple], held: Points | None = None
    ) -> Callable[[np.ndarray], tuple]:
        """θ ↦ log likelihood, gradient and share, on points that follow θ; or EM's on held ones."""

        def evaluate(theta: np.ndarray) -> tuple:
            if held is not None:
                return self.summed(theta, held, held=True)
            proposal = self.propose(theta)[2]
            out = [self.summed(theta, self.place(theta, proposal, e)) for e in designs]
            return tuple(np.mean([o[i] for o in out], axis=0) for i in range(3))

        return evaluate

    def summed(self, theta: np.ndarray, points: Points, *, held: bool = False) -> tuple:
        """Σ_m log p̂(x_m) + log p(θ), its gradient, and the mean share."""
        f, share, g = self.machine.value(theta, self.obs, self.copies, points, held)
        self.each, g = np.asarray(f, np.float64), np.asarray(g, np.float64)
        share = np.asarray(share, np.float64)
        f = self.copies @ self.each
        if self.prior is not None:
            prior, slope = self.prior(theta)
            f, g = f + float(prior), g + np.asarray(slope, np.float64)
        return f, g, self.copies @ share / self.total

    def replicates(self, number: int) -> tuple[np.ndarray, ...]:
        """f, gradient and effective share at θ with independent designs."""
        proposal = self.propose(self.theta)[2]
        out = [
            self.summed(self.theta, self.place(self.theta, proposal, self.design()))
            for _ in range(number)
        ]
        return tuple(np.array([np.asarray(o[i]) for o in out]) for i in range(3))

    def measure(self) -> None:
        """The information, of observed scores and of complete draws, and the length of a step."""
        n = min(DRAWS, max(1024, 4 * self.p))
        some = jax.tree.map(lambda a: a[:n], (self.z, self.simulated))
        s = np.asarray(self.machine.complete(self.theta, *some), np.float64)
        whole = self.total * s.T @ s / n
        active = (np.abs(s) > 1e-12 * np.abs(s).max(axis=0)).sum(axis=0) > RARE
        self.played |= active
        self.silent = self.played & ~active
        points = self.place(self.theta, self.propose(self.theta)[2], self.design())
        told = self.total * self.squares_given_data(points, n)
        self.still &= (np.diag(whole) == 0) & (told == 0)
        drawn = np.maximum(np.diag(whole), 1e-300)
        median = np.ma.median(np.ma.masked_equal(s**2, 0), axis=0)
        squares = self.total * np.ma.filled(median, 0.0)
        wild = (drawn > WILD * squares) & (told < OVERSTATED * drawn)
        down = np.where(wild, np.maximum(told, squares) / drawn, 1.0) ** 0.5
        whole = down[:, None] * whole * down
        s = np.asarray(self.machine.scores(self.theta, self.obs, points), np.float64)
        s = np.where(np.isfinite(s), s, 0.0)
        self.observed = (s * self.copies[:, None]).T @ s
        # Too few scores for a matrix lean on complete draws.
        share = min(1.0, self.total / (3 * self.p))
        shrunk = share * self.observed + (1 - share) * whole + 1e-6 * np.diag(np.diag(whole))
        if self.total < 3 * self.p:
            self.observed = shrunk
        # What the data stop telling of a parameter is forgotten slowly, or it would run away.
        self.least = np.maximum(np.diag(whole), 0.1 * self.least) + 1e-200
        self.metric = {
            "observed": metric(shrunk, 1e-6 * self.least, 1e-8),
            "complete": metric(whole, self.least, 1e-4),
        }
        self.whole = whole

    def squares_given_data(self, points: Points, n: int) -> np.ndarray:
        """Mean squares of complete scores at draws from the data's posteriors, n of them.

        Far from the data the model's own draws may be so wild that their scores say nothing of
        them: counts of a billion where the data have hundreds.
        """
        rng = np.random.default_rng(self.at.number)
        m = rng.choice(self.size, n, p=self.copies / self.total)
        w = np.asarray(points.w).reshape(self.size, -1).cumsum(axis=1)
        k = np.array(
            [np.searchsorted(w[i], u * w[i, -1]) for i, u in zip(m, rng.random(n), strict=True)]
        )

        def pick(a: Array, like: Array) -> Array:
            flat = np.asarray(a).reshape(self.size, w.shape[1], *a.shape[3:])
            return jnp.asarray(flat[m, np.minimum(k, w.shape[1] - 1)], like.dtype)

        z = jax.tree.map(pick, points.z, self.z)
        obs = jax.tree.map(lambda a: jnp.asarray(a)[m], self.obs)
        s = np.asarray(self.machine.complete(self.theta, z, obs), np.float64)
        return (s**2).mean(axis=0)

    def length(self, move: np.ndarray) -> float:
        """How far a move goes, in standard deviations of one complete observation."""
        with np.errstate(over="ignore", invalid="ignore"):  # a wild move is longer than any other
            square = float(move @ self.whole @ move)
        return np.inf if np.isnan(square) else float(np.sqrt(max(square, 0.0) / self.total))

    def promise(self, g: np.ndarray) -> float:
        """The nats that a gradient g promises within `FARTHEST` along each direction.

        A parameter on its way to infinity has next to no information: the parabola through it would
        promise anything.
        """
        m = self.metric["observed"]
        directions = m.unit[:, None] * m.vectors
        slope = np.abs(directions.T @ g)
        squares = np.einsum("ij,ij->j", directions, self.whole @ directions)
        lengths = np.sqrt(np.maximum(squares, 0.0) / self.total)
        step = np.minimum(slope / m.values, FARTHEST / np.maximum(lengths, 1e-300))
        return float((slope * step - 0.5 * m.values * step**2).sum())

    def measure_by_differences(self, evaluate: Callable[[np.ndarray], tuple]) -> None:
        """−∇² log p̂ in place of the scores' second moments, where parameters are few."""
        unit = self.metric["complete"].unit
        unit = 0.03 * np.where(unit > 0, unit, 1.0)
        columns = [
            (evaluate(self.theta - u)[1] - evaluate(self.theta + u)[1]) / (2 * h) if h else u
            for h, u in zip(unit, np.diag(unit), strict=True)
        ]
        matrix = np.stack(columns)
        if np.isfinite(matrix).all():
            self.observed = (matrix + matrix.T) / 2
            self.metric["observed"] = metric(self.observed, 1e-6 * self.least, 1e-8)

    # The loop ------------------------------------------------------------------------------------

    def run(self, watch: Watch | None = None) -> Found:
        """Climb to the end; `watch` sees every round, and stops the climb by returning True.

        Where the points then miss modes of the posteriors, it goes on with points everywhere.
        """
        check_parameters(self.p)
        while not self.at.ended:
            self.round()
            if self.at.ended == DONE and self.may_spread() and not self.late():
                self.go_on_everywhere()
            at, last = self.at, float(self.last)
            seen = Round(at.number, at.log_likelihood, self.fitted(), last, bool(at.ended))
            if watch is not None and watch(seen) and not self.at.ended:
                self.at = self.at._replace(ended="it was stopped")
        if not self.metric and self.latents is not None:
            self.look_again()
        return self.conclude("" if self.at.ended == DONE else self.at.ended)

    def look_again(self) -> None:
        """What the verdict needs, after a climb that had ended was taken up again."""
        self.adapt()
        self.evaluation([self.design()])(self.theta)
        self.measure()

    def round(self) -> None:
        """One round: EM's, or a climb of log p̂, or the choice of the points' style."""
        at = self.at._replace(number=self.at.number + 1)
        if at.stage == "em" or at.number % 4 == 1 or self.counted:
            self.look()
        self.adapt()
        designs = [self.design() for _ in range(self.sets)]
        evaluate = self.evaluation(designs)
        f, g, share = evaluate(self.theta)
        at = at._replace(log_likelihood=float(f))
        if at.number == 1:
            self.began_at = float(f)
        if not (np.isfinite(f) and np.isfinite(g).all()):
            why = "some data have no density under the model, or its gradient is not finite"
            self.at = at._replace(ended=why)
            return
        curved = at.tries > 1 and FEW_PARAMETERS < self.p <= MANY  # by differences, the last time
        due = self.p <= MANY or at.stage == "em" or at.number % 4 == 1
        if not self.metric or (due and not curved):
            self.measure()
        if self.late() or at.number > ROUNDS:
            self.at = at._replace(ended="time is up")
            return
        rising = f - at.before > 2 * self.p or (at.heat > 2 and at.number < 30)
        if at.stage == "em" and (at.number == 1 or rising):
            heat = self.expect(f, share, designs[0])
            self.at = at._replace(before=float(f), heat=heat)
            return
        at = at._replace(stage="climb")
        if not self.styled:
            self.style_points()
            self.at = at
            return
        self.at = self.climb(at, evaluate, f, g, share)

    def climb(
        self,
        at: "Standing",
        evaluate: Callable[[np.ndarray], tuple],
        f: float,
        g: np.ndarray,
        share: float,
    ) -> "Standing":
        """A climb of log p̂ from θ, and whether it was the last one."""
        few = self.total < 3 * self.p  # scores: the complete data's information overstates theirs
        if at.near and self.p <= (MANY if at.tries == 1 or few else FEW_PARAMETERS):
            self.measure_by_differences(evaluate)
        name = "observed" if at.near else self.better_metric(evaluate, f, g)
        solve, started, radius = self.metric[name].solve, f, at.radius
        enough = 0.05 * self.tolerance
        new, f, g, evaluations, pairs, prospect = climb(
            evaluate,
            self.theta,
            f,
            g,
            solve,
            self.length,
            100,
            enough,
            [(s, y, 1 / (s @ y)) for s, y in at.pairs],
            radius,
            2 * radius,
        )
        self.say(
            f"climb, {name} information, {self.sets} × {self.points} {self.style} points",
            f"{started:.4f} to {f:.4f} in {evaluations} evaluations, share {share:.3f}",
        )
        gained = f - started
        far = self.length(new - self.theta) > 2 * radius
        was_near, near = at.near, gained < 20 * self.tolerance
        self.theta, self.last = new, max(gained, prospect)
        slack = 2 * at.noise + self.tolerance * (self.dimension > 0)
        slack = 20 * self.tolerance if at.number > 100 else slack
        at = at._replace(
            log_likelihood=float(f),
            near=near,
            radius=radius * (2.0 if far else 1.0),
            pairs=[(s, y) for s, y, _ in pairs],
        )
        if far or gained > self.tolerance + slack or (not was_near and name == "complete"):
            return at
        if self.dimension:
            _, gs, _ = self.replicates(4)
            single = self.metric["observed"].noise(gs)
            left = self.metric["observed"].nats(gs.mean(axis=0)) - single / 4
            at = at._replace(noise=single / self.sets)
            self.say(f"noise {at.noise:.4g} nats, left {left:.4g}")
            if left > self.tolerance + at.noise and at.tries < 6:
                return at._replace(tries=at.tries + 1)
            if at.noise > 2 * self.tolerance and self.sets < MOST_SETS:
                self.sets = min(MOST_SETS, int(np.ceil(1.3 * single / (2 * self.tolerance))))
                return at._replace(tries=0)
        if not at.shaken and self.shake(evaluate, f, solve, radius):
            return at._replace(shaken=True, pairs=[], tries=0)
        if not at.shaken and self.leap(f):
            return Standing(at.number, before=float(f), shaken=True)
        return at._replace(shaken=True, ended=DONE)

    def expect(self, f: float, share: float, points: tuple) -> float:
        """A round of EM; how much its weights were tempered over discrete values comes back."""
        heat = self.temperature(f) if self.room > 1 else 1.0
        placed = self.place(self.theta, self.propose(self.theta)[2], points, heat)
        held = self.evaluation([points], placed)
        q, gq, _ = held(self.theta)
        solve, enough = self.metric["complete"].solve, 0.1 * self.p
        self.theta, risen, *_ = climb(
            held, self.theta, q, gq, solve, self.length, 12, enough, [], 1.0, np.inf
        )
        self.say(f"EM at {f:.2f}, expectation + {risen - q:.3g}, tempered {heat:.3g}, {share:.3f}")
        return heat

    def better_metric(
        self, evaluate: Callable[[np.ndarray], tuple], f: float, g: np.ndarray
    ) -> str:
        """The metric in which a first step gains more."""
        gains = {}
        for name, m in self.metric.items():
            step = m.solve(g)
            step = step * min(1.0, 1 / max(self.length(step), 1e-300))
            gain = evaluate(self.theta + step)[0] - f
            gains[name] = gain if np.isfinite(gain) else -np.inf
        return max(gains, key=lambda name: gains[name])

    def shake(
        self,
        evaluate: Callable[[np.ndarray], tuple],
        f: float,
        solve: Callable[[np.ndarray], np.ndarray],
        radius: float,
    ) -> bool:
        """Climb once more from a place nearby, off saddle points; whether that is higher."""
        m = self.metric["complete"]
        away = m.vectors @ (self.rng.normal(size=self.p) / m.values**0.5)
        start = self.theta + m.unit * away
        fm, gm, _ = evaluate(start)
        if not np.isfinite(fm):
            return False
        enough = 0.05 * self.tolerance
        new, fn, *_ = climb(
            evaluate, start, fm, gm, solve, self.length, 100, enough, [], radius, 2 * radius
        )
        self.say(f"shaken: {fm:.4f} to {fn:.4f}")
        if fn > f + self.tolerance:
            self.theta = new
            return True
        return False

    def leap(self, f: float) -> bool:
        """Whether log p̂ is higher far along a parameter that the data do not tell; θ goes there.

        A scale near 0 is such a parameter: its slope, too, is 0 there.
        """
        assert self.whole is not None
        whole, told = np.diag(self.whole), np.abs(np.diag(self.observed))
        standing = self.theta, self.mode, self.shape
        best, highest = None, f + self.tolerance
        for i in np.flatnonzero((told < UNTOLD * whole) & (whole > 0)):
            for distance in LEAPS:
                if self.late():
                    break
                self.theta = standing[0].copy()
                self.theta[i] += distance * (self.total / whole[i]) ** 0.5
                self.restart()
                self.adapt()
                height = self.evaluation([self.design()])(self.theta)[0]
                higher = np.isfinite(height) and height > highest
                if higher and not self.share_too_sharp() > FEW:
                    best, highest = (self.theta, self.mode, self.shape), height
        self.theta, self.mode, self.shape = best or standing
        if best is not None:
            self.say(f"leapt from {f:.4f} to {highest:.4f}")
        return best is not None

    def share_too_sharp(self) -> float:
        """The share of posteriors so narrow that rounding decides where in them a point lies."""
        proposal = self.propose(self.theta)[2]
        width = np.linalg.norm(np.asarray(proposal.root), axis=-1)
        where = 1 + np.abs(np.asarray(proposal.mean))
        finest = SHARP * np.finfo(np.asarray(proposal.mean).dtype).eps
        return float((width < finest * where).any(axis=-1)[:, np.asarray(self.grid.live)].mean())

    def temperature(self, f: float) -> float:
        """How far the data lie below the simulated log likelihoods, in what these spread.

        Far from the data, the nearest discrete value must not take all.
        """
        if self.dimension:
            return 1.0
        at = self.rng.integers(0, DRAWS, self.size)
        obs = jax.tree.map(lambda a: a[at], self.simulated)
        proposal = self.propose(self.theta)[2]
        points = self.machine.place(self.theta, self.grid, obs, proposal, *self.design())
        simulated, *_ = self.machine.value(self.theta, obs, self.copies, points, False)
        each = np.asarray(simulated, np.float64)
        return float(max(1.0, (each.mean() - f / self.total) / (5 * each.std() + 1.0)))

    def style_points(self) -> None:
        """The style of points with the least noise in the gradient.

        `gaussian`, whose tails are light, only where it is far better; it then needs fewer points.
        """
        self.styled, noises, fitted = True, {}, (self.mode, self.shape)
        for self.style in STYLES:
            if self.style == "gaussian":  # as the curvature at the mode says
                self.shape = self.unknown()[1]
                self.adapt()
            noises[self.style] = self.metric["observed"].noise(self.replicates(3)[1])
        style = min(("student", "wide"), key=lambda s: noises[s])
        self.style = "gaussian" if noises["gaussian"] < 0.3 * noises[style] else style
        if self.style != "gaussian":
            self.mode, self.shape = fitted
        exact = noises["gaussian"] < 1e-6  # then the posteriors are Gaussian, and few points do
        enough = int(2 ** np.ceil(np.log2((2 if exact else 4) * self.dimension)))
        many = self.size * self.points * self.p > 2e6 and self.points >= 2 * enough
        if self.style == "gaussian" and many:
            self.points = enough
            self.lattice = lattice(self.points, self.dimension)
        self.say(f"{self.style} points; noise by style {noises}")
        if self.may_spread():
            self.spread_if_better()

    # The verdict ---------------------------------------------------------------------------------

    def conclude(self, why: str) -> Found:
        """What was reached, with the nats still to be gained."""
        f = self.at.log_likelihood
        if not self.metric or not np.isfinite(f):
            verdict = Verdict(0.0, np.inf, False, why)
            each = np.full(len(self.inverse), np.nan)
            return Found(
                self.fitted(), float(f), np.nan, each, verdict, self.p, "", self.at.number, self.log
            )
        self.simulate()
        self.adapt()
        idle = self.idle()
        fs, gs, shares = self.replicates(4)
        m, d = self.metric["observed"], np.abs(np.diag(self.observed)) ** 0.5
        d = np.where(d > 1e-30 * max(d.max(), 1e-100), d, np.inf)
        free = int((np.linalg.eigvalsh(self.observed / d[:, None] / d) > 1e-7).sum())
        noise = m.noise(gs) / self.sets
        slope = max(self.promise(gs.mean(axis=0)) - m.noise(gs) / 4, 0.0)
        left = noise + min(self.last, slope)
        # Towards a boundary a parabola promises half of what is left; curvatures are inexact.
        most = 3 * noise + max(self.last, 4 * slope)
        rounded = self.lost_by_rounding()
        left, most = left + rounded, most + 2 * rounded
        notes = {"noise": noise, "last": self.last, "slope": slope, "share": shares.mean()}
        notes["rounded"] = rounded
        if self.room > 1:
            unseen = notes["unseen"] = self.unseen()
            left, most = left + unseen / 10, most + unseen
        missed, bias, apart = self.check_on_simulations(m)
        if self.dimension:
            notes["missed"], notes["bias"] = missed, bias
            left, most = left + bias, most + 2 * bias
            if missed > MISSED and not why:
                why = f"the points miss {missed:.0%} of the latents of simulated data"
            if self.share_too_sharp() > FEW and not why:
                why = "posteriors are too narrow for the precision of numbers"
            if shares.mean() < 0.01 and not why:
                why = "a few points carry all the weight"
        self.say(f"verdict from { ({k: float(f'{v:.3g}') for k, v in notes.items()}) }")
        sound, good = shares.mean() > SOUND and missed < FEW, why in ("", *NO_FAULT)
        if good and (self.contradicted() or (sound and bias > self.p)):
            why = CONTRADICTED
        elif good and apart and missed < FEW and self.is_apart_on_other_points():
            why = DISAGREES
        if self.p > MANY:  # the curvature was not measured
            most = max(most, self.tolerance)
        if not why and not free:
            why = NOTHING_TOLD
        of_model = why in (CONTRADICTED, DISAGREES, NOTHING_TOLD)
        if why in NO_FAULT:
            why = ""
            left = max(left, min(slope, self.last))
            most = max(3 * left, 3 * slope, min(most, 10 * slope))
        trusted = bool(not why and most < 0.2 * free and not idle)
        verdict = Verdict(float(left), float(most), trusted, why, idle=idle, of_model=of_model)
        error = float(fs.std(ddof=1) / self.sets**0.5)
        return Found(
            self.fitted(),
            float(fs.mean()),
            error,
            self.each[self.inverse],
            verdict,
            free,
            self.method(),
            self.at.number,
            self.log,
            self.began_at,
            self.still,
        )

    def lost_by_rounding(self) -> float:
        """The nats by which the model is less likely with parameters as long as they came."""
        evaluate = self.evaluation([self.design()])
        parameters = eqx.filter(self.fitted(), eqx.is_inexact_array)
        given, _ = ravel_pytree(jax.tree.map(_floating, parameters))
        lost = evaluate(self.theta)[0] - evaluate(np.asarray(given, np.float64))[0]
        return float(max(lost, 0.0)) if np.isfinite(lost) else np.inf

    def idle(self) -> int:
        """How many parameters play no part any more: they may as well be where they began.

        One that has gone to a boundary, such as a chance of 0, has no scores either, but counts.
        """
        evaluate = self.evaluation([self.design()])
        here, number = evaluate(self.theta)[0], 0
        for i in np.flatnonzero(self.silent):
            theta = self.theta.copy()
            theta[i] = self.first[i]
            number += bool(abs(evaluate(theta)[0] - here) < self.tolerance)
        return number

    def contradicted(self) -> bool:
        """Whether the scores of draws are plainly not 0 on average.

        Scores of few distinct values count if many are above and many below 0: else rare events may
        be missing among the draws.
        """
        n = int(np.clip(MOST_SCORES / self.p, 1000, DRAWS))
        first = jax.tree.map(lambda a: a[:n], (self.z, self.simulated))
        s = np.asarray(self.machine.complete(self.theta, *first), np.float64)
        mean, deviation = s.mean(axis=0), s.std(axis=0)
        if (~s.any(axis=1)).mean() > FEW:
            return False
        off = np.abs(mean) > np.maximum(0.15, 10 / n**0.5) * deviation
        many = ((s > 0).sum(axis=0) >= COMMON) & ((s < 0).sum(axis=0) >= COMMON)
        return any(many[i] or len(np.unique(s[:, i])) > n / 4 for i in np.flatnonzero(off))

    def method(self) -> str:
        """How the posteriors were treated, in words."""
        summed = f"sums over the {self.room} values that the latents take"
        if self.dimension == 0:
            return summed
        one = "one continuous latent" if self.dimension == 1 else f"{self.dimension} latents"
        points = f"{self.points} weighted points for the posterior of {one}"
        if self.everywhere:
            points = f"{self.points} weighted points over the whole prior of {one}"
        return f"{summed}, and {points} under each" if self.room > 1 else points

    def unseen(self) -> float:
        """About what values of the latents that were never drawn add to the log likelihood.

        The posterior mass on those with an entry that `DRAWS` draws show at most once (Good and
        Turing), where combinations of the entries' values are summed over, or that they show at
        most once as a whole.
        """
        assert self.latents is not None
        if self.counted:
            return 0.0
        rows = flat_rows(self.z)[:, self.latents.discrete]
        points = self.place(self.theta, self.propose(self.theta)[2], self.design())
        mass = self.copies @ np.asarray(points.w).sum(axis=-1)
        values = np.asarray(self.grid.values)
        number = _occurrences(values, rows)
        if are_all_combinations(self.latents.values):
            each = zip(values.T[:, :, None], rows.T[:, :, None], strict=True)
            number = np.min([_occurrences(v, r) for v, r in each], axis=0, initial=len(rows))
        return float(mass[(number <= 1) & np.asarray(self.grid.live)].sum())

    def batches_of_simulations(self, n: int) -> Iterator[tuple]:
        """Batches of the first n simulations, as many as there are data: which, observations,
        proposals, points, and whether each one's own z is far from all of them."""
        assert self.latents is not None
        z = jax.tree.map(lambda a: a[:n], self.z)
        rows = flat_rows(z)
        d = position_of(np.asarray(self.grid.values), rows[:, self.latents.discrete])
        known, d = d >= 0, np.maximum(d, 0)
        c = (to_line(self.latents, rows) - self.grid.location) / self.grid.scale
        chosen = np.flatnonzero(known & np.isfinite(c).all(axis=1))
        for i in range(min(25, -(-(500 if self.dimension else 4000) // self.size))):
            at = np.resize(np.roll(chosen, -i * self.size), self.size)
            obs = jax.tree.map(lambda a: a[at], self.simulated)  # noqa: B023
            proposal = self.propose(self.theta, 2, 10, obs, self.unknown())[2]
            e = self.design()
            if self.dimension == 0:
                yield at, obs, proposal, e, np.zeros(self.size, bool)
                continue
            far = np.asarray(self.machine.distance(proposal, c[at], d[at]))
            reach = (e[0] ** 2).sum(axis=-1).max(axis=1)
            yield at, obs, proposal, e, far > np.maximum(reach, 2 * chi2.ppf(0.999, self.dimension))

    def comparison(self) -> Comparison:
        """Simulated latents, to be set beside the posteriors of their observations."""
        assert self.latents is not None
        rows = flat_rows(self.z)[:, self.latents.discrete]
        return Comparison(self.z, position_of(np.asarray(self.grid.values), rows), self.room)

    def is_apart_on_other_points(self) -> bool:
        """Whether simulated latents do not lie where points of another style put them."""
        if self.dimension == 0:
            return True
        before, compared = self.style, self.comparison()
        self.style = "student" if before == "wide" else "wide"
        for at, obs, proposal, e, _ in self.batches_of_simulations(1024):
            compared.add(at, self.machine.place(self.theta, self.grid, obs, proposal, *e))
        self.style = before
        return compared.disagree()

    def check_on_simulations(self, m: Metric) -> tuple[float, float, bool]:
        """How many simulated z the points miss, the nats of the scores' bias on simulated data, and
        whether simulated z do not lie where the points have their posteriors.

        Draws (z, x) at θ are exact posterior draws.
        """
        compared = self.comparison()
        if self.dimension == 0:
            for at, obs, proposal, e, _ in self.batches_of_simulations(DRAWS):
                compared.add(at, self.machine.place(self.theta, self.grid, obs, proposal, *e))
            return 0.0, 0.0, compared.disagree()
        n = min(DRAWS, max(1024, 4 * self.p))
        first = jax.tree.map(lambda a: a[:n], (self.z, self.simulated))
        exact = np.asarray(self.machine.complete(self.theta, *first), np.float64)
        outside, difference = [], []
        for at, obs, proposal, e, far in self.batches_of_simulations(n):
            outside.append(far)
            points = self.machine.place(self.theta, self.grid, obs, proposal, *e)
            compared.add(at, points)
            score = np.asarray(self.machine.scores(self.theta, obs, points), np.float64)
            difference.append(np.where(np.isfinite(score), exact[at] - score, 0.0))
        missed, each = float(np.mean(outside)), np.concatenate(difference)
        number = min(len(each), n)
        z = each.mean(axis=0) / (each.std(axis=0) / number**0.5 + 1e-300)
        if np.abs(z).max() < 5:
            return missed, 0.0, compared.disagree()
        by_chance = m.noise(each) / number
        excess = self.total**2 * (m.nats(each.mean(axis=0)) - by_chance)
        spread = self.total**2 * by_chance * (2 / self.p) ** 0.5
        bias = float(excess if excess > 4 * spread else 0.0)
        return missed, bias, compared.disagree()


STYLES = ("student", "wide", "gaussian")
"""How points can lie around a posterior's mode."""


def _check_numbers(numbers: dict[str, Any]) -> None:
    """Refuse plain numbers of a snapshot that no climb can have."""
    bounds = {"room": MOST_COMBINATIONS, "points": MOST_POINTS, "sets": MOST_SETS, "newton": 10}
    for name, most in bounds.items():
        at_least(name, numbers[name], 1)
        if numbers[name] > most:
            raise ValueError(f"`{name}` must be at most {most}, got {numbers[name]}.")
    one_of("style", numbers["style"], STYLES)
    for name in ("last", "began_at"):
        if not isinstance(numbers[name], float):
            raise ValueError(f"`{name}` must be a number, got {numbers[name]!r}.")
    start, at = Standing(), numbers["at"]
    for name in (n for n in Standing._fields if n != "pairs"):
        if type(at[name]) is not type(getattr(start, name)):
            raise ValueError(f"`{name}` must be like {getattr(start, name)!r}, got {at[name]!r}.")
    one_of("stage", at["stage"], ("em", "climb"))
    for name in ("number", "tries"):
        at_least(name, at[name], 0)


def _distinct(tree: PyTree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first of each distinct observation, which of these each one is, and their counts."""
    _, first, inverse, counts = np.unique(
        flat_rows(tree), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    return first, inverse.ravel(), counts.astype(float)


def _occurrences(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How many of the rows each value is; of values that are alike, the first counts."""
    distinct, which = np.unique(values, axis=0, return_inverse=True)
    at = position_of(distinct, rows)
    return np.bincount(at[at >= 0], minlength=len(distinct))[which.ravel()]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _floating(a: Any) -> Array:
    """An array, floating-point numbers as long as JAX has them now."""
    a = jnp.asarray(a)
    return a.astype(float) if jnp.issubdtype(a.dtype, jnp.floating) else a
