"""State-space models from three lines: how a sequence starts, how it goes on, what is seen of it.

    z_1 ~ initial(),                      s_1 = start(z_1)
    z_t ~ transition(s_{t−1}, u_t),       s_t = update(s_{t−1}, z_t, u_t)
    x_t ~ observation(s_t, u_t),          s_t ← feed_back(s_t, x_t, u_t)

z is what is random and not seen, s what the model remembers: any pytree, by default z itself, which
is the hidden Markov model. A state that follows from its noise (the gates of a neuron, a delay
line) is made in `update`; one that remembers observations (a population that is counted and goes
on from the count) in `feed_back`. Both are recomputed from z and x whenever the density is asked
for, so gradients flow through them in time. Distributions are NumPyro's, or a pytree of them; they
may be discrete. A control input u, if there is one, has one entry for each time.

The log density is that of the whole draw at once: one scan for the states, none where the state is
z itself, then all times side by side.
"""

import abc
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from alws.state_space.distributions import draw_once, draw_with, log_prob, randomness
from alws.state_space.windows import View, view_windows
from alws.validation import numbers, own


class Given(NamedTuple):
    """What a sequence is conditioned on.

    Arguments:
        control: the input u_t of every time, if the model takes one.
        observed: which times were observed; all of them for None.

    Example: `alws.fit(model, x, conditions=Given(control=current), key=key)`, both with a leading
    axis for the sequences.
    """

    control: PyTree | None = None
    observed: Bool[Array, " times"] | None = None


class Path(NamedTuple):
    """The latents of a sequence: those of its start, and those of each later time."""

    start: PyTree
    steps: PyTree


class StateSpace(eqx.Module):
    """A model of sequences; `sample` and `log_joint` follow from the methods below.

    A random walk seen through noise, for sequences of 50 numbers:

        class Walk(alws.StateSpace):
            log_noise: Float[Array, ""]
            times: int = eqx.field(static=True)

            def initial(self):
                return dist.Normal(0.0, 1.0)

            def transition(self, state):
                return dist.Normal(state, 0.1)

            def observation(self, state):
                return dist.Normal(state, jnp.exp(self.log_noise))

    With a control input every method but `initial` and `start` takes it as one more argument, and
    the number of times is the input's; without, the model has a field `times`.
    `observe_start = False` leaves the start unseen: a transition comes before the first x.
    """

    observe_start: ClassVar[bool] = True
    unroll: ClassVar[int] = 1

    @abc.abstractmethod
    def initial(self) -> PyTree:
        """The distribution of z_1; None if nothing about the start is random."""

    @abc.abstractmethod
    def transition(self, state: PyTree, *control: Any) -> PyTree:
        """The distribution of z_t given s_{t−1}."""

    @abc.abstractmethod
    def observation(self, state: PyTree, *control: Any) -> PyTree:
        """The distribution of x_t given s_t."""

    def start(self, z: PyTree) -> PyTree:
        """s_1 given z_1: z_1 itself unless you say otherwise."""
        return z

    def update(self, state: PyTree, z: PyTree, *control: Any) -> PyTree:
        """s_t given s_{t−1} and z_t: z_t itself unless you say otherwise."""
        return z

    def feed_back(self, state: PyTree, x: PyTree, *control: Any) -> PyTree:
        """s_t once x_t is known: unchanged unless you say otherwise."""
        return state

    def sample(self, key: Key[Array, ""], given: Given = Given()) -> tuple[Path, PyTree]:
        """One sequence (z, x); x is 0 at times that are not observed."""
        times = self._times(given)
        start_key, moves_key, sees_key = jax.random.split(key, 3)
        first = draw_once(self.initial(), start_key)
        state, controls = self.start(first), _control(given)
        shown = (state, *_at(controls, 0))
        moves = randomness(self.transition, shown, moves_key, times - self.observe_start)
        sees = randomness(self.observation, shown, sees_key, times)

        def observe(state: PyTree, sees: list[Array], control: tuple) -> tuple[PyTree, PyTree]:
            x = draw_with(self.observation(state, *control), sees)
            return self.feed_back(state, x, *control), x

        def step(state: PyTree, item: tuple[list[Array], list[Array], tuple]) -> tuple:
            moves, sees, control = item
            z = draw_with(self.transition(state, *control), moves)
            state, x = observe(self.update(state, z, *control), sees, control)
            return state, (z, x)

        if not self.observe_start:
            items = moves, sees, controls
            _, (steps, x) = jax.lax.scan(step, state, items, unroll=self.unroll)
            return Path(first, steps), _seen(x, given)
        state, first_x = observe(state, *_at((sees, controls), 0))
        items = moves, *jax.tree.map(lambda a: a[1:], (sees, controls))
        _, (steps, x) = jax.lax.scan(step, state, items, unroll=self.unroll)
        return Path(first, steps), _seen(_prepend(first_x, x), given)

    def log_joint(self, z: Path, x: PyTree, given: Given = Given()) -> Float[Array, ""]:
        """log p(z_1) + Σ_t log p(z_t | s_{t−1}, u_t) + Σ_t log p(x_t | s_t, u_t)."""
        return self.terms(z, x, given).sum()

    def terms(self, z: Path, x: PyTree, given: Given = Given()) -> Float[Array, " times"]:
        """log p(z_t | s_{t−1}, u_t) + log p(x_t | s_t, u_t) of each time, log p(z_1) in the first.

        Example: `model.terms(z, x).sum()` is `model.log_joint(z, x)`.
        """
        controls, x = _control(given), within(x, given)
        before, after = self.states(z, x, given)
        moved = jax.tree.map(lambda u: u[1:], controls) if self.observe_start else controls

        def moving(state: PyTree, z: PyTree, control: tuple) -> Array:
            return log_prob(self.transition(state, *control), z)

        def seeing(state: PyTree, x: PyTree, control: tuple) -> Array:
            return log_prob(self.observation(state, *control), x)

        seen = jax.vmap(seeing)(after, x, controls)
        if given.observed is not None:
            seen = jnp.where(given.observed, seen, 0.0)
        moves = jax.vmap(moving)(before, z.steps, moved)
        first = log_prob(self.initial(), z.start)
        if self.observe_start:
            return seen + jnp.concatenate([first[None], moves])
        return (seen + moves).at[0].add(first)

    def views(self, x: PyTree, given: Given = Given(), *, window: int | None = None) -> View:
        """What the term of each time is regressed on: x, u and the ends `window` times around.

        Arguments:
            x: one sequence.
            given: its conditions.
            window: how many times on either side are seen; 6 unless given, or all of a shorter
                sequence.

        Example: `model.views(x, window=6).x[10]` has x at the times 4 to 16.
        """
        return view_windows(x, given.control, given.observed, window)

    def states(self, z: Path, x: PyTree, given: Given = Given()) -> tuple[PyTree, PyTree]:
        """The state before each transition, and at each observation (before it is fed back).

        Example: `_, states = model.states(z, x)`, then `states[t]` is what x_t was drawn from.
        """
        first = self.start(z.start)
        if self.inherits("update") and self.inherits("feed_back") and self.observe_start:
            after = _prepend(first, z.steps)
            return jax.tree.map(lambda s: s[:-1], after), after

        def step(state: PyTree, item: tuple[PyTree, PyTree, tuple]) -> tuple[PyTree, tuple]:
            z, x, control = item
            moved = self.update(state, z, *control)
            return self.feed_back(moved, x, *control), (state, moved)

        controls = _control(given)
        if not self.observe_start:
            return jax.lax.scan(step, first, (z.steps, x, controls), unroll=self.unroll)[1]
        state = self.feed_back(first, _at(x, 0), *_at(controls, 0))
        rest = jax.tree.map(lambda a: a[1:], (x, controls))
        _, (before, after) = jax.lax.scan(step, state, (z.steps, *rest), unroll=self.unroll)
        return before, _prepend(first, after)

    def inherits(self, method: str) -> bool:
        """Whether a method is as this class has it, such as `update`, by which the state is z.

        Example: `model.inherits("feed_back")`.
        """
        return getattr(type(self), method) is getattr(StateSpace, method)

    def _times(self, given: Given) -> int:
        """How many observations a sequence has; refuse what cannot be."""
        lengths = {len(leaf) for leaf in jax.tree.leaves(given)}
        if len(lengths) > 1:
            raise ValueError(
                "control input and observed times must have one length, that of the sequence; got "
                f"{sorted(lengths)}."
            )
        times = lengths.pop() if lengths else getattr(self, "times", None)
        if not isinstance(times, int) or times < 2:
            raise ValueError(
                f"{type(self).__name__} must know how many times a sequence has, at least 2; got "
                f"{times}. Give it a field `times: int = eqx.field(static=True)`, or a control "
                "input."
            )
        if given.observed is not None and not self.inherits("feed_back"):
            raise ValueError(
                f"{type(self).__name__} feeds observations back into its state, so every time must "
                "be observed. Make the missing ones latents of the model instead."
            )
        return times


def sequences(data: PyTree, control: PyTree | None = None) -> tuple[PyTree, Given]:
    """Sequences of unequal length, or with NaN where nothing was observed, as data and conditions.

    A time with a NaN or a masked number in any entry counts as not observed; its x is 0.

    Arguments:
        data: a list of arrays, one for each sequence, time first; or of pytrees of such.
        control: a list of control inputs like it, if the model has one.

    Example:
        >>> x, given = alws.sequences([first, second])
        >>> alws.fit(model, x, conditions=given, key=key)
    """
    items = _each(data, "data")
    if len({item.shape[1:] for item in items}) > 1:
        raise ValueError(
            "all sequences must have the same entries at each time; got shapes "
            f"{[item.shape for item in items]} (time first)."
        )
    longest = max(len(item) for item in items)
    flat = [item.reshape(len(item), -1).astype(float) for item in items]
    seen = [np.asarray(~np.isnan(entries).any(axis=1)) for entries in flat]
    if not all(s.any() for s in seen):
        raise ValueError("every sequence must have an observed time; one has none. Leave it out.")
    filled = [np.where(_rows(s, i), i, 0).astype(i.dtype) for s, i in zip(seen, items, strict=True)]
    x = own(np.stack([_padded(item, longest) for item in filled]), "data")
    observed = jnp.asarray(np.stack([_padded(s, longest) for s in seen]))
    if control is None:
        return x, Given(None, observed)
    controls = _each(control, "control")
    if [len(u) for u in controls] != [len(item) for item in items]:
        raise ValueError(
            "each control input must be as long as its sequence; got lengths "
            f"{[len(u) for u in controls]} for {[len(item) for item in items]}."
        )
    if len({u.shape[1:] for u in controls}) > 1:
        raise ValueError(
            "all control inputs must have the same entries at each time; got shapes "
            f"{[u.shape for u in controls]} (time first)."
        )
    if any(np.isnan(u.astype(float)).any() for u in controls):
        raise ValueError(
            "`control` must be known at all times, also where the data are not; got NaN or masked "
            "entries. Fill them in, or model them as a part of the state."
        )
    return x, Given(own(np.stack([_padded(u, longest) for u in controls]), "control"), observed)


def _each(given: Any, name: str) -> list[np.ndarray]:
    """Every sequence as an array, NaN where it was masked; refuse what are none."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise TypeError(
            f"`{name}` must be a list of arrays, one for each sequence, got {given!r:.100}. Write "
            "`alws.sequences([first, second])`."
        )
    items = [numbers(_unmasked(sequence), name) for sequence in given]
    if any(np.isinf(item.astype(float)).any() for item in items):
        raise ValueError(
            f"`{name}` must have finite numbers, got infinite ones. Mark with NaN what was not "
            "observed, and leave out what is no number."
        )
    if not items:
        raise ValueError(f"`{name}` must have at least one sequence, got none.")
    for item in items:
        if item.ndim == 0 or item.size == 0:
            raise ValueError(
                f"every sequence in `{name}` must have times as its leading axis and at least one "
                f"number, got shape {item.shape}. One sequence is `[sequence]`."
            )
    return items


def _unmasked(sequence: Any) -> Any:
    masked = isinstance(sequence, np.ma.MaskedArray) and sequence.dtype.kind in "biuf"
    return np.ma.filled(sequence.astype(float), np.nan) if masked else sequence


def with_times(model: StateSpace, times: int) -> StateSpace:
    """The same model for sequences of so many times, if it says itself how many there are.

    Example: `with_times(model, 8).sample(key)` is a sequence of 8 times.
    """
    changed = object.__new__(type(model))
    for name, value in vars(model).items():
        object.__setattr__(changed, name, times if name == "times" else value)
    return changed


def _control(given: Given) -> tuple:
    """The control input as extra arguments, time first."""
    return () if given.control is None else (given.control,)


def _at(tree: PyTree, time: int) -> PyTree:
    return jax.tree.map(lambda a: a[time], tree)


def _prepend(first: PyTree, rest: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b]), first, rest)


def _rows(observed: Any, x: Any) -> Any:
    return observed.reshape(len(observed), *[1] * (x.ndim - 1))


def _seen(x: PyTree, given: Given) -> PyTree:
    """x with 0 where it is not observed, in simulations as in the data."""
    if given.observed is None:
        return x
    return jax.tree.map(lambda a: jnp.where(_rows(given.observed, a), a, 0), x)


def within(x: PyTree, given: Given) -> PyTree:
    """x with an observed value, which lies in its support, where it is not observed.

    Example: `within(jnp.array([2.0, 0.0]), Given(observed=jnp.array([True, False])))` is [2, 2].
    """
    if given.observed is None:
        return x
    first = jnp.argmax(given.observed)
    return jax.tree.map(lambda a: jnp.where(_rows(given.observed, a), a, a[first]), x)


def _padded(sequence: np.ndarray, length: int) -> np.ndarray:
    return np.pad(sequence, [(0, length - len(sequence)), *[(0, 0)] * (sequence.ndim - 1)])
