"""Semi-implicit variational inference (Yin & Zhou, 2018).

    q(z | x) = E_{ψ ~ q(ψ | x)} N(z; ψ, diag σ(x)²)

where ψ is a network of x and noise, so that q(ψ | x) has no density. With z_j ~ N(ψ_j, σ²) and K
further ψ'_k ~ q(ψ | x), which all draws of one observation share,

    L_K = E log (1/J) Σ_j p_θ(x, z_j) / q̂(z_j),
    q̂(z_j) = 1/(K + 1) [N(z_j; ψ_j, σ²) + Σ_k N(z_j; ψ'_k, σ²)].

For one draw, J = 1, L_K rises with K to the ELBO of q(z | x). The paper's code calls K `J`.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.model import AnyModel, log_joint
from alws_paper.images.rivals.noisy import NoisyNetwork
from alws_paper.shared.bounds import log_mean_exp


class SemiImplicit(eqx.Module):
    """q(z | x) for one x: `mix(key, number)` draws ψ, and σ = exp(log_scale).

    Example: `SemiImplicit(lambda key, n: jax.random.normal(key, (n, 2)), jnp.zeros(2))`.
    """

    mix: Callable[[Key[Array, ""], int], Float[Array, "number latents"]]
    log_scale: Float[Array, " latents"]

    def bound(
        self, model: AnyModel, x: PyTree, key: Key[Array, ""], *, mixing: int, draws: int = 1
    ) -> Float[Array, ""]:
        """An unbiased estimate of L_K, K = `mixing` and J = `draws`.

        Example: `encoder(x).bound(model, x, key, mixing=10)`.
        """
        mix_key, noise_key = jax.random.split(key)
        centres = self.mix(mix_key, draws + mixing)
        own, others = centres[:draws], centres[draws:]
        scale = jnp.exp(self.log_scale)
        z = own + scale * jax.random.normal(noise_key, own.shape, own.dtype)

        def log_weight(z: Float[Array, " n"], own: Float[Array, " n"]) -> Float[Array, ""]:
            components = jnp.concatenate([own[None], others])
            logs = jax.scipy.stats.norm.logpdf(z, components, scale).sum(axis=1)
            return log_joint(model, z, x) - log_mean_exp(logs)

        return log_mean_exp(jax.vmap(log_weight)(z, own))


class SemiImplicitEncoder(eqx.Module):
    """x ↦ q(z | x): ψ from a noisy network, log σ linear in the same features of x.

    Example: `SemiImplicitEncoder(NoisyNetwork(trunk, 16, key=k1), latents=16, key=k2)`.
    """

    network: NoisyNetwork
    log_scale: eqx.nn.Linear

    def __init__(self, network: NoisyNetwork, *, latents: int, key: Key[Array, ""]):
        self.network = network
        self.log_scale = eqx.nn.Linear(network.trunk.features, latents, key=key)

    def __call__(self, x: PyTree) -> SemiImplicit:
        features = self.network.trunk(x)
        return SemiImplicit(
            lambda key, number: self.network.spread(features, key, number),
            self.log_scale(features),
        )


def mean_semi_implicit_bound(
    encoder: Callable[[PyTree], SemiImplicit],
    model: AnyModel,
    x: PyTree,
    key: Key[Array, ""],
    *,
    mixing: int,
    draws: int = 1,
) -> Float[Array, ""]:
    """The mean bound of a batch.

    Example: `mean_semi_implicit_bound(encoder, model, x, key, mixing=10)`.
    """
    keys = jax.random.split(key, len(jax.tree.leaves(x)[0]))
    bounds = jax.vmap(lambda x, k: encoder(x).bound(model, x, k, mixing=mixing, draws=draws))
    return bounds(x, keys).mean()


__all__ = ["SemiImplicit", "SemiImplicitEncoder", "mean_semi_implicit_bound"]
