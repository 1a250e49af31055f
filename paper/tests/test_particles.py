"""The loss of AL-P's simulator along random directions against the gradients themselves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_image_baselines import MODEL, Affine, quick  # noqa: F401

from alws.model import log_joint, simulate
from alws_paper.images.rivals.particles import particles, simulator_loss


def test_directions_stand_for_the_whole_gradient(quick):  # noqa: F811
    """E_v (v·a)(v·b) = a·b, so many directions give the mean of a_k·a_l over pairs k ≠ l."""
    simulator, number = Affine(0.1 * jnp.ones((2, 3)), 0.3 * jnp.eye(2)), 4
    sleep = simulate(MODEL, quick, 50)
    made = particles(simulator, sleep.x, jax.random.split(quick)[0], number)

    @jax.jit
    def gradients(draws):
        one = eqx.filter_grad(lambda model, z, x: log_joint(model, z, x))
        found = jax.vmap(lambda z, x: one(MODEL, z, x))(*draws)
        return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(found)], 1)

    apart = gradients(made).reshape(50, number, -1) - gradients(sleep)[:, None]
    pairs = jnp.sum(apart.sum(axis=1) ** 2, axis=1) - jnp.sum(apart**2, axis=(1, 2))
    exact = pairs.mean() / (number * (number - 1))
    loss = eqx.filter_jit(simulator_loss)
    found = loss(simulator, MODEL, sleep, quick, number=number, directions=3000)
    np.testing.assert_allclose(found, exact, rtol=0.1)
    with pytest.raises(ValueError, match="`directions` must be a whole number of at least 1"):
        simulator_loss(simulator, MODEL, sleep, quick, number=number, directions=0)
