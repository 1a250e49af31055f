import json
import re
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from paper_tools import invoke, real

from alws import checkpoint
from alws_paper import cli, gallery
from alws_paper.experiments import EXPERIMENTS, RunError, resume, start
from alws_paper.images import grid
from alws_paper.relabel import relabel
from alws_paper.run import Claim, Experiment, Run

NEEDS = {
    "ica": "natural/bsds_train_val.zip",
    "architectures": "mnist/train-images-idx3-ubyte.gz",
    "images": "mnist/train-images-idx3-ubyte.gz",
    "images-at-length": "fashion-mnist/train-images-idx3-ubyte.gz",
    "images-others": "mnist/train-images-idx3-ubyte.gz",
    "matrix-factorisation": "mnist/train-images-idx3-ubyte.gz",
    "vae-posterior": "mnist/train-images-idx3-ubyte.gz",
}


def test_list_names_every_experiment():
    result = invoke("list")
    assert result.exit_code == 0
    assert all(name in result.output for name in EXPERIMENTS)


CLAIM = {"claim", "paper", "measured", "holds", "source", "compared", "undecided"}
RESUMED = ("gradient", "pinwheel", "matrix-factorisation", "ecology")
"""Those whose quick run is done again from its checkpoints; the others take the same path."""


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if n != "images-at-length"])
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
        assert set(claim) == CLAIM
        assert (claim["holds"] is None) == bool(claim["undecided"])
        assert claim["source"] in ("paper", "ours")
        assert claim["compared"]
    assert (directory / "figure.png").read_bytes().startswith(b"\x89PNG")
    metrics = (directory / "metrics.jsonl").read_text()
    assert metrics
    assert json.loads((directory / "run.json").read_text())["seconds"] > 0

    again = invoke("run", name, "--preset", "quick", "--out", directory)
    assert again.exit_code == 2
    assert "already exists and is not empty" in again.output
    assert json.loads((directory / "claims.json").read_text()) == claims

    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    shown = invoke("resume", directory)
    assert shown.exit_code == 0, shown.output
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before

    if name in RESUMED:
        (directory / "claims.json").unlink()
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


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[]", b"null", b"3", b'{"experiment": []}', b"[" * 100_000, b"{", b""]
    + [
        json.dumps({"experiment": "pinwheel", "preset": "quick", "seed": 0} | wrong).encode()
        for wrong in (
            {"settings": 3},
            {"settings": {"nonsense": 1}},
            {"settings": {}, "seed": 1.5},
            {"settings": {}, "preset": 3},
            {"settings": {}, "preset": "none"},
            {"settings": {}, "experiment": "none"},
            {"settings": None},
        )
    ],
)
def test_settings_that_are_none_are_refused(content, tmp_path):
    (tmp_path / "settings.json").write_bytes(content)
    result = invoke("resume", tmp_path)
    assert result.exit_code == 2
    assert "cannot be read as the settings of a run" in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["settings.json"]


def test_arrays_are_made_once_and_a_finished_run_is_only_shown(tmp_path):
    made = []

    def run(settings, run):
        for name in ("first", "second"):
            arrays = run.once_arrays(name, lambda name=name: made.append(name) or {"b": [2.5, 1]})
            np.testing.assert_array_equal(arrays["b"], [2.5, 1.0])
        if not (run.directory / "stopped").exists():
            (run.directory / "stopped").write_text("")
            raise InterruptedError
        made.append("claims")
        return [Claim("c", "1", "2", True)]

    toys = {"toy": Experiment("toy", "", {"quick": Toy()}, run)}
    with pytest.raises(InterruptedError):
        start(toys["toy"], "quick", 0, tmp_path / "run")
    found = resume(toys, tmp_path / "run")
    assert made == ["first", "second", "claims"]
    before = (tmp_path / "run" / "run.json").read_bytes()
    assert resume(toys, tmp_path / "run") == found == [Claim("c", "1", "2", True)]
    assert made == ["first", "second", "claims"]
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    (tmp_path / "run" / "claims.json").write_text('[{"claim": 3}]')
    with pytest.raises(RunError, match="cannot be read as the claims of a run"):
        resume(toys, tmp_path / "run")


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
    made_by = json.loads((tmp_path / "run" / "settings.json").read_text())["commit"]
    assert re.fullmatch(r"([0-9a-f]{40}\+?)?", made_by)
    whole = path.read_text()
    assert whole.count("\n") == 2
    path.write_text(whole[:-5])
    seconds.write_text('{"seconds": 3600.0}')
    (tmp_path / "run" / "claims.json").unlink()
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


def stored(claim, holds, source="paper", undecided=""):
    return {
        "claim": claim,
        "paper": "1",
        "measured": "2",
        "holds": holds,
        "source": source,
        "compared": "3",
        "undecided": undecided,
    }


def test_the_comparison_at_length_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    real(monkeypatch, NEEDS["images-at-length"])
    ran, run_cell = [], grid.run_cell

    def until_the_third(cell, *rest):
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(cell.name)
        return run_cell(cell, *rest)

    command = ("bench", "length", "--preset", "quick", "--out", tmp_path / "run")
    monkeypatch.setattr(grid, "run_cell", until_the_third)
    assert invoke(*command).exit_code != 0
    begun = (tmp_path / "run" / ran[0] / "done.json").read_bytes()
    monkeypatch.setattr(grid, "run_cell", run_cell)
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run" / ran[0] / "done.json").read_bytes() == begun
    done = {path.parent.name for path in (tmp_path / "run").glob("*/done.json")}
    assert done == {f"mnist-connected-{name}" for name in ("ALWS-A-0", "VAE-0", "VAE-1")} | {
        "fashion-connected-VAE-0"
    }
    claims = json.loads((tmp_path / "run" / "claims.json").read_text())
    assert {"paper", "ours"} == {claim["source"] for claim in claims}
    assert all(claim["compared"] for claim in claims)
    other = invoke(*command, "--seed", 1)
    assert other.exit_code == 2
    assert "holds images-at-length, preset quick, seed 0; asked for was" in other.output


def test_the_comparison_at_length_takes_finished_runs_from_the_gallery(tmp_path, monkeypatch):
    real(monkeypatch, NEEDS["images-at-length"])
    first, again, shown = (tmp_path / name for name in ("first", "again", "gallery"))
    command = ("bench", "length", "--preset", "quick", "--gallery", shown)
    nothing = invoke(*command, "--out", first, "--finished")
    assert nothing.exit_code == 2
    assert "is finished. Leave out --finished to go on" in nothing.output
    ran, run_cell = [], grid.run_cell

    def all_but_one(cell, *rest):
        if cell.name == "mnist-connected-VAE-1":
            raise KeyboardInterrupt
        ran.append(cell.name)
        return run_cell(cell, *rest)

    monkeypatch.setattr(grid, "run_cell", all_but_one)
    assert invoke(*command, "--out", first).exit_code != 0
    result = invoke(*command, "--out", first, "--finished")
    assert result.exit_code == 0, result.output
    claims = json.loads((first / "claims.json").read_text())
    left = "not run yet: VAE on mnist (seed 1), VAE on fashion"
    assert claims
    assert all(claim["compared"].endswith(left) for claim in claims)
    record = json.loads((first / "settings.json").read_text())
    (first / "settings.json").write_text(json.dumps(record | {"preset": "desk"}))
    stored = gallery.publish(first, shown)
    assert {path.name for path in (stored / "cells").iterdir()} == set(ran)
    assert not any(stored.rglob("checkpoint.npz"))

    began = len(ran)
    monkeypatch.setattr(grid, "run_cell", run_cell)
    result = invoke(*command, "--out", again)
    assert result.exit_code == 0, result.output
    assert began == len(ran) == 2
    for name in ran:
        kept, taken = ((where / name / "curve.jsonl") for where in (stored / "cells", again))
        assert kept.read_bytes() == taken.read_bytes()
        assert not (again / name / "checkpoint.npz").exists()
    assert "not run yet" not in (again / "claims.json").read_text()
    other = invoke(*command, "--seed", 1, "--out", tmp_path / "other", "--finished")
    assert other.exit_code == 2


def test_gallery_and_readme_table(tmp_path):
    run, shown, readme = (tmp_path / name for name in ("run", "docs/gallery", "paper/README.md"))
    run.mkdir()
    readme.parent.mkdir()
    record = {"experiment": "pinwheel", "preset": "desk", "commit": "abc", "settings": {"steps": 5}}
    (run / "settings.json").write_text(json.dumps(record))
    (run / "run.json").write_text('{"seconds": 7.0}')
    (run / "claims.json").write_text(json.dumps([stored("a | b", False), stored("c", True)]))
    with pytest.raises(RunError, match=r"is not a finished run: it has no figure\.png"):
        gallery.publish(run, shown)
    (run / "figure.png").write_bytes(b"png")
    with pytest.raises(RunError, match=r"figure\.png must be a PNG picture"):
        gallery.publish(run, shown)
    (run / "figure.png").write_bytes(gallery.PNG)
    for name in ("run.json", "claims.json", "settings.json"):
        whole = (run / name).read_text()
        for damaged in (whole[:-2], "[1]", "\udcff"):
            (run / name).write_bytes(damaged.encode(errors="surrogateescape"))
            with pytest.raises(RunError, match=f"{name} cannot be read as a file of a run"):
                gallery.publish(run, shown)
        (run / name).write_text(whole)
    assert not shown.exists()
    gallery.publish(run, shown)
    kept = json.loads((shown / "pinwheel" / "run.json").read_text())
    assert kept == {**record, "seconds": 7.0}
    readme.write_text(f"before\n{gallery.START}\nformer\n{gallery.END}\nafter\n")
    gallery.update_readme(shown, readme)
    text = readme.read_text()
    row = "| [pinwheel](../docs/gallery/pinwheel) | before 0.2 | 1 of 2 hold | a \\| b | none |"
    assert row in text
    (shown / "pinwheel" / "run.json").write_text(json.dumps({**record, "version": "1.2.3"}))
    assert "| 1.2.3 | 1 of 2 hold |" in gallery.summary_table(shown, "here")
    whole = (shown / "README.md").read_text()
    assert "| [pinwheel](pinwheel) | a \\| b | 1 | 2 | 3 | **does not hold** |" in whole
    assert "former" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    claims = [stored(f"c{i}", i > 4) for i in range(7)] + [stored("d", None, "ours", "too short")]
    (shown / "pinwheel" / "claims.json").write_text(json.dumps(claims))
    row = "| 2 of 7 hold | c0; c1; [3 more](here/README.md) | 1 undecided |"
    assert row in gallery.summary_table(shown, "here")
    paper, ours = gallery.claims_tables(shown).split("## Bars of our own")
    assert "c6" in paper
    assert "| d | 1 | 2 | 3 | undecided: too short |" in ours
    (run / "claims.json").write_text('[{"claim": "old", "holds": true}]')
    with pytest.raises(RunError, match="do not say whose they are"):
        gallery.publish(run, shown)
    (run / "settings.json").write_text(json.dumps({**record, "preset": "quick"}))
    with pytest.raises(RunError, match="the gallery shows desk runs, got preset 'quick'"):
        gallery.publish(run, shown)


def test_claims_without_a_source_are_relabelled_from_what_is_stored(tmp_path):
    (tmp_path / "ecology").mkdir()
    (tmp_path / "images-others").mkdir()

    def write(name, *claims):
        keys = ("claim", "paper", "measured", "holds")
        rows = [dict(zip(keys, claim, strict=True)) for claim in claims]
        (tmp_path / name / "claims.json").write_text(json.dumps(rows))

    write(
        "ecology", ("closer", "visibly closer", "1 against 2", True), ("a", "not given", "", True)
    )
    lowest = "cifar-10, connected: ALWS-A has the lowest {} distance of the maximum-likelihood"
    write(
        "images-others",
        (lowest.format("Fréchet"), "the best", "", False),
        (lowest.format("kernel"), "the best", "", True),
        (
            "mnist, connected: ALWS-A has the lowest kernel distance in equal time",
            "not given",
            "",
            True,
        ),
        ("mnist, connected: ALWS-A has the lowest kernel distance", "lower", "", True),
    )
    settings = {"scored": 5000, "scored_slowly": 300, "adapt_after_epochs": 0.1}
    settings |= {"few_adapt_after": {"cifar-10": 1.0}, "adapt_criterion": "gradient"}
    settings |= {"adapt_rate": 1e-4, "adapt_every": 5}
    record = {"experiment": "images-others", "settings": settings}
    (tmp_path / "images-others" / "run.json").write_text(json.dumps(record))
    head = "dataset,generator,method,seed,epochs,frechet,kernel,kernel_error"
    rows = ("mnist,connected,ALWS-A,0,2,9,1.0,0.3", "mnist,connected,VAE,0,9,9,1.5,0.3")
    rows += ("cifar-10,connected,ALWS-A,0,0.8,9,1.0,0.3", "cifar-10,connected,VAE,0,9,9,1.5,0.3")
    table = tmp_path / "images-others" / "scores.csv"
    table.write_text("\n".join([head, *rows]) + "\n")

    assert relabel(tmp_path, EXPERIMENTS) == {"ecology": 2, "images-others": 2}
    closer, other = json.loads((tmp_path / "ecology" / "claims.json").read_text())
    assert (closer["source"], closer["holds"]) == ("paper", None)
    assert closer["undecided"].startswith("2.6 % of the paper's budget")
    assert (other["source"], other["holds"]) == ("ours", True)
    assert set(closer) == CLAIM
    timed, equal = json.loads((tmp_path / "images-others" / "claims.json").read_text())
    assert (timed["source"], timed["holds"]) == ("ours", None)  # 1.0 ± 0.3 and 1.5 ± 0.3
    assert "not as published: adapted by the gradient's criterion" in timed["compared"]
    assert equal["undecided"].startswith("4 % of the paper's budget")
    withdrawn = json.loads((tmp_path / "images-others" / "run.json").read_text())["withdrawn"]
    whys = [one["why"] for one in withdrawn]
    assert whys[0] == "the Fréchet distance was of fewer pictures than twice the features"
    assert whys[1] == "the run ended at epoch 0.8, before ALWS-A adapted"
    assert table.read_text().splitlines()[3] == "cifar-10,connected,ALWS-A,0,0.8,,1.0,0.3"
    assert "## Withdrawn" in gallery.claims_tables(tmp_path)
    assert relabel(tmp_path, EXPERIMENTS) == {}
