"""Hamiltonian transitions for many chains of many observations at once, along an annealed path.

The latents of one chain are one vector u of unconstrained coordinates, z = T(u), and the density at
inverse temperature β is f_β(u) = p(u) p(x | T(u))^β, p(u) the prior with T's Jacobian. A transition

    v ~ N(0, I);  leapfrog steps of size ε on −log f_β(u) + |v|²/2;  accept with min(1, e^{−Δ})

leaves f_β as it is (Neal 2011), whatever ε.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from alws.model import AnyModel, Prior, has_likelihood, log_joint, sample


class Densities(NamedTuple):
    """The two parts of f_β for one chain."""

    prior: Callable[[Array], Array]
    likelihood: Callable[[Array, PyTree], Array]


class Chains(NamedTuple):
    """Where each chain is, with log p(u), log p(x | z) and their gradients."""

    u: Float[Array, "*chains dim"]
    prior: Float[Array, "*chains"]
    likelihood: Float[Array, "*chains"]
    prior_gradient: Float[Array, "*chains dim"]
    likelihood_gradient: Float[Array, "*chains dim"]


def transition(
    density: Densities,
    x: PyTree,
    at: Chains,
    beta: Array,
    step: Float[Array, " observations"],
    momentum: Float[Array, "observations chains dim"],
    chance: Float[Array, "observations chains"],
    leapfrog: int,
) -> tuple[Chains, Float[Array, "observations chains"]]:
    """A Hamiltonian transition that leaves f_β as it is, and the probability of its acceptance."""
    size = step[:, None, None]

    def slope(c: Chains) -> Array:
        return c.prior_gradient + beta * c.likelihood_gradient

    def leap(carry: tuple[Chains, Array], _: None) -> tuple[tuple[Chains, Array], None]:
        c, v = carry
        v = v + size / 2 * slope(c)
        c = evaluate(density, x, c.u + size * v)
        return (c, v + size / 2 * slope(c)), None

    (end, v), _ = jax.lax.scan(leap, (at, momentum), None, leapfrog)
    gain = end.prior - at.prior + beta * (end.likelihood - at.likelihood)
    gain = gain + jnp.sum(momentum**2 - v**2, axis=-1) / 2
    probability = jnp.exp(jnp.minimum(jnp.where(jnp.isnan(gain), -jnp.inf, gain), 0))
    taken = chance < probability

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(taken.reshape(taken.shape + (1,) * (new.ndim - 2)), new, old)

    return jax.tree.map(choose, end, at), probability


def path_densities(model: AnyModel, transforms: list[Any], key: Key[Array, ""]) -> Densities:
    """log p(u) and log p(x | T(u)) of one chain, as functions of u and of u and x.

    Example: `path_densities(model, transforms, key).prior(u)`.
    """
    assert isinstance(model, Prior)
    latent = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda k: sample(model, k).z, key))
    _, unravel = ravel_pytree(latent)

    def place(u: Float[Array, " dim"]) -> tuple[PyTree, Array]:
        leaves, structure = jax.tree.flatten(unravel(u))
        pairs = [(t, leaf, t(leaf)) for t, leaf in zip(transforms, leaves, strict=True)]
        volumes = [jnp.sum(t.log_abs_det_jacobian(leaf, value)) for t, leaf, value in pairs]
        total = sum(volumes, start=jnp.zeros((), u.dtype))
        return structure.unflatten([value for _, _, value in pairs]), total

    def prior(u: Float[Array, " dim"]) -> Array:
        z, volume = place(u)
        return model.log_prior(z) + volume

    def likelihood(u: Float[Array, " dim"], x: PyTree) -> Array:
        z, _ = place(u)
        return log_joint(model, z, x) - model.log_prior(z)

    return Densities(prior, likelihood)


def evaluate(density: Densities, x: PyTree, u: Float[Array, "observations chains dim"]) -> Chains:
    """Both log densities of every chain of every observation, with their gradients."""

    def one(u: Array, x: PyTree) -> Chains:
        prior, prior_gradient = jax.value_and_grad(density.prior)(u)
        likelihood, likelihood_gradient = jax.value_and_grad(density.likelihood)(u, x)
        return Chains(u, prior, likelihood, prior_gradient, likelihood_gradient)

    return jax.vmap(jax.vmap(one, (0, None)))(u, x)


def from_prior(
    model: AnyModel,
    density: Densities,
    transforms: list[Any],
    x: PyTree,
    key: Key[Array, ""],
    chains: int,
) -> Chains:
    """Every chain at its own draw from the prior."""
    number = len(jax.tree.leaves(x)[0])
    keys = jax.random.split(key, number * chains)

    def draw(key: Key[Array, ""]) -> PyTree:
        return model.sample_latent(key) if has_likelihood(model) else sample(model, key).z

    u = jax.vmap(lambda k: unconstrained(transforms, draw(k)))(keys)
    return evaluate(density, x, u.reshape(number, chains, -1))


def unconstrained(transforms: list[Any], z: PyTree) -> Float[Array, " dim"]:
    """u with z = T(u).

    Example: `unconstrained([IdentityTransform()], jnp.ones(3))` is three ones.
    """
    leaves = jax.tree.leaves(z)
    return ravel_pytree([t.inv(leaf) for t, leaf in zip(transforms, leaves, strict=True)])[0]
