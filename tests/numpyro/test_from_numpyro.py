"""NumPyro programs as models: the same density and draws as NumPyro's, the same maximum, errors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from exact import PROBLEMS, maximum_likelihood, mean_log_likelihood
from exact.programs import PROGRAMS, exact
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints
from numpyro.infer import Predictive
from numpyro.infer.util import log_density
from numpyro.primitives import mutable

import alws

KEY = jax.random.key(0, impl="rbg")
# Three ways to call a program: as it is, with data, and with a plate of size one.
ARGUMENTS = {
    "gaussian_mixture": {},
    "sigmoid_belief": {"x": np.zeros((800, 8))},
    "hidden_markov": {"n": 1},
}


def as_model(name, start):
    return alws.from_numpyro(PROGRAMS[name](start), observed="x", key=KEY, **ARGUMENTS[name])


@pytest.fixture(scope="module")
def problems():
    return {name: PROBLEMS[name](jax.random.key(0)) for name in PROGRAMS}


@pytest.fixture(scope="module")
def truths(problems):
    """The true models, moved so that no logit is 0, where NumPyro's Bernoulli is not smooth."""
    return {name: jax.tree.map(lambda a: a + 0.01, p.truth) for name, p in problems.items()}


@pytest.fixture(scope="module")
def models(truths):
    return {name: as_model(name, truth) for name, truth in truths.items()}


# The same density, the same draws ---------------------------------------------------------------


@eqx.filter_jit
def draws_with_scores(model):
    """4000 draws, log p(z, x) of each and its gradient in theta."""

    def one(key):
        z, x = model.sample(key)
        value, gradient = eqx.filter_value_and_grad(lambda m: m.log_joint(z, x))(model)
        return z, x, value, ravel_pytree(gradient)[0]

    return jax.vmap(one)(jax.random.split(KEY, 4000))


@pytest.fixture(scope="module")
def draws(models):
    return {name: jax.device_get(draws_with_scores(model)) for name, model in models.items()}


def program_layout(name, z, x):
    return (z.T, x.T) if name == "hidden_markov" else (z, x)


@pytest.mark.parametrize("name", PROGRAMS)
def test_joint_density_is_that_of_the_exact_model_and_of_numpyro(truths, models, draws, name):
    """log p(z, x) of each example is the exact one, and their sum is NumPyro's of the program."""
    z, x, ours, _ = (jax.tree.map(lambda a: a[:500], leaf) for leaf in draws[name])
    truth = truths[name]
    theirs = jax.jit(jax.vmap(truth.log_joint))(z["z"], x.astype(np.float32))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)

    states, data = program_layout(name, z["z"], x)
    program, parameters = PROGRAMS[name](truth), models[name].parameters()

    @jax.jit
    def total(values):
        return log_density(program, (), {"x": data, "n": 500}, values)[0]

    np.testing.assert_allclose(ours.sum(), total(parameters | {"z": states}), rtol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_follow_the_density(draws, name):
    """The score has mean zero on the model's own draws."""
    scores = draws[name][3].astype(float)
    error = scores.std(axis=0) / np.sqrt(len(scores))
    assert (error > 0).all()
    assert (np.abs(scores.mean(axis=0)) < 4.5 * error).all()


@pytest.mark.parametrize("name", PROGRAMS)
def test_parameters_go_back_into_the_program(problems, truths, models, draws, name):
    """The parameters are those of the truth, and Predictive draws from it with them."""
    model = models[name]
    for ours, theirs in zip(
        jax.tree.leaves(as_probabilities(exact(name, model.parameters()))),
        jax.tree.leaves(as_probabilities(truths[name])),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    program = PROGRAMS[name](problems[name].start)
    predictive = Predictive(program, params=model.parameters(), num_samples=2)
    drawn = np.asarray(predictive(jax.random.key(2))["x"], float)
    x = np.concatenate([program_layout(name, sample, sample)[1] for sample in drawn])
    expected = draws[name][1].astype(float)
    error = np.sqrt(x.var(axis=0) / len(x) + expected.var(axis=0) / len(expected))
    assert (np.abs(x.mean(axis=0) - expected.mean(axis=0)) < 4.5 * error).all()


def as_probabilities(model):
    """The model with logits, known up to a constant, as probabilities."""
    logits = [field for field in ("logits", "initial", "transition") if hasattr(model, field)]
    return eqx.tree_at(
        lambda m: [getattr(m, field) for field in logits],
        model,
        [jax.nn.softmax(getattr(model, field)) for field in logits],
    )


# The same maximum -------------------------------------------------------------------------------


def fitted(name, way, steps, problem, **more):
    """The exact model at the parameters of a fit from the problem's start."""
    start = problem.start if way == "by hand" else as_model(name, problem.start)
    model = alws.fit(start, problem.data, steps=steps, progress=False, **more).model
    return model if way == "by hand" else exact(name, model.parameters())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_short_fit_goes_more_than_half_of_the_way(problems, name):
    """From the start's exact likelihood to that of the truth, which the maximum exceeds."""
    problem = problems[name]
    settings = alws.Settings(sleep_samples=300, validation_samples=50)
    model = fitted(name, "program", 60, problem, key=KEY, settings=settings)
    start, truth, reached = (
        mean_log_likelihood(m, problem.data) for m in (problem.start, problem.truth, model)
    )
    assert reached > (start + truth) / 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("way", ["by hand", "program"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_default_fit_reaches_the_maximum(problems, name, way, seed):
    problem = problems[name]
    model = fitted(name, way, 4000, problem, key=jax.random.key(seed))
    best = maximum_likelihood(problem.truth, problem.data, problem.start)[1]
    gap = best - mean_log_likelihood(model, problem.data)
    assert gap < 0.02, f"{gap:.4f} nats per data point below the maximum"


# What programs may look like --------------------------------------------------------------------


def positive(name="scale", value=1.5):
    return numpyro.param(name, value, constraint=constraints.positive)


def check_against_numpyro(model, program, arguments, in_program=lambda v: v, *conditions):
    """The sum of log p(z, x) over 6 draws is NumPyro's density of the program for 6 examples."""

    @jax.jit
    def densities():
        z, x = jax.vmap(model.sample)(jax.random.split(KEY, 6), *conditions)
        by_name = z | (x if isinstance(x, dict) else {model.program.observed[0]: x})
        values = {name: in_program(value) for name, value in by_name.items()}
        total, _ = log_density(program, (), arguments, model.parameters() | values)
        return jax.vmap(model.log_joint)(z, x, *conditions), model.log_prior(), total

    ours, prior, total = densities()
    assert ours.shape == (6,)
    np.testing.assert_allclose(ours.sum() + prior, total, rtol=1e-5)


def loop(n=6):
    """A hidden chain as a Python loop, with a plate of features inside that of sequences."""
    stay = numpyro.param("stay", 0.7, constraint=constraints.unit_interval)
    sequences = numpyro.plate("sequences", n, dim=-2)
    z = 1
    for t in range(2):
        with sequences:
            z = numpyro.sample(f"z_{t}", dist.Bernoulli(jnp.where(z == 1, stay, 1 - stay)))
            with numpyro.plate("features", 2, dim=-1):
                numpyro.sample(f"x_{t}", dist.Normal(1.0 * z, positive()))


def test_python_loop_and_nested_plates():
    observed = ["x_0", "x_1"]
    with pytest.raises(alws.UnsupportedProgram, match=r"'features', 'sequences'.*`plate="):
        alws.from_numpyro(loop, observed=observed)
    model = alws.from_numpyro(loop, observed=observed, plate="sequences", key=KEY)
    z, x = model.sample(KEY)
    assert z["z_0"].shape == (1,)
    assert x["x_0"].shape == (2,)
    check_against_numpyro(model, loop, {"n": 6})


def walk(y=None, n=6):
    """A random walk by `scan`, its first step before; data as [time, walk]."""
    width = positive()
    with numpyro.plate("walks", n):
        first = numpyro.sample("first", dist.Normal(0, width))

    def step(z, y):
        with numpyro.plate("walks", n):
            z = numpyro.sample("z", dist.Normal(z, width))
            numpyro.sample("y", dist.Normal(z, 0.5), obs=y)
        return z, None

    scan(step, first, y, length=3)


def test_scan_with_a_plate_of_any_size_and_data_with_time_first():
    data = np.arange(18.0).reshape(3, 6)
    model = alws.from_numpyro(walk, data, observed="y", key=KEY)
    np.testing.assert_array_equal(model.examples(data), data.T)
    check_against_numpyro(model, walk, {"n": 6}, lambda v: v.T)


def subsampled(x=None, n=6, part=2):
    """A data plate that is subsampled, as for stochastic variational inference."""
    width = positive()
    with numpyro.plate("data", n, subsample_size=part) as rows:
        z = numpyro.sample("z", dist.Gamma(width, 1.0))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=None if x is None else x[rows])


def test_subsampled_data_plate():
    model = alws.from_numpyro(subsampled, jnp.arange(6.0), key=KEY)
    assert model.program.observed == ("x",)
    check_against_numpyro(model, subsampled, {"n": 6, "part": 6})


def regression(features, y=None):
    """Linear regression with an offset of its own for each row."""
    slope = numpyro.param("slope", jnp.array([0.3, -0.2]))
    with numpyro.plate("rows", features.shape[0]):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(features @ slope + z, 1.0), obs=y)


def test_regressors_are_conditions():
    features = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    with pytest.raises(alws.UnsupportedProgram, match=r"site 'y' has 6 entries.*`conditions`"):
        alws.from_numpyro(regression, features, observed="y")
    model = alws.from_numpyro(regression, features, observed="y", conditions="features", key=KEY)
    with pytest.raises(TypeError, match="Pass `conditions=`"):
        alws.fit(model, np.zeros(6), key=KEY, steps=1)
    arguments = {"features": features}
    check_against_numpyro(model, regression, arguments, lambda v: v, arguments)


def test_one_regression_serves_all_rows_of_a_program():
    """Least squares is maximum likelihood here, as y | features is normal with one variance."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 2)).astype(np.float32)
    y = features @ np.array([1.0, -2.0]) + 1.4 * rng.normal(size=40)
    model = alws.from_numpyro(regression, features, observed="y", conditions="features", key=KEY)

    def products(pair):
        entries = jnp.append(pair[0]["features"], pair[1])
        return jnp.append(jnp.outer(entries, entries).ravel(), entries)

    settings = alws.Settings(
        alws.regressions.LinearReadout(alws.features.Network(products), ridge=1e-3),
        optimiser=optax.adam(optax.cosine_decay_schedule(0.2, 100)),
        sleep_samples=200,
        adapt=alws.ALWS_F,
    )
    result = alws.fit(
        model, y, key=KEY, steps=100, settings=settings, conditions={"features": features}
    )
    exact = np.linalg.lstsq(features, y)[0]
    np.testing.assert_allclose(result.model.parameters()["slope"], exact, atol=0.15)


def bayesian(x=None, n=6):
    """Priors instead of parameters."""
    width = numpyro.sample("width", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("components", 2):
        means = numpyro.sample("means", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", n):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("x", dist.Normal(means[z], width), obs=x)


def test_point_estimates_of_sites_outside_the_plate():
    with pytest.raises(alws.UnsupportedProgram, match="'width' is unobserved and outside the data"):
        alws.from_numpyro(bayesian, observed="x")
    model = alws.from_numpyro(bayesian, observed="x", point_estimates=True, key=KEY)
    found = model.parameters()
    prior = dist.LogNormal(0, 1).log_prob(found["width"])
    prior += dist.Normal(0, 10).log_prob(found["means"]).sum()
    np.testing.assert_allclose(model.log_prior(), prior, rtol=1e-5)
    check_against_numpyro(model, bayesian, {"n": 6})


# What is refused, by name -----------------------------------------------------------------------


def plain(before=lambda: None, inside=lambda z: None, z=None, x=None, n=6, **plate):
    """A program with something odd before its plate or in it."""

    def program(rows=None):
        width = positive()
        extra = before()
        with numpyro.plate("data", n, **plate) as index:
            state = numpyro.sample("z", dist.Normal(0, width) if z is None else z(extra))
            inside(state)
            numpyro.sample("x", dist.Normal(state, 1) if x is None else x(state, index), obs=rows)

    return program


def in_scan():
    scan(lambda c, _: (c + positive("late"), None), 0.0, None, length=2)


def hand_sized():
    """A scan that starts from an array of the plate's size, made by hand."""

    def step(z, _):
        with numpyro.plate("data", 6):
            z = numpyro.sample("h", dist.Normal(0, 1))
        return z, None

    scan(step, jnp.zeros(6), None, length=2)


def without_plate():
    positive()
    z = numpyro.sample("z", dist.Normal(0, 1))
    numpyro.sample("x", dist.Normal(z, 1))


def without_parameters():
    with numpyro.plate("data", 6):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("x", dist.Normal(z, 1))


def masked(z):
    with handlers.mask(mask=jnp.zeros(1, bool)):
        numpyro.sample("w", dist.Normal(0, 1))


def masked_event(z):
    numpyro.sample("w", dist.Normal(0, 1).mask(False))


def rescaled(z):
    with handlers.scale(scale=0.5):
        numpyro.sample("w", dist.Normal(z, 1))


def some_features():
    with numpyro.plate("features", 4, subsample_size=2):
        pass


def partly_observed(z):
    numpyro.sample("y", dist.Normal(z, 1), obs=jnp.zeros(6), obs_mask=jnp.arange(6) < 3)


def observed_in_another_plate():
    with numpyro.plate("other", 3):
        numpyro.sample("y", dist.Normal(0, positive()))


def discrete():
    numpyro.sample("k", dist.Categorical(jnp.ones(3) / 3))


TABLE = np.arange(6.0)
REFUSED = {
    "factor": (plain(inside=lambda z: numpyro.factor("bonus", z)), {}, "factor site 'bonus'"),
    "mask": (plain(inside=masked), {}, "site 'w' is masked"),
    "masked distribution": (plain(inside=masked_event), {}, "site 'w' is masked"),
    "scale": (plain(inside=rescaled), {}, "site 'w' is rescaled"),
    "improper": (
        plain(inside=lambda z: numpyro.sample("b", dist.ImproperUniform(constraints.real, (), ()))),
        {},
        "site 'b' cannot be drawn",
    ),
    "mutable": (plain(before=lambda: mutable("s", {"v": 1.0})), {}, "mutable site 's'"),
    "global discrete": (plain(before=discrete), {"point_estimates": True}, "'k' is discrete"),
    "no such site": (plain(), {"observed": "y"}, r"site 'y' is in `observed`.*\['z', 'x'\]"),
    "nothing observed": (plain(), {"observed": None}, "no site is observed"),
    "no plate": (without_plate, {}, "observed site 'x' is inside no plate"),
    "another plate": (
        plain(before=observed_in_another_plate),
        {"observed": ["x", "y"]},
        "must share one plate.*'other'",
    ),
    "wrong plate": (plain(), {"plate": "people"}, "'x' is not inside the data plate 'people'"),
    "obs not named": (
        plain(inside=lambda z: numpyro.sample("y", dist.Normal(z, 1), obs=jnp.zeros(6))),
        {},
        "site 'y' has `obs` but is not in `observed`",
    ),
    "obs_mask": (
        plain(inside=partly_observed),
        {"observed": ["x", "y"]},
        "site 'y_observed' is masked",
    ),
    "no parameters": (without_parameters, {}, "no `param` site"),
    "two sites of one name": (
        plain(inside=lambda z: numpyro.sample("z", dist.Normal(0, 1))),
        {},
        "site 'z' occurs twice",
    ),
    "param and sample of one name": (
        plain(before=lambda: positive("z")),
        {},
        "site 'z' occurs twice, as param and as sample",
    ),
    "param for each example": (
        plain(inside=lambda z: numpyro.param("local", jnp.zeros(6), event_dim=0)),
        {},
        "param site 'local' has a value for each example",
    ),
    "param in scan": (plain(before=in_scan), {}, "param site 'late' is inside `scan`"),
    "whole param": (plain(before=lambda: numpyro.param("w", 1)), {}, "'w' must start at floating"),
    "param without start": (plain(before=lambda: numpyro.param("w")), {}, "'w' has no start"),
    "start outside": (plain(before=lambda: positive("w", -1.0)), {}, "'w' starts outside .*"),
    "row by index": (
        plain(x=lambda z, index: dist.Normal(z + jnp.asarray(TABLE)[index], 1)),
        {},
        "site 'x' has a density that depends on which example",
    ),
    "mixed examples": (
        plain(x=lambda z, index: dist.Normal(z + z.mean(), 1)),
        {},
        "site 'x' has a density that depends on",
    ),
    "branch": (
        plain(x=lambda z, index: dist.Normal(1 if z.sum() > 0 else 0, 1)),
        {},
        "after its site 'z': its Python code branches",
    ),
    "sized by hand": (plain(before=hand_sized), {}, "(?s)fails.*'data' cut to one.*n=1"),
    "subsampled features": (plain(before=some_features), {}, "plate 'features' takes 2 of 4"),
    "no such argument": (plain(), {"conditions": "age"}, "'age' is not among them"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_site_and_the_reason(case):
    program, options, message = REFUSED[case]
    with pytest.raises(alws.UnsupportedProgram, match=message):
        alws.from_numpyro(program, **{"observed": "x", "key": KEY} | options)
