"""Every image method in the common loop on small images, and a GAN on a known distribution."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alws import CheckpointError
from alws.images import GRAPHS, METHODS, Amortised, Bounded, connected, convolutional, train
from alws.images.adversarial import Adversarial
from alws.images.methods import vae
from alws.images.protocol import Method, Pair
from alws.runtime import compiled

SHAPE = (1, 8, 8)
SMALL = {
    "ALWS-F": {"sleep_samples": 40},
    "ALWS-A": {"sleep_samples": 40, "adapt_after": 1},
    "AL-P": {"particles": 3},
    "VAE": {},
    "VAE-SNF": {"vectors": 2, "steps": 2},
    "SIVI": {"mixing": 2, "draws": 2},
    "RWS": {"proposals": 4},
    "WGAN-GP": {"critic_steps": 2},
}
CONVOLUTIONAL = ("ALWS-F", "AL-P", "WGAN-GP")


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
def test_every_method_moves_its_generator_and_stays_finite(name, key):
    method = build(name)
    assert isinstance(method, Method)
    assert method.name == name
    data = images()
    step = compiled(method.step)
    first = state = compiled(method.initialise, once=True)(key, data)
    for start in (0, 20):
        state = step(state, data[start : start + 20])
    assert int(state.step) == 2
    assert np.isfinite(state.objective)
    for before, after in zip(numbers(first.learnt), numbers(state.learnt), strict=True):
        assert np.isfinite(after).all()
        if before.ndim > 0 and name != "ALWS-F":
            assert np.any(before != after)
    before, after = (numbers(method.generator(s).network) for s in (first, state))
    assert all(np.any(a != b) for a, b in zip(before, after, strict=True))
    if name == "ALWS-F":
        kernels = [s.learnt.gradient_model for s in (first, state)]
        assert eqx.tree_equal(*kernels)
    x = method.generator(state).likelihood(jnp.zeros(3)).sample(key)
    assert np.isfinite(x).all()


def test_a_graph_with_bits_is_fitted_by_the_same_method(key):
    def start(key):
        return GRAPHS["feedback-skip"](SHAPE, Bounded(), key=key, bits=4, continuous=4, hidden=8)

    method = Amortised("ALWS-F", start, sleep_samples=40)
    data = images()
    first = compiled(method.initialise, once=True)(key, data)
    state = compiled(method.step)(first, data)
    for before, after in zip(*(numbers(method.generator(s)) for s in (first, state)), strict=True):
        assert np.isfinite(after).all()
        assert np.any(before != after)


def test_training_climbs_and_goes_on_bit_for_bit(key, tmp_path):
    method = vae(connected(Bounded(), SHAPE, hidden=8, latents=2), learning_rate=0.01)
    data, seen = images(), []
    whole = train(method, data, key=key, steps=300, batch_size=20, every=50, report=seen.append)
    assert [t.steps for t in seen] == [50, 100, 150, 200, 250, 300]
    assert seen[-1].seconds == whole.seconds > seen[0].seconds > 0
    assert whole.state.objective > seen[0].state.objective + 20
    pixel_noise = jnp.exp(method.generator(whole.state).output.log_noise)
    assert 0.08 < pixel_noise < 0.3

    path = tmp_path / "vae.npz"
    train(method, data, key=key, steps=120, batch_size=20, checkpoint=path)
    resumed = train(method, data, key=key, steps=300, batch_size=20, checkpoint=path)
    assert resumed.steps == 300
    for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(resumed.state), strict=True):
        if eqx.is_array(a):
            assert bool(jnp.all(a == b))
    spent = train(method, data, key=key, seconds=0.0, batch_size=20, checkpoint=path)
    assert spent.steps == 300
    other = build("VAE-SNF")
    with pytest.raises(CheckpointError, match=r"written by VAE and cannot be resumed by VAE-SNF"):
        train(other, data, key=key, steps=1, batch_size=20, checkpoint=path)


def test_impossible_training_is_refused(key):
    method = build("VAE")
    with pytest.raises(ValueError, match=r"got neither"):
        train(method, images(), key=key)
    with pytest.raises(ValueError, match=r"at most the number of images, 60; got 100"):
        train(method, images(), key=key, steps=1)
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


def test_gan_reaches_a_gaussian(key):
    covariance = np.array([[1.0, 0.6], [0.6, 0.8]])
    x = np.random.default_rng(0).multivariate_normal([1.0, -0.5], covariance, 2000)

    def start(key):
        critic = eqx.nn.MLP(2, "scalar", 32, 2, key=key)
        return Pair(critic, Plane(0.2 * jnp.eye(2), jnp.zeros(2)))

    method = Adversarial("WGAN-GP", start, critic_steps=2, learning_rate=3e-3)
    found = train(
        method, jnp.asarray(x, jnp.float32), key=key, steps=2000, batch_size=200
    ).state.learnt.model
    np.testing.assert_allclose(found.shift, x.mean(axis=0), atol=0.15)
    np.testing.assert_allclose(found.scale @ found.scale.T, np.cov(x.T), atol=0.2)
