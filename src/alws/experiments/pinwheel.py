"""Hierarchical models, §4.3: a pinwheel of five arms, found by a model with ten components.

    z₁ ~ Cat(m),  z₂ | z₁=k ~ N(μ_k, Σ_k),  x | z₂ ~ N(NN_w(z₂), Σ_x)

Discrete and continuous latents in two layers. A Dirichlet penalty on the component probabilities
lets components that are not needed lose their weight; normal-inverse-Wishart terms hold the others.
The penalties are per observation. The paper prints a Dirichlet weight of 1e-3 (α = 0.999) and its
authors' code has 5e-3; `paper` takes the first, `desk` the second, which needs fewer steps.
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
from alws import defaults
from alws.data import pinwheel
from alws.experiments.experiment import Claim, Experiment, Run, significant
from alws.features import Standardise
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws.metrics import mmd_two_sample_test

COMPONENTS = 10
ARMS = 5
KEPT = 0.05
"""A component keeps weight when its probability is above half of an even share of ten."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run; `paper` has those of the paper's table."""

    steps: int
    learning_rate: float = 3e-3
    sleep_samples: int = 1000
    batch_size: int = 200
    ridge: float = 0.01
    dirichlet: float = 5e-3
    strength: float = 1e-4
    points_per_arm: int = 500


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
    """Fit, draw the four panels, check the claims."""
    data_key, start_key, fit_key, sample_key = jax.random.split(jax.random.key(run.seed), 4)
    data, arm = pinwheel(data_key, points_per_arm=settings.points_per_arm)
    kernel = SquaredExponential(Standardise.from_data(data))  # pyright: ignore
    result = alws.fit(
        Pinwheel(start_key),
        data,
        key=fit_key,
        steps=settings.steps,
        batch_size=settings.batch_size,
        log_prior=lambda model: len(data) * penalty(model, settings),
        settings=alws.Settings(
            gradient_model=alws.KernelRidge(kernel, ridge=settings.ridge),
            optimiser=defaults.optimiser(settings.steps, settings.learning_rate),
            sleep_samples=settings.sleep_samples,
        ),
        **run.fit_arguments(),
    )
    draws, _ = eqx.filter_jit(alws.draw)(result.model, sample_key, 2000)
    run.save_figure(figure(result.model, data, arm, draws))
    return claims(result.model, data, arm, draws)


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


def figure(model: Pinwheel, data: Array, arm: Array, draws: alws.Draws) -> Figure:
    """Data, component probabilities, the first latent layer, generated samples."""
    colours = plt.get_cmap("tab10")
    weights = np.asarray(jax.nn.softmax(model.logits))
    component, place = map(np.asarray, draws.z)
    fig, axes = plt.subplots(1, 4, figsize=(14, 3.4))
    axes[0].scatter(*np.asarray(data).T, s=3, c=colours(np.asarray(arm)))
    axes[0].set_title("data")
    axes[1].bar(range(COMPONENTS), weights, color=colours(range(COMPONENTS)))
    axes[1].axhline(1 / ARMS, color="grey", lw=0.8, ls="--")
    axes[1].set(title="component probabilities", xlabel="component", xticks=range(COMPONENTS))
    axes[2].scatter(*place.T, s=3, c=colours(component))
    axes[2].set_title("latent $z_2$ by component")
    axes[3].scatter(*np.asarray(draws.x).T, s=3, c=colours(component))
    axes[3].set_title("generated data")
    for axis in (axes[0], axes[2], axes[3]):
        axis.set_aspect("equal", adjustable="datalim")
    axes[3].sharex(axes[0])
    fig.tight_layout()
    plt.close(fig)
    return fig


EXPERIMENT = Experiment(
    name="pinwheel",
    title="discrete and continuous latents in a hierarchy: five arms, ten components (§4.3)",
    presets={
        "quick": Settings(steps=60, sleep_samples=300, points_per_arm=100, batch_size=100),
        "desk": Settings(steps=8000, learning_rate=5e-3),
        "paper": Settings(steps=31_250, learning_rate=1e-3, dirichlet=1e-3),
    },
    run=run,
)
