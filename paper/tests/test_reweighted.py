"""The objective of reweighted wake-sleep against exact gradients of a linear-Gaussian model."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from test_image_baselines import MODEL, NOISE, X, exact_encoder, poor_encoder, quick  # noqa: F401

from alws_paper.images.rivals.reweighted import reweighted_objective


def test_the_objective_has_all_three_gradients(quick):  # noqa: F811
    """θ: ∇ log p(x). φ, for q = N(Wx, s²): the mean over wake and sleep of E[(z − Wx)xᵀ]/s²,

    where E[z | x] is known and, over the model, E[z xᵀ] = Aᵀ and E[x xᵀ] = AAᵀ + σ²I.
    """
    a, q, batch = MODEL.loadings, poor_encoder(), jnp.broadcast_to(X, (5000, 3))

    @eqx.filter_jit
    def gradients(both):
        return eqx.filter_grad(
            lambda b: reweighted_objective(b[0], b[1], batch, quick, proposals=100), has_aux=True
        )(both)

    (phi, theta), value = gradients((q, MODEL))
    exact = eqx.filter_grad(lambda model: model.log_marginal(X))(MODEL)
    np.testing.assert_allclose(theta.loadings, exact.loadings, atol=0.03)
    np.testing.assert_allclose(theta.log_noise, exact.log_noise, atol=0.03)
    np.testing.assert_allclose(value, MODEL.log_marginal(X), atol=0.02)
    wake = jnp.outer(exact_encoder().weight @ X - q.weight @ X, X)
    sleep = a.T - q.weight @ (a @ a.T + NOISE**2 * jnp.eye(3))
    expected = (wake + sleep) / 2 / jnp.exp(2 * q.log_scale)[:, None]
    np.testing.assert_allclose(phi.weight, expected, atol=0.06)
    assert jnp.abs(expected).max() > 0.3
