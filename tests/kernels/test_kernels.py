import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, Matern
from sklearn.linear_model import Ridge

from alws import Adapt, features, kernels
from alws.regressions import KernelRidge
from alws.wake_sleep import stop_where_fixed


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (kernels.SquaredExponential, lambda s: RBF(s)),
        (kernels.Matern12, lambda s: Matern(s, nu=0.5)),
        (kernels.Matern32, lambda s: Matern(s, nu=1.5)),
        (kernels.Matern52, lambda s: Matern(s, nu=2.5)),
    ],
)
def test_stationary_kernels_are_those_of_scikit_learn(ours, theirs, key):
    x = 3 * jax.random.normal(key, (30, 4)) + 100
    y = x[:7] + 0.5
    kernel = ours(bandwidth=2.5)
    np.testing.assert_allclose(kernel(x, y), theirs(2.5)(x, y), atol=2e-5)
    gradient = jax.grad(lambda x: kernel(x, x).sum())(x)
    assert jnp.isfinite(gradient).all()


def test_median_bandwidth(key):
    x = jax.random.normal(key, (200, 3))
    distances = np.linalg.norm(np.asarray(x)[:, None] - np.asarray(x), axis=-1)
    expected = np.median(distances[np.triu_indices(200, 1)])
    np.testing.assert_allclose(kernels.median_distance(x), expected, rtol=1e-4)
    fixed = kernels.SquaredExponential(track=False).initialise(x)
    np.testing.assert_allclose(jnp.exp(fixed.log_bandwidth), expected, rtol=1e-4)


def test_median_ignores_ties_and_survives_constants():
    x = jnp.array([[0.0], [0.0], [0.0], [0.0], [2.0]])
    assert kernels.median_distance(x) == 2.0
    assert kernels.median_distance(jnp.ones((5, 2))) == 1.0


def test_tracked_bandwidth_makes_the_kernel_free_of_scale(key):
    x = jax.random.normal(key, (50, 3))
    kernel = kernels.Matern32()
    np.testing.assert_allclose(kernel(x, x), kernel(1000 * x, 1000 * x), atol=1e-4)


def test_sum_is_the_sum_and_each_part_keeps_its_bandwidth(key):
    x = jax.random.normal(key, (20, 3))
    one, two = kernels.SquaredExponential(bandwidth=1.0), kernels.Matern12(bandwidth=5.0)
    np.testing.assert_allclose((one + two)(x, x), one(x, x) + two(x, x), rtol=1e-6)


def test_kernel_on_sets_does_not_see_the_order(key):
    x = jax.random.normal(key, (6, 5, 2))
    kernel = kernels.OnSets(kernels.SquaredExponential(bandwidth=1.0))
    turned = x[:, jax.random.permutation(key, 5)]
    np.testing.assert_allclose(kernel(x, turned), kernel(x, x), atol=1e-6)
    sets = np.asarray(x)
    inner = lambda a, b: np.exp(-0.5 * ((a[:, None] - b) ** 2).sum(-1)).mean()  # noqa: E731
    square = lambda a, b: inner(a, a) + inner(b, b) - 2 * inner(a, b)  # noqa: E731
    median = np.median([square(a, b) for a, b in zip(sets, np.roll(sets, 1, 0), strict=True)])
    by_hand = np.exp(-square(sets[0], sets[2]) / (2 * median))
    np.testing.assert_allclose(kernel(x, x)[0, 2], by_hand, rtol=1e-4)
    assert np.linalg.eigvalsh(np.asarray(kernel(x, x))).min() > -1e-6


@pytest.mark.parametrize("switch", ["bandwidth", "features"])
def test_the_scale_of_sets_is_adapted_with_the_bandwidth(switch):
    model = KernelRidge(kernels.OnSets(kernels.SquaredExponential()), ridge=0.1)
    adapt = Adapt(bandwidth=switch == "bandwidth", features=switch == "features")
    moves = eqx.filter_grad(lambda m: stop_where_fixed(m, adapt).kernel.log_scale)(model)
    assert moves.kernel.log_scale == (switch == "bandwidth")


def test_own_kernel_on_strings_of_symbols():
    x = jnp.array([[0, 1, 2], [0, 1, 1], [2, 2, 2]])
    kernel = kernels.Pairwise(lambda a, b: jnp.exp(-jnp.sum(a != b).astype(float)))
    expected = np.exp(-np.array([[0, 1, 2], [1, 0, 3], [2, 3, 0]], float))
    np.testing.assert_allclose(kernel(x, x), expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"scalar for two observations, got shape \(3,\)"):
        kernels.Pairwise(lambda a, b: jnp.exp(-(a != b).astype(float)))(x, x)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan")])
def test_bandwidth_must_be_positive(bandwidth):
    with pytest.raises(ValueError, match="`bandwidth` must be positive, one finite number; got"):
        kernels.SquaredExponential(bandwidth=bandwidth)


def test_features_flatten_any_pytree():
    x = {"a": jnp.arange(60.0).reshape(10, 2, 3), "b": jnp.arange(10)}
    expected = np.column_stack([np.arange(60.0).reshape(10, 6), np.arange(10.0)])
    np.testing.assert_array_equal(features.Identity()(x), expected)


def test_batch_normalisation_uses_the_batch_at_hand(key):
    linear = features.Linear.random(key, 4, 6, batch_norm=True)
    out = linear(5 + 3 * jax.random.normal(key, (100, 4)))
    np.testing.assert_allclose(out.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(out.std(axis=0), 1, atol=1e-3)
    with pytest.raises(ValueError, match=r"needs at least 2 observations .* without batch norm"):
        linear(jnp.ones((1, 4)))
    with pytest.raises(ValueError, match=r"entries, 5; its weight has shape \(4, 6\)"):
        linear(jnp.ones((2, 5)))


def test_standardise_is_not_moved_by_outliers(key):
    x = 50 + 7 * jax.random.normal(key, (1000, 2))
    spoilt = x.at[:10].set(1e6)
    plain, robust = (features.Standardise.from_data(d) for d in (x, spoilt))
    np.testing.assert_allclose(robust.scale, plain.scale, rtol=0.1)
    np.testing.assert_allclose(robust.location, plain.location, rtol=0.01)
    assert features.Standardise.from_data(jnp.ones((5, 2))).scale.tolist() == [1.0, 1.0]


def test_dot_product_is_ridge_regression_on_standardised_features(key):
    x = 3 * jax.random.normal(key, (40, 3)) + 5
    y = jnp.sin(x) @ jnp.array([1.0, -2.0, 0.5])
    new = x[:6] + 2.0
    ours = KernelRidge(kernels.DotProduct(), ridge=0.3).fit(x).predict(new, y[:, None])[:, 0]
    location, scale = np.asarray(x.mean(axis=0)), np.asarray(x.std(axis=0))
    theirs = Ridge(alpha=0.3 * 3).fit((np.asarray(x) - location) / scale, np.asarray(y))
    expected = theirs.predict((np.asarray(new) - location) / scale)
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=2e-3)


def test_dot_product_predicts_beyond_the_samples_up_to_its_reach(key):
    x = jax.random.normal(key, (200, 1))
    fitted = KernelRidge(kernels.DotProduct(reach=5.0), ridge=1e-3).fit(x)
    near, far = fitted.predict(jnp.array([[4.0], [400.0]]), 2 * x)[:, 0]
    assert abs(float(near) - 8.0) < 0.05
    assert abs(float(far) - 2 * (float(x.mean()) + 5 * float(x.std()))) < 0.05


def test_points_beyond_the_samples_are_called_outside_by_every_kernel(key):
    x = jax.random.normal(key, (100, 2))
    for kernel in (kernels.DotProduct(), kernels.SquaredExponential(bandwidth=1.0)):
        fitted = KernelRidge(kernel, ridge=0.1).fit(x)
        assert fitted.outside(x[:50]) == 0.0
        assert fitted.outside(jnp.array([[6.0, 6.0], [-7.0, 5.0]])) == 1.0
