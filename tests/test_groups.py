"""Tables as groups of rows: what comes out, what is refused, and that padding counts nothing."""

import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.scipy.stats import norm

import alws
from alws import features, kernels, likelihoods
from alws.validation import check_discrete, draws_of_each

TABLE = {
    "herd": ["b", "a", "b", "c", "a", "b"],
    "sick": [1, 0, 2, None, 4, 3],
    "size": [5, 6, 7, 8, 9, 10],
    "arm": ["new", "old", "old", "new", "new", "third"],
    "age": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    "weight": [1.0, np.nan, 3.0, 4.0, 5.0, 6.0],
}


def grouped(table=None, **changes):
    table = TABLE if table is None else table
    given = {"by": "herd", "outcome": ["sick", "weight"], "covariates": ["size", "arm", "age"]}
    return alws.groups(table, **{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"by": 0}, TypeError, r"`by` must be the name of a column .* got 0. .*rename"),
        ({"covariates": None}, TypeError, "`covariates` must be the name .* got None"),
        ({"covariates": ["size", "sick"]}, ValueError, r"no covariate .* got \['sick'\] as both"),
        ({"table": {**TABLE, "herd": ["1", 1] * 3}}, ValueError, "one kind, got others and text"),
        ({"table": {**TABLE, "herd": [[1], [1, 2]] * 3}}, ValueError, "must be one value a row"),
        (
            {"table": pd.DataFrame({**TABLE, "herd": [[1], [1, 2]] * 3})},
            TypeError,
            r"text or numbers, got \[1\]",
        ),
        ({"table": {**TABLE, "size": [1e300] * 6}}, ValueError, "must have room in float32"),
    ],
)
def test_columns_have_names_and_one_part_each(changes, error, message):
    with pytest.raises(error, match=message):
        grouped(**changes)


def test_rows_take_a_distribution_for_each_outcome():
    rows = grouped().conditions
    with pytest.raises(TypeError, match=r"one for the outcome or a dictionary .* got <numpyro"):
        rows.sample(dist.Normal(0.0, 1.0), jax.random.key(0))


def test_the_page_on_grouped_data_runs_as_written(monkeypatch):
    """But for the climb: the fit is prepared, with all its checks."""
    page = Path(__file__).parents[1] / "docs" / "grouped-data.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    prepared = []

    def prepare(model, data, **arguments):
        prepared.append(alws.prepare(model, data, steps=1, **arguments))
        return SimpleNamespace(model=model)

    monkeypatch.setattr(alws, "fit", prepare)
    found = {"__name__": "page", "print": lambda *shown: None}
    for block in blocks:
        exec(block, found)
    model = found["ZeroInflated"](jnp.zeros(3), jnp.zeros(()), jnp.zeros(()))
    given = {"conditions": found["grouped"].conditions, "key": found["key"]}
    prepare(model, found["grouped"].data, **given)
    assert [p.problem.size for p in prepared] == [4, 4]
    assert found["grouped"].coefficients == ("week", "arm[placebo]")


def check(found):
    assert found.names == ("b", "a", "c")
    rows = found.conditions
    mask = [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    np.testing.assert_array_equal(rows.mask, np.array(mask, bool))
    np.testing.assert_array_equal(found.positions, [[0, 2, 5], [1, 4, -1], [3, -1, -1]])
    np.testing.assert_array_equal(found.data["sick"], [[1, 2, 3], [0, 4, 0], [0, 0, 0]])
    np.testing.assert_array_equal(found.data["weight"], [[1, 3, 6], [0, 5, 0], [4, 0, 0]])
    np.testing.assert_array_equal(rows.observed["sick"][2], [False, False, False])
    np.testing.assert_array_equal(rows.observed["weight"][1], [False, True, False])
    assert found.levels == {"arm": ("new", "old", "third")}
    assert found.coefficients == ("size", "arm[old]", "arm[third]", "age")
    np.testing.assert_allclose(rows["age"], [[0.1, 0.3, 0.6], [0.2, 0.5, 0.2], [0.4] * 3])
    np.testing.assert_array_equal(rows["arm"], [[0, 1, 2], [1, 0, 1], [0, 0, 0]])
    first = jax.tree.map(lambda a: a[0], rows)
    expected = [[5, 0, 0, 0.1], [7, 1, 0, 0.3], [10, 0, 1, 0.6]]
    np.testing.assert_allclose(first.design(), expected, rtol=1e-6)
    np.testing.assert_allclose(first.design("age")[:, 0], [0.1, 0.3, 0.6])


class OnlyProtocol:
    """A table that gives nothing but the dataframe protocol."""

    def __init__(self, table):
        self.table = table

    def __dataframe__(self, *args, **kwargs):
        return self.table.__dataframe__(*args, **kwargs)


def test_every_kind_of_table_gives_the_same_groups():
    frame = pd.DataFrame(TABLE)
    nullable = frame.convert_dtypes()
    categories = frame.assign(
        herd=frame["herd"].astype("category"), arm=frame["arm"].astype("category")
    )
    for table in (TABLE, frame, nullable, categories):
        check(grouped(table))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_table_with_nothing_but_the_dataframe_protocol_is_read():
    numeric = pd.DataFrame({"g": [2, 1, 2], "y": [0.5, 1.5, 2.5]})
    found = alws.groups(OnlyProtocol(numeric), by="g", outcome="y")
    assert found.names == (2, 1)
    np.testing.assert_array_equal(found.data, [[0.5, 2.5], [1.5, 0.0]])


def test_several_columns_make_groups_and_numbers_may_be_levels():
    found = grouped(
        by=["herd", "arm"],
        outcome="weight",
        covariates=["size"],
        levels="size",
        table={n: v[2:] for n, v in TABLE.items()},
    )
    assert found.names == (("b", "old"), ("c", "new"), ("a", "new"), ("b", "third"))
    assert found.levels == {"size": (7, 8, 9, 10)}
    assert found.data.shape == (4, 1)


def test_categories_keep_their_order_and_say_which_is_first():
    frame = pd.DataFrame(TABLE)
    frame["arm"] = pd.Categorical(frame["arm"], ["third", "old", "new"])
    assert grouped(frame).levels["arm"] == ("third", "old", "new")


REFUSED = {
    "a gap in the groups": (
        {"herd": ["b", None, "b", "c", "a", "b"]},
        {},
        "missing in 1 rows, the first of them row 1",
    ),
    "a nan in the groups": ({"herd": [1, np.nan, 1, 2, 2, 1]}, {}, "must say for every row"),
    "text as outcome": ({"sick": [*"ynyyny"]}, {}, "'sick' must be numbers, got text in 6 rows"),
    "text among numbers": (
        {"age": [1.0, 2, "n/a", 4, 5, 6]},
        {},
        "'age' must be numbers, got text in 1 rows, the first of them row 2: 'n/a'",
    ),
    "numbers as text": ({"age": [*"123456"]}, {}, "reads as numbers"),
    "a missing covariate": (
        {"age": [1.0, 2, np.nan, 4, 5, 6]},
        {},
        "'age' must not be missing anywhere",
    ),
    "a missing level": ({"arm": ["a", None, *"bbaa"]}, {}, "'arm' must not be missing"),
    "an infinite outcome": ({"weight": [1.0, np.inf, 1, 2, 3, 4]}, {}, "must be finite"),
    "dates": ({"age": np.array(["2020-01-01"] * 6, "datetime64[D]")}, {}, "dates"),
    "a group without outcomes": ({}, {"outcome": "sick"}, "1 of 3 have none, among them 'c'"),
    "a missing column": ({}, {"covariates": ["dose"]}, "must have a column 'dose'; it has"),
    "unequal columns": ({"age": [1.0, 2.0]}, {}, "same number of rows"),
    "a column named twice": ({}, {"covariates": ["age", "age"]}, "more than once"),
    "levels that are no covariate": ({}, {"levels": ["herd"]}, "among the covariates"),
    "no groups": ({}, {"by": []}, "`by` must name"),
    "no outcome": ({}, {"outcome": []}, "`outcome` must name"),
    "no rows": ({n: [] for n in TABLE}, {}, "at least one row"),
    "two dimensions": ({"age": np.ones((6, 2))}, {}, "one value a row"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    columns, arguments, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        grouped({**TABLE, **columns}, **arguments)


def test_a_group_without_rows_and_what_is_no_table_are_refused():
    frame = pd.DataFrame(TABLE)
    frame["herd"] = pd.Categorical(frame["herd"], ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match=r"1 have none, among them 'd'.*remove_unused_categories"):
        grouped(frame)
    with pytest.raises(TypeError, match="`table` must be a DataFrame or a dictionary"):
        grouped(np.ones((3, 3)))
    with pytest.raises(KeyError, match="covariate of this name"):
        grouped().conditions["dose"]


def test_another_table_has_the_same_levels_and_extrapolation_is_said():
    found = grouped()
    one = {n: v[:1] for n, v in TABLE.items()}
    again = found.like(one)
    assert again.coefficients == found.coefficients
    np.testing.assert_array_equal(again.conditions["arm"], [[0]])
    with pytest.warns(RuntimeWarning, match=r"'age'.*from 0.1 to 0.6.*2, is extrapolation"):
        found.like({**one, "age": [2.0]})
    with pytest.raises(ValueError, match=r"must have the levels .* got 'fourth' too"):
        found.like({**one, "arm": ["fourth"]})


MASK = jnp.array([True, False, True])
MEAN = jnp.array([0.5, -2.0, 1.0])
MASKED = {
    "gaussian": lambda at, mask: likelihoods.Gaussian(MEAN[at], 0.7, mask),
    "gaussian, noise of each": lambda at, mask: likelihoods.Gaussian(
        MEAN[at], jnp.array([0.1, 1.0, 4.0])[at], mask
    ),
    "log-normal": lambda at, mask: likelihoods.LogNormal(MEAN[at], 0.5, mask),
    "bernoulli": lambda at, mask: likelihoods.Bernoulli(MEAN[at], mask),
    "binomial": lambda at, mask: likelihoods.Binomial(jnp.array([3, 9, 5])[at], MEAN[at], mask),
    "categorical": lambda at, mask: likelihoods.Categorical(
        jnp.arange(12.0).reshape(3, 4)[at], mask
    ),
    "poisson": lambda at, mask: likelihoods.Poisson(MEAN[at], mask),
    "gamma": lambda at, mask: likelihoods.Gamma(jnp.exp(MEAN)[at], 1.5, mask),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_entries_count_nothing(name, key):
    """Density and gradient are those of the entries that are there, whatever the others hold."""
    make = MASKED[name]
    whole, part = make(jnp.arange(3), MASK), make(jnp.array([0, 2]), None)
    x = whole.sample(key)
    assert float(x[1]) == 0
    assert bool(whole.in_support(x))
    for padding in (x[1], -7):
        given = x.at[1].set(padding)
        np.testing.assert_allclose(whole.log_prob(given), part.log_prob(x[MASK]), rtol=1e-6)
        assert bool(whole.in_support(given))
        gradient = eqx.filter_grad(lambda likelihood, x: likelihood.log_prob(x))(whole, given)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_a_mask_that_is_none_is_refused():
    with pytest.raises(
        ValueError, match="`mask` must be booleans that broadcast to the shape of x"
    ):
        likelihoods.Poisson(MEAN, mask=jnp.ones(3))
    with pytest.raises(ValueError, match="`mask` must be booleans"):
        likelihoods.Poisson(MEAN, mask=jnp.ones(2, bool))


def test_rows_score_and_draw_what_numpyro_has(key):
    rows = jax.tree.map(lambda a: a[1], grouped().conditions)
    counts, sizes = dist.Poisson(2.0 * jnp.ones(3)), dist.Gamma(2.0 * jnp.ones(3), 1.0)
    drawn = rows.sample({"sick": counts, "weight": sizes}, key)
    assert float(drawn["sick"][2]) == 0
    np.testing.assert_array_equal(drawn["weight"][jnp.array([0, 2])], 0)
    x = {"sick": jnp.array([3.0, 1.0, -9.0]), "weight": jnp.array([0.0, 0.5, 0.0])}
    expected = dist.Poisson(2.0).log_prob(jnp.array([3, 1])).sum() + dist.Gamma(2.0).log_prob(0.5)
    found = rows.log_prob({"sick": counts, "weight": sizes}, x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dist.Categorical(logits=jnp.arange(12.0).reshape(3, 4)),
        lambda: dist.OrderedLogistic(jnp.array([0.5, -1.0, 2.0]), jnp.array([-1.0, 0.0, 1.5])),
        lambda: dist.Poisson(jnp.array([1.0, 2.0, 3.0])),
    ],
)
def test_outcomes_that_are_whole_numbers(make, key):
    """Of levels and counts alike; what lies between two of them has no density."""
    rows = jax.tree.map(lambda a: a[1], grouped(outcome="weight").conditions)  # one: [0, 1, 0]
    x = rows.sample(make(), key)
    assert jnp.issubdtype(x.dtype, jnp.floating)
    np.testing.assert_array_equal(x[jnp.array([0, 2])], 0)
    for level in range(4):
        found = rows.log_prob(make(), jnp.array([9.0, level, -1.0]))
        np.testing.assert_allclose(found, make().log_prob(jnp.full(3, level))[1], rtol=1e-6)
    assert rows.log_prob(make(), jnp.array([0.0, 1.5, 0.0])) == -jnp.inf


def pair(order, padding):
    """Ten groups of three to seven rows, their rows in some order and so much more padding."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(10), rng.integers(3, 8, 10))
    table = {"g": group, "x": rng.normal(size=len(group)), "arm": group % 3}
    table |= {"y": rng.normal(size=len(group)), "w": rng.normal(size=len(group))}
    table["y"][3], table["w"][7] = np.nan, np.nan
    turned = order(len(group))
    table = {name: np.asarray(column)[turned] for name, column in table.items()}
    found = alws.groups(table, by="g", outcome=["y", "w"], covariates=["x", "arm"], levels="arm")
    turn = np.argsort(found.names)

    def padded(a):
        more = np.repeat(np.asarray(a)[turn][:, :1], padding, axis=1)
        more = np.zeros_like(more) if more.dtype == bool else more
        return jnp.concatenate([jnp.asarray(a)[turn], jnp.asarray(more)], axis=1)

    return jax.tree.map(padded, (found.conditions, found.data))


COMPARED = {
    "sums": lambda x: features.RowSums()(x),
    "kernel on sums": lambda x: kernels.SquaredExponential(features.RowSums())(x, x),
    "kernel on sets": lambda x: kernels.OnSets(kernels.SquaredExponential())(x, x),
    "waves on sets": lambda x: waves(x),
}


def waves(x):
    kernel = kernels.OnSets(kernels.SquaredExponential())
    sleep = kernel.embed(x)
    return kernel.scale_to(sleep).draw_features(jax.random.key(1), 50, sleep)(sleep)


@pytest.mark.parametrize("name", COMPARED)
def test_order_of_rows_and_padding_change_nothing_that_is_compared(name):
    plain = COMPARED[name](pair(np.arange, 0))
    turned = COMPARED[name](pair(np.random.default_rng(1).permutation, 4))
    assert np.ptp(np.asarray(plain)) > 0.1
    np.testing.assert_allclose(turned, plain, rtol=1e-4, atol=1e-4)


def test_sums_of_rows_are_sufficient_statistics():
    """Σ v vᵀ of v = (1, size, y) over the rows with an outcome, by hand."""
    found = grouped(outcome="weight", covariates="size")
    sums = features.RowSums()((found.conditions, jnp.asarray(found.data)))
    v = np.array([[1, 5, 1], [1, 7, 3], [1, 10, 6]], float)
    np.testing.assert_allclose(sums[0], (v.T @ v)[np.triu_indices(3)], rtol=1e-6)
    np.testing.assert_allclose(sums[1], np.outer([1, 9, 5], [1, 9, 5])[np.triu_indices(3)])
    with pytest.raises(TypeError, match="must be given pairs of rows and outcomes, got"):
        features.RowSums()(jnp.asarray(found.data))


class Intercepts(eqx.Module):
    """y_i ~ N(coefficients·x_i + s z, t²), z ~ N(0, 1): Gaussian, so that all is known."""

    coefficients: jax.Array
    log_spread: jax.Array
    log_noise: jax.Array

    def sample_latent(self, key, rows):
        return jax.random.normal(key)

    def log_prior(self, z, rows):
        return norm.logpdf(z)

    def likelihood(self, z, rows):
        mean = self.coefficients[0] + rows.design() @ self.coefficients[1:]
        mean = mean + jnp.exp(self.log_spread) * z
        return likelihoods.Gaussian(mean, jnp.exp(self.log_noise), mask=rows.observed)


def table_of(seed, groups=30):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 7, groups)
    group = np.repeat(np.arange(groups), lengths)
    x, z = rng.normal(size=len(group)), rng.normal(size=groups)
    y = 1.0 + 0.5 * x + 0.8 * z[group] + 0.6 * rng.normal(size=len(group))
    return pd.DataFrame({"g": group, "x": x, "y": y})


def exact(model, table):
    """Σ log N(y_g; Xβ, t² I + s² 11ᵀ), by NumPy."""
    beta = np.asarray(model.coefficients, float)
    spread, noise = np.exp(float(model.log_spread)), np.exp(float(model.log_noise))
    total = 0.0
    for _, rows in table.groupby("g"):
        e = rows["y"].to_numpy() - beta[0] - beta[1] * rows["x"].to_numpy()
        cov = noise**2 * np.eye(len(e)) + spread**2
        total -= 0.5 * (e @ np.linalg.solve(cov, e) + np.linalg.slogdet(2 * np.pi * cov)[1])
    return total


def fit(table):
    found = alws.groups(table, by="g", outcome="y", covariates="x")
    start = Intercepts(jnp.zeros(2), jnp.zeros(()), jnp.zeros(()))
    result = alws.fit(start, found.data, conditions=found.conditions, key=jax.random.key(0))
    return found, result


def test_order_of_rows_and_padding_change_nothing_in_a_fit():
    """The maximum of statsmodels, and the same with rows shuffled and more padding."""
    import statsmodels.formula.api as formula

    table = table_of(0)
    missing = pd.DataFrame({"g": 3, "x": np.zeros(5), "y": np.nan})
    shuffled = pd.concat([table, missing]).sample(frac=1.0, random_state=1)
    fits = [fit(t) for t in (table, shuffled)]
    results = [result for _, result in fits]
    best = formula.mixedlm("y ~ x", table, groups="g").fit(reml=False)
    for result in results:
        assert result.verdict.trusted
        np.testing.assert_allclose(result.log_likelihood, exact(result.model, table), atol=1e-3)
        assert abs(best.llf - exact(result.model, table)) < 0.02
        np.testing.assert_allclose(result.log_likelihood, results[0].log_likelihood, atol=1e-3)
    for found, result in fits:
        given = {"conditions": found.conditions, "key": jax.random.key(1)}
        errors = alws.standard_errors(result, found.data, **given).errors
        np.testing.assert_allclose(errors.coefficients, best.bse_fe, rtol=0.05)
        effects = alws.expectation(result, lambda z: z, found.data, **given)
        spread = np.exp(float(result.model.log_spread))
        of_statsmodels = np.array([best.random_effects[g].iloc[0] for g in found.names])
        np.testing.assert_allclose(spread * effects, of_statsmodels, atol=0.02)


@pytest.mark.parametrize("rows", [2, 9])
def test_groups_of_other_sizes_than_those_of_the_fit_are_asked_about(rows, key):
    """E[z | y] in closed form; only covariates outside those of all rows are extrapolation."""
    table = table_of(0)
    found = alws.groups(table, by="g", outcome="y", covariates="x")
    start = Intercepts(jnp.zeros(2), jnp.zeros(()), jnp.zeros(()))
    result = alws.fit(
        start,
        found.data,
        conditions=found.conditions,
        key=key,
        steps=1,
        settings=alws.Settings(sleep_samples=50),
    )
    x = np.linspace(table["x"].min(), table["x"].max(), rows)
    other = {"g": ["new"] * rows + ["one"], "x": [*x, 0.0], "y": [*(1 + x), 2.0]}
    new = found.like(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mode = alws.posterior_mode(result, new.data, conditions=new.conditions, key=key).z
    model = result.model
    spread, noise = np.exp(float(model.log_spread)), np.exp(float(model.log_noise))
    e = np.array(other["y"]) - model.coefficients[0] - model.coefficients[1] * np.array(other["x"])
    sums, sizes = np.array([e[:-1].sum(), e[-1]]), np.array([rows, 1])
    exact = spread * sums / (noise**2 + sizes * spread**2)
    np.testing.assert_allclose(mode, exact, atol=1e-3)
    far = eqx.tree_at(lambda c: c.columns["x"], new.conditions, new.conditions["x"].at[1].set(9.0))
    with pytest.warns(RuntimeWarning, match=r"1 of 2 .*`conditions\['x'\]` at index \[1, 0\] is 9"):
        alws.posterior_mode(result, new.data, conditions=far, key=key)


def test_data_are_checked_under_conditions_of_their_own(key):
    """The first group has one trial in each row; the others, with more, are no mistake."""

    class Trials(eqx.Module):
        logit: jax.Array

        def sample_latent(self, key, rows):
            return jax.random.normal(key)

        def log_prior(self, z, rows):
            return norm.logpdf(z)

        def likelihood(self, z, rows):
            return likelihoods.Binomial(rows["n"], self.logit + z + 0 * rows["n"], rows.observed)

    table = {"g": np.repeat(np.arange(40), 2), "n": np.repeat([1] + [6] * 39, 2)}
    table["y"] = np.minimum(table["n"], np.arange(80) % 7)
    found = alws.groups(table, by="g", outcome="y", covariates="n")
    prepared = alws.prepare(
        Trials(jnp.zeros(())), found.data, conditions=found.conditions, key=key, steps=1
    )
    assert prepared.problem.size == 40
    with pytest.raises(ValueError, match="must lie where `likelihood\\(z\\)` has a density"):
        alws.prepare(
            Trials(jnp.zeros(())), found.data + 1, conditions=found.conditions, key=key, steps=1
        )
    draws = draws_of_each(Trials(jnp.zeros(())), found.conditions, key, 400)
    with pytest.raises(ValueError, match="must be what the model can draw"):
        check_discrete(draws, jnp.asarray(found.data) + 0.5)
