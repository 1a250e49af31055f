"""Reweighted wake-sleep (Bornschein & Bengio, 2015; Le et al., 2019).

With K proposals z_k ~ q_φ(z | x) and weights w̄_k ∝ p_θ(z_k, x)/q_φ(z_k | x), which sum to one,

    wake-θ    ∇_θ log p_θ(x) ≈ Σ_k w̄_k ∇_θ log p_θ(z_k, x)
    wake-φ    −∇_φ KL(p_θ(z | x) ‖ q_φ(z | x)) ≈ Σ_k w̄_k ∇_φ log q_φ(z_k | x)
    sleep-φ   ∇_φ E_{(z, x) ~ p_θ} log q_φ(z | x).

θ takes the first, φ the mean of the other two. Nothing is differentiated through draws or weights,
so that the latents may be discrete.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float, Key, PyTree

from alws.model import AnyModel, log_joint, simulate
from alws_paper.shared.bounds import Proposals, log_mean_exp


@runtime_checkable
class Recognition(Protocol):
    """q_φ(z | x) for one x, with draws and a density at any z."""

    def propose(self, key: Key[Array, ""], number: int) -> Proposals:
        """`number` draws and log q of each."""
        ...

    def log_density(self, z: Any) -> Float[Array, ""]:
        """log q(z)."""
        ...


Encoder = Callable[[PyTree], Recognition]


class Wake(NamedTuple):
    """Values whose gradients are the wake updates, and the bound log (1/K) Σ w_k."""

    theta: Float[Array, ""]
    phi: Float[Array, ""]
    bound: Float[Array, ""]


def wake(
    encoder: Encoder, model: AnyModel, x: PyTree, key: Key[Array, ""], *, proposals: int
) -> Wake:
    """The wake updates for one observation: differentiate `theta` in θ and `phi` in φ.

    Example: `wake(encoder, model, x, key, proposals=50).bound`.
    """
    q = encoder(x)
    z, log_q = jax.lax.stop_gradient(q.propose(key, proposals))
    joint = jax.vmap(lambda z: log_joint(model, z, x))(z)
    log_weights = jax.lax.stop_gradient(joint) - log_q
    weights = jax.nn.softmax(log_weights)
    return Wake(weights @ joint, weights @ jax.vmap(q.log_density)(z), log_mean_exp(log_weights))


def sleep(
    encoder: Encoder, model: AnyModel, key: Key[Array, ""], *, draws: int
) -> Float[Array, ""]:
    """The mean of log q_φ(z | x) over draws from the model, θ constant.

    Example: `eqx.filter_grad(sleep)(encoder, model, key, draws=100)`.
    """
    z, x = simulate(model, key, draws)
    return jax.vmap(lambda z, x: encoder(x).log_density(z))(z, x).mean()


def reweighted_objective(
    encoder: Encoder, model: AnyModel, x: PyTree, key: Key[Array, ""], *, proposals: int = 50
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """A value whose gradient in (θ, φ) is all three updates for a batch, and the mean bound.

    As many draws for sleep-φ as observations.

    Example: `reweighted_objective(encoder, model, x, key, proposals=50)`.
    """
    number = len(jax.tree.leaves(x)[0])
    sleep_key, wake_key = jax.random.split(key)
    results = jax.vmap(lambda x, k: wake(encoder, model, x, k, proposals=proposals))(
        x, jax.random.split(wake_key, number)
    )
    theta, phi, bound = (values.mean() for values in results)
    return theta + (phi + sleep(encoder, model, sleep_key, draws=number)) / 2, bound


__all__ = ["Recognition", "Wake", "reweighted_objective", "sleep", "wake"]
