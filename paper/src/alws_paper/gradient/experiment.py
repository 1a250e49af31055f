"""Parameter gradient estimation, §4.1: the likelihood's gradient on a toy model, three ways.

    z₁, z₂ ~ N(0, 1),  x | z ~ N(softplus(b·z) − ‖b‖², σ_x²)

On a grid of b and at smaller b: the exact gradient, by quadrature over b·z ~ N(0, ‖b‖²); the
paper's regression (its row of `alws.PAPER`: plain kernel ridge regression on 5000 sleep samples);
the regression of this library, on inducing points with an intercept; and the ELBO under the best
factorised Gaussian for each x. The paper's truth is importance sampling with proposals from the
prior; how far that is from the exact one is kept with the metrics.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jaxtyping import Array, Float, Key
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import alws
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws.regressions import AsPublished
from alws_paper.claim import is_lower
from alws_paper.run import Claim, Experiment, Run, Scale, significant
from alws_paper.shared.table import TABLE

PAPER = TABLE["gradient"]
NOISES = (0.1, 0.3, 1.0)
TRUE_B, TRUE_NOISE = (1.0, 1.0), 0.1
SMALL = 0.25
"""The smallest b₁ and b₂ of the grid; smaller ones follow down to a fifth of it."""
LONGEST_ARROW = 1.3
"""In distances of the grid; the longest exact one has one."""
BINS = 7
"""Ranges of ‖b‖ in the figure."""
WAYS = {"published": "the paper's regression", "regression": "the library's regression"}
"""Two regressions, as they are called in claims and in the figure."""


class Toy(eqx.Module):
    """The toy model; only the gradient in b is looked at."""

    b: Float[Array, "2"]
    noise: Float[Array, ""]

    def sample_latent(self, key: Key[Array, ""]) -> Float[Array, "2"]:
        return jax.random.normal(key, (2,))

    def log_prior(self, z: Float[Array, "2"]) -> Float[Array, ""]:
        return jax.scipy.stats.norm.logpdf(z).sum()

    def likelihood(self, z: Float[Array, "2"]) -> Gaussian:
        return Gaussian(jax.nn.softplus(self.b @ z) - self.b @ self.b, self.noise)


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    The library's regression has twice the paper's sleep samples in a fraction of its time. On
    inducing points the paper's would be another: at σx = 0.1, where data lie beyond most sleep
    samples, the two differ by more than the gradient.
    """

    sleep_samples: int = 10_000
    inducing: int = 200
    ridge: float = 0.01
    published_samples: int = PAPER.sleep_samples
    published_repeats: int = 2
    grid: int = 6
    smaller: int = 3
    proposals: int = 50_000
    data: int = 100
    repeats: int = 4
    variational_steps: int = 300
    variational_samples: int = 64


class Fields(eqx.Module):
    """Gradients at every b for one σ_x; those of the regressions for several sleep sets."""

    noise: float
    b: Float[np.ndarray, "places 2"]
    truth: Float[np.ndarray, "places 2"]
    sampled: Float[np.ndarray, "places 2"]
    published: Float[np.ndarray, "few places 2"]
    regression: Float[np.ndarray, "repeats places 2"]
    variational: Float[np.ndarray, "places 2"]

    def error(self, estimate: np.ndarray) -> np.ndarray:
        """Relative errors ‖g − truth‖/‖truth‖ on the grid."""
        size = np.linalg.norm(self.truth, axis=-1)
        return np.linalg.norm(estimate - self.truth, axis=-1) / size


def run(settings: Settings, run: Run) -> list[Claim]:
    """Estimate the fields for each σ_x, draw them, check the claims."""
    fields = []
    for i, noise in enumerate(NOISES):
        estimate = partial(estimate_fields, noise, settings, jax.random.key(run.seed))
        fields.append(Fields(noise, **run.once_arrays(f"fields-{noise}", estimate)))
        last = fields[-1]
        run.log(
            i + 1,
            len(NOISES),
            noise=noise,
            published_error=float(np.median(last.error(last.published))),
            alws_error=float(np.median(last.error(last.regression))),
            variational_error=float(np.median(last.error(last.variational))),
            importance_sampling_error=float(np.median(last.error(last.sampled))),
        )
    run.save_figure(figure(fields, settings.grid))
    return claims(fields)


def estimate_fields(
    noise: float, settings: Settings, key: Key[Array, ""]
) -> dict[str, Float[Array, "..."]]:
    """All gradients at every b, as `Fields` has them: those of the grid first, then the smaller."""
    data_key, proposal_key, sleep_key, q_key = jax.random.split(key, 4)
    true = Toy(jnp.array(TRUE_B), jnp.array(TRUE_NOISE))
    x = alws.draw(true, data_key, settings.data)[0].x
    sides = np.linspace(SMALL, 2.0, settings.grid), smaller_sides(settings.smaller)
    grids = [np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2) for side in sides]
    b = jnp.asarray(np.concatenate(grids), jnp.float32)
    proposals = jax.random.normal(proposal_key, (settings.proposals, 2))
    repeats = max(settings.repeats, settings.published_repeats)
    sleep_keys = jax.random.split(sleep_key, (repeats, len(b)))
    q_keys = jax.random.split(q_key, len(b))
    found = everywhere(b, jnp.array(noise), x, proposals, sleep_keys, q_keys, settings)
    names = ("truth", "sampled", "published", "regression", "variational")
    return {"b": b, **dict(zip(names, found, strict=True))}


@partial(jax.jit, static_argnames="settings")
def everywhere(
    b: Float[Array, "places 2"],
    noise: Float[Array, ""],
    x: Float[Array, " data"],
    proposals: Float[Array, "proposals 2"],
    sleep_keys: Key[Array, "repeats places"],
    q_keys: Key[Array, " places"],
    settings: Settings,
) -> tuple[Array, ...]:
    """The gradients of `Fields` from `truth` on, one place after the other."""
    shared = {"noise": noise, "x": x, "settings": settings}

    def repeated(way: Callable[..., Array], keys: Array) -> Array:
        def once(keys: Array) -> Array:
            return jax.lax.map(lambda a: way(a[0], key=a[1], **shared), (b, keys))

        return jax.lax.map(once, keys)

    return (
        jax.lax.map(lambda b: by_quadrature(b, noise, x), b),
        jax.lax.map(lambda b: by_importance_sampling(b, noise, x, proposals), b),
        repeated(by_published, sleep_keys[: settings.published_repeats]),
        repeated(by_regression, sleep_keys[: settings.repeats]),
        jax.lax.map(lambda a: by_variational_inference(a[0], key=a[1], **shared), (b, q_keys)),
    )


def smaller_sides(number: int) -> Float[np.ndarray, " number"]:
    """Values of b₁ and of b₂ below the grid's smallest."""
    return np.geomspace(SMALL / 5, SMALL, number, endpoint=False)


def by_quadrature(
    b: Float[Array, "2"], noise: Float[Array, ""], x: Float[Array, " data"]
) -> Float[Array, "2"]:
    """∇_b (1/M) Σ_m log ∫ N(x_m; softplus(‖b‖u) − ‖b‖², σ²) N(u; 0, 1) du, on 4001 nodes."""
    u = jnp.linspace(-8.0, 8.0, 4001)
    log_weight = jax.scipy.stats.norm.logpdf(u) + jnp.log(u[1] - u[0])

    def log_likelihood(b: Array) -> Array:
        size = jnp.sqrt(b @ b)
        mean = jax.nn.softplus(size * u) - b @ b
        densities = jax.scipy.stats.norm.logpdf(x[:, None], mean, noise)
        return jax.nn.logsumexp(densities + log_weight, axis=1).mean()

    return jax.grad(log_likelihood)(b)


def by_importance_sampling(
    b: Float[Array, "2"], noise: Float[Array, ""], x: Float[Array, " data"], z: Float[Array, "k 2"]
) -> Float[Array, "2"]:
    """∇_b (1/M) Σ_m log (1/K) Σ_k p(x_m | z_k), z_k ~ p(z): the paper's truth, as K grows."""

    def log_likelihood(b: Array) -> Array:
        model = Toy(b, noise)
        densities = jax.vmap(lambda z: jax.vmap(model.likelihood(z).log_prob)(x))(z)
        return jax.nn.logsumexp(densities, axis=0).mean()

    return jax.grad(log_likelihood)(b)


def by_variational_inference(
    b: Float[Array, "2"],
    noise: Float[Array, ""],
    x: Float[Array, " data"],
    key: Key[Array, ""],
    settings: Settings,
) -> Float[Array, "2"]:
    """∇_b of the ELBO, each x with its own factorised Gaussian, optimised from N(0, I) by Adam."""

    def elbo(q: tuple[Array, Array], b: Array, key: Array, samples: int) -> Array:
        mean, log_scale = q
        model = Toy(b, noise)
        z = mean + jnp.exp(log_scale) * jax.random.normal(key, (samples, *mean.shape))
        joint = jax.vmap(jax.vmap(lambda z, x: alws.log_joint(model, z, x)), (0, None))(z, x)
        return joint.mean() + log_scale.sum(axis=1).mean()

    optimiser = optax.adam(0.01)

    def improve(carry: tuple, key: Array) -> tuple[tuple, None]:
        q, state = carry
        # The ELBO is averaged over x, each with its own q: its sum is what Adam should see.
        loss = lambda q: -len(x) * elbo(q, b, key, settings.variational_samples)  # noqa: E731
        updates, state = optimiser.update(jax.grad(loss)(q), state)
        return (optax.apply_updates(q, updates), state), None

    q = (jnp.zeros((len(x), 2)), jnp.zeros((len(x), 2)))
    *keys, last = jax.random.split(key, settings.variational_steps + 1)
    (q, _), _ = jax.lax.scan(improve, (q, optimiser.init(q)), jnp.stack(keys))
    return jax.grad(lambda b: elbo(q, b, last, 50 * settings.variational_samples))(b)


def by_regression(
    b: Float[Array, "2"],
    noise: Float[Array, ""],
    x: Float[Array, " data"],
    key: Key[Array, ""],
    settings: Settings,
) -> Float[Array, "2"]:
    """∇_b (1/M) Σ_m Ĵ(x_m): the library's regression on sleep samples from p_b."""
    kernel = SquaredExponential(track=False)
    regression = alws.regressions.Nystrom(
        kernel, inducing=settings.inducing, ridge=settings.ridge, intercept=True
    )
    return regressed(regression, b, noise, x, key, settings.sleep_samples)


def by_published(
    b: Float[Array, "2"],
    noise: Float[Array, ""],
    x: Float[Array, " data"],
    key: Key[Array, ""],
    settings: Settings,
) -> Float[Array, "2"]:
    """The same by the paper's regression: no intercept, no clipping, every sleep sample."""
    regression = AsPublished(PAPER.ridge).make(x, key)
    return regressed(regression, b, noise, x, key, settings.published_samples)


def regressed(
    regression: alws.regressions.Regression,
    b: Float[Array, "2"],
    noise: Float[Array, ""],
    x: Float[Array, " data"],
    key: Key[Array, ""],
    sleep_samples: int,
) -> Float[Array, "2"]:
    """∇_b (1/M) Σ_m Ĵ(x_m), Ĵ from sleep samples of p_b."""
    model = Toy(b, noise)
    sleep, _ = alws.draw(model, key, sleep_samples)
    smoother = regression.initialise(sleep.x).fit(sleep.x)
    estimate = alws.estimates.Natural()
    weights = estimate.weigh(model, smoother, sleep, x, None)
    return jax.grad(lambda b: estimate.objective(Toy(b, noise), sleep, weights, None))(b)


def figure(fields: list[Fields], grid: int) -> Figure:
    """For each σ_x the arrows on the grid, scaled by a root of the gradient's size, and errors."""
    fig, axes = plt.subplots(2, len(fields), figsize=(11, 7.6), sharey="row", layout="constrained")
    colours = {"published": "tab:blue", "regression": "tab:green", "variational": "tab:orange"}
    names = {**WAYS, "variational": "factorised Gaussian"}
    for (arrows, errors), f in zip(axes.T, fields, strict=True):
        draw_arrows(arrows, f, grid**2, colours)
        for way, colour in colours.items():
            draw_errors(errors, f, np.atleast_3d(getattr(f, way)), colour, names[way])
        errors.set(xlabel="$\\|b\\|$", xscale="log", yscale="log")
    axes[0, 0].set_ylabel("$b_2$")
    axes[1, 0].set_ylabel("relative error of the gradient")
    handles, labels = axes[1, 0].get_legend_handles_labels()
    exact = Line2D([], [], color="black", lw=3)
    fig.legend([exact, *handles], ["exact", *labels], loc="outside lower center", ncols=4)
    fig.suptitle(
        "gradient of the log likelihood, and its errors: medians over directions of b, bars over "
        "sleep sets",
        fontsize=10,
    )
    plt.close(fig)
    return fig


def draw_arrows(axis: Axes, f: Fields, grid: int, colours: dict[str, str]) -> None:
    """The exact gradient on the grid, below one estimate of each kind.

    Lengths are as the root of a gradient's size, on one scale for all; the longest are cut.
    """
    estimates = [f.truth, f.published[0], f.regression[0], f.variational]
    styles = zip(("black", *colours.values()), (0.014, 0.009, 0.006, 0.004), strict=True)
    apart = np.ptp(f.b[:grid, 0]) / (np.sqrt(grid) - 1)
    longest = np.sqrt(np.linalg.norm(f.truth[:grid], axis=-1).max())
    for values, (colour, width) in zip(estimates, styles, strict=True):
        size = np.linalg.norm(values[:grid], axis=-1, keepdims=True)
        length = apart * np.minimum(np.sqrt(size) / longest, LONGEST_ARROW)
        shown = values[:grid] / size * length
        axis.quiver(
            *f.b[:grid].T,
            *shown.T,
            color=colour,
            width=width,
            angles="xy",
            scale_units="xy",
            scale=1,
        )
    axis.margins(0.2)
    axis.set(title=f"$\\sigma_x = {f.noise}$", xlabel="$b_1$")
    axis.set_aspect("equal")


def draw_errors(axis: Axes, f: Fields, estimates: np.ndarray, colour: str, label: str) -> None:
    """Relative errors against ‖b‖ in a few bins: the median, and its range over repeats."""
    errors = f.error(estimates.reshape(-1, *f.b.shape))
    size = np.linalg.norm(f.b, axis=1)
    edges = np.geomspace(size.min() * 0.99, size.max() * 1.01, BINS + 1)
    chosen = [np.flatnonzero((size >= a) & (size < z)) for a, z in itertools.pairwise(edges)]
    rows = [
        (np.sqrt(a * z), c) for (a, z), c in zip(itertools.pairwise(edges), chosen, strict=True)
    ]
    rows = [(middle, np.median(errors[:, c], axis=1)) for middle, c in rows if len(c)]
    x, y = np.array([r[0] for r in rows]), np.array([np.median(r[1]) for r in rows])
    low, high = (np.array([fn(r[1]) for r in rows]) for fn in (np.min, np.max))
    axis.errorbar(
        x, y, (y - low, high - y), fmt="-o", ms=4, lw=1, capsize=2, color=colour, label=label
    )


def claims(fields: list[Fields]) -> list[Claim]:
    """What the paper says of the three gradients, and the same of the library's regression."""
    return [claim for way in WAYS for claim in claims_of(way, fields)]


def claims_of(way: str, fields: list[Fields]) -> list[Claim]:
    """The claims on one of the two regressions; sleep sets that overlap decide nothing."""
    name, source = WAYS[way], "paper" if way == "published" else "ours"
    found = []
    for f in fields:
        errors, rival = f.error(getattr(f, way)), f.error(f.variational)
        ours, theirs = np.median(errors, axis=1), np.median(rival)
        found.append(
            Claim(
                f"{name} estimates the gradient better than variational inference, σx = {f.noise}",
                "better in most of the figure",
                f"median relative error {significant(np.median(errors))} against "
                f"{significant(theirs)}; better at {100 * np.mean(errors < rival):.0f} % of the "
                "places",
                is_lower(ours.tolist(), [float(theirs)]),
                source=source,
            )
        )
    small, large = gains(way, fields)
    found.append(
        Claim(
            f"the advantage of {name} is largest for small b",
            "especially for small b",
            f"variational error over its own: {significant(np.median(small))} for the smaller half "
            f"of ‖b‖, {significant(np.median(large))} for the larger",
            is_lower(large, small),
            source=source,
        )
    )
    spreads = [relative_spread(f, way) for f in fields]
    found.append(
        Claim(
            f"{name} is noisiest at the smallest σx",
            "noisier for the smallest σx",
            "spread over sleep sets, relative to the gradient: "
            + ", ".join(
                f"{significant(s)} at σx = {f.noise}" for s, f in zip(spreads, fields, strict=True)
            ),
            bool(spreads[0] == max(spreads)),
            source=source,
        )
    )
    first = fields[0]
    bias = np.median(first.error(getattr(first, way).mean(axis=0)))
    theirs = np.median(first.error(first.variational))
    found.append(
        Claim(
            f"variational inference is more biased than {name} at the smallest σx",
            "introduces greater bias",
            f"median relative bias {significant(theirs)} against {significant(bias)}",
            bool(theirs > bias),
            source=source,
        )
    )
    return [
        replace(c, undecided="the sleep sets overlap" if c.holds is None else "") for c in found
    ]


def gains(way: str, fields: list[Fields]) -> tuple[list[float], list[float]]:
    """How many times larger the variational error is for small and for large b, by sleep set."""
    size = np.linalg.norm(fields[0].b, axis=1)
    small = size < np.median(size)
    ratios = [np.log(f.error(f.variational) / f.error(getattr(f, way))) for f in fields]
    every = np.stack(ratios)
    parts = (np.exp(np.median(every[:, :, part], axis=(0, 2))) for part in (small, ~small))
    first, second = (part.tolist() for part in parts)
    return first, second


def relative_spread(f: Fields, way: str) -> float:
    """The standard deviation over sleep sets, typically, relative to the gradient."""
    spread = np.linalg.norm(getattr(f, way).std(axis=0, ddof=1), axis=-1)
    return float(np.median(spread / np.linalg.norm(f.truth, axis=-1)))


def scale(settings: Settings) -> Scale:
    """The data, places and sleep samples."""
    places = settings.grid**2 + settings.smaller**2
    return Scale(
        f"{settings.data} data, {places} b, N = {settings.published_samples:,} in "
        f"{settings.published_repeats} sets (paper's), {settings.sleep_samples:,} in "
        f"{settings.repeats} (library's)"
    )


EXPERIMENT = Experiment(
    name="gradient",
    title="the likelihood's gradient against importance sampling and variational inference (§4.1)",
    presets={
        "quick": Settings(
            sleep_samples=300,
            inducing=50,
            published_samples=300,
            grid=3,
            smaller=2,
            proposals=5000,
            repeats=2,
            variational_steps=50,
        ),
        "desk": Settings(),
        "paper": Settings(published_repeats=4, grid=8, repeats=4),
    },
    run=run,
    scale=scale,
    not_printed="The paper's grid of b is in a figure only.",
)
