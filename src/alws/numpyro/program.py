"""Running a NumPyro program one example at a time.

A program states all examples at once: its data plate has size n, and every site inside has an axis
of that length. Here the plate is cut to a few of its indices, usually one, whatever size the
program asks for; `param` sites take their values from θ, kept unconstrained, and observed sites are
drawn or set like latents. Bodies of NumPyro's `scan` and `cond` run under the same rules.

What a program may not do is refused where it does it, by the name of the site.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree
from numpyro import handlers
from numpyro.distributions import Distribution, MaskedDistribution, Unit, biject_to, constraints
from numpyro.primitives import Messenger

Site = dict[str, Any]


class UnsupportedProgram(ValueError):
    """A NumPyro program that cannot be made a model: the site, the reason and the remedy."""


def refuse(kind: str, name: str, reason: str) -> NoReturn:
    """Say which site of a program cannot be supported and why."""
    raise UnsupportedProgram(f"{kind} '{name}' {reason}")


def to_unconstrained(constraint: Any, value: PyTree) -> PyTree[Array]:
    """The inverse of the constraint's bijection; a pytree (the weights of a network) stays."""
    if constraint is constraints.real:
        return jax.tree.map(jnp.asarray, value)
    return biject_to(constraint).inv(jnp.asarray(value))


def to_constrained(constraint: Any, value: PyTree[Array]) -> PyTree[Array]:
    """The constraint's bijection, real → constrained."""
    return value if constraint is constraints.real else biject_to(constraint)(value)


def constraint_of(site: Site) -> Any:
    """The constraint of a `param` site, or the support of a `sample` site."""
    if site["type"] == "sample":
        return site["fn"].support
    return site["kwargs"].get("constraint", constraints.real)


def frame_of(site: Site, plate: str | None) -> Any:
    """The site's place in the plate, with its `dim`, or None outside the plate."""
    return next((f for f in site.get("cond_indep_stack", ()) if f.name == plate), None)


def log_prob(site: Site) -> Array:
    """The log density of a sample site's value, with the site's batch shape."""
    return site["fn"].log_prob(site["value"])


class Examples(Messenger):
    """Cuts the data plate to `indices`, puts θ in, and frees the observed sites to be drawn."""

    def __init__(
        self,
        function: Callable[..., Any],
        plate: str | None,
        indices: Sequence[int],
        observed: Sequence[str],
        theta: Mapping[str, PyTree[Array]] | None,
        shared: dict[str, Any] | None = None,
    ):
        super().__init__(function)
        self.rules = (plate, indices, observed, theta)
        self.inside = shared is not None
        self.shared: dict[str, Any] = {"types": {}, "sizes": {}} if shared is None else shared

    def process_message(self, msg: Site) -> None:
        kind = msg["type"]
        if kind == "control_flow":
            msg["args"] = tuple(self._under_rules(a) if callable(a) else a for a in msg["args"])
        if "name" not in msg or kind not in ("sample", "param", "plate", "mutable"):
            return
        if kind != "plate":
            self.shared["last"] = msg["name"]
            if not self.inside:
                self._check_name(msg)
        if not msg.get("_control_flow_done", False):
            getattr(self, f"_{kind}")(msg)

    def _under_rules(self, body: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: Examples(body, *self.rules, self.shared)(*args)

    def _check_name(self, msg: Site) -> None:
        kind, name, types = msg["type"], msg["name"], self.shared["types"]
        if name in types and not kind == types[name] == "param":
            refuse("site", name, f"occurs twice, as {types[name]} and as {kind}: rename one.")
        types[name] = kind

    def _mutable(self, msg: Site) -> None:
        refuse("mutable site", msg["name"], "keeps a state between runs; only parameters may.")

    def _plate(self, msg: Site) -> None:
        plate, indices, _, _ = self.rules
        size, part = msg["args"]
        if msg["name"] == plate:
            self.shared["sizes"][plate] = size
            msg["args"], msg["value"] = (size, len(indices)), jnp.asarray(indices)
        elif plate is not None and part not in (None, size):
            refuse("plate", msg["name"], f"takes {part} of {size}; only the data plate may.")

    def _param(self, msg: Site) -> None:
        theta = self.rules[3]
        if self.inside:
            refuse("param site", msg["name"], "is inside `scan` or `cond`: move it before.")
        if theta is not None:
            msg["value"] = to_constrained(constraint_of(msg), theta[msg["name"]])

    def _sample(self, msg: Site) -> None:
        plate, indices, observed, theta = self.rules
        name, frame = msg["name"], frame_of(msg, plate)
        if plate is not None:
            whole = 1.0 if frame is None else self.shared["sizes"][plate] / frame.size
            self._check_scale(msg, whole)
        self._check_density(name, msg["fn"])
        if frame is not None and msg["fn"].batch_shape[frame.dim] != len(indices):
            refuse(
                "site",
                name,
                f"has {msg['fn'].batch_shape[frame.dim]} entries along the data plate '{plate}' "
                f"where {len(indices)} were asked for: it uses an array with an entry for each "
                "example. If that is an argument, name it in `conditions`; if it is sized by hand, "
                "give arguments that make the plate one example long (n=1).",
            )
        if name in observed:
            msg["value"], msg["is_observed"] = None, False
        elif theta is not None and name in theta:
            msg["value"] = to_constrained(constraint_of(msg), theta[name])

    def _check_scale(self, msg: Site, expected: float) -> None:
        """Only the data plate may scale a density, and that is undone here."""
        scale, msg["scale"] = msg["scale"], None
        if scale is not None and (_unknown(scale) or not np.allclose(scale, expected)):
            refuse(
                "site",
                msg["name"],
                "is rescaled by `handlers.scale` but drawn as it is. Leave the scale out; "
                "`alws.fit` takes the mean over examples.",
            )

    def _check_density(self, name: str, distribution: Any) -> None:
        """The site must be scored by the density it is drawn from."""
        while isinstance(distribution, Distribution):
            if isinstance(distribution, Unit):
                refuse(
                    "factor site",
                    name,
                    "changes the density but not the draws. Put a penalty on parameters into "
                    "`alws.fit(log_prior=...)`; write anything else as a `sample` site.",
                )
            mask = distribution._mask if isinstance(distribution, MaskedDistribution) else True
            if _unknown(mask) or not np.all(mask):
                refuse(
                    "site",
                    name,
                    "is masked, by `mask` or `obs_mask`: it would be drawn but not scored, which "
                    "makes the simulated data differ from the model. Leave out what is masked, or "
                    "declare it as a latent of its own.",
                )
            distribution = getattr(distribution, "base_dist", None)


def _unknown(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


@dataclass(frozen=True, eq=False)
class Program:
    """A NumPyro program with its arguments and what its sites are to the model.

    `axes` has the data axis of every sample site in the plate, counted from the right.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    conditions: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    plate: str | None = None
    size: int = 1
    axes: Mapping[str, int] = field(default_factory=dict)

    def run(
        self,
        theta: Mapping[str, PyTree[Array]] | None,
        key: Key[Array, ""] | None = None,
        values: Mapping[str, Array] | None = None,
        indices: Sequence[int] = (0,),
        condition: Mapping[str, PyTree[Array]] | None = None,
    ) -> dict[str, Site]:
        """The sites of one run, with the plate cut to `indices`: drawn by `key`, or set."""
        cut = Examples(self.function, self.plate, indices, self.observed, theta)
        program = cut if key is None else handlers.seed(cut, rng_seed=key)
        program = handlers.substitute(program, data=dict(values or {}))
        args, kwargs = self.arguments(condition)
        try:
            return handlers.trace(program).get_trace(*args, **kwargs)
        except UnsupportedProgram:
            raise
        except Exception as error:
            raise self._failure(error, cut.shared.get("last")) from error

    def _failure(self, error: Exception, last: str | None) -> UnsupportedProgram:
        """What the program's own error means, by the site it reached last."""
        if isinstance(error, NotImplementedError):
            return UnsupportedProgram(
                f"site '{last}' cannot be drawn: {error or 'its distribution has no sampler'}. "
                "An improper prior on a global quantity is a `param` site."
            )
        where = "before its first site" if last is None else f"at or after its site '{last}'"
        if isinstance(error, jax.errors.ConcretizationTypeError):
            return UnsupportedProgram(
                f"the program fails {where}: its Python code branches on a random value or a "
                f"parameter. Use `jnp.where` or NumPyro's `cond`. {error}"
            )
        cut = f" with its data plate '{self.plate}' cut to one example" if self.plate else ""
        return UnsupportedProgram(
            f"the program fails{cut}, {where}: {type(error).__name__}: {error} Arrays sized by "
            "hand must follow the plate: give arguments that make it one example long (n=1), or "
            "name arguments with a row for each example in `conditions`."
        )

    def arguments(self, condition: Mapping[str, PyTree] | None) -> tuple[tuple, dict[str, Any]]:
        """The program's arguments, those that are conditions replaced by the rows given."""
        if condition is None:
            return self.args, self.kwargs
        bound = inspect.signature(self.function).bind(*self.args, **self.kwargs)
        bound.arguments.update(condition)
        return bound.args, bound.kwargs

    def rows(self, indices: Sequence[int]) -> dict[str, PyTree[Array]] | None:
        """These rows of the arguments that are conditions."""
        if not self.conditions:
            return None
        given = inspect.signature(self.function).bind(*self.args, **self.kwargs).arguments
        missing = [name for name in self.conditions if name not in given]
        if missing:
            raise UnsupportedProgram(
                f"`conditions` must name arguments given to the program, {list(given)}; "
                f"'{missing[0]}' is not among them."
            )
        rows = np.asarray(indices)
        take = lambda a: jnp.asarray(a)[rows]  # noqa: E731
        return {name: jax.tree.map(take, given[name]) for name in self.conditions}
