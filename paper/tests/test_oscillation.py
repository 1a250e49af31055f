"""The rotating latent, the period of a sequence, and what can be decoded from latents."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from alws_paper.oscillation import experiment as page
from alws_paper.oscillation.data import PIXELS, image, oscillations, rotate


def test_rotation_turns_by_the_angle_and_settles_on_a_circle():
    z = jnp.array([0.4, 0.0])
    turned = rotate(z)
    np.testing.assert_allclose(jnp.arctan2(turned[1], turned[0]), jnp.pi / 6, rtol=1e-5)
    np.testing.assert_allclose(jnp.linalg.norm(turned), 1 / (1 + np.exp(-0.4)), rtol=1e-5)
    for _ in range(50):
        z = rotate(z)
    length = float(jnp.linalg.norm(z))
    np.testing.assert_allclose(length, 1 / (1 + np.exp(-4 * (length - 0.3))), rtol=1e-4)


def test_images_show_the_first_coordinate(key):
    images, latents = oscillations(key, 5, 40)
    assert images.shape == (5, 40, PIXELS)
    clean = jax.vmap(jax.vmap(image))(latents[..., 0])
    assert abs(float((images - clean).std()) - 0.05) < 0.005
    np.testing.assert_allclose(latents[:, 0], np.tile([0.8, 0.0], (5, 1)))
    noise = latents[:, 1:] - jax.vmap(jax.vmap(rotate))(latents[:, :-1])
    assert abs(float(noise.std()) - 0.1) < 0.02


def test_period_of_a_known_rhythm_and_of_the_data(key):
    t = np.arange(100)
    wave = np.sin(2 * np.pi * t / 9)[None, :, None] * np.ones((3, 1, 4))
    assert page.period(wave) == 9
    assert page.period(np.asarray(oscillations(key, 20, 100)[0])) == 12


def test_decodability_knows_a_velocity_when_it_sees_one():
    phase = 2 * np.pi * np.arange(100) / 12
    position, velocity = np.cos(phase), np.sin(phase)
    images = np.asarray(jax.vmap(image)(jnp.asarray(position, jnp.float32)))[None]
    both = np.stack([position, velocity], axis=1)[None]
    scores = page.decodability(page.Generated(both, images))
    assert min(scores.values()) > 0.95
    one = np.stack([position, position**3], axis=1)[None]
    blind = page.decodability(page.Generated(one, images))
    assert blind["position"] > 0.95
    assert blind["velocity"] < 0.1


def test_density_is_that_of_noise_and_images(key):
    model = page.Oscillator(key, 4)
    z, x = model.sample(key)
    state, total = model.first, 0.0
    for t in range(4):
        total += dist.Normal().log_prob(z.steps[t]).sum()
        state = model.move(state) + jnp.exp(model.log_latent_noise) * z.steps[t]
        total += dist.Normal(model.show(state), 1.0).log_prob(x[t]).sum()
    np.testing.assert_allclose(model.log_joint(z, x), total, rtol=1e-5)


def test_claims_follow_the_numbers(key):
    images, latents = (np.asarray(a) for a in oscillations(key, 20, 100))
    good = page.claims(images, page.Generated(latents, images), [0.0])
    assert [claim.holds for claim in good] == [True, True]
    still = np.broadcast_to(images.mean(axis=(0, 1)), images.shape) + 0.01 * images
    bad = page.claims(images, page.Generated(latents, still), [0.0])
    assert not bad[0].holds


def test_longer_sequences_come_from_the_same_model(key):
    model = page.Oscillator(key, 5)
    generated = page.generate(model, key, 3)
    assert generated.images.shape == (3, page.GENERATED, PIXELS)
    np.testing.assert_allclose(
        generated.images[0, 7], model.show(jnp.asarray(generated.states[0, 7])), rtol=1e-4
    )


def test_the_best_start_is_the_highest_that_a_density_can_reach(key):
    model = page.Oscillator(key, 12)
    object.__setattr__(model, "log_pixel_noise", jnp.array(-1.5))
    z, x = model.sample(key)
    z = jax.tree.map(jnp.zeros_like, z)
    mode = jax.vmap(model.show)(model.states(z, x)[1])
    limit = page.attainable(model)
    np.testing.assert_allclose(model.log_joint(z, mode), limit, rtol=1e-5)
    assert page.highest([20.0, limit - 1, 1e5, 10.0], [limit] * 4) == 1
    assert page.highest([1e5, 2e5], [limit] * 2) == 1
