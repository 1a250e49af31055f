"""Benchmarks run as users run them, in processes of their own; what they measure is not tested.

The table's comparison with a baseline is, on results that are made up.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "benchmarks"
RESULT = {
    "seconds": 0.5,
    "product_seconds": 0.2,
    "product_median": 0.21,
    "product_flops": 2e10,
    "flops": 3e10,
    "memory_gib": 0.625,
    "error": 0.08,
    "gradient_seconds": 0.04,
}
QUICK = {"same_gradient.py", "transposed_convolution.py", "verdict_calibration.py"}
"""Those that take seconds; each has a test of its own."""
SLOW = {
    "adaptation.py": (),
    "conditions.py": (),
    "cost_model.py": ("--sizes", "500"),
    "covariate_shift.py": (),
    "criteria.py": ("--problems", "pinwheel"),
    "dynamics.py": (),
    "filters.py": ("--lengths", "50", "100"),
    "gradient_error.py": (),
    "images.py": (),
    "many_units.py": (),
    "scaling.py": (),
    "sequence_rivals.py": (),
    "sleep_phase.py": ("--problems", "mixture"),
    "step.py": (),
    "table.py": (),
    "windows.py": (),
    "time_to_claim.py": ("--experiments", "gradient", "pinwheel"),
}
NEED_DATA = {"posterior_gradient.py"}
PARTS = {
    "baseline.py",
    "machine.py",
    "models.py",
    "rows.py",
    "sizes.py",
    "with_pytorch.py",
    "with_scikit_learn.py",
    "work.py",
}
OTHERS = {"known_maxima.py"}
"""Tested elsewhere, if it is there."""


def run(script, *arguments, where=ROOT, code=0):
    """What a benchmark prints."""
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, env=os.environ)
    assert done.returncode == code, done.stderr[-3000:]
    return done.stdout


def test_every_script_is_run_by_some_test():
    there = {path.name for path in SCRIPTS.glob("*.py")} - OTHERS
    assert there == {*QUICK, *SLOW, *NEED_DATA, *PARTS}


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.name)
def test_benchmarks_use_public_names_and_no_tests(path):
    modules = {other.stem for other in (ROOT / "tests").rglob("*.py")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            if names[0].startswith("alws"):
                private = [name for name in names if name.startswith("_")]
                assert not private, f"{path.name} takes {private} from {node.module}"
            assert names[0] not in {"tests", "exact", "many_devices"}
            assert not (names[0].startswith("test_") and names[0] in modules)


@pytest.mark.slow
@pytest.mark.parametrize("script", SLOW)
def test_quick_form_runs(script, tmp_path):
    assert run(script, "--quick", *SLOW[script], where=tmp_path)


def test_other_libraries_make_the_same_step():
    for library, gaps in json.loads(run("same_gradient.py", "--quick")).items():
        assert (gaps is not None) == (importlib.util.find_spec(library) is not None)
        if gaps is not None:
            assert set(gaps) == {"toy", "images"}
            assert all(gap < 1e-8 for gap in gaps.values()), gaps


def test_both_ways_of_a_transposed_convolution_have_one_gradient():
    found = json.loads(run("transposed_convolution.py", "--quick"))
    assert found["largest_relative_gap_of_gradients"] < 1e-4


def test_verdicts_are_counted(tmp_path):
    """One fit far from the maximum that was trusted, one near it that was, and one between."""
    made_up = [(0.5, True), (0.01, True), (0.1, False), (0.3, False)]
    fits = [{"seed": i, "gap_per_parameter": g, "trusted": t} for i, (g, t) in enumerate(made_up)]
    kept = tmp_path / "fits.json"
    kept.write_text(json.dumps({"problems": {"faithful": {"fits": fits}}}))
    *_, last = run("verdict_calibration.py", "--fits", kept, "--spoilt").strip().splitlines()
    assert last == (
        "Far from the maximum: 2, of which 1 were trusted (above 5%). Near it: 1, of which 0 were "
        "flagged (within 10%). Between: 1."
    )


@pytest.mark.slow
def test_a_spoilt_fit_is_flagged():
    found = run("verdict_calibration.py", "--quick")
    assert "Far from the maximum: 1, of which 0 were trusted" in found


# The table and its baseline ---------------------------------------------------------------------


def result(ratio, **changes):
    """A row that takes so many matrix products a step."""
    return {**RESULT, "seconds": ratio * RESULT["product_seconds"], **changes}


def show(tmp_path, results, before=None, *options, code=0):
    """What the table says of these results beside this baseline, {row: (ratio, spread)}."""
    kept, baseline = tmp_path / "results.json", tmp_path / "baseline.json"
    kept.write_text(json.dumps(results))
    if before is not None:
        rows = {
            name: {"ratio": ratio, "spread": spread} for name, (ratio, spread) in before.items()
        }
        found = {"format": 1, "runs": 3, "machine": "two cores", "rows": rows}
        baseline.write_text(json.dumps(found))
    return run("table.py", "--results", kept, "--baseline", baseline, *options, code=code)


def test_layout(tmp_path):
    missing = "not installed: pip install '.[bench]'"
    heading, exact, absent, peak, *_ = show(
        tmp_path, {"exact": RESULT, "pytorch": missing}
    ).splitlines()
    assert heading.split() == ["s/step", "of", "peak", "GiB", "error", "s/gradient", "error·√s"]
    # 3e10 operations in 0.5 s, where the product makes 1e11 a second: 60 %; 0.08·√0.04 = 0.016.
    assert exact.endswith("0.500        60 %        0.62      0.0800      0.0400      0.0160")
    assert len(exact) == len(heading)
    assert absent.startswith("PyTorch ")
    assert absent.endswith(missing)
    assert "100.0 to 100.0 GFLOP/s" in peak


def test_a_busy_machine_is_told(tmp_path):
    assert "busy" not in show(tmp_path, {"exact": result(2.0)}, {"exact": (2.0, 0.0)})
    slow = {"exact": result(2.0), "nystrom": result(2.0, product_median=0.3)}
    assert "1.5 times" in show(tmp_path, slow, {"exact": (2.0, 0.0)})


def test_only_what_exceeds_the_noise_is_slower(tmp_path):
    before = {"exact": (2.0, 0.01), "nystrom": (2.0, 0.2), "adapted": (2.0, 0.01)}
    now = {"exact": result(2.6), "nystrom": result(3.0), "adapted": result(2.4)}
    text = show(tmp_path, now, before, "--check", code=1)
    (slower,) = [line for line in text.splitlines() if line.startswith("SLOWER")]
    # 30 % where the noise is 25 %; the others 50 % of 60 % and 20 % of 25 %.
    assert slower.startswith("SLOWER: exact takes 2.60 matrix products a step, 30 % more")
    assert "2.00 of the baseline (noise: 25 %)" in slower
    assert "--store" in text
    assert "another machine" in text


def test_what_this_library_cannot_help_does_not_fail_the_check(tmp_path):
    text = show(tmp_path, {"pytorch": result(3.0)}, {"pytorch": (2.0, 0.0)}, "--check")
    assert "busy" in text
    text = show(tmp_path, {"exact": result(2.1)}, {"exact": (2.0, 0.0)}, "--check")
    assert "Nothing is slower" in text


def test_a_check_that_compared_nothing_fails(tmp_path):
    text = show(tmp_path, {"nystrom": result(2.1)}, {"exact": (2.0, 0.0)}, "--check", code=1)
    assert "Not in the baseline" in text
    (tmp_path / "baseline.json").unlink()
    assert "No baseline" in show(tmp_path, {"exact": result(2.1)}, None, "--check", code=1)


def test_a_row_that_failed_fails_the_table(tmp_path):
    failed = {"exact": "FAILED with exit code 1: see above"}
    assert "FAILED with exit code 1" in show(tmp_path, failed, {"exact": (2.0, 0.0)}, code=1)


def test_what_is_stored_is_read_again(tmp_path):
    ours = ("exact", "adapted", "nystrom", "random_features", "conjugate_gradients")
    files = []
    for i, ratio in enumerate((2.0, 2.2, 2.1)):
        files.append(tmp_path / f"{i}.json")
        files[-1].write_text(json.dumps(dict.fromkeys(ours, result(ratio))))
    baseline = tmp_path / "kept.json"
    run("table.py", "--store", "--results", *files, "--baseline", baseline)
    row = json.loads(baseline.read_text())["rows"]["exact"]
    assert row["ratio"] == pytest.approx(2.1)
    assert row["spread"] == pytest.approx(0.1 / 2.1, abs=1e-4)
    text = run("table.py", "--results", files[0], "--baseline", baseline, "--check")
    assert "Nothing is slower" in text


def test_a_baseline_of_another_format_is_refused(tmp_path):
    baseline, kept = tmp_path / "baseline.json", tmp_path / "results.json"
    baseline.write_text('{"format": 0}')
    kept.write_text(json.dumps({"exact": RESULT}))
    command = [sys.executable, SCRIPTS / "table.py", "--results", kept, "--baseline", baseline]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "format 1, got 0" in done.stderr
