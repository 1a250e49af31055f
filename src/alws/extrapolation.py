"""Conditions outside those that a model was fitted to, and the warning that is given of them.

Every entry of a condition has a range of its own, but in the rows of groups: these may lie in any
order and be as many as they like, so that a covariate has one range over all rows of all groups.
"""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from alws.groups import Rows


class Range(NamedTuple):
    """The least and the greatest of each entry of some conditions, by the names of their leaves.

    Example: `Range.of({"age": ages}).low["['age']"]` is the least of them.
    """

    low: dict[str, np.ndarray]
    high: dict[str, np.ndarray]

    @classmethod
    def of(cls, conditions: PyTree[Array]) -> "Range":
        """The range of these conditions."""
        parts = [(name, v, None if rows else 0) for name, v, rows in _parts(conditions)]
        low, high = ({name: f(v, axis=axis) for name, v, axis in parts} for f in (np.min, np.max))
        return cls(low, high)


def warn_of_extrapolation(seen: Range | None, conditions: PyTree[Array] | None) -> None:
    """Say so where conditions lie outside those that a model was fitted to, if these are known.

    Example: `warn_of_extrapolation(result.conditions, match_conditions(new, len(x)))`.
    """
    if seen is None or conditions is None:
        return
    given = list(_parts(conditions))
    names = [name for name, *_ in given]
    if names != list(seen.low):
        raise ValueError(
            "`conditions` must have the structure of those of the fit, with the parts "
            f"{list(seen.low)}; got {names}."
        )
    outside, told = np.array(False), ""
    for name, values, rows in given:
        low, high = seen.low[name], seen.high[name]
        if not rows and values.shape[1:] != low.shape:
            raise ValueError(
                f"`conditions{name}` must have the shape that it had in the fit for each "
                f"observation, {low.shape}; got {values.shape[1:]}."
            )
        low, high = (np.broadcast_to(end, values.shape[1:]) for end in (low, high))
        beyond = (values < low) | (values > high)
        if beyond.any() and not told:
            at = tuple(np.argwhere(beyond)[0].tolist())
            told = (
                f"`conditions{name}` at index {list(at)} is {values[at]:.6g}, and lay between "
                f"{low[at[1:]]:.6g} and {high[at[1:]]:.6g}"
            )
        outside = outside | beyond.reshape(len(values), -1).any(axis=1)
    if told:
        warnings.warn(
            "what is said of conditions outside those that the model was fitted to is "
            f"extrapolation; {outside.sum()} of {outside.size} lie outside, the first of them: "
            f"{told}.",
            RuntimeWarning,
            stacklevel=4,
        )


def _parts(conditions: PyTree[Array]) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Name and values of every leaf, and whether these are a covariate of the rows of groups."""

    def are_rows(part: Any) -> bool:
        return isinstance(part, Rows)

    for path, part in jax.tree_util.tree_flatten_with_path(conditions, is_leaf=are_rows)[0]:
        name = jax.tree_util.keystr(path)
        if isinstance(part, Rows):
            for covariate in part.order:
                yield f"{name}[{covariate!r}]", np.asarray(part.columns[covariate]), True
        else:
            yield name, np.asarray(part), False
