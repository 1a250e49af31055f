"""Tables in long form, a row for each measurement, as groups of rows for a model of one group.

    grouped = alws.groups(table, by="subject", outcome="reaction", covariates=["days"])
    result = alws.fit(model, grouped.data, conditions=grouped.conditions, key=key)

Groups have unequal numbers of rows: all are padded to the longest, and a mask says what is there.
A model takes the rows of its group as its condition, an object of `Rows`:

    class RandomIntercept(eqx.Module):
        intercept: jax.Array
        slope: jax.Array
        log_spread: jax.Array
        log_noise: jax.Array

        def sample_latent(self, key, rows):
            return jax.random.normal(key)

        def log_prior(self, z, rows):
            return norm.logpdf(z)

        def likelihood(self, z, rows):
            mean = self.intercept + self.slope * rows["days"] + jnp.exp(self.log_spread) * z
            return alws.likelihoods.Gaussian(mean, jnp.exp(self.log_noise), mask=rows.observed)
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree
from numpyro.distributions import Distribution

from alws.values import numbers, own


class Rows(eqx.Module):
    """What one group is conditioned on: the covariates of its rows, and which rows there are.

    A numeric covariate is floating-point numbers, one with levels the number of each row's level.
    The first row is always there; rows that are not repeat its covariates, so that whatever is
    computed from them stays finite.

    Example: `rows["age"]` has one entry a row, `rows["age"][0]` is that of a group whose rows
    share it, `rows.design()` is the matrix of all covariates.
    """

    columns: dict[str, Array]
    mask: Bool[Array, " rows"]
    observed: PyTree[Bool[Array, " rows"]]
    """Which rows have an outcome; of several outcomes a dictionary, as the data are."""
    order: tuple[str, ...] = eqx.field(static=True)
    levels: tuple[tuple[str, int], ...] = eqx.field(static=True)

    def __getitem__(self, name: str) -> Array:
        if name not in self.columns:
            raise KeyError(
                f"`rows` must have a covariate of this name; there are {list(self.order)}, got "
                f"{name!r}. Name it in `covariates=` of `alws.groups`."
            )
        return self.columns[name]

    def design(self, *names: str) -> Float[Array, "rows coefficients"]:
        """The covariates side by side: numbers as they are, levels as 0 and 1 but for the first.

        Arguments:
            names: which of them; all by default. `Groups.coefficients` names the columns.

        Example: `rows.design("age", "treatment") @ self.coefficients`.
        """
        levels, columns = dict(self.levels), []
        for name in names or self.order:
            column = self[name]
            if name in levels:
                columns.append(column[..., None] == jnp.arange(1, levels[name]))
            else:
                columns.append(column[..., None])
        empty = jnp.zeros((*self.mask.shape, 0), float)
        return jnp.concatenate([empty, *columns], axis=-1)

    def sample(self, distributions: PyTree, key: Key[Array, ""]) -> PyTree[Float[Array, " rows"]]:
        """Outcomes drawn from NumPyro's distributions, 0 where there is none.

        Arguments:
            distributions: one with an entry for each row or, of several outcomes, a dictionary.
            key: a JAX key.

        Example: `rows.sample(dist.NegativeBinomial2(mean, self.size), key)`.
        """
        each, structure = self._each(distributions)
        keys, there = jax.random.split(key, len(each)), structure.flatten_up_to(self.observed)
        drawn = [
            jnp.where(t, d.sample(k), 0).astype(float)
            for d, k, t in zip(each, keys, there, strict=True)
        ]
        return structure.unflatten(drawn)

    def log_prob(self, distributions: PyTree, x: PyTree[Array]) -> Float[Array, ""]:
        """The log density of the outcomes that there are, under NumPyro's distributions.

        Arguments:
            distributions: one with an entry for each row or, of several outcomes, a dictionary.
            x: the outcomes of the group.

        Example: `rows.log_prob(dist.ZeroInflatedPoisson(gate, rate), x)`.
        """
        each, structure = self._each(distributions)
        rest = structure.flatten_up_to(x), structure.flatten_up_to(self.observed)
        total = jnp.zeros(())
        for distribution, value, there in zip(each, *rest, strict=True):
            support: Any = distribution.support
            value = jnp.where(there, value, support.feasible_like(value))
            if support.is_discrete:  # some count levels, and take whole numbers only
                whole = jnp.round(value)
                logs = distribution.log_prob(whole.astype(int))
                logs = jnp.where(value == whole, logs, -jnp.inf)
            else:
                logs = distribution.log_prob(value)
            total += jnp.where(there, logs, 0.0).sum()
        return total

    def _each(self, distributions: PyTree) -> tuple[list[Any], Any]:
        """The distributions, one for each outcome, and how they are put together."""
        each, structure = jax.tree.flatten(distributions, is_leaf=_is_distribution)
        wanted = jax.tree.structure(self.observed)
        if structure != wanted or not all(map(_is_distribution, each)):
            raise TypeError(
                "`distributions` must be NumPyro's, one for the outcome or a dictionary with one "
                f"for each, {wanted}; got {distributions!r:.80}."
            )
        return each, structure


def pair_of_rows(x: Any) -> tuple[Rows, PyTree[Array]]:
    """A batch of pairs (rows, outcomes) as it is, or an error where it is something else.

    Example: `rows, outcomes = pair_of_rows((grouped.conditions, grouped.data))`.
    """
    if isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], Rows):
        return x
    raise TypeError(
        "what looks at the rows of groups must be given pairs of rows and outcomes, got "
        f"{type(x).__name__}. Make data and conditions by `alws.groups`, and let one regression "
        "serve all conditions, as by default."
    )


def _is_distribution(value: Any) -> bool:
    return isinstance(value, Distribution)


@dataclass(frozen=True)
class Groups:
    """A table as groups of rows: data and conditions for `alws.fit`, and the names of everything.

    Attributes:
        data: the outcome, groups × rows, 0 where there is none; of several outcomes a dictionary.
        conditions: the `Rows` of each group.
        names: of the groups, in the order in which the table first has them; tuples where `by`
            has several columns.
        levels: of each covariate that has some, their names in order.
        coefficients: names of the columns of `rows.design()`.
        positions: which row of the table each row is, groups × rows, −1 where there is none.
        by, outcome, covariates: as they were given.
    """

    data: PyTree[np.ndarray]
    conditions: Rows
    names: tuple
    levels: dict[str, tuple]
    coefficients: tuple[str, ...]
    positions: np.ndarray
    by: tuple[str, ...]
    outcome: tuple[str, ...]
    covariates: tuple[str, ...]

    def like(self, table: Any) -> "Groups":
        """Another table with the same columns and levels, such as one to predict for.

        Its groups and rows may be as many as it likes. A level that was not in the first table is
        refused; numbers beyond those of the first table are extrapolation, of which a warning is
        given.

        Arguments:
            table: as `alws.groups` takes it.

        Example: `alws.expectation(result, f, new.data, conditions=new.conditions, key=key)` with
        `new = grouped.like(table)`.
        """
        _check_lengths(table, (*self.by, *self.outcome, *self.covariates))
        read = {name: _covariate(table, name, self.levels.get(name)) for name in self.covariates}
        for name, (values, _) in read.items():
            _warn_of_extrapolation(name, values, self)
        outcome = self.outcome if isinstance(self.data, dict) else self.outcome[0]
        return _assemble(table, self.by, outcome, read)


def groups(
    table: Any,
    *,
    by: str | Sequence[str],
    outcome: str | Sequence[str],
    covariates: str | Sequence[str] = (),
    levels: str | Sequence[str] = (),
) -> Groups:
    """A table in long form as padded groups of rows, with a mask, ready for `alws.fit`.

    Text and pandas' categories among the covariates become levels, in alphabetical order or that of
    the categories. An outcome that is missing (NaN, None) is left out of the likelihood, its row
    stays; covariates and groups must not be missing.

    Arguments:
        table: a pandas or polars DataFrame, any table with the dataframe protocol, or a dictionary
            of columns.
        by: the column that says to which group a row belongs, or several of them: each combination
            that occurs is a group. Rows of a group need not lie side by side.
        outcome: the column of the outcome, or several.
        covariates: the columns that the model may use.
        levels: those of the covariates whose numbers are names of levels.

    Example:
        >>> grouped = alws.groups(table, by="herd", outcome="sick", covariates=["period", "size"])
        >>> result = alws.fit(model, grouped.data, conditions=grouped.conditions, key=key)
    """
    by, wanted, as_levels = (
        _names("by", by),
        _names("covariates", covariates),
        _names("levels", levels),
    )
    outcome = outcome if isinstance(outcome, str) else _names("outcome", outcome)
    if not by:
        raise ValueError("`by` must name the column of the groups, got none.")
    if not outcome:
        raise ValueError("`outcome` must name at least one column, got none.")
    both = sorted(set(_names("outcome", outcome)) & {*by, *wanted})
    if both:
        raise ValueError(
            f"`outcome` must be no covariate and no name of the groups, got {both} as both. What "
            "is known of a row cannot be what is to be explained: leave it out of the others."
        )
    stray = [name for name in as_levels if name not in wanted]
    if stray:
        raise ValueError(
            f"`levels` must be among the covariates, {list(wanted)}; got {stray}. Name them in "
            "`covariates` too."
        )
    _check_lengths(table, (*by, *_names("outcome", outcome), *wanted))
    read = {name: _covariate(table, name, () if name in as_levels else None) for name in wanted}
    return _assemble(table, by, outcome, read)


def _check_lengths(table: Any, names: Sequence[str]) -> None:
    """Refuse a table without rows, or whose columns do not have the same number of them."""
    lengths = {name: np.size(_values(table, name)[0]) for name in names}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"all columns must have the same number of rows, got {lengths}.")
    if not any(lengths.values()):
        raise ValueError("`table` must have at least one row, got 0.")


def _names(argument: str, given: Any) -> tuple[str, ...]:
    several = isinstance(given, Iterable) and not isinstance(given, bytes | Mapping)
    names: list[Any] = [given] if isinstance(given, str) or not several else list(given)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TypeError(
            f"`{argument}` must be the name of a column or a list of names, text; got "
            f"{wrong[0]!r:.50}. Columns with other names are renamed first, as in "
            '`table.rename(columns={0: "y"})`.'
        )
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"`{argument}` must name every column once, got {twice} more than once.")
    return tuple(names)


def _assemble(table: Any, by: tuple[str, ...], outcome: str | Sequence[str], read: dict) -> Groups:
    """Groups from columns that were read."""
    outcomes = _names("outcome", outcome)
    values = {name: _outcome(table, name) for name in outcomes}
    each, names = _group_of_rows(table, by)
    positions = _positions(each, len(names))
    there = positions >= 0
    repeated = np.where(there, positions, positions[:, :1])
    seen = {name: there & ~np.isnan(column)[repeated] for name, column in values.items()}
    _refuse_empty(np.any(list(seen.values()), axis=0), names)
    data = {n: np.where(seen[n], np.nan_to_num(v)[repeated], 0.0) for n, v in values.items()}
    single = isinstance(outcome, str)
    levels = {name: found for name, (_, found) in read.items() if found is not None}
    conditions = Rows(
        columns={
            name: own(column[repeated], f"column {name}") for name, (column, _) in read.items()
        },
        mask=jnp.asarray(there),
        observed=jax.tree.map(jnp.asarray, seen[outcomes[0]] if single else seen),
        order=tuple(read),
        levels=tuple((name, len(found)) for name, found in levels.items()),
    )
    coefficients = tuple(
        label
        for name in read
        for label in ([f"{name}[{v}]" for v in levels[name][1:]] if name in levels else [name])
    )
    return Groups(
        data[outcomes[0]] if single else data,
        conditions,
        names,
        levels,
        coefficients,
        positions,
        by,
        outcomes,
        tuple(read),
    )


# Columns -----------------------------------------------------------------------------------------


def _column(table: Any, name: str) -> Any:
    """A column as the table has it."""
    if isinstance(table, Mapping):
        known = list(table)
    elif hasattr(table, "column_names") and not callable(table.column_names):
        known = list(table.column_names)  # pyarrow, and the dataframe protocol's own objects
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):
        known = list(table.columns)
    elif hasattr(table, "__dataframe__"):
        return _column(_by_protocol(table), name)
    else:
        raise TypeError(
            "`table` must be a DataFrame or a dictionary of columns, got "
            f"{type(table).__name__}. Write `dict(subject=subject, y=y)` with arrays."
        )
    if name not in known:
        raise ValueError(f"`table` must have a column {name!r}; it has {known}.")
    return table[name]


def _by_protocol(table: Any) -> Any:
    try:
        from pandas.api.interchange import from_dataframe
    except ImportError as error:
        raise TypeError(
            f"a {type(table).__name__} is read by pandas, which is not installed. Give a "
            "dictionary of columns instead."
        ) from error
    return from_dataframe(table)


def _values(table: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A column as a NumPy array, and where it is missing."""
    column = _column(table, name)
    masked = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
    try:
        values = np.asarray(column)
    except ValueError as error:
        raise ValueError(f"column {name!r} must be one value a row: {error}.") from error
    if values.dtype.kind in "US" and isinstance(column, list | tuple):
        values = np.asarray(column, object)  # numbers among text stay numbers
    if values.ndim != 1:
        raise ValueError(f"column {name!r} must be one value a row, got shape {values.shape}.")
    if masked is not None:
        return values, masked
    if values.dtype.kind in "fc":
        return values, np.isnan(values)
    if values.dtype.kind in "mM":
        return values, np.isnat(values)
    if values.dtype.kind == "O":
        return values, np.array([_is_missing(v) for v in values], bool)
    return values, np.zeros(len(values), bool)


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _first(rows: np.ndarray) -> str:
    some = np.flatnonzero(rows)
    return f"{some.size} rows, the first of them row {some[0]}"


def _text(values: np.ndarray) -> np.ndarray:
    """Which values are text."""
    if values.dtype.kind in "UST":
        return np.ones(len(values), bool)
    if values.dtype.kind != "O":
        return np.zeros(len(values), bool)
    return np.array([isinstance(v, str | bytes) for v in values], bool)


def _number(values: np.ndarray, missing: np.ndarray, name: str, remedy: str) -> np.ndarray:
    """A column of numbers as float64, NaN where missing."""
    text = _text(values) & ~missing
    if text.any():
        raise ValueError(
            f"column {name!r} must be numbers, got text in {_first(text)}: "
            f"{values[text.argmax()]!r:.50}. {remedy}"
        )
    found = np.full(len(values), np.nan)
    present = values[~missing]
    if present.dtype.kind == "O" and all(isinstance(v, bool | np.bool_) for v in present):
        present = present.astype(bool)
    found[~missing] = numbers(present, name)
    if np.isinf(found).any():
        raise ValueError(
            f"column {name!r} must be finite, got infinite numbers in {_first(np.isinf(found))}."
        )
    return found


def _outcome(table: Any, name: str) -> np.ndarray:
    remedy = f"Say what it means, as in `table[{name!r}] == {'yes'!r}`."
    return _number(*_values(table, name), name, remedy)


def _covariate(table: Any, name: str, levels: tuple | None) -> tuple[np.ndarray, tuple | None]:
    """Numbers and None, or the number of each row's level and the levels.

    `levels` are those that there must be, () if they are to be found, None if the column says
    whether it has some.
    """
    values, missing = _values(table, name)
    if missing.any():
        raise ValueError(
            f"column {name!r} must not be missing anywhere, got {_first(missing)}. Leave those "
            "rows out, or fill them in."
        )
    categories = getattr(getattr(_column(table, name), "dtype", None), "categories", None)
    text = _text(values)
    if levels is None and categories is None and not text.all():
        return _number(values, missing, name, "Make them numbers, or all of them text."), None
    if levels is None and categories is None and _looks_like_numbers(values):
        raise ValueError(
            f"column {name!r} must be numbers or names, got text that reads as numbers, such as "
            f"{values[0]!r}. Convert it with `astype(float)`, or say `levels=[{name!r}]`."
        )
    if not levels:
        present = set(values.tolist())
        ordered = sorted(present) if categories is None else [c for c in categories if c in present]
        levels = tuple(ordered)
    number = {level: i for i, level in enumerate(levels)}
    unknown = sorted({repr(v) for v in values.tolist() if v not in number})
    if unknown:
        raise ValueError(
            f"column {name!r} must have the levels {list(levels)}, got {', '.join(unknown)} too. "
            "What a level does that was not in the data cannot be known."
        )
    return np.array([number[v] for v in values.tolist()], np.int32), levels


def _looks_like_numbers(values: np.ndarray) -> bool:
    try:
        values.astype(float)
    except ValueError:
        return False
    return True


# Rows --------------------------------------------------------------------------------------------


def _group_of_rows(table: Any, by: tuple[str, ...]) -> tuple[np.ndarray, tuple]:
    """The number of each row's group, and the groups' names, in order of first appearance."""
    columns = []
    for name in by:
        values, missing = _values(table, name)
        if missing.any():
            raise ValueError(
                f"the group column {name!r} must say for every row where it belongs; it is missing "
                f"in {_first(missing)}. Leave those rows out, or give each a group of its own."
            )
        columns.append(values.tolist())
        _refuse_mixed(values, name)
        categories = getattr(getattr(_column(table, name), "dtype", None), "categories", None)
        unused = [] if categories is None else sorted(set(categories) - set(columns[-1]), key=str)
        if unused:
            raise ValueError(
                f"every group must have rows; of the categories of {name!r} {len(unused)} have "
                f"none, among them {unused[0]!r}. Write `table[{name!r}] = "
                f"table[{name!r}].cat.remove_unused_categories()`."
            )
    keys = columns[0] if len(by) == 1 else list(zip(*columns, strict=True))
    number: dict[Any, int] = {}
    each = np.array([number.setdefault(key, len(number)) for key in keys])
    return each, tuple(number)


def _refuse_mixed(values: np.ndarray, name: str) -> None:
    """Refuse names of groups of which some are text and some are not, or which are no names."""
    if values.dtype.kind != "O":
        return
    for value in values:
        try:
            hash(value)
        except TypeError as error:
            raise TypeError(
                f"the group column {name!r} must have text or numbers, got {value!r:.50}. Give "
                "each group a name."
            ) from error
    kinds = {bool: "True or False", str: "text", bytes: "bytes"}
    found = {next((w for k, w in kinds.items() if isinstance(v, k)), "others") for v in values}
    if len(found) > 1:
        raise ValueError(
            f"the group column {name!r} must have names of one kind, got "
            f"{' and '.join(sorted(found))}: 1 and '1' would be two groups. Write "
            f"`table[{name!r}].astype(str)`."
        )


def _positions(each: np.ndarray, number: int) -> np.ndarray:
    """Which rows of the table each group has, in their order; −1 from there on."""
    counts = np.bincount(each, minlength=number)
    order = np.argsort(each, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    positions = np.full((number, counts.max()), -1)
    positions[each[order], np.arange(len(each)) - np.repeat(starts, counts)] = order
    return positions


def _refuse_empty(seen: np.ndarray, names: tuple) -> None:
    """Refuse groups without any outcome."""
    empty = np.flatnonzero(~seen.any(axis=1))
    if empty.size:
        raise ValueError(
            f"every group must have a row with an outcome; {empty.size} of {len(names)} have none, "
            f"among them {names[empty[0]]!r}. They tell nothing of the parameters: leave them out."
        )


def _warn_of_extrapolation(name: str, values: np.ndarray, grouped: Groups) -> None:
    if name in grouped.levels:
        return
    known = np.asarray(grouped.conditions.columns[name])
    slack = 1e-6 * max(abs(known.min()), abs(known.max()))
    beyond = (values < known.min() - slack) | (values > known.max() + slack)
    if beyond.any():
        warnings.warn(
            f"column {name!r} should lie within the data of the fit, from {known.min():g} to "
            f"{known.max():g}; {_first(beyond)}, {values[beyond.argmax()]:g}, is extrapolation.",
            RuntimeWarning,
            stacklevel=3,
        )


__all__ = ["Groups", "Rows", "groups", "pair_of_rows"]
