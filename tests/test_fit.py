import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from exact import PROBLEMS, maximum_likelihood, mean_log_likelihood

import alws
from alws.callbacks import ProgressBar, Report

README = Path(__file__).parent.parent / "README.md"


class Mixture(eqx.Module):
    """Two unit Gaussians on the line."""

    logit: jax.Array
    means: jax.Array

    def sample(self, key):
        first, second = jax.random.split(key)
        z = jax.random.bernoulli(first, jax.nn.sigmoid(self.logit)).astype(int)
        return z, self.means[z] + jax.random.normal(second)

    def log_joint(self, z, x):
        log_prior = jnp.where(z == 1, -jax.nn.softplus(-self.logit), -jax.nn.softplus(self.logit))
        return log_prior + jax.scipy.stats.norm.logpdf(x - self.means[z])


START = Mixture(jnp.array(0.0), jnp.array([-0.5, 0.5]))
SMALL = alws.Settings(sleep_samples=100, validation_samples=50, measure_every=5)


@pytest.fixture(scope="module")
def data():
    truth = Mixture(jnp.array(0.8), jnp.array([-2.0, 2.0]))
    return np.asarray(alws.draw(truth, jax.random.key(9), 150)[0].x)


def fit(data, model=START, steps=12, settings=SMALL, **more):
    return alws.fit(
        model, data, key=jax.random.key(0, impl="rbg"), steps=steps, settings=settings, **more
    )


def leaves(result):
    return [np.asarray(a) for a in jax.tree.leaves(eqx.filter(result.state, eqx.is_array))]


# What is learnt ---------------------------------------------------------------------------------


class Weights(eqx.Module):
    """A Gaussian: its mean is learnt; a number, a static field and a held array are not."""

    mean: np.ndarray
    shift: float
    size: int = eqx.field(static=True)
    spread: jax.Array

    def sample(self, key):
        first, second = jax.random.split(key)
        z = jax.random.normal(first, (self.size,)).sum()
        spread = jax.lax.stop_gradient(self.spread)
        return z, self.mean + self.shift + z + spread * jax.random.normal(second)

    def log_joint(self, z, x):
        logpdf = jax.scipy.stats.norm.logpdf
        mean = self.mean + self.shift + z
        return logpdf(z, 0, self.size**0.5) + logpdf(x, mean, jax.lax.stop_gradient(self.spread))


def test_arrays_are_learnt_and_what_is_to_stay_stays(data):
    start = Weights(np.zeros((), np.float32), 0.5, 2, jnp.ones(()))
    found = fit(data, start, steps=3).model
    assert found.mean != 0
    assert (found.shift, found.size, float(found.spread)) == (0.5, 2, 1.0)


# What it must reach -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["beta_bernoulli"])
def test_default_fit_reaches_the_maximum_likelihood(name, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")  # its step is compiled as for users, being run 400 times
    _reaches_the_maximum(name, steps=400)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_default_fit_reaches_the_maximum_likelihood_of_every_problem(name):
    _reaches_the_maximum(name, steps=4000)


def _reaches_the_maximum(name, steps):
    problem = PROBLEMS[name](jax.random.key(0))
    result = alws.fit(problem.start, problem.data, key=jax.random.key(1), steps=steps)
    best = maximum_likelihood(problem.truth, problem.data, problem.start)[1]
    gap = best - mean_log_likelihood(result.model, problem.data)
    assert gap < 0.02, f"{gap:.4f} nats per data point below the maximum, {result.diagnostics}"


# The loop ---------------------------------------------------------------------------------------


def test_same_seed_same_result_and_another_seed_another(data):
    one, two = fit(data), fit(data)
    assert all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(two), strict=True))
    other = alws.fit(START, data, key=jax.random.key(1, impl="rbg"), steps=12, settings=SMALL)
    assert not np.array_equal(one.model.means, other.model.means)


@pytest.mark.parametrize("batch_size", [None, 40])
def test_resume_goes_on_bit_for_bit(data, tmp_path, batch_size):
    class Stop(Exception):
        pass

    def stop(report):
        if report.step > 7:
            raise Stop

    whole = fit(data, steps=12, batch_size=batch_size)
    arguments = {"checkpoint": tmp_path / "c.npz", "checkpoint_every": 5, "batch_size": batch_size}
    with pytest.raises(Stop):
        fit(data, steps=12, callbacks=[stop], **arguments)
    resumed = fit(data, steps=12, resume=True, **arguments)
    assert all(np.array_equal(a, b) for a, b in zip(leaves(whole), leaves(resumed), strict=True))
    np.testing.assert_array_equal(whole.metrics["objective"], resumed.metrics["objective"])


def test_an_existing_checkpoint_is_not_overwritten(data, tmp_path):
    path = tmp_path / "c.npz"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="already exists"):
        fit(data, checkpoint=path)
    with pytest.raises(alws.CheckpointError, match="cut short or damaged"):
        fit(data, checkpoint=path, resume=True)
    assert path.read_bytes() == b"precious"


def test_step_compiles_once(data):
    count = 0

    class Counting(Mixture):
        def log_joint(self, z, x):
            nonlocal count
            count += 1
            return super().log_joint(z, x)

    # Python code runs only while tracing, so a recompilation would call log_joint again.
    seen = []
    model = Counting(jnp.asarray(0.0), jnp.asarray([-0.5, 0.5]))  # weakly typed on purpose
    fit(
        data,
        model,
        steps=12,
        callbacks=[lambda report: seen.append(count)],
        settings=alws.Settings(sleep_samples=100, measure_every=1),
    )
    assert len(seen) == 12
    assert seen[0] == seen[-1] > 0


def test_metrics_callbacks_and_file(data, tmp_path):
    reports: list[Report] = []
    path = tmp_path / "m.jsonl"
    result = fit(data, callbacks=[reports.append, alws.MetricsFile(path)])
    assert [r.step for r in reports] == [1, 6, 11, 12]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 6, 11, 12]
    assert lines[0]["objective"] == pytest.approx(result.metrics["objective"][0])
    assert 0 < result.diagnostics["effective_samples"] <= 100
    assert result.diagnostics["held_out_r2"] < 1
    assert 0 <= result.diagnostics["outside"] <= 1


def test_early_stopping(data):
    stopper = alws.EarlyStopping(patience=2, window=1, score=lambda model: 0.0)
    assert fit(data, steps=100, callbacks=[stopper]).steps < 30


def test_quiet_when_not_on_a_terminal(data, capfd):
    fit(data)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == ""


def test_progress_shows_steps_and_objective(data, capfd):
    fit(data, progress=True)
    err = capfd.readouterr().err
    assert "12/12 steps" in err
    assert "J -" in err


def test_time_left_is_known_when_reports_are_minutes_apart():
    bar = ProgressBar(20, 0, True)
    for minute in (1, 2, 3):
        bar.progress.get_time = lambda minute=minute: 60.0 * minute
        bar(Report(5 * minute, 20, {"objective": 0.0}, None))
    assert bar.progress.tasks[0].time_remaining == 60


def test_any_optax_optimiser_and_several_theta_steps(data):
    settings = alws.Settings(optimiser=optax.sgd(0.1), theta_steps=3, sleep_samples=100)
    result = fit(data, settings=settings)
    assert not np.array_equal(result.model.means, START.means)


# Adaptation and penalties -----------------------------------------------------------------------


@pytest.mark.parametrize("part", ["bandwidth", "ridge", "features"])
def test_each_part_of_gamma_is_adapted_by_its_own_switch(data, part):
    network = alws.features.Network(eqx.nn.MLP("scalar", 3, 4, 1, key=jax.random.key(2)))
    kernel = alws.kernels.SquaredExponential(network, track=False)
    adapt = alws.Adapt(**{name: name == part for name in ("bandwidth", "ridge", "features")})
    regression = alws.regressions.KernelRidge(kernel, ridge=0.02)
    settings = alws.Settings(regression=regression, sleep_samples=100, adapt=adapt)
    one, more = fit(data, steps=1, settings=settings), fit(data, steps=4, settings=settings)
    before = regression.initialise(alws.draw(START, jax.random.key(0), 100)[0].x)

    def changed(where):
        return not np.array_equal(where(one.regression), where(more.regression))

    assert changed(lambda g: g.log_ridge) == (part == "ridge")
    assert changed(lambda g: g.kernel.log_bandwidth) == (part == "bandwidth")
    weight = lambda g: g.kernel.features.network.layers[0].weight  # noqa: E731
    assert changed(weight) == (part == "features")
    assert np.array_equal(weight(before), weight(one.regression)) == (part != "features")


def test_adaptation_starts_after_the_given_step(data):
    settings = alws.Settings(adapt=alws.Adapt(after=4), sleep_samples=100, measure_every=1)
    ridges = fit(data, steps=8, settings=settings).metrics["ridge"]
    assert len(set(ridges[:5])) == 1
    assert ridges[7] != ridges[0]


def test_adaptation_takes_every_so_many_steps(data):
    settings = alws.Settings(adapt=alws.Adapt(after=2, every=3), sleep_samples=100, measure_every=1)
    ridges = fit(data, steps=8, settings=settings).metrics["ridge"]
    # γ moves at the end of steps 3 and 6, counted from 0, and is seen from the next one on.
    assert len(set(ridges[:4])) == len(set(ridges[4:7])) == 1
    assert ridges[3] != ridges[4]
    assert ridges[6] != ridges[7]


class Counting(Mixture):
    """The mixture, counting the batches of its draws as they are made."""

    def sample(self, key):
        jax.debug.callback(lambda _: DRAWN.append(1), self.logit)
        return super().sample(key)


DRAWN: list[int] = []


def test_validation_samples_are_drawn_on_the_steps_that_use_them(data):
    settings = alws.Settings(
        adapt=alws.Adapt(after=1, every=2),
        sleep_samples=100,
        validation_samples=40,
        measure_every=5,
    )
    model = Counting(START.logit, START.means)
    prepared = alws.prepare(model, data, key=jax.random.key(0), steps=6, settings=settings)
    state, drawn = prepared.state, []
    for number in range(6):
        jax.block_until_ready(state)
        jax.effects_barrier()
        DRAWN.clear()
        state, _ = prepared.step(state, number)
        jax.block_until_ready(state)
        jax.effects_barrier()
        drawn.append(len(DRAWN))
    # γ takes its steps at 2 and 4, and the held-out error is measured at 0 and 5.
    assert drawn == [2, 1, 2, 1, 2, 2]  # batches of draws: sleep samples, and validation samples


def test_penalty_weighs_the_same_whatever_the_batch(data):
    prior = lambda m: -0.5 * 1e4 * jnp.sum(m.means**2)  # noqa: E731
    settings = alws.Settings(optimiser=optax.sgd(0.01), sleep_samples=100)
    # One step from the same θ: the difference between with and without is ∇ log p(θ)/n exactly.
    for batch_size in (None, 30):
        runs = [
            fit(data, steps=1, settings=settings, log_prior=p, batch_size=batch_size).model
            for p in (prior, None)
        ]
        expected = -0.01 * 1e4 * START.means / len(data)
        np.testing.assert_allclose(runs[0].means - runs[1].means, expected, rtol=1e-3)


# Conditional models -----------------------------------------------------------------------------


class Regression(eqx.Module):
    """x = slope·c + z + noise, z ~ N(0, 1): x | c ~ N(slope·c, 1 + 0.25)."""

    slope: jax.Array

    def sample(self, key, c):
        z, noise = jax.random.normal(key, (2,))
        return z, self.slope * c + z + 0.5 * noise

    def log_joint(self, z, x, c):
        logpdf = jax.scipy.stats.norm.logpdf
        return logpdf(z) + logpdf(x, self.slope * c + z, 0.5)


@pytest.mark.parametrize("choice", ["pooled", "separate"])
def test_conditional_model_is_fitted_whatever_regresses_its_conditions(choice):
    c = np.linspace(-3, 3, 40)
    x = 1.7 * c + np.random.default_rng(0).normal(size=40) * np.sqrt(1.25)
    optimiser = optax.adam(optax.cosine_decay_schedule(0.1, 150))
    settings = alws.Settings(
        optimiser=optimiser, sleep_samples=150, validation_samples=50, conditions=choice
    )
    result = alws.fit(
        Regression(jnp.array(0.0)),
        x,
        conditions=c,
        key=jax.random.key(0, impl="rbg"),
        steps=150,
        settings=settings,
        batch_size=8,
    )
    least_squares = (c @ x) / (c @ c)
    assert abs(float(result.model.slope) - least_squares) < 0.06


def test_conditional_model_without_conditions_is_refused(data):
    with pytest.raises(TypeError, match="Pass `conditions=` to fit a conditional model"):
        fit(data, Regression(jnp.array(0.0)))


# What goes wrong and is dealt with --------------------------------------------------------------


class Overflowing(Mixture):
    """A simulator that overflows in one draw of ten."""

    def sample(self, key):
        z, x = super().sample(key)
        return z, jnp.where(jax.random.uniform(key) < 0.1, jnp.inf, x)


def test_draws_that_overflow_are_replaced_and_counted(data):
    with pytest.warns(RuntimeWarning, match=r"draws from the model must be finite; \d+ of 1000, "):
        result = fit(data, Overflowing(START.logit, START.means), steps=10)
    assert 50 < result.diagnostics["replaced_draws"] < 250
    assert result.diagnostics["refused_steps"] == 0
    assert np.isfinite(result.model.means).all()


def test_a_step_that_is_not_finite_never_reaches_the_parameters(data):
    prior = lambda m: jnp.sqrt(0 * m.logit)  # noqa: E731
    message = "the gradient of `log_prior` must be finite; on 5 of 5 steps it was not"
    with pytest.warns(RuntimeWarning, match=message):
        result = fit(data, steps=5, log_prior=prior)
    assert result.diagnostics["refused_steps"] == 5
    np.testing.assert_array_equal(result.model.means, START.means)
