"""Sleep samples and wake data divided among devices: JAX's meshes, and two constraints on arrays.

A fit on D devices gives each of them N/D of the sleep samples: it draws them, scores them and makes
their rows of every kernel matrix. The compiler adds the sums over devices. Random numbers belong to
samples, not to devices, so that D does not change what is drawn:

    draws_n = sample(key_n),  key_n = split(key, N)_n,  whichever device holds row n.

What is small is the same on all devices: θ, γ, their optimisers, and every matrix that is
factorised (N×N in `KernelRidge`, m×m in the regressions that scale).

The mesh is JAX's own context (`jax.set_mesh`). Without one, nothing here does anything.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

Devices = int | str | Mesh | None


def make_mesh(devices: Devices) -> Mesh | None:
    """The mesh that `Settings.devices` asks for: a number, "all", a mesh, or None for no mesh.

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
            "(`alws.distributed.start`), or split the CPU with "
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

    Example: `with using(make_mesh("all")): alws.draw(model, key, 8000)`.
    """
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


def number_of_devices() -> int:
    """How many devices share the samples; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.size


def over_devices(tree: PyTree) -> PyTree:
    """The tree with the leading axis of every array divided among the devices, where it divides.

    Example: `over_devices(jax.random.split(key, 8000))`.
    """
    return _constrained(tree, lambda a, names: PartitionSpec(names) if _divides(a) else None)


def on_every_device(tree: PyTree) -> PyTree:
    """The tree with every array whole on each of the devices.

    Example: `factorise(on_every_device(gram), ridge)`.
    """
    return _constrained(tree, lambda a, names: PartitionSpec())


def by_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` done by each device by itself on whole arrays, with no exchange on the way.

    Left to itself the compiler would divide its work too, and send pieces about at every step of an
    algorithm whose steps wait for one another.

    Example: `by_itself(jnp.linalg.cholesky)(gram)`.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    whole = PartitionSpec()
    return jax.shard_map(function, in_specs=whole, out_specs=whole, check_vma=False)


def place(tree: PyTree, mesh: Mesh | None, *, divided: bool = False) -> PyTree:
    """The tree's arrays put on the devices, whole on each or, if `divided`, by leading axis.

    Every process gives the whole of each array. One whose leading axis does not divide stays whole.

    Example: `data = place(data, mesh, divided=True)`.
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


def take_back(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """The tree with arrays that are whole on every device brought to this process's first one.

    Example: `model = take_back(state.model, mesh)`, to use with arrays that were never placed.
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


def plain(leaf: Any) -> Any:
    """The numbers of a random key; anything else as it is.

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
