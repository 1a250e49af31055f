"""Experiments killed by SIGKILL at random moments go on where they were, and end the same."""

import random
import signal
import subprocess
import sys
import time

import pytest
from paper_tools import invoke

MAIN = "from alws_paper.cli import app; app()"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directories of runs that nobody killed, by experiment."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "run"
            result = invoke("run", name, "--preset", "quick", "--out", made[name])
            assert result.exit_code == 0, result.output
        return made[name]

    return of


def kill_after(directory, arguments, size, wait):
    """Run a command, and kill it some time after the directory holds so many bytes."""
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as process:
        while process.poll() is None:
            if sum(p.stat().st_size for p in directory.glob("*") if p.is_file()) > size:
                time.sleep(wait)
                process.send_signal(signal.SIGKILL)
                process.wait()
            time.sleep(0.002)
    return process.returncode == -signal.SIGKILL


def kill_often(name, whole, directory, times, seed):
    """Kill a run at random moments, counted in what it has written, and let it finish."""
    dice = random.Random(seed)
    most = sum(p.stat().st_size for p in whole.glob("*.npz"))
    killed = 0
    for share in sorted(dice.uniform(0, 0.9) for _ in range(times)):
        new = not (directory / "settings.json").exists()
        start = ("run", name, "--preset", "quick", "--out", directory)
        arguments = start if new else ("resume", directory)
        killed += kill_after(directory, arguments, share * most, dice.uniform(0, 0.1))
    assert killed
    # Not by `invoke`: tests check signatures, by code that the checkpoint does not know.
    last = [sys.executable, "-c", MAIN, "resume", str(directory)]
    result = subprocess.run(last, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    for file in ("claims.json", "metrics.jsonl", "figure.png"):
        assert (directory / file).read_bytes() == (whole / file).read_bytes(), file


@pytest.mark.slow
def test_a_killed_experiment_goes_on_where_it_was(whole, tmp_path):
    kill_often("gradient", whole("gradient"), tmp_path / "run", times=1, seed=0)
    kept = (tmp_path / "run" / "fields-0.1.npz").stat().st_mtime_ns
    assert kept < (tmp_path / "run" / "claims.json").stat().st_mtime_ns


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gradient", "pinwheel", "galton"])
@pytest.mark.parametrize("seed", [1, 2])
def test_experiments_killed_at_many_moments_end_the_same(whole, tmp_path, name, seed):
    kill_often(name, whole(name), tmp_path / "run", times=3, seed=seed)
