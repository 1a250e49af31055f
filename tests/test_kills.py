"""Fits killed by SIGKILL, at random moments and while they write, end as if nothing had been."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import killed
import numpy as np
import pytest


class Fits:
    """Fits in processes of their own, one at a time."""

    def __init__(self):
        self.killed: list[str] = []
        self.server = subprocess.Popen(
            [sys.executable, killed.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, folder: Path, kind: str, die=lambda words: False, wait=0.0, **inside) -> bool:
        """Run a fit, and kill it some time after the first line for which `die` is true.

        Whether it came to its end all the same.
        """
        job = {"folder": str(folder), "kind": kind, **inside}
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        pid, ended, doomed = 0, False, True
        for line in self.server.stdout:
            words = line.split()
            if words[0] == "pid":
                pid = int(words[1])
            elif words[0] == "over":
                return ended
            ended |= words[0] == "ended"
            if doomed and not ended and die(words):
                doomed = False
                time.sleep(wait)
                os.kill(pid, signal.SIGKILL)
                self.killed.append(words[0])
        raise AssertionError("the server of fits is gone")


@pytest.fixture(scope="module")
def fits():
    found = Fits()
    with found.server:
        yield found


@pytest.fixture(scope="module")
def whole(fits, tmp_path_factory):
    """What fits that nobody killed have left, by kind."""
    folders = {}

    def of(kind):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(kind)
            assert fits.run(folders[kind], kind)
        return folders[kind]

    return of


def same(folder: Path, whole: Path) -> None:
    """The parameters, and every step's metrics, are bit for bit those of the whole fit."""
    found, right = (np.load(path / "result.npy") for path in (folder, whole))
    np.testing.assert_array_equal(found, right)
    assert (folder / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in whole.iterdir())


def kill_often(fits, whole: Path, folder: Path, kind: str, seed: int, times: int) -> None:
    """Kill a fit at random moments of its course, and twice while it writes a checkpoint."""
    dice, reports = random.Random(seed), len((whole / "metrics.jsonl").read_text().splitlines())
    early = range(1, max(2, 2 * reports // 3))  # a checkpoint is still to be written after these
    for moment in sorted(dice.choices(early, k=times)):
        fits.run(
            folder,
            kind,
            lambda words, m=moment: words[0] == "report" and int(words[1]) >= m,
            wait=dice.uniform(0, 0.02),
        )
    for where in ("half", "replace"):
        fits.run(folder, kind, lambda words: words[0] == "writing", inside=where, number=1)
        assert fits.killed[-1] == "writing"
        assert (folder / "checkpoint.npz.partial").exists()
    assert fits.run(folder, kind)


@pytest.mark.parametrize("kind", ["steps", "climb"])
def test_a_fit_killed_while_it_goes_on_and_while_it_writes_goes_on_bit_for_bit(
    fits, whole, tmp_path, kind
):
    before = len(fits.killed)
    kill_often(fits, whole(kind), tmp_path, kind, seed=0, times=1)
    assert len(fits.killed) == before + 3
    same(tmp_path, whole(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["steps", "climb"])
@pytest.mark.parametrize("seed", [1, 2])
def test_fits_killed_at_many_moments_go_on_bit_for_bit(fits, whole, tmp_path, kind, seed):
    kill_often(fits, whole(kind), tmp_path, kind, seed, times=4)
    same(tmp_path, whole(kind))
