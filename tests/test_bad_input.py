"""Every mistake a user can make gives an error with the rule, the value and the remedy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro.distributions as dist
import pytest
from test_combinations import TwoStates
from test_fit import START, Mixture, Regression

import alws
from alws.validation import as_arrays, check_log_prior

DATA = np.linspace(-2, 2, 20)


def fit(model=START, data=DATA, steps=2, settings=None, **more):
    settings = settings or alws.Settings(sleep_samples=50)
    return alws.fit(
        model, data, key=jax.random.key(0, impl="rbg"), steps=steps, settings=settings, **more
    )


class NotScalar(Mixture):
    def log_joint(self, z, x):
        return jnp.ones(3) * super().log_joint(z, x)


class NotFinite(Mixture):
    def log_joint(self, z, x):
        return jnp.log(-1 - x**2)


class OtherShape(Mixture):
    def sample(self, key):
        z, x = super().sample(key)
        return z, jnp.stack([x, x])


class AllBroken(Mixture):
    def sample(self, key):
        z, x = super().sample(key)
        return z, x * jnp.nan


class Nothing(eqx.Module):
    def sample(self, key):
        return 0, jax.random.normal(key)

    def log_joint(self, z, x):
        return jax.scipy.stats.norm.logpdf(x)


class NoMethods(eqx.Module):
    a: jax.Array


class OnlyX(Mixture):
    def sample(self, key):
        return jnp.stack(super().sample(key))


class Three(Mixture):
    def sample(self, key):
        return *super().sample(key), 0


class NoKey(Mixture):
    def sample(self):
        return 0, 0.0


class Unasked(Regression):
    """A condition in one method alone."""

    def log_joint(self, z, x):
        return super().log_joint(z, x, 0.0)


class PriorNotSummed(TwoStates):
    def log_prior(self, z):
        return super().log_prior(z)[None]


class OfNumPyro(TwoStates):
    def likelihood(self, z):
        return dist.Normal(self.parameters[z], 1.0)


POSITIVE = TwoStates(jnp.zeros(2), jnp.zeros((2, 3)), "log-normal")
POSITIVES = np.ones((20, 2))


def make(kind):
    return kind(START.logit, START.means)


def split(kind):
    return kind(POSITIVE.logits, POSITIVE.parameters, POSITIVE.family)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "must be an equinox.Module, got dict", {"model": {}}),
        (TypeError, r"must have `sample\(key\) -> \(z, x\)`", {"model": NoMethods(jnp.ones(1))}),
        (ValueError, "no floating-point array among its fields", {"model": Nothing()}),
        (
            ValueError,
            "finite at the start; 1 are not",
            {"model": Mixture(jnp.array(jnp.nan), jnp.zeros(2))},
        ),
        (
            ValueError,
            r"must return a scalar for one example, got shape \(3,\)",
            {"model": make(NotScalar)},
        ),
        (
            ValueError,
            "must be finite on the model's own draws; 50 of 50",
            {"model": make(NotFinite)},
        ),
        (ValueError, "every one of 50 draws", {"model": make(AllBroken)}),
        (ValueError, r"shape of one observation, \(\); got \(2,\)", {"model": make(OtherShape)}),
        (ValueError, r"shape of one observation, \(3,\); got \(\)", {"data": np.ones((20, 3))}),
        (ValueError, "must have the structure of one observation", {"data": {"x": DATA}}),
        (ValueError, "must hold at least one observation, got 0", {"data": np.zeros(0)}),
        (ValueError, "must hold at least one array", {"data": []}),
        (ValueError, "leading axis, got a scalar", {"data": 3.0}),
        (
            ValueError,
            "got 2 entries that are NaN or infinite",
            {"data": np.array([1.0, np.nan, np.inf])},
        ),
        (ValueError, "same number of observations", {"data": (np.ones(3), np.ones(4))}),
        (
            ValueError,
            "`sleep_samples` must be a whole number of at least 10, got 3",
            {"settings": alws.Settings(sleep_samples=3)},
        ),
        (
            ValueError,
            "`validation_samples` must be a whole number of at least 2, got 0",
            {"settings": alws.Settings(validation_samples=0)},
        ),
        (ValueError, "`steps` must be a whole number of at least 1, got 0", {"steps": 0}),
        (ValueError, "`steps` must be a whole number of at least 1, got -3", {"steps": -3}),
        (
            ValueError,
            "`batch_size` must be at most the number of observations, 20; got 21",
            {"batch_size": 21},
        ),
        (
            ValueError,
            "`conditions` must have one entry for each observation, 20; got 3",
            {"conditions": np.ones(3)},
        ),
        (
            TypeError,
            r"without any: `sample\(key, condition\)`, .* Leave `conditions` out",
            {"conditions": np.ones(20)},
        ),
        (
            TypeError,
            r"of all methods or of none: `sample\(key, condition\)` can be called, "
            r"`log_joint\(z, x, condition\)` cannot",
            {"model": Unasked(jnp.ones(())), "conditions": np.ones(20)},
        ),
        (TypeError, r"a pair, .* got shape \(2,\)", {"model": make(OnlyX)}),
        (TypeError, "a pair, .* got 3 things", {"model": make(Three)}),
        (TypeError, r"`sample\(key\)`; got `sample\(\)`", {"model": make(NoKey)}),
        (
            ValueError,
            r"`log_prior\(z\)` must return a scalar for one example, got shape \(1,\)",
            {"model": split(PriorNotSummed), "data": POSITIVES},
        ),
        (
            TypeError,
            r"a likelihood of `alws\.likelihoods`, .* got numpyro\..*\.Normal, which has no",
            {"model": split(OfNumPyro), "data": np.ones((20, 3))},
        ),
        (
            ValueError,
            r"of 20 observations 2 do not, the first of them at index 3: \[-1\. +1\.\]",
            {"model": POSITIVE, "data": np.where(np.arange(40) % 20 == 6, -1.0, 1).reshape(20, 2)},
        ),
        (ValueError, r"same length .* got lengths \[1, 2\]", {"data": [[1.0], [1.0, 2.0]]}),
    ],
)
def test_error(error, message, arguments):
    with pytest.raises(error, match=message):
        fit(**arguments)


class Calls(TwoStates):
    def likelihood(self, z):
        return alws.likelihoods.Gaussian(self.nothing[z], 1.0)


class Branches(Mixture):
    def log_joint(self, z, x):
        return super().log_joint(z, x) if x > 0 else -x


def test_what_a_method_raises_is_told_with_what_it_was_given():
    with pytest.raises(
        ValueError, match=r"`likelihood\(z\)` must run .* z int32\[\]; it raised Attr"
    ):
        fit(model=split(Calls), data=POSITIVES)
    with pytest.raises(
        TypeError, match=r"z int32\[\], x float32\[\]; .* `jnp\.where` or `jax\.lax"
    ):
        fit(model=make(Branches))


def test_a_list_of_arrays_of_one_number_is_told_how_to_be_one_array():
    with pytest.raises(ValueError, match=r"got a scalar\. Write `jnp\.stack\(data\)`"):
        fit(data=[jnp.array(1.0), jnp.array(2.0)])


@pytest.fixture
def unchecked():
    """Without the types that the tests check and users do not."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("key", [0, np.zeros(3), jax.random.split(jax.random.key(0))])
def test_a_key_is_a_key(key, unchecked):
    with pytest.raises(TypeError, match=r"one JAX key, such as `jax\.random\.key\(0\)`; got"):
        alws.fit(START, DATA, key=key, steps=1)


def test_a_penalty_is_one_number():
    check_log_prior(None, START)
    check_log_prior(lambda model: -jnp.sum(model.means**2), START)
    with pytest.raises(ValueError, match=r"`log_prior\(model\)` .* scalar.* got shape \(2,\)"):
        fit(log_prior=lambda model: -(model.means**2))
    with pytest.raises(TypeError, match=r"must be a function of the model .* got float"):
        check_log_prior(0.5, START)  # pyright: ignore


def test_a_model_by_name_lists_and_whole_numbers_are_taken(unchecked):
    arguments = {"key": jax.random.key(0, impl="rbg"), "steps": np.int64(2)}
    settings = alws.Settings(sleep_samples=np.int64(50))  # pyright: ignore
    result = alws.fit(model=START, data=list(range(10)), settings=settings, **arguments)
    assert (result.steps, result.model.means.dtype) == (2, jnp.float32)


def test_lists_of_numbers_become_arrays_and_pytrees_stay():
    pair = as_arrays(({"a": [[1, 2], [3, 4]]}, [np.ones(2), np.ones(2)]))
    assert jax.tree.map(np.shape, pair, is_leaf=eqx.is_array) == ({"a": (2, 2)}, [(2,), (2,)])
    np.testing.assert_array_equal(pair[0]["a"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(pair[1], np.ones((2, 2)))
