"""Malformed models, data, settings and files, thrown at every public function by hypothesis.

What comes back is either the right answer, that of the same thing in its plain form, or an error
that the library itself raises: with the rule, and never from the depths of another library.
"""

import datetime
import decimal
import io
import json
import re
import traceback
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from jax.scipy.stats import norm
from scipy import stats

import alws
from alws import (
    checkpoint,
    contrib,
    estimates,
    features,
    kernels,
    likelihoods,
    regressions,
    results,
)

KEY = jax.random.key(0, impl="rbg")
SIZE = 12
PLAIN = np.linspace(-2.0, 2.0, SIZE)
SOURCE = str(Path(alws.__file__).parent)


class Normal(eqx.Module):
    """z, x − mean − z ~ N(0, 1)."""

    mean: jax.Array

    def sample(self, key):
        z, noise = jax.random.normal(key, (2,))
        return z, self.mean + z + noise

    def log_prior(self, z):
        return norm.logpdf(z)

    def log_joint(self, z, x):
        return norm.logpdf(z) + norm.logpdf(x, self.mean + z)


class Coin(Normal):
    """z is 0 or 1."""

    def sample(self, key):
        z = jax.random.bernoulli(key).astype(float)
        return z, self.mean + z + jax.random.normal(key)

    def log_prior(self, z):
        return jnp.log(0.5)

    def log_joint(self, z, x):
        return jnp.log(0.5) + norm.logpdf(x, self.mean + z)


MODEL, COIN = Normal(jnp.array(0.5)), Coin(jnp.array(0.5))
FEW = {"sleep_samples": 20, "validation_samples": 4}


# What is thrown -----------------------------------------------------------------------------------


class Thing(NamedTuple):
    """Something to give for an argument, and the plain thing it stands for; None if for none."""

    name: str
    value: Any
    plain: Any = None


class Odd:
    """An object that is nothing in particular."""

    def __repr__(self):
        return "Odd()"


JUNK = [
    None,
    "text",
    "",
    b"bytes",
    1j,
    [],
    {},
    set(),
    Odd(),
    Odd,
    lambda: 0,
    [[]],
    {"a": Odd()},
    np.datetime64("2020-01-01"),
    np.array(["a", "b"]),
    datetime.date(2020, 1, 1),
    decimal.Decimal("1.5"),
    slice(3),
    ...,
    object,
    np.array([1 + 2j]),
    float("nan"),
]


def named(values) -> st.SearchStrategy[Thing]:
    return st.sampled_from([Thing(repr(v)[:60], v) for v in values])


def thing(strategy) -> st.SearchStrategy[Thing]:
    return strategy.map(lambda v: Thing(repr(v)[:60], v))


def junk(*allowed):
    """What is nothing that any argument asks for, but what this one allows."""
    fine = [repr(a) for a in allowed]
    return named([v for v in JUNK if repr(v) not in fine])


def count(least, *allowed):
    """What is no whole number of at least so many."""
    small = thing(st.integers(max_value=least - 1))
    broken = thing(st.floats(0.01, 1e6).filter(lambda x: x != int(x)))
    odd = named([True, False, np.inf, -np.inf, 2.0, np.float64(3), np.ones(2, int), [3], "3"])
    return st.one_of(small, broken, odd, junk(*allowed))


def amount(*allowed):
    """What is no positive number."""
    below = thing(st.floats(max_value=0.0, allow_nan=False))
    odd = named([True, np.inf, np.ones(2), [0.1], "0.1", np.nan, 1e400])
    return st.one_of(below, odd, junk(*allowed))


def flag(*allowed):
    return st.one_of(thing(st.integers()), named(["no", "yes", 0.0, [True]]), junk(*allowed))


def word(*known, also=()):
    return st.one_of(thing(st.text().filter(lambda s: s not in known)), junk(*also))


def not_a(*allowed):
    """What is of no type that is asked for."""
    return st.one_of(named([0, 1, 0.5, True, "linear", Normal, PLAIN]), junk(*allowed))


KEYS = st.one_of(
    named([0, 1.5, np.zeros(2), jax.random.split(jax.random.key(0)), np.uint32(3), "0"]),
    thing(st.integers()),
    junk(),
)


def broken(values: np.ndarray, index: int, value: Any, kind: Any = float) -> np.ndarray:
    copy = values.astype(kind)
    copy[index % len(copy)] = value
    return copy


positions = st.integers(0, SIZE - 1)


def wrong_data(i: int = 3, other: Callable[[list], Any] = lambda options: options[0]):
    """By name, data that cannot be fitted by a model of single numbers; `i` is where it is wrong.

    `other` chooses among some that are wrong in the same way.
    """
    dates = np.array(["2020-01-01"] * SIZE, "datetime64[D]")
    shapes = [(SIZE, 2), (SIZE, 1), (0,), (SIZE, 0), (2, 3, 4), ()]
    return {
        "NaN": broken(PLAIN, i, np.nan),
        "infinite": broken(PLAIN, i, other([np.inf, -np.inf])),
        "too large": broken(PLAIN, i, other([1e300, -1e300, 1e39, -1e40])),
        "masked": np.ma.masked_array(PLAIN, np.arange(SIZE) == i),
        "complex": broken(PLAIN, i, 1j, complex),
        "dates": dates,
        "differences of dates": dates - dates[0],
        "records": np.zeros(SIZE, [("a", float), ("b", int)]),
        "digits": PLAIN.astype(str),
        "bytes": PLAIN.astype("S5"),
        "objects": broken(PLAIN, i, other(OBJECTS), object),
        "list": [*PLAIN[:i], other(OBJECTS[:4]), *PLAIN[i:]],
        "ragged": [[1.0] * n for n in other([[1, 2, 3], [2, 1], [0, 1]])],
        "shape": np.ones(other(shapes)),
        "structure": other([{"x": PLAIN}, (PLAIN, PLAIN), {"x": {}}]),
        "unequal": {"x": PLAIN, "y": PLAIN[: i or 3]},
        "categories": pd.Series(["a", "b"] * 6, dtype="category"),
        "missing": pd.Series([*PLAIN[1:], None], dtype="Float64"),
    }


@st.composite
def bad_data(draw):
    """One of these."""
    found = wrong_data(draw(positions), lambda options: draw(st.sampled_from(options)))
    name = draw(st.sampled_from(sorted(found)))
    return Thing(f"{name} {found[name]!r:.80}", found[name])


OBJECTS = [None, "1", Odd(), 1j, np.ma.masked, decimal.Decimal(1), [1.0], PLAIN]


@st.composite
def same_data(draw):
    """The plain data in disguise."""
    kind = draw(st.integers(0, 11))
    value = [
        lambda: PLAIN.tolist(),
        lambda: tuple(PLAIN.tolist()),
        lambda: PLAIN.astype(object),
        lambda: PLAIN.astype(">f8"),
        lambda: np.repeat(PLAIN, 3)[::3],
        lambda: np.asfortranarray(PLAIN),
        lambda: PLAIN.astype(np.longdouble),
        lambda: pd.Series(PLAIN, index=np.arange(SIZE)[::-1]),
        lambda: pd.Series(PLAIN, dtype="Float64"),
        lambda: jnp.asarray(PLAIN),
        lambda: np.ma.masked_array(PLAIN, False),
        lambda: np.frombuffer(PLAIN.tobytes()),
    ][kind]()
    return Thing(f"disguise {kind}", value, PLAIN)


DATA = bad_data() | same_data() | junk()


# Models that are none -----------------------------------------------------------------------------


def model(name, *, log_joint=None, sample=None, **fields):
    """A model of single numbers with one method exchanged."""
    methods: dict[str, Any] = {}
    if log_joint is not None:
        methods["log_joint"] = log_joint
    if sample is not None:
        methods["sample"] = sample
    kind = type(name, (Normal,), methods)
    return Thing(name, kind(fields.get("mean", jnp.array(0.5))))


def numpy_draw(self, key):
    z, noise = np.random.default_rng().normal(size=2).astype(np.float32)
    return jnp.asarray(z), self.mean + z + noise


def fixed_draw(self, key):
    return Normal.sample(self, jax.random.key(3))


MODELS = [
    *[Thing(repr(v)[:60], v) for v in JUNK],
    Thing("its class", Normal),
    Thing("an empty module", eqx.nn.Identity()),
    Thing("a network", eqx.nn.Linear(2, 2, key=jax.random.key(0))),
    model("NaN parameter", mean=jnp.array(jnp.nan)),
    model("infinite parameter", mean=jnp.array(jnp.inf)),
    model("whole parameter", mean=jnp.array(3)),
    model("draws by NumPy", sample=numpy_draw),
    model("ignores its key", sample=fixed_draw),
    model("constant", sample=lambda self, key: (jnp.zeros(()), self.mean)),
    model("always NaN", sample=lambda self, key: (jnp.zeros(()), self.mean * jnp.nan)),
    model("only x", sample=lambda self, key: self.mean + jax.random.normal(key)),
    model("three things", sample=lambda self, key: (0.0, 0.0, 0.0)),
    model("returns None", sample=lambda self, key: None),
    model("takes no key", sample=lambda self: (0.0, 0.0)),
    model("z is text", sample=lambda self, key: ("z", jax.random.normal(key))),
    model("z is nothing", sample=lambda self, key: (None, jax.random.normal(key))),
    model("z is empty", sample=lambda self, key: (jnp.zeros(0), jax.random.normal(key))),
    model("sample that fails", sample=lambda self, key: {}["z"]),
    model("sample by float()", sample=lambda self, key: (0.0, float(jax.random.normal(key)))),
    model("complex parameter", mean=jnp.array(0.5 + 1j)),
    model("empty parameter", mean=jnp.zeros(0)),
    model("x of two numbers", sample=lambda self, key: (0.0, jax.random.normal(key, (2,)))),
    model("x in a dictionary", sample=lambda self, key: (0.0, {"x": jax.random.normal(key)})),
]
DENSITIES = [
    model("log joint of two", log_joint=lambda self, z, x: jnp.stack([z, x])),
    model("log joint None", log_joint=lambda self, z, x: None),
    model("log joint whole", log_joint=lambda self, z, x: jnp.zeros((), int)),
    model("log joint complex", log_joint=lambda self, z, x: z * 1j),
    model("log joint text", log_joint=lambda self, z, x: "high"),
    model("log joint NaN", log_joint=lambda self, z, x: jnp.log(-1 - x**2) + self.mean),
    model("log joint infinite", log_joint=lambda self, z, x: self.mean / jnp.zeros(())),
    model("log joint of two axes", log_joint=lambda self, z, x: norm.logpdf(x - z)[None]),
    model("log joint of 16 bits", log_joint=lambda self, z, x: norm.logpdf(x).astype(jnp.float16)),
    model("log joint by SciPy", log_joint=lambda self, z, x: stats.norm.logpdf(x)),
    model("log joint with if", log_joint=lambda self, z, x: norm.logpdf(x) if x > 0 else -x),
    model("log joint that fails", log_joint=lambda self, z, x: self.nothing),
    model("log joint of three", log_joint=lambda self, z, x, y: norm.logpdf(x)),
    model("log joint of one", log_joint=lambda self, z: norm.logpdf(z)),
]


# Public functions, a right call of each, and what else it may be given ----------------------------


class Call(NamedTuple):
    """A public function with arguments that are right, and strategies of those that are not."""

    name: str
    function: Callable[..., Any]
    right: dict[str, Any]
    wrong: dict[str, st.SearchStrategy[Thing]]


def set_by(name):
    """`prepare` with one of its settings exchanged."""
    return lambda **given: alws.prepare(
        MODEL, PLAIN, key=KEY, steps=2, settings=alws.Settings(**{**FEW, **given})
    )


@cache
def fitted():
    return alws.fit(MODEL, PLAIN, key=KEY, steps=1, settings=alws.Settings(**FEW))


def program(x=None, n=SIZE):
    mean = numpyro.param("mean", jnp.array(0.5))
    with numpyro.plate("data", n):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(mean + z, 1.0), obs=x)


def proposal(x):
    return dist.Normal(x / 2, 1.0)


COMMON = {"model": MODEL, "data": PLAIN, "key": KEY}
OF_X = {"model": MODEL, "x": PLAIN, "key": KEY}
SE = kernels.SquaredExponential()
MODELS_OF_A_FIT = st.sampled_from(MODELS + DENSITIES)
MODELS_AFTER = st.sampled_from([m for m in MODELS + DENSITIES if "parameter" not in m.name])
CALLBACKS = named([None, print, "stop", [3], [alws.EarlyStopping], {"a": print}, 3, [None]])
PRIORS = st.one_of(
    not_a(None, Normal, Odd, object).filter(lambda t: not callable(t.value)),
    named(
        [
            lambda m: "x",
            lambda m: None,
            lambda m: (1.0, 2.0),
            lambda m: 1 / 0,
            lambda: 0.0,
            lambda m: jnp.log(-1.0 - m.mean**2),
            lambda m: m.mean[None],
            lambda m: m.nothing,
            lambda m: 1j * m.mean,
            lambda m: 3,
            len,
        ]
    ),
)
SUPPORTS = st.one_of(
    named([3, "positive", Odd(), [dist.constraints.real] * 2, dist.constraints.boolean, Normal]),
    junk(None),
)
FUNCTIONS = st.one_of(
    not_a(Odd, object, Normal).filter(lambda t: not callable(t.value)),
    named(
        [
            lambda z: None,
            lambda z: "x",
            lambda z: 1 / 0,
            lambda: 0.0,
            lambda z: 1j * z,
            lambda z: jnp.log(z - 10),
            lambda z: {"fine": z, "not": jnp.where(z > 0, jnp.inf, z)},
            lambda z: z["a"],
        ]
    ),
)
FIT = {
    "key": KEYS,
    "data": DATA,
    "model": MODELS_OF_A_FIT,
    "steps": count(1, None),
    "settings": not_a(None),
    "conditions": bad_data() | junk(None),
    "log_prior": PRIORS,
    "batch_size": count(1, None) | thing(st.integers(SIZE + 1)),
}
MORE = {
    "callbacks": CALLBACKS,
    "checkpoint": named(
        [3, 1.5, b"x", "", "/", "/dev/null", "/proc/none/c.npz", "a\0b", Odd(), []]
    ),
    "resume": flag() | named([True]),
    "progress": flag(None),
    "starts": count(1) | thing(st.integers(2, 9)),
    "seconds": amount(),
}
TABLE = {
    "s": np.repeat([1, 2, 3], 4),
    "y": PLAIN,
    "a": PLAIN**2,
    "name": np.array(["x", "y", "z"] * 4),
    "day": np.arange(SIZE).astype("datetime64[D]"),
}
NAMES = named([None, 0, 1.5, ["s", "s"], ["nothing"], [None], b"s", {"s": 1}, Odd(), "", [["s"]]])


def wrong_tables():
    """Tables of which one column is not what it must be."""
    wrong = {
        "y": [PLAIN * np.inf, PLAIN * np.nan, PLAIN + 1j, PLAIN.astype(str), PLAIN[:3], 3.0],
        "a": [broken(PLAIN, 3, np.nan), PLAIN * 1e300, [None] * SIZE, PLAIN[:, None], [1, "b"] * 6],
        "s": [[1, "1"] * 6, [[1]] * SIZE, broken(PLAIN, 2, np.nan), [None] + [1] * (SIZE - 1)],
    }
    return [
        Thing(f"{name} {value!r:.60}", {**TABLE, name: value})
        for name, values in wrong.items()
        for value in values
    ]


ASKED = {"steps": 1, "settings": alws.Settings(**FEW)}
CALLS = [
    Call("prepare", alws.prepare, {**COMMON, **ASKED}, FIT),
    Call("fit", alws.fit, {**COMMON, **ASKED}, {**FIT, **MORE}),
    Call(
        "fit that chooses",
        alws.fit,
        COMMON,
        {
            **{n: s for n, s in FIT.items() if n not in ("steps", "settings", "data")},
            "data": bad_data() | junk(),
            **{n: MORE[n] for n in ("callbacks", "checkpoint", "progress", "seconds")},
            "starts": count(1),
        },
    ),
    Call(
        "Settings",
        set_by("settings"),
        {},
        {
            "regression": not_a(None) | named([SE, regressions.KernelRidge]),
            "estimate": not_a(None) | named([estimates.Joint, SE]),
            "optimiser": not_a(None) | named([optax.adam, optax.lbfgs(), optax.sgd, [0.1]]),
            "sleep_samples": count(10) | named([300_000, 10**7, 10**12]),
            "validation_samples": count(2) | named([10**9, 10**12]),
            "adapt": not_a() | named([alws.Adapt]),
            "theta_steps": count(1),
            "measure_every": count(1),
            "devices": named([0, -1, 2.5, "some", 10**6, Odd(), [1]]),
        },
    ),
    Call(
        "Adapt",
        alws.Adapt,
        {},
        {
            **{n: flag() for n in ("bandwidth", "ridge", "features")},
            "after": count(0),
            "every": count(1),
            "learning_rate": amount(),
            "clip_norm": amount().filter(lambda t: not is_infinite(t.value)),
            "criterion": word("objective", "gradient"),
            "directions": count(1),
        },
    ),
    Call(
        "draw",
        alws.draw,
        {"model": MODEL, "key": KEY, "number": 3},
        {"key": KEYS, "number": count(1), "model": named(JUNK)},
    ),
    Call(
        "expectation",
        alws.expectation,
        {**OF_X, "f": lambda z: z, "sleep_samples": 20},
        {
            "key": KEYS,
            "x": DATA,
            "f": FUNCTIONS,
            "model": st.sampled_from([m for m in MODELS if "parameter" not in m.name][:-2]).filter(
                lambda t: t.name not in ("constant", "ignores its key", "always NaN")
            ),
            "sleep_samples": count(10, None) | named([10**6]),
            "regression": not_a(None) | named([SE, regressions.KernelRidge]),
            "condition": named([3.0, PLAIN, "a", (1.0, 2.0)]),
        },
    ),
    Call(
        "posterior_mode",
        alws.posterior_mode,
        {**OF_X, "steps": 2, "starts": 2},
        {
            "key": KEYS,
            "x": DATA,
            "steps": count(1),
            "starts": count(1),
            "learning_rate": amount(),
            "start": bad_data() | junk(None),
            "support": SUPPORTS,
            "conditions": bad_data() | junk(None),
        },
    ),
    Call(
        "standard_errors",
        lambda **given: alws.standard_errors(**{"result": fitted(), **given}),
        {"data": PLAIN, "key": KEY},
        {
            "key": KEYS,
            "data": bad_data() | junk(),
            "result": not_a() | named([MODEL]),
            "information": word("observed", "expected"),
            "phases": count(3),
            "sleep_samples": count(10, None) | named([10**6]),
            "regression": not_a(None) | named([SE]),
            "conditions": bad_data() | junk(None),
        },
    ),
    Call(
        "importance_log_likelihood",
        results.importance_log_likelihood,
        {**OF_X, "proposal": proposal, "samples": 3},
        {
            "key": KEYS,
            "x": DATA,
            "samples": count(1),
            "proposal": st.one_of(
                not_a(Odd, object, Normal).filter(lambda t: not callable(t.value)),
                named([lambda x: 3, lambda x: None, lambda x: dist.Normal(jnp.zeros(2), 1.0)]),
            ),
        },
    ),
    Call(
        "enumerated_log_likelihood",
        results.enumerated_log_likelihood,
        {"model": COIN, "x": PLAIN, "values": np.arange(2.0)},
        {
            "model": named([MODEL, None, Normal]),
            "x": DATA,
            "values": bad_data()
            | junk()
            | named([[0, 1, 1], [1.0], [0.5, 1], np.arange(2)[:, None]]),
            "batch_size": count(1),
        },
    ),
    Call(
        "annealed_log_likelihood",
        results.annealed_log_likelihood,
        {**OF_X, "temperatures": 2, "chains": 2, "leapfrog": 1},
        {
            "key": KEYS,
            "x": DATA,
            "support": SUPPORTS,
            **{n: count(1) for n in ("temperatures", "chains", "leapfrog", "batch_size")},
        },
    ),
    Call(
        "enclosed_log_likelihood",
        results.enclosed_log_likelihood,
        {"model": MODEL, "key": KEY},
        {
            "key": KEYS,
            "support": SUPPORTS,
            **{n: count(1) for n in ("number", "temperatures", "chains", "leapfrog")},
        },
    ),
    Call("binary_codes", results.binary_codes, {}, {"bits": count(1) | thing(st.integers(21))}),
    Call(
        "sequences",
        lambda **given: alws.sequences(**{"data": [PLAIN, PLAIN[:5]], **given}),
        {},
        {
            "data": junk("", b"bytes").filter(lambda t: not isinstance(t.value, np.ndarray))
            | named(
                [
                    "abc",
                    3.0,
                    [None],
                    [3.0],
                    [[]],
                    [PLAIN, np.ones((3, 2))],
                    [PLAIN + 1j],
                    [PLAIN * np.nan],
                    [PLAIN * 1e300],
                    ["abc"],
                    [PLAIN.astype(str)],
                    [{"a": PLAIN}],
                ]
            ),
            "control": named(
                [[PLAIN], [PLAIN[:5], PLAIN], [PLAIN, PLAIN], 3, "ab", [[1.0, None], [2.0]], {}]
            )
            | named([[PLAIN.astype(str)] * 2, [np.ones((12, 2)), np.ones((5, 3))]]),
        },
    ),
    Call(
        "groups",
        alws.groups,
        {"table": TABLE, "by": "s", "outcome": "y", "covariates": "a"},
        {
            "table": junk() | st.sampled_from(wrong_tables()),
            "by": NAMES | named(["y", ()]),
            "outcome": NAMES | named(["s", "a", "name", "day", ()]),
            "covariates": NAMES.filter(lambda t: t.value != [] and t.value != "")
            | named(["y", "day"]),
            "levels": NAMES.filter(lambda t: t.value != []) | named(["s", "y"]),
        },
    ),
    Call(
        "from_numpyro",
        lambda program=program, **given: alws.from_numpyro(program, **given),
        {"observed": "x"},
        {
            "program": not_a(Odd, object, Normal).filter(lambda t: not callable(t.value))
            | named([lambda x=None: 1 / 0, lambda x=None: None]),
            "observed": named(["y", 3, ["x", 3], Odd(), {"x": 1}, ""]),
            "plate": named(["rows", 3, Odd(), ["data"], ""]),
            "conditions": named(["y", 3, [3], Odd()]),
            "point_estimates": flag(),
            "key": named([0, "a", np.zeros(2), Odd()]),
        },
    ),
    Call("natural_units", alws.natural_units, {}, {"optimiser": not_a() | named([optax.adam])}),
    Call(
        "EarlyStopping",
        alws.EarlyStopping,
        {},
        {
            "patience": count(1),
            "window": count(1),
            "least": named([-1.0, np.nan, "a", None, np.inf, 1j]),
            "score": named([3, 0.5, "score", PLAIN]),
        },
    ),
    Call(
        "MetricsFile",
        alws.MetricsFile,
        {"path": "metrics.jsonl"},
        {
            "path": named([3, None, 1.5, b"m", "/", "a\0b", Odd(), []]),
            "trace": named([3, "a", PLAIN]),
        },
    ),
    *[
        Call(
            kind.__name__,
            kind,
            {},
            {"features": not_a(None), "bandwidth": amount(None), "track": flag(None)},
        )
        for kind in (kernels.SquaredExponential, kernels.Matern12, kernels.Matern52)
    ],
    Call("DotProduct", kernels.DotProduct, {}, {"features": not_a(None), "reach": amount()}),
    Call("OnSets", kernels.OnSets, {}, {"kernel": not_a() | named([kernels.DotProduct()])}),
    Call("sum of kernels", lambda other: SE + other, {}, {"other": not_a()}),
    Call(
        "KernelRidge",
        regressions.KernelRidge,
        {"kernel": SE},
        {
            "kernel": not_a() | named([kernels.SquaredExponential]),
            "ridge": amount(),
            "intercept": flag(),
            "clip": flag(),
        },
    ),
    Call(
        "Nystrom",
        regressions.Nystrom,
        {"kernel": SE, "inducing": 5},
        {"kernel": not_a(), "ridge": amount(), "inducing": count(1), "selection": word("uniform")},
    ),
    Call(
        "RandomFeatures",
        regressions.RandomFeatures,
        {"kernel": SE, "frequencies": 5},
        {"kernel": not_a(), "ridge": amount(), "frequencies": count(1)},
    ),
    Call(
        "LinearReadout",
        regressions.LinearReadout,
        {"features": features.Identity()},
        {"features": not_a() | named([features.Identity]), "ridge": amount(), "reach": amount()},
    ),
    Call(
        "ConjugateGradients",
        regressions.ConjugateGradients,
        {"kernel": SE},
        {"kernel": not_a(), "ridge": amount()},
    ),
    Call(
        "AsPublished",
        regressions.AsPublished,
        {"projections": 5},
        {"ridge": amount(), "projections": count(1, None), "batch_norm": flag()},
    ),
    Call(
        "Linear.random",
        features.Linear.random,
        {"key": KEY, "inputs": 2, "outputs": 3},
        {"key": KEYS, "inputs": count(1), "outputs": count(1), "scale": amount(None)},
    ),
    Call("Chain", features.Chain, {}, {"maps": not_a([], "", b"bytes") | named([(3,), (SE,)])}),
    Call(
        "Network",
        features.Network,
        {},
        {"network": not_a(Odd, object, Normal).filter(lambda t: not callable(t.value))},
    ),
    Call(
        "Centred",
        estimates.Centred,
        {"estimate": estimates.Joint(), "points": 5},
        {"estimate": not_a() | named([estimates.Joint]), "points": count(2)},
    ),
    Call(
        "Reweighted",
        contrib.Reweighted,
        {"kernel": SE, "by": contrib.MeanMatching()},
        {"kernel": not_a(), "by": not_a(), "ridge": amount(), "intercept": flag()},
    ),
    Call(
        "MeanMatching",
        contrib.MeanMatching,
        {},
        {
            "most": amount().filter(lambda t: not is_infinite(t.value)),
            "slack": named([-0.1, 1.0, "a", None]),
            "iterations": count(1),
        },
    ),
    Call(
        "DensityRatio",
        contrib.DensityRatio,
        {},
        {"features": count(2), "ridge": amount(), "iterations": count(1)},
    ),
    Call("Importance", contrib.Importance, {}, {"normalised": flag()}),
    Call(
        "Gaussian",
        likelihoods.Gaussian,
        {"mean": jnp.zeros(3), "scale": 1.0},
        {
            "mean": named([None, "a", 1j, [None], Odd(), np.array(["a"])]),
            "scale": named([None, "a", 1j, jnp.ones(2), jnp.ones((3, 3)), Odd()]),
        },
    ),
    Call(
        "Gamma",
        likelihoods.Gamma,
        {"concentration": jnp.ones(3), "rate": 1.0},
        {
            "concentration": named([None, "a", 1j, jnp.ones(2), Odd()]).filter(
                lambda t: not isinstance(t.value, jax.Array)
            ),
            "rate": named([None, "a", 1j, jnp.ones(2), Odd()]),
        },
    ),
    *[
        Call(kind.__name__, lambda value, kind=kind: kind(value), {}, {"value": wrong})
        for kind, wrong in (
            (likelihoods.Bernoulli, named([None, "a", 1j, [None], Odd()])),
            (likelihoods.Categorical, named([None, "a", 1j, 3.0, Odd()])),
            (likelihoods.Poisson, named([None, "a", 1j, [None], Odd()])),
            (likelihoods.Product, not_a(None, [], {}, [[]], "") | named([(3,), {"a": 1.0}])),
        )
    ],
]


def is_infinite(value):
    return isinstance(value, float) and value in (np.inf, 1e400)


@st.composite
def cases(draw):
    """A call with one argument exchanged."""
    call = draw(st.sampled_from(CALLS))
    name = draw(st.sampled_from(sorted(call.wrong)))
    return call, name, draw(call.wrong[name])


# What counts as an answer -------------------------------------------------------------------------


RULES = ("must", "should", "cannot", "has no", "is not", "have the", "needs", "asks for", "holds")
DAMAGED = ("is damaged", "cut short", "lacks", "is encrypted", "has only")
"""What a message must have, one of them."""


def is_clear(error: Exception) -> bool:
    """Whether the library itself raised it, as what it raises, with a rule."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    here = last.filename.startswith(SOURCE) and (last.line or "").startswith("raise")
    kinds = (ValueError, TypeError, FileExistsError)
    rule = any(part in str(error) for part in RULES + DAMAGED)
    return isinstance(error, kinds) and here and rule


def arrays(answer: Any) -> list[np.ndarray]:
    """The numbers of an answer; of a fit that was prepared, its data."""
    if isinstance(answer, alws.Prepared):
        answer = answer.problem.data
    if isinstance(answer, alws.Result):
        answer = answer.model
    return [np.asarray(leaf) for leaf in jax.tree.leaves(answer) if eqx.is_array(leaf)]


@cache
def right_answer(name: str) -> list[np.ndarray]:
    call = next(call for call in CALLS if call.name == name)
    return arrays(call.function(**call.right))


def attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a call gives, or the error it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call(), None
        except Exception as error:
            return None, error


def throw(call: Call, name: str, given: Thing) -> None:
    what = f"{call.name}({name}={given.name})"
    answer, error = attempt(lambda: call.function(**{**call.right, name: given.value}))
    if error is not None:
        assert is_clear(error), f"{what} raised {type(error).__name__}: {error}"
        assert given.plain is None, f"{what} was refused: {error}"
        return
    assert given.plain is not None, f"{what} was taken, and gave {answer!r:.300}"
    for found, wanted in zip(arrays(answer), right_answer(call.name), strict=True):
        np.testing.assert_array_equal(found, wanted, err_msg=what)


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch, tmp_path):
    """Without the types that the tests check and users do not, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def run(number: int, strategy: Any, test: Callable[[Any], Any], **options: Any) -> set[str]:
    """Run a test on so many cases of a strategy; their names."""
    seen: set[str] = set()

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **options,
    )
    @given(strategy)
    def one(case):
        seen.add(test(case))

    one()
    return seen


OF_DATA = [
    (call, name)
    for call in CALLS
    for name in ("data", "x", "start", "values", "conditions")
    if name in call.wrong and call.name != "sequences"
]


@pytest.mark.parametrize(("call", "name"), OF_DATA, ids=lambda a: getattr(a, "name", a))
def test_every_kind_of_wrong_data_is_refused_by_every_function(call, name):
    for kind, value in wrong_data().items():
        throw(call, name, Thing(kind, value))


@pytest.mark.parametrize("given", MODELS + DENSITIES, ids=lambda g: re.sub(" at 0x.*", "", g.name))
def test_what_is_no_model_is_refused_by_every_fit(given):
    for call in CALLS:
        if call.name in ("prepare", "fit", "fit that chooses"):
            throw(call, "model", given)


def outside(make):
    """A model of two states whose likelihood is given, such as `Bernoulli`."""

    class Two(eqx.Module):
        a: jax.Array

        def sample_latent(self, key):
            return jax.random.bernoulli(key).astype(int)

        def log_prior(self, z):
            return jnp.log(0.5)

        def likelihood(self, z):
            return make(self.a + z)

    return Two(jnp.array(0.1))


@pytest.mark.parametrize(
    ("make", "bad"),
    [
        (likelihoods.Bernoulli, (2.0, 0.5, -1.0)),
        (lambda a: likelihoods.Categorical(jnp.stack([a, 0 * a, 0 * a])), (7, -1, 3)),
        (likelihoods.Poisson, (0.5, -1.0)),
        (lambda a: likelihoods.Gamma(jnp.exp(a), 1.0), (0.0, -1.0)),
        (lambda a: likelihoods.LogNormal(a, 1.0), (0.0, -1.0)),
    ],
    ids=["Bernoulli", "Categorical", "Poisson", "Gamma", "LogNormal"],
)
def test_values_outside_the_support_are_refused_by_every_function(make, bad):
    two = outside(make)
    for value in bad:
        x = np.array([1, value, 1, 1, 2 if make is likelihoods.Poisson else 1])
        for call in (
            lambda x: alws.fit(two, x, key=jax.random.key(0)),
            lambda x: alws.fit(two, x, key=jax.random.key(0), **ASKED),
            lambda x: alws.expectation(two, lambda z: z, x, key=jax.random.key(0)),
            lambda x: results.enumerated_log_likelihood(two, x, np.arange(2)),
        ):
            with pytest.raises(ValueError, match=r"must lie where .* first of them at index 1"):
                call(x)


def test_a_key_of_a_kind_that_a_distribution_cannot_use_is_refused():
    with pytest.raises(ValueError, match=r"with the key given, .* Use `jax\.random\.key\(0\)`"):
        alws.fit(outside(likelihoods.Poisson), np.ones(5), key=KEY)


def test_an_expectation_of_what_is_not_finite_names_the_leaf():
    def f(z):
        return {"fine": z, "broken": jnp.log(z)}

    with pytest.raises(ValueError, match=r"f\(z\)\['broken'\] is not on \d+ of them"):
        alws.expectation(MODEL, f, PLAIN, key=KEY, sleep_samples=20)


def thrown(case) -> str:
    call, name, given = case
    throw(call, name, given)
    return f"{call.name}({name}={given.name})"


# Files --------------------------------------------------------------------------------------------


class Content(bytes):
    """A file's content, whose repr is short: hypothesis prints what it draws from."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes"


@cache
def written(folder: Path, chosen: bool) -> tuple[bytes, list[np.ndarray]]:
    """A checkpoint's content, and what going on from it gives: of two steps, or of a climb."""
    path = folder / "written.npz"
    result = go_on(path, chosen, resume=False)
    return Content(path.read_bytes()), arrays(result)


def go_on(path: Path, chosen: bool, resume: bool = True) -> alws.Result:
    asked = {} if chosen else {"steps": 2, "settings": alws.Settings(**FEW)}
    return alws.fit(MODEL, PLAIN, key=KEY, checkpoint=path, resume=resume, **asked)


@st.composite
def damage(draw, content: bytes):
    """A checkpoint with some of its bytes changed, cut out or put in, and how."""
    kind = draw(st.sampled_from(["flip", "cut", "drop", "insert", "other"]))
    at = draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        changed = bytes([content[at] ^ (1 << draw(st.integers(0, 7)))])
        return f"flip {at} {changed}", content[:at] + changed + content[at + 1 :]
    if kind == "cut":
        return f"cut {at}", content[:at]
    size = draw(st.integers(1, 50))
    if kind == "drop":
        return f"drop {at} {size}", content[:at] + content[at + size :]
    put = draw(st.binary(min_size=1, max_size=60))
    if kind == "insert":
        return f"insert {at} {put}", content[:at] + put + content[at:]
    return f"other {put}", put


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def places(header: Any, path: tuple = ()) -> list[tuple]:
    """Where in a header something stands that is read on going on."""
    inside = sorted(header) if isinstance(header, dict) else []
    return [path] * bool(path) + [p for k in inside for p in places(header[k], (*path, k))]


@st.composite
def headers(draw, content: bytes):
    """A checkpoint whose header says something else in one place, and what."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(members[checkpoint.HEADER])
    place = draw(st.sampled_from(places(header)))
    inner = header
    for part in place[:-1]:
        inner = inner[part]
    if draw(st.booleans()):
        inner[place[-1]] = draw(JSON)
    else:
        del inner[place[-1]]
    members[checkpoint.HEADER] = json.dumps(header).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return f"{place} {inner.get(place[-1], 'deleted')!r:.50}", buffer.getvalue()


def resumed(case, wanted: list[np.ndarray], folder: Path, chosen: bool) -> str:
    """Go on from a damaged checkpoint: it is refused and left alone, or nothing is lost."""
    name, content = case
    path = folder / "damaged.npz"
    path.write_bytes(content)
    result, error = attempt(lambda: go_on(path, chosen))
    if error is not None:
        assert isinstance(error, alws.CheckpointError), f"{name}: {error!r}"
        assert is_clear(error), f"{name}: {error}"
        assert path.read_bytes() == content, name
        return name
    for found, right in zip(arrays(result), wanted, strict=True):
        np.testing.assert_array_equal(found, right, err_msg=name)
    return name


@pytest.mark.parametrize("chosen", [False, True], ids=["steps", "climb"])
def test_damaged_checkpoints_are_refused_or_lose_nothing(chosen, tmp_path):
    content, wanted = written(tmp_path, chosen)
    strategy = damage(content)
    go = run(40, strategy, lambda c: resumed(c, wanted, tmp_path, chosen), derandomize=True)
    assert len(go) >= 30


@pytest.mark.parametrize("chosen", [False, True], ids=["steps", "climb"])
def test_headers_that_say_something_else_are_refused_or_lose_nothing(chosen, tmp_path):
    content, wanted = written(tmp_path, chosen)
    strategy = headers(content)
    go = run(40, strategy, lambda c: resumed(c, wanted, tmp_path, chosen), derandomize=True)
    assert len(go) >= 30


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [False, True], ids=["steps", "climb"])
@pytest.mark.parametrize("strategy", [damage, headers])
def test_much_damage_is_refused_or_loses_nothing(chosen, strategy, tmp_path):
    content, wanted = written(tmp_path, chosen)
    go = run(1000, strategy(content), lambda c: resumed(c, wanted, tmp_path, chosen))
    assert len(go) >= 500


def test_malformed_calls_are_refused_with_a_rule():
    assert len(run(700, cases(), thrown, derandomize=True)) >= 400


@pytest.mark.slow
def test_many_malformed_calls_are_refused_with_a_rule():
    assert len(run(10_000, cases(), thrown)) >= 3000
