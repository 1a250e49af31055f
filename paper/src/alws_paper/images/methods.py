"""The methods of §4.7, each a function from an architecture to a `Method`, with the paper's values.

    ALWS-F      plain kernel ridge regression on a fixed random projection to 300, λ = 0.1
    ALWS-A      the same, projection and bandwidth adapted by the held-out error of Ĵ
    ALWS        the library's regression: an intercept, no clip beyond the samples, all of γ adapted
    AL-P        particles from a simulator in place of the regression
    VAE         Gaussian posterior                                     Adam 1e-3
    VAE-SNF     orthogonal Sylvester flow, 4 steps of 8 vectors        Adam 5e-4
    SIVI        semi-implicit posterior, 10 further mixing draws       Adam 1e-4
    RWS         reweighted wake-sleep, 50 proposals                    Adam 1e-3
    WGAN-GP     Wasserstein GAN, 5 critic steps to one, penalty 10     Adam 1e-4, β = (0.5, 0.9)

Example: `METHODS["VAE"](convolutional(Binary()))`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
from jaxtyping import Array, Key

from alws.model import simulate
from alws.wake_sleep import ALWS_A, ALWS_F, Adapt
from alws_paper.images.adversarial import Adversarial
from alws_paper.images.amortised import Amortised
from alws_paper.images.encoders import Architecture, Critic, GaussianEncoder
from alws_paper.images.protocol import Climbing, Method, Pair
from alws_paper.images.rivals.noisy import NoisyNetwork
from alws_paper.images.rivals.particles import particle_objective, simulator_loss
from alws_paper.images.rivals.reweighted import reweighted_objective
from alws_paper.images.rivals.sivi import SemiImplicitEncoder, mean_semi_implicit_bound
from alws_paper.images.rivals.sylvester import SylvesterEncoder
from alws_paper.shared.bounds import mean_bound
from alws_paper.shared.vae import Autoencoder, mean_elbo

Objective = tuple[Array, Array]
PAPER_ADAPTS = replace(ALWS_A, after=3000)
"""How the paper's ALWS-A adapts its kernel: at every step, from the sixth epoch on."""


def alws_f(
    architecture: Architecture, *, sleep_samples: int = 2000, learning_rate: float = 1e-3
) -> Amortised:
    """ALWS with a fixed kernel."""
    return Amortised("ALWS-F", architecture.start, ALWS_F, sleep_samples, learning_rate)


def alws_a(
    architecture: Architecture,
    *,
    adapt: Adapt = PAPER_ADAPTS,
    sleep_samples: int = 2000,
    learning_rate: float = 1e-3,
) -> Amortised:
    """ALWS with an adapted kernel; 3000 steps are the paper's five epochs of 60,000 images."""
    return Amortised("ALWS-A", architecture.start, adapt, sleep_samples, learning_rate)


def alws_ours(
    architecture: Architecture, *, sleep_samples: int = 2000, learning_rate: float = 1e-3
) -> Amortised:
    """ALWS with the regression that `alws.Settings` has by default."""
    return Amortised(
        "ALWS", architecture.start, Adapt(), sleep_samples, learning_rate, published=None
    )


def particle_learning(
    architecture: Architecture, *, particles: int = 10, learning_rate: float = 1e-3
) -> Climbing:
    """AL-P; as many sleep samples as the batch has images."""

    def build(key: Key[Array, ""]) -> Pair:
        model_key, trunk_key, network_key = jax.random.split(key, 3)
        trunk = architecture.trunk(trunk_key, 0.0)
        simulator = NoisyNetwork(trunk, architecture.latents, key=network_key)
        return Pair(simulator, architecture.start(model_key))

    def objective(pair: Pair, x: Array, key: Key[Array, ""]) -> Objective:
        sleep_key, loss_key, wake_key = jax.random.split(key, 3)
        sleep = simulate(pair.model, sleep_key, len(x))
        loss = simulator_loss(pair.beside, pair.model, sleep, loss_key, number=particles)
        value = particle_objective(pair.beside, pair.model, x, wake_key, number=particles)
        return value - loss, value

    return Climbing("AL-P", build, objective, learning_rate)


def vae(architecture: Architecture, *, learning_rate: float = 1e-3) -> Climbing:
    """A variational autoencoder with a diagonal Gaussian posterior."""

    def build(key: Key[Array, ""]) -> Pair:
        return _with_encoder(architecture, key)

    def objective(pair: Pair, x: Array, key: Key[Array, ""]) -> Objective:
        elbo = mean_elbo(Autoencoder(pair.beside, pair.model), x, key)
        return elbo, elbo

    return Climbing("VAE", build, objective, learning_rate)


def sylvester_vae(
    architecture: Architecture, *, vectors: int = 8, steps: int = 4, learning_rate: float = 5e-4
) -> Climbing:
    """A variational autoencoder with an orthogonal Sylvester flow as posterior."""

    def build(key: Key[Array, ""]) -> Pair:
        model_key, trunk_key, last_key = jax.random.split(key, 3)
        encoder = SylvesterEncoder(
            architecture.trunk(trunk_key, 0.0),
            latents=architecture.latents,
            vectors=vectors,
            steps=steps,
            key=last_key,
        )
        return Pair(encoder, architecture.start(model_key))

    def objective(pair: Pair, x: Array, key: Key[Array, ""]) -> Objective:
        elbo = mean_bound(pair.beside, pair.model, x, key)
        return elbo, elbo

    return Climbing("VAE-SNF", build, objective, learning_rate)


def semi_implicit(
    architecture: Architecture, *, mixing: int = 10, draws: int = 1, learning_rate: float = 1e-4
) -> Climbing:
    """Semi-implicit variational inference."""

    def build(key: Key[Array, ""]) -> Pair:
        model_key, trunk_key, network_key, scale_key = jax.random.split(key, 4)
        latents = architecture.latents
        network = NoisyNetwork(architecture.trunk(trunk_key, 0.0), latents, key=network_key)
        encoder = SemiImplicitEncoder(network, latents=latents, key=scale_key)
        return Pair(encoder, architecture.start(model_key))

    def objective(pair: Pair, x: Array, key: Key[Array, ""]) -> Objective:
        bound = mean_semi_implicit_bound(
            pair.beside, pair.model, x, key, mixing=mixing, draws=draws
        )
        return bound, bound

    return Climbing("SIVI", build, objective, learning_rate)


def reweighted_wake_sleep(
    architecture: Architecture, *, proposals: int = 50, learning_rate: float = 1e-3
) -> Climbing:
    """Reweighted wake-sleep with a diagonal Gaussian posterior."""

    def build(key: Key[Array, ""]) -> Pair:
        return _with_encoder(architecture, key)

    def objective(pair: Pair, x: Array, key: Key[Array, ""]) -> Objective:
        return reweighted_objective(pair.beside, pair.model, x, key, proposals=proposals)

    return Climbing("RWS", build, objective, learning_rate)


def wgan(
    architecture: Architecture, *, critic_steps: int = 5, learning_rate: float = 1e-4
) -> Adversarial:
    """A Wasserstein GAN with gradient penalty; the critic's nonlinearity is leaky."""

    def build(key: Key[Array, ""]) -> Pair:
        model_key, trunk_key, last_key = jax.random.split(key, 3)
        critic = Critic(architecture.trunk(trunk_key, 0.2), key=last_key)
        return Pair(critic, architecture.start(model_key))

    return Adversarial("WGAN-GP", build, critic_steps, learning_rate)


def _with_encoder(architecture: Architecture, key: Key[Array, ""]) -> Pair:
    model_key, trunk_key, last_key = jax.random.split(key, 3)
    trunk = architecture.trunk(trunk_key, 0.0)
    encoder = GaussianEncoder(trunk, latents=architecture.latents, key=last_key)
    return Pair(encoder, architecture.start(model_key))


METHODS: Mapping[str, Callable[..., Method]] = {
    "ALWS-F": alws_f,
    "ALWS-A": alws_a,
    "ALWS": alws_ours,
    "AL-P": particle_learning,
    "VAE": vae,
    "VAE-SNF": sylvester_vae,
    "SIVI": semi_implicit,
    "RWS": reweighted_wake_sleep,
    "WGAN-GP": wgan,
}
"""Every method by its name."""

__all__ = [
    "METHODS",
    "PAPER_ADAPTS",
    "alws_a",
    "alws_f",
    "alws_ours",
    "particle_learning",
    "reweighted_wake_sleep",
    "semi_implicit",
    "sylvester_vae",
    "vae",
    "wgan",
]
