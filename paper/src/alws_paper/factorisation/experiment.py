"""Beta–Gamma matrix factorisation, §4.4: what a better model is worth once it is learnt.

    z_k ~ Uniform(0, 1),  x_i | z ~ Bernoulli(sigmoid(w_i · logit(z) + b_i)),  w ≥ 0

with a penalty on each weight, log Gamma(w; 0.9, 0.3), on binarised digits. Test images, clean or
with pixels flipped, are recovered from the posterior mode: x̄ at argmax_z log p(z, x*). The model is
trained by ALWS, by variational inference with the G-Rep gradient (weights at their posterior mean)
and as the decoder of a VAE with Beta posteriors.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jaxtyping import Array, Float, Key
from matplotlib.figure import Figure
from numpyro.distributions.constraints import unit_interval
from scipy.stats import ttest_rel, wilcoxon

import alws
from alws.features import Linear
from alws.kernels import SquaredExponential
from alws.likelihoods import Bernoulli
from alws_paper.factorisation import bayesian
from alws_paper.factorisation.beta_vae import BetaEncoder, train_beta_vae
from alws_paper.run import Claim, Experiment, Run, Scale
from alws_paper.shared.mnist import Split, mnist
from alws_paper.shared.table import TABLE

PAPER = TABLE["matrix-factorisation"]
EDGE = 1e-4
PRIOR = (0.9, 0.3)
SIDE = 28
SIGNIFICANT = 1e-10
TASKS: tuple[str, ...] = ("reconstruction", "denoising")
ALWS, RIVALS = "ALWS", ("G-Rep", "VAE")


class Factorisation(eqx.Module):
    """The model; W through a softplus."""

    raw: Float[Array, "pixels latents"]
    bias: Float[Array, " pixels"]

    def __init__(self, weights: Float[Array, "pixels latents"], bias: Float[Array, " pixels"]):
        self.raw = weights + jnp.log(-jnp.expm1(-weights))
        self.bias = bias

    @classmethod
    def start(cls, key: Key[Array, ""], latents: int) -> "Factorisation":
        """Weights scattered about 0.03, biases 0.1."""
        spread = jax.random.normal(key, (SIDE**2, latents))
        return cls(0.03 * jnp.exp(spread / 2), jnp.full(SIDE**2, 0.1))

    @property
    def weights(self) -> Float[Array, "pixels latents"]:
        """W ≥ 0."""
        return jax.nn.softplus(self.raw)

    def sample_latent(self, key: Key[Array, ""]) -> Float[Array, " latents"]:
        return jax.random.uniform(key, self.raw.shape[1:], minval=EDGE, maxval=1 - EDGE)

    def log_prior(self, z: Float[Array, " latents"]) -> Float[Array, ""]:
        return jnp.zeros(())

    def likelihood(self, z: Float[Array, " latents"]) -> Bernoulli:
        z = jnp.clip(z, EDGE, 1 - EDGE)
        return Bernoulli(self.weights @ (jnp.log(z) - jnp.log1p(-z)) + self.bias)


def penalty(model: Factorisation) -> Float[Array, ""]:
    """log p(W) = Σ log Gamma(w; 0.9, 0.3), up to a constant."""
    return jnp.sum((PRIOR[0] - 1) * jnp.log(model.weights) - PRIOR[1] * model.weights)


@dataclass(frozen=True)
class Settings:
    """The settings of a run; where it is `published`, ALWS has those of the paper's table."""

    steps: int
    vae_steps: int
    grep_steps: int
    published: bool = False
    learning_rate: float = 0.03
    vae_learning_rate: float = 0.03
    encoder_learning_rate: float = 2e-3
    grep_learning_rate: float = 0.03
    grep_image_learning_rate: float = 0.2
    theta_steps: int = 1
    sleep_samples: int = 2000
    validation_samples: int = 150
    batch_size: int = 100
    vae_batch_size: int = 100
    grep_batch_size: int = 500
    ridge: float = 1e-3
    adaptation_rate: float = 1e-3
    projection: int = 300
    latents: int = 100
    images: int = 5000
    test_images: int = 1000
    flipped: float = 0.1
    encoder_width: int = 300
    mode_steps: int = 300


def run(settings: Settings, run: Run) -> list[Claim]:
    """Train the model three ways, recover the test images with each, compare the errors."""
    start = Factorisation.start(jax.random.key(run.seed), settings.latents)
    data, test = binarised("train", settings.images), binarised("test", settings.test_images)

    grep = run.once("grep", start, lambda: by_grep(start, data, settings, run))
    vae = run.once("vae", start, lambda: by_vae(start, data, settings, run))
    model = by_alws(start, data, settings, run)

    models = {ALWS: model, "G-Rep": grep, "VAE": vae}
    given = dict(zip(TASKS, (test, flip(test, settings.flipped, run.seed)), strict=True))
    recovered = {
        task: {name: recover(m, given[task], settings.mode_steps) for name, m in models.items()}
        for task in TASKS
    }
    errors = {
        task: {name: np.asarray((x - test) ** 2).mean(axis=1) for name, x in by_name.items()}
        for task, by_name in recovered.items()
    }
    run.save_figure(figure(given, recovered, errors))
    return [claim(task, rival, errors[task]) for task in TASKS for rival in RIVALS]


def binarised(split: Split, number: int) -> Float[Array, "images pixels"]:
    """The first digits of MNIST, pixels above one half set to 1."""
    images, _ = mnist(split)
    return jnp.asarray(images[:number].reshape(-1, SIDE**2) > 127, jnp.float32)


def by_grep(start: Factorisation, data: Array, settings: Settings, run: Run) -> Factorisation:
    """Mean-field variational inference of z and W with the G-Rep gradient; E_q[W] is kept."""
    _, weights, _ = bayesian.train(
        *bayesian.start(start.weights, start.bias, len(data)),
        data,
        key=jax.random.key(run.seed + 3),
        steps=settings.grep_steps,
        batch_size=settings.grep_batch_size,
        learning_rate=settings.grep_learning_rate,
        image_learning_rate=settings.grep_image_learning_rate,
        edge=EDGE,
        prior=PRIOR,
    )
    return Factorisation(weights.expected, weights.bias)


def by_vae(start: Factorisation, data: Array, settings: Settings, run: Run) -> Factorisation:
    """The decoder of a VAE with Beta posteriors."""
    encoder_key, key = jax.random.split(jax.random.key(run.seed + 4))
    encoder = BetaEncoder(SIDE**2, settings.latents, hidden=settings.encoder_width, key=encoder_key)
    return train_beta_vae(
        start,
        encoder,
        data,
        key=key,
        steps=settings.vae_steps,
        batch_size=settings.vae_batch_size,
        learning_rate=settings.vae_learning_rate,
        encoder_learning_rate=settings.encoder_learning_rate,
        log_prior=penalty,
    )[0]


def by_alws(start: Factorisation, data: Array, settings: Settings, run: Run) -> Factorisation:
    """Maximum likelihood by wake-sleep: kernel on a projection with batch norm, σ and λ adapted."""
    projection = Linear.random(
        jax.random.key(run.seed + 1), SIDE**2, settings.projection, batch_norm=True
    )
    kernel = SquaredExponential(projection, track=False)  # pyright: ignore
    updates = settings.steps * settings.theta_steps
    schedule = optax.cosine_decay_schedule(settings.learning_rate, updates)
    ours = alws.Settings(
        regression=alws.regressions.KernelRidge(kernel, ridge=settings.ridge),
        optimiser=optax.adam(schedule),
        sleep_samples=settings.sleep_samples,
        validation_samples=settings.validation_samples,
        adapt=alws.Adapt(features=False, learning_rate=settings.adaptation_rate),
        theta_steps=settings.theta_steps,
        measure_every=10,
    )
    return alws.fit(
        start,
        data,
        key=jax.random.key(run.seed + 2),
        steps=settings.steps,
        batch_size=settings.batch_size,
        log_prior=penalty,
        settings=PAPER.settings(settings.sleep_samples) if settings.published else ours,
        **run.fit_arguments(),
    ).model


def recover(
    model: Factorisation, x: Float[Array, "images pixels"], steps: int
) -> Float[np.ndarray, "images pixels"]:
    """x̄ at the posterior mode of every image."""
    mode = alws.posterior_mode(
        model, x, key=jax.random.key(0), steps=steps, learning_rate=0.3, support=unit_interval
    )
    return np.asarray(jax.vmap(lambda z: jax.nn.sigmoid(model.likelihood(z).logits))(mode.z))


def flip(x: Float[Array, "*shape"], probability: float, seed: int) -> Float[Array, "*shape"]:
    """Every pixel turned over with this probability."""
    chosen = jax.random.bernoulli(jax.random.key(seed), probability, x.shape)
    return jnp.where(chosen, 1 - x, x)


def figure(
    given: dict[str, Array],
    recovered: dict[str, dict[str, np.ndarray]],
    errors: dict[str, dict[str, np.ndarray]],
) -> Figure:
    """For each task the histograms of the errors, and 25 images as each method recovers them."""
    fig, axes = plt.subplots(2, 5, figsize=(11, 4.6), width_ratios=(1.5, 1, 1, 1, 1))
    for row, task in zip(axes, TASKS, strict=True):
        bins = np.linspace(0, np.quantile(list(errors[task].values()), 0.995), 40).tolist()
        for name, error in errors[task].items():
            row[0].hist(error, bins, histtype="step", lw=1.4, label=f"{name}, {error.mean():.4f}")
        row[0].set(title=f"{task}: error of each image", xlabel="mean squared error", yticks=[])
        row[0].set_ylim(top=1.7 * row[0].get_ylim()[1])
        row[0].legend(title="method, mean", fontsize=6, title_fontsize=6)
        shown = {"clean" if task == TASKS[0] else "noisy": given[task], **recovered[task]}
        for axis, (name, images) in zip(row[1:], shown.items(), strict=True):
            axis.imshow(mosaic(np.asarray(images[:25])), cmap="gray", vmin=0, vmax=1)
            axis.set_title(name)
            axis.axis("off")
    fig.tight_layout()
    plt.close(fig)
    return fig


def mosaic(images: Float[np.ndarray, "25 pixels"]) -> Float[np.ndarray, "rows columns"]:
    """25 images in five rows of five."""
    return images.reshape(5, 5, SIDE, SIDE).transpose(0, 2, 1, 3).reshape(5 * SIDE, 5 * SIDE)


def claim(task: str, rival: str, errors: dict[str, np.ndarray]) -> Claim:
    """ALWS against one other method on one task, image by image."""
    ours, theirs = np.asarray(errors[ALWS], float), np.asarray(errors[rival], float)
    p = [float(test(ours, theirs).pvalue) for test in (ttest_rel, wilcoxon)]  # pyright: ignore
    lower = bool(ours.mean() < theirs.mean())
    return Claim(
        f"{task}: ALWS has a lower error than {rival}",
        "lower, p < 1e-10 in a two-tailed t-test and a Wilcoxon signed-rank test",
        f"mean squared error {ours.mean():.4f} against {theirs.mean():.4f} on {len(ours)} test "
        f"images, paired t-test p {small(p[0])}, Wilcoxon p {small(p[1])}",
        lower if max(p) < SIGNIFICANT else None,
        undecided="" if max(p) < SIGNIFICANT else "the tests do not tell the two apart",
    )


def small(p: float) -> str:
    """A p-value, however small."""
    return f"= {p:.2g}" if p > 1e-300 else "< 1e-300"


def scale(settings: Settings) -> Scale:
    """The digits, the latents, and what share of 300 epochs a run sees."""
    steps = settings.steps * settings.theta_steps
    return Scale(
        f"{settings.images} digits, {settings.latents} latents, {steps} steps of "
        f"{settings.batch_size}; {settings.test_images} test images",
        PAPER.share(steps, settings.batch_size),
    )


EXPERIMENT = Experiment(
    name="matrix-factorisation",
    title="Beta–Gamma matrix factorisation: digits recovered from the posterior mode (§4.4)",
    presets={
        "quick": Settings(
            steps=4,
            vae_steps=10,
            grep_steps=10,
            sleep_samples=100,
            latents=10,
            images=300,
            test_images=50,
            grep_batch_size=100,
            mode_steps=20,
        ),
        "desk": Settings(
            steps=100,
            vae_steps=4000,
            grep_steps=1000,
            theta_steps=5,
            sleep_samples=1000,
            batch_size=1000,
            adaptation_rate=0.01,
        ),
        "paper": Settings(PAPER.steps, PAPER.steps, PAPER.steps, published=True),
    },
    run=run,
    scale=scale,
    not_printed="Rates and lengths of the two rivals are not printed; they are those of `desk`, "
    "for as many steps as ALWS.",
)
