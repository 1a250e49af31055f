"""The grid of image methods: plans, marks, workers, and going on after a kill."""

import json
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
from paper_tools import invoke, real

from alws_paper.experiments import EXPERIMENTS
from alws_paper.images import Amortised, Cell, Plan, grid, run_cell, run_grid, train
from alws_paper.images.curves import read_points
from alws_paper.images.data.images import Images
from alws_paper.images.grid import mosaic
from alws_paper.images.likelihood import COLUMNS
from alws_paper.images.plan import Marks, has_likelihood, method_of
from alws_paper.images.protocol import MethodState

SMALL = Plan(
    ("mnist",),
    ("connected",),
    ("VAE",),
    epochs=3.0,
    batch_size=20,
    hidden=4,
    scored=40,
    first_mark=1.0,
    mark_ratio=2.0,
    annealed=2,
    temperatures=3,
    chains=2,
)


def made_up(number=100):
    """Images with one bright bar."""
    generator = np.random.default_rng(0)
    x = np.full((number, 1, 32, 32), -1, np.float32)
    for image, place in zip(x, generator.integers(4, 28, number), strict=True):
        image[0, place] = 1
    return Images("mnist", x, x[:60], -1.0, 1.0)


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr(grid, "images", lambda name, **_: made_up())


class Killed(BaseException):
    """What a kill is to the code."""


def after(number):
    """Kill at the so-manieth score."""
    seen = []

    def notice(cell, point):
        seen.append(point)
        if len(seen) == number:
            raise Killed

    return notice


def test_marks_are_due_once_and_not_again_after_a_resume():
    plan = replace(SMALL, seconds=100.0, time_marks=4)
    marks = Marks(plan, 100)
    due = [step for step in range(1, 41) if marks(step, 0.5 * step)]
    assert due == [5, 10, 20, 40]
    assert marks(41, 26.0)
    assert not marks(42, 49.0)
    again = Marks(plan, 100, 41, 26.0)
    assert not again(42, 49.0)
    assert again(43, 50.0)


def test_a_killed_cell_goes_on_to_the_same_curve(bars, tmp_path, monkeypatch):
    (cell,) = SMALL.cells()
    whole = run_cell(cell, SMALL, tmp_path / "whole")
    np.testing.assert_array_equal(whole.curve.steps, [5, 10, 15])
    np.testing.assert_allclose(whole.curve.epochs, [1, 2, 3])
    assert all(np.isfinite(whole.summary[name]) for name in COLUMNS)
    assert whole.summary["noise"] != whole.summary["refitted_noise"]
    assert whole.samples.shape == (100, 1, 32, 32)

    halves = tmp_path / "halves"
    with pytest.raises(Killed):
        run_cell(cell, SMALL, halves, after(1))
    folder = halves / cell.name
    assert not (folder / "done.json").exists()
    with (folder / "curve.jsonl").open("a") as file:
        file.write('{"steps": 6, "epo')
    spent = read_points(folder / "curve.jsonl")[-1].seconds
    monkeypatch.setattr(grid, "Scorer", failing(grid.Scorer))
    with pytest.raises(Killed):
        run_cell(cell, SMALL, halves)
    monkeypatch.undo()
    monkeypatch.setattr(grid, "images", lambda name, **_: made_up())
    resumed = run_cell(cell, SMALL, halves)
    np.testing.assert_array_equal(resumed.curve.steps, whole.curve.steps)
    np.testing.assert_array_equal(resumed.curve.frechet, whole.curve.frechet)
    np.testing.assert_array_equal(resumed.samples, whole.samples)
    assert resumed.curve.seconds[0] == spent < resumed.curve.seconds[1]

    def forbidden(*_, **__):
        raise AssertionError("a finished cell was trained again")

    monkeypatch.setattr(grid, "train", forbidden)
    (read,) = run_grid([SMALL], halves)
    assert read.summary == resumed.summary


def failing(scorer):
    """A scorer killed at its first score, after the checkpoint was written."""

    class Failing(scorer):
        def __call__(self, model, key):
            raise Killed

    return Failing


def test_spent_seconds_count_after_a_kill(bars, tmp_path):
    (cell,) = SMALL.cells()
    plan = replace(SMALL, epochs=None, seconds=0.4, time_marks=2, annealed=0, first_mark=1e6)
    with pytest.raises(Killed):
        run_cell(cell, plan, tmp_path, after(1))
    steps = read_points(tmp_path / cell.name / "curve.jsonl")[-1].steps
    found = run_cell(cell, plan, tmp_path).curve
    assert len(found.steps) == 2
    assert found.steps[0] == steps < found.steps[1]
    assert 0.2 <= found.seconds[0] < 0.4 <= found.seconds[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"datasets": ("mnits",)}, r"among b-mnist, mnist, .*celeba; got 'mnits'"),
        ({"methods": ("VAE", "GAN")}, r"among ALWS-F, ALWS-A, .*WGAN-GP; got 'GAN'"),
        ({"generators": ("vgg",)}, r"among connected, dcgan, direct, .*; got 'vgg'"),
        ({"generators": ("skip",)}, r"only ALWS-F and ALWS-A can fit; got VAE"),
        ({"methods": ()}, r"`methods` must be among .*; got none"),
        ({"epochs": None}, r"a number of `epochs`, of `seconds`, or both"),
        ({"seconds": -1.0}, r"`seconds` must be positive, got -1.0"),
        ({"adapt_after_epochs": -1.0}, r"`adapt_after_epochs` must not be negative, got -1.0"),
        (
            {"methods": ("ALWS-A",), "adapt_after_epochs": 3.0},
            r"`adapt_after_epochs` is 3 and the run has 3 epochs. The paper's 5 of 50 would be 0.3",
        ),
        ({"longer": {"GAN": 2.0}}, r"`longer` must be among .*; got 'GAN'"),
        ({"longer": {"VAE": 0.0}}, r"`longer` must hold positive factors, got 0.0 for VAE"),
    ],
)
def test_impossible_plans_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_methods_get_the_settings_of_the_plan():
    plan = replace(SMALL, methods=("ALWS-A",), generators=("skip",), adapt_after_epochs=0.7)
    (cell,) = plan.cells()
    method = method_of(cell, plan, made_up(200))
    assert isinstance(method, Amortised)
    assert (method.name, method.adapt.after, method.sleep_samples) == ("ALWS-A", 7, 2000)
    assert not has_likelihood(cell)
    assert not has_likelihood(Cell("mnist", "connected", "WGAN-GP", 0))
    assert has_likelihood(Cell("mnist", "dcgan", "ALWS-A", 0))


def test_epochs_are_counted_in_the_data_at_hand():
    paper = EXPERIMENTS["images"].presets["paper"]
    assert [paper.adapt(n).after for n in (60_000, 100_000, 9_000)] == [3000, 5000, 450]
    epochs = {name: paper.steps(100_000, name) / 1000 for name in ("VAE", "SIVI", "WGAN-GP")}
    assert epochs == {"VAE": 50, "SIVI": 1000, "WGAN-GP": 500}


@dataclass(frozen=True)
class Counting:
    """A method whose numbers are weakly typed at first, and how often its step was traced."""

    traced: list
    name = "counting"

    def initialise(self, key, data):
        return MethodState(1.0 + jnp.full((), 0.0), (), key, jnp.asarray(0), jnp.full((), jnp.nan))

    def step(self, state, batch):
        self.traced.append(1)
        return state._replace(learnt=state.learnt + batch.mean(), step=state.step + 1)

    def generator(self, state):
        return state.learnt


def test_a_step_is_compiled_once(key):
    method = Counting([])
    train(method, jnp.ones((4, 1, 2, 2)), key=key, steps=3, batch_size=2)
    assert len(method.traced) == 1


def test_mosaics_are_row_by_row():
    tiles = np.arange(6.0)[:, None, None, None] * np.ones((6, 1, 2, 2))
    np.testing.assert_array_equal(mosaic(tiles, 3)[::2, ::2], [[0, 1, 2], [3, 4, 5]])
    assert mosaic(np.zeros((4, 3, 2, 2)), 2).shape == (4, 4, 3)


def test_the_command_goes_on_only_with_the_same_comparison(bars, tmp_path, monkeypatch):
    command = ("bench", "images", "--datasets", "mnist", "--out", tmp_path / "run")
    wrong = invoke(*command, "--methods", "VAE,GAN", "--epochs", 1)
    assert wrong.exit_code == 2
    assert "ALWS-F, ALWS-A, ALWS, AL-P, VAE" in wrong.output
    wrong = invoke(*command, "--methods", "VAE", "--seeds", "one", "--epochs", 1)
    assert "seeds must be whole numbers, got 'one'" in wrong.output
    missing = invoke(*command, "--methods", "VAE", "--epochs", 1, "--extractor", "absent.onnx")
    assert missing.exit_code == 2
    assert "there must be an ONNX file at absent.onnx" in missing.output
    assert not (tmp_path / "run").exists()

    ran = []

    def quickly(cell, plan, directory, notice=None):
        ran.append(cell.name)
        return run(cell, replace(SMALL, annealed=0), directory, notice)

    run = grid.run_cell
    monkeypatch.setattr(grid, "run_cell", quickly)
    first = invoke(*command, "--methods", "VAE", "--seeds", "0", "--epochs", 1)
    assert first.exit_code == 0, first.output
    assert ran == ["mnist-connected-VAE-0"]
    record = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert (record["preset"], record["settings"]["adapt_after_epochs"]) == ("own", 0.1)
    again = invoke(*command, "--methods", "VAE", "--seeds", "0", "--epochs", 1)
    assert again.exit_code == 0, again.output
    assert ran == ["mnist-connected-VAE-0"]
    other = invoke(*command, "--methods", "VAE", "--seeds", "0,1", "--epochs", 1)
    assert other.exit_code == 2
    assert "holds a comparison with other seeds: [0] there, [0, 1] here" in other.output


@pytest.mark.slow
def test_workers_share_the_cells(tmp_path, monkeypatch):
    real(monkeypatch, "mnist/train-images-idx3-ubyte.gz")
    plan = replace(SMALL, methods=("VAE", "SIVI"), data_size=100, annealed=0)
    core = min(grid.os.sched_getaffinity(0))
    tasks, told = [(cell, plan) for cell in plan.cells()], []
    grid.share(tasks, tmp_path, [core, core], lambda: told.append(1))
    assert told
    assert [len(run_cell(*task, tmp_path).curve.steps) for task in tasks] == [3, 3]
