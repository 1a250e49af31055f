"""Three of the exact models as NumPyro programs, and back.

``PROGRAMS[name](start)`` is the program with its parameters started at the model ``start``;
``exact(name, parameters)`` is the exact model at the parameters of the program.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.nn import softmax
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints

from exact.base import ExactModel
from exact.gaussian_mixture import GaussianMixture
from exact.hidden_markov import HiddenMarkov
from exact.sigmoid_belief import SigmoidBelief

Program = Callable[..., Any]


def gaussian_mixture(start: GaussianMixture) -> Program:
    """Components with a weight, a mean and a scale each; points are events of two coordinates."""

    def program(x: Any = None, n: int = 600) -> None:
        weights = numpyro.param("weights", softmax(start.logits), constraint=constraints.simplex)
        means = numpyro.param("means", start.means)
        scales = numpyro.param("scales", jnp.exp(start.log_scales), constraint=constraints.positive)
        with numpyro.plate("data", n):
            z = numpyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
            numpyro.sample("x", dist.Normal(means[z], scales[z]).to_event(1), obs=x)

    return program


def sigmoid_belief(start: SigmoidBelief) -> Program:
    """Bernoulli causes and symptoms; the data, if given, set the size of the plate."""

    def program(x: Any = None, n: int = 800) -> None:
        prior = numpyro.param("prior", start.prior)
        weights = numpyro.param("weights", start.weights)
        offset = numpyro.param("offset", start.offset)
        with numpyro.plate("people", n if x is None else x.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(logits=prior).to_event(1))
            logits = numpyro.deterministic("logits", z @ weights.T + offset)
            numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

    return program


def hidden_markov(start: HiddenMarkov) -> Program:
    """A chain by ``scan``, data as [time, sequence], with probabilities of its own for step 0."""

    def program(x: Any = None, n: int = 500) -> None:
        first = numpyro.param("first", softmax(start.initial), constraint=constraints.simplex)
        move = numpyro.param("move", softmax(start.transition), constraint=constraints.simplex)
        means = numpyro.param("means", start.means)
        scales = numpyro.param("scales", jnp.exp(start.log_scales), constraint=constraints.positive)

        def step(carry: Any, x: Any) -> Any:
            t, z = carry
            with numpyro.plate("sequences", n):
                z = numpyro.sample("z", dist.Categorical(jnp.where(t == 0, first, move[z])))
                numpyro.sample("x", dist.Normal(means[z], scales[z]), obs=x)
            return (t + 1, z), None

        scan(step, (0, jnp.zeros(n, int)), x, length=start.steps)

    return program


PROGRAMS: dict[str, Callable[[Any], Program]] = {
    "gaussian_mixture": gaussian_mixture,
    "sigmoid_belief": sigmoid_belief,
    "hidden_markov": hidden_markov,
}


def exact(name: str, parameters: Mapping[str, Any]) -> ExactModel:
    """Return the exact model with these parameters."""
    p = parameters
    if name == "gaussian_mixture":
        return GaussianMixture(jnp.log(p["weights"]), p["means"], jnp.log(p["scales"]))
    if name == "sigmoid_belief":
        return SigmoidBelief(p["prior"], p["weights"], p["offset"])
    log = {key: jnp.log(p[key]) for key in ("first", "move", "scales")}
    return HiddenMarkov(log["first"], log["move"], p["means"], log["scales"])
