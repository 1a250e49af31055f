"""The variational training of neural processes (Garnelo et al., 2018).

A neural process has a latent z whose distribution p_θ(z | r) depends on a representation r of a set
of pairs. Given a context C and targets T the posterior is taken to be of the same form,

    q(z | C, T) = p_θ(z | r^CT),   r^CT = mean over C of ρ_θ(x, y) + mean over T of ρ_θ(x, y)

and θ, which gives the prior, the posterior and the likelihood, climbs

    ELBO = E_q[log p_θ(y^T | x^T, z)] − KL(q(z | C, T) ‖ p_θ(z | r^C)) ≤ log p_θ(y^T | x^T, C)

with one draw of z. The sum of two means is the formula of the ALWS paper; in the article of Garnelo
et al. r^CT is one mean over all pairs. Both are here. With C ⊂ T that is the mean over T.
"""

from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from alws_paper.shared.training import climb

Pooling = Literal["sum", "mean"]


class Context(NamedTuple):
    """What a neural process is conditioned on: the context pairs, and where to predict."""

    x: Float[Array, "*functions context"]
    y: Float[Array, "*functions context"]
    targets: Float[Array, "*functions targets"]


class Normal(NamedTuple):
    """A diagonal Gaussian."""

    mean: Float[Array, " entries"]
    scale: Float[Array, " entries"]

    def sample(self, key: Key[Array, ""]) -> Float[Array, " entries"]:
        """mean + scale·ε, differentiable in both."""
        return self.mean + self.scale * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def divergence(self, other: "Normal") -> Float[Array, ""]:
        """KL(self ‖ other) = Σ log(s'/s) + (s² + (m − m')²)/2s'² − 1/2."""
        ratio = self.scale / other.scale
        shift = (self.mean - other.mean) / other.scale
        return jnp.sum((ratio**2 + shift**2 - 1) / 2 - jnp.log(ratio))


@runtime_checkable
class Process(Protocol):
    """What the bound asks of a neural process."""

    def represent(self, x: Array, y: Array) -> Float[Array, " representation"]:
        """r, the mean of ρ(x, y) over pairs."""
        ...

    def latent(self, r: Array) -> Normal:
        """p(z | r)."""
        ...

    def likelihood(self, z: Array, context: Context) -> Any:
        """p(y | z) at the targets."""
        ...


P = TypeVar("P", bound=Process)


def posterior(
    model: Process, context: Context, y: Float[Array, " targets"], pooling: Pooling = "sum"
) -> Normal:
    """q(z | C, T)."""
    targets = model.represent(context.targets, y)
    if pooling == "mean":
        return model.latent(targets)
    return model.latent(model.represent(context.x, context.y) + targets)


def elbo(
    model: Process,
    context: Context,
    y: Float[Array, " targets"],
    key: Key[Array, ""],
    pooling: Pooling = "sum",
) -> Float[Array, ""]:
    """An unbiased estimate of the bound for one context and its targets.

    Example: `elbo(model, Context(x[:4], y[:4], x), y, key)`.
    """
    q = posterior(model, context, y, pooling)
    prior = model.latent(model.represent(context.x, context.y))
    return model.likelihood(q.sample(key), context).log_prob(y) - q.divergence(prior)


def train_variational(
    model: P,
    contexts: Context,
    y: Float[Array, "functions targets"],
    *,
    key: Key[Array, ""],
    steps: int,
    batch_size: int,
    learning_rate: float,
    pooling: Pooling = "sum",
) -> tuple[P, Float[np.ndarray, " steps"]]:
    """Adam with a cosine decay on the mean bound of random contexts; the bound of every step.

    Example: `train_variational(model, contexts, y, key=key, steps=10**4, batch_size=16, ...)`.
    """

    def objective(model: P, batch: tuple[Context, Array], key: Key[Array, ""]) -> Any:
        keys = jax.random.split(key, len(batch[1]))
        bound = jax.vmap(lambda c, y, k: elbo(model, c, y, k, pooling))(*batch, keys).mean()
        return bound, bound

    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    model, bounds = climb(
        objective,
        model,
        (contexts, y),
        optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule)),
        key=key,
        steps=steps,
        batch_size=batch_size,
        every=steps,
    )
    return model, bounds[0]
