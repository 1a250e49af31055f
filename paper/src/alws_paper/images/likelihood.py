"""Held-out likelihood of a trained generator, as it is and with its pixel noise refitted.

σ starts at 1 and an optimiser moves log σ by little a step, so the likelihood as trained tells
how far σ has come as much as how good the pictures are. Beside it stands the likelihood with σ
refitted to training images, everything else constant, by expectation-maximisation:

    σ² ← mean over images and pixels of E[(x − E[x | z])² | x],

the posterior's draws from annealed chains, weighted, that go on while σ changes. σ moves by at
most 5 % a transition, so that the chains can follow; the weights go on with it,

    log w += log p_σ'(x | z) − log p_σ(x | z)   (Neal 2001, with σ for the temperature).
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpyro.distributions.transforms import IdentityTransform

from alws.results.annealed import FIRST, GAIN, WANTED, annealed_log_likelihood, schedule
from alws.results.hamiltonian import Chains, from_prior, path_densities, transition
from alws.validation import at_least
from alws_paper.images.data.images import Images
from alws_paper.images.generators import ImageModel, Noisy
from alws_paper.images.plan import Plan

LEAPFROG = 5
MOST_MOVE = 0.05
"""How far log σ moves at most after a transition."""
NUMBERS = ("log_likelihood", "log_likelihood_error", "noise", "effective_chains", "acceptance")
REFITTED = tuple(f"refitted_{name}" for name in NUMBERS)
COLUMNS = (*NUMBERS, *REFITTED)
"""What is kept of a cell: the five numbers as trained, and the same with σ refitted."""


def held_out(
    model: ImageModel, data: Images, plan: Plan, key: Key[Array, ""]
) -> dict[str, float | None]:
    """Mean log p(x) of some test images, its standard error over them, σ, and how chains fared.

    The last training images, as many, refit σ. Binary pixels have no σ, and nothing is refitted.

    Example: `held_out(model, data, plan, key)["refitted_log_likelihood"]`.
    """
    found = _estimate(model, data, plan, key)
    if not isinstance(model.output, Noisy):
        return found
    chosen = refit_noise(
        model,
        jnp.asarray(data.train[-plan.annealed :]),
        key=jax.random.fold_in(key, 1),
        temperatures=plan.temperatures,
        chains=plan.chains,
    )
    again = _estimate(chosen, data, plan, key)
    return found | {f"refitted_{name}": value for name, value in again.items()}


def refit_noise(
    model: ImageModel,
    x: Float[Array, "images channels height width"],
    *,
    key: Key[Array, ""],
    temperatures: int = 200,
    chains: int = 4,
    further: int = 100,
) -> ImageModel:
    """The model with the σ of largest likelihood on some images, everything else constant.

    Chains are annealed at the model's own σ first; σ changes after each of `further` transitions.

    Example: `jnp.exp(refit_noise(model, train[:50], key=key).output.log_noise)`.
    """
    for name, value in (("temperatures", temperatures), ("chains", chains), ("further", further)):
        at_least(name, value, 1)
    if not isinstance(model.output, Noisy):
        raise TypeError(
            f"the output must have Gaussian noise to refit, got {type(model.output).__name__}. "
            "Use Bounded or Unbounded."
        )
    return _with_noise(model, _refitted(model, x, key, temperatures, chains, further))


class State(NamedTuple):
    """The chains, their log weights, the step size of each image, and log σ."""

    at: Chains
    log_weight: Float[Array, "images chains"]
    log_step: Float[Array, " images"]
    log_noise: Float[Array, ""]


@eqx.filter_jit
def _refitted(
    model: ImageModel, x: Array, key: Key[Array, ""], temperatures: int, chains: int, further: int
) -> Float[Array, ""]:
    transforms = [IdentityTransform()]
    pixels = math.prod(x.shape[1:])
    start_key, move_key = jax.random.split(key)
    beta = jnp.concatenate([schedule(temperatures), jnp.ones(further)]).astype(x.dtype)
    first = from_prior(
        model, path_densities(model, transforms, key), transforms, x, start_key, chains
    )

    def one(state: State, item: tuple[Array, Array, Array]) -> tuple[State, None]:
        number, before, now = item
        momentum_key, accept_key = jax.random.split(jax.random.fold_in(move_key, number))
        density = path_densities(_with_noise(model, state.log_noise), transforms, key)
        at, accepted = transition(
            density,
            x,
            state.at,
            now,
            jnp.exp(state.log_step),
            jax.random.normal(momentum_key, state.at.u.shape, x.dtype),
            jax.random.uniform(accept_key, state.log_weight.shape, x.dtype),
            LEAPFROG,
        )
        log_weight = state.log_weight + (now - before) * state.at.likelihood
        squares = _squares(at.likelihood, state.log_noise, pixels)
        best = jnp.log((jax.nn.softmax(log_weight, axis=1) * squares).sum(axis=1).mean()) / 2
        move = jnp.clip(best - state.log_noise, -MOST_MOVE, MOST_MOVE)
        log_noise = jnp.where(number < temperatures, state.log_noise, state.log_noise + move)
        moved = at._replace(
            likelihood=-pixels * (_entropy(log_noise) + squares * jnp.exp(-2 * log_noise) / 2),
            likelihood_gradient=at.likelihood_gradient * jnp.exp(2 * (state.log_noise - log_noise)),
        )
        log_weight = log_weight + moved.likelihood - at.likelihood
        log_step = state.log_step + GAIN * (accepted.mean(axis=1) - WANTED)
        return State(moved, log_weight, log_step, log_noise), None

    start = State(
        first,
        jnp.zeros(first.likelihood.shape, x.dtype),
        jnp.full(len(x), jnp.log(FIRST), x.dtype),
        jnp.asarray(model.output.log_noise, x.dtype),  # pyright: ignore
    )
    items = (jnp.arange(temperatures + further), beta[:-1], beta[1:])
    return jax.lax.scan(one, start, items)[0].log_noise


def _entropy(log_noise: Float[Array, ""]) -> Float[Array, ""]:
    """log σ + log(2π)/2: what log p(x | z) loses a pixel beside its square."""
    return log_noise + math.log(2 * math.pi) / 2


def _squares(
    likelihood: Float[Array, "images chains"], log_noise: Float[Array, ""], pixels: int
) -> Float[Array, "images chains"]:
    """The mean over pixels of (x − E[x | z])², from log p(x | z)."""
    return -2 * jnp.exp(2 * log_noise) * (likelihood / pixels + _entropy(log_noise))


def _with_noise(model: ImageModel, log_noise: Float[Array, ""]) -> ImageModel:
    return eqx.tree_at(lambda m: m.output.log_noise, model, log_noise)


def _estimate(
    model: ImageModel, data: Images, plan: Plan, key: Key[Array, ""]
) -> dict[str, float | None]:
    """The five numbers of a model; None where chains were lost."""
    found = annealed_log_likelihood(
        model,
        jnp.asarray(data.test[: plan.annealed]),
        key=key,
        temperatures=plan.temperatures,
        chains=plan.chains,
        leapfrog=LEAPFROG,
    )
    values = np.asarray(found.log_likelihood, float)
    log_noise = model.output.log_noise if isinstance(model.output, Noisy) else np.nan
    numbers = (
        values.mean(),
        values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0,
        np.exp(float(log_noise)),
        found.effective_chains.mean(),
        found.acceptance.mean(),
    )
    return {
        name: float(value) if np.isfinite(value) else None
        for name, value in zip(NUMBERS, numbers, strict=True)
    }


__all__ = ["held_out", "refit_noise"]
