"""One fit on one device, on eight, and in two processes: the same result, the same checkpoints.

Virtual devices and several processes need interpreters of their own; see `many_devices.py`.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import alws
from alws import checkpoint as resuming
from alws import devices as distributed
from alws.devices import check_divides, fingerprint, make_mesh

SCRIPT = Path(__file__).with_name("many_devices.py")
ONE, EIGHT = {"devices": None}, {"devices": 8}
CASES = {
    "exact": {"regression": "exact"},
    "nystrom": {"regression": "nystrom", "data": 37},
    "conditions": {"regression": "exact", "conditions": "pooled", "adapt": True},
    "centred": {"regression": "exact", "centred": True},
    "random features": {"regression": "random features", "impl": "rbg", "batch_size": 24},
}
SLOW = {
    "separate conditions": {"regression": "exact", "conditions": "separate", "batch_size": 8},
    "exact": {"regression": "exact", "adapt": True, "natural_units": True},
    "leverage": {"regression": "leverage", "adapt": True},
    "conjugate gradients": {"regression": "conjugate gradients", "adapt": True},
    "blocks": {"regression": "random features", "adapt": True, "natural_units": True},
}
JOINED = CASES["random features"]


def launch(job, devices=1):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    source = str(Path(alws.__file__).parents[1])
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": source, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), json.dumps(job)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(job, devices=1):
    process = launch(job, devices)
    (output,) = ended([process])
    assert process.returncode == 0, output[-3000:]


def ended(processes):
    """What they print until they end; none is left behind."""
    try:
        return [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_two(fits, heartbeat=30):
    """The same fits in two processes that are joined; `fits(i)` are those of process i."""
    join = {"coordinator": f"127.0.0.1:{free_port()}", "processes": 2, "heartbeat": heartbeat}
    processes = [launch({"join": {**join, "process": i}, "fits": fits(i)}) for i in range(2)]
    outputs = ended(processes)
    return [process.returncode for process in processes], outputs


def same(a, b, tolerance=1e-8):
    np.testing.assert_allclose(np.load(a), np.load(b), rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Every case on one device and on eight, and fits begun on the one and ended on the other."""
    folder = tmp_path_factory.mktemp("devices")
    jobs = []
    for name, case in CASES.items():
        for devices in (ONE, EIGHT):
            out = str(folder / f"{name}-{devices['devices']}.npy")
            jobs.append({**case, **devices, "out": out})
    for begun, end in zip(jobs[-2:], (EIGHT, ONE), strict=True):
        begun |= {"steps": 2, "checkpoint": str(folder / f"from-{begun['devices']}.npz")}
        out = str(folder / f"from-{begun['devices']}.npy")
        jobs.append({**begun, **end, "steps": 4, "resume": True, "out": out})
    jobs.append({**JOINED, **ONE, "out": str(folder / "whole.npy")})
    programs = {name: str(folder / f"{name}.npy") for name in ("shares", "exchanges")}
    run({"fits": jobs, **programs}, devices=8)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_eight_devices_give_what_one_gives(fits, name):
    same(fits / f"{name}-8.npy", fits / f"{name}-None.npy")


def test_each_device_simulates_its_own_share_only(fits):
    whole, share = np.load(fits / "shares.npy")
    assert whole == 0
    assert share > 0


def test_a_factor_made_in_blocks_is_not_sent_about(fits):
    """With the blocks divided among the devices there were a hundred and more."""
    assert 0 < np.load(fits / "exchanges.npy") < 30


@pytest.mark.parametrize("begun_on", [None, 8])
def test_a_checkpoint_serves_any_number_of_devices(fits, begun_on):
    same(fits / f"from-{begun_on}.npy", fits / "whole.npy")


def test_two_processes_give_what_one_gives_and_write_once(fits, tmp_path):
    checkpoint, metrics = tmp_path / "c.npz", tmp_path / "metrics.jsonl"
    files = {"checkpoint": str(checkpoint), "metrics": [str(metrics)]}

    def jobs(i):
        return [{**JOINED, **files, "devices": "all", "out": str(tmp_path / f"{i}.npy")}]

    codes, outputs = run_two(jobs)
    assert codes == [0, 0], outputs
    for i in range(2):
        same(tmp_path / f"{i}.npy", fits / "whole.npy")
    assert alws.checkpoint.header(checkpoint)["step"] == 4
    assert len(metrics.read_text().splitlines()) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_eight_devices_give_what_one_gives_in_longer_ways(name, tmp_path):
    jobs = [
        {**SLOW[name], **devices, "out": str(tmp_path / f"{devices['devices']}.npy")}
        for devices in (ONE, EIGHT)
    ]
    run({"fits": jobs, **({"rows": 4} if name == "blocks" else {})}, devices=8)
    same(tmp_path / "8.npy", tmp_path / "None.npy", 1e-5 if name != "blocks" else 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_other_and_a_restart_goes_on(killed, fits, tmp_path):
    case = {**JOINED, "devices": "all", "checkpoint": str(tmp_path / "c.npz")}
    case = {**case, "checkpoint_every": 2, "out": str(tmp_path / "out.npy")}
    codes, outputs = run_two(lambda i: [{**case, "die_at": 3 if i == killed else None}], 10)
    assert codes[killed] == -9
    assert codes[1 - killed] not in (0, None)
    assert "WorkerLost" in outputs[1 - killed]
    assert "resume=True" in outputs[1 - killed]
    assert alws.checkpoint.header(tmp_path / "c.npz")["step"] == 2
    codes, outputs = run_two(
        lambda i: [{**case, "resume": True, "out": str(tmp_path / f"{i}.npy")}]
    )
    assert codes == [0, 0], outputs
    same(tmp_path / "1.npy", fits / "whole.npy")


@pytest.mark.slow
def test_processes_with_other_data_or_settings_are_refused(tmp_path):
    def jobs(i):
        other = {"shift": float(i), "steps": 4 + i}
        return [{**JOINED, **other, "devices": "all", "out": str(tmp_path / "out.npy")}]

    codes, outputs = run_two(jobs, heartbeat=10)
    assert 0 not in codes
    message = "`data`, `steps` must be the same in every process; processes [1] of 2"
    assert all(message in output for output in outputs), outputs


@pytest.mark.slow
def test_a_checkpoint_that_one_process_does_not_see_is_refused_by_all(tmp_path):
    """Each has a folder of its own, as without a shared file system, and both ask to resume."""
    case = {**JOINED, "devices": 1, "out": str(tmp_path / "out.npy")}
    run({"fits": [{**case, "steps": 2, "checkpoint": str(tmp_path / "0" / "c.npz")}]})

    def jobs(i):
        path = tmp_path / str(i) / "c.npz"
        return [{**case, "devices": "all", "checkpoint": str(path), "resume": path.exists()}]

    codes, outputs = run_two(jobs, heartbeat=10)
    assert 0 not in codes
    for output in outputs:
        assert "`resume`, the step of the checkpoint" in output, output
        assert "Put the checkpoint on a file system that all processes share" in output


@pytest.mark.slow
def test_a_process_lost_before_the_first_step_is_a_lost_worker(tmp_path):
    case = {**JOINED, "devices": "all", "out": str(tmp_path / "out.npy")}
    codes, outputs = run_two(lambda i: [{**case, "die_drawing": i == 1}], 10)
    assert codes[1] == -9
    assert codes[0] not in (0, None)
    assert "WorkerLost" in outputs[0], outputs[0]


# What processes compare ---------------------------------------------------------------------------


@pytest.fixture
def joined(monkeypatch):
    """Two processes in one: `joined(call, other)` has what each would say compared."""

    def compare(*calls):
        said = []
        monkeypatch.setattr(distributed.jax, "process_count", lambda: 2)
        monkeypatch.setattr(distributed, "_from_all", lambda v: said.append(v) or np.stack([v, v]))
        for call in calls:
            call()
        monkeypatch.setattr(distributed, "_from_all", lambda v: np.stack(said))
        calls[1]()

    return compare


def test_what_differs_between_processes_is_named(joined):
    module = importlib.import_module("alws.fit")  # `alws.fit` itself is the function

    def settings(**more):
        return alws.Settings(
            alws.regressions.Nystrom(alws.kernels.Matern12(), **more), measure_every=5
        )

    def check(settings, **more):
        things = {"`steps`": 3, "`model`": np.ones(3), **more}
        return lambda: module._check_processes(things, settings, None)

    joined(check(settings()), check(settings()))
    message = r"^`steps`, `settings.regression` must be .* processes \[1\] of 2 .* same script"
    with pytest.raises(ValueError, match=message):
        joined(check(settings()), check(settings(inducing=7), **{"`steps`": 4}))
    with pytest.raises(ValueError, match=r"^`settings.regression` must"):
        joined(check(settings()), check(settings(ridge=0.1)))


def test_processes_that_do_not_all_resume_or_see_another_step(joined, tmp_path):
    paths = [tmp_path / f"{i}.npz" for i in range(2)]
    alws.checkpoint.save(paths[0], {}, {"step": 7})

    def standing(path, resume):
        return lambda: resuming.check_standing(path, resume)

    joined(standing(paths[0], True), standing(paths[0], True))
    with pytest.raises(ValueError, match=r"^`resume`, the step .* on a file system that all"):
        joined(standing(paths[0], True), standing(paths[1], False))
    paths[1].write_bytes(b"cut")
    with pytest.raises(ValueError, match=r"^the step of the checkpoint"):
        joined(standing(paths[0], True), standing(paths[1], True))


def test_fingerprints_see_numbers_and_static_fields_but_no_addresses():
    def tree(value):
        return {"f": lambda x: x, "a": np.full(3, value), "text": "a"}

    assert fingerprint(tree(1.0)) == fingerprint(tree(1.0))
    assert fingerprint(tree(1.0)) != fingerprint(tree(1.5))
    assert fingerprint(np.zeros((2, 3))) != fingerprint(np.zeros((3, 2)))


# Bad input --------------------------------------------------------------------------------------


def test_more_devices_than_present():
    with pytest.raises(
        ValueError, match=r"at most the number of devices present, 1 \(cpu\); got 5"
    ):
        make_mesh(5)


@pytest.mark.parametrize("devices", [0, -1, True, "some"])
def test_no_number_of_devices(devices):
    with pytest.raises(ValueError, match="must be a positive number"):
        make_mesh(devices)


def test_samples_that_the_devices_cannot_share():
    with pytest.raises(
        ValueError, match=r"`sleep_samples` must be a multiple .* 3; got 100\. Use 102"
    ):
        check_divides(3, validation_samples=99, sleep_samples=100)


@pytest.mark.parametrize("address", ["10.0.0.7", ":8476", "host:", "host:port", "host:70000"])
def test_no_address(address):
    with pytest.raises(ValueError, match='must be "host:port"'):
        distributed.start(address, 2, 0)


def test_a_process_that_does_not_count():
    with pytest.raises(ValueError, match="must be below `processes`, 2; got 2"):
        distributed.start("127.0.0.1:1", 2, 2)


@pytest.mark.parametrize("name", ["processes", "process", "timeout", "heartbeat"])
def test_numbers_that_are_none(name):
    numbers = {"processes": 2, "process": 0, "timeout": 5, "heartbeat": 5, name: 0.5}
    with pytest.raises(ValueError, match=f"`{name}` must be a whole number of at least"):
        distributed.start("127.0.0.1:1", **numbers)


def test_processes_are_joined_by_jax_with_the_timeouts_given(monkeypatch):
    given = {}
    monkeypatch.setattr(
        distributed.jax.distributed, "initialize", lambda *a, **k: given.update(k, where=a)
    )
    distributed.start("127.0.0.1:1", 2, 1, timeout=5, heartbeat=7)
    assert given["where"] == ("127.0.0.1:1", 2, 1)
    assert given["initialization_timeout"] == 5
    assert given["heartbeat_timeout_seconds"] == 7
