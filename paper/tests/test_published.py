"""The `paper` presets: `alws.PAPER` with the values of the paper's table, and nothing else."""

import math
from dataclasses import fields, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import alws
from alws.regressions import AsPublished, KernelRidge
from alws_paper.blowflies import experiment as ecology
from alws_paper.experiments import EXPERIMENTS
from alws_paper.factorisation import experiment as factorisation
from alws_paper.gabor import experiment as gabor
from alws_paper.galton import experiment as galton
from alws_paper.hyperbolic import experiment as hyperbolic
from alws_paper.ica import experiment as ica
from alws_paper.images.amortised import PUBLISHED
from alws_paper.images.methods import PAPER_ADAPTS
from alws_paper.neural_process import experiment as neural_process
from alws_paper.neuron import experiment as neuron
from alws_paper.oscillation import experiment as oscillation
from alws_paper.pinwheel import experiment as pinwheel
from alws_paper.run import Run
from alws_paper.shared.table import TABLE

PAGES = {
    "pinwheel": pinwheel,
    "gabor": gabor,
    "ica": ica,
    "matrix-factorisation": factorisation,
    "neural-process": neural_process,
    "oscillation": oscillation,
    "hodgkin-huxley": neuron,
    "ecology": ecology,
}
PRINTED = {  # N, L, λ, projections, batch norm, rates of θ and γ, steps
    "pinwheel": (1000, 200, 0.01, None, False, 1e-3, 1e-3, 62_500),
    "gabor": (2000, 200, 0.01, 300, False, 1e-3, 1e-3, 3000),
    "ica": (2000, 200, 0.001, 300, False, 1e-3, 1e-2, 100_000),
    "matrix-factorisation": (2000, 150, 0.001, 300, True, 1e-3, 1e-3, 15_000),
    "neural-process": (4000, 200, 0.001, None, False, 1e-4, 1e-4, 500_000),
    "oscillation": (2000, 200, 0.001, 200, False, 1e-3, 1e-3, 15_000),
    "hodgkin-huxley": (2000, 200, 0.001, 200, False, 1e-3, 1e-3, 50_000),
    "ecology": (2000, 200, 0.001, None, False, 1e-3, 1e-3, 50_000),
}


class Caught(Exception):
    """What a fit was asked to do."""

    def __init__(self, arguments):
        super().__init__()
        self.arguments = arguments


def asked_for(name, monkeypatch, tmp_path):
    """What the `paper` preset asks of `alws.fit`, its rivals left out."""
    page, settings = PAGES[name], EXPERIMENTS[name].settings("paper")

    def caught(model, data, **arguments):
        raise Caught(arguments | {"model": model, "data": data})

    monkeypatch.setattr(page.alws, "fit", caught)
    with pytest.raises(Caught) as found:
        fit(name, page, settings, Run(tmp_path, 0, progress=False))
    return found.value.arguments


def fit(name, page, settings, run):
    """A page's fit by ALWS, on data of the right shapes."""
    key, data = jax.random.key(0), jnp.zeros((300, 256))
    if name == "ecology":
        page.by_alws(np.arange(1.0, 181.0), settings, run)
    elif name == "hodgkin-huxley":
        page.by_alws(page.HodgkinHuxley(page.START), data[0], data[0], key, settings, run)
    elif name == "oscillation":
        start = page.PrintedOscillator(key, 30)
        features = alws.features.Linear.random(key, 600, 5)
        page.by_alws("one", start, jnp.zeros((3, 30, 20)), features, key, settings, run)
    elif name == "ica":
        start = page.IndependentComponents(key, 256, 36)
        page.by_alws(start, np.asarray(data), key, settings, run, adapt_ridge=False)
    elif name == "neural-process":
        contexts = page.Context(data[:, :4], data[:, :4], data[:, :8])
        page.by_alws(page.NeuralProcess(key), contexts, data[:, :8], settings, run)
    elif name == "matrix-factorisation":
        page.by_alws(page.Factorisation.start(key, 5), data, settings, run)
    elif name == "gabor":
        page.by_alws(page.Wavelets(2, key), data, key, settings, run)
    else:
        page.by_alws(page.Pinwheel(key), data[:, :2], key, settings, run)


@pytest.mark.parametrize("name", PAGES)
def test_the_preset_is_the_papers_row(name, monkeypatch, tmp_path):
    asked = asked_for(name, monkeypatch, tmp_path)
    settings = asked["settings"]
    n, held_out, ridge, projections, batch_norm, theta_rate, gamma_rate, steps = PRINTED[name]
    assert settings.regression == AsPublished(ridge, projections, batch_norm)
    assert (settings.sleep_samples, settings.validation_samples) == (n, held_out)
    adapt = replace(alws.PAPER.adapt, learning_rate=gamma_rate, ridge=name != "ica")
    assert settings.adapt == adapt
    assert (adapt.criterion, adapt.every, adapt.after, adapt.clip_norm) == (
        "objective",
        1,
        0,
        math.inf,
    )
    for field in fields(alws.Settings):
        if field.name not in (
            "regression",
            "optimiser",
            "adapt",
            "sleep_samples",
            "validation_samples",
        ):
            assert getattr(settings, field.name) == getattr(alws.PAPER, field.name)
    # Adam at a constant rate in θ's own units: its first steps are as long as its rate.
    state, gradient = settings.optimiser.init(jnp.zeros(2)), jnp.array([3.0, -5.0])
    for _ in range(3):
        step, state = settings.optimiser.update(gradient, state, jnp.zeros(2))
        np.testing.assert_allclose(step, -theta_rate * jnp.sign(gradient), rtol=1e-3)
    assert asked["steps"] == steps
    if name in ("oscillation", "neural-process"):
        assert asked["batch_size"] == 1


def test_images_have_the_papers_regression_and_adaptation():
    assert AsPublished(ridge=0.1, projections=300, batch_norm=True) == PUBLISHED
    assert replace(PAPER_ADAPTS, after=0) == alws.ALWS_A
    assert PAPER_ADAPTS.after == 5 * 600


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if n != "vae-posterior"])
def test_every_paper_preset_says_what_is_otherwise(name):
    assert EXPERIMENTS[name].not_printed.endswith(".")


@pytest.mark.parametrize("page", [galton, hyperbolic])
def test_pages_without_a_row_have_the_papers_method(page):
    assert page.EXPERIMENT.settings("paper").published
    assert not page.EXPERIMENT.settings("desk").published


def steps_of(name, model, data, key, **more):
    """Two steps of the paper's row with few sleep samples; the state after them."""
    settings = TABLE[name].settings(sleep_samples=60)
    prepared = alws.prepare(model, data, key=key, steps=2, settings=settings, **more)
    regression = prepared.state.regression
    assert isinstance(regression, KernelRidge)
    assert not regression.intercept
    assert not regression.clip
    state = prepared.state
    for number in range(2):
        state, info = prepared.step(state, number)
        assert bool(info.accepted)
    return state


def test_raw_traces_can_be_fitted_as_published(key):
    truth = neuron.HodgkinHuxley(neuron.TRUE)
    current = neuron.training_current(key, 40)
    _, x = eqx.filter_jit(truth.sample)(key, alws.Given(current))
    start = neuron.HodgkinHuxley(neuron.START)
    conditions = alws.Given(current[None])
    state = steps_of("hodgkin-huxley", start, x[None], key, conditions=conditions)
    moved = np.asarray(state.model.log_sizes) - np.asarray(start.log_sizes)
    assert np.all((np.abs(moved) > 0) & (np.abs(moved) < 0.0021))
    assert state.regression.kernel.features.weight.shape == (40, 200)


def test_states_are_the_latents_of_the_printed_oscillation(key):
    model = oscillation.PrintedOscillator(key, 6)
    z, x = model.sample(key)
    states = model.states(z, x)[1]
    np.testing.assert_allclose(states, z.steps, rtol=1e-6)
    before = jnp.concatenate([model.first[None], z.steps[:-1]])
    expected = jax.scipy.stats.norm.logpdf(z.steps, jax.vmap(model.move)(before), 0.3).sum()
    expected += jax.scipy.stats.norm.logpdf(x, jax.vmap(model.show)(z.steps), 1.0).sum()
    np.testing.assert_allclose(model.log_joint(z, x), expected, rtol=1e-5)
    state = steps_of("oscillation", model, x[None], key, batch_size=1)
    assert np.any(np.asarray(state.model.first))


def test_raw_counts_can_be_fitted_as_published(key):
    data = jnp.linspace(0.1, 1.0, 12)[None]
    state = steps_of("ecology", ecology.begin(12), data, key)
    assert np.any(np.asarray(state.model.logits))


def test_the_table_counts_what_is_seen():
    row = TABLE["pinwheel"]
    assert (row.steps, row.share(row.steps, row.batch_size)) == (62_500, 1.0)
    assert EXPERIMENTS["hodgkin-huxley"].scale(neuron.Settings(2500, 10)).share == 0.05
    assert EXPERIMENTS["oscillation"].scale(oscillation.Settings(500)).share == pytest.approx(0.1)
