"""Held-out log likelihood from a proposal, and by summing over all values of a discrete latent.

    log p(x) ≈ log (1/K) Σ_k p(z_k, x)/q(z_k | x),  z_k ~ q(z | x)        (importance weighted)
    log p(x) = log Σ_z p(z, x)                                             (exact)

The first is a lower bound on average, the tighter the larger K (Burda et al. 2016).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from alws.model import AnyModel, in_own_precision, log_joint
from alws.validation import (
    at_least,
    check_data,
    check_key,
    check_model,
    check_support,
    function,
    match_data,
    match_values,
)

MOST_BITS = 20


@in_own_precision
def importance_log_likelihood(
    model: AnyModel,
    x: PyTree,
    proposal: Callable[[PyTree], Any],
    *,
    key: Key[Array, ""],
    samples: int = 1000,
) -> Float[Array, " observations"]:
    """log of the mean importance weight of each observation, by a proposal of your own.

    Arguments:
        model: the model.
        x: the observations, as leading axis.
        proposal: `proposal(x)` is q(z | x) for one x: a NumPyro distribution, or anything else with
            `sample(key, shape)` and `log_prob(z)`. Its tails must be at least as heavy as the
            posterior's.
        key: a JAX key.
        samples: how many draws for each observation.

    Example:
        >>> q = lambda x: dist.Normal(encoder(x).mean, jnp.exp(encoder(x).log_scale)).to_event(1)
        >>> importance_log_likelihood(model, test, q, key=key).mean()
    """
    at_least("samples", samples, 1)
    check_key(key)
    check_model(model, parameters=False)
    function("proposal", proposal, "of one x, that gives q(z | x)")
    size = check_data(x, "x")
    x = match_data(model, x, key, name="x")
    check_support(model, x, key, name="x")
    return _weighted(model, x, proposal, jax.random.split(key, size), samples)


@eqx.filter_jit
def _weighted(
    model: AnyModel, x: PyTree, proposal: Callable, keys: Key[Array, " observations"], samples: int
) -> Float[Array, " observations"]:
    def one(item: tuple[PyTree, Array]) -> Array:
        x, key = item
        q = proposal(x)
        if not callable(getattr(q, "sample", None)) or not callable(getattr(q, "log_prob", None)):
            raise TypeError(
                "`proposal(x)` must have `sample(key, shape)` and `log_prob(z)`, as NumPyro's "
                f"distributions have; got {type(q).__name__}."
            )
        z = q.sample(key, (samples,))
        log_q = jnp.asarray(q.log_prob(z))
        if log_q.shape != (samples,):
            raise ValueError(
                "`proposal(x).log_prob(z)` must be one number for each draw of z, got shape "
                f"{log_q.shape} for {samples} draws. Make its dimensions one event, with "
                "`.to_event(1)` in NumPyro."
            )
        log_p = jax.vmap(lambda z: log_joint(model, z, x))(z)
        return jax.nn.logsumexp(log_p - log_q) - jnp.log(samples)

    return jax.lax.map(one, (x, keys))


@in_own_precision
def enumerated_log_likelihood(
    model: AnyModel, x: PyTree, values: PyTree, *, batch_size: int = 1024
) -> Float[Array, " observations"]:
    """The exact log p_θ(x) of every observation, by a sum over the values of z.

    Arguments:
        model: the model.
        x: the observations, as leading axis.
        values: all values of z, stacked.
        batch_size: how many of them are treated at a time.

    Example: `enumerated_log_likelihood(mixture, x, jnp.arange(3))`, or for ten binary latents
    `enumerated_log_likelihood(model, x, binary_codes(10))`.
    """
    at_least("batch_size", batch_size, 1)
    check_model(model, parameters=False)
    check_data(x, "x")
    key = jax.random.key(0)
    x = match_data(model, x, key, name="x")
    check_support(model, x, key, name="x")
    number = check_data(values, "values")
    values = match_values(model, values, key)
    return _summed(model, x, values, min(batch_size, number))


@eqx.filter_jit
def _summed(model: AnyModel, x: PyTree, values: PyTree, batch_size: int) -> Array:
    def one(x: PyTree) -> Array:
        terms = jax.lax.map(lambda z: log_joint(model, z, x), values, batch_size=batch_size)
        return jax.nn.logsumexp(terms)

    return jax.lax.map(one, x)


def binary_codes(bits: int) -> Float[Array, "codes bits"]:
    """All 2^bits vectors of zeros and ones, as floating-point numbers.

    Arguments:
        bits: how many entries a vector has, at most 20.

    Example: `binary_codes(2)` is `[[0, 0], [0, 1], [1, 0], [1, 1]]`.
    """
    at_least("bits", bits, 1)
    if bits > MOST_BITS:
        raise ValueError(
            f"`bits` must be at most {MOST_BITS} to enumerate all codes, got {bits}. Use "
            "`importance_log_likelihood`."
        )
    codes = jnp.arange(2**bits)[:, None] >> jnp.arange(bits - 1, -1, -1)
    return (codes & 1).astype(float)


__all__ = ["binary_codes", "enumerated_log_likelihood", "importance_log_likelihood"]
