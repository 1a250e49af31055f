import json
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from paper_tools import invoke, real

from alws import checkpoint
from alws_paper import cli, gallery
from alws_paper.experiments import EXPERIMENTS, RunError, resume, start
from alws_paper.run import Experiment, Run

NEEDS = {
    "ica": "natural/bsds_train_val.zip",
    "architectures": "mnist/train-images-idx3-ubyte.gz",
    "images": "mnist/train-images-idx3-ubyte.gz",
    "images-others": "mnist/train-images-idx3-ubyte.gz",
    "matrix-factorisation": "mnist/train-images-idx3-ubyte.gz",
    "vae-posterior": "mnist/train-images-idx3-ubyte.gz",
}


def test_list_names_every_experiment():
    result = invoke("list")
    assert result.exit_code == 0
    assert all(name in result.output for name in EXPERIMENTS)


RESUMED = ("gradient", "pinwheel", "matrix-factorisation")
"""Those whose quick run is done again from its checkpoints; the others take the same path."""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_preset_runs_and_can_be_resumed(name, tmp_path, monkeypatch):
    if name in NEEDS:
        real(monkeypatch, NEEDS[name])
    directory = tmp_path / "run"
    result = invoke("run", name, "--preset", "quick", "--seed", 1, "--out", directory)
    assert result.exit_code == 0, result.output
    record = json.loads((directory / "settings.json").read_text())
    assert (record["experiment"], record["preset"], record["seed"]) == (name, "quick", 1)
    claims = json.loads((directory / "claims.json").read_text())
    assert claims
    for claim in claims:
        assert set(claim) == {"claim", "paper", "measured", "holds"}
        assert isinstance(claim["holds"], bool)
    assert (directory / "figure.png").read_bytes().startswith(b"\x89PNG")
    metrics = (directory / "metrics.jsonl").read_text()
    assert metrics
    assert json.loads((directory / "run.json").read_text())["seconds"] > 0

    again = invoke("run", name, "--preset", "quick", "--out", directory)
    assert again.exit_code == 2
    assert "already exists and is not empty" in again.output
    assert json.loads((directory / "claims.json").read_text()) == claims

    if name in RESUMED:
        resumed = invoke("resume", directory)
        assert resumed.exit_code == 0, resumed.output
        assert json.loads((directory / "claims.json").read_text()) == claims
        assert (directory / "metrics.jsonl").read_text() == metrics


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nothing"), "the experiment must be one of "),
        (("run", "pinwheel", "--preset", "slow"), "must be one of quick, desk, paper; got 'slow'"),
        (("lenet", "cifar"), "the task must be one of mnist, fashion; got 'cifar'"),
        (("resume", "missing"), "is not a run directory: it has no settings.json"),
    ],
)
def test_mistakes_get_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_settings_and_checkpoint_cut_short_are_refused(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "settings.json").write_text('{"experiment": "pin')
    result = invoke("resume", directory)
    assert result.exit_code == 2
    assert "cannot be read as the settings of a run" in result.output
    record = {"experiment": "pinwheel", "preset": "quick", "seed": 0, "settings": {}}
    (directory / "settings.json").write_text(json.dumps({**record, "seed": None}))
    assert "cannot be read as the settings of a run" in invoke("resume", directory).output
    out = invoke("run", "pinwheel", "--preset", "quick", "--out", directory / "settings.json" / "a")
    assert out.exit_code == 2
    assert "settings.json is a file. Choose another with --out" in out.output
    (directory / "settings.json").write_text(json.dumps(record))
    (directory / "checkpoint.npz").write_bytes(b"PK\x03\x04 cut")
    result = invoke("resume", directory)
    assert result.exit_code == 2
    assert "is cut short or damaged" in result.output
    assert (directory / "checkpoint.npz").read_bytes() == b"PK\x03\x04 cut"


def test_what_was_trained_is_not_trained_again(tmp_path, capsys):
    run, calls = Run(tmp_path, 0, progress=True), []

    def train():
        calls.append(1)
        return {"weight": jnp.arange(3.0)}

    for _ in range(2):
        trained = run.once("rival", {"weight": jnp.zeros(3)}, train)
        np.testing.assert_array_equal(trained["weight"], [0, 1, 2])
    assert len(calls) == 1
    assert capsys.readouterr().err == "training rival\n"
    Run(tmp_path, 0, progress=False).tell("nothing")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("arguments", "begun_anew"), [(("run", "galton"), 1), (("list",), 0)])
def test_long_commands_start_with_large_pages_and_a_cache(arguments, begun_anew, monkeypatch):
    called = []
    monkeypatch.setattr(cli.sys, "argv", ["alws-paper", *arguments])
    monkeypatch.setattr(cli.os, "execv", lambda *_: called.append("anew"))
    monkeypatch.setattr(cli.alws, "enable_compilation_cache", lambda: called.append("cache"))
    monkeypatch.setattr(cli, "app", lambda: called.append("command"))
    monkeypatch.setattr(cli.platform, "libc_ver", lambda: ("glibc", "2.39"))
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # to be put back at the end
    monkeypatch.delenv("GLIBC_TUNABLES")
    cli.main()
    assert called == ["anew"] * begun_anew + ["cache", "command"]
    called.clear()
    monkeypatch.setenv("GLIBC_TUNABLES", "given")
    cli.main()
    assert called == ["cache", "command"]


@dataclass(frozen=True)
class Toy:
    steps: int = 2


def toy(settings, run):
    for step in range(settings.steps):
        run.log(step + 1, settings.steps, noise=0.1 * step)
    return []


def test_a_run_that_was_killed_goes_on_with_whole_metrics(tmp_path):
    toys = {"toy": Experiment("toy", "", {"quick": Toy()}, toy)}
    start(toys["toy"], "quick", 0, tmp_path / "run")
    path, seconds = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "run.json"
    whole = path.read_text()
    assert whole.count("\n") == 2
    path.write_text(whole[:-5])
    seconds.write_text('{"seconds": 3600.0}')
    resume(toys, tmp_path / "run")
    assert path.read_text() == whole
    assert 3600 <= json.loads(seconds.read_text())["seconds"] < 3700


@pytest.mark.parametrize(("step", "kept"), [(None, ["log"]), (5, [1, 5, "log"])])
def test_metrics_of_steps_to_be_done_again_are_taken_out(tmp_path, step, kept):
    if step is not None:
        checkpoint.save(tmp_path / "checkpoint.npz", {}, {"step": step})
    lines = [json.dumps({"refused_steps": 0, "step": i}) for i in (1, 5, 9)]
    log = json.dumps({"rate": 0.1, "step": 9})
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([*lines, log, '{"refused_st']))
    Run(tmp_path, 0).fit_arguments()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert ["log" if "rate" in line else line["step"] for line in found] == kept


def test_gallery_and_readme_table(tmp_path):
    run, shown, readme = (tmp_path / name for name in ("run", "docs/gallery", "paper/README.md"))
    run.mkdir()
    readme.parent.mkdir()
    record = {"experiment": "pinwheel", "preset": "desk"}
    claims = [{"claim": "a | b", "paper": "1", "measured": "2", "holds": False}]
    (run / "settings.json").write_text(json.dumps(record))
    (run / "claims.json").write_text(json.dumps(claims))
    with pytest.raises(RunError, match=r"is not a finished run: it has no figure\.png"):
        gallery.publish(run, shown)
    (run / "figure.png").write_bytes(b"png")
    gallery.publish(run, shown)
    readme.write_text(f"before\n{gallery.START}\nformer\n{gallery.END}\nafter\n")
    gallery.update_readme(shown, readme)
    text = readme.read_text()
    assert "| [pinwheel](../docs/gallery/pinwheel) | 0 of 1 | a \\| b |" in text
    whole = (shown / "README.md").read_text()
    assert "| [pinwheel](pinwheel) | a \\| b | 1 | 2 | **no** |" in whole
    assert "former" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    claims = [{**claims[0], "claim": f"c{i}", "holds": i > 4} for i in range(7)]
    (shown / "pinwheel" / "claims.json").write_text(json.dumps(claims))
    named = "| 2 of 7 | c0; c1; c2; [2 more](here/README.md) |"
    assert named in gallery.summary_table(shown, "here")
    (run / "settings.json").write_text(json.dumps({**record, "preset": "quick"}))
    with pytest.raises(RunError, match="the gallery shows desk runs, got preset 'quick'"):
        gallery.publish(run, shown)
