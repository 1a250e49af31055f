"""Why not approximate the posterior, figure 1: a VAE's exact posteriors beside its encoder's.

    z ~ N(0, I₂),  x | z ~ Bernoulli(sigmoid(NN_w(z))),  q(z | x) = N(μ(x), diag σ²(x))

trained on binarised digits. With two latents the exact posterior p(z | x) can be had on a grid. The
encoder only ever gives Gaussians; how far p(z | x) is from any Gaussian at all is

    KL(p(z | x) ‖ N(m, S)) = log det(2πe S)/2 − H[p(z | x)],

m and S its own mean and covariance, the best Gaussian in this sense.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.ndimage import label

from alws.likelihoods import Bernoulli
from alws_paper.images import images
from alws_paper.run import Claim, Experiment, Run, Scale, significant
from alws_paper.shared.vae import Autoencoder, DiagonalGaussian, train
from alws_paper.vae_posterior.figure import SHOWN, Panel, figure, window_around

SIDE = 28
DISTORTED = 0.1
"""Nats from the best Gaussian beyond which a posterior counts as distorted."""
REGION, PIECE = 0.9, 0.05
"""Several modes: the smallest region with 90 % of the mass is in pieces of at least 5 % each."""
SHARE = 0.01
"""The share of images that makes a "may be" true."""


class Digits(eqx.Module):
    """The decoder: 2 → width → width → 784 pixels."""

    network: eqx.nn.MLP

    def __init__(self, width: int, key: Key[Array, ""]):
        self.network = eqx.nn.MLP(2, SIDE**2, width, 2, key=key)

    def sample_latent(self, key: Key[Array, ""]) -> Float[Array, "2"]:
        return jax.random.normal(key, (2,))

    def log_prior(self, z: Float[Array, "2"]) -> Float[Array, ""]:
        return jax.scipy.stats.norm.logpdf(z).sum()

    def likelihood(self, z: Float[Array, "2"]) -> Bernoulli:
        return Bernoulli(self.network(z))


class Encoder(eqx.Module):
    """784 pixels → width → width → mean and log standard deviation."""

    network: eqx.nn.MLP

    def __init__(self, width: int, key: Key[Array, ""]):
        self.network = eqx.nn.MLP(SIDE**2, 4, width, 2, key=key)

    def __call__(self, x: Float[Array, " pixels"]) -> DiagonalGaussian:
        numbers = self.network(x)
        return DiagonalGaussian(numbers[:2], numbers[2:])


@dataclass(frozen=True)
class Settings:
    """The settings of a run; the grid is [−radius, radius]² with this spacing."""

    steps: int
    width: int = 500
    data_size: int = 60_000
    tested: int = 1000
    radius: float = 5.0
    spacing: float = 0.02
    learning_rate: float = 1e-3
    batch_size: int = 100


class Grid(NamedTuple):
    """The nodes of a square grid, row by row, first coordinate along columns."""

    axis: Float[np.ndarray, " side"]
    z: Float[np.ndarray, "nodes 2"]

    @property
    def log_area(self) -> float:
        """The logarithm of one cell's area."""
        return 2 * float(np.log(self.axis[1] - self.axis[0]))


class Measured(NamedTuple):
    """For each image: log p(x), nats, whether there are several modes, and how the grid fits.

    `edge` is the posterior's mass on the grid's edge, `narrowest` its smallest standard deviation
    in steps of the grid: sums over a grid are all but exact from about 1 on.
    """

    log_likelihood: Float[np.ndarray, " images"]
    to_encoder: Float[np.ndarray, " images"]
    from_encoder: Float[np.ndarray, " images"]
    to_best: Float[np.ndarray, " images"]
    several: Float[np.ndarray, " images"]
    edge: Float[np.ndarray, " images"]
    narrowest: Float[np.ndarray, " images"]


def run(settings: Settings, run: Run) -> list[Claim]:
    """Train, measure the posteriors of test images, draw the figure, check the claims."""
    decoder_key, encoder_key, train_key = jax.random.split(jax.random.key(run.seed), 3)

    start = Autoencoder(Encoder(settings.width, encoder_key), Digits(settings.width, decoder_key))
    data, test = binarised(settings, run.seed)

    trained, elbos = train(
        start,
        data,
        key=train_key,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        batch_size=settings.batch_size,
        checkpoint=run.directory / "vae.npz",
    )
    run.log(settings.steps, settings.steps, elbo=float(elbos[-1]))

    grid = square_grid(settings.radius, settings.spacing)
    measured = measure(trained, test, grid)
    chosen = [quantile_index(measured.to_best, share) for share in SHOWN]
    panels = [panel(trained, test, measured, grid, index) for index in chosen]
    run.save_figure(figure(mean_images(trained.model), panels))
    return claims(measured)


def binarised(
    settings: Settings, seed: int
) -> tuple[Float[Array, "train pixels"], Float[Array, "test pixels"]]:
    """Binarised digits without the border, to train on and to test with."""
    found = images("b-mnist", train=settings.data_size, test=settings.tested, seed=seed)
    train, test = (
        jnp.asarray(part[:, 0, 2:-2, 2:-2].reshape(len(part), -1))
        for part in (found.train, found.test)
    )
    return train, test


def square_grid(radius: float, spacing: float) -> Grid:
    """Points `spacing` apart on [−radius, radius]².

    Example: `square_grid(1.0, 0.5).z.shape == (25, 2)`.
    """
    axis = np.linspace(-radius, radius, 2 * round(radius / spacing) + 1)
    return Grid(axis, np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2))


@eqx.filter_jit
def log_joints(
    model: Digits, x: Float[Array, "images pixels"], z: Float[Array, "nodes 2"]
) -> Float[Array, "images nodes"]:
    """log p(z_k, x_m) at every node for every image, by one matrix product for 512 nodes."""

    def some(z: Float[Array, "some 2"]) -> Float[Array, "some images"]:
        logits = jax.vmap(model.network)(z)
        free = jax.nn.softplus(logits).sum(axis=1) - jax.vmap(model.log_prior)(z)
        return logits @ x.T - free[:, None]

    size = 512
    extra = -len(z) % size
    chunks = jnp.pad(z, ((0, extra), (0, 0))).reshape(-1, size, 2)
    return jax.lax.map(some, chunks).reshape(-1, len(x))[: len(z)].T


def measure_one(
    log_joint: Float[np.ndarray, " nodes"], grid: Grid, q: DiagonalGaussian
) -> tuple[float, ...]:
    """The numbers of `Measured` for one image."""
    cell, side = grid.log_area, len(grid.axis)
    highest = log_joint.max()
    log_likelihood = highest + np.log(np.exp(log_joint - highest).sum()) + cell
    log_p = log_joint - log_likelihood
    p = np.exp(log_p + cell)
    mean, scale = np.asarray(q.mean, float), np.exp(np.asarray(q.log_scale, float))
    log_q = -0.5 * (((grid.z - mean) / scale) ** 2).sum(axis=1) - np.log(2 * np.pi * scale.prod())
    entropy = -(p * log_p).sum()
    centred = grid.z - p @ grid.z
    covariance = (p[:, None] * centred).T @ centred
    best = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1] - entropy
    forward = (p * (log_p - log_q)).sum()
    weight = np.exp(log_q + cell)
    backward = (weight * (log_q - log_p)).sum() / weight.sum()
    order = np.argsort(p)[::-1]
    inside = np.zeros(len(p), bool)
    inside[order[: np.searchsorted(np.cumsum(p[order]), REGION) + 1]] = True
    pieces: np.ndarray = label(inside.reshape(side, side), np.ones((3, 3)))[0]  # pyright: ignore
    mass = np.bincount(pieces.ravel(), p)[1:]
    edge = p.reshape(side, side)
    outer = 1 - edge[1:-1, 1:-1].sum() / edge.sum()
    several = float((mass >= PIECE).sum() > 1)
    narrowest = np.sqrt(np.linalg.eigvalsh(covariance)[0]) / np.exp(cell / 2)
    return log_likelihood, forward, backward, best, several, outer, narrowest


def measure(trained: Autoencoder, x: Float[Array, "images pixels"], grid: Grid) -> Measured:
    """Every image's exact posterior against the encoder's Gaussian and the best one."""
    posteriors = eqx.filter_vmap(trained.encoder)(x)
    rows = []
    for first in range(0, len(x), 50):
        part = slice(first, first + 50)
        values = np.asarray(log_joints(trained.model, x[part], jnp.asarray(grid.z, x.dtype)))
        some = jax.tree.map(lambda a: a[part], posteriors)  # noqa: B023
        for i, value in enumerate(values):
            q = jax.tree.map(lambda a: a[i], some)  # noqa: B023
            rows.append(measure_one(value.astype(float), grid, q))
    return Measured(*np.array(rows).T)


def panel(
    trained: Autoencoder,
    test: Float[Array, "images pixels"],
    measured: Measured,
    grid: Grid,
    index: int,
) -> Panel:
    """One test image with its exact posterior on a finer grid, and the encoder's."""
    x = test[index : index + 1]
    rough = np.asarray(log_joints(trained.model, x, jnp.asarray(grid.z, x.dtype)))[0]
    window = window_around(grid.axis, rough)
    fine = np.asarray(log_joints(trained.model, x, jnp.asarray(window.z, x.dtype)))[0]
    nats = float(measured.to_best[index]), float(measured.to_encoder[index])
    digit = np.asarray(x[0]).reshape(SIDE, SIDE)
    return Panel(digit, window, fine, trained.encoder(x[0]), *nats)  # pyright: ignore


def quantile_index(values: Float[np.ndarray, " n"], share: float) -> int:
    """Which entry is at this quantile.

    Example: `quantile_index(np.array([3.0, 1.0, 2.0]), 1.0) == 0`.
    """
    return int(np.argsort(values)[round(share * (len(values) - 1))])


def mean_images(model: Digits, across: int = 15) -> Float[np.ndarray, "rows columns 28 28"]:
    """sigmoid(NN_w(z)) on a grid over [−3, 3]², the largest z₂ on top."""
    z = jnp.asarray(square_grid(3.0, 6 / (across - 1)).z, jnp.float32)
    means = jax.vmap(lambda z: jax.nn.sigmoid(model.network(z)))(z)
    return np.asarray(means).reshape(across, across, SIDE, SIDE)[::-1]


def claims(measured: Measured) -> list[Claim]:
    """What the paper says of its figure 1, with bars set beforehand."""
    exact, to_encoder, gap, to_best, several, edge, narrowest = measured
    distorted, number = to_best > DISTORTED, len(exact)
    elbo = exact - gap
    return [
        Claim(
            "the exact posterior may be distorted",
            f"may be distorted (bar: more than {DISTORTED:g} nats from its best Gaussian for "
            f"{SHARE:.0%} of test images)",
            f"{distorted.mean():.1%} of {number} test images; median "
            f"{significant(np.median(to_best))} nats, 95th percentile "
            f"{significant(np.quantile(to_best, 0.95))}",
            bool(distorted.mean() >= SHARE),
        ),
        Claim(
            "the exact posterior may have several modes",
            f"may be multi-modal (bar: its {REGION:.0%} region is in pieces of at least "
            f"{PIECE:.0%} for {SHARE:.0%} of test images)",
            f"{several.mean():.1%} of {number} test images",
            bool(several.mean() >= SHARE),
        ),
        Claim(
            "the encoder's Gaussians are farther from the exact posteriors than Gaussians need be",
            "only Gaussian posteriors are ever produced by the encoder (bar: "
            f"{DISTORTED:g} nats beyond the best Gaussian on average)",
            f"mean KL(exact ‖ encoder) {significant(to_encoder.mean())} nats (median "
            f"{significant(np.median(to_encoder))}), to the best Gaussian "
            f"{significant(to_best.mean())}; KL(encoder ‖ exact), what the ELBO lacks, "
            f"{significant(gap.mean())}: log likelihood {exact.mean():.2f}, ELBO "
            f"{elbo.mean():.2f}; at most {significant(edge.max(), 1)} of a posterior lies on the "
            f"edge of the grid, the narrowest is {significant(narrowest.min(), 2)} steps wide",
            bool(to_encoder.mean() - to_best.mean() > DISTORTED),
        ),
    ]


def scale(settings: Settings) -> Scale:
    """The VAE, and how many posteriors are looked at."""
    return Scale(
        f"VAE of width {settings.width}, {settings.steps:,} steps, {settings.tested} test images"
    )


EXPERIMENT = Experiment(
    name="vae-posterior",
    title="exact posteriors of a VAE of digits beside its encoder's Gaussians (figure 1)",
    presets={
        "quick": Settings(steps=100, width=20, data_size=1000, tested=10, radius=4.0, spacing=0.1),
        "desk": Settings(steps=15_000, width=200, tested=500),
        "paper": Settings(steps=60_000),
    },
    run=run,
    scale=scale,
    not_printed="The paper prints neither the VAE's width nor its training.",
)
