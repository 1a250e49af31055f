"""What the sites of a NumPyro program are to the model: data axis, latents, parameters, start."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from alws.numpyro.program import (
    Program,
    Site,
    UnsupportedProgram,
    constraint_of,
    frame_of,
    log_prob,
    refuse,
    to_unconstrained,
)

CHECKED_EXAMPLES = 16


def describe(program: Program, plate: str | None, *, point_estimates: bool) -> Program:
    """The program with its data plate and the axis of every site in it, or a refusal."""
    sites: dict[str, Site] = {}
    jax.eval_shape(lambda key: sites.update(program.run(None, key)), jax.random.key(0))
    samples = {name: site for name, site in sites.items() if site["type"] == "sample"}
    observed = program.observed or tuple(n for n, s in samples.items() if s["is_observed"])
    _check_observed(observed, samples)
    plate = _data_plate(plate, observed, samples)
    axes = {}
    for name, site in samples.items():
        frame = frame_of(site, plate)
        if frame is not None:
            axes[name] = frame.dim - site["fn"].event_dim
        elif name not in observed:
            _check_global(name, site, plate, point_estimates)
        if site["is_observed"] and name not in observed:
            refuse("site", name, f"has `obs` but is not in `observed`, {list(observed)}: add it.")
    parameters = {name: site for name, site in sites.items() if site["type"] == "param"}
    for name, site in parameters.items():
        _check_shared(name, site, plate)
    if not parameters and len(axes) == len(samples):
        raise UnsupportedProgram(
            f"the program has no `param` site, so there is nothing to fit; it has {list(samples)}. "
            "Declare its parameters with `numpyro.param`."
        )
    size = next(frame_of(samples[name], plate).size for name in observed)
    return replace(program, observed=observed, plate=plate, size=size, axes=axes)


def _check_observed(observed: tuple[str, ...], samples: Mapping[str, Site]) -> None:
    if not observed:
        raise UnsupportedProgram(
            "no site is observed: name one of the program's sample sites in `observed`, "
            f"{list(samples)}, or pass the program its data."
        )
    for name in observed:
        if name not in samples:
            refuse("site", name, f"is in `observed`, but the program has only {list(samples)}.")


def _data_plate(plate: str | None, observed: tuple[str, ...], samples: Mapping[str, Site]) -> str:
    """The plate that holds every observed site."""
    plates = {name: [f.name for f in samples[name]["cond_indep_stack"]] for name in observed}
    for name, around in plates.items():
        if not around:
            refuse("observed site", name, "is inside no plate; the data axis must be a plate.")
        if plate is not None and plate not in around:
            refuse("observed site", name, f"is not inside the data plate '{plate}' but {around}.")
    if plate is not None:
        return plate
    common = [p for p in plates[observed[0]] if all(p in around for around in plates.values())]
    if len(common) != 1:
        raise UnsupportedProgram(
            f"the observed sites must share one plate, the data axis; they are inside {plates}. "
            "Name the one that counts independent examples: `plate=...`."
        )
    return common[0]


def _check_global(name: str, site: Site, plate: str, point_estimates: bool) -> None:
    """A latent shared by all examples can only be a parameter."""
    if not point_estimates:
        refuse(
            "sample site",
            name,
            f"is unobserved and outside the data plate '{plate}': one value for all examples, "
            "not a latent of each. Make it a `param` site, move it into the plate, or pass "
            "`point_estimates=True` to fit it under its prior.",
        )
    if site["fn"].support.is_discrete:
        refuse("sample site", name, "is discrete and shared by all examples: it cannot be fitted.")
    if site.get("_control_flow_done", False):
        refuse("sample site", name, "is inside `scan` or `cond` but outside the data plate.")


def _check_shared(name: str, site: Site, plate: str) -> None:
    """A parameter inside the plate must not have a value for each example."""
    frame, event_dim = frame_of(site, plate), site["kwargs"].get("event_dim")
    if frame is None or event_dim is None:
        return
    shape, axis = jnp.shape(site["value"]), frame.dim - event_dim
    if len(shape) >= -axis and shape[axis] != 1:
        refuse("param site", name, f"has a value for each example of the plate '{plate}'.")


def start(program: Program, key: Key[Array, ""]) -> dict[str, PyTree[Array]]:
    """θ as the program starts it, unconstrained; sites outside the plate at a draw."""
    constraints: dict[str, Any] = {}

    def unconstrained(key: Key[Array, ""]) -> dict[str, PyTree[Array]]:
        theta = {}
        for name, site in program.run(None, key, condition=program.rows((0,))).items():
            if site["type"] == "param" or (site["type"] == "sample" and name not in program.axes):
                _check_floating(name, site["value"])
                constraints[name] = constraint_of(site)
                theta[name] = to_unconstrained(constraints[name], site["value"])
        return theta

    theta = jax.jit(unconstrained)(key)
    for name, value in theta.items():
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(value)):
            refuse(
                "site",
                name,
                f"starts outside its constraint, or on its edge: {constraints[name]}.",
            )
    return theta


def _check_floating(name: str, value: PyTree) -> None:
    for leaf in jax.tree.leaves(value):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            refuse("param site", name, f"must start at floating-point numbers, got {leaf}.")
    if value is None:
        refuse("param site", name, "has no start value.")


def check_examples(program: Program, theta: dict[str, PyTree[Array]], key: Key[Array, ""]) -> None:
    """Some examples together must have the densities each has alone."""
    number = min(CHECKED_EXAMPLES, program.size)
    indices = np.linspace(0, program.size - 1, number).astype(int).tolist()
    rows = program.rows(indices)
    axes = program.axes

    def each(site: Site) -> Float[Array, " number"]:
        """The site's log density of every example."""
        values = jnp.moveaxis(log_prob(site), frame_of(site, program.plate).dim, 0)
        return values.reshape(number, -1).sum(axis=1)

    def alone(values: dict[str, Array], rows: PyTree | None) -> dict[str, Array]:
        values = {name: jnp.expand_dims(values[name], axis) for name, axis in axes.items()}
        rows = jax.tree.map(lambda a: a[None], rows)
        trace = program.run(theta, values=values, condition=rows)
        return {name: jnp.sum(log_prob(trace[name])) for name in axes}

    @jax.jit
    def both(key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
        cut = list(range(number)) if program.conditions else indices
        trace = program.run(theta, key, indices=cut, condition=rows)
        values = {name: jnp.moveaxis(trace[name]["value"], axes[name], 0) for name in axes}
        return {name: each(trace[name]) for name in axes}, jax.vmap(alone)(values, rows)

    together, apart = jax.device_get(both(key))
    for name in axes:
        if not np.allclose(together[name], apart[name], rtol=1e-3, atol=1e-3, equal_nan=True):
            refuse(
                "site",
                name,
                "has a density that depends on which example it is, or on other examples. Name "
                "arguments with a row for each example in `conditions`; examples must be "
                "independent given the parameters.",
            )
