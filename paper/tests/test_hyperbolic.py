"""Parts of the hyperbolic experiment (the quick run is in test_cli) and its exact likelihoods."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.stats import multivariate_normal

import alws
from alws.estimates import Natural
from alws.kernels import SquaredExponential
from alws.likelihoods import Gaussian
from alws_paper.hyperbolic.data import Tree
from alws_paper.hyperbolic.experiment import OnDisk, Sphere, infer
from alws_paper.hyperbolic.manifolds import disk_nodes, plane_nodes, sphere_nodes
from alws_paper.hyperbolic.marginal import log_likelihoods, maximum_likelihood, total_log_likelihood
from alws_paper.hyperbolic.recovery import recovery

FAST = jax.random.key(0, impl="rbg")
NOISE = 0.5


class Scale(eqx.Module):
    """z ~ N(0, s² I) in the plane, x = z + noise: x ~ N(0, (s² + noise²) I)."""

    log_scale: jax.Array

    def sample_latent(self, key):
        return jnp.exp(self.log_scale) * jax.random.normal(key, (2,))

    def log_prior(self, z):
        return dist.Normal(jnp.zeros(2), jnp.exp(self.log_scale)).to_event(1).log_prob(z)

    def likelihood(self, z):
        return Gaussian(z, NOISE)


def test_marginal_likelihood_maximum_and_recovery_are_those_of_a_linear_gaussian_model():
    x = jnp.array(np.random.default_rng(0).normal(0, 1.3, (200, 2)), jnp.float32)
    nodes = plane_nodes(7.0, 40, 40)
    truth = Scale(jnp.log(jnp.array(1.2)))
    expected = multivariate_normal(np.zeros(2), (1.44 + NOISE**2) * np.eye(2)).logpdf(x)
    np.testing.assert_allclose(log_likelihoods(truth, x, nodes), expected, rtol=1e-4)

    exact = maximum_likelihood(truth, x, nodes)
    variance = float((np.asarray(x, float) ** 2).mean())
    scale = np.sqrt(variance - NOISE**2)
    np.testing.assert_allclose(np.exp(exact.model.log_scale), scale, rtol=1e-4)
    best = multivariate_normal(np.zeros(2), variance * np.eye(2)).logpdf(x).sum()
    np.testing.assert_allclose(exact.log_likelihood, best, rtol=2e-6)
    # The information on v = s² + noise² is n/v² for n points of two entries, and dv/dlog s = 2s².
    information = len(x) / variance**2 * (2 * scale**2) ** 2
    np.testing.assert_allclose(exact.covariance, [[1 / information]], rtol=1e-3)

    off = Scale(exact.model.log_scale + 0.02)
    found = recovery(truth, off, x, nodes, lambda m: {"scale": jnp.exp(m.log_scale)})
    p = found.parameters["scale"]
    np.testing.assert_allclose(found.nats, 0.02**2 / 2 * information, rtol=0.1)
    np.testing.assert_allclose((p.truth, p.exact), (1.2, scale), rtol=1e-4)
    np.testing.assert_allclose(p.off, abs(scale * np.exp(0.02) - 1.2), rtol=1e-3)
    np.testing.assert_allclose(p.error, 1.2 / np.sqrt(information), rtol=1e-3)
    assert found.sampling_cost == 0.5
    assert total_log_likelihood(off, x, nodes) < exact.log_likelihood


def test_regression_gives_the_exact_gradient_in_the_parameters_of_a_von_mises_fisher_prior():
    model = Sphere(jnp.array([1.0, 2.0, -1.0]))
    other = Sphere(jnp.array([3.0, 2.0, -1.0]))
    x = alws.draw(other, FAST, 200)[0].x

    def mean_log_likelihood(natural):
        return log_likelihoods(Sphere(natural), x, sphere_nodes(24)).mean()

    exact = jax.grad(mean_log_likelihood)(model.natural)

    @jax.jit
    def estimate(key):
        sleep, _ = alws.draw(model, key, 1000)
        smoother = alws.regressions.KernelRidge(SquaredExponential(), ridge=0.01).fit(sleep.x)
        weights = Natural().weigh(model, smoother, sleep, x, None)
        value = eqx.filter_grad(lambda m: Natural().objective(m, sleep, weights, None))
        return value(model).natural

    found = estimate(jax.random.fold_in(FAST, 1))
    assert np.linalg.norm(exact) > 0.2
    assert np.linalg.norm(found - exact) < 0.1 * np.linalg.norm(exact)


def test_latents_are_found_where_the_observations_come_from():
    model = eqx.tree_at(lambda m: m.log_noise, OnDisk(FAST, 20, 16), jnp.log(jnp.array(0.02)))
    nodes = disk_nodes(4.0, 12, 24)
    chosen = np.arange(0, 200, 7)
    x = jax.vmap(lambda z: model.likelihood(z).mean)(jnp.array(nodes.z[chosen]))
    parent, depth = np.zeros(len(chosen), int), np.arange(len(chosen))
    found = infer(model, Tree(x, np.arange(len(chosen)), depth, parent), nodes)
    np.testing.assert_allclose(found.z, nodes.z[chosen])
    np.testing.assert_allclose(np.tanh(found.distance / 2), np.linalg.norm(found.z, axis=1))
    assert found.correlation > 0.99  # the nodes go outwards
