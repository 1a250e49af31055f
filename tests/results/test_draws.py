"""What `draw`, `log_joint` and `expectation` say of what they cannot take."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import alws

KEY = jax.random.key(0)


class Mixture(eqx.Module):
    means: jax.Array

    def sample(self, key):
        k1, k2 = jax.random.split(key)
        z = jax.random.bernoulli(k1).astype(int)
        return z, self.means[z] + jax.random.normal(k2)

    def log_joint(self, z, x):
        return jnp.log(0.5) + norm.logpdf(x, self.means[z])


class Conditional(Mixture):
    def sample(self, key, condition):
        z, x = Mixture.sample(self, key)
        return z, x + condition["x"]

    def log_joint(self, z, x, condition):
        return Mixture.log_joint(self, z, x - condition["x"])


MIXTURE = Mixture(jnp.array([-1.0, 1.0]))
CONDITIONAL = Conditional(MIXTURE.means)


def with_method(**methods):
    return type("Other", (Mixture,), methods)(MIXTURE.means)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Mixture, "the class Mixture itself. Call it"),
        (None, "got NoneType"),
        (with_method(sample=lambda self, key: 1 / 0), "it raised ZeroDivisionError"),
        (with_method(sample=lambda self, key: 3.0), "must return a pair"),
        (with_method(sample=lambda self, key: (0, 1.0, 2.0)), "got 3 things"),
        (with_method(sample=lambda self, key: ("a", 1.0)), "must return numbers; z is 'a'"),
        (with_method(sample=lambda self, key: (0, float(jax.random.normal(key)))), "with `jax"),
        (with_method(sample=lambda self, key: (0, np.random.normal())), "the same key; two draws"),  # noqa: NPY002
        (with_method(sample=lambda self, key: (0, jnp.nan)), "every one of 3 draws"),
        (CONDITIONAL, "asks for more than a key"),
    ],
)
def test_models_that_cannot_be_drawn_from_are_refused(model, message):
    with pytest.raises((TypeError, ValueError), match=message):
        alws.draw(model, KEY, 3)


def test_numbers_and_conditions_of_draws_are_checked():
    for number in (0, -1, 2.5, "3", True, 2**31):
        with pytest.raises(ValueError, match="`number` must be"):
            alws.draw(MIXTURE, KEY, number)
    assert alws.draw(MIXTURE, KEY, jnp.array(3))[0].x.shape == (3,)
    assert alws.draw(CONDITIONAL, KEY, 3, {"x": 1.0})[0].x.shape == (3,)
    for condition in (1.0, {"y": 1.0}, {"x": "a"}):
        with pytest.raises((TypeError, ValueError), match=r"must run for one|`condition` must be"):
            alws.draw(CONDITIONAL, KEY, 3, condition)
    with pytest.raises(TypeError, match="given to a model without any"):
        alws.draw(MIXTURE, KEY, 3, 1.0)


@pytest.mark.parametrize(
    ("z", "x", "message"),
    [
        (0, "a", "`x` must be real numbers, got text"),
        (0, 1j, "`x` must be real numbers, got complex"),
        (0, None, "`x` must have the structure of one draw"),
        (0, np.zeros(5), r"`x` must have the shape of one draw, \(\); got \(5,\)"),
        (np.zeros(2, int), 1.0, "Use `jax.vmap` for many"),
        (0.5, 1.0, "`z` must be int32 as one draw is"),
        (None, 1.0, "`z` must have the structure"),
    ],
)
def test_what_is_no_draw_has_no_log_joint(z, x, message):
    with pytest.raises(ValueError, match=message):
        alws.log_joint(MIXTURE, z, x)


@pytest.mark.parametrize(
    ("log_joint", "message"),
    [
        (lambda self, z, x: None, "must return a scalar"),
        (lambda self, z, x: jnp.ones(3), r"must return a scalar for one example, got shape \(3,\)"),
        (lambda self, z, x: 1j, "must be floating point"),
        (lambda self, z, x: 1 / 0, "it raised ZeroDivisionError"),
        (lambda self, z: 0.0, "must allow for the calls"),
    ],
)
def test_densities_that_are_no_number_are_refused(log_joint, message):
    with pytest.raises((TypeError, ValueError), match=message):
        alws.log_joint(with_method(log_joint=log_joint), 0, 1.0)


def test_a_log_joint_may_be_traced():
    x = jnp.linspace(-1.0, 1.0, 5)
    each = jax.jit(jax.vmap(lambda z, x: alws.log_joint(MIXTURE, z, x)))(jnp.zeros(5, int), x)
    np.testing.assert_allclose(each, jnp.log(0.5) + norm.logpdf(x, -1.0), rtol=1e-6)
    slope = jax.grad(lambda m: alws.log_joint(m, 0, 1.0))(MIXTURE).means
    np.testing.assert_allclose(slope, [2.0, 0.0])
    draws = jax.jit(lambda m, k: alws.draw(m, k, 4)[0])(MIXTURE, KEY)
    np.testing.assert_array_equal(draws.x, alws.draw(MIXTURE, KEY, 4)[0].x)


@pytest.mark.parametrize(
    ("x", "message"), [(jnp.nan, "every draw from the model"), (1.0, "all draws have the same")]
)
def test_nothing_is_expected_of_draws_that_tell_nothing(x, message):
    model = with_method(sample=lambda self, key: (jax.random.bernoulli(key).astype(int), x))
    with pytest.raises(ValueError, match=message):
        alws.expectation(model, lambda z: z, np.zeros(5), key=KEY, sleep_samples=20)
