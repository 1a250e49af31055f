"""The log likelihood of a sequence, where a filter without chance computes it.

    log p(x_1 … x_T) = Σ_t log p(x_t | x_1 … x_{t−1})

- `forward`: z takes few values and is all that the model remembers. With α_t(k) the density of
  z_t = k and x_1 … x_t, α_t(k) = p(x_t | k) Σ_j α_{t−1}(j) p(k | j), in logarithms, divided by
  their sum at every time;
- `kalman`: everything is Gaussian and linear. With s_t ~ N(m, P) given x_1 … x_{t−1}, x_t has mean
  H m + d and covariance S = H P Hᵀ + R, and s_t given x_t too has mean
  m + P Hᵀ S⁻¹ (x_t − H m − d);
- `grid`: z is one continuous number and all that the model remembers (see `alws.state_space.grid`).

All are differentiable in θ, and a time that is not observed tells nothing. Which of them fits a
model is found by `alws.state_space.kinds`.
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PyTree

from alws.state_space.distributions import draw_like, gaussian, log_prob
from alws.state_space.grid import grid_increments
from alws.state_space.kinds import Filter, find_filter
from alws.state_space.model import Given, StateSpace, within


def increments(
    model: StateSpace, kind: Filter, x: PyTree, given: Given = Given()
) -> Float[Array, " times"]:
    """log p(x_t | x_1 … x_{t−1}) of every time; 0 where nothing was observed.

    Arguments:
        model: the model.
        kind: what `find_filter` found.
        x: one sequence.
        given: its conditions.

    Example: `increments(model, find_filter(model, key), x).sum()` is log p(x).
    """
    x = within(x, given)
    if kind.kind == "forward":
        return _forward(model, kind.values, x, given)
    if kind.kind == "kalman":
        return _kalman(model, x, given)
    if kind.kind == "grid":
        return grid_increments(model, kind.values, x, given)
    raise ValueError(
        f"{type(model).__name__} must be linear and Gaussian, or have a latent of few values that "
        f"is all it remembers, to be filtered without chance; {kind.reason}. Use "
        "`alws.state_space.particle_increments`."
    )


# The forward algorithm --------------------------------------------------------------------------


def _forward(model: StateSpace, values: PyTree, x: PyTree, given: Given) -> Float[Array, " times"]:
    controls = () if given.control is None else (given.control,)
    observed = given.observed

    def moves(control: tuple) -> Float[Array, "values values"]:
        def from_one(state: PyTree) -> Array:
            target = model.transition(state, *control)
            return jax.vmap(lambda z: log_prob(target, z))(values)

        return jax.vmap(from_one)(values)

    def sees(x: PyTree, seen: Array, control: tuple) -> Float[Array, " values"]:
        found = jax.vmap(lambda s: log_prob(model.observation(s, *control), x))(values)
        return jnp.where(seen, found, 0.0)

    times = len(jax.tree.leaves(x)[0])
    seen = jnp.ones(times, bool) if observed is None else observed
    emissions = jax.vmap(sees)(x, seen, controls)
    first = jax.vmap(lambda z: log_prob(model.initial(), z))(values)
    if not model.observe_start:
        first = logsumexp(first[:, None] + moves(jax.tree.map(lambda u: u[0], controls)), axis=0)
    constant = moves(()) if not controls else None

    def step(alpha: Array, item: tuple) -> tuple[Array, Array]:
        emission, control = item
        matrix = moves(control) if constant is None else constant
        joint = logsumexp(alpha[:, None] + matrix, axis=0) + emission
        total = logsumexp(joint)
        return joint - total, total

    joint = first + emissions[0]
    total = logsumexp(joint)
    later = emissions[1:], jax.tree.map(lambda u: u[1:], controls)
    _, rest = jax.lax.scan(step, joint - total, later)
    return jnp.concatenate([total[None], rest])


# The Kalman filter ------------------------------------------------------------------------------


def _kalman(model: StateSpace, x: PyTree, given: Given) -> Float[Array, " times"]:
    controls = () if given.control is None else (given.control,)
    times = len(jax.tree.leaves(x)[0])
    seen = jnp.ones(times, bool) if given.observed is None else given.observed
    begin = model.initial()
    mean, covariance = gaussian(begin)
    like_first = draw_like(begin)
    zero_state, unravel = ravel_pytree(model.start(like_first))
    zero_state = jnp.zeros_like(zero_state)
    _, first_of = ravel_pytree(like_first)

    def of_start(z: Array) -> Array:
        return ravel_pytree(model.start(first_of(z)))[0]

    m = of_start(mean)
    start = jax.jacfwd(of_start)(mean)
    p = start @ covariance @ start.T

    def move(m: Array, p: Array, control: tuple) -> tuple[Array, Array]:
        """s_t = A s_{t−1} + B z_t + c with z_t = F s_{t−1} + e."""

        def latent(s: Array) -> Array:
            return gaussian(model.transition(unravel(s), *control))[0]

        noise = gaussian(model.transition(unravel(m), *control))[1]
        z_like = draw_like(model.transition(unravel(m), *control))
        _, of_z = ravel_pytree(z_like)

        def moved(s: Array, z: Array) -> Array:
            return ravel_pytree(model.update(unravel(s), of_z(z), *control))[0]

        z = latent(m)
        by_state, by_latent = jax.jacfwd(moved, argnums=(0, 1))(m, z)
        a = by_state + by_latent @ jax.jacfwd(latent)(m)
        return moved(m, z), a @ p @ a.T + by_latent @ noise @ by_latent.T

    def see(
        m: Array, p: Array, x: PyTree, seen: Array, control: tuple
    ) -> tuple[Array, Array, Array]:
        def expected(s: Array) -> Array:
            return gaussian(model.observation(unravel(s), *control))[0]

        h, noise = jax.jacfwd(expected)(m), gaussian(model.observation(unravel(m), *control))[1]
        flat = ravel_pytree(x)[0].astype(m.dtype)
        s = h @ p @ h.T + noise
        root = jnp.linalg.cholesky(s)
        error = jax.scipy.linalg.solve_triangular(root, flat - expected(m), lower=True)
        across = jax.scipy.linalg.solve_triangular(root, h @ p, lower=True)
        density = -0.5 * error @ error - jnp.log(jnp.diagonal(root)).sum()
        density -= 0.5 * error.size * jnp.log(2 * jnp.pi)
        after = m + across.T @ error, p - across.T @ across

        def fed(s: Array) -> Array:
            return ravel_pytree(model.feed_back(unravel(s), x, *control))[0]

        pushed = jax.jacfwd(fed)(after[0])
        after = fed(after[0]), pushed @ after[1] @ pushed.T
        m, p = jax.tree.map(lambda new, old: jnp.where(seen, new, old), after, (m, p))
        return m, p, jnp.where(seen, density, 0.0)

    def step(carry: tuple, item: tuple) -> tuple[tuple, Array]:
        (m, p), (x, seen, control) = carry, item
        m, p = move(m, p, control)
        m, p, density = see(m, p, x, seen, control)
        return (m, p), density

    if not model.observe_start:
        return jax.lax.scan(step, (m, p), (x, seen, controls))[1]
    m, p, density = see(m, p, *jax.tree.map(lambda a: a[0], (x, seen, controls)))
    rest = jax.tree.map(lambda a: a[1:], (x, seen, controls))
    return jnp.concatenate([density[None], jax.lax.scan(step, (m, p), rest)[1]])


__all__ = ["Filter", "find_filter", "increments"]
