"""Nonlinear oscillations, §4.6: the dynamics behind a moving image, found from thirty steps.

    z_t = NN(z_{t−1}) + σ_z ε_t,   x_t = NN(z_t) + σ_x noise

The data are 20-pixel images of one coordinate of a rotating latent; the model has to find that its
two latents are a position, which is seen, and a velocity, which is not. Three sequences of 30 steps
are fitted, each as one observation, and sequences of 100 steps are generated.

The latents are the noise ε: the states follow from it, and the gradient of what is seen flows back
through them in time. With the states themselves as latents, the networks learn to draw each image
from two independent numbers, and no dynamics. The estimate is `Cross`, made for few observations.
Some starts end in a poor maximum: of several, the one with the highest J is kept.

`paper` is the paper's row of `alws.PAPER` on the raw images: a squared exponential kernel on 200
projections of the whole sequence, the states themselves as latents, one start, one sequence a step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float, Key
from matplotlib.figure import Figure

import alws
from alws.features import Linear
from alws_paper.oscillation.data import ANGLE, PIXELS, oscillations
from alws_paper.run import Claim, Experiment, Run, Scale
from alws_paper.shared.table import TABLE

PAPER = TABLE["oscillation"]
SEQUENCES = 3
"""The training sequences of the paper's figure."""
GENERATED = 100
"""Steps of a generated sequence."""
PERIOD_WITHIN = 1
STILL_MOVING = 0.5
"""The variance over the last thirty steps must be this share of the data's at least."""
DECODABLE = 0.5
"""Least R² at which a latent counts as carried."""


class Oscillator(alws.StateSpace):
    """Two latents moved and shown by small networks."""

    move: eqx.nn.MLP
    show: eqx.nn.MLP
    first: Float[Array, "2"]
    log_latent_noise: Float[Array, "2"]
    log_pixel_noise: Float[Array, ""]
    times: int = eqx.field(static=True)
    observe_start = False

    def __init__(self, key: Key[Array, ""], times: int):
        move_key, show_key = jax.random.split(key)
        self.move = eqx.nn.MLP(2, 2, 20, 1, jnp.tanh, key=move_key)
        self.show = eqx.nn.MLP(2, PIXELS, 20, 1, jnp.tanh, key=show_key)
        self.first = jnp.zeros(2)
        self.log_latent_noise = jnp.full(2, jnp.log(0.3))
        self.log_pixel_noise = jnp.zeros(())
        self.times = times

    def initial(self) -> None:
        return None

    def start(self, z: None) -> Float[Array, "2"]:
        return self.first

    def transition(self, state: Float[Array, "2"]) -> dist.Distribution:
        return dist.Normal(jnp.zeros(2), 1.0).to_event(1)

    def update(self, state: Float[Array, "2"], z: Float[Array, "2"]) -> Float[Array, "2"]:
        return self.move(state) + jnp.exp(self.log_latent_noise) * z

    def observation(self, state: Float[Array, "2"]) -> dist.Distribution:
        return dist.Normal(self.show(state), jnp.exp(self.log_pixel_noise)).to_event(1)


class PrintedOscillator(Oscillator):
    """The model as printed: the states are the latents, z_t ~ N(NN(z_{t−1}), Σ_z)."""

    def transition(self, state: Float[Array, "2"]) -> dist.Distribution:
        return dist.Normal(self.move(state), jnp.exp(self.log_latent_noise)).to_event(1)

    def update(self, state: Float[Array, "2"], z: Float[Array, "2"]) -> Float[Array, "2"]:
        return z


@dataclass(frozen=True)
class Settings:
    """The settings of a run; where it is `published`, model and ALWS are the paper's."""

    steps: int
    published: bool = False
    starts: int = 4
    sequences: int = SEQUENCES
    times: int = 30
    sleep_samples: int = 300
    projections: int = 100
    ridge: float = 0.1
    learning_rate: float = 0.01
    drawn: int = 50


class Generated(NamedTuple):
    """Sequences a model generates: states, and images without their noise."""

    states: Float[np.ndarray, "sequences times 2"]
    images: Float[np.ndarray, "sequences times pixels"]


def run(settings: Settings, run: Run) -> list[Claim]:
    """Fit three sequences, generate longer ones, and compare their rhythm."""
    data_key, start_key, feature_key, fit_key, draw_key = jax.random.split(
        jax.random.key(run.seed), 5
    )

    model = PrintedOscillator if settings.published else Oscillator
    keys = jax.random.split(start_key, settings.starts)
    starts = [model(key, settings.times) for key in keys]  # pyright: ignore
    images, _ = oscillations(data_key, settings.sequences, GENERATED)
    seen = images[:, : settings.times]

    features = Linear.random(feature_key, settings.times * PIXELS, settings.projections)
    names = ["checkpoint", *(f"start-{i}" for i in range(1, settings.starts))]
    fits = [
        by_alws(name, start, seen, features, fit_key, settings, run)
        for name, start in zip(names, starts, strict=True)
    ]
    heights = [fit.metrics["objective"][-max(1, settings.steps // 50) :].mean() for fit in fits]
    best = fits[highest(heights, [attainable(fit.model) for fit in fits])].model

    generated = generate(best, draw_key, settings.drawn)
    run.save_figure(figure(np.asarray(images[0]), generated, settings.times))
    return claims(np.asarray(images), generated, heights)


def by_alws(
    name: str,
    start: Oscillator,
    data: Float[Array, "sequences times pixels"],
    features: Linear,
    key: Key[Array, ""],
    settings: Settings,
    run: Run,
) -> alws.Result[Oscillator]:
    """The fit from one start."""
    schedule = optax.cosine_decay_schedule(settings.learning_rate, settings.steps, 0.1)
    ours = alws.Settings(
        regression=alws.regressions.LinearReadout(features, ridge=settings.ridge, reach=4.0),
        estimate=alws.estimates.Cross(),
        optimiser=optax.chain(optax.clip_by_global_norm(1e3), optax.adam(schedule)),
        sleep_samples=settings.sleep_samples,
        validation_samples=10,
        adapt=alws.ALWS_F,
        measure_every=10,
    )
    return alws.fit(
        start,
        data,
        key=key,
        steps=settings.steps,
        batch_size=PAPER.batch_size if settings.published else len(data),
        settings=PAPER.settings(settings.sleep_samples) if settings.published else ours,
        **run.fit_arguments(name),
    )


def attainable(model: Oscillator) -> float:
    """The most that log p(z, x) of a sequence can be: every pixel and every latent at its mean.

    The regression's weights may be negative, so a fit can run after a J beyond this, which is no
    likelihood of anything.
    """
    at_mean = jnp.log(2 * jnp.pi) / 2
    pixels = PIXELS * (model.log_pixel_noise + at_mean)
    states = model.first.size * at_mean
    if isinstance(model, PrintedOscillator):
        states += model.log_latent_noise.sum()
    return float(-model.times * (pixels + states))


def highest(heights: list[float], limits: list[float]) -> int:
    """Which start has the highest J among those within their limits, or among all if none is."""
    within = [h if h <= limit else -np.inf for h, limit in zip(heights, limits, strict=True)]
    return int(np.argmax(within if np.isfinite(within).any() else heights))


def generate(model: Oscillator, key: Key[Array, ""], number: int) -> Generated:
    """Sequences of 100 steps from the fitted model, left to itself."""
    longer = alws.Given(observed=jnp.ones(GENERATED, bool))

    @eqx.filter_jit
    def sequences(model: Oscillator) -> tuple[Array, Array]:
        def one(key: Array) -> tuple[Array, Array]:
            z, x = model.sample(key, longer)
            states = model.states(z, x, longer)[1]
            return states, jax.vmap(model.show)(states)

        return jax.vmap(one)(jax.random.split(key, number))

    return Generated(*map(np.asarray, sequences(model)))


def autocorrelation(
    images: Float[np.ndarray, "sequences times pixels"], lags: int
) -> Float[np.ndarray, " lags"]:
    """Of all pixels about their mean over time, averaged over the sequences."""
    centred = images - images.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=(1, 2))
    times = images.shape[1]
    shifted = [
        (centred[:, lag:] * centred[:, : times - lag]).mean(axis=(1, 2)) for lag in range(lags)
    ]
    return (np.stack(shifted) / variance).mean(axis=1)


def period(images: Float[np.ndarray, "sequences times pixels"]) -> int:
    """The lag of the highest autocorrelation after its first minimum."""
    curve = autocorrelation(images, images.shape[1] // 2)
    trough = int(np.argmax(np.diff(curve) > 0))
    return trough + int(np.argmax(curve[trough:]))


def decodability(generated: Generated) -> dict[str, float]:
    """R² of position and velocity of the bump of light, each a linear function of the latents."""
    centres = np.linspace(-1.5, 1.5, PIXELS)
    light = np.maximum(generated.images, 0) ** 2
    position = (light @ centres) / light.sum(axis=2)
    velocity = (position[:, 2:] - position[:, :-2]) / 2
    states = generated.states[:, 1:-1].reshape(-1, 2)
    inputs = np.column_stack([states, np.ones(len(states))])
    scores = {}
    for name, values in (("position", position[:, 1:-1]), ("velocity", velocity)):
        target = values.ravel()
        rest = target - inputs @ np.linalg.lstsq(inputs, target, rcond=None)[0]
        scores[name] = 1 - float(rest.var() / target.var())
    return scores


def figure(example: Float[np.ndarray, "times pixels"], generated: Generated, times: int) -> Figure:
    """A true sequence with the part that was seen, the latents, and a generated sequence."""
    fig, axes = plt.subplots(3, 1, figsize=(9, 7), height_ratios=[1, 2.2, 1])
    axes[0].imshow(example.T, aspect="auto", cmap="gray", origin="lower")
    axes[0].axvline(times - 0.5, color="red")
    axes[0].set(title="data; the model sees what is left of the red line", ylabel="pixel")
    centres = np.linspace(-1.5, 1.5, PIXELS)
    light = np.maximum(generated.images, 0) ** 2
    position = (light @ centres) / light.sum(axis=2)
    points = axes[1].scatter(*generated.states[:10].reshape(-1, 2).T, c=position[:10].ravel(), s=8)
    axes[1].plot(*generated.states[0, -25:].T, color="black", linewidth=0.8)
    axes[1].set(title="latents of generated sequences; the line is two periods of one of them")
    axes[1].set_aspect("equal", adjustable="datalim")
    fig.colorbar(points, ax=axes[1], label="position shown")
    axes[2].imshow(generated.images[0].T, aspect="auto", cmap="gray", origin="lower")
    axes[2].set(title="generated", xlabel="time", ylabel="pixel")
    fig.tight_layout()
    plt.close(fig)
    return fig


def claims(
    images: Float[np.ndarray, "sequences times pixels"],
    generated: Generated,
    heights: list[float],
) -> list[Claim]:
    """The rhythm goes on, and the latents are position and velocity."""
    true, found = round(2 * np.pi / float(ANGLE)), period(generated.images)
    late = float(generated.images[:, -30:].var(axis=1).mean() / images.var(axis=1).mean())
    peak = float(autocorrelation(generated.images, found + 1)[found])
    scores = decodability(generated)
    return [
        Claim(
            "generated sequences keep oscillating over 100 steps with the true period",
            "shown in a figure",
            f"autocorrelation peaks at {found} steps ({peak:.2f} high; the data's period is {true},"
            f" {period(images)} by the same measure); variance of the last 30 steps {late:.2f} "
            "times the data's. J of each start, the highest attainable one taken: "
            + ", ".join(f"{height:.0f}" for height in heights),
            abs(found - true) <= PERIOD_WITHIN and late >= STILL_MOVING,
        ),
        Claim(
            f"the latents carry position and velocity (linear decoding, R² ≥ {DECODABLE})",
            "shown in a figure",
            ", ".join(f"{name} R² {score:.2f}" for name, score in scores.items()),
            min(scores.values()) >= DECODABLE,
        ),
    ]


def scale(settings: Settings) -> Scale:
    """The sequences, and what share of 5000 epochs of three of them a run sees."""
    batch = PAPER.batch_size if settings.published else settings.sequences
    share = PAPER.share(settings.steps, batch) / SEQUENCES
    what = f"{settings.sequences} sequences of {settings.times} images, {settings.starts} starts"
    return Scale(f"{what}, {settings.steps:,} steps of {batch}", share)


EXPERIMENT = Experiment(
    name="oscillation",
    title="nonlinear oscillations: a hidden velocity found from thirty images (§4.6)",
    presets={
        "quick": Settings(steps=20, starts=1, sleep_samples=60, projections=30, drawn=5),
        "desk": Settings(steps=2000),
        "paper": Settings(
            steps=SEQUENCES * PAPER.steps,
            published=True,
            starts=1,
            sleep_samples=PAPER.sleep_samples,
        ),
    },
    run=run,
    scale=scale,
    not_printed="The text has one training sequence, the figure three; `paper` has three.",
)
