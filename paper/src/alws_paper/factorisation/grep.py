"""The generalised reparameterisation gradient, G-Rep (Ruiz, Titsias & Blei, 2016), Gamma and Beta.

For z ~ q_v a standardised noise ε = T⁻¹(z; v) has mean 0 and variance 1 but, unlike that of a
Gaussian, its density q_ε(ε; v) still depends on v, weakly. The gradient of E_q[f(z)] then has two
terms,

    ∇_v E[f(z)] = E[f'(T(ε; v)) ∇_v T(ε; v)] + E[f(T(ε; v)) ∇_v log q_ε(ε; v)],

a reparameterisation and a correction. Here z is kept as its logarithm (Gamma) or its logit (Beta),
y, and T(ε; v) = mean(y) + std(y)·ε, both given by digamma and trigamma functions.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid
from jax.scipy.special import digamma, gammaln, polygamma
from jaxtyping import Array, Float, Key

from alws_paper.shared.gamma_draws import log_gamma


class Standardised(eqx.Module):
    """A family q_v of z, one independent factor for each entry, with its transformation T."""

    @abstractmethod
    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        """One draw of y, the logarithm or logit of z, differentiable in v implicitly."""

    @abstractmethod
    def moments(self) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        """Mean and standard deviation of y."""

    @abstractmethod
    def log_density(self, y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """log density of y."""

    @abstractmethod
    def entropy(self) -> Float[Array, "*shape"]:
        """Entropy of z."""

    def noise(self, y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """ε = T⁻¹(y; v)."""
        mean, scale = self.moments()
        return (y - mean) / scale

    def transform(self, noise: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """y = T(ε; v)."""
        mean, scale = self.moments()
        return mean + scale * noise

    def noise_log_density(self, noise: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """log q_ε(ε; v) = log q_v(T(ε; v)) + log |dT/dε|."""
        return self.log_density(self.transform(noise)) + jnp.log(self.moments()[1])


class Gamma(Standardised):
    """Gamma(z; α, β) of density ∝ z^(α−1) e^(−βz), kept as y = log z.

    E[y] = ψ(α) − log β, Var[y] = ψ'(α).

    Example: `Gamma(jnp.array(2.0), jnp.array(0.3)).entropy()`.
    """

    shape: Float[Array, "*shape"]
    rate: Float[Array, "*shape"]

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        return log_gamma(key, self.shape) - jnp.log(self.rate)

    def moments(self) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        return digamma(self.shape) - jnp.log(self.rate), jnp.sqrt(polygamma(1, self.shape))

    def log_density(self, y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        standard = y + jnp.log(self.rate)
        return self.shape * standard - jnp.exp(standard) - gammaln(self.shape)

    def entropy(self) -> Float[Array, "*shape"]:
        a = self.shape
        return a - jnp.log(self.rate) + gammaln(a) + (1 - a) * digamma(a)


class Beta(Standardised):
    """Beta(z; α, β), kept as y = logit z.

    E[y] = ψ(α) − ψ(β), Var[y] = ψ'(α) + ψ'(β).

    Example: `Beta(jnp.ones(100), jnp.ones(100))` is uniform on the unit cube.
    """

    alpha: Float[Array, "*shape"]
    beta: Float[Array, "*shape"]

    def sample(self, key: Key[Array, ""]) -> Float[Array, "*shape"]:
        # A Beta variable is G/(G + H) of two Gamma variables, its logit log G − log H.
        both = log_gamma(key, jnp.stack([self.alpha, self.beta]))
        return both[0] - both[1]

    def moments(self) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        variance = polygamma(1, self.alpha) + polygamma(1, self.beta)
        return digamma(self.alpha) - digamma(self.beta), jnp.sqrt(variance)

    def log_density(self, y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        a, b = self.alpha, self.beta
        return a * log_sigmoid(y) + b * log_sigmoid(-y) - _log_beta(a, b)

    def entropy(self) -> Float[Array, "*shape"]:
        a, b = self.alpha, self.beta
        return (
            _log_beta(a, b)
            - (a - 1) * digamma(a)
            - (b - 1) * digamma(b)
            + (a + b - 2) * digamma(a + b)
        )


def _log_beta(a: Array, b: Array) -> Array:
    return gammaln(a) + gammaln(b) - gammaln(a + b)


def surrogate(
    q: Standardised,
    f: Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]],
    key: Key[Array, ""],
) -> Float[Array, "*shape"]:
    """A value whose gradient in q's parameters is the one-sample G-Rep estimate of ∇E_q[f(z)].

    `f` takes y = log z or logit z to one value for each factor of q: all terms of the objective
    that this factor has a part in. Its value serves as the factor's signal in the correction.

    Example: `jax.grad(lambda a: surrogate(Gamma(a, b), lambda y: -jnp.exp(y), key))(a)`.
    """
    noise = jax.lax.stop_gradient(q.noise(q.sample(key)))
    value = f(q.transform(noise))
    return value + correction(q, noise, value)


def correction(
    q: Standardised, noise: Float[Array, "*shape"], signal: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """f·log q_ε(ε; v), f constant: its gradient in v is the correction term of G-Rep."""
    return jax.lax.stop_gradient(signal) * q.noise_log_density(noise)
