"""Terms of the log joint, each regressed on its own view, against what is known exactly."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from exact import LinearGaussian
from jax.flatten_util import ravel_pytree

import alws
from alws.estimates import Joint, Local, spread_evenly
from alws.features import Network
from alws.regressions import KernelRidge, LinearReadout
from alws.state_space.filters import increments
from alws.state_space.kinds import find_filter


class Walk(alws.StateSpace):
    log_step: jax.Array
    log_noise: jax.Array
    times: int = eqx.field(static=True, default=60)

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state):
        return dist.Normal(state, jnp.exp(self.log_step))

    def observation(self, state):
        return dist.Normal(state, jnp.exp(self.log_noise))


class OneTerm(Walk):
    """The same, its log joint as one term, its window as long as the sequence."""

    def terms(self, z, x, *given):
        return super().terms(z, x, *given).sum()[None]

    def views(self, x, *, window=None):
        return x[None]


class Growing(alws.StateSpace):
    """A count that goes on from what was counted, by a rate with a memory, under a control."""

    pull: jax.Array
    observe_start = False

    def initial(self):
        return dist.Normal(0.5, 0.3)

    def start(self, z):
        return {"rate": z, "last": jnp.array(2.0)}

    def transition(self, state, control):
        return dist.Normal(0.1 * control, 0.3)

    def update(self, state, z, control):
        return {"rate": self.pull * state["rate"] + z, "last": state["last"]}

    def observation(self, state, control):
        return dist.Poisson(jnp.exp(state["rate"]) + 0.5 * state["last"])

    def feed_back(self, state, x, control):
        return {**state, "last": x.astype(float)}


WALK = Walk(jnp.array(-0.7), jnp.array(0.0))
FACTORS = LinearGaussian(
    jnp.array([[1.0, 0.0], [0.5, 1.0], [0.0, -0.7]]), jnp.zeros(3), jnp.full(3, -0.5)
)


def gradient(estimate, model, sleep, wake, regression=None, key=None):
    regression = regression or KernelRidge(alws.kernels.SquaredExponential())
    rows = estimate.views(model, sleep.x, None)
    smoother = regression.initialise(rows).fit(rows)
    weights = estimate.weigh(model, smoother, sleep, wake, None, key)
    found = eqx.filter_grad(lambda m: estimate.objective(m, sleep, weights, None))(model)
    return ravel_pytree(eqx.filter(found, eqx.is_inexact_array))[0]


@pytest.mark.parametrize(
    "model", [FACTORS, OneTerm(WALK.log_step, WALK.log_noise, 20)], ids=["vector", "sequence"]
)
def test_one_term_is_the_ordinary_estimate(model, key):
    """With a window as long as the sequence and one term, exactly."""
    sleep, _ = alws.draw(model, key, 100)
    wake = alws.draw(model, jax.random.key(1), 20)[0].x
    np.testing.assert_array_equal(
        gradient(Local(), model, sleep, wake), gradient(Joint(), model, sleep, wake)
    )


def test_fits_with_one_term_are_those_of_the_ordinary_estimate(key):
    data = alws.draw(FACTORS, jax.random.key(1), 40)[0].x
    settings = [
        alws.Settings(estimate=e, sleep_samples=60, validation_samples=20)
        for e in (Local(), Joint())
    ]
    fits = [alws.fit(FACTORS, data, key=key, steps=5, settings=s, progress=False) for s in settings]
    for a, b in zip(*(jax.tree.leaves(fit.model) for fit in fits), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("missing", [False, True])
def test_terms_add_up_to_the_log_joint(missing, key):
    observed = jnp.arange(60) % 7 > 0 if missing else None
    given = alws.Given(None, observed)
    z, x = WALK.sample(key, given)
    path = jnp.concatenate([z.start[None], z.steps])
    seen = dist.Normal(path, jnp.exp(WALK.log_noise)).log_prob(x)
    moved = dist.Normal(path[:-1], jnp.exp(WALK.log_step)).log_prob(path[1:])
    expected = seen if observed is None else jnp.where(observed, seen, 0)
    expected = expected + jnp.concatenate([dist.Normal(0, 1).log_prob(path[:1]), moved])
    np.testing.assert_allclose(WALK.terms(z, x, given), expected, rtol=2e-5, atol=1e-5)


def test_terms_of_a_state_with_memory_and_feedback(key):
    """The term of a time is what the log joint of a longer sequence has more."""
    model, given = Growing(jnp.array(0.8)), alws.Given(jnp.linspace(-1, 1, 8))
    z, x = model.sample(key, given)
    terms = model.terms(z, x, given)
    totals = [
        model.log_joint(
            z._replace(steps=z.steps[:t]), x[:t], jax.tree.map(lambda u, t=t: u[:t], given)
        )
        for t in range(2, 9)
    ]
    np.testing.assert_allclose(terms[2:], np.diff(totals), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(terms.sum(), totals[-1], rtol=1e-5)


def test_views_are_the_data_around_each_time():
    x = jnp.arange(10.0) ** 2
    view = WALK.views(x, window=2)
    np.testing.assert_array_equal(view.x[5], x[3:8])
    np.testing.assert_array_equal(view.x[0], [0, 0, 0, 1, 4])
    np.testing.assert_array_equal(view.inside[0], [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(view.inside[9], [1, 1, 1, 0, 0])
    assert view.observed is None
    assert view.control is None


def test_views_hold_what_is_missing_and_the_control():
    x, control = jnp.arange(6.0), jnp.arange(6.0) * 10
    observed = jnp.array([False, True, True, False, True, True])
    view = WALK.views(jnp.where(observed, x, 0.0), alws.Given(control, observed), window=1)
    assert view.observed is not None
    assert view.control is not None
    np.testing.assert_array_equal(view.observed[3], [1, 0, 1])
    np.testing.assert_array_equal(view.x[3], [2, 2, 4])
    np.testing.assert_array_equal(view.x[0], [1, 1, 1])
    np.testing.assert_array_equal(view.control[3], [20, 30, 40])


@pytest.mark.parametrize(("number", "terms", "pairs"), [(10, 4, 20), (7, 100, 50), (3, 5, 100)])
def test_terms_are_taken_evenly(number, terms, pairs):
    taken = spread_evenly(number, terms, pairs)
    counts = np.bincount(taken.ravel(), minlength=terms)
    assert np.ptp(counts) <= 1
    assert taken.size >= min(pairs, number * terms)
    assert all(len(set(row)) == len(row) for row in taken.tolist())


def quadratic(view):
    """x off its centre, the ends, and all products: what a linear Gaussian score is made of."""
    middle = len(view.x) // 2
    u = jnp.concatenate([view.x - view.x[middle], view.x[middle : middle + 1], view.inside])
    rows, columns = np.triu_indices(len(u))
    return jnp.concatenate([u, u[rows] * u[columns]])


def test_gradient_nears_that_of_the_kalman_filter_with_windows_and_samples():
    """In standard errors of the fit, two of which the parameters are off."""
    with jax.enable_x64(True):
        true = jax.tree.map(lambda a: jnp.asarray(a, float), WALK)
        _, x = true.sample(jax.random.key(1))
        kind = find_filter(true, jax.random.key(0))
        flat, unravel = ravel_pytree(true)
        model = unravel(flat + jnp.array([0.4, -0.2]))
        scores = jax.jacfwd(lambda t: increments(unravel(t), kind, x))(ravel_pytree(model)[0])
        root = np.linalg.cholesky(np.linalg.inv(scores.T @ scores))
        readout = LinearReadout(Network(quadratic), ridge=1e-4, reach=100.0)

        def error(window, pairs):
            estimate = Local(window, pairs=pairs)

            @eqx.filter_jit
            def one(key):
                sleep, _ = alws.draw(model, key, pairs // 10)
                return gradient(estimate, model, sleep, x[None], readout)

            found = np.stack([one(key) for key in jax.random.split(jax.random.key(2), 4)])
            off = (found - scores.sum(axis=0)) @ root
            return np.sqrt((off**2).mean())

        errors = {(w, n): error(w, n) for w, n in ((0, 8000), (2, 8000), (2, 1000))}
    assert errors[2, 8000] < 0.5 * errors[0, 8000], errors
    assert errors[2, 8000] < 0.7 * errors[2, 1000], errors


def test_a_step_may_see_a_sample_of_the_times():
    """On average over samples its gradient is that of all times."""
    sleep, _ = alws.draw(WALK, jax.random.key(0), 100)
    wake = alws.draw(WALK, jax.random.key(1), 3)[0].x
    whole = gradient(Local(), WALK, sleep, wake)

    @jax.jit
    def some(key):
        return gradient(Local(points=60), WALK, sleep, wake, key=key)

    found = np.stack([some(key) for key in jax.random.split(jax.random.key(2), 40)])
    error = found.std(axis=0, ddof=1) / len(found) ** 0.5
    np.testing.assert_allclose((found.mean(axis=0) - whole) / error, 0, atol=4)


def test_a_sequence_with_gaps_is_fitted_by_windows(key):
    """Steps are taken, and the likelihood of the Kalman filter rises."""
    start = Walk(jnp.array(0.5), jnp.array(0.7))
    _, x = WALK.sample(jax.random.key(3))
    x, given = alws.sequences([np.where(np.arange(60) % 9 == 4, np.nan, np.asarray(x))])
    settings = alws.Settings(estimate=Local(4, pairs=300), sleep_samples=60)
    fit = alws.fit(start, x, conditions=given, key=key, steps=60, settings=settings, progress=False)
    kind, first = find_filter(start, key), jax.tree.map(lambda a: a[0], given)
    before, after = (increments(m, kind, x[0], first).sum() for m in (start, fit.model))
    assert fit.diagnostics["refused_steps"] == 0
    assert after > before + 3


class WrongTerms(Walk):
    def terms(self, z, x, *given):
        return super().terms(z, x, *given).sum()


class WrongViews(Walk):
    def views(self, x, *, window=None):
        return jax.tree.map(lambda a: a[1:], super().views(x))


@pytest.mark.parametrize(
    ("model", "estimate", "message"),
    [
        (WALK, Local(60), "less than the 60 times .* got 60. At 59"),
        (WrongTerms(WALK.log_step, WALK.log_noise), Local(), "a term each; got \\(\\)"),
        (WrongViews(WALK.log_step, WALK.log_noise), Local(), "has terms, 60, .* got \\[59\\]"),
        (FACTORS, Local(3), "must have `terms\\(z, x\\)` and `views\\(x\\)`"),
    ],
    ids=["window", "terms", "views", "none"],
)
def test_what_cannot_be_fitted_by_terms_is_refused(model, estimate, message, key):
    data = alws.draw(model, key, 5)[0].x
    with pytest.raises(ValueError, match=message):
        alws.prepare(model, data, key=key, steps=5, settings=alws.Settings(estimate=estimate))


@pytest.mark.parametrize("bad", [{"window": -1}, {"pairs": 1}, {"points": 0}])
def test_numbers_that_cannot_be_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Local(**bad)
