"""Parameters on which a density does not depend are named, however the fit is made."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.stats import norm

import alws

KEY = jax.random.key(0)
DATA = 1 + 2 * np.random.default_rng(0).normal(size=100)
SEQUENCES = np.random.default_rng(0).normal(size=(3, 8)).cumsum(axis=1)


class Noisy(eqx.Module):
    """z ~ N(0, 1), x ~ N(mean + load·z, 1); `how` says what load is of the parameters."""

    mean: jax.Array
    spare: jax.Array
    how: str = eqx.field(static=True)

    def load(self):
        return {
            "nothing": 1.0,
            "held": jnp.exp(jax.lax.stop_gradient(self.spare)).sum(),
            "plain": self.spare.sum(),
            "square": (self.spare**2).sum(),
            "clipped": jnp.clip(self.spare, 1.0, 3.0).sum(),
            "triangle": jnp.tril(self.spare).sum() if self.spare.ndim == 2 else 1.0,
            "first": self.spare[0] if self.spare.shape else 1.0,
        }[self.how]

    def sample(self, key):
        z, noise = jax.random.normal(key, (2,))
        return z, self.mean + self.load() * z + noise

    def log_joint(self, z, x):
        return norm.logpdf(z) + norm.logpdf(x, self.mean + self.load() * z)


class Spike(Noisy):
    """Half of the latents are 0: scores are regressed."""

    def sample(self, key):
        there, k1, k2 = jax.random.split(key, 3)
        z = jnp.where(jax.random.bernoulli(there), jax.random.normal(k1), 0.0)
        return z, self.mean + z + jax.random.normal(k2)

    def log_joint(self, z, x):
        prior = jnp.log(0.5) + jnp.where(z == 0, 0.0, norm.logpdf(z))
        return prior + norm.logpdf(x, self.mean + z)


class Walk(alws.StateSpace):
    log_noise: jax.Array
    spare: jax.Array
    cubed: bool = eqx.field(static=True, default=False)
    times: int = eqx.field(static=True, default=8)

    def initial(self):
        return dist.Normal(0.0, 1.0)

    def transition(self, state):
        return dist.Normal(state, 0.1)

    def observation(self, state):
        return dist.Normal(state**3 / 10 if self.cubed else state, jnp.exp(self.log_noise))


class Effects(eqx.Module):
    """An effect for each kind of unit, of which the condition says the kind."""

    effects: jax.Array

    def sample(self, key, kind):
        z, noise = jax.random.normal(key, (2,))
        return z, self.effects[kind] + z + noise

    def log_joint(self, z, x, kind):
        return norm.logpdf(z) + norm.logpdf(x, self.effects[kind] + z)


def noisy(how, spare=0.3, kind=Noisy):
    return kind(jnp.array(0.5), jnp.asarray(spare), how)


NEVER, NOT_HERE = "does not depend on `{}`, which stayed", "no slope in `{}` where it stands"
TOLD = {
    "a leaf": (noisy("nothing"), DATA, NEVER.format(".spare")),
    "no slope": (noisy("square", 0.0), DATA, NOT_HERE.format(".spare")),
    "clipped": (noisy("clipped", 0.0), DATA, NOT_HERE.format(".spare")),
    "by scores": (noisy("", kind=Spike), DATA, NEVER.format(".spare")),
    "filtered": (Walk(jnp.array(0.0), jnp.ones(2)), SEQUENCES, NEVER.format(".spare")),
    "on a grid": (Walk(jnp.array(0.0), jnp.ones(2), True), SEQUENCES, NEVER.format(".spare")),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_has_no_influence_is_named(name):
    model, data, message = TOLD[name]
    with pytest.warns(RuntimeWarning) as warned:
        result = alws.fit(model, data, key=KEY)
    assert message in str(result.verdict)
    assert message in str(warned[-1].message)
    assert not result.verdict.trusted


@pytest.mark.parametrize(("how", "spare"), [("held", 0.3), ("plain", 0.0)])
def test_constants_and_symmetric_starts_are_not_accused(how, spare):
    result = alws.fit(noisy(how, spare), DATA, key=KEY)
    assert result.verdict.trusted
    assert (float(result.model.spare) == np.float32(spare)) == (how == "held")


def test_parts_of_an_array_are_named_and_triangles_are_not():
    result = alws.fit(noisy("first", [1.0, 2.0]), DATA, key=KEY)
    assert str(result.verdict).endswith("a maximum; log p(z, x) does not depend on `.spare[1]`")
    assert result.verdict.trusted
    triangle = alws.fit(noisy("triangle", np.eye(2)), DATA, key=KEY)
    assert str(triangle.verdict) == "within 0.01 nats of a maximum"


def test_an_effect_that_no_unit_has_is_named_but_not_one_that_a_prior_tells():
    model, kinds = Effects(jnp.zeros(3)), np.arange(100) % 2
    result = alws.fit(model, DATA, key=KEY, conditions=kinds)
    assert "does not depend on `.effects[2]`" in str(result.verdict)
    told = alws.fit(
        model, DATA, key=KEY, conditions=kinds, log_prior=lambda m: -((m.effects - 1) ** 2).sum()
    )
    assert str(told.verdict) == "within 0.01 nats of a maximum"


def test_the_verdict_on_a_fit_by_steps_names_it_too():
    settings = alws.Settings(sleep_samples=50, validation_samples=10)
    result = alws.fit(noisy("nothing"), DATA, key=KEY, steps=2, settings=settings)
    assert NEVER.format(".spare") in str(result.verdict)
