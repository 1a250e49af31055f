"""A likelihood has no density outside its support, and asks for x in its own shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from alws.likelihoods import Bernoulli, Categorical, Gamma, Gaussian, LogNormal, Poisson, Product


@pytest.mark.parametrize(
    ("likelihood", "inside", "exact", "outside"),
    [
        (Bernoulli(0.3), 1.0, np.log(1 / (1 + np.exp(-0.3))), (2.0, 0.5, -1.0, np.nan)),
        (Categorical(jnp.zeros(3)), 2, np.log(1 / 3), (7, -1)),
        (Poisson(0.7), 2.0, stats.poisson.logpmf(2, np.exp(0.7)), (0.5, -1.0, np.nan)),
        (Gamma(2.0, 3.0), 0.4, stats.gamma.logpdf(0.4, 2, scale=1 / 3), (0.0, -1.0, np.inf)),
        (LogNormal(0.0, 1.0), 0.4, stats.lognorm.logpdf(0.4, 1.0), (0.0, -1.0, np.nan)),
        (Gaussian(3, 0.5), 2.0, stats.norm.logpdf(2.0, 3.0, 0.5), (np.nan, np.inf)),
        (
            Product((Bernoulli(0.0), Poisson(0.0))),
            (1.0, 0.0),
            np.log(0.5) - 1,
            ((2.0, 0.0), (1.0, 0.5)),
        ),
    ],
)
def test_no_density_outside_the_support(likelihood, inside, exact, outside):
    np.testing.assert_allclose(likelihood.log_prob(inside), exact, rtol=1e-5)
    for x in outside:
        assert likelihood.log_prob(x) == -jnp.inf


def test_whole_numbers_as_parameters_count_as_such():
    whole, real = Gaussian(jnp.arange(3), 0.5), Gaussian(jnp.arange(3.0), 0.5)
    x = jnp.array([0.3, 0.7, 2.0])
    exact = stats.norm.logpdf(x, np.arange(3), 0.5).sum()
    np.testing.assert_allclose([whole.log_prob(x), real.log_prob(x)], exact, rtol=1e-5)
    assert whole.sample(jax.random.key(0)).dtype == jnp.float32


@pytest.mark.parametrize("shape", [(), (2, 3), (2,), (3, 1)])
def test_x_of_another_shape_is_refused(shape, unchecked_shapes):
    with pytest.raises(ValueError, match="x must have the shape of a draw from this Gaussian"):
        Gaussian(jnp.zeros(3), 1.0).log_prob(jnp.zeros(shape))


@pytest.fixture
def unchecked_shapes():
    """Without the shapes that the tests check and users do not."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
