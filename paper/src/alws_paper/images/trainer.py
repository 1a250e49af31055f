"""Train any method on images for a number of steps or of seconds, with checkpoints."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from alws import checkpoint as checkpoints
from alws.fit import batch, loop, seed_of
from alws.regressions.base import one_lapack_thread
from alws.validation import at_least
from alws_paper.images.protocol import Method, MethodState


class Trained(NamedTuple):
    """A method's state, the steps taken so far and the seconds they took."""

    state: MethodState
    steps: int
    seconds: float


class Stopwatch:
    """The seconds that work took; of its own work, for a process held to one core.

    What others do on the machine is then no loss.

    Example: `watch = Stopwatch(); y = watch.measure(lambda: f(x)); watch.seconds`.
    """

    def __init__(self, seconds: float = 0.0):
        """Go on from so many seconds."""
        one = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1
        self.clock = time.process_time if one else time.perf_counter
        self.seconds = seconds

    def measure(self, function: Callable[[], Any]) -> Any:
        """The function's value, once it is there."""
        began = self.clock()
        value = jax.block_until_ready(function())
        self.seconds += self.clock() - began
        return value


def train(
    method: Method,
    data: Float[Array, "images ..."],
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
    compilation, checkpoints or reports.

    Arguments:
        method: what is trained.
        data: the training images.
        key: a JAX key, on which all random numbers depend.
        steps, seconds: when to stop; at least one of them.
        batch_size: how many images a step sees.
        checkpoint: a file; if it exists, the training goes on from it, bit for bit.
        every: the checkpoint is written, and `report` called, at each so many steps and at the end.
        when: `when(steps, seconds)` says so instead of `every`.
        report: what is called with the method as it is then.

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
    seed = seed_of(key)

    @eqx.filter_jit
    def initialise(key: Key[Array, ""], data: Array) -> MethodState:
        return _strongly_typed(method.initialise(key, data))

    @eqx.filter_jit
    def advance(state: MethodState, data: Array, chosen: Int[Array, " batch"] | None) -> Any:
        return _strongly_typed(method.step(state, data if chosen is None else data[chosen]))

    reached = Trained(initialise(key, data), 0, 0.0)
    if checkpoint is not None and checkpoint.exists():
        reached = _read(checkpoint, method, reached.state)
    watch = Stopwatch(reached.seconds)

    def more(number: int) -> bool:
        return (steps is None or number < steps) and (seconds is None or watch.seconds < seconds)

    def step(state: MethodState, number: int) -> tuple[MethodState, None]:
        chosen = batch(number, len(data), batch_size, seed)
        return watch.measure(lambda: advance(state, data, chosen)), None

    def after(number: int, state: MethodState, _: None) -> bool:
        nonlocal reached
        reached = Trained(state, number, watch.seconds)
        due = number % every == 0 if when is None else when(number, watch.seconds)
        if due or not more(number):
            if checkpoint is not None:
                _write(checkpoint, method, reached)
            if report is not None:
                report(reached)
        return False

    with one_lapack_thread():
        if more(reached.steps):  # compile, which is no part of the seconds
            first = batch(reached.steps, len(data), batch_size, seed)
            jax.block_until_ready(advance(reached.state, data, first))
        loop(step, reached.state, start=reached.steps, more=more, after=after)
    return reached


def _strongly_typed(state: MethodState) -> MethodState:
    """No weak types, which differ before and after a step and would have it compiled twice."""
    return jax.tree.map(
        lambda a: jax.lax.convert_element_type(a, a.dtype) if _is_number(a) else a, state
    )


def _is_number(leaf: object) -> bool:
    return eqx.is_array(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # pyright: ignore


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


__all__ = ["Stopwatch", "Trained", "train"]
