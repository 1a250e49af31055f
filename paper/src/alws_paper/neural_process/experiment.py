"""Neural processes, §4.5: functions inferred from a few of their values.

    r = (1/K) Σ_k ρ(x_k, y_k),  z | r ~ N(μ(r), diag σ²(r)),  y_m | z ~ N(m(z, x_m), s²(z, x_m))

K = 4 context pairs (x_k, y_k) of a function condition z, and M = 8 targets, the context among them,
are predicted. Each context is a condition with sleep samples and a regression of its own, on the
eight targets as one vector; a step averages the gradients of several contexts. The functions are
a sin(x − b) on [−π, π], seen with noise 0.1.

`paper` is the paper's row of `alws.PAPER`, with z as the latent. `desk` writes the same model with
latent ε ~ N(0, I) and z = μ(r) + σ(r)·ε. The likelihood is the same, but its gradient reaches the
encoder through the decoder, with far less noise: as long as the targets tell little of 50 latents,
Σ w_n ∇ log p(z_n|r) is all noise. The other desk settings follow from the size of that noise, as
measured against exact gradients: few sleep samples, many contexts, and a ridge that does not fit
it.

The rival is the variational training of Garnelo et al. (2018), from the same start, on the same
functions, with as many contexts a step and as many steps.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

import alws
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws_paper.neural_process.data import Sinusoids, grid, posterior_moments, sinusoids
from alws_paper.neural_process.figure import figure
from alws_paper.neural_process.paired import paired_tests
from alws_paper.neural_process.variational import Context, Normal, train_variational
from alws_paper.run import Claim, Experiment, Run, Scale
from alws_paper.shared.table import TABLE
from alws_paper.shared.training import decaying_adam

CONTEXT, TARGETS = 4, 8
WIDTH = 50
ALWS, VARIATIONAL = "ALWS", "variational"
HARDER = ONE_MEAN, LONGER = "one-mean", "longer"
NAMES = {
    VARIATIONAL: "the variational method",
    ONE_MEAN: "the variational method with one mean over all pairs, as in Garnelo et al.",
    LONGER: "the variational method with many more steps",
}
PRINTED = TABLE["neural-process"]
PAPER = {
    "mean": (
        "lower error of the posterior mean",
        "mean log MSE −5.11 against −4.99, paired t-test p = 0.00056, Wilcoxon p = 3.7e-08",
    ),
    "sample": (
        "lower error of a random posterior sample",
        "mean log MSE −4.87 against −4.77, paired t-test p = 0.037, Wilcoxon p = 0.0061",
    ),
    "few": ("lower error of the posterior mean", "more accurate with few context points"),
    "spread": ("spread of samples closer to exact", "better reflects the uncertainty of f"),
    "other": ("lower error of the posterior mean", "not in the paper"),
}
"""What is claimed, and the paper's figures or words."""


class NeuralProcess(eqx.Module):
    """ρ, then the mean over pairs, then (μ, σ); a decoder for every target; ReLU networks."""

    pair: eqx.nn.MLP
    pooled: eqx.nn.MLP
    decoder: eqx.nn.MLP

    def __init__(self, key: Key[Array, ""], width: int = WIDTH):
        keys = jax.random.split(key, 3)
        self.pair = eqx.nn.MLP(2, width, width, 2, key=keys[0])
        self.pooled = eqx.nn.MLP(width, 2 * width, width, 2, key=keys[1])
        self.decoder = eqx.nn.MLP(1 + width, 2, width, 3, key=keys[2])

    def represent(
        self, x: Float[Array, " pairs"], y: Float[Array, " pairs"]
    ) -> Float[Array, " width"]:
        """r, whatever the order of the pairs."""
        return jax.vmap(self.pair)(jnp.stack([x, y], axis=1)).mean(axis=0)

    def latent(self, r: Float[Array, " width"]) -> Normal:
        """p(z | r), σ between 0.1 and 1."""
        mean, raw = jnp.split(self.pooled(r), 2)
        return Normal(mean, 0.1 + 0.9 * jax.nn.sigmoid(raw))

    def prior(self, context: Context) -> Normal:
        """p(z | C)."""
        return self.latent(self.represent(context.x, context.y))

    def sample_latent(self, key: Key[Array, ""], context: Context) -> Float[Array, " width"]:
        return self.prior(context).sample(key)

    def log_prior(self, z: Float[Array, " width"], context: Context) -> Float[Array, ""]:
        return jax.scipy.stats.norm.logpdf(z, *self.prior(context)).sum()

    def likelihood(self, z: Float[Array, " width"], context: Context) -> Gaussian:
        return self.decode(z, context.targets)

    def decode(self, z: Float[Array, " width"], x: Float[Array, " targets"]) -> Gaussian:
        """p(y | z) at x, s above 0.1; what z gives to the first layer is found once for all x."""
        first, *others = [(layer.weight, jnp.asarray(layer.bias)) for layer in self.decoder.layers]
        h = jnp.outer(x, first[0][:, 0]) + (first[0][:, 1:] @ z + first[1])
        for weight, bias in others:
            h = jax.nn.relu(h) @ weight.T + bias
        mean, raw = h.T
        return Gaussian(mean, 0.1 + 0.9 * jax.nn.softplus(raw))


class WithNoiseLatent(eqx.Module):
    """The same model of y given C, its latent the noise ε in z = μ(r) + σ(r)·ε."""

    process: NeuralProcess

    def sample_latent(self, key: Key[Array, ""], context: Context) -> Float[Array, " width"]:
        return jax.random.normal(key, self.process.prior(context).mean.shape)

    def log_prior(self, noise: Float[Array, " width"], context: Context) -> Float[Array, ""]:
        return jax.scipy.stats.norm.logpdf(noise).sum()

    def likelihood(self, noise: Float[Array, " width"], context: Context) -> Gaussian:
        mean, scale = self.process.prior(context)
        return self.process.likelihood(mean + scale * noise, context)


@dataclass(frozen=True)
class Settings:
    """The settings of a run; where it is `published`, ALWS has those of the paper's table."""

    steps: int
    variational_steps: int
    contexts: int = 8
    variational_contexts: int = 8
    learning_rate: float = 2e-3
    variational_learning_rate: float = 2e-3
    longer: int = 10
    noise_latent: bool = True
    sleep_samples: int = 64
    ridge: float = 0.5
    bandwidth: float = 0.7
    published: bool = False
    functions: int = 20_000
    test_functions: int = 500
    samples: int = 100


def run(settings: Settings, run: Run) -> list[Claim]:
    """Train the process in each way, predict the test functions, compare the errors."""
    train_key, start_key, test_key = jax.random.split(jax.random.key(run.seed), 3)

    start = NeuralProcess(start_key)
    data = sinusoids(train_key, settings.functions, points=TARGETS)
    contexts = Context(data.x[:, :CONTEXT], data.y[:, :CONTEXT], data.x)
    test = sinusoids(test_key, settings.test_functions, points=CONTEXT)

    rivals = {
        name: by_variational(name, start, contexts, data.y, settings, run)
        for name in (VARIATIONAL, *HARDER)
    }
    models = {ALWS: by_alws(start, contexts, data.y, settings, run), **rivals}

    drawn = {}
    for name, model in models.items():
        for pairs in (CONTEXT,) if name in HARDER else range(1, CONTEXT + 1):
            r = jax.vmap(model.represent)(test.x[:, :pairs], test.y[:, :pairs])
            functions = predict(model, r, jax.random.key(run.seed + 4), settings.samples)
            drawn[name, pairs] = np.asarray(functions, float)
    run.save_figure(figure(drawn, data, test, (ALWS, VARIATIONAL), CONTEXT))
    return claims(drawn, test, settings)


def by_variational(
    name: str, start: NeuralProcess, contexts: Context, y: Array, settings: Settings, run: Run
) -> NeuralProcess:
    """The ELBO of the paper, with one mean over all pairs instead, or for many more steps."""
    return run.once(
        name,
        start,
        lambda: train_variational(
            start,
            contexts,
            y,
            key=jax.random.key(run.seed + 3),
            steps=settings.variational_steps * (settings.longer if name == LONGER else 1),
            batch_size=settings.variational_contexts,
            learning_rate=settings.variational_learning_rate,
            pooling="mean" if name == ONE_MEAN else "sum",
        )[0],
    )


def by_alws(
    start: NeuralProcess, contexts: Context, y: Array, settings: Settings, run: Run
) -> NeuralProcess:
    """Maximum likelihood by wake-sleep, one regression for each context."""
    ours = alws.Settings(
        regression=alws.regressions.KernelRidge(
            SquaredExponential(bandwidth=settings.bandwidth), ridge=settings.ridge
        ),
        optimiser=decaying_adam(settings.steps, settings.learning_rate),
        sleep_samples=settings.sleep_samples,
        adapt=alws.ALWS_F,
        conditions="separate",
    )
    model = alws.fit(
        WithNoiseLatent(start) if settings.noise_latent else start,
        y,
        conditions=contexts,
        key=jax.random.key(run.seed + 2),
        steps=settings.steps,
        batch_size=settings.contexts,
        settings=PRINTED.settings(settings.sleep_samples) if settings.published else ours,
        **run.fit_arguments(),
    ).model
    return model.process if isinstance(model, WithNoiseLatent) else model


@eqx.filter_jit
def predict(
    model: NeuralProcess, r: Float[Array, "functions width"], key: Key[Array, ""], samples: int
) -> Float[Array, "functions samples grid"]:
    """Functions m(z, ·) on the grid, z ~ p(z | r), for each representation r of a context."""

    def one(item: tuple[Array, Array]) -> Array:
        latent = model.latent(item[0])
        z = jax.vmap(latent.sample)(jax.random.split(item[1], samples))
        return jax.vmap(lambda z: model.decode(z, grid()).mean)(z)

    return jax.lax.map(one, (r, jax.random.split(key, len(r))))


def claims(
    drawn: dict[tuple[str, int], np.ndarray], test: Sinusoids, settings: Settings
) -> list[Claim]:
    """The paper's comparison, what its text says of few pairs, and two harder rivals."""

    def log_error(predicted: np.ndarray) -> np.ndarray:
        return np.log(((predicted - np.asarray(test.f)) ** 2).mean(axis=1))

    mean = {case: log_error(f.mean(axis=1)) for case, f in drawn.items()}
    sample = {case: log_error(f[:, 0]) for case, f in drawn.items()}
    spread = {case: f.std(axis=1) for case, f in drawn.items()}
    exact = posterior_moments(test.x[:, :1], test.y[:, :1])[1]
    off = {case: np.abs(np.log(s / exact)).mean(axis=1) for case, s in spread.items()}
    best = log_error(posterior_moments(test.x, test.y)[0]).mean()
    seen = settings.steps * settings.contexts
    theirs = settings.variational_steps * settings.variational_contexts

    mine, other, truth = (s.mean() for s in (spread[ALWS, 1], spread[VARIATIONAL, 1], exact))
    counts = f"log MSE, {seen:,} and {{:,}} functions seen"
    rows = [
        ("mean", VARIATIONAL, CONTEXT, mean, counts.format(theirs) + f" (exact mean {best:.2f})"),
        ("sample", VARIATIONAL, CONTEXT, sample, "log MSE"),
        ("few", VARIATIONAL, 1, mean, "log MSE"),
        (
            "spread",
            VARIATIONAL,
            1,
            off,
            f"{mine:.3f} and {other:.3f}, exact {truth:.3f}; |log ratio|",
        ),
        ("other", ONE_MEAN, CONTEXT, mean, counts.format(theirs)),
        ("other", LONGER, CONTEXT, mean, counts.format(theirs * settings.longer)),
    ]
    found = []
    for kind, rival, pairs, errors, measure in rows:
        tests = paired_tests(errors[ALWS, pairs], errors[rival, pairs])
        what, paper = PAPER[kind]
        claim = f"context of {pairs}, ALWS against {NAMES[rival]}: {what}"
        lower = tests.first_is_lower()
        source = "ours" if kind == "other" else "paper"
        why = "" if lower is not None else "the paired tests do not tell the two apart"
        measured = f"{measure}: {tests}"
        found.append(Claim(claim, paper, measured, lower, source=source, undecided=why))
    return found


def scale(settings: Settings) -> Scale:
    """The functions, and what share of 50 epochs of 10,000 of them a run sees."""
    return Scale(
        f"{settings.functions:,} functions, {settings.steps:,} steps of {settings.contexts} "
        f"contexts of {CONTEXT}; {settings.test_functions} test functions",
        PRINTED.share(settings.steps, settings.contexts),
    )


EXPERIMENT = Experiment(
    name="neural-process",
    title="Neural processes: functions from a few of their values (§4.5)",
    presets={
        "quick": Settings(6, 6, longer=2, functions=200, test_functions=30),
        "desk": Settings(20_000, 20_000),
        "paper": Settings(
            PRINTED.steps,
            PRINTED.steps,
            contexts=PRINTED.batch_size,
            variational_contexts=PRINTED.batch_size,
            variational_learning_rate=PRINTED.theta_rate,
            longer=1,
            noise_latent=False,
            sleep_samples=PRINTED.sleep_samples,
            published=True,
            functions=PRINTED.data,
        ),
    },
    run=run,
    scale=scale,
    not_printed="500,000 steps with 4000 sleep samples each take some days of one core.",
)
