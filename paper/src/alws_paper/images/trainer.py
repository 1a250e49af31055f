"""Train any method on images for a number of steps or of seconds, with checkpoints."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from alws.runtime import enable_compilation_cache, one_lapack_thread
from jaxtyping import Array, Float, Key

from alws import checkpoint as checkpoints
from alws.validation import at_least
from alws_paper.images.protocol import Method, MethodState


class Trained(NamedTuple):
    """A method's state, the steps taken so far and the seconds they took."""

    state: MethodState
    steps: int
    seconds: float


def train(
    method: Method,
    data: Float[Array, "images *shape"],
    *,
    key: Key[Array, ""],
    steps: int | None = None,
    seconds: float | None = None,
    batch_size: int = 100,
    checkpoint: Path | None = None,
    every: int = 100,
    when: Callable[[int, float], bool] | None = None,
    report: Callable[[Trained], None] | None = None,
) -> Trained:
    """Take steps until there are `steps` of them or they have taken `seconds`, all runs together.

    Every epoch goes through the images in a fresh order. Only steps count towards the seconds, not
    compilation, checkpoints or reports, and a process held to one core counts that core's seconds
    of work, so that what others do on the machine is no loss. With a `checkpoint` that exists the
    training goes on from it, bit for bit; it is written, and `report` called, every `every` steps,
    or when `when(steps, seconds)` says so, and at the end.

    Example: `train(METHODS["VAE"](connected(Binary())), images, key=key, seconds=600)`.
    """
    if steps is None and seconds is None:
        raise ValueError("give a number of `steps`, a number of `seconds`, or both; got neither.")
    at_least("batch_size", batch_size, 1)
    at_least("every", every, 1)
    if batch_size > len(data):
        raise ValueError(
            f"`batch_size` must be at most the number of images, {len(data)}; got {batch_size}."
        )
    enable_compilation_cache()
    state = eqx.filter_jit(lambda key, data: _strong(method.initialise(key, data)), once=True)(
        key, data
    )
    done, spent, clock = 0, 0.0, _clock()
    if checkpoint is not None and checkpoint.exists():
        state, done, spent = _read(checkpoint, method, state)
    seed = tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())
    advance = eqx.filter_jit(lambda state, data, chosen: _strong(method.step(state, data[chosen])))

    def more() -> bool:
        return (steps is None or done < steps) and (seconds is None or spent < seconds)

    with one_lapack_thread():
        if more():
            jax.block_until_ready(advance(state, data, _batch(done, len(data), batch_size, seed)))
        while more():
            chosen = _batch(done, len(data), batch_size, seed)
            began = clock()
            state = jax.block_until_ready(advance(state, data, chosen))
            spent += clock() - began
            done += 1
            due = done % every == 0 if when is None else when(done, spent)
            if due or not more():
                if checkpoint is not None:
                    _write(checkpoint, method, Trained(state, done, spent))
                if report is not None:
                    report(Trained(state, done, spent))
    return Trained(state, done, spent)


def _clock() -> Callable[[], float]:
    """The process's time on its core if it has one only; otherwise the clock on the wall."""
    one = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1
    return time.process_time if one else time.perf_counter


def _strong(state: MethodState) -> MethodState:
    """No weak types, which differ before and after a step and would have it compiled twice."""
    return jax.tree.map(
        lambda a: jax.lax.convert_element_type(a, a.dtype) if _is_number(a) else a, state
    )


def _is_number(leaf: object) -> bool:
    return eqx.is_array(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # pyright: ignore


def _batch(step: int, size: int, batch_size: int, seed: tuple[int, ...]) -> Array:
    """Which images a step sees: its share of its epoch's order."""
    epoch, position = divmod(step, size // batch_size)
    order = np.random.default_rng((*seed, epoch)).permutation(size)
    return jnp.asarray(order[position * batch_size :][:batch_size])


def _write(path: Path, method: Method, trained: Trained) -> None:
    header = {"method": method.name, "steps": trained.steps, "seconds": trained.seconds}
    checkpoints.save(path, trained.state, header)


def _read(path: Path, method: Method, state: MethodState) -> Trained:
    header = checkpoints.header(path)
    if header["method"] != method.name:
        raise checkpoints.CheckpointError(
            f"{path} was written by {header['method']} and cannot be resumed by {method.name}. "
            "Give another path."
        )
    return Trained(checkpoints.load(path, state), header["steps"], header["seconds"])


__all__ = ["Trained", "train"]
