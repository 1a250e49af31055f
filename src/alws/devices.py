"""Sleep samples and wake data divided among devices, of one process or of many.

A fit on D devices gives each of them N/D of the sleep samples: it draws them, scores them and makes
their rows of every kernel matrix. The compiler adds the sums over devices. Random numbers belong to
samples, not to devices, so that D does not change what is drawn:

    draws_n = sample(key_n),  key_n = split(key, N)_n,  whichever device holds row n.

What is small is the same on all devices: θ, γ, their optimisers, and every matrix that is
factorised (N×N in `KernelRidge`, m×m in the regressions that scale). The mesh is JAX's own context
(`jax.set_mesh`); without one, constraints on arrays do nothing.

Many processes, on many machines, fit one model together when each of them begins with

    alws.devices.start("10.0.0.7:8476", processes=4, process=0)    # 0 … 3, one on each machine
    alws.fit(model, data, ..., settings=alws.Settings(devices="all"))

and the same script, data and key. JAX's runtime does the communication, over gloo between CPUs.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

Devices = int | str | Mesh | None

ROWS = 16384
"""The most draws that are simulated or scored at once."""

TIMEOUT, HEARTBEAT = 60, 30
"""Seconds to wait for all processes at the start, and for a sign of life of each later on."""

ADDRESS = re.compile(r"0x[0-9a-f]+")


class WorkerLost(RuntimeError):
    """Another process ended, or cannot be reached any more, while a fit was under way."""


def make_mesh(devices: Devices) -> Mesh | None:
    """The mesh that `Settings.devices` asks for: a number, "all", a mesh, or None for no mesh.

    Arguments:
        devices: as `Settings.devices`.

    Example: `make_mesh(4)` is the first four devices, on one axis.
    """
    if devices is None:
        return None
    present = jax.devices()
    if isinstance(devices, Mesh):
        # Axes whose sharding the compiler works out, whatever they were declared as.
        mesh = Mesh(devices.devices, devices.axis_names)
    elif devices == "all":
        mesh = Mesh(np.array(present), ("samples",))
    elif isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise ValueError(
            '`devices` must be a positive number, "all", a `jax.sharding.Mesh` or None, got '
            f"{devices!r}."
        )
    elif devices > len(present):
        raise ValueError(
            f"`devices` must be at most the number of devices present, {len(present)} "
            f"({present[0].platform}); got {devices}. Ask for fewer, start more processes "
            "(`alws.devices.start`), or split the CPU with "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={devices}."
        )
    else:
        mesh = Mesh(np.array(present[:devices]), ("samples",))
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) < jax.process_count():
        raise ValueError(
            f"`devices` must take in every one of the {jax.process_count()} processes; these "
            f'{mesh.size} devices belong to {len(processes)} of them. Use "all".'
        )
    return mesh


def check_divides(devices: int, **numbers: int) -> None:
    """Refuse a number of samples that the devices cannot share equally.

    Arguments:
        devices: how many there are.
        numbers: of samples, by the names of their arguments.

    Example: `check_divides(3, sleep_samples=1000)` raises.
    """
    for name, number in numbers.items():
        if number % devices:
            below = number - number % devices
            raise ValueError(
                f"`{name}` must be a multiple of the number of devices, {devices}; got {number}. "
                f"Use {below + devices}{f' or {below}' if below else ''}, or other `devices`."
            )


def using(mesh: Mesh | None) -> AbstractContextManager:
    """Within this context samples are divided among the mesh's devices.

    Arguments:
        mesh: the devices, or None.

    Example: `with using(make_mesh("all")): alws.draw(model, key, 8000)`.
    """
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


def number_of_devices() -> int:
    """How many devices share the samples; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.size


def over_devices(tree: PyTree) -> PyTree:
    """The tree with the leading axis of every array divided among the devices, where it divides.

    Arguments:
        tree: arrays, samples as leading axis.

    Example: `over_devices(jax.random.split(key, 8000))`.
    """
    return _constrained(tree, lambda a, names: PartitionSpec(names) if _divides(a) else None)


def on_every_device(tree: PyTree) -> PyTree:
    """The tree with every array whole on each of the devices.

    Arguments:
        tree: arrays of any shape.

    Example: `factorise(on_every_device(gram), ridge)`.
    """
    return _constrained(tree, lambda a, names: PartitionSpec())


def by_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` done by each device by itself on whole arrays, with no exchange on the way.

    Left to itself the compiler would divide its work too, and send pieces about at every step of an
    algorithm whose steps wait for one another.

    Arguments:
        function: of whole arrays, to whole arrays.

    Example: `by_itself(jnp.linalg.cholesky)(gram)`.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    whole = PartitionSpec()
    return jax.shard_map(function, in_specs=whole, out_specs=whole, check_vma=False)


def device_put(tree: PyTree, mesh: Mesh | None, *, divided: bool = False) -> PyTree:
    """The tree's arrays put on the devices, whole on each or, if `divided`, by leading axis.

    Every process gives the whole of each array. One whose leading axis does not divide stays whole.

    Arguments:
        tree: arrays of any shape.
        mesh: the devices, or None.
        divided: whether by leading axis, or whole on each.

    Example: `data = device_put(data, mesh, divided=True)`.
    """
    if mesh is None:
        return tree

    def put(leaf: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        if plain(leaf) is not leaf:
            whole = put(plain(leaf))
            return jax.random.wrap_key_data(whole, impl=jax.random.key_impl(leaf))
        apart = divided and leaf.ndim > 0 and leaf.shape[0] % mesh.size == 0
        spec = PartitionSpec(mesh.axis_names) if apart else PartitionSpec()
        values = np.asarray(leaf)
        return jax.make_array_from_callback(
            values.shape, NamedSharding(mesh, spec), lambda index: values[index]
        )

    return jax.tree.map(put, tree)


def device_get(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """The tree with arrays that are whole on every device brought to this process's first one.

    Arguments:
        tree: arrays of any shape.
        mesh: the devices, or None.

    Example: `model = device_get(state.model, mesh)`, to use with arrays that were never placed.
    """
    if mesh is None:
        return tree

    def fetch(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        if plain(leaf) is not leaf:
            return jax.random.wrap_key_data(fetch(plain(leaf)), impl=jax.random.key_impl(leaf))
        return jnp.asarray(np.asarray(leaf))

    return jax.tree.map(fetch, tree)


def by_blocks(
    function: Callable[[PyTree], PyTree], rows: PyTree, most: int | None = None
) -> PyTree:
    """`function(rows)` for a function that works row by row, at most `most` (`ROWS`) at a time.

    Beyond one block, what a block makes on the way is made again in the backward pass, not kept.
    With a mesh every device has `most` rows at a time, its own.

    Arguments:
        function: works row by row.
        rows: its argument, rows as leading axis.
        most: the most rows at a time, `ROWS` by default.

    Example: `by_blocks(jax.vmap(model.sample), jax.random.split(key, 100_000))`.
    """
    n = jax.tree.leaves(rows)[0].shape[0]
    devices = number_of_devices()
    most = (ROWS if most is None else most) * devices
    if n <= most:
        return function(rows)
    number = -(-n // most)
    size = devices * -(-n // (number * devices))
    extra = number * size - n

    def cut(a: jax.Array) -> jax.Array:
        whole = a if extra == 0 else jnp.concatenate([a, a[:extra]])
        # A block takes one row in `number`, and so an equal share of each device's.
        return jnp.moveaxis(whole.reshape(size, number, *a.shape[1:]), 1, 0)

    def join(a: jax.Array) -> jax.Array:
        return over_devices(jnp.moveaxis(a, 0, 1).reshape(number * size, *a.shape[2:]))[:n]

    again = jax.checkpoint(
        lambda some: over_devices(function(over_devices(some)))
    )  # a module itself need not be hashable
    done = jax.lax.map(again, jax.tree.map(cut, rows))
    return jax.tree.map(join, done)


def start(
    coordinator: str,
    processes: int,
    process: int,
    *,
    timeout: int = TIMEOUT,
    heartbeat: int = HEARTBEAT,
) -> None:
    """Join some processes, before any other use of JAX.

    Arguments:
        coordinator: the address "host:port" of process 0, which listens there.
        processes: how many there are.
        process: which of them this is, from 0.
        timeout: the seconds within which all must come; JAX ends a process that waits in vain.
        heartbeat: a process that is silent for so many seconds counts as lost, and the others end.

    Example: `alws.devices.start("10.0.0.7:8476", processes=4, process=2)`.
    """
    least = {"processes": 1, "process": 0, "timeout": 1, "heartbeat": 1}
    given = {"processes": processes, "process": process, "timeout": timeout, "heartbeat": heartbeat}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least[name]:
            raise ValueError(
                f"`{name}` must be a whole number of at least {least[name]}, got {value!r}."
            )
    if process >= processes:
        raise ValueError(
            f"`process` must be below `processes`, {processes}; got {process}. They count from 0."
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f'`coordinator` must be "host:port", the address of process 0, got {coordinator!r}. '
            "For example 10.0.0.7:8476."
        )
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        initialization_timeout=timeout,
        heartbeat_timeout_seconds=heartbeat,
        shutdown_timeout_seconds=heartbeat,
        cluster_detection_method="deactivate",
    )


def enable_compilation_cache() -> Path | None:
    """Keep compiled functions in `$ALWS_CACHE` (default `~/.cache/alws`), unless JAX has a cache.

    This sets options of JAX for the whole process, so no fit does it by itself. With
    `ALWS_CACHE=` (empty) nothing is set. Returns the directory in use.

    Example: `alws.enable_compilation_cache()`, once, before the first fit.
    """
    already = jax.config.jax_compilation_cache_dir  # pyright: ignore
    if already:
        return Path(already)
    chosen = os.environ.get("ALWS_CACHE", str(Path.home() / ".cache" / "alws"))
    if not chosen:
        return None
    jax.config.update("jax_compilation_cache_dir", chosen)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return Path(chosen)


def memory() -> int:
    """The bytes of memory that a step may use: the accelerator's, or this machine's.

    What a container may use counts where there is one.
    """
    stats = jax.local_devices()[0].memory_stats()
    if jax.default_backend() != "cpu" and stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # no such file, or no limit
            continue
    return min(limits)


def is_first() -> bool:
    """Whether this is process 0, the one that writes files."""
    return jax.process_index() == 0


def check_same(things: dict[str, PyTree], remedy: str) -> None:
    """Refuse what differs from one process to another, by its fingerprint, and name it.

    Arguments:
        things: what is compared, by name.
        remedy: what to do, in the message.

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
    """Whether it holds in any of the processes, so that all of them stop together.

    Arguments:
        condition: what this process found.

    Example: `if in_any(seconds > 60): break`.
    """
    return condition if jax.process_count() == 1 else bool(np.any(_from_all(np.uint32(condition))))


def wait_for_all(what: str) -> None:
    """Go on when every process has come here.

    Arguments:
        what: the name of the place, the same in all of them.

    Example: `wait_for_all("the data are written")`.
    """
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


@contextmanager
def losses(checkpoint: Path | None) -> Iterator[None]:
    """Within this context a failed exchange between processes is a `WorkerLost`.

    Arguments:
        checkpoint: the file to go on from, named in the message.

    Example: `with losses(None): wait_for_all("start")`.
    """
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


def fingerprint(tree: PyTree) -> str:
    """A hash of a pytree: its structure with static fields, its arrays, and all other leaves.

    Functions count by their names: addresses in memory differ from process to process.

    Arguments:
        tree: any pytree.

    Example: `fingerprint(data) == fingerprint(other)`.
    """
    leaves, structure = jax.tree.flatten(tree)
    digest = hashlib.blake2b(_words(structure), digest_size=8)
    for leaf in map(plain, leaves):
        if eqx.is_array_like(leaf):
            array = np.ascontiguousarray(leaf)
            digest.update(repr((array.shape, array.dtype)).encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        else:
            digest.update(_words(leaf))
    return digest.hexdigest()


def _words(thing: object) -> bytes:
    return ADDRESS.sub("", repr(thing)).encode()


def plain(leaf: Any) -> Any:
    """The numbers of a random key; anything else as it is.

    Arguments:
        leaf: any leaf of a pytree.

    Example: `np.asarray(plain(jax.random.key(0)))`.
    """
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _divides(a: jax.Array) -> bool:
    return a.ndim > 0 and a.shape[0] % number_of_devices() == 0


def _constrained(tree: PyTree, spec: Any) -> PyTree:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return tree

    def constrain(leaf: Any) -> Any:
        wanted = spec(leaf, mesh.axis_names) if eqx.is_array(leaf) else None
        return leaf if wanted is None else jax.lax.with_sharding_constraint(leaf, wanted)

    return jax.tree.map(constrain, tree)
