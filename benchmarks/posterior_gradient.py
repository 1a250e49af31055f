"""How good ALWS's gradient is on images, and what a better kernel could do: cosines, as JSON.

    python benchmarks/posterior_gradient.py [--quick] [--dataset fashion] [--steps 1800]

ALWS-F trains the connected generator for some steps. For 100 training images, chains of Hamiltonian
transitions then draw from every posterior p(z | x), starting from the best of many prior draws;
the mean of ∇_θ log p(z, x) over them is the gradient of the mean log likelihood. The regression's
gradient is compared with it layer by layer, for other bandwidths, ridges and numbers of sleep
samples, and with a projection on the principal components of the generator's own images, which has
no noise to fit: what adapting a linear projection can hope for. Beside it stand prior draws
weighted by the density they give each image, and the ends of short chains: what looks at the
density itself.

`halves` is the cosine between the gradients of two halves of the chains: no estimate can be seen to
agree better than that. `cosines` are those of one set of draws, `mean` that of the mean over all
sets: noise averages away over steps, what `mean` lacks does not. Data come from `$ALWS_DATA`.
"""

import argparse
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from machine import use_large_pages
from models import estimated_gradient

import alws
from alws.features import Linear
from alws.kernels import median_distance
from alws.regressions.base import one_lapack_thread
from alws_paper.images.data.images import images
from alws_paper.images.plan import Cell, Plan, method_of
from alws_paper.images.trainer import train

SEED, PRIOR_DRAWS, LEAPFROG, KEPT, WANTED = 7, 3000, 8, 10, 0.75
COMPONENTS = 40


def posterior_draws(model, x, key, chains, transitions):
    """z [transitions, images, chains, latent]: Hamiltonian chains that approach p(z | x)."""

    def nearest(key):
        z = jax.vmap(model.sample_latent)(jax.random.split(key, PRIOR_DRAWS))
        mean = jax.vmap(model.mean)(z).reshape(PRIOR_DRAWS, -1)
        return z[jnp.argmin((mean**2).sum(axis=1) - 2 * x.reshape(len(x), -1) @ mean.T, axis=1)]

    slopes = jax.vmap(
        jax.vmap(jax.value_and_grad(lambda z, x: alws.log_joint(model, z, x)), (0, None))
    )

    def transition(carry, key):
        z, value, slope, size = carry
        first, second = jax.random.split(key)
        momentum = jax.random.normal(first, z.shape)
        step = size[:, None, None]

        def leap(at, _):
            z, v, _, slope = at
            v = v + step / 2 * slope
            z = z + step * v
            value, slope = slopes(z, x)
            return (z, v + step / 2 * slope, value, slope), None

        moved, _ = jax.lax.scan(leap, (z, momentum, value, slope), None, length=LEAPFROG)
        rise = moved[2] - value + ((momentum**2).sum(-1) - (moved[1] ** 2).sum(-1)) / 2
        chance = jnp.minimum(1, jnp.exp(jnp.nan_to_num(rise, nan=-jnp.inf)))
        taken = jax.random.uniform(second, chance.shape) < chance
        z = jnp.where(taken[..., None], moved[0], z)
        value = jnp.where(taken, moved[2], value)
        slope = jnp.where(taken[..., None], moved[3], slope)
        size = size * jnp.exp(0.1 * (chance.mean(axis=1) - WANTED))
        return (z, value, slope, size), z

    z = jnp.stack([nearest(k) for k in jax.random.split(key, chains)], axis=1)
    start = (z, *slopes(z, x), jnp.full(len(x), 0.02))
    _, path = jax.lax.scan(transition, start, jax.random.split(key, transitions))
    return path


def posterior_gradient(model, x, z):
    """∇_θ of the mean of log p(z, x) over posterior draws, some at a time."""

    def objective(model, z):
        values = jax.vmap(jax.vmap(lambda z, x: alws.log_joint(model, z, x), (0, None)))(z, x)
        return values.mean()

    gradients = jax.lax.map(lambda z: eqx.filter_grad(objective)(model, z), z)
    return jax.tree.map(lambda g: g.mean(axis=0), gradients)


def regression_gradient(model, regression, x, key, number):
    """ALWS's gradient on one set of sleep samples."""
    sleep, _ = alws.draw(model, key, number)
    return estimated_gradient(model, regression.fit(sleep.x), sleep, x)


def weighted_gradient(model, x, key, number):
    """∇_θ of (1/M) Σ_mn w_mn log p(z_n, x_m), w_mn ∝ p(x_m | z_n) of prior draws z_n."""
    z = jax.vmap(model.sample_latent)(jax.random.split(key, number))
    flat = x.reshape(len(x), -1)

    def objective(model):
        mean = jax.vmap(model.mean)(z).reshape(number, -1)
        density = (flat @ mean.T - (mean**2).sum(axis=1) / 2) / jnp.exp(2 * model.output.log_noise)
        weights = jax.nn.softmax(jax.lax.stop_gradient(density), axis=1)
        return (weights * density).sum() / len(x)

    return eqx.filter_grad(objective)(model)


def chain_gradient(model, x, key, transitions):
    """∇_θ of the mean of log p(z, x), z the end of one short chain for each image."""
    return posterior_gradient(model, x, posterior_draws(model, x, key, 1, transitions)[-1:])


def layers(gradient):
    """The gradient's weight matrices, one vector each."""
    leaves = jax.tree.leaves(eqx.filter(gradient, eqx.is_inexact_array))
    return [np.ravel(leaf) for leaf in leaves if leaf.ndim == 2]


def cosines(one, other):
    return [
        round(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), 3)
        for a, b in zip(layers(one), layers(other), strict=True)
    ]


def changed(regression, *, bandwidth=1.0, ridge=None):
    """With so many times the bandwidth, and another ridge."""
    wider = regression.kernel.log_bandwidth + np.log(bandwidth)
    found = eqx.tree_at(lambda g: g.kernel.log_bandwidth, regression, wider)
    if ridge is None:
        return found
    return eqx.tree_at(lambda g: g.log_ridge, found, jnp.log(jnp.array(ridge)))


def on_components(regression, model, key):
    """With the generator's own principal components as features, at their median bandwidth."""
    z = jax.vmap(model.sample_latent)(jax.random.split(key, PRIOR_DRAWS))
    means = np.asarray(jax.vmap(model.mean)(z)).reshape(PRIOR_DRAWS, -1)
    directions = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)[2]
    features = Linear(jnp.asarray(directions[:COMPONENTS].T))
    found = eqx.tree_at(lambda g: g.kernel.features, regression, features)
    median = median_distance(features(alws.draw(model, key, 1000)[0].x))
    return eqx.tree_at(lambda g: g.kernel.log_bandwidth, found, jnp.log(median))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="ten steps, short chains")
    parser.add_argument("--dataset", default="mnist", choices=("mnist", "fashion"))
    parser.add_argument("--steps", type=int, default=1800)
    chosen = parser.parse_args()
    use_large_pages()
    steps, chains, transitions = (10, 2, 70) if chosen.quick else (chosen.steps, 6, 160)
    sets = 2 if chosen.quick else 8
    data = images(chosen.dataset)
    cell = Cell(chosen.dataset, "connected", "ALWS-F", SEED)
    plan = Plan((cell.dataset,), ("connected",), ("ALWS-F",), seconds=1.0, sleep_samples=1000)
    method = method_of(cell, plan, data)
    trained = train(method, jnp.asarray(data.train), key=jax.random.key(SEED), steps=steps)
    model, gamma = trained.state.learnt.model, trained.state.learnt.regression
    order = np.random.default_rng(0).permutation(len(data.train))
    x = jnp.asarray(data.train[order[:100]])
    path = eqx.filter_jit(lambda model, key: posterior_draws(model, x, key, chains, transitions))
    z = path(model, jax.random.key(1))[-6 * KEPT :: 6]
    gradient = eqx.filter_jit(lambda model, z: posterior_gradient(model, x, z))
    halves = [gradient(model, z[:, :, i::2]) for i in range(2)]
    truth = jax.tree.map(lambda a, b: (a + b) / 2, *halves)
    print(json.dumps({"steps": steps, "halves": cosines(*halves)}), flush=True)
    variants = {
        "as it is": (gamma, 1000),
        "bandwidth × 0.5": (changed(gamma, bandwidth=0.5), 1000),
        "bandwidth × 1.5": (changed(gamma, bandwidth=1.5), 1000),
        "ridge 0.001": (changed(gamma, ridge=0.001), 1000),
        "ridge 1": (changed(gamma, ridge=1.0), 1000),
        f"{COMPONENTS} components": (on_components(gamma, model, jax.random.key(2)), 1000),
        "4000 sleep samples": (gamma, 4000),
    }
    estimates = {
        name: eqx.filter_jit(
            lambda model, key, g=regression, n=number: regression_gradient(model, g, x, key, n)
        )
        for name, (regression, number) in variants.items()
    }
    for number in (1000, 20_000):
        estimates[f"weights of {number} prior draws"] = eqx.filter_jit(
            lambda model, key, n=number: weighted_gradient(model, x, key, n)
        )
    for number in (5, 20):
        estimates[f"chains of {number} transitions"] = eqx.filter_jit(
            lambda model, key, n=number: chain_gradient(model, x, key, n)
        )
    with one_lapack_thread():
        for name, estimate in estimates.items():
            found = [estimate(model, key) for key in jax.random.split(jax.random.key(3), sets)]
            each = np.mean([cosines(one, truth) for one in found], axis=0).round(2).tolist()
            mean = cosines(jax.tree.map(lambda *parts: sum(parts) / sets, *found), truth)
            line = {"estimate": name, "cosines": each, "mean": np.round(mean, 2).tolist()}
            print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
