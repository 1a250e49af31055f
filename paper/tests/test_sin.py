"""The structured inference network against enumeration, draws and the conjugate update."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions.kl import kl_divergence
from scipy.special import logsumexp
from scipy.stats import invwishart, multivariate_normal

from alws_paper.pinwheel.conjugate import (
    Mixture,
    divergence,
    expected_statistics,
    inner,
    log_partition,
    mixture_prior,
    natural_step,
    scatter,
)
from alws_paper.pinwheel.sin import StructuredInference, fit_sin

K, D = 3, 2
SLOPE, SHIFT, NOISE = np.array([1.5, -0.7]), np.array([0.2, 0.1]), np.array([0.4, 0.6])
CUBATURE = np.sqrt(D) * np.concatenate([np.eye(D), -np.eye(D)])
"""Four points that average any quadratic function of standard normal variables exactly."""


def linear(weight, bias):
    layer = eqx.nn.Linear(*weight.shape[::-1], key=jax.random.key(0, impl="rbg"))
    return eqx.tree_at(lambda n: (n.weight, n.bias), layer, (jnp.array(weight), jnp.array(bias)))


def linear_model(log_variance=None):
    """A linear decoder, whose likelihood is itself a Gaussian potential in z₂."""
    generator = np.random.default_rng(0)
    exact = 2 * np.log(NOISE / np.abs(SLOPE))
    variance = exact if log_variance is None else np.asarray(log_variance)
    recognition = linear(
        np.concatenate([np.diag(1 / SLOPE), np.zeros((D, D))]),
        np.concatenate([-SHIFT / SLOPE, variance]),
    )
    return StructuredInference(
        linear(np.diag(SLOPE), SHIFT),
        jnp.log(jnp.array(NOISE)),
        recognition,
        jnp.array([0.3, -0.5, 0.0]),
        jnp.array(generator.normal(size=(K, D))),
        jnp.array(0.5 * np.eye(D) + 0.3 * np.tril(generator.normal(size=(K, D, D)), -1)),
    )


def parts(model):
    """π̃, μ̃, Σ̃ as NumPy arrays."""
    lower = np.tril(np.asarray(model.factors, float))
    weights = np.exp(np.asarray(model.logits, float))
    return weights / weights.sum(), np.asarray(model.means, float), lower @ lower.mT


def known(model):
    """E t(θ) when θ is known to be the model's own mixture φ."""
    weights, means, covariances = parts(model)
    precision = np.linalg.inv(covariances)
    pull = np.einsum("kde,ke->kd", precision, means)
    return Mixture(
        *(
            jnp.array(a)
            for a in (
                np.log(weights),
                pull,
                -precision / 2,
                -(pull * means).sum(axis=1) / 2,
                np.linalg.slogdet(precision)[1] / 2,
            )
        )
    )


def exact_joint(model, x):
    """log p(x, z₁=k): the decoder is linear, so x | z₁ is normal."""
    weights, means, covariances = parts(model)
    decoder = np.diag(SLOPE)
    return np.array(
        [
            np.log(w)
            + multivariate_normal.logpdf(
                x, decoder @ m + SHIFT, decoder @ c @ decoder.T + np.diag(NOISE**2)
            )
            for w, m, c in zip(weights, means, covariances, strict=True)
        ]
    )


def bound(model, x):
    noise = jnp.broadcast_to(jnp.array(CUBATURE)[:, None], (2 * D, K, D))
    return float(model.bound(jnp.array(x), known(model), noise)[0])


POINTS = np.array([[0.5, -0.2], [2.0, 1.0], [-1.0, 0.3]])


def test_bound_is_the_exact_likelihood_when_the_potential_is():
    model = linear_model()
    for x in POINTS:
        np.testing.assert_allclose(bound(model, x), logsumexp(exact_joint(model, x)), rtol=1e-5)


def test_bound_is_below_the_exact_likelihood_otherwise():
    for log_variance in ([-1.0, 1.0], [2.0, 2.0], [-4.0, -4.0]):
        model = linear_model(log_variance)
        for x in POINTS:
            assert bound(model, x) < logsumexp(exact_joint(model, x)) - 1e-3


def test_posterior_is_that_of_enumeration():
    model, x = linear_model(), POINTS[1]
    q = model.posterior(jnp.array(x))
    joint = exact_joint(model, x)
    np.testing.assert_allclose(q.log_weights, joint - logsumexp(joint), rtol=1e-4)
    _, means, covariances = parts(model)
    for k in range(K):
        precision = np.linalg.inv(covariances[k]) + np.diag((SLOPE / NOISE) ** 2)
        pull = np.linalg.solve(covariances[k], means[k]) + SLOPE * (x - SHIFT) / NOISE**2
        np.testing.assert_allclose(q.means[k], np.linalg.solve(precision, pull), rtol=1e-4)
        covariance = q.factors[k] @ q.factors[k].T
        np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-4, atol=1e-6)


def test_gradient_of_the_bound_is_that_of_finite_differences():
    """Through the reparameterised draws, for a parameter of φ and one of the recognition."""
    model, x = linear_model([-1.0, 1.0]), jnp.array(POINTS[0])
    expected = known(linear_model())
    noise = jnp.broadcast_to(jnp.array(CUBATURE)[:, None], (2 * D, K, D))

    def value(shift, width):
        moved = eqx.tree_at(
            lambda m: (m.means, m.recognition.bias),
            model,
            (model.means + shift, model.recognition.bias + width),
        )
        return moved.bound(x, expected, noise)[0]

    value = jax.jit(value)
    found = jax.grad(value, (0, 1))(0.0, 0.0)
    step = 1e-2
    numeric = [
        (value(step, 0.0) - value(-step, 0.0)) / (2 * step),
        (value(0.0, step) - value(0.0, -step)) / (2 * step),
    ]
    np.testing.assert_allclose(found, numeric, rtol=5e-3, atol=1e-3)


def some_natural(seed):
    generator = np.random.default_rng(seed)
    z = generator.normal(size=(K, 40, D)) + generator.normal(size=(K, 1, D))
    r = generator.uniform(0.2, 1.0, (K, 40))
    statistics = Mixture(
        *(
            jnp.array(a)
            for a in (
                r.sum(1),
                np.einsum("kn,knd->kd", r, z),
                np.einsum("kn,knd,kne->kde", r, z, z),
                r.sum(1),
                r.sum(1),
            )
        )
    )
    prior = mixture_prior(K, D)
    return natural_step(prior, prior, statistics, 1.0), statistics


def test_expected_statistics_are_those_of_draws():
    natural, _ = some_natural(0)
    expected = expected_statistics(natural)
    generator = np.random.default_rng(1)
    alpha = np.asarray(natural.weight)
    logs = np.log(generator.dirichlet(alpha, 20_000)).mean(axis=0)
    np.testing.assert_allclose(expected.weight, logs, rtol=0.01)
    s, m = np.asarray(scatter(natural)[0], float), np.asarray(natural.first[0] / natural.kappa[0])
    covariances = invwishart.rvs(float(natural.nu[0]), s, size=20_000, random_state=generator)
    precisions = np.linalg.inv(covariances)
    lower = np.linalg.cholesky(covariances / float(natural.kappa[0]))
    means = m + np.einsum("nde,ne->nd", lower, generator.normal(size=(20_000, D)))
    pull = np.einsum("nde,ne->nd", precisions, means)
    np.testing.assert_allclose(expected.first[0], pull.mean(axis=0), rtol=0.02, atol=0.01)
    np.testing.assert_allclose(
        expected.second[0], -precisions.mean(axis=0) / 2, rtol=0.02, atol=0.01
    )
    np.testing.assert_allclose(expected.kappa[0], -(pull * means).sum(1).mean() / 2, rtol=0.03)
    volume = np.linalg.slogdet(precisions)[1].mean() / 2
    np.testing.assert_allclose(expected.nu[0], volume, rtol=0.02, atol=0.01)


def test_divergence_of_the_dirichlet_part_is_that_of_numpyro():
    q, _ = some_natural(0)
    p = q._replace(weight=jnp.array([0.5, 1.0, 2.0]))
    expected = kl_divergence(dist.Dirichlet(q.weight), dist.Dirichlet(p.weight))
    np.testing.assert_allclose(divergence(q, p), expected, rtol=1e-4)


def test_divergence_of_the_wishart_part_is_that_of_draws():
    q, _ = some_natural(0)
    p = some_natural(1)[0]._replace(weight=q.weight)
    generator = np.random.default_rng(2)

    def density(natural, k, covariances, means):
        natural = [np.asarray(a[k], float) for a in natural]
        _, first, second, kappa, nu = natural
        m, s = first / kappa, second - np.outer(first, first) / kappa
        away = np.einsum("nd,nde,ne->n", means - m, np.linalg.inv(covariances), means - m)
        normal = -kappa * away / 2 - np.linalg.slogdet(2 * np.pi * covariances / kappa)[1] / 2
        return normal + invwishart.logpdf(np.moveaxis(covariances, 0, -1), float(nu), s)

    total = 0.0
    for k in range(K):
        nu, kappa = float(q.nu[k]), float(q.kappa[k])
        s = np.asarray(scatter(q)[k], float)
        covariances = invwishart.rvs(nu, s, size=5000, random_state=generator)
        noise = generator.normal(size=(5000, D))
        lower = np.linalg.cholesky(covariances / kappa)
        means = np.asarray(q.first[k]) / kappa + np.einsum("nde,ne->nd", lower, noise)
        ratio = density(q, k, covariances, means) - density(p, k, covariances, means)
        total += ratio.mean()
    np.testing.assert_allclose(divergence(q, p), total, rtol=0.03)


def test_natural_gradient_step_of_one_is_the_conjugate_update():
    """∇_λ of the bound is F(λ)(λ₀ + t − λ), F the Hessian of A, and zero after the update."""
    prior = mixture_prior(K, D)
    current, _ = some_natural(3)
    updated, statistics = some_natural(0)

    def objective(natural):
        return inner(statistics, expected_statistics(natural)) - divergence(natural, prior)

    stepped = natural_step(current, prior, statistics, 1.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), stepped, updated)
    slope = jax.jit(jax.grad(objective))
    direction = jax.tree.map(jnp.subtract, updated, current)
    fisher = jax.jit(lambda d: jax.jvp(jax.grad(log_partition), (current,), (d,))[1])(direction)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=2e-2), slope(current), fisher
    )
    assert max(float(jnp.abs(leaf).max()) for leaf in slope(updated)) < 2e-3
    assert objective(updated) > objective(current)
    small = natural_step(current, prior, statistics, 0.1)
    assert objective(updated) > objective(small) > objective(current)


def test_fit_finds_two_clusters():
    """Two clusters far apart: the bound rises, two of four components hold the data evenly."""
    generator = np.random.default_rng(0)
    signs = np.repeat([-1.0, 1.0], 100)
    data = jnp.array(generator.normal(size=(200, D)) * 0.2 + signs[:, None] * [2.0, 1.0])
    key = jax.random.key(0, impl="rbg")
    decoder = linear(np.eye(D), np.zeros(D))
    model = StructuredInference.start(key, decoder, components=4, latents=D, entries=D, width=10)
    fitted = fit_sin(
        model,
        data,
        key=key,
        steps=600,
        prior=mixture_prior(4, D),
        learning_rate=0.02,
        batch_size=50,
    )
    assert fitted.bounds[-50:].mean() > fitted.bounds[:50].mean() + 0.5
    q = jax.jit(jax.vmap(fitted.model.posterior))(data)
    found = np.asarray(q.log_weights.argmax(axis=1))
    assert not set(found[:100]) & set(found[100:])
    np.testing.assert_allclose(fitted.natural.weight.sum(), 200.4, rtol=1e-3)
    keys = jax.random.split(key, 200)
    _, _, again = jax.jit(jax.vmap(fitted.model.reconstruct))(data, keys)
    error = np.sqrt(np.mean((np.asarray(again) - np.asarray(data)) ** 2))
    assert error < 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "`steps` must be a whole number of at least 1, got 0"),
        ({"natural_rate": 1.5}, r"`natural_rate` must be in \(0, 1\], got 1.5"),
        ({"prior": mixture_prior(5, D)}, r"components and dimensions of the model, \(3, 2\)"),
        ({"data": jnp.full((4, D), jnp.nan)}, "`data` must be finite, got 8 entries"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    arguments = {"data": jnp.zeros((4, D)), "steps": 1, "prior": mixture_prior(K, D)} | changes
    with pytest.raises(ValueError, match=message):
        fit_sin(linear_model(), key=jax.random.key(0), **arguments)


def test_improper_priors_are_refused():
    with pytest.raises(ValueError, match="`kappa` must be positive, got 0"):
        mixture_prior(K, D, kappa=0.0)
    with pytest.raises(ValueError, match=r"`nu` must be above d \+ 1 = 3, got 2"):
        mixture_prior(K, D, nu=2.0)
