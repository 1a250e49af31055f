"""Fits in one go, by a filter or by regressed scores: their checkpoint, and who watches them."""

import json
import tempfile
from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from test_checkpoint import DATA, SETTINGS, Normal
from test_checkpoint_paths import rewritten

import alws
from alws.checkpoint import HEADER, CheckpointError

KEY = jax.random.key(0)
SEQUENCES = np.random.default_rng(0).normal(size=(3, 8)).cumsum(axis=1)


class Walk(alws.StateSpace):
    log_noise: jax.Array
    times: int = eqx.field(static=True, default=8)

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state):
        return dist.Normal(state, 0.1)

    def observation(self, state):
        return dist.Normal(state, jnp.exp(self.log_noise))


class Spike(Normal):
    """Half of the latents are 0: no points integrate them, and scores are regressed."""

    def sample(self, key):
        z, x = super().sample(key)
        there = jax.random.bernoulli(key)
        return jnp.where(there, z, 0.0), x - jnp.where(there, 0.0, z)

    def log_joint(self, z, x):
        return jnp.where(z == 0, -0.9, -0.5 * z**2 - 1.8) - 0.5 * (x - self.mean - z) ** 2


WAYS = {
    "filter": (Walk(jnp.array(0.0)), SEQUENCES, Walk(jnp.array(1.0))),
    "scores": (Spike(jnp.array(0.5)), DATA, Spike(jnp.array(2.0))),
}
BOTH = pytest.mark.parametrize("way", WAYS)


def fit(way, **more):
    model, data, _ = WAYS[way]
    return alws.fit(more.pop("model", model), more.pop("data", data), key=KEY, **more)


@cache
def ended(way):
    """A fit, and the content of its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.npz"
        return fit(way, checkpoint=path), path.read_bytes()


def same(a, b):
    for left, right in zip(jax.tree.leaves(a.model), jax.tree.leaves(b.model), strict=True):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_equal(a.log_likelihood, b.log_likelihood)
    assert (a.method, a.verdict, a.steps, a.maxima) == (b.method, b.verdict, b.steps, b.maxima)


@BOTH
def test_a_fit_that_had_ended_is_given_back(way, tmp_path):
    path, rounds = tmp_path / "c.npz", []
    whole, content = ended(way)
    path.write_bytes(content)
    again = fit(way, checkpoint=path, resume=True, callbacks=[rounds.append], model=WAYS[way][2])
    same(whole, again)
    assert not rounds
    assert path.read_bytes() == content


@BOTH
def test_a_fit_that_was_killed_begins_again_and_ends_the_same(way, tmp_path):
    path = tmp_path / "c.npz"

    def fail(report):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fit(way, checkpoint=path, callbacks=[fail])
    same(ended(way)[0], fit(way, checkpoint=path, resume=True, model=WAYS[way][2]))


@BOTH
def test_what_belongs_to_another_fit_is_refused(way, tmp_path):
    own, steps, climb = (tmp_path / name for name in ("own.npz", "steps.npz", "climb.npz"))
    few = {"steps": 2, "settings": alws.Settings(**SETTINGS)}
    normal, data = Normal(jnp.array(0.5)), WAYS[way][1]
    own.write_bytes(ended(way)[1])
    fit(way, checkpoint=steps, **few)
    alws.fit(normal, DATA, key=KEY, checkpoint=climb)
    for path, more, message in (
        (own, {"data": data + 1}, "data was '.*', is '"),
        (own, {"log_prior": lambda m: -(jax.tree.leaves(m)[0] ** 2)}, "log_prior was None, is"),
        (own, {"starts": 2}, "starts was 1, is 2"),
        (own, few, "of a fit by steps, got that of a fit that is made in one go"),
        (climb, {}, "model was Normal, is "),
        (steps, {}, "made in one go, .* got that of a fit by steps"),
    ):
        content = path.read_bytes()
        with pytest.raises(CheckpointError, match=message):
            fit(way, checkpoint=path, resume=True, **more)
        assert path.read_bytes() == content
    with pytest.raises(CheckpointError, match="model was "):
        alws.fit(normal, DATA, key=KEY, checkpoint=own, resume=True)


@BOTH
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("observations", -1), ("observations", 10**12), ("observations", "3"), ("verdict", [1]),
        ("free", 0.5), ("maxima", 3), ("log", None), ("method", 1), ("found", 3), ("began_at", "x"),
    ],
)  # fmt: skip
def test_a_header_that_no_fit_writes_is_refused(way, place, value, tmp_path):
    path = tmp_path / "c.npz"
    path.write_bytes(ended(way)[1])

    def spoil(name, content):
        if name != HEADER:
            return content
        header = json.loads(content)
        inner = (
            header["one go"] if place in ("observations", "found") else header["one go"]["found"]
        )
        inner[place] = value
        return json.dumps(header).encode()

    rewritten(path, spoil)
    with pytest.raises(CheckpointError, match=r"must be|is damaged"):
        fit(way, checkpoint=path, resume=True)


def test_callbacks_see_a_fit_by_scores_and_may_stop_it(tmp_path):
    seen = []
    result = fit("scores", callbacks=[seen.append, alws.MetricsFile(tmp_path / "m.jsonl")])
    assert [report.step for report in seen] == list(range(1, result.steps + 1))
    assert seen[-1].steps == seen[-1].step
    assert all(report.steps == 0 for report in seen[:-1])
    np.testing.assert_allclose(seen[-1].model.mean, result.model.mean)
    assert seen[-1].metrics["left"] == result.verdict.left < seen[0].metrics["left"]
    assert len((tmp_path / "m.jsonl").read_text().splitlines()) == len(seen)

    stopped = fit("scores", callbacks=[lambda report: report.step == 2])
    assert stopped.steps == 2
    assert len(stopped.metrics["objective"]) == 2


def test_early_stopping_without_an_objective_says_so():
    with pytest.warns(RuntimeWarning, match="by regressed scores, has none: .* Give it `score`"):
        result = fit("scores", callbacks=[alws.EarlyStopping(patience=1, window=1)])
    scored = fit("scores", callbacks=[alws.EarlyStopping(patience=1, score=lambda model: 0.0)])
    assert scored.steps == 2 < result.steps


def test_stopping_ends_all_starts():
    seen = []
    with pytest.warns(RuntimeWarning, match="not at a maximum"):
        result = fit("filter", starts=3, callbacks=[lambda report: seen.append(report) or True])
    assert len(seen) == result.steps == 1
    assert sum(number for _, number in result.maxima) == 1
