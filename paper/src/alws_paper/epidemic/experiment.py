"""An epidemic seen through incomplete reports: a stochastic SIR model with discrete counts.

    new_t ~ Binomial(S_{t−1}, 1 − e^{−β I_{t−1}/n}),   recovered_t ~ Binomial(I_{t−1}, 1 − e^{−γ}),
    S_t = S_{t−1} − new_t,   I_t = I_{t−1} + new_t − recovered_t,   x_t ~ Binomial(new_t, ρ)

The number of infections and recoveries of every day is latent and discrete, and the counts that are
seen have no derivative in θ = (β, γ, ρ). Several outbreaks in towns of known size are fitted at
once. Not in the paper; users bring such models. The regression is a linear readout of what an
epidemiologist would look at: the curve week by week, its size, and when it passed each quarter.
Beside it is the fit by default, which sees the reports as they are: by particles.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float, Int, Key
from matplotlib.figure import Figure

import alws
from alws.features import Network
from alws_paper.run import Claim, Experiment, Run, Scale
from alws_paper.shared.by_default import fit_by_default

TRUTH = {"β": 0.5, "γ": 0.2, "ρ": 0.3}
START = {"β": 1.0, "γ": 0.5, "ρ": 0.7}
WITHIN = 3.0
"""The truth must lie within so many standard errors of the estimate."""
NARROW = 0.2
"""And a standard error must be at most this share of its parameter, so that it says something."""


class Town(NamedTuple):
    """Who can still be infected, who is infectious, and how many fell ill today."""

    susceptible: Int[Array, ""]
    infectious: Int[Array, ""]
    new: Int[Array, ""]


class Day(NamedTuple):
    """What happens in a day: infections and recoveries, or the distributions of both."""

    infections: Any
    recoveries: Any


class Count(dist.BinomialProbs):
    """Binomial(n, p), drawn by tossing as many coins as there are people and looking at n of them.

    A rejection sampler takes as many rounds as its slowest of all the simulations side by side.
    """

    def __init__(self, number: Int[Array, ""], probability: Float[Array, ""], most: int):
        super().__init__(probability, number, validate_args=False)
        self.most = most

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Int[Array, ""]:
        coins = jax.random.uniform(key, (self.most,)) < jnp.asarray(self.probs)
        return jnp.sum(coins & (jnp.arange(self.most) < jnp.asarray(self.total_count)))


class Epidemic(alws.StateSpace):
    """The SIR model of one town; rates are per day."""

    log_infection: Float[Array, ""]
    log_recovery: Float[Array, ""]
    logit_reporting: Float[Array, ""]
    population: int = eqx.field(static=True)
    seeds: int = eqx.field(static=True)
    times: int = eqx.field(static=True)
    observe_start = False

    def __init__(self, values: dict[str, float], population: int, seeds: int, days: int):
        self.log_infection = jnp.log(values["β"])
        self.log_recovery = jnp.log(values["γ"])
        self.logit_reporting = jax.scipy.special.logit(jnp.array(values["ρ"]))
        self.population, self.seeds, self.times = population, seeds, days

    def initial(self) -> None:
        return None

    def start(self, z: None) -> Town:
        infectious = jnp.array(self.seeds)
        return Town(self.population - infectious, infectious, jnp.zeros((), int))

    def transition(self, state: Town) -> Day:
        pressure = jnp.exp(self.log_infection) * state.infectious / self.population
        return Day(
            Count(state.susceptible, _probability(pressure), self.population),
            Count(state.infectious, _probability(jnp.exp(self.log_recovery)), self.population),
        )

    def update(self, state: Town, z: Day) -> Town:
        return Town(
            state.susceptible - z.infections,
            state.infectious + z.infections - z.recoveries,
            z.infections,
        )

    def observation(self, state: Town) -> dist.Distribution:
        return Count(state.new, jax.nn.sigmoid(self.logit_reporting), self.population)


def _probability(rate: Float[Array, ""]) -> Float[Array, ""]:
    """1 − e^{−rate}, kept off 0 and 1."""
    return jnp.clip(-jnp.expm1(-rate), 1e-7, 1 - 1e-6)


def parameters(model: Epidemic) -> dict[str, Float[Array, ""]]:
    """β, γ and ρ."""
    return {
        "β": jnp.exp(model.log_infection),
        "γ": jnp.exp(model.log_recovery),
        "ρ": jax.nn.sigmoid(model.logit_reporting),
    }


def values(model: Epidemic) -> dict[str, float]:
    """The same, as numbers."""
    return {name: float(value) for name, value in parameters(model).items()}


@dataclass(frozen=True)
class Settings:
    """The settings of a run; the paper has no such experiment, `paper` is a longer fit.

    `phases` are those of the standard errors; with 8 of them the noise can hide what the reports
    tell of recovery.
    """

    steps: int
    outbreaks: int = 60
    population: int = 150
    seeds: int = 5
    days: int = 42
    sleep_samples: int = 400
    learning_rate: float = 0.05
    ridge: float = 0.01
    phases: int = 32
    default_seconds: float = 120.0


def run(settings: Settings, run: Run) -> list[Claim]:
    """Simulate the outbreaks, fit the model to their reports, and check the estimates."""
    data_key, fit_key, error_key, sample_key = jax.random.split(jax.random.key(run.seed), 4)
    simulate = eqx.filter_jit(alws.draw)

    size = settings.population, settings.seeds, settings.days
    truth, start = Epidemic(TRUTH, *size), Epidemic(START, *size)
    data = np.asarray(simulate(truth, data_key, settings.outbreaks)[0].x)

    result = by_alws(start, data, fit_key, settings, run)
    errors = alws.standard_errors(
        result, data, key=error_key, information="expected", phases=settings.phases
    )
    found = values(result.model)
    widths = {name: float(value) for name, value in errors.of(parameters).items()}
    default = fit_by_default(run, start, data, key=fit_key, seconds=settings.default_seconds)

    fitted, begun = (
        np.asarray(simulate(model, sample_key, 200)[0].x) for model in (result.model, start)
    )
    run.save_figure(figure(data, fitted, begun, run.trace(), widths))
    return claims(found, widths) + default.claims(claims(values(default.model), widths)[:1])


def by_alws(
    start: Epidemic,
    data: Int[np.ndarray, "outbreaks days"],
    key: Key[Array, ""],
    settings: Settings,
    run: Run,
) -> alws.Result[Epidemic]:
    """The fit to all outbreaks at once, linear in what is seen of each."""
    schedule = optax.cosine_decay_schedule(settings.learning_rate, settings.steps)
    return alws.fit(
        start,
        data,
        key=key,
        steps=settings.steps,
        settings=alws.Settings(
            regression=alws.regressions.LinearReadout(Network(summaries), ridge=settings.ridge),
            optimiser=optax.adam(schedule),
            sleep_samples=settings.sleep_samples,
            adapt=alws.ALWS_F,
            measure_every=10,
        ),
        **run.fit_arguments(trace=parameters),
    )


def summaries(x: Int[Array, " days"]) -> Float[Array, " summaries"]:
    """Square roots of the weekly counts, the logarithm of their sum, the days of each quarter."""
    weeks = len(x) // 7
    weekly = jnp.sqrt(x[: 7 * weeks].reshape(weeks, 7).sum(axis=1))
    total = x.sum()
    share = jnp.cumsum(x) / (total + 1)
    quarters = jnp.stack([jnp.sum(jax.nn.sigmoid((q - share) / 0.05)) for q in (0.25, 0.5, 0.75)])
    return jnp.concatenate([weekly, jnp.log1p(total)[None], quarters / 7])


def figure(
    data: Int[np.ndarray, "outbreaks days"],
    fitted: Int[np.ndarray, "draws days"],
    begun: Int[np.ndarray, "draws days"],
    trace: dict[str, Float[np.ndarray, " reports"]],
    widths: dict[str, float],
) -> Figure:
    """Reported curves beside simulated ones, and every parameter through the fit."""
    fig, axes = plt.subplots(2, 3, figsize=(11, 6), height_ratios=[1.3, 1])
    panels = (("data", data, "black"), ("fitted", fitted, "tab:blue"), ("start", begun, "tab:grey"))
    top = 1.1 * max(data.max(), fitted.max())
    for axis, (name, curves, colour) in zip(axes[0], panels, strict=True):
        axis.plot(curves[:20].T, color=colour, alpha=0.4, linewidth=0.8)
        axis.plot(curves.mean(axis=0), color=colour, linewidth=2)
        axis.set(title=name, xlabel="day", ylim=(0, top))
    axes[0, 0].set_ylabel("reported cases")
    for axis, (name, true) in zip(axes[1], TRUTH.items(), strict=True):
        axis.plot(trace["step"], trace[name], color="tab:blue")
        axis.axhline(true, color="tab:orange", linestyle="--")
        axis.errorbar(
            trace["step"][-1], trace[name][-1], WITHIN * widths[name], color="tab:blue", capsize=3
        )
        axis.set(title=name, xlabel="step")
    fig.tight_layout()
    plt.close(fig)
    return fig


def claims(found: dict[str, float], widths: dict[str, float]) -> list[Claim]:
    """Every parameter within its interval, and no interval so wide that this means nothing."""
    described = "; ".join(
        f"{name} {value:.3f} in [{value - WITHIN * widths[name]:.3f}, "
        f"{value + WITHIN * widths[name]:.3f}] for {TRUTH[name]} (start {START[name]})"
        for name, value in found.items()
    )
    away = {name: abs(value - TRUTH[name]) / widths[name] for name, value in found.items()}
    share = {name: widths[name] / TRUTH[name] for name in found}
    return [
        Claim(
            "infection, recovery and reporting rates are found from reports alone",
            f"not in the paper (bar: every truth within {WITHIN:g} standard errors)",
            described,
            max(away.values()) <= WITHIN,
            source="ours",
        ),
        Claim(
            "the intervals are narrow enough to say something",
            f"not in the paper (bar: standard errors of at most {100 * NARROW:.0f} %)",
            ", ".join(f"{name} {100 * value:.1f} %" for name, value in share.items()),
            max(share.values()) <= NARROW,
            source="ours",
        ),
    ]


def scale(settings: Settings) -> Scale:
    """The outbreaks."""
    return Scale(f"{settings.outbreaks} outbreaks of {settings.days} days, {settings.steps} steps")


EXPERIMENT = Experiment(
    name="epidemic",
    title="a stochastic epidemic with under-reporting: rates from discrete counts",
    presets={
        "quick": Settings(
            steps=10, outbreaks=20, population=60, days=28, phases=8, default_seconds=3.0
        ),
        "desk": Settings(steps=1200),
        "paper": Settings(steps=4000, sleep_samples=2000, learning_rate=0.02),
    },
    run=run,
    scale=scale,
    not_printed="Not in the paper.",
)
