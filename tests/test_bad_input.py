"""Every mistake a user can make gives an error with the rule, the value and the remedy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_fit import START, Mixture

import alws

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


def make(kind):
    return kind(START.logit, START.means)


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
    ],
)
def test_error(error, message, arguments):
    with pytest.raises(error, match=message):
        fit(**arguments)


def test_whole_numbers_for_a_floating_model_are_taken():
    assert fit(data=np.arange(10)).model.means.dtype == jnp.float32
