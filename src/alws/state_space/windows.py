"""Windows of a sequence: what is seen at and around each of its times.

The posterior of what happens at a time depends on the data near it, and no longer on those far off
once the model has forgotten them. So the term of time t is regressed on the window

    x_{t−w} … x_{t+w},   u_{t−w} … u_{t+w},   which of these times exist, and which were observed.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from alws.validation import at_least

WINDOW = 6
"""How many times are seen on either side where nobody says."""


class View(NamedTuple):
    """The windows around some times, as leading axis; the times within them come next.

    At times that are not observed or beyond an end x is that of the nearest earlier time that is
    (else of the first), and `inside` and `observed` tell. `observed` is None where all is.
    """

    x: PyTree[Array]
    control: PyTree[Array] | None
    inside: Float[Array, "at window"]
    observed: Float[Array, "at window"] | None


def view_windows(
    x: PyTree[Array],
    control: PyTree[Array] | None = None,
    observed: Bool[Array, " times"] | None = None,
    window: int | None = None,
    at: Int[Array, " at"] | None = None,
) -> View:
    """The windows around these times of a sequence, or around all of them.

    Arguments:
        x: the sequence, time first.
        control: its control input, time first.
        observed: which of its times were observed; all for None.
        window: how many times on either side; 6 for None, or all of a shorter sequence.
        at: around which times.

    Example: `view_windows(x, window=2).x[5]` is `x[3:8]`.
    """
    times = len(jax.tree.leaves(x)[0])
    window = min(WINDOW, times - 1) if window is None else window
    check_window(window, times)
    centres = jnp.arange(times) if at is None else at
    around = centres[:, None] + jnp.arange(-window, window + 1)
    inside = (around >= 0) & (around < times)
    around = jnp.clip(around, 0, times - 1)
    nearest = around if observed is None else _last_observed(observed)[around]
    return View(
        jax.tree.map(lambda a: a[nearest], x),
        jax.tree.map(lambda u: u[around], control),
        inside.astype(float),
        None if observed is None else (inside & observed[around]).astype(float),
    )


def check_window(window: int, times: int) -> None:
    """Refuse a window that is longer than the sequence.

    Example: `check_window(6, 100)`.
    """
    at_least("window", window, 0)
    if window >= times:
        raise ValueError(
            f"`window`, the times seen on either side, must be less than the {times} times of a "
            f"sequence; got {window}. At {times - 1} every window has the whole sequence."
        )


def _last_observed(observed: Bool[Array, " times"]) -> Int[Array, " times"]:
    """The nearest observed time at or before each time, else the first observed."""
    times = jnp.arange(len(observed))
    latest = jax.lax.cummax(jnp.where(observed, times, -1))
    return jnp.where(latest < 0, jnp.argmax(observed), latest)


__all__ = ["WINDOW", "View", "check_window", "view_windows"]
