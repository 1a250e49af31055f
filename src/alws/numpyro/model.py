"""NumPyro programs as models: `param` sites are θ, unobserved `sample` sites the latents.

    def mixture(x=None, n=600):
        weights = numpyro.param("weights", jnp.ones(3) / 3, constraint=constraints.simplex)
        means = numpyro.param("means", jnp.array([-1.0, 0.0, 1.0]))
        with numpyro.plate("data", n):
            z = numpyro.sample("z", dist.Categorical(weights))
            numpyro.sample("x", dist.Normal(means[z], 1.0), obs=x)

    model = alws.from_numpyro(mixture, observed="x")
    result = alws.fit(model, x, key=jax.random.key(0), steps=2000)
    parameters = result.model.parameters()
    numpyro.infer.Predictive(mixture, params=parameters, num_samples=100)(key)

Discrete latents are drawn like any others: nothing is enumerated, and marks that ask for it are
ignored. The plate around the observed sites is the data axis. Its size does not matter: the model
describes one example, with the plate cut to one (see `alws.numpyro_program`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.numpyro.program import Program, log_prob
from alws.numpyro.sites import check_examples, describe, start
from alws.values import check_key, function, named, yes_or_no


class NumpyroModel(eqx.Module):
    """One example of a NumPyro program, as a model; `theta` is unconstrained, by site.

    z is a dictionary of the latent sites, x the observed site, or a dictionary when several were
    named. Both lack the data axis; a site inside `scan` has time first.
    """

    theta: dict[str, PyTree[Array]]
    program: Program = eqx.field(static=True)
    single: bool = eqx.field(static=True)

    def sample(self, key: Key[Array, ""], *condition: Any) -> tuple[dict[str, Array], PyTree]:
        """One draw (z, x) from the program."""
        program = self.program
        trace = program.run(self.theta, key, condition=self._rows(condition))
        values = {name: jnp.squeeze(trace[name]["value"], a) for name, a in program.axes.items()}
        x = {name: values.pop(name) for name in program.observed}
        return values, x[program.observed[0]] if self.single else x

    def log_joint(self, z: dict[str, Array], x: PyTree, *condition: Any) -> Float[Array, ""]:
        """log p_θ(z, x) of one example."""
        program = self.program
        values = z | self._by_name(x)
        values = {name: jnp.expand_dims(values[name], a) for name, a in program.axes.items()}
        trace = program.run(self.theta, values=values, condition=self._rows(condition))
        return sum((jnp.sum(log_prob(trace[name])) for name in program.axes), jnp.zeros(()))

    def parameters(self) -> dict[str, PyTree[Array]]:
        """θ in the program's own terms, constraints obeyed, for `Predictive(params=...)`."""
        return _parameters(self)

    def log_prior(self) -> Float[Array, ""]:
        """log p of the `sample` sites outside the plate (`point_estimates`), or 0.

        Example: `alws.fit(model, data, log_prior=lambda model: model.log_prior(), ...)`.
        """
        trace = self.program.run(self.theta, jax.random.key(0), condition=self.program.rows((0,)))
        priors = [trace[name] for name in self.theta if trace[name]["type"] == "sample"]
        return sum((jnp.sum(log_prob(site)) for site in priors), jnp.zeros(()))

    def examples(self, data: PyTree) -> PyTree[Array]:
        """Data as the program has them, the data axis moved to the front as `alws.fit` wants it.

        Only programs whose data axis is not the first need this, such as those with `scan`.
        """
        axes = self.program.axes
        moved = {
            name: jnp.moveaxis(jnp.asarray(values), axes[name], 0)
            for name, values in self._by_name(data).items()
        }
        return moved[self.program.observed[0]] if self.single else moved

    def _by_name(self, x: PyTree) -> dict[str, Any]:
        return {self.program.observed[0]: x} if self.single else dict(x)

    def _rows(self, condition: tuple[Any, ...]) -> dict[str, PyTree[Array]] | None:
        """The condition of one example, with a data axis of length one."""
        names = self.program.conditions
        if len(condition) != bool(names):
            raise TypeError(
                f"the model takes {int(bool(names))} positional argument after the others, the "
                f"condition {list(names)}, got {len(condition)}."
            )
        if not names:
            return None
        (given,) = condition
        by_name = given if isinstance(given, Mapping) else {names[0]: given}
        return jax.tree.map(lambda a: jnp.asarray(a)[None], dict(by_name))


@eqx.filter_jit
def _parameters(model: NumpyroModel) -> dict[str, PyTree[Array]]:
    trace = model.program.run(model.theta, jax.random.key(0), condition=model.program.rows((0,)))
    return {name: trace[name]["value"] for name in model.theta}


def from_numpyro(
    program: Callable[..., Any],
    *args: Any,
    observed: str | Sequence[str] | None = None,
    plate: str | None = None,
    conditions: str | Sequence[str] = (),
    point_estimates: bool = False,
    key: Key[Array, ""] | None = None,
    **kwargs: Any,
) -> NumpyroModel:
    """Make a NumPyro program a model that `alws.fit` can fit.

    Unobserved `sample` sites outside the data plate are shared by all examples. Maximum likelihood
    has no place for them, so they are refused, unless `point_estimates` makes them parameters.

    Refused by name: `factor` sites, masked or rescaled sites, sites without a sampler, `param`
    sites inside the plate that have a value for each example, subsampled plates other than the data
    plate, sites that mix examples.

    Arguments:
        program: the program.
        args, kwargs: its own arguments; data among them serve for their shapes only.
        observed: the observed sites; by default those with `obs` under the arguments given.
        plate: the data plate, where several plates hold all observed sites.
        conditions: arguments with a row for each example, such as regressors: they become the
            condition of the model, `alws.fit(..., conditions={"regressors": ...})`.
        point_estimates: whether shared sites become parameters too, started at a draw;
            `model.log_prior()` is then their log density: pass it to `alws.fit` for the
            posterior mode.
        key: for that draw.

    Example: `alws.from_numpyro(mixture, observed="x").parameters()["weights"]`.
    """
    function("program", program, "a NumPyro program")
    named("observed", () if observed is None else observed)
    named("conditions", conditions)
    if plate is not None:
        named("plate", (plate,))
    yes_or_no("point_estimates", point_estimates)
    key = jax.random.key(0) if key is None else key
    check_key(key)
    single = isinstance(observed, str)
    names = () if observed is None else (observed,) if single else tuple(observed)
    needs = (conditions,) if isinstance(conditions, str) else tuple(conditions)
    whole = Program(program, args, kwargs, needs, names)
    one = describe(whole, plate, point_estimates=point_estimates)
    theta = start(one, key)
    check_examples(one, theta, key)
    return NumpyroModel(theta, one, single or (observed is None and len(one.observed) == 1))
