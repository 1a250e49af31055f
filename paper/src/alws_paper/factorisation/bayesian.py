"""Bayesian Beta–Gamma matrix factorisation by mean-field variational inference with G-Rep.

    z_nk ~ Beta(1, 1),  w_ik ~ Gamma(0.9, 0.3),  x_ni ~ Bernoulli(sigmoid(w_i · logit(z_n) + b_i))

Every image has a Beta factor for each latent, every weight a Gamma factor; the bias is a parameter.
The gradient is that of Ruiz, Titsias & Blei (2016), its correction term with the signal that each
factor has a part in, less that of a second draw, which leaves it unbiased and far less noisy.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from alws_paper.factorisation.grep import Beta, Gamma, correction

LEAST = 0.02
"""Added to the shapes of the factors: far below 1, densities pile up at the edge."""
DRAWS = 2


class Images(eqx.Module):
    """The parameters of q(z), before the softplus: one row for each image."""

    alpha: Float[Array, "images latents"]
    beta: Float[Array, "images latents"]

    @property
    def q(self) -> Beta:
        """q(z)."""
        return Beta(_positive(self.alpha), _positive(self.beta))


class Weights(eqx.Module):
    """The parameters of q(W), shape and mean before the softplus, and the bias."""

    shape: Float[Array, "pixels latents"]
    mean: Float[Array, "pixels latents"]
    bias: Float[Array, " pixels"]

    @property
    def q(self) -> Gamma:
        """q(W)."""
        shape = _positive(self.shape)
        return Gamma(shape, shape / self.expected)

    @property
    def expected(self) -> Float[Array, "pixels latents"]:
        """E_q[W]."""
        return jax.nn.softplus(self.mean) + 1e-6


def _positive(raw: Array) -> Array:
    return jax.nn.softplus(raw) + LEAST


def start(
    weights: Float[Array, "pixels latents"], bias: Float[Array, " pixels"], images: int
) -> tuple[Images, Weights]:
    """q(z) near uniform, E[W] as given, with shape 10 (a relative spread of a third)."""
    rows = jnp.full((images, weights.shape[1]), jnp.log(jnp.expm1(1.0)))
    shape = jnp.full(weights.shape, jnp.log(jnp.expm1(10.0)))
    return Images(rows, rows), Weights(shape, jnp.log(jnp.expm1(weights)), bias)


def surrogate(
    images: Images,
    weights: Weights,
    x: Float[Array, "batch pixels"],
    key: Key[Array, ""],
    *,
    total: int,
    edge: float,
    prior: tuple[float, float],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The ELBO of the whole data set from a batch, with G-Rep's gradient; and its plain value."""
    q_z, q_w = images.q, weights.q
    scale = total / x.shape[0]
    limit = jnp.log((1 - edge) / edge)

    def one(key: Key[Array, ""]) -> tuple[Array, Array, Array, Array]:
        z_key, w_key = jax.random.split(key)
        z_noise = jax.lax.stop_gradient(q_z.noise(q_z.sample(z_key)))
        w_noise = jax.lax.stop_gradient(q_w.noise(q_w.sample(w_key)))
        log_w = q_w.transform(w_noise)
        w = jnp.exp(log_w)
        logits = jnp.clip(q_z.transform(z_noise), -limit, limit) @ w.T + weights.bias
        fit = x * logits - jax.nn.softplus(logits)
        return z_noise, w_noise, fit, (prior[0] - 1) * log_w - prior[1] * w

    z_noise, w_noise, fit, log_prior = jax.vmap(one)(jax.random.split(key, DRAWS))
    value = scale * fit.sum() / DRAWS + log_prior.sum() / DRAWS
    by_image = jnp.broadcast_to(scale * fit.sum(axis=2)[..., None], z_noise.shape)
    by_weight = scale * fit.sum(axis=1)[..., None] + log_prior
    correct = jax.vmap(correction, (None, 0, 0))
    corrected = (
        correct(q_z, z_noise, by_image - by_image[::-1]).sum()
        + correct(q_w, w_noise, by_weight - by_weight[::-1]).sum()
    ) / DRAWS
    entropy = scale * q_z.entropy().sum() + q_w.entropy().sum()
    constant = prior[0] * jnp.log(prior[1]) - jax.scipy.special.gammaln(prior[0])
    bound = value + entropy + constant * log_prior[0].size
    return bound + corrected - jax.lax.stop_gradient(corrected), bound


def train(
    images: Images,
    weights: Weights,
    data: Float[Array, "data pixels"],
    *,
    key: Key[Array, ""],
    steps: int,
    batch_size: int,
    learning_rate: float,
    image_learning_rate: float,
    edge: float = 1e-4,
    prior: tuple[float, float] = (0.9, 0.3),
) -> tuple[Images, Weights, Float[Array, " steps"]]:
    """Maximise the ELBO by Adam; the ELBO of every step, per image, comes back.

    Each step sees a batch of images and moves their own factors, which it sees once an epoch and at
    a rate of their own, and all the weights'.

    Example: `train(*start(w, b, len(data)), data, key=key, steps=3000, batch_size=500, ...)`.
    """
    adam = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    image_adam = optax.adam(optax.cosine_decay_schedule(image_learning_rate, steps))
    per_epoch = len(data) // batch_size

    def objective(
        parts: tuple[Images, Weights], x: Array, key: Key[Array, ""]
    ) -> tuple[Array, Array]:
        value, bound = surrogate(*parts, x, key, total=len(data), edge=edge, prior=prior)
        return -value / len(data), bound / len(data)

    def improve(carry: tuple, step: Int[Array, ""]) -> tuple[tuple, Array]:
        images, image_state, weights, weight_state = carry
        epoch, position = step // per_epoch, step % per_epoch
        order = jax.random.permutation(jax.random.fold_in(key, epoch), len(data))
        chosen = jax.lax.dynamic_slice_in_dim(order, position * batch_size, batch_size)
        rows, row_state = _rows((images, image_state), chosen)
        draw_key = jax.random.fold_in(jax.random.fold_in(key, 0), step)
        gradient, value = jax.grad(objective, has_aux=True)((rows, weights), data[chosen], draw_key)
        updates, row_state = image_adam.update(gradient[0], row_state)
        rows = optax.apply_updates(rows, updates)
        images, image_state = _put((images, image_state), (rows, row_state), chosen)
        updates, weight_state = adam.update(gradient[1], weight_state)
        weights = optax.apply_updates(weights, updates)
        return (images, image_state, weights, weight_state), value

    @jax.jit
    def loop(images: Images, weights: Weights) -> tuple[Images, Weights, Array]:
        states = image_adam.init(images), adam.init(weights)  # pyright: ignore
        carry = (images, states[0], weights, states[1])
        (images, _, weights, _), values = jax.lax.scan(improve, carry, jnp.arange(steps))
        return images, weights, values

    return loop(images, weights)


def _rows(tree: PyTree, chosen: Int[Array, " batch"]) -> PyTree:
    return jax.tree.map(lambda a: a[chosen] if a.ndim else a, tree)


def _put(tree: PyTree, rows: PyTree, chosen: Int[Array, " batch"]) -> PyTree:
    return jax.tree.map(lambda a, r: a.at[chosen].set(r) if a.ndim else r, tree, rows)
