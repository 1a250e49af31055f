"""The Galton board, §5: how its pins are bent, from where the balls land.

The paper's example of a simulator whose output cannot be differentiated. A ball is dropped from one
of three hoppers h ∈ {−6, 0, 6} and meets R rows of pins; at each it moves one place to the right,
z_r = 1, or to the left, z_r = −1:

    P(z_r = 1 | z_1 … z_{r−1}) = σ(tilt + pull·u + bend·u² + momentum·z_{r−1}),    z_0 = 0,

where u = (h + z_1 + … + z_{r−1})/R is the ball's place. The board leans, draws balls in or throws
them out, not alike on its two sides, and a ball tends to go on as it went. The latent is the path
z, the observation x = (h, h + Σ_r z_r): a step function of every random number, whose derivative in
the parameters is zero wherever it exists. The density of a path is a product of probabilities.

One hopper would not do: pull and momentum both widen or narrow a single heap, and the correlation
of their estimates is −0.999. With three heaps it is −0.04.

Summing over paths row by row, with the place and the last move as the state, gives the exact
likelihood, and with it the exact maximum and the exact Fisher information to compare with.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

import alws
from alws_paper.run import Claim, Experiment, Run, Scale, significant

HOPPERS = (-6, 0, 6)
NAMES = ("tilt", "pull", "bend", "momentum")
TRUTH = (0.3, -1.4, 0.4, 0.6)
NATS = 0.02
"""How far below the exact maximum a fit may end, in nats a ball."""
INTERVAL = 3.0
"""How many exact standard errors an interval reaches to either side."""
AGREEMENT = 0.25
"""How far the standard errors may be off, as a share of the exact ones."""


class Galton(eqx.Module):
    """A board of `rows` rows, its four parameters, the simulator and the density of a path."""

    tilt: Float[Array, ""]
    pull: Float[Array, ""]
    bend: Float[Array, ""]
    momentum: Float[Array, ""]
    rows: int = eqx.field(static=True)

    @classmethod
    def of(cls, parameters: tuple[float, ...], rows: int) -> "Galton":
        """A board with these parameters."""
        return cls(*(jnp.array(p) for p in parameters), rows=rows)

    def logits(self, place: Float[Array, "*n"], last: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """log P(right)/P(left) at the pins of these places, after these moves."""
        u = place / self.rows
        return self.tilt + self.pull * u + self.bend * u**2 + self.momentum * last

    def sample(self, key: Key[Array, ""]) -> tuple[Float[Array, " rows"], Float[Array, "2"]]:
        """Drop a ball: the path z of ±1, and x = (hopper, landing place)."""
        hopper_key, path_key = jax.random.split(key)
        hopper = jax.random.choice(hopper_key, jnp.array(HOPPERS, self.tilt.dtype))

        def fall(state: tuple[Array, Array], u: Array) -> tuple[tuple[Array, Array], Array]:
            place, last = state
            move = jnp.where(u < jax.nn.sigmoid(self.logits(place, last)), 1.0, -1.0)
            return (place + move, move), move

        uniforms = jax.random.uniform(path_key, (self.rows,))
        (place, _), z = jax.lax.scan(fall, (hopper, jnp.zeros_like(hopper)), uniforms)
        return z, jnp.stack([hopper, place])

    def log_joint(self, z: Float[Array, " rows"], x: Float[Array, "2"]) -> Float[Array, ""]:
        """log p(z, x), minus infinity where the path does not end at x."""
        before = jnp.cumsum(z) - z
        last = jnp.concatenate([jnp.zeros(1, z.dtype), z[:-1]])
        moves = jax.nn.log_sigmoid(z * self.logits(x[0] + before, last)).sum()
        return jnp.where(x[1] == x[0] + z.sum(), moves - jnp.log(len(HOPPERS)), -jnp.inf)


@dataclass(frozen=True)
class Settings:
    """The settings of a run; `published` fits have `alws.PAPER`, as the paper has no others."""

    steps: int
    published: bool = False
    balls: int = 3000
    rows: int = 10
    sleep_samples: int = 1000


def run(settings: Settings, run: Run) -> list[Claim]:
    """Drop balls on the true board, fit a fair one to the landings, compare with exact values."""
    data_key, fit_key, error_key = jax.random.split(jax.random.key(run.seed), 3)

    truth, fair = Galton.of(TRUTH, settings.rows), Galton.of((0.0,) * 4, settings.rows)
    data = eqx.filter_jit(alws.draw)(truth, data_key, settings.balls)[0].x
    counts = count(data, settings.rows)

    result = alws.fit(
        fair,
        data,
        key=fit_key,
        steps=settings.steps,
        batch_size=settings.balls,
        settings=replace(
            alws.PAPER if settings.published else alws.Settings(),
            sleep_samples=settings.sleep_samples,
        ),
        **run.fit_arguments(),
    )
    found = alws.standard_errors(result, data, key=error_key)

    best = exact_maximum(truth, counts)
    run.save_figure(figure(result.model, found.errors, best, counts))
    return claims(result.model, found.errors, best, counts)


def count(x: Float[Array, "balls 2"], rows: int) -> Int[np.ndarray, "hoppers bins"]:
    """How many balls of each hopper landed where."""
    hopper, place = np.asarray(x, int).T
    table = np.zeros((len(HOPPERS), rows + 1), int)
    np.add.at(table, (np.searchsorted(HOPPERS, hopper), (place - hopper + rows) // 2), 1)
    return table


@eqx.filter_jit
def landing(board: Galton) -> Float[Array, "hoppers bins"]:
    """p(x) exactly: P(hopper, places −R, −R + 2 … R from it), by the forward recursion."""
    hoppers = jnp.array(HOPPERS, float)[:, None]
    rights = jnp.arange(board.rows + 1.0)

    def fall(state: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], None]:
        """P(place, last move left) and P(place, last move right), one row further down."""
        place = hoppers + 2 * rights - row
        moving = sum(
            probability * jax.nn.sigmoid(board.logits(place, jnp.full_like(place, last)))
            for probability, last in zip(state, (-1.0, 1.0), strict=True)
        )
        return (state[0] + state[1] - moving, jnp.roll(moving, 1, axis=1)), None

    first = jax.nn.sigmoid(board.logits(hoppers, jnp.zeros_like(hoppers))) / len(HOPPERS)
    left = jnp.where(rights == 0, 1 / len(HOPPERS) - first, 0.0)
    right = jnp.where(rights == 1, first, 0.0)
    (left, right), _ = jax.lax.scan(fall, (left, right), jnp.arange(1.0, board.rows))
    return left + right


@eqx.filter_jit
def mean_log_likelihood(board: Galton, counts: Array | np.ndarray) -> Float[Array, ""]:
    """The exact log likelihood, in nats a ball."""
    tiny = jnp.finfo(jnp.float32).tiny
    return jnp.sum(counts * jnp.log(landing(board) + tiny)) / counts.sum()


@eqx.filter_jit
def score_and_information(board: Galton, counts: Array) -> tuple[Array, Array]:
    """∇ of the mean log likelihood, and the exact Fisher information Σ_x ∇p ∇pᵀ/p in one ball."""
    flat, unravel = ravel_pytree(board)

    def probabilities(parameters: Array) -> tuple[Array, Array]:
        p = landing(unravel(parameters)).ravel()
        return p, p

    slopes, p = jax.jacfwd(probabilities, has_aux=True)(flat)
    relative = slopes / p[:, None]
    return relative.T @ counts.ravel() / counts.sum(), relative.T @ slopes


def exact_maximum(board: Galton, counts: np.ndarray, steps: int = 30) -> Galton:
    """The maximum of the exact likelihood, by Fisher scoring from `board`."""
    flat, unravel = ravel_pytree(board)
    for _ in range(steps):
        score, information = score_and_information(unravel(flat), jnp.asarray(counts))
        flat = flat + jnp.linalg.solve(information, score)
    return unravel(flat)


def exact_errors(board: Galton, balls: int) -> np.ndarray:
    """Standard errors by the inverse of the exact Fisher information in so many balls."""
    _, information = score_and_information(board, jnp.ones((len(HOPPERS), board.rows + 1)))
    return np.sqrt(np.diagonal(np.linalg.inv(balls * np.asarray(information, float))))


def values(board: Galton) -> np.ndarray:
    """The parameters in the order of `NAMES`."""
    return np.array([float(getattr(board, name)) for name in NAMES])


def figure(board: Galton, errors: Galton, best: Galton, counts: np.ndarray) -> Figure:
    """True and learnt pins, the three heaps with the learnt model, the parameters with errors."""
    fig = plt.figure(figsize=(11, 6.4), layout="constrained")
    top, bottom = fig.subfigures(2, 1, height_ratios=(1, 1.1))  # pyright: ignore
    boards = top.subplots(1, 2)
    truth = Galton.of(TRUTH, board.rows)
    for axis, (title, b) in zip(boards, {"true": truth, "learnt": board}.items(), strict=True):
        pins = draw_pins(axis, b)
        axis.set_title(f"{title} pins")
    top.colorbar(pins, ax=boards, label="P(right) before momentum", shrink=0.9)
    heaps, parameters = bottom.subplots(1, 2, width_ratios=(1.5, 1))
    expected = counts.sum() * np.asarray(landing(board))
    for i, hopper in enumerate(HOPPERS):
        places = hopper + np.arange(-board.rows, board.rows + 1, 2)
        shift = 0.5 * (i - 1)
        heaps.bar(places + shift, counts[i], 0.5, color=f"C{i}", alpha=0.5, label=f"from {hopper}")
        heaps.plot(places + shift, expected[i], "o", color=f"C{i}", ms=4, mec="k", mew=0.5)
    heaps.set(xlabel="landing place", ylabel="balls", title="balls (bars), learnt model (dots)")
    heaps.legend(title="hopper", fontsize=8)
    exact = exact_errors(board, int(counts.sum()))
    rows = np.arange(len(NAMES))[::-1]
    off = {
        "learnt, with own errors": (values(board), values(errors), 0.15, "C0"),
        "exact maximum, with exact errors": (values(best), exact, -0.15, "C1"),
    }
    for label, (value, error, lift, colour) in off.items():
        parameters.errorbar(
            (value - TRUTH) / exact, rows + lift, xerr=error / exact, fmt="o", label=label, c=colour
        )
    parameters.axvline(0, color="k", lw=0.8)
    parameters.set_yticks(rows, [f"{n} {t}" for n, t in zip(NAMES, TRUTH, strict=True)])
    parameters.set(xlabel="estimate − truth, in exact standard errors", ylim=(-0.6, 4.2))
    parameters.legend(fontsize=8, loc="upper left")
    plt.close(fig)
    return fig


def draw_pins(axis: Axes, board: Galton) -> PathCollection:
    """Every pin that a ball can meet, coloured by P(right) at it."""
    width = max(HOPPERS) + board.rows - 1
    row, place = np.mgrid[0 : board.rows, -width : width + 1]
    near = np.min([np.abs(place - h) for h in HOPPERS], axis=0) <= row
    met = near & ((place + row + HOPPERS[0]) % 2 == 0)
    probability = jax.nn.sigmoid(board.logits(jnp.array(place[met], float), jnp.zeros(met.sum())))
    axis.plot(HOPPERS, [-1] * len(HOPPERS), "kv", ms=8)
    axis.set(xticks=[], yticks=[], ylim=(board.rows - 0.5, -1.7), ylabel="row")
    return axis.scatter(place[met], row[met], c=probability, cmap="coolwarm", vmin=0, vmax=1, s=45)


def claims(board: Galton, errors: Galton, best: Galton, counts: np.ndarray) -> list[Claim]:
    """The fit against the exact maximum, the truth and the exact standard errors."""
    balls = int(counts.sum())
    reached, most = (float(mean_log_likelihood(b, counts)) for b in (board, best))
    exact = exact_errors(board, balls)
    fitted, ours, truth = values(board), values(errors), np.array(TRUTH)
    low, high = fitted - INTERVAL * exact, fitted + INTERVAL * exact
    shift = np.abs(fitted - values(best)) / exact
    off = ours / exact - 1
    return [
        Claim(
            "the likelihood reaches its exact maximum",
            f"not in the paper, which names the board (bar set beforehand: {NATS} nats a ball)",
            f"{most - reached:.2g} nats a ball below {most:.4f}, {balls * (most - reached):.2g} "
            f"over all {balls} balls; no parameter farther than {shift.max():.2f} standard errors "
            "from the exact maximum",
            most - reached < NATS,
            source="ours",
        ),
        Claim(
            "the parameters are found from landings alone",
            f"not in the paper (bar: every truth within {INTERVAL:.0f} exact standard errors)",
            "; ".join(
                f"{name} {f:.3f} in [{a:.3f}, {b:.3f}] for {t}"
                for name, f, a, b, t in zip(NAMES, fitted, low, high, truth, strict=True)
            ),
            bool(((low < truth) & (truth < high)).all()),
            source="ours",
        ),
        Claim(
            "standard errors from simulations agree with exact ones",
            f"not in the paper (bar: within {AGREEMENT:.0%})",
            "; ".join(
                f"{name} {significant(a)} for {significant(b)}, {o:+.0%}"
                for name, a, b, o in zip(NAMES, ours, exact, off, strict=True)
            ),
            bool((np.abs(off) < AGREEMENT).all()),
            source="ours",
        ),
    ]


def scale(settings: Settings) -> Scale:
    """The balls and the board."""
    return Scale(f"{settings.balls:,} balls, {settings.rows} rows, {settings.steps} steps")


EXPERIMENT = Experiment(
    name="galton",
    title="The Galton board: bent pins from where the balls land (§5)",
    presets={
        "quick": Settings(steps=60, balls=500, sleep_samples=200),
        "desk": Settings(steps=1000),
        "paper": Settings(4000, published=True, balls=20_000, rows=12, sleep_samples=2000),
    },
    run=run,
    scale=scale,
    not_printed="The paper names the board and fits none.",
)
