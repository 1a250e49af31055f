"""One fit on one device, on eight, and in two processes: the same result, the same checkpoints.

Virtual devices and several processes need interpreters of their own; see `many_devices.py`.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import alws
from alws import distributed
from alws.sharding import check_divides, make_mesh

SCRIPT = Path(__file__).with_name("many_devices.py")
ONE, EIGHT = {"devices": None}, {"devices": 8}
CASES = {
    "exact": {"regression": "exact"},
    "nystrom": {"regression": "nystrom", "data": 37},
    "centred": {"regression": "exact", "centred": True},
    "random features": {"regression": "random features", "impl": "rbg", "batch_size": 24},
}
SLOW = {
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
def test_processes_with_other_data_are_refused(tmp_path):
    def jobs(i):
        return [{**JOINED, "devices": "all", "shift": float(i), "out": str(tmp_path / "out.npy")}]

    codes, outputs = run_two(jobs, heartbeat=10)
    assert 0 not in codes
    assert all("must be the same in every process; processes [1] of 2" in o for o in outputs)


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


def test_a_coordinator_that_cannot_be_reached():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionError, match=f"process 0 at {address} within 1 s.*refused"):
        distributed.start(address, 2, 1, timeout=1)


def test_processes_that_do_not_come():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionError, match=rf"come to {address} within 1 s; missing: \[1, 2\]"):
        distributed.start(address, 3, 0, timeout=1)


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"listen on port {port} and cannot"):
            distributed.start(f"127.0.0.1:{port}", 2, 0, timeout=1)


def test_a_process_number_that_is_taken_and_another_total():
    port = free_port()
    refusals = []

    def gather():
        with pytest.raises(ConnectionError, match=r"missing: \[1, 2\]"):
            distributed.start(f"127.0.0.1:{port}", 3, 0, timeout=2)

    thread = threading.Thread(target=gather)
    thread.start()
    for process, processes in ((1, 2), (0, 3)):
        with pytest.raises(ValueError, match="refused process") as refusal:
            distributed._report(("127.0.0.1", port), processes, process, _soon(), 2)
        refusals.append(str(refusal.value))
    thread.join()
    assert "`processes` must be 3 as in process 0, got 2" in refusals[0]
    assert "0 is taken" in refusals[1]


def _soon():
    return distributed.time.monotonic() + 2
