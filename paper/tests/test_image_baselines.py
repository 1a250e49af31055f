"""Bounds, flows and gradients of the image baselines against a linear-Gaussian model's exact ones.

z ~ N(0, I), x | z ~ N(A z, σ²I) with orthogonal columns of A, so that the exact posterior has
independent entries; log p(x) and its gradient are known.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alws.likelihoods import Gaussian
from alws.model import log_joint, simulate
from alws_paper.images.rivals.particles import particle_objective, particles, simulator_loss
from alws_paper.images.rivals.reweighted import reweighted_objective, sleep, wake
from alws_paper.images.rivals.sivi import SemiImplicit
from alws_paper.images.rivals.sylvester import SylvesterEncoder, SylvesterStep, orthogonalise
from alws_paper.images.rivals.wgan import gradient_penalty
from alws_paper.shared.bounds import mean_bound
from alws_paper.shared.vae import DiagonalGaussian

NOISE = 0.5
X = jnp.array([1.0, -0.5, 0.7])


class Factors(eqx.Module):
    loadings: jax.Array
    log_noise: jax.Array

    def sample_latent(self, key):
        return jax.random.normal(key, (2,))

    def log_prior(self, z):
        return jax.scipy.stats.norm.logpdf(z).sum()

    def likelihood(self, z):
        return Gaussian(self.loadings @ z, jnp.exp(self.log_noise))

    def log_marginal(self, x):
        covariance = self.loadings @ self.loadings.T + jnp.exp(2 * self.log_noise) * jnp.eye(3)
        return jax.scipy.stats.multivariate_normal.logpdf(x, jnp.zeros(3), covariance)


MODEL = Factors(jnp.array([[1.0, 0.0], [0.5, 0.0], [0.0, 0.8]]), jnp.log(NOISE))


class Encoder(eqx.Module):
    weight: jax.Array
    log_scale: jax.Array

    def __call__(self, x):
        return DiagonalGaussian(self.weight @ x, self.log_scale)


def exact_encoder():
    precision = 1 + jnp.sum(MODEL.loadings**2, axis=0) / NOISE**2
    return Encoder((MODEL.loadings / NOISE**2 / precision).T, -jnp.log(precision) / 2)


def poor_encoder():
    best = exact_encoder()
    return Encoder(0.6 * best.weight, best.log_scale + 0.4)


@eqx.filter_jit
def bound(encoder, key, number, repeats=4000):
    return mean_bound(encoder, MODEL, jnp.broadcast_to(X, (repeats, 3)), key, number)


def test_bounds_rise_with_proposals_and_are_tight_at_the_posterior(quick):
    exact = MODEL.log_marginal(X)
    np.testing.assert_allclose(bound(exact_encoder(), quick, 5, 3), exact, atol=1e-4)
    elbo, many = (bound(poor_encoder(), quick, n) for n in (1, 20))
    assert elbo + 0.05 < many < exact + 0.01
    q, p = poor_encoder()(X), exact_encoder()(X)
    ratio, shift = jnp.exp(q.log_scale - p.log_scale), (q.mean - p.mean) / jnp.exp(p.log_scale)
    divergence = jnp.sum((ratio**2 + shift**2 - 1) / 2 - jnp.log(ratio))
    np.testing.assert_allclose(elbo, exact - divergence, atol=0.05)


def test_orthogonalise_is_the_polar_factor(key):
    matrix = jax.random.normal(key, (6, 3)) * jnp.array([1.0, 0.01, 5.0])
    found = orthogonalise(matrix)
    u, _, vt = np.linalg.svd(np.asarray(matrix, np.float64), full_matrices=False)
    np.testing.assert_allclose(found, u @ vt, atol=1e-4)
    np.testing.assert_allclose(found.T @ found, np.eye(3), atol=1e-5)


def test_sylvester_determinant_is_that_of_the_jacobian(quick):
    keys = jax.random.split(quick, 5)
    shapes = ((6, 3), (3, 3), (3, 3), (3,))
    arrays = [2 * jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=False)]
    z = jax.random.normal(keys[4], (6,))

    @jax.jit
    def both(arrays, z):
        step = SylvesterStep(*arrays)
        jacobian = jax.jacfwd(lambda z: step(z)[0])(z)
        return step(z)[1], jnp.linalg.slogdet(jacobian)

    found, (sign, expected) = both(arrays, z)
    assert sign == 1 and abs(expected) > 0.1  # noqa: PT018
    np.testing.assert_allclose(found, expected, rtol=1e-4)


class Plain(eqx.Module):
    features: int = eqx.field(static=True, default=3)

    def __call__(self, x):
        return x


def test_sylvester_posterior_has_a_normalised_density(quick):
    """E_q[N(z)/q(z)] = 1 for any q that covers the normal distribution."""
    encoder = SylvesterEncoder(Plain(), latents=2, vectors=2, steps=3, key=quick)
    encoder = eqx.tree_at(lambda e: e.gaussian.weight, encoder, replace_fn=jnp.zeros_like)
    encoder = eqx.tree_at(lambda e: e.gaussian.bias, encoder, jnp.array([0.0, 0.0, 0.3, 0.3]))

    @eqx.filter_jit
    def ratios(encoder):
        z, log_q = encoder(3 * X).propose(quick, 20_000)
        return jnp.exp(jax.scipy.stats.norm.logpdf(z).sum(axis=1) - log_q), log_q

    found, log_q = ratios(encoder)
    assert log_q.std() > 0.5
    error = found.std() / np.sqrt(len(found))
    assert error < 0.02
    np.testing.assert_allclose(found.mean(), 1, atol=4 * error)


def test_more_vectors_than_latents_are_refused(key):
    with pytest.raises(ValueError, match=r"at most the number of latents, 2; got 3"):
        SylvesterEncoder(Plain(), latents=2, vectors=3, key=key)


@eqx.filter_jit
def semi_implicit(spread, scale, key, mixing, repeats=4000):
    """The bound of ψ ~ N(m, spread²), z ~ N(ψ, scale²), m the posterior's mean."""
    mean = exact_encoder()(X).mean
    q = SemiImplicit(
        lambda k, n: mean + spread * jax.random.normal(k, (n, 2)), jnp.log(scale) * jnp.ones(2)
    )
    keys = jax.random.split(key, repeats)
    return jax.vmap(lambda k: q.bound(MODEL, X, k, mixing=mixing))(keys).mean()


def elbo_of(scale):
    """The ELBO of N(m, scale²), m the posterior's mean, in closed form."""
    ratio = scale / jnp.exp(exact_encoder()(X).log_scale)
    return MODEL.log_marginal(X) - jnp.sum((ratio**2 - 1) / 2 - jnp.log(ratio))


def test_semi_implicit_bound_is_the_elbo_when_nothing_is_mixed(quick):
    found = semi_implicit(0.0, 0.6, quick, 3)
    np.testing.assert_allclose(found, elbo_of(0.6), atol=0.03)


def test_semi_implicit_bound_rises_to_the_elbo_of_the_mixture(quick):
    """ψ ~ N(m, s²) makes q(z) = N(m, s² + σ²)."""
    goal = elbo_of(np.sqrt(0.4**2 + 0.2**2))
    few, many = (semi_implicit(0.4, 0.2, quick, n) for n in (2, 200))
    assert few < many - 0.1
    np.testing.assert_allclose(many, goal, atol=0.05)


def test_reweighted_wake_gradient_is_that_of_the_likelihood(quick):
    exact = eqx.filter_grad(lambda m: m.log_marginal(X))(MODEL)

    @eqx.filter_jit
    def gradient(encoder, proposals, repeats):
        def mean(model):
            keys = jax.random.split(quick, repeats)
            return jax.vmap(lambda k: wake(encoder, model, X, k, proposals=proposals).theta)(
                keys
            ).mean()

        return eqx.filter_grad(mean)(MODEL)

    for encoder, proposals, repeats in ((exact_encoder(), 1, 20_000), (poor_encoder(), 500, 40)):
        found = gradient(encoder, proposals, repeats)
        np.testing.assert_allclose(found.loadings, exact.loadings, atol=0.06)
        np.testing.assert_allclose(found.log_noise, exact.log_noise, atol=0.06)


def test_reweighted_encoder_updates_vanish_at_the_posterior_and_point_there(quick):
    @eqx.filter_jit
    def gradients(encoder):
        def wake_phi(encoder):
            keys = jax.random.split(quick, 100)
            return jax.vmap(lambda k: wake(encoder, MODEL, X, k, proposals=100).phi)(keys).mean()

        return (
            eqx.filter_grad(wake_phi)(encoder),
            eqx.filter_grad(sleep)(encoder, MODEL, quick, draws=10_000),
        )

    best, poor = exact_encoder(), poor_encoder()
    towards = jax.tree.map(jnp.subtract, best, poor)
    for at_best, at_poor in zip(gradients(best), gradients(poor), strict=True):
        for leaf in jax.tree.leaves(at_best):
            np.testing.assert_allclose(leaf, 0, atol=0.12)
        products = [
            jnp.sum(g * d) for g, d in zip(*map(jax.tree.leaves, (at_poor, towards)), strict=True)
        ]
        assert sum(products) > 0.2


def test_penalty_of_a_linear_critic_is_known(key):
    weight = jnp.array([[1.0, 2.0], [2.0, 0.0]])
    real, fake = jnp.ones((5, 2, 2)), jnp.zeros((5, 2, 2))
    found = gradient_penalty(lambda x: jnp.sum(weight * x) + 7, real, fake, key)
    np.testing.assert_allclose(found, (3 - 1) ** 2, rtol=1e-5)


def test_penalty_looks_between_real_and_generated(quick):  # E (|x| − 1)² = 1/3, x uniform
    real, fake = jnp.ones((20_000, 1)), jnp.zeros((20_000, 1))
    found = gradient_penalty(lambda x: x[0] ** 2 / 2, real, fake, quick)
    np.testing.assert_allclose(found, 1 / 3, atol=0.01)


class Affine(eqx.Module):
    """S(x, n) = W x + C n."""

    weight: jax.Array
    spread: jax.Array

    def __call__(self, x, key, number):
        return self.weight @ x + jax.random.normal(key, (number, 2)) @ self.spread.T


def test_particles_learn_the_gradient_of_the_likelihood(quick):
    @eqx.filter_jit
    def train(simulator):
        optimiser = optax.adam(optax.cosine_decay_schedule(0.03, 800))

        def step(carry, key):
            simulator, state = carry
            sleep_key, loss_key = jax.random.split(key)
            gradient = jax.grad(simulator_loss)(
                simulator, MODEL, simulate(MODEL, sleep_key, 100), loss_key, number=10
            )
            updates, state = optimiser.update(gradient, state)
            return (optax.apply_updates(simulator, updates), state), None

        keys = jax.random.split(quick, 800)
        return jax.lax.scan(step, (simulator, optimiser.init(simulator)), keys)[0][0]

    trained = train(Affine(jnp.zeros((2, 3)), 0.1 * jnp.eye(2)))
    best = exact_encoder()
    np.testing.assert_allclose(trained.weight, best.weight, atol=0.06)
    covariance = trained.spread @ trained.spread.T
    np.testing.assert_allclose(covariance, jnp.diag(jnp.exp(2 * best.log_scale)), atol=0.06)

    @eqx.filter_jit
    def gradient(simulator):
        objective = lambda m: particle_objective(simulator, m, X[None], quick, number=20_000)  # noqa: E731
        return eqx.filter_grad(objective)(MODEL)

    found, exact = gradient(trained), eqx.filter_grad(lambda m: m.log_marginal(X))(MODEL)
    np.testing.assert_allclose(found.loadings, exact.loadings, atol=0.25)
    np.testing.assert_allclose(found.log_noise, exact.log_noise, atol=0.25)


def test_particle_loss_has_no_bias_from_few_particles(quick):
    """At the posterior it is E‖g − E[g | x]‖² = E‖g − g'‖²/2, g' of another draw from p(z | x)."""
    best = exact_encoder()
    simulator = Affine(best.weight, jnp.diag(jnp.exp(best.log_scale)))

    @eqx.filter_jit
    def losses(simulator):
        def loss(key):
            sleep_key, loss_key = jax.random.split(key)
            draws = simulate(MODEL, sleep_key, 200)
            return simulator_loss(simulator, MODEL, draws, loss_key, number=2), draws

        return jax.lax.map(loss, jax.random.split(quick, 400))

    found, draws = losses(simulator)
    z, x = (np.asarray(a).reshape(80_000, -1) for a in draws)
    noise = np.random.default_rng(0).normal(size=z.shape)
    other = x @ np.asarray(best.weight).T + np.exp(best.log_scale) * noise

    def gradients(z):
        residual = x - z @ np.asarray(MODEL.loadings).T
        loadings = residual[:, :, None] * z[:, None] / NOISE**2
        noise = (residual**2).sum(axis=1, keepdims=True) / NOISE**2 - 3
        return np.concatenate([loadings.reshape(len(z), -1), noise], axis=1)

    expected = ((gradients(z) - gradients(other)) ** 2).sum(axis=1).mean() / 2
    error = np.std(found) / 20
    assert error < 0.1 * expected
    np.testing.assert_allclose(np.mean(found), expected, atol=4 * error)


def test_directions_stand_for_the_whole_gradient(quick):
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


def test_the_objective_has_all_three_gradients(quick):
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
