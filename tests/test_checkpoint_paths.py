"""Paths that a checkpoint cannot have, files that are none, and what happens to a result then."""

import io
import os
import resource
import shutil
import zipfile
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_checkpoint import DATA, SETTINGS, Normal

import alws
from alws import checkpoint
from alws.checkpoint import CheckpointError

BOTH = pytest.mark.parametrize("chosen", [False, True], ids=["steps", "climb"])


def fit(path, chosen=False, resume=False, **more):
    asked = {} if chosen else {"steps": 2, "settings": alws.Settings(**SETTINGS)}
    model, key = Normal(jnp.array(0.5)), jax.random.key(0)
    return alws.fit(model, DATA, key=key, checkpoint=path, resume=resume, **asked, **more)


@BOTH
@pytest.mark.parametrize("resume", [False, True])
def test_a_path_to_what_is_no_file_is_refused(tmp_path, chosen, resume):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        ("/dev/null", "must be a file, got a device"),
        (tmp_path / "pipe", "must be a file, got a pipe"),
        (tmp_path, "must be a file, got a folder"),
        (tmp_path / "file" / "c.npz", "must be a file"),
    ):
        with pytest.raises(CheckpointError, match=message):
            fit(path, chosen, resume)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "pipe"]


@BOTH
def test_a_path_that_cannot_be_written_is_found_before_the_first_step(chosen):
    def callback(report):
        raise AssertionError

    with pytest.raises(CheckpointError, match=r"a file that can be written: .* Give a path"):
        fit("/proc/c.npz", chosen, callbacks=[callback])


@BOTH
def test_a_full_disk_is_found_before_the_first_step(tmp_path, monkeypatch, chosen):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 100))
    with pytest.raises(CheckpointError, match=r"c\.npz must .* 100 bytes are free\. It needs \d+"):
        fit(tmp_path / "c.npz", chosen)
    assert list(tmp_path.iterdir()) == []


@BOTH
def test_a_folder_that_goes_away_during_a_fit_costs_the_checkpoint_alone(tmp_path, chosen):
    folder = tmp_path / "folder"

    def callback(report):
        if folder.is_dir():
            shutil.rmtree(folder)
            folder.write_text("")

    with pytest.warns(RuntimeWarning, match="could not be written .* The fit goes on"):
        result = fit(folder / "c.npz", chosen, callbacks=[callback])
    whole = fit(None, chosen)
    np.testing.assert_array_equal(result.model.mean, whole.model.mean)


@BOTH
def test_a_checkpoint_has_one_writer(tmp_path, chosen):
    def callback(report):
        fit(tmp_path / "c.npz", chosen)

    with pytest.raises(CheckpointError, match="must have one writer; another fit"):
        fit(tmp_path / "c.npz", chosen, callbacks=[callback])
    assert not list(tmp_path.glob("*.lock"))


@BOTH
def test_a_link_goes_on_pointing_where_it_did(tmp_path, chosen):
    link, target = tmp_path / "link.npz", tmp_path / "target.npz"
    link.symlink_to(target)
    first = fit(link, chosen)
    assert link.is_symlink()
    assert target.is_file()
    assert fit(link, chosen, resume=True).model.mean == first.model.mean


def rewritten(path, change, compression=zipfile.ZIP_STORED):
    """The archive with its members changed by `change(name, content)`."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, change(name, content))


def of_header(shape):
    """A header of an array that says it has this shape."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


@BOTH
def test_a_bomb_is_refused_before_it_is_inflated(tmp_path, chosen):
    path = tmp_path / "c.npz"
    fit(path, chosen)
    swollen = np.zeros(50_000_000).tobytes()

    def swell(name, content):
        return content if name == checkpoint.HEADER else content + swollen

    with zipfile.ZipFile(path) as archive:
        first = archive.namelist()[1]
    rewritten(path, lambda n, c: swell(n, c) if n == first else c, compression=zipfile.ZIP_DEFLATED)
    del swollen
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=r"must have at most \d+ bytes .* it was not read"):
        fit(path, chosen, resume=True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@BOTH
@pytest.mark.parametrize("shape", [(10**30,), (2**31, 2**31, 2**31), (-1,)])
def test_dimensions_that_overflow_are_refused(tmp_path, chosen, shape):
    path = tmp_path / "c.npz"
    fit(path, chosen)
    rewritten(path, lambda n, c: c if n == checkpoint.HEADER else of_header(shape))
    with pytest.raises(CheckpointError):
        fit(path, chosen, resume=True)


@BOTH
def test_encrypted_members_are_refused(tmp_path, chosen):
    path = tmp_path / "c.npz"
    fit(path, chosen)
    content, at = bytearray(path.read_bytes()), 0
    while (at := content.find(b"PK\x01\x02", at)) >= 0:
        content[at + 8] |= 1
        at += 4
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is encrypted; a checkpoint never is"):
        fit(path, chosen, resume=True)


def test_a_climb_whose_parameters_are_not_finite_is_refused(tmp_path):
    path = tmp_path / "c.npz"
    fit(path, chosen=True)

    def spoil(name, content):
        if "theta" not in name:
            return content
        buffer = io.BytesIO()
        np.save(buffer, np.load(io.BytesIO(content)) * np.nan)
        return buffer.getvalue()

    rewritten(path, spoil)
    with pytest.raises(CheckpointError, match="its parameters are not finite"):
        fit(path, chosen=True, resume=True)


def test_a_climb_goes_on_as_it_was_started_and_keeps_its_result_at_the_end(tmp_path):
    path, rounds = tmp_path / "c.npz", []
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        fit(path, chosen=True, resume=True)
    whole = fit(path, chosen=True, callbacks=[lambda report: rounds.append(report.step)])
    with pytest.raises(CheckpointError, match=r"was started with; key was '.*', is"):
        alws.fit(Normal(jnp.array(0.5)), DATA, key=jax.random.key(1), checkpoint=path, resume=True)
    with pytest.raises(CheckpointError, match="of a fit by steps, got that of a climb"):
        fit(path, resume=True)

    def fail(report):
        if report.step == rounds[-1]:
            raise RuntimeError("full")

    with pytest.warns(RuntimeWarning, match=r"after the last step it raised RuntimeError\('full'"):
        kept = fit(None, chosen=True, callbacks=[fail])
    np.testing.assert_array_equal(kept.model.mean, whole.model.mean)
