"""Public names list their arguments, and the examples in their docstrings run as they stand."""

import inspect
import re
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import alws
from alws import (
    contrib,
    devices,
    estimates,
    features,
    kernels,
    likelihoods,
    regressions,
    results,
)

MODULES = [alws, contrib, devices, estimates, features, kernels, likelihoods, regressions, results]
DERIVED = {
    "ExponentialFamilyModel", "Estimate", "FeatureMap", "Features", "Kernel", "KernelSmoother",
    "Likelihood", "Model", "Recipe", "Regression", "Shift", "Smoother", "StateSpace",
}  # fmt: skip
"""What users derive from, or write themselves: described member by member."""
GIVEN_BACK = {
    alws.Draws, alws.Prepared, alws.Report, alws.Result, alws.Rows, estimates.Part,
    estimates.Weights, regressions.SolveReport, results.Annealed, results.Enclosed,
    results.LogLikelihood, results.Mode, results.StandardErrors,
}  # fmt: skip
"""What the library makes and gives back."""


def public(module):
    """The names of a module, those that it defines itself where it has no list."""
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [n for n in own if not n.startswith("_")])
    things = {name: getattr(module, name) for name in names}
    return {n: v for n, v in things.items() if callable(v) and not inspect.ismodule(v)}


def called():
    """What users call, each under the first of its names."""
    found = {}
    for module in MODULES:
        for name, thing in public(module).items():
            made = name in DERIVED or thing in GIVEN_BACK or thing in found.values()
            if not made and not (isinstance(thing, type) and issubclass(thing, Exception)):
                found[f"{module.__name__}.{name}"] = thing
    return found


CALLED = called()


@pytest.mark.parametrize("name", CALLED)
def test_arguments_are_listed(name):
    text = inspect.getdoc(CALLED[name]) or ""
    wanted = inspect.signature(CALLED[name]).parameters
    listed = re.findall(r"^    ([\w, \n]+?):\s", text.partition("Arguments:")[2], re.MULTILINE)
    found = {word for names in listed for word in re.split(r",\s*", names)}
    assert set(wanted) <= found


# Examples ---------------------------------------------------------------------------------------


class Noisy(eqx.Module):
    """x = a z + noise in five dimensions; z a number, a vector, a share or a category."""

    weight: jax.Array
    log_noise: jax.Array
    kind: str = eqx.field(static=True, default="normal")

    def sample_latent(self, key):
        if self.kind == "category":
            return jax.random.categorical(key, jnp.zeros(3))
        if self.kind == "share":
            return jax.random.uniform(key)
        return jax.random.normal(key, (1,) if self.kind == "vector" else ())

    def log_prior(self, z):
        constant = {"share": 0.0, "category": -jnp.log(3.0)}
        return jnp.asarray(constant.get(self.kind, dist.Normal().log_prob(z).sum()))

    def likelihood(self, z):
        return likelihoods.Gaussian(self.weight * jnp.sum(z), jnp.exp(self.log_noise))


class Mixture(eqx.Module):
    logits: jax.Array
    means: jax.Array

    def sample(self, key):
        k1, k2 = jax.random.split(key)
        z = jax.random.categorical(k1, self.logits)
        return z, self.means[z] + jax.random.normal(k2)

    def log_joint(self, z, x):
        return jax.nn.log_softmax(self.logits)[z] + dist.Normal(self.means[z]).log_prob(x)


class Walk(alws.StateSpace):
    log_noise: jax.Array
    times: int = eqx.field(static=True)

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state, *control):
        return dist.Normal(state, 0.1)

    def observation(self, state, *control):
        return dist.Normal(state, jnp.exp(self.log_noise))


def program(x=None):
    weights = numpyro.param("weights", jnp.array([0.5, 0.5]))
    with numpyro.plate("data", 10):
        z = numpyro.sample("z", dist.Categorical(weights))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


KEY = jax.random.key(0)
MODEL = Noisy(jnp.ones(5), jnp.zeros(()))
SLEEP = alws.draw(MODEL, KEY, 60)[0]
WALKS = jax.random.normal(KEY, (6, 9)).cumsum(axis=1)
TABLE = {
    "herd": [i // 3 for i in range(30)],
    "sick": [(i * i) % 4 for i in range(30)],
    "period": [float(i % 3) for i in range(30)],
    "size": [7.0 + i % 5 for i in range(30)],
}


class Herds(eqx.Module):
    intercept: jax.Array
    spread: jax.Array

    def sample_latent(self, key, rows):
        return jax.random.normal(key)

    def log_prior(self, z, rows):
        return dist.Normal().log_prob(z)

    def likelihood(self, z, rows):
        logits = self.intercept + self.spread * z + jnp.zeros(len(rows.mask))
        return likelihoods.Binomial(rows["size"], logits, mask=rows.observed)


def rows_of_one_group():
    grouped = alws.groups(TABLE, by="herd", outcome="sick", covariates=["period", "size"])
    return jax.tree.map(lambda a: a[0], grouped.conditions)


def kind(name, number=40):
    """A model of this kind of latent, and draws from it."""
    model = Noisy(jnp.ones(5), jnp.zeros(()), name)
    return {"model": model, "x": alws.draw(model, KEY, number)[0].x}


NAMES = {
    **{n: v for module in MODULES for n, v in vars(module).items() if not n.startswith("_")},
    **{"alws": alws, "dist": dist, "eqx": eqx, "jax": jax, "jnp": jnp, "optax": optax},
    **{"key": KEY, "model": MODEL, "sleep": SLEEP, "x": SLEEP.x, "data": SLEEP.x},
    **{"draws": SLEEP, "test": SLEEP.x[:5], "held_out": SLEEP.x[:5]},
    "regression": regressions.KernelRidge(kernels.SquaredExponential()),
    "kernel": kernels.SquaredExponential(),
    "summaries": lambda x: jnp.stack([x.mean(), x.std()]),
    "Mixture": Mixture,
    "mixture": Mixture(jnp.zeros(3), jnp.arange(3.0)),
    **{"logits": jnp.zeros(2), "means": jnp.array([-1.0, 1.0]), "z": jnp.zeros(3)},
    **{"rate": jnp.zeros(3), "mean": jnp.ones(3), "population": jnp.ones(3)},
    "self": SimpleNamespace(
        decoder=lambda z: z, log_scale=jnp.zeros(()), noise=0.5, readout=jnp.ones((4, 3)),
        intercept=jnp.zeros(()), loading=jnp.ones(()), spread=jnp.ones(()), shape=2.0,
    ),
    **{"mesh": None, "gram": jnp.eye(3), "ridge": 0.1, "state": SimpleNamespace(model=MODEL)},
    "other": SLEEP.x,
    "encoder": lambda x: SimpleNamespace(mean=x.mean()[None] * 0.8, log_scale=jnp.zeros(1)),
}  # fmt: skip
OWN = {
    "alws.Given": lambda: {
        "model": Walk(jnp.zeros(()), 9), "x": WALKS, "current": jnp.zeros_like(WALKS),
    },
    "alws.devices.by_blocks": lambda: {"model": Mixture(jnp.zeros(2), jnp.array([-1.0, 1.0]))},
    "alws.expectation": lambda: kind("category"),
    "alws.fit": lambda: {"data": jax.random.normal(KEY, (40,))},
    "alws.from_numpyro": lambda: {"mixture": program},
    "alws.groups": lambda: {"table": TABLE, "model": Herds(jnp.zeros(()), jnp.ones(()))},
    "alws.posterior_mode": lambda: kind("share", 5),
    "alws.sequences": lambda: {
        "model": Walk(jnp.zeros(()), 9), "first": WALKS[0], "second": WALKS[1, :6],
    },
    "alws.standard_errors": lambda: standard_errors_of(),
    "alws.estimates.default_estimate": lambda: {"weights": weights_of(estimates.Natural())},
    "alws.features.Network": lambda: {"x": jnp.ones((3, 10))},
    "alws.likelihoods.Binomial": lambda: {"rows": rows_of_one_group()},
    "alws.results.enumerated_log_likelihood": lambda: {"x": jnp.arange(5.0)},
    "alws.results.importance_log_likelihood": lambda: kind("vector", 5),
}  # fmt: skip
"""What an example has of its own."""
SLOW = {
    "alws.Given", "alws.fit", "alws.groups", "alws.log_likelihood", "alws.sequences",
    "alws.standard_errors", "alws.contrib.over_dispersed", "alws.results.LogLikelihood",
    "alws.results.annealed_log_likelihood", "alws.results.enclosed_log_likelihood",
}  # fmt: skip
"""Examples that fit, or run chains."""
SKETCHES = {
    "alws.EarlyStopping", "alws.MetricsFile", "alws.devices.check_divides",
    "alws.devices.make_mesh",
    "alws.devices.check_same", "alws.devices.in_any", "alws.devices.on_every_device",
    "alws.devices.start",
}  # fmt: skip
"""Examples that raise, leave something out, or need other devices or processes."""


def weights_of(estimate):
    smoother = NAMES["regression"].initialise(SLEEP.x).fit(SLEEP.x)
    return estimate.weigh(MODEL, smoother, SLEEP, SLEEP.x, None)


def standard_errors_of():
    data = alws.draw(NAMES["mixture"], KEY, 200)[0].x
    settings = alws.Settings(sleep_samples=200)
    start = Mixture(jnp.zeros(2), jnp.array([-1.0, 1.0]))
    result = alws.fit(start, data, key=KEY, steps=50, settings=settings, progress=False)
    return {"result": result, "data": data}


def example(name, thing):
    """The code of an example: its lines after `>>>`, or its first piece in backticks."""
    text = (inspect.getdoc(thing) or "").partition("Example")[2]
    lines = re.findall(r"^\s*>>> (.*)$", text, re.MULTILINE)
    if lines:
        return "\n".join(lines)
    pieces = re.findall(r"`([^`]+)`", text)
    assert pieces, f"{name} has no example"
    return pieces[0].replace("\n", " ")


HAVE = {
    name: thing
    for name, thing in CALLED.items()
    if name not in SKETCHES and "Example" in (inspect.getdoc(thing) or "")
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in HAVE]
)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = NAMES | (
        {"result": SimpleNamespace(model=MODEL)} if name != "alws.standard_errors" else {}
    )
    given |= OWN.get(name, dict)()
    code = example(name, HAVE[name])
    exec(compile(code, name, "exec"), given)


def test_whatever_takes_arguments_has_an_example():
    said_elsewhere = {"estimates.Joint", "estimates.Cross", "estimates.Natural"}
    without = {n for n, v in CALLED.items() if "Example" not in (inspect.getdoc(v) or "")}
    without = {n for n in without if inspect.signature(CALLED[n]).parameters}
    assert without <= {f"alws.{name}" for name in said_elsewhere | {"kernels.Stationary"}}
