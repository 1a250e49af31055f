"""Bounds on the likelihood from proposals z_k ~ q(z | x): ELBO and importance weighted.

    w_k = p_θ(z_k, x) / q(z_k | x),   L_K = E log (1/K) Σ_k w_k ≤ log p_θ(x)

L_1 is the ELBO, L_K the bound of importance weighted autoencoders (Burda et al., 2016); it rises
with K, and is tight for any K when q is the posterior. The weights, normalised, are those of
reweighted wake-sleep.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.model import AnyModel, log_joint


class Proposals(NamedTuple):
    """Draws of z and log q(z | x) of each."""

    z: Float[Array, "number latents"]
    log_density: Float[Array, " number"]


@runtime_checkable
class Proposing(Protocol):
    """A posterior that can be drawn from with the density of its draws."""

    def propose(self, key: Key[Array, ""], number: int) -> Proposals:
        """`number` draws, differentiable in the posterior's parameters."""
        ...


class Weighted(NamedTuple):
    """Proposals for one observation and the log of their importance weights."""

    z: Float[Array, "number latents"]
    log_joint: Float[Array, " number"]
    log_weights: Float[Array, " number"]


def weigh(model: AnyModel, q: Proposing, x: PyTree, key: Key[Array, ""], number: int) -> Weighted:
    """Draw from q, and log w_k of every draw.

    Example: `weigh(model, encoder(x), x, key, 50).log_weights.shape == (50,)`.
    """
    z, log_density = q.propose(key, number)
    joint = jax.vmap(lambda z: log_joint(model, z, x))(z)
    return Weighted(z, joint, joint - log_density)


def log_mean_exp(values: Float[Array, " number"]) -> Float[Array, ""]:
    """log (1/K) Σ exp(v_k)."""
    return jax.nn.logsumexp(values) - jnp.log(float(values.shape[0]))


def importance_bound(
    model: AnyModel, q: Proposing, x: PyTree, key: Key[Array, ""], number: int = 1
) -> Float[Array, ""]:
    """An unbiased estimate of L_K for one observation; the ELBO for K = `number` = 1.

    Example: `importance_bound(model, encoder(x), x, key, 50)`.
    """
    return log_mean_exp(weigh(model, q, x, key, number).log_weights)


def mean_bound(
    encoder: Callable[[PyTree], Proposing],
    model: AnyModel,
    x: PyTree,
    key: Key[Array, ""],
    number: int = 1,
) -> Float[Array, ""]:
    """The mean over a batch of L_K with K = `number`; the ELBO for one.

    Example: `mean_bound(encoder, model, x, key)`.
    """
    keys = jax.random.split(key, len(jax.tree.leaves(x)[0]))
    return jax.vmap(lambda x, k: importance_bound(model, encoder(x), x, k, number))(x, keys).mean()


__all__ = [
    "Proposals",
    "Proposing",
    "Weighted",
    "importance_bound",
    "log_mean_exp",
    "mean_bound",
    "weigh",
]
