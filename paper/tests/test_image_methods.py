"""Every image method in the common loop on small images, and a GAN on a known distribution."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alws import CheckpointError
from alws.likelihoods import Gaussian
from alws.wake_sleep import Adapt
from alws_paper.images import GRAPHS, METHODS, Amortised, Bounded, connected, convolutional, train
from alws_paper.images.adversarial import Adversarial
from alws_paper.images.methods import vae
from alws_paper.images.protocol import Method, Pair
from alws_paper.images.rivals.sivi import SemiImplicit

SHAPE = (1, 8, 8)
SMALL = {
    "ALWS-F": {"sleep_samples": 40},
    "ALWS-A": {"sleep_samples": 40, "adapt": Adapt(ridge=False, after=1)},
    "ALWS": {"sleep_samples": 40},
    "AL-P": {"particles": 3},
    "VAE": {},
    "VAE-SNF": {"vectors": 2, "steps": 2},
    "SIVI": {"mixing": 2, "draws": 2},
    "RWS": {"proposals": 4},
    "WGAN-GP": {"critic_steps": 2},
}
CONVOLUTIONAL = ("AL-P", "WGAN-GP")


def images(number=60):
    """A bright square in one of two corners, and noise."""
    generator = np.random.default_rng(0)
    x = generator.normal(-0.9, 0.1, (number, *SHAPE))
    corner = np.arange(number) % 2
    x[corner == 0, :, :4, :4] += 1.5
    x[corner == 1, :, 4:, 4:] += 1.5
    return jnp.asarray(x, jnp.float32)


def build(name, **more):
    if name in CONVOLUTIONAL:
        architecture = convolutional(Bounded(), SHAPE, width=2, latents=3, scale=0.1)
    else:
        architecture = connected(Bounded(), SHAPE, hidden=8, latents=3)
    return METHODS[name](architecture, **SMALL[name], **more)


def numbers(tree):
    return [np.asarray(a) for a in jax.tree.leaves(tree) if eqx.is_inexact_array(a)]


@pytest.mark.parametrize("name", list(METHODS))
def test_every_step_keeps_the_shapes_of_its_state(name, quick):
    method, data = build(name), images()
    assert isinstance(method, Method)
    assert method.name == name
    first = eqx.filter_eval_shape(method.initialise, quick, data)
    after = eqx.filter_eval_shape(method.step, first, data[:20])
    assert jax.tree.structure(first) == jax.tree.structure(after)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(after), strict=True):
        if hasattr(a, "shape"):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)


FAST = ("ALWS-F", "WGAN-GP")
SLOW = [name for name in METHODS if name not in FAST]


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_every_method_moves_its_generator_and_stays_finite(name, quick):
    method, data = build(name), images()
    step = eqx.filter_jit(method.step)
    first = state = eqx.filter_jit(method.initialise)(quick, data)
    for start in (0, 20):
        state = step(state, data[start : start + 20])
    assert int(state.step) == 2
    assert np.isfinite(state.objective)
    assert all(np.isfinite(a).all() for a in numbers(state.learnt))
    before, after = (numbers(method.generator(s).network) for s in (first, state))
    assert all(np.any(a != b) for a, b in zip(before, after, strict=True))
    beside = "regression" if name.startswith("ALWS") else "beside"
    before, after = (numbers(getattr(s.learnt, beside)) for s in (first, state))
    weights = [(a, b) for a, b in zip(before, after, strict=True) if a.ndim > 1]
    assert weights
    assert all(np.any(a != b) == (name != "ALWS-F") for a, b in weights)
    x = method.generator(state).likelihood(jnp.zeros(3)).sample(quick)
    assert np.isfinite(x).all()


@pytest.mark.slow
def test_a_graph_with_bits_is_fitted_by_the_same_method(quick):
    def start(key):
        return GRAPHS["feedback-skip"](SHAPE, Bounded(), key=key, bits=4, continuous=4, hidden=8)

    method = Amortised("ALWS-F", start, sleep_samples=40)
    data = images()
    first = eqx.filter_jit(method.initialise)(quick, data)
    state = eqx.filter_jit(method.step)(first, data)
    for before, after in zip(*(numbers(method.generator(s)) for s in (first, state)), strict=True):
        assert np.isfinite(after).all()
        assert np.any(before != after)


def test_training_climbs_and_goes_on_bit_for_bit(quick, tmp_path):
    method = vae(connected(Bounded(), SHAPE, hidden=8, latents=2), learning_rate=0.01)
    data, seen = images(), []
    whole = train(method, data, key=quick, steps=160, batch_size=20, every=40, report=seen.append)
    assert [t.steps for t in seen] == [40, 80, 120, 160]
    assert seen[-1].seconds == whole.seconds > seen[0].seconds > 0
    assert whole.state.objective > seen[0].state.objective + 10
    pixel_noise = jnp.exp(method.generator(whole.state).output.log_noise)
    assert 0.08 < pixel_noise < 0.5

    path = tmp_path / "vae.npz"
    train(method, data, key=quick, steps=60, batch_size=20, checkpoint=path)
    resumed = train(method, data, key=quick, steps=160, batch_size=20, checkpoint=path)
    assert resumed.steps == 160
    for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(resumed.state), strict=True):
        if eqx.is_array(a):
            assert bool(jnp.all(a == b))
    spent = train(method, data, key=quick, seconds=0.0, batch_size=20, checkpoint=path)
    assert spent.steps == 160
    other = build("VAE-SNF")
    with pytest.raises(CheckpointError, match=r"written by VAE and cannot be resumed by VAE-SNF"):
        train(other, data, key=quick, steps=1, batch_size=20, checkpoint=path)


def test_impossible_training_is_refused(quick):
    method = build("VAE")
    with pytest.raises(ValueError, match=r"got neither"):
        train(method, images(), key=quick)
    with pytest.raises(ValueError, match=r"at most the number of images, 60; got 100"):
        train(method, images(), key=quick, steps=1)
    with pytest.raises(ValueError, match=r"side 8, 16, 32, …; got 28×28"):
        convolutional(Bounded(), (1, 28, 28))


class Plane(eqx.Module):
    """G(z) = A z + b."""

    scale: jax.Array
    shift: jax.Array

    def sample_latent(self, key):
        return jax.random.normal(key, (2,))

    def mean(self, z):
        return self.scale @ z + self.shift


@pytest.mark.slow
def test_gan_reaches_a_gaussian(quick):
    covariance = np.array([[1.0, 0.6], [0.6, 0.8]])
    x = np.random.default_rng(0).multivariate_normal([1.0, -0.5], covariance, 2000)

    def start(key):
        critic = eqx.nn.MLP(2, "scalar", 32, 2, key=key)
        return Pair(critic, Plane(0.2 * jnp.eye(2), jnp.zeros(2)))

    method = Adversarial("WGAN-GP", start, critic_steps=4, learning_rate=1e-3)
    found = train(
        method, jnp.asarray(x, jnp.float32), key=quick, steps=4000, batch_size=100
    ).state.learnt.model
    np.testing.assert_allclose(found.shift, x.mean(axis=0), atol=0.15)
    np.testing.assert_allclose(found.scale @ found.scale.T, np.cov(x.T), atol=0.2)


@pytest.mark.slow
def test_weighted_draws_tighten_the_semi_implicit_bound(quick):
    """J = 5 draws against one, for ψ ~ N(0, 0.4²), z ~ N(ψ, 0.2²) and z ~ N(0, 1), x ~ N(z, 1)."""

    @eqx.filter_jit
    def bound(draws):
        q = SemiImplicit(lambda k, n: 0.4 * jax.random.normal(k, (n, 1)), jnp.log(jnp.full(1, 0.2)))
        keys = jax.random.split(quick, 4000)
        model = Line()
        return jax.vmap(lambda k: q.bound(model, jnp.ones(1), k, mixing=200, draws=draws))(keys)

    exact = jax.scipy.stats.norm.logpdf(1.0, 0.0, jnp.sqrt(2.0))
    one, five = bound(1).mean(), bound(5).mean()
    assert one + 0.05 < five < exact + 0.01


class Line(eqx.Module):
    def sample_latent(self, key):
        return jax.random.normal(key, (1,))

    def log_prior(self, z):
        return jax.scipy.stats.norm.logpdf(z).sum()

    def likelihood(self, z):
        return Gaussian(z, 1.0)
