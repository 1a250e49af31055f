"""Spheres and hyperbolic space against SciPy, integrals, moments and geometry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammaln, iv, ive
from scipy.stats import kstest, vonmises_fisher

from alws_paper.hyperbolic.data import branching_diffusion
from alws_paper.hyperbolic.manifolds import (
    Gyroplanes,
    UniformSphere,
    VonMisesFisher,
    WrappedNormal,
    disk_nodes,
    log_area,
    log_scaled_bessel,
    sphere_nodes,
)
from alws_paper.hyperbolic.manifolds.poincare import (
    distance,
    exponential,
    log_volume,
    logarithm,
    mobius_add,
)

FAST = jax.random.key(0, impl="rbg")


def unit(*entries):
    vector = np.array(entries, float)
    return vector / np.linalg.norm(vector)


def draws(distribution, number, key=FAST):
    return np.asarray(jax.jit(jax.vmap(distribution.sample))(jax.random.split(key, number)))


# The Bessel function


@pytest.mark.parametrize("order", [0.0, 0.5, 4.0, 24.0, 63.0])
def test_scaled_bessel_is_that_of_scipy(order):
    kappa = np.array([1e-3, 0.1, 1.0, 3.0, 10.0, 50.0, 300.0, 3000.0])
    with np.errstate(divide="ignore"):
        expected = gammaln(order + 1) - order * np.log(kappa / 2) + np.log(ive(order, kappa))
    found = jax.jit(log_scaled_bessel, static_argnums=0)(order, jnp.array(kappa))
    fine = np.isfinite(expected)  # SciPy underflows at a high order and a small κ
    assert fine.sum() >= 5
    np.testing.assert_allclose(found[fine], expected[fine], rtol=2e-6, atol=2e-5)
    assert abs(float(log_scaled_bessel(order, 0.0))) < 1e-5


def test_scaled_bessel_is_right_in_double_precision():
    kappa, order = np.array([0.5, 5.0, 80.0]), 0.5
    with jax.enable_x64(True):
        found = np.asarray(log_scaled_bessel(order, jnp.array(kappa)))
    np.testing.assert_allclose(found, np.log(np.sinh(kappa) / kappa) - kappa, atol=3e-7)


@pytest.mark.parametrize("order", [0.0, 3.0])
def test_scaled_bessel_can_be_differentiated_twice(order):
    first = jax.grad(lambda k: log_scaled_bessel(order, k) + k)
    kappa = np.array([0.2, 2.0, 30.0])
    slope, curvature = jax.jit(jax.vmap(jax.value_and_grad(first)))(jnp.array([0.0, *kappa]))
    ratio = iv(order + 1, kappa) / iv(order, kappa)
    np.testing.assert_allclose(slope[1:], ratio, rtol=2e-5)
    expected = 1 - ratio**2 - (2 * order + 1) / kappa * ratio
    np.testing.assert_allclose(curvature[1:], expected, rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(slope[0], 0, atol=1e-6)
    np.testing.assert_allclose(curvature[0], 1 / (2 * order + 2), rtol=1e-4)


# Spheres


@pytest.mark.parametrize("dim", [2, 3, 10, 40])
def test_von_mises_fisher_density_is_that_of_scipy(dim):
    mean = unit(*np.random.default_rng(dim).normal(size=dim))
    log_prob = jax.jit(jax.vmap(lambda k, z: VonMisesFisher(mean, k).log_prob(z), (None, 0)))
    for kappa in (0.3, 5.0, 200.0):
        reference = vonmises_fisher(mean, kappa)
        z = reference.rvs(4, random_state=np.random.default_rng(0))
        found = log_prob(kappa, jnp.array(z))
        np.testing.assert_allclose(found, reference.logpdf(z), rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("kappa", [0.5, 30.0])
def test_von_mises_fisher_density_integrates_to_one_with_the_mean_of_its_sampler(kappa):
    prior = VonMisesFisher(unit(1.0, -2.0, 0.5), kappa)
    nodes = sphere_nodes()
    mass = np.exp(
        np.asarray(jax.jit(jax.vmap(prior.log_prob))(jnp.array(nodes.z))) + nodes.log_weight
    )
    np.testing.assert_allclose(mass.sum(), 1, rtol=1e-5)
    z = draws(prior, 20_000)
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5)
    second = (mass[:, None, None] * nodes.z[:, :, None] * nodes.z[:, None, :]).sum(axis=0)
    np.testing.assert_allclose(z.mean(axis=0), mass @ nodes.z, atol=0.02)
    np.testing.assert_allclose(z.T @ z / len(z), second, atol=0.02)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.5), (2, 20.0), (9, 50.0)])
def test_von_mises_fisher_sampler_has_the_marginal_and_the_mean_of_its_density(dim, kappa):
    mean = unit(*np.random.default_rng(1).normal(size=dim))
    z = draws(VonMisesFisher(mean, kappa), 5000)
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5)

    def density(angle):
        return np.exp(kappa * (np.cos(angle) - 1)) * np.sin(angle) ** (dim - 2)

    grid = np.linspace(0, np.pi, 4001)
    cumulative = np.concatenate([[0], np.cumsum((density(grid[1:]) + density(grid[:-1])) / 2)])
    angle = np.arccos(np.clip(z @ mean, -1, 1))
    assert kstest(angle, lambda a: np.interp(a, grid, cumulative / cumulative[-1])).pvalue > 1e-3
    ratio = float(jax.grad(lambda k: log_scaled_bessel(dim / 2 - 1, k) + k)(kappa))
    np.testing.assert_allclose(z.mean(axis=0), ratio * mean, atol=0.04)


def test_von_mises_fisher_sampler_keeps_its_digits_when_sharp():
    """At κ = 1e5 the tangent components are normal with variance 1/κ."""
    for mean in (unit(0.0, 0.0, 1.0), unit(1.0, 0.0, 0.0, 0.0), unit(-1.0, 1e-4, 0.0, 0.0)):
        z = draws(VonMisesFisher(mean, 1e5), 5000)
        off = z - (z @ mean)[:, None] * mean
        np.testing.assert_allclose((off**2).sum(axis=1).mean() * 1e5, len(mean) - 1, rtol=0.05)


def test_von_mises_fisher_from_its_natural_parameter():
    natural = jnp.array([1.0, -2.0, 2.0])
    prior = VonMisesFisher.from_natural(natural)
    np.testing.assert_allclose(prior.concentration, 3, rtol=1e-6)
    z = jnp.array(unit(0.3, 0.1, -1.0))
    gradient = jax.grad(lambda n: VonMisesFisher.from_natural(n).log_prob(z))(natural)
    expected = z - (1 / np.tanh(3) - 1 / 3) * natural / 3  # z minus its mean
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


def test_uniform_sphere():
    z = draws(UniformSphere(5), 5000)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(z.T @ z / len(z), np.eye(5) / 5, atol=0.02)
    area = quad(lambda a: 2 * np.pi**2 * np.sin(a) ** 3, 0, np.pi)[0]  # S⁴ in slices of S³
    np.testing.assert_allclose(UniformSphere(5).log_prob(z[0]), -np.log(area), rtol=1e-6)
    assert log_area(2) == pytest.approx(np.log(2 * np.pi))


# Hyperbolic space


def points(number, dim, reach=1.2, seed=0):
    v = np.random.default_rng(seed).normal(size=(number, dim)) * reach
    return [exponential(jnp.zeros(dim), jnp.array(row, jnp.float32)) for row in v]


@pytest.mark.parametrize("curvature", [-1.0, -0.3, -4.0])
def test_distance_is_that_of_the_closed_form_and_of_the_exponential_map(curvature):
    c = -curvature
    a, b = (p / c**0.5 for p in points(2, 3))
    gap, aa, bb = ((u**2).sum() for u in (a - b, a, b))
    expected = np.arccosh(1 + 2 * c * gap / ((1 - c * aa) * (1 - c * bb))) / c**0.5
    np.testing.assert_allclose(distance(a, b, curvature), expected, rtol=1e-4)
    v = logarithm(a, b, curvature)
    np.testing.assert_allclose(jnp.linalg.norm(v), expected, rtol=1e-4)
    np.testing.assert_allclose(exponential(a, v, curvature), b, atol=1e-5)
    np.testing.assert_allclose(mobius_add(-a, a, curvature), 0, atol=1e-6)
    moved = [mobius_add(a, p / c**0.5, curvature) for p in points(2, 3, seed=1)]
    before = distance(*(p / c**0.5 for p in points(2, 3, seed=1)), curvature)
    np.testing.assert_allclose(distance(*moved, curvature), before, rtol=1e-3)


def test_exponential_map_follows_the_length_of_its_path():
    """The path t ↦ exp_a(tv), measured by λ_z |dz|, has length t‖v‖."""
    (a,), v = points(1, 2), jnp.array([0.7, -1.1])

    def speed(t):
        z, dz = jax.jvp(lambda t: exponential(a, t * v), (t,), (jnp.ones(()),))
        return jnp.linalg.norm(dz) * jnp.exp(log_volume(z) / 2)

    length = jnp.linalg.norm(v)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(speed))(jnp.array([0.01, 0.5, 1.0])), length, rtol=1e-3
    )


def test_geodesic_functions_have_finite_gradients_where_points_coincide():
    (a,) = points(1, 2)
    for function in (distance, lambda x, y: logarithm(x, y).sum()):
        assert np.isfinite(jax.jit(jax.grad(function))(a, a)).all()
    assert np.isfinite(jax.grad(lambda v: exponential(a, v).sum())(jnp.zeros(2))).all()


@pytest.mark.parametrize("curvature", [-1.0, -0.5])
def test_wrapped_normal_density_integrates_to_one_with_the_moments_of_its_sampler(curvature):
    prior = WrappedNormal(jnp.array([0.3, -0.4]), jnp.array([0.5, 0.9]), curvature)
    # An independent grid: Cartesian in the ball's own coordinates.
    radius = (-curvature) ** -0.5
    side = (np.arange(900) + 0.5) / 450 - 1
    z = radius * np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    z = jnp.array(z[(z**2).sum(axis=1) < 0.9999 * radius**2], jnp.float32)
    density = jax.jit(jax.vmap(lambda z: prior.log_prob(z) + log_volume(z, curvature)))
    mass = np.exp(np.asarray(density(z), float)) * (radius / 450) ** 2
    np.testing.assert_allclose(mass.sum(), 1, atol=2e-3)
    sample = draws(prior, 20_000)
    grid = np.asarray(z, float)
    np.testing.assert_allclose(sample.mean(axis=0), mass @ grid, atol=0.02)
    np.testing.assert_allclose(
        sample.T @ sample / len(sample), (grid * mass[:, None]).T @ grid, atol=0.02
    )


def test_wrapped_normal_in_three_dimensions_against_monte_carlo_volume():
    """1 = E[p(z)/q(z)] for z from another wrapped normal q, wider than p."""
    p = WrappedNormal(jnp.array([0.2, 0.0, 0.1]), 0.5)
    q = WrappedNormal(jnp.zeros(3), 0.9)
    z = jnp.array(draws(q, 40_000))
    ratio = jax.jit(jax.vmap(lambda z: jnp.exp(p.log_prob(z) - q.log_prob(z))))(z)
    np.testing.assert_allclose(ratio.mean(), 1, atol=0.03)


def test_wrapped_normal_has_the_stated_spread_and_is_flat_normal_at_small_curvature():
    prior = WrappedNormal(jnp.array([0.5, 0.2]), 0.8)
    z = jnp.array(draws(prior, 10_000))
    v = jax.jit(jax.vmap(lambda z: logarithm(prior.location, z)))(z)
    np.testing.assert_allclose(v.T @ v / len(v), 0.64 * np.eye(2), atol=0.03)
    # At curvature → 0 lengths are 2·dz: λ = 2 everywhere.
    flat = WrappedNormal(jnp.array([0.5, 0.2]), 0.8, curvature=-1e-6)
    z = jnp.array([0.7, -0.1])
    expected = jax.scipy.stats.norm.logpdf(2 * (z - flat.location), 0, 0.8).sum()
    np.testing.assert_allclose(flat.log_prob(z), expected, rtol=1e-4)


def test_wrapped_normal_gradients_are_those_of_finite_differences():
    z = jnp.array([-0.3, 0.6])

    def log_prob(parameters):
        location = exponential(jnp.zeros(2), parameters[:2])
        return WrappedNormal(location, jnp.exp(parameters[2])).log_prob(z)

    with jax.enable_x64(True):
        z, at = jnp.asarray(np.asarray(z, float)), jnp.array([0.4, -0.7, 0.1])
        steps = 1e-5 * np.eye(3)
        value = jax.jit(log_prob)
        differences = [(value(at + e) - value(at - e)) / 2e-5 for e in steps]
        np.testing.assert_allclose(jax.jit(jax.grad(log_prob))(at), differences, rtol=1e-5)


def test_disk_quadrature_gives_areas_and_integrates_a_wrapped_normal():
    nodes = disk_nodes(6.0)
    area = 2 * np.pi * (np.cosh(6.0) - 1)
    np.testing.assert_allclose(np.exp(nodes.log_weight).sum(), area, rtol=1e-10)
    prior = WrappedNormal(exponential(jnp.zeros(2), jnp.array([0.8, 0.4])), 0.6)
    density = jax.jit(jax.vmap(prior.log_prob))(jnp.array(nodes.z))
    np.testing.assert_allclose(np.exp(np.asarray(density) + nodes.log_weight).sum(), 1, rtol=1e-4)


def test_gyroplanes_give_the_distance_to_the_nearest_point_of_each_plane():
    layer = Gyroplanes(2, 3, key=FAST)
    (z,) = points(1, 2, seed=4)
    t = jnp.linspace(-8, 8, 20001)

    @jax.jit
    def to_line(p, along):
        return jax.vmap(lambda t: distance(z, exponential(p, t * along)))(t)

    for value, point, normal in zip(layer(z), layer.points, layer.normals, strict=True):
        p = exponential(jnp.zeros(2), point)
        along = jnp.array([-normal[1], normal[0]]) / jnp.linalg.norm(normal)
        nearest = to_line(p, along).min()
        np.testing.assert_allclose(abs(value) / jnp.linalg.norm(normal), nearest, rtol=1e-3)
        side = logarithm(p, z) @ normal
        assert np.sign(side) == np.sign(value)


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: VonMisesFisher(unit(1, 2, 2), 0.0), "`concentration` must be positive"),
        (lambda: VonMisesFisher(unit(1, 2, 2), -1.0), r"`concentration` must be .*, got -1\.0"),
        (lambda: VonMisesFisher(unit(1, 2, 2), np.nan), "`concentration` must be positive"),
        (lambda: VonMisesFisher(unit(1, 2, 2), np.ones(2)), "must be one number, got an array"),
        (lambda: VonMisesFisher.from_natural(np.zeros(3)), "`concentration` must be positive"),
        (lambda: VonMisesFisher(np.ones(2), 2.0), r"`mean` must lie on .*length 1\.41421"),
        (lambda: VonMisesFisher(np.eye(3), 2.0), r"`mean` must be one point .*\(3, 3\)"),
        (lambda: VonMisesFisher(unit(1, 2, 2), 1.0).log_prob(unit(1, 2)), r"shape \(3,\), got"),
        (lambda: VonMisesFisher(unit(1, 2), 1.0).log_prob(2 * unit(1, 0)), "`z` must lie on the"),
        (lambda: UniformSphere(1), "`dim` must be a whole number of at least 2, got 1"),
        (lambda: UniformSphere(3).log_prob(unit(1, 2)), r"shape \(3,\), got shape \(2,\)"),
        (lambda: UniformSphere(2).log_prob(unit(1, 1) / 2), "`z` must lie on the unit sphere"),
        (lambda: WrappedNormal(np.zeros(2), -0.5), "`scale` must be positive and finite"),
        (lambda: WrappedNormal(np.zeros(2), np.ones(3)), r"shape of `location`, \(2,\); got \(3,"),
        (lambda: WrappedNormal(0.9 * np.ones(2), 1.0), r"`location` must lie .*length 1\.27"),
        (lambda: WrappedNormal(0.9 * unit(1, 0), 1.0, -2.0), r"ball of radius 0\.707107"),
        (lambda: WrappedNormal(np.zeros(2), 1.0, 1.0), "`curvature` must be a negative number"),
        (lambda: WrappedNormal(np.zeros(2), 1.0).log_prob(np.zeros(3)), r"got shape \(3,\)"),
        (lambda: WrappedNormal(np.zeros(2), 1.0).log_prob(unit(1, 0)), "`z` must lie inside"),
        (lambda: WrappedNormal(np.zeros(2), 1.0).log_prob(np.full(2, np.nan)), "`z` must lie in"),
        (lambda: branching_diffusion(FAST, depth=0), "`depth` must be a whole number"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_values_are_not_looked_at_while_tracing_but_shapes_are():
    z = jnp.array(unit(1, 2, 2))
    shape = jax.eval_shape(lambda k: VonMisesFisher(z, k).log_prob(2 * z), -jnp.ones(()))
    assert shape.shape == ()
    with pytest.raises(ValueError, match=r"shape \(3,\), got shape \(2,\)"):
        jax.eval_shape(VonMisesFisher(z, 1.0).log_prob, jnp.ones(2))


# The tree


def test_branching_diffusion_has_the_variances_of_its_tree():
    tree = branching_diffusion(FAST, depth=5, branching=3, entries=400, observations=2, noise=0.5)
    assert len(tree.depth) == len(tree.parent) == (3**6 - 1) // 2
    assert (tree.depth[tree.parent][1:] == tree.depth[1:] - 1).all()
    assert (np.bincount(tree.parent[1:])[:4] == 3).all()
    x = np.asarray(tree.x).reshape(-1, 2, 400)
    np.testing.assert_allclose(((x[:, 0] - x[:, 1]) ** 2).mean(), 2 * 0.25, rtol=0.02)
    squares = (x[:, 0] * x[:, 1]).mean(axis=1)
    for depth in range(6):
        np.testing.assert_allclose(squares[tree.depth == depth].mean(), depth, atol=0.35)
    child_step = ((x[:, 0] - x[tree.parent, 1]) ** 2).mean(axis=1)[1:]
    np.testing.assert_allclose(child_step.mean(), 1 + 2 * 0.25, rtol=0.02)
