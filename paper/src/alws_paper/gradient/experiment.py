"""Parameter gradient estimation, §4.1: the likelihood's gradient on a toy model, three ways.

    z₁, z₂ ~ N(0, 1),  x | z ~ N(softplus(b·z) − ‖b‖², σ_x²)

On a grid of b: importance sampling with many proposals from the prior ("truth"), kernel ridge
regression on sleep samples (ALWS; `desk` on inducing points, `paper` exact), and the ELBO under the
best factorised Gaussian for each x.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jaxtyping import Array, Float, Key
from matplotlib.figure import Figure

import alws
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws_paper.run import Claim, Experiment, Run, significant

NOISES = (0.1, 0.3, 1.0)
TRUE_B, TRUE_NOISE = (1.0, 1.0), 0.1


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
    """The settings of a run; `paper` has those of the paper's table.

    x is a number here, so that regression on a few hundred inducing points loses nothing: `desk`
    has twice the paper's sleep samples in a third of its time.
    """

    sleep_samples: int = 2000
    inducing: int | None = None
    ridge: float = 0.01
    intercept: bool = True
    grid: int = 8
    proposals: int = 50_000
    data: int = 100
    repeats: int = 4
    variational_steps: int = 300
    variational_samples: int = 64


class Fields(eqx.Module):
    """Gradients on the grid for one σ_x; those of the regression for several sleep sets."""

    noise: float
    b: Float[np.ndarray, "grid 2"]
    truth: Float[np.ndarray, "grid 2"]
    regression: Float[np.ndarray, "repeats grid 2"]
    variational: Float[np.ndarray, "grid 2"]

    def error(self, estimate: np.ndarray) -> np.ndarray:
        """Relative errors ‖g − truth‖/‖truth‖ on the grid."""
        size = np.linalg.norm(self.truth, axis=-1)
        return np.linalg.norm(estimate - self.truth, axis=-1) / size


def run(settings: Settings, run: Run) -> list[Claim]:
    """Estimate the fields for each σ_x, draw them, check the claims."""
    fields = []
    for i, noise in enumerate(NOISES):
        fields.append(estimate_fields(noise, settings, jax.random.key(run.seed)))
        last = fields[-1]
        run.log(
            i + 1,
            len(NOISES),
            noise=noise,
            alws_error=float(np.median(last.error(last.regression))),
            variational_error=float(np.median(last.error(last.variational))),
        )
    run.save_figure(figure(fields))
    return claims(fields)


def estimate_fields(noise: float, settings: Settings, key: Key[Array, ""]) -> Fields:
    """All three gradients at every b of the grid."""
    data_key, proposal_key, sleep_key, q_key = jax.random.split(key, 4)
    true = Toy(jnp.array(TRUE_B), jnp.array(TRUE_NOISE))
    x = alws.draw(true, data_key, settings.data)[0].x
    side = jnp.linspace(0.25, 2.0, settings.grid)
    b = jnp.stack(jnp.meshgrid(side, side), axis=-1).reshape(-1, 2)
    sigma = jnp.array(noise)
    proposals = jax.random.normal(proposal_key, (settings.proposals, 2))

    @jax.jit
    def everywhere(b: Array, sleep_keys: Array, q_keys: Array) -> tuple[Array, Array, Array]:
        regression = partial(by_regression, noise=sigma, x=x, settings=settings)
        variational = partial(by_variational_inference, noise=sigma, x=x, settings=settings)
        return (
            jax.lax.map(lambda b: by_importance_sampling(b, sigma, x, proposals), b),
            jax.lax.map(
                lambda keys: jax.lax.map(lambda a: regression(a[0], key=a[1]), (b, keys)),
                sleep_keys,
            ),
            jax.lax.map(lambda a: variational(a[0], key=a[1]), (b, q_keys)),
        )

    sleep_keys = jax.random.split(sleep_key, (settings.repeats, len(b)))
    found = everywhere(b, sleep_keys, jax.random.split(q_key, len(b)))
    return Fields(noise, np.asarray(b), *map(np.asarray, found))


def by_importance_sampling(
    b: Float[Array, "2"], noise: Float[Array, ""], x: Float[Array, " data"], z: Float[Array, "k 2"]
) -> Float[Array, "2"]:
    """∇_b (1/M) Σ_m log (1/K) Σ_k p(x_m | z_k), z_k ~ p(z): the truth as K grows."""

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
    """∇_b (1/M) Σ_m Ĵ(x_m): kernel ridge regression on sleep samples from p_b."""
    model = Toy(b, noise)
    sleep, _ = alws.draw(model, key, settings.sleep_samples)
    kernel = SquaredExponential(track=False)
    shared: dict[str, Any] = {"ridge": settings.ridge, "intercept": settings.intercept}
    regression = (
        alws.regressions.KernelRidge(kernel, **shared)
        if settings.inducing is None
        else alws.regressions.Nystrom(kernel, inducing=settings.inducing, **shared)
    )
    smoother = regression.initialise(sleep.x).fit(sleep.x)
    estimate = alws.estimates.Natural()
    weights = estimate.weigh(model, smoother, sleep, x, None)
    return jax.grad(lambda b: estimate.objective(Toy(b, noise), sleep, weights, None))(b)


def figure(fields: list[Fields]) -> Figure:
    """A quiver plot for each σ_x, arrows of unit length scaled by the root of the gradient."""
    fig, axes = plt.subplots(1, len(fields), figsize=(5 * len(fields), 4.8), sharey=True)
    for axis, f in zip(axes, fields, strict=True):
        scale = np.sqrt(np.linalg.norm(f.truth, axis=-1, keepdims=True))
        styles = (
            ("importance sampling", f.truth, "black", 0.009),
            ("ALWS", f.regression[0], "tab:blue", 0.006),
            ("variational", f.variational, "tab:orange", 0.004),
        )
        for label, arrows, colour, width in styles:
            shown = arrows / scale
            axis.quiver(*f.b.T, *shown.T, label=label, color=colour, width=width, angles="xy")
        axis.set(title=f"$\\sigma_x = {f.noise}$", xlabel="$b_1$")
        axis.set_aspect("equal")
    axes[0].set_ylabel("$b_2$")
    axes[-1].legend(loc="upper right", fontsize=8, framealpha=1.0)
    fig.tight_layout()
    plt.close(fig)
    return fig


def claims(fields: list[Fields]) -> list[Claim]:
    """What the paper says of the three gradients."""
    found = []
    for f in fields:
        ours, theirs = np.median(f.error(f.regression)), np.median(f.error(f.variational))
        better = np.mean(f.error(f.regression) < f.error(f.variational))
        found.append(
            Claim(
                f"ALWS estimates the gradient better than variational inference, σx = {f.noise}",
                "better in most of the figure",
                f"median relative error {significant(ours)} against {significant(theirs)}; better "
                f"at {100 * better:.0f} % of the grid",
                bool(ours < theirs),
            )
        )
    size = np.linalg.norm(fields[0].b, axis=1)
    small, large = size < np.median(size), size >= np.median(size)
    gains = [_gain(fields, part) for part in (small, large)]
    found.append(
        Claim(
            "the advantage is largest for small b",
            "especially for small b",
            f"variational error over ALWS error: {significant(gains[0])} for the smaller half of "
            f"‖b‖, {significant(gains[1])} for the larger",
            bool(gains[0] > gains[1]),
        )
    )
    noise = [_relative_spread(f) for f in fields]
    found.append(
        Claim(
            "ALWS is noisiest at the smallest σx",
            "noisier for the smallest σx",
            "spread over sleep sets, relative to the gradient: "
            + ", ".join(
                f"{significant(s)} at σx = {f.noise}" for s, f in zip(noise, fields, strict=True)
            ),
            bool(noise[0] == max(noise)),
        )
    )
    first = fields[0]
    ours = np.median(first.error(first.regression.mean(axis=0)))
    theirs = np.median(first.error(first.variational))
    found.append(
        Claim(
            "variational inference is the more biased at the smallest σx",
            "introduces greater bias",
            f"median relative bias {significant(theirs)} against {significant(ours)} for ALWS",
            bool(theirs > ours),
        )
    )
    return found


def _gain(fields: list[Fields], part: np.ndarray) -> float:
    """How many times larger the variational error is, typically, on a part of the grid."""
    ratios = [np.log(f.error(f.variational) / f.error(f.regression))[:, part] for f in fields]
    return float(np.exp(np.median(np.concatenate(ratios, axis=None))))


def _relative_spread(f: Fields) -> float:
    spread = np.linalg.norm(f.regression.std(axis=0), axis=-1)
    return float(np.median(spread / np.linalg.norm(f.truth, axis=-1)))


EXPERIMENT = Experiment(
    name="gradient",
    title="the likelihood's gradient against importance sampling and variational inference (§4.1)",
    presets={
        "quick": Settings(
            sleep_samples=300, grid=3, proposals=5000, repeats=2, variational_steps=50
        ),
        "desk": Settings(sleep_samples=10_000, inducing=200),
        "paper": Settings(sleep_samples=5000, intercept=False),
    },
    run=run,
)
