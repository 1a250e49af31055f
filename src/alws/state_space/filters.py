"""The exact log likelihood of a sequence, where a filter computes it.

    log p(x_1 … x_T) = Σ_t log p(x_t | x_1 … x_{t−1})

- `forward`: z takes few values and is all that the model remembers. With α_t(k) the density of
  z_t = k and x_1 … x_t, α_t(k) = p(x_t | k) Σ_j α_{t−1}(j) p(k | j), in logarithms, divided by
  their sum at every time;
- `kalman`: everything is Gaussian and linear. With s_t ~ N(m, P) given x_1 … x_{t−1}, x_t has mean
  H m + d and covariance S = H P Hᵀ + R, and s_t given x_t too has mean
  m + P Hᵀ S⁻¹ (x_t − H m − d).

Whether a model is of one of these kinds is found by asking it: which values its latents take, what
its distributions are, and whether their means move as straight lines with constant spread. Both are
differentiable in θ, and a time that is not observed tells nothing.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Key, PyTree
from numpyro.distributions import Distribution, Independent, MultivariateNormal, Normal

from alws.state_space.distributions import log_prob
from alws.state_space.model import Given, StateSpace

MOST_VALUES = 64
"""How many values a latent may take for the forward algorithm."""

LOOK = 200
"""How many sequences, or draws of a state, are looked at to find out what a model is."""


class Filter(NamedTuple):
    """Which filter computes the likelihood, with the values of z for the forward algorithm.

    `kind` is "forward", "kalman" or, where neither does, "none" with the reason.
    """

    kind: str
    values: PyTree
    reason: str


def find_filter(model: StateSpace, key: Key[Array, ""], given: Given = Given()) -> Filter:
    """The filter that computes this model's likelihood exactly, if one does.

    Arguments:
        model: a state-space model.
        key: for the draws that show what its latents are.
        given: the conditions of one sequence, as the model's `sample` takes them.

    Example: `find_filter(model, jax.random.key(0)).kind`.
    """
    short = _short(model, given)
    keys = jax.random.split(key, LOOK)
    z, _ = jax.vmap(lambda k: short.sample(k, _first_times(given, 8)))(keys)
    leaves = jax.tree.leaves(z)
    whole = [jnp.issubdtype(leaf.dtype, jnp.integer) or leaf.dtype == bool for leaf in leaves]
    if leaves and all(whole):
        return _discrete(model, z)
    if any(whole):
        return Filter("none", None, "its latents are partly discrete, partly continuous")
    reason = _not_linear(model, z, key, given)
    return Filter("none", None, reason) if reason else Filter("kalman", None, "")


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
    if kind.kind == "forward":
        return _forward(model, kind.values, x, given)
    if kind.kind == "kalman":
        return _kalman(model, x, given)
    raise ValueError(
        f"{type(model).__name__} must be linear and Gaussian, or have a latent of few values that "
        f"is all it remembers, to be filtered exactly; {kind.reason}. Use the particle filter."
    )


# The forward algorithm --------------------------------------------------------------------------


def _discrete(model: StateSpace, z: PyTree) -> Filter:
    if not (model.inherits("update") and model.inherits("feed_back") and model.inherits("start")):
        return Filter("none", None, "it remembers more than its discrete latent")
    start, steps = z
    if jax.tree.structure(start) != jax.tree.structure(steps):
        return Filter("none", None, "its first latent is not like the later ones")
    rows = [
        np.concatenate(
            [np.asarray(a).reshape(-1, *a.shape[1:]), np.asarray(b).reshape(-1, *b.shape[2:])]
        )
        for a, b in zip(jax.tree.leaves(start), jax.tree.leaves(steps), strict=True)
    ]
    flat = np.concatenate([r.reshape(len(r), -1) for r in rows], axis=1)
    lowest, highest = flat.min(axis=0), flat.max(axis=0)
    number = int(np.prod(highest - lowest + 1.0))
    if number > MOST_VALUES:
        return Filter("none", None, f"its discrete latent takes {number} values or more")
    grids = np.meshgrid(
        *[np.arange(a, b + 1) for a, b in zip(lowest, highest, strict=True)], indexing="ij"
    )
    table = np.stack([g.ravel() for g in grids], axis=1)
    values, at = [], 0
    for row in rows:
        size = int(np.prod(row.shape[1:]))
        values.append(jnp.asarray(table[:, at : at + size].reshape(-1, *row.shape[1:]), row.dtype))
        at += size
    return Filter("forward", jax.tree.unflatten(jax.tree.structure(start), values), "")


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


def gaussian_of(distributions: PyTree) -> tuple[Float[Array, " n"], Float[Array, "n n"]] | None:
    """Mean and covariance of a pytree of independent normal distributions; None if one is not.

    Example: `gaussian_of((dist.Normal(0.0, 2.0), dist.Normal(jnp.ones(3), 1.0)))`.
    """
    leaves = jax.tree.leaves(distributions, is_leaf=lambda d: isinstance(d, Distribution))
    means, covariances = [], []
    for leaf in leaves:
        while isinstance(leaf, Independent):
            leaf = leaf.base_dist
        if type(leaf) is Normal:
            mean = jnp.broadcast_to(jnp.asarray(leaf.loc), leaf.batch_shape).ravel()
            means.append(mean)
            covariances.append(
                jnp.diag(jnp.broadcast_to(jnp.asarray(leaf.scale), leaf.batch_shape).ravel() ** 2)
            )
        elif type(leaf) is MultivariateNormal and leaf.batch_shape == ():
            means.append(leaf.loc)
            covariances.append(leaf.covariance_matrix)
        else:
            return None
    if not means:
        return jnp.zeros(0), jnp.zeros((0, 0))
    return jnp.concatenate(means), jax.scipy.linalg.block_diag(*covariances)


def _kalman(model: StateSpace, x: PyTree, given: Given) -> Float[Array, " times"]:
    controls = () if given.control is None else (given.control,)
    times = len(jax.tree.leaves(x)[0])
    seen = jnp.ones(times, bool) if given.observed is None else given.observed
    begin = model.initial()
    mean, covariance = _gaussian(begin)
    like_first = _draw_like(begin)
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
            return _gaussian(model.transition(unravel(s), *control))[0]

        noise = _gaussian(model.transition(unravel(m), *control))[1]
        z_like = _draw_like(model.transition(unravel(m), *control))
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
            return _gaussian(model.observation(unravel(s), *control))[0]

        h, noise = jax.jacfwd(expected)(m), _gaussian(model.observation(unravel(m), *control))[1]
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


def _gaussian(distributions: PyTree) -> tuple[Array, Array]:
    found = gaussian_of(distributions)
    assert found is not None
    return found


def _draw_like(distributions: PyTree) -> PyTree:
    """Zeros shaped like a draw."""
    leaves, structure = jax.tree.flatten(
        distributions, is_leaf=lambda d: isinstance(d, Distribution)
    )
    return jax.tree.unflatten(structure, [jnp.zeros(d.shape()) for d in leaves])


def _not_linear(model: StateSpace, z: PyTree, key: Key[Array, ""], given: Given) -> str:
    """Why the Kalman filter does not compute its likelihood; empty if it does."""
    short, few = _short(model, given), _first_times(given, 8)
    control = () if few.control is None else (jax.tree.map(lambda u: u[0], few.control),)
    x = jax.vmap(lambda k: short.sample(k, few))(jax.random.split(key, LOOK))[1]
    if gaussian_of(model.initial()) is None:
        return "its start is not normal"
    try:
        _, after = jax.vmap(lambda z, x: short.states(z, x, few))(z, x)
    except ValueError as error:
        return str(error)
    states = jax.tree.map(lambda s: s[:, 0], after)
    one = jax.tree.map(lambda s: s[0], states)
    if gaussian_of(model.transition(one, *control)) is None:
        return "its transitions are not normal"
    if gaussian_of(model.observation(one, *control)) is None:
        return "its observations are not normal"
    firsts = jax.tree.map(lambda a: a[:, 0], x)
    latents = jax.tree.map(lambda a: a[:, 0], z.steps)

    def transition(state: PyTree) -> tuple[Array, Array]:
        return _gaussian(model.transition(state, *control))

    def observation(state: PyTree) -> tuple[Array, Array]:
        return _gaussian(model.observation(state, *control))

    for name, function in (("transitions", transition), ("observations", observation)):
        if not _affine(lambda s, f=function: f(s)[0], (states,)):
            return f"the mean of its {name} is not linear in the state"
        spread = np.asarray(jax.vmap(lambda s, f=function: f(s)[1])(states))
        if not np.allclose(spread, spread[0], rtol=1e-4, atol=1e-9):
            return f"the spread of its {name} depends on the state"
    if not _affine(lambda s, z: model.update(s, z, *control), (states, latents)):
        return "its state is not linear in what came before"
    if not _affine(lambda s, x: model.feed_back(s, x, *control), (states, firsts)):
        return "its state is not linear in what is fed back"
    if not _affine(lambda z: model.start(z), (jax.tree.map(lambda a: a, z.start),)):
        return "its first state is not linear in the first latent"
    return ""


def _affine(function: Any, arguments: tuple) -> bool:
    """Whether f(a + b − c) = f(a) + f(b) − f(c) on rows of these batches."""
    if not jax.tree.leaves(arguments):
        return True
    if any(not eqx.is_inexact_array(leaf) for leaf in jax.tree.leaves(arguments)):
        return False
    a, b, c = (
        jax.tree.map(lambda leaf, i=i: jnp.roll(leaf, i, axis=0), arguments) for i in range(3)
    )
    combined = jax.tree.map(lambda a, b, c: a + b - c, a, b, c)
    values = [jax.vmap(lambda *s: ravel_pytree(function(*s))[0])(*s) for s in (combined, a, b, c)]
    left, right = np.asarray(values[0]), np.asarray(values[1] + values[2] - values[3])
    size = np.abs(np.asarray(values[1])).max(initial=1e-12)
    return bool(np.isfinite(left).all() and np.allclose(left, right, rtol=1e-3, atol=1e-4 * size))


def _first_times(given: Given, number: int) -> Given:
    return jax.tree.map(lambda a: a[:number], given)


def _short(model: StateSpace, given: Given) -> StateSpace:
    """The model for a few times, where it says itself how many there are."""
    times = getattr(model, "times", None)
    if jax.tree.leaves(given) or not isinstance(times, int):
        return model
    return _with_times(model, min(8, times))


def _with_times(model: StateSpace, times: int) -> StateSpace:
    changed = object.__new__(type(model))
    for name, value in vars(model).items():
        object.__setattr__(changed, name, times if name == "times" else value)
    return changed
