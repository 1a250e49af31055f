"""Hierarchical models, §4.3: a pinwheel of five arms, found by a model with ten components.

    z₁ ~ Cat(m),  z₂ | z₁=k ~ N(μ_k, Σ_k),  x | z₂ ~ N(NN_w(z₂), Σ_x)

Discrete and continuous latents in two layers. A Dirichlet penalty on the component probabilities
lets components that are not needed lose their weight; normal-inverse-Wishart terms hold the others.
The penalties are per observation. The paper prints a Dirichlet weight of 1e-3 (α = 0.999) and its
authors' code has 5e-3; `paper` takes the first, `desk` the second, which needs fewer steps. `paper`
is the paper's row of `alws.PAPER`: the kernel on the data as they are, constant rates.

The rival is a Bayesian version of the model with the same decoder, trained by a structured
inference network (SIN). Its samples are reconstructions of the data, as in the paper: they have
seen what they are compared with, the generated samples of ALWS have not.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, Float, Int, Key
from matplotlib.figure import Figure

import alws
from alws.features import Standardise
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws_paper.pinwheel.conjugate import mixture_prior
from alws_paper.pinwheel.data import pinwheel
from alws_paper.pinwheel.sin import Fitted, StructuredInference, fit_sin
from alws_paper.run import Claim, Experiment, Run, Scale, significant
from alws_paper.shared.mmd import mmd_two_sample_test
from alws_paper.shared.relative_mmd import relative_mmd_test
from alws_paper.shared.table import TABLE
from alws_paper.shared.training import decaying_adam

COMPONENTS = 10
ARMS = 5
PAPER = TABLE["pinwheel"]
KEPT = 0.05
"""A component keeps weight when its probability is above half of an even share of ten."""


class Pinwheel(eqx.Module):
    """The model of the paper, its logits, component means, Cholesky factors, network and noise."""

    logits: Float[Array, " components"]
    means: Float[Array, "components 2"]
    factors: Float[Array, "components 2 2"]
    network: eqx.nn.MLP
    log_noise: Float[Array, " 2"]

    def __init__(self, key: Key[Array, ""]):
        mean_key, *keys = jax.random.split(key, 4)
        self.logits = jnp.zeros(COMPONENTS)
        self.means = 0.5 * jax.random.normal(mean_key, (COMPONENTS, 2))
        self.factors = jnp.tile(0.3 * jnp.eye(2), (COMPONENTS, 1, 1))
        network = eqx.nn.MLP(2, 2, 20, 1, key=keys[0])
        weights = [
            0.2 * jax.random.normal(k, layer.weight.shape)
            for k, layer in zip(keys[1:], network.layers, strict=True)
        ]
        self.network = eqx.tree_at(lambda n: [layer.weight for layer in n.layers], network, weights)
        self.log_noise = -jnp.ones(2)

    def sample_latent(self, key: Key[Array, ""]) -> tuple[Int[Array, ""], Float[Array, "2"]]:
        component_key, place_key = jax.random.split(key)
        k = jax.random.categorical(component_key, self.logits)
        return k, self.means[k] + self.lower(k) @ jax.random.normal(place_key, (2,))

    def log_prior(self, z: tuple[Int[Array, ""], Float[Array, "2"]]) -> Float[Array, ""]:
        k, place = z
        lower = self.lower(k)
        white = jax.scipy.linalg.solve_triangular(lower, place - self.means[k], lower=True)
        log_density = jax.scipy.stats.norm.logpdf(white).sum() - log_determinant(lower)
        return jax.nn.log_softmax(self.logits)[k] + log_density

    def likelihood(self, z: tuple[Int[Array, ""], Float[Array, "2"]]) -> Gaussian:
        return Gaussian(self.network(z[1]), jnp.exp(self.log_noise))

    def lower(self, k: Int[Array, ""]) -> Float[Array, "2 2"]:
        """The Cholesky factor of Σ_k."""
        return jnp.tril(self.factors[k])


def log_determinant(lower: Float[Array, "2 2"]) -> Float[Array, ""]:
    """log |L| of a triangular matrix."""
    return jnp.log(jnp.abs(jnp.diagonal(lower))).sum()


@dataclass(frozen=True)
class Settings:
    """The settings of a run; where it is `published`, ALWS has those of the paper's table."""

    steps: int
    published: bool = False
    learning_rate: float = 3e-3
    sleep_samples: int = 1000
    batch_size: int = 200
    ridge: float = 0.01
    dirichlet: float = 5e-3
    strength: float = 1e-4
    points_per_arm: int = 500
    sin_steps: int = 4000
    sin_learning_rate: float = 1e-2
    test_samples: int = 1500


def penalty(model: Pinwheel, settings: Settings) -> Float[Array, ""]:
    """Log penalties per observation: Dirichlet on q, normal-inverse-Wishart on (μ, Σ), ‖w‖²."""
    lower = jnp.tril(model.factors)
    inverse = jnp.linalg.inv(lower)
    wishart = (
        jnp.sum(model.means**2)
        + 2 * jax.vmap(log_determinant)(lower).sum()
        + jnp.sum(inverse**2)
        + sum(jnp.sum(layer.weight**2) for layer in model.network.layers)
    )
    return (
        -settings.dirichlet * jax.nn.log_softmax(model.logits).sum() - settings.strength * wishart
    )


def run(settings: Settings, run: Run) -> list[Claim]:
    """Fit the model and its Bayesian rival to the pinwheel, draw the five panels."""
    data_key, start_key, fit_key, sample_key = jax.random.split(jax.random.key(run.seed), 4)

    start = Pinwheel(start_key)
    data, arm = pinwheel(data_key, points_per_arm=settings.points_per_arm)
    fresh, _ = pinwheel(jax.random.fold_in(data_key, 1), points_per_arm=settings.points_per_arm)

    sin = by_sin(start.network, data, jax.random.fold_in(fit_key, 1), settings, run)
    keys = jax.random.split(jax.random.fold_in(sample_key, 1), len(data))
    component, _, again = jax.jit(jax.vmap(sin.model.reconstruct))(data, keys)

    model = by_alws(start, data, fit_key, settings, run)
    draws, _ = eqx.filter_jit(alws.draw)(model, sample_key, 2000)

    run.save_figure(figure(model, data, arm, draws, (component, again)))
    return [
        *claims(model, data, arm, draws),
        relative_claim(draws.x, again, data, fresh, settings, sin),
    ]


def by_sin(
    network: eqx.nn.MLP, data: Array, key: Key[Array, ""], settings: Settings, run: Run
) -> Fitted:
    """The Bayesian model by SIN, its decoder starting from the same weights."""
    start_key, fit_key = jax.random.split(key)
    start = StructuredInference.start(
        start_key, network, components=COMPONENTS, latents=2, entries=2
    )
    prior = mixture_prior(COMPONENTS, 2)
    return run.once(
        "sin",
        Fitted(start, prior, jnp.zeros(settings.sin_steps)),
        lambda: fit_sin(
            start,
            data,
            key=fit_key,
            steps=settings.sin_steps,
            prior=prior,
            learning_rate=settings.sin_learning_rate,
        ),
    )


def by_alws(
    start: Pinwheel, data: Array, key: Key[Array, ""], settings: Settings, run: Run
) -> Pinwheel:
    """Maximum penalised likelihood, the kernel on standardised data unless as published."""
    kernel = SquaredExponential(Standardise.from_data(data))
    ours = alws.Settings(
        regression=alws.regressions.KernelRidge(kernel, ridge=settings.ridge),
        optimiser=decaying_adam(settings.steps, settings.learning_rate),
        sleep_samples=settings.sleep_samples,
    )
    return alws.fit(
        start,
        data,
        key=key,
        steps=settings.steps,
        batch_size=settings.batch_size,
        log_prior=lambda model: len(data) * penalty(model, settings),
        settings=PAPER.settings(settings.sleep_samples) if settings.published else ours,
        **run.fit_arguments(),
    ).model


def figure(
    model: Pinwheel, data: Array, arm: Array, draws: alws.Draws, sin: tuple[Array, Array]
) -> Figure:
    """Data, component probabilities, the first latent layer, generated samples, SIN's samples."""
    colours = plt.get_cmap("tab10")
    weights = np.asarray(jax.nn.softmax(model.logits))
    component, place = map(np.asarray, draws.z)
    fig, grid = plt.subplots(2, 3, figsize=(10, 6.4))
    axes = grid.ravel()
    axes[1].bar(range(COMPONENTS), weights, color=colours(range(COMPONENTS)))
    axes[1].axhline(1 / ARMS, color="grey", lw=0.8, ls="--")
    axes[1].set(title="component probabilities", xlabel="component", xticks=range(COMPONENTS))
    for axis, title, points, colour in (
        (axes[0], "data", data, arm),
        (axes[2], "latent $z_2$ by component", place, component),
        (axes[3], "generated by ALWS", draws.x, component),
        (axes[4], "reconstructed by SIN", sin[1], sin[0]),
    ):
        axis.scatter(*np.asarray(points).T, s=3, c=colours(np.asarray(colour)))
        axis.set(title=title, aspect="equal", adjustable="datalim")
    reach = 1.1 * float(jnp.abs(data).max())
    axes[5].axis("off")
    for axis in axes[[0, 3, 4]]:
        axis.set(xlim=(-reach, reach), ylim=(-reach, reach), adjustable="box")
    fig.tight_layout()
    plt.close(fig)
    return fig


def claims(model: Pinwheel, data: Array, arm: Array, draws: alws.Draws) -> list[Claim]:
    """What the paper says of the fitted model."""
    weights = np.sort(np.asarray(jax.nn.softmax(model.logits)))[::-1]
    kept = int(np.sum(weights > KEPT))
    purity = component_purity(data, arm, draws)
    half = len(data) // 2
    order = np.random.default_rng(0).permutation(len(data))[:1000]
    p_value = mmd_two_sample_test(data[order], draws.x[: min(1000, half)], seed=0)
    return [
        Claim(
            "the categorical distribution finds the five components",
            "5 of 10 components keep weight",
            f"{kept} of {COMPONENTS} above {KEPT}; the largest six: "
            + ", ".join(f"{w:.3f}" for w in weights[:6]),
            kept == ARMS,
        ),
        Claim(
            "each component is one arm",
            "colours and arms agree in the figure",
            f"{100 * purity:.1f} % of samples lie in the main arm of their component",
            purity > 0.95,
        ),
        Claim(
            "the generated samples match the data",
            "indistinguishable by eye",
            f"two-sample MMD test with 1000 samples each: p = {significant(p_value)}",
            p_value > 0.05,
        ),
    ]


def relative_claim(
    ours: Array, theirs: Array, data: Array, fresh: Array, settings: Settings, sin: Fitted
) -> Claim:
    """The relative MMD test; small p would say that ALWS is closer, p near 1 that SIN is.

    The bar for "cannot tell" is 0.05 < p < 0.95, against the data as in the paper. Against fresh
    data, which neither has seen, p is given beside it.
    """
    number = min(settings.test_samples, len(data))
    some, others = (np.random.default_rng(i).permutation(len(data))[:number] for i in (1, 2))
    test, unseen = (
        relative_mmd_test(ours[:number], theirs[some], reference[others])
        for reference in (data, fresh)
    )
    weights = sin.natural.weight / sin.natural.weight.sum()
    return Claim(
        "samples of ALWS and reconstructions by SIN are equally close to the data",
        "the relative MMD test cannot tell them apart: p = 0.514",
        f"p = {significant(test.p_value)} with {number} samples each (MMD² {test.first_mmd:.1e} "
        f"and {test.second_mmd:.1e}); against fresh data p = {significant(unseen.p_value)}; SIN "
        f"keeps {int((weights > KEPT).sum())} components",
        0.05 < test.p_value < 0.95,
    )


def component_purity(data: Array, arm: Array, draws: alws.Draws) -> float:
    """The share of generated points whose nearest datum is in the main arm of their component."""
    nearest = np.asarray(arm)[np.asarray(nearest_index(draws.x, data))]
    component = np.asarray(draws.z[0])
    counts = np.array(
        [np.bincount(nearest[component == k], minlength=ARMS) for k in range(COMPONENTS)]
    )
    return float(counts.max(axis=1).sum() / counts.sum())


def nearest_index(x: Float[Array, "n 2"], data: Float[Array, "m 2"]) -> Int[Array, " n"]:
    """The index of the datum nearest to each point."""
    return jnp.argmin(alws.kernels.squared_distances(x, data), axis=1)


def scale(settings: Settings) -> Scale:
    """The points, and what share of 2500 epochs of them a run sees."""
    return Scale(
        f"{ARMS * settings.points_per_arm} points, {settings.steps} steps of "
        f"{settings.batch_size}, Dirichlet weight {settings.dirichlet:g}",
        PAPER.share(settings.steps, settings.batch_size),
    )


EXPERIMENT = Experiment(
    name="pinwheel",
    title="discrete and continuous latents in a hierarchy: five arms, ten components (§4.3)",
    presets={
        "quick": Settings(
            steps=60, sleep_samples=300, points_per_arm=100, batch_size=100, sin_steps=60
        ),
        "desk": Settings(steps=8000, learning_rate=5e-3),
        "paper": Settings(
            steps=PAPER.steps,
            published=True,
            sleep_samples=PAPER.sleep_samples,
            batch_size=PAPER.batch_size,
            dirichlet=1e-3,
            sin_steps=20_000,
        ),
    },
    run=run,
    scale=scale,
    not_printed="Whether the penalties are for the data set or for each observation is not "
    "printed; they are for each, as in the authors' code.",
)
