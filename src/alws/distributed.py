"""Many processes, on many machines, that fit one model together: how they meet, agree and part.

    alws.distributed.start("10.0.0.7:8476", processes=4, process=0)    # 0 … 3, one on each machine
    alws.fit(model, data, ..., settings=alws.Settings(devices="all"))

Every process runs the same script with the same data and the same key, and holds N/D of the sleep
samples for each of its devices. JAX's runtime does the communication, over gloo between CPUs.

JAX aborts a process whose partners do not come; so they first meet on a plain socket, where a late
or missing one gives an error that can be read.
"""

import math
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from alws.checks import at_least
from alws.fingerprints import fingerprint

NAME = "alws"
"""With which a process begins whatever it says while they meet."""

LINE = 200
"""The most characters that are read of it."""

SILENCE = 5
"""The most seconds that process 0 waits for one that has come to say who it is."""

TIMEOUT, HEARTBEAT = 60, 30
"""Seconds to wait for all processes at the start, and for a sign of life of each later on."""


class WorkerLost(RuntimeError):
    """Another process ended, or cannot be reached any more, while a fit was under way."""


def start(
    coordinator: str,
    processes: int,
    process: int,
    *,
    timeout: int = TIMEOUT,
    heartbeat: int = HEARTBEAT,
) -> None:
    """Join `processes` processes, of which this is number `process`, before any other use of JAX.

    `coordinator` is the address "host:port" of process 0, which listens there. All must come and
    be joined within `timeout` seconds. Later a process that is silent for `heartbeat` seconds
    counts as lost, and the others end too.

    Example: `alws.distributed.start("10.0.0.7:8476", processes=4, process=2)`.
    """
    at_least("processes", processes, 1)
    at_least("process", process, 0)
    at_least("timeout", timeout, 1)
    at_least("heartbeat", heartbeat, 1)
    if process >= processes:
        raise ValueError(
            f"`process` must be below `processes`, {processes}; got {process}. They count from 0."
        )
    address = _address(coordinator)
    deadline = time.monotonic() + timeout
    if process > 0:
        _report(address, processes, process, deadline, timeout)
    elif processes > 1:
        _gather(address, processes, deadline, timeout)
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        initialization_timeout=max(1, math.ceil(deadline - time.monotonic())),
        heartbeat_timeout_seconds=heartbeat,
        shutdown_timeout_seconds=heartbeat,
        cluster_detection_method="deactivate",
    )


def first() -> bool:
    """Whether this is process 0, the one that writes files."""
    return jax.process_index() == 0


def check_same(things: dict[str, PyTree], remedy: str) -> None:
    """Refuse what differs from one process to another, by its fingerprint, and name it.

    Example: `check_same({"`data`": data, "`key`": key}, "Load the same files.")`.
    """
    if jax.process_count() == 1:
        return
    own = [int(fingerprint(thing)[:8], 16) for thing in things.values()]
    found = np.asarray(_from_all(np.array(own, np.uint32)))
    differs = found != found[0]
    if differs.any():
        names = np.array(list(things))[differs.any(axis=0)]
        others = np.flatnonzero(differs.any(axis=1)).tolist()
        raise ValueError(
            f"{', '.join(names)} must be the same in every process; processes {others} of "
            f"{len(found)} differ from process 0. {remedy}"
        )


def in_any(condition: bool) -> bool:
    """Whether it holds in any of the processes, so that all of them stop together."""
    return condition if jax.process_count() == 1 else bool(np.any(_from_all(np.uint32(condition))))


def wait_for_all(what: str) -> None:
    """Go on when every process has come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


@contextmanager
def losses(checkpoint: Path | None) -> Iterator[None]:
    """Within this context a failed exchange between processes is a `WorkerLost`."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        # An exchange that fails where it is dispatched is a plain ValueError in some versions.
        ours = isinstance(error, ValueError) and type(error) is not ValueError
        if jax.process_count() == 1 or ours or not _is_exchange(error):
            raise
        remedy = "Give `checkpoint=` next time, to go on from there."
        if checkpoint is not None:
            remedy = f"Start all of them again with `resume=True` to go on from {checkpoint}."
        raise WorkerLost(
            f"process {jax.process_index()} of {jax.process_count()} lost another one: it ended, "
            f"or cannot be reached. {remedy} JAX says: {str(error).splitlines()[0]}"
        ) from error


def _is_exchange(error: Exception) -> bool:
    words = ("gloo", "nccl", "connection", "collective", "coordination", "heartbeat", "peer")
    return any(word in str(error).lower() for word in words)


def _from_all(value: Any) -> Any:
    return multihost_utils.process_allgather(value)


def _address(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f'`coordinator` must be "host:port", the address of process 0, got {coordinator!r}. '
            "For example 10.0.0.7:8476."
        )
    return host.strip("[]"), int(port)


def _report(
    address: tuple[str, int], processes: int, process: int, deadline: float, timeout: int
) -> None:
    """Tell process 0 that this one is here, and wait until all are."""
    where, reason = f"{address[0]}:{address[1]}", "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(address, timeout=left) as connection:
                connection.sendall(f"{NAME} {process} of {processes}\n".encode())
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                answer = connection.makefile(errors="replace").readline(LINE).strip()
        except TimeoutError:
            break
        except OSError as error:
            reason = str(error)
            time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
            continue
        name, _, said = answer.partition(" ")
        if name == NAME and said == "go":
            return
        if name == NAME:
            raise ValueError(f"process 0 at {where} refused process {process}: {said}")
        if answer:
            raise ConnectionError(
                f"process 0 of the fit must listen at {where}, and another service does: it "
                f"answered {answer!r}, which is not from alws. Give `coordinator` the address of "
                "process 0 and a port that is free there, the same for every process."
            )
        reason = "it closed the connection before all processes had come"
        time.sleep(0.2)
    raise ConnectionError(
        f"process {process} of {processes} must meet process 0 at {where} within {timeout} s, and "
        f"did not ({reason}). Check that process 0 runs, that the address is its own and that the "
        "port is open between the machines; `timeout=` waits longer."
    )


def _gather(address: tuple[str, int], processes: int, deadline: float, timeout: int) -> None:
    """Wait for all other processes, then let them go on."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        server = socket.create_server(("", address[1]), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise ConnectionError(
            f"process 0 must listen on port {address[1]} and cannot: {error}. Choose another port "
            "in `coordinator`, the same for every process."
        ) from error
    here: dict[int, socket.socket] = {}
    with server, ExitStack() as connections:
        while len(here) < processes - 1:
            try:
                server.settimeout(_left(deadline))
                connection, _ = server.accept()
            except TimeoutError as error:
                missing = sorted(set(range(1, processes)) - set(here))
                raise ConnectionError(
                    f"all {processes} processes must come to {address[0]}:{address[1]} within "
                    f"{timeout} s; missing: {missing}. Start them with the same `coordinator`, or "
                    "wait longer with `timeout=`."
                ) from error
            connections.callback(connection.close)
            _admit(connection, processes, here, deadline)
        for connection in here.values():
            connection.sendall(f"{NAME} go\n".encode())


def _left(deadline: float) -> float:
    """The seconds that are left; a `TimeoutError` when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _admit(
    connection: socket.socket, processes: int, here: dict[int, socket.socket], deadline: float
) -> None:
    """Note who has come; turn away who does not belong here, or says nothing in time."""
    words: list[str] = []
    with suppress(OSError):
        connection.settimeout(min(SILENCE, _left(deadline)))
        words = connection.makefile(errors="replace").readline(LINE).split()
    numbers = [int(word) for word in words if word.isdecimal()]
    refusal = ""
    if len(numbers) != 2 or words[0] != NAME:
        refusal = "this port is for processes of one fit."
    elif numbers[1] != processes:
        refusal = f"`processes` must be {processes} as in process 0, got {numbers[1]}."
    elif numbers[0] in here or numbers[0] == 0:
        refusal = f"`process` must differ from all others; {numbers[0]} is taken."
    if not refusal:
        here[numbers[0]] = connection
        return
    with suppress(OSError):
        connection.sendall(f"{NAME} {refusal}\n".encode())
    connection.close()
