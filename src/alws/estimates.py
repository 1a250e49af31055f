"""Ways to write J_θ(x*) = E[log p_θ(z, x*) | x*] as a regression on sleep samples, §3.2–3.3.

Each holds the regression's weights W at θ_t and gives J̄ = (1/M) Σ_m Ĵ(x*_m) as a function of θ,
whose gradient at θ_t estimates that of the mean log likelihood:

- `Joint`    J̄ = Σ_n w̄_n log p_θ(z_n, x_n), any model, one right-hand side however many data;
- `Natural`  J̄ = (1/M) Σ_mn W_mn [η_θ(z_n)·s(x*_m) − Ψ_θ(z_n)], exponential families;
- `Cross`    J̄ = (1/M) Σ_mn W_mn log p_θ(z_n, x*_m), any model, M×N densities;
- `Local`    J̄ = (1/M) Σ_m Σ_t Ĵ_t(view t of x*_m), the log joint's terms each on its own view.

`direct_gradients` regresses the vectors ∇_θ log p_θ(z_n, x_n) themselves, eq. (manual_loss); the
mean of its predictions is the gradient of `Joint`'s J̄.

With conditions c that are pooled, W is a function of (c, x), and the densities are under the
condition that goes with them: that of z_n and x_n, and for `Cross` that of x*_m.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, Float, Int, Key, PyTree

from alws.devices import by_blocks
from alws.model import (
    AnyModel,
    Draws,
    ExponentialFamilyModel,
    Pooled,
    Terms,
    condition_arguments,
    draw,
    has_likelihood,
    log_joint,
    log_joints,
    separated,
)
from alws.regressions.base import Smoother
from alws.state_space.model import StateSpace
from alws.values import at_least, instance

FEW_TIMES = 8
"""The most times of a sequence that is regressed as a whole where nobody says."""

PRIOR_DRAWS = 8
"""How many latents stand for the prior under a condition."""


class Weights(NamedTuple):
    """What an estimate keeps of θ_t while J̄ is differentiated in θ.

    `mean` has the mean weight of each sleep sample, `rest` whatever else the estimate needs.
    """

    mean: Float[Array, " sleep"]
    rest: PyTree


class Estimate(eqx.Module):
    """A way to write J as a regression on sleep samples.

    One with `regresses = False` makes its weights without a regression: none is fitted for it, and
    its `smoother` is None.
    """

    regresses: ClassVar[bool] = True

    def check(self, model: AnyModel, draw: Draws, condition: PyTree | None) -> None:
        """Refuse, at the start of a fit, a model that this estimate cannot be used with.

        Arguments:
            model: the model.
            draw: one draw of it.
            condition: that which it was drawn under.
        """

    def views(
        self,
        model: AnyModel,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> PyTree:
        """What the regression compares: the observations themselves, unless an estimate differs.

        Arguments:
            model: the model.
            x: a batch of observations.
            condition: that which they were made under.
            key: given for a wake batch, of whose views a sample may do; `weigh` has the same.
        """
        return x

    def targets(
        self, model: AnyModel, draws: Draws, condition: PyTree | None
    ) -> Float[Array, " views"]:
        """What the regression is to predict at the views of some draws: log p(z, x) of each."""
        return log_joints(model, draws, condition)

    @abstractmethod
    def weigh(
        self,
        model: AnyModel,
        smoother: Smoother | None,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> Weights:
        """The weights of the sleep samples for the wake batch x; the key is for fresh draws."""

    @abstractmethod
    def objective(
        self, model: AnyModel, sleep: Draws, weights: Weights, condition: PyTree | None
    ) -> Float[Array, ""]:
        """J̄(θ), the weights constant."""

    @abstractmethod
    def predict(
        self,
        model: AnyModel,
        smoother: Smoother | None,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
    ) -> Float[Array, " points"]:
        """Ĵ at the views of every point, to be compared with the targets of held-out draws."""


def default_estimate(model: AnyModel) -> "Estimate":
    """`Natural` for a model that gives an exponential-family likelihood, `Joint` otherwise.

    Arguments:
        model: any model that `alws.fit` takes.

    Example: `default_estimate(model).objective(model, sleep, weights, None)`.
    """
    return Natural() if has_likelihood(model) else Joint()


def is_long(model: Any, x: PyTree) -> TypeGuard[StateSpace]:
    """Whether the data are sequences of more than a few times.

    Arguments:
        model: any model that `alws.fit` takes.
        x: the data.

    Example: `is_long(model, x)` for sequences x, one a row.
    """
    return isinstance(model, StateSpace) and jax.tree.leaves(x)[0].shape[1] > FEW_TIMES


class Joint(Estimate):
    """Regress log p_θ(z_n, x_n) on x_n."""

    def weigh(
        self,
        model: AnyModel,
        smoother: Smoother,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> Weights:
        """w̄ = Wᵀ1/M."""
        return Weights(_mean_weights(smoother, x), None)

    def objective(
        self, model: AnyModel, sleep: Draws, weights: Weights, condition: PyTree | None
    ) -> Float[Array, ""]:
        """Σ_n w̄_n log p_θ(z_n, x_n)."""
        return weights.mean @ log_joints(model, sleep, condition)

    def predict(
        self, model: AnyModel, smoother: Smoother, sleep: Draws, x: PyTree, condition: PyTree | None
    ) -> Float[Array, " points"]:
        """W log p(z, x)."""
        return smoother.predict(x, log_joints(model, sleep, condition)[:, None])[:, 0]


class Cross(Estimate):
    """Regress log p_θ(z_n, x*) on x_n, for each wake point x*: exact in x*, M×N densities.

    Made for one or a few wake points, such as a single sequence.
    """

    def weigh(
        self,
        model: AnyModel,
        smoother: Smoother,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> Weights:
        """W and the wake points."""
        weights = smoother.weights(x)
        return Weights(weights.mean(axis=0), (weights / weights.shape[0], x))

    def objective(
        self, model: AnyModel, sleep: Draws, weights: Weights, condition: PyTree | None
    ) -> Float[Array, ""]:
        """Σ_mn W_mn log p_θ(z_n, x*_m) / M."""
        return self.sums(model, sleep, weights, condition).sum()

    def predict(
        self, model: AnyModel, smoother: Smoother, sleep: Draws, x: PyTree, condition: PyTree | None
    ) -> Float[Array, " points"]:
        """Σ_n W_mn log p(z_n, x_m)."""
        weights = smoother.weights(x)
        return self.sums(model, sleep, Weights(weights.mean(axis=0), (weights, x)), condition)

    def sums(
        self, model: AnyModel, sleep: Draws, weights: Weights, condition: PyTree | None
    ) -> Float[Array, " points"]:
        """Σ_n W_mn log p_θ(z_n, x_m) of every point, W and the points constant."""

        def one(row: tuple[Array, PyTree]) -> Array:
            w, point = row
            return w @ jax.vmap(lambda z: log_joint(model, z, point, condition))(sleep.z)

        return jax.lax.map(jax.checkpoint(one), weights.rest)


class Natural(Estimate):
    """Regress η_θ(z_n) and Ψ_θ(z_n) = log Z − log p_θ(z) on x_n, §3.3.

    Leaves of η and terms of Ψ that do not depend on z enter exactly, without regression. With
    pooled conditions the others are regressed as what they differ from their mean under the prior,

        η(z_n, c_n) − η̄(c_n),   η̄(c) = (1/K) Σ_k η(z_k(c), c),   z_k(c) ~ p_θ(z | c),

    and η̄(c*_m) and Ψ̄(c*_m) enter exactly: only what x tells of z is left to the regression.
    """

    def weigh(
        self,
        model: ExponentialFamilyModel,
        smoother: Smoother,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> Weights:
        """Cotangents Wᵀs(X*)/M for η, w̄ = Wᵀ1/M for Ψ, and what the exact parts need."""
        statistics, base = _statistics(model, sleep, x, condition)
        latent, _ = depends_on_latent(model, sleep, condition)
        points = statistics[0].shape[0]
        regressed = [s / points for s, moves in zip(statistics, latent, strict=True) if moves]
        pulled, mean_weights = smoother.predict_vjp(x, (regressed, _even(x)))
        pieces = iter(pulled)
        cotangents = [next(pieces) if moves else None for moves in latent]
        if isinstance(condition, Pooled):
            exact = [s / points for s in statistics], x
        else:
            exact = [s.mean(axis=0, keepdims=True) for s in statistics], None
        return Weights(mean_weights[:, 0], (cotangents, exact, base.mean()))

    def objective(
        self,
        model: ExponentialFamilyModel,
        sleep: Draws,
        weights: Weights,
        condition: PyTree | None,
    ) -> Float[Array, ""]:
        """Σ_n η_θ(z_n)·(Wᵀs/M)_n − Σ_n w̄_n Ψ_θ(z_n), and the exact parts."""
        cotangents, (statistics, wake), value = weights.rest
        natural, terms = _natural(model, sleep, wake, condition)
        for eta, asked, s in zip(natural, cotangents, statistics, strict=True):
            if eta.regressed is not None:
                value += jnp.sum(asked * eta.regressed)
            if eta.exact is not None:
                value += jnp.sum(s * eta.exact)
        for psi in terms:
            if psi.regressed is not None:
                value -= weights.mean @ psi.regressed
            if psi.exact is not None:
                value -= psi.exact.mean()
        return value

    def predict(
        self,
        model: ExponentialFamilyModel,
        smoother: Smoother,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
    ) -> Float[Array, " points"]:
        """Σ_n W_mn [η(z_n)·s(x_m) − Ψ(z_n)], and the exact parts."""
        statistics, value = _statistics(model, sleep, x, condition)
        natural, terms = _natural(model, sleep, x, condition)
        regressed = jnp.zeros(())
        for eta, s in zip(natural, statistics, strict=True):
            if eta.regressed is not None:
                regressed = regressed + s @ eta.regressed.T
            if eta.exact is not None:
                one = eta.exact.shape[0] == 1
                value = value + (s @ eta.exact[0] if one else (s * eta.exact).sum(axis=1))
        for psi in terms:
            if psi.regressed is not None:
                regressed = regressed - psi.regressed
            if psi.exact is not None:
                value = value - psi.exact
        return value + (smoother.weights(x) * regressed).sum(axis=1)


class Local(Estimate):
    """Regress each term of the log joint on its own view of the observation.

    For models with `terms(z, x)` and `views(x)`, such as every `alws.StateSpace`, whose term of
    time t is regressed on a window of the data around t. Sleep samples are pooled over the terms:
    pairs of a term and its view, of every draw so many, taken evenly over the terms. A model that
    gives no terms has one, its log joint density, and its view is x: this is then `Joint`.

    Arguments:
        window: handed to the model's `views` as `window`; its own choice for None.
        pairs: how many pairs of term and view the regression is fitted to, at least one of every
            sleep sample.
        points: of how many views a step sees a sample, if the wake batch has more.

    Example: `alws.Settings(estimate=alws.estimates.Local(window=8), sleep_samples=100)`.
    """

    window: int | None = eqx.field(static=True)
    pairs: int = eqx.field(static=True)
    points: int = eqx.field(static=True)

    def __init__(self, window: int | None = None, *, pairs: int = 1000, points: int = 4096):
        if window is not None:
            at_least("window", window, 0)
        at_least("pairs", pairs, 2)
        at_least("points", points, 2)
        self.window = window
        self.pairs = pairs
        self.points = points

    def check(self, model: AnyModel, draw: Draws, condition: PyTree | None) -> None:
        """Refuse terms that are no vector, or as many views as there are not terms."""
        name = type(model).__name__
        if self.window is not None and not isinstance(model, Terms):
            raise ValueError(
                f"{name} must have `terms(z, x)` and `views(x)` for its views to have a `window`, "
                f"{self.window}. Give it both, or leave `window` out."
            )
        terms = jax.eval_shape(lambda d: self._terms(model, d.z, d.x, condition), draw)
        if not hasattr(terms, "ndim") or terms.ndim != 1:
            raise ValueError(
                f"{name}.terms(z, x) must be one array of numbers, a term each; got "
                f"{getattr(terms, 'shape', terms)}. Sum each term to one number and stack them."
            )
        views = jax.eval_shape(lambda d: self._views(model, d.x, condition), draw)
        lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(views)}
        if lengths != {terms.shape}:
            found = sorted(length[0] if length else 0 for length in lengths)
            raise ValueError(
                f"{name}.views(x) must have as many views as {name}.terms(z, x) has terms, "
                f"{len(terms)}, as leading axis of each leaf; got {found}. Give every term a view, "
                "or sum the terms that share one."
            )

    def views(
        self,
        model: AnyModel,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> PyTree:
        """The views of some terms of each observation, or, with a key, of a wake batch."""
        whole = jax.vmap(lambda x: self._views(model, x, condition))(x)
        number, terms = jax.tree.leaves(whole)[0].shape[:2]
        if key is None:
            chosen = spread_evenly(number, terms, self.pairs)
            return jax.tree.map(lambda a: _rows(a, chosen), whole)
        flat = jax.tree.map(lambda a: a.reshape(number * terms, *a.shape[2:]), whole)
        if number * terms <= self.points:
            return flat
        within = jax.random.uniform(key, (self.points,))
        sampled = (jnp.arange(self.points) + within) * (number * terms / self.points)
        chosen = jnp.minimum(jnp.floor(sampled).astype(int), number * terms - 1)
        return jax.tree.map(lambda a: a[chosen], flat)

    def targets(
        self, model: AnyModel, draws: Draws, condition: PyTree | None
    ) -> Float[Array, " views"]:
        """The terms whose views `views` has."""
        values = self._all_terms(model, draws, condition)
        number, terms = values.shape
        return _rows(values, spread_evenly(number, terms, self.pairs))

    def weigh(
        self,
        model: AnyModel,
        smoother: Smoother,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> Weights:
        """w̄ = Wᵀ1·(terms of an observation)/(views seen), of each pair."""
        terms = jax.eval_shape(lambda: self._all_terms(model, sleep, condition)).shape[1]
        key = jax.random.key(0) if key is None else key
        views = self.views(model, x, condition, key)
        return Weights(terms * _mean_weights(smoother, views), None)

    def objective(
        self, model: AnyModel, sleep: Draws, weights: Weights, condition: PyTree | None
    ) -> Float[Array, ""]:
        """Σ over pairs of w̄ times the term."""
        return weights.mean @ self.targets(model, sleep, condition)

    def predict(
        self, model: AnyModel, smoother: Smoother, sleep: Draws, x: PyTree, condition: PyTree | None
    ) -> Float[Array, " points"]:
        """W·terms at the views of these observations."""
        terms = self.targets(model, sleep, condition)[:, None]
        return smoother.predict(self.views(model, x, condition), terms)[:, 0]

    def _all_terms(
        self, model: AnyModel, draws: Draws, condition: PyTree | None
    ) -> Float[Array, "draws terms"]:
        def some(draws: Draws) -> Array:
            return jax.vmap(lambda z, x: self._terms(model, z, x, condition))(*draws)

        return by_blocks(some, draws)

    def _terms(self, model: Any, z: PyTree, x: PyTree, condition: PyTree | None) -> Array:
        if not isinstance(model, Terms):
            return log_joint(model, z, x, condition)[None]
        x, own = separated(x, condition)
        return model.terms(z, x, *condition_arguments(own))

    def _views(self, model: Any, x: PyTree, condition: PyTree | None) -> PyTree:
        if not isinstance(model, Terms):
            return jax.tree.map(lambda a: a[None], x)
        x, own = separated(x, condition)
        chosen = {} if self.window is None else {"window": self.window}
        return model.views(x, *condition_arguments(own), **chosen)


def spread_evenly(number: int, terms: int, pairs: int) -> Int[np.ndarray, "number each"]:
    """Which terms of each draw are taken, so that all are taken equally often, to within one.

    Arguments:
        number: how many draws there are.
        terms: how many terms each has.
        pairs: how many pairs of draw and term are wanted, at the least one of each draw.

    Example: `spread_evenly(10, 4, 20)` has two different terms of each of ten draws.
    """
    each = min(terms, -(-pairs // number))
    step = round(0.618 * terms)
    while math.gcd(step, terms) != 1:
        step += 1
    taken = np.arange(number * each).reshape(number, each) * step % terms
    return np.broadcast_to(np.arange(terms), (number, terms)) if each == terms else taken


class Centred(Estimate):
    """Another estimate with its mean gradient on `points` fresh draws taken off.

    The expected score of a model on its own draws is zero, but that of an imperfect regression of
    it is not. So the regression's gradient on fresh draws x' ~ p_θ is taken off that on the data,

        ∇_θ J̄ = mean over data of ∇_θ Ĵ(x*) − mean over fresh x' of ∇_θ Ĵ(x'),

    which is zero on average when the model is the truth, whatever the kernel. `Joint` is nearly so
    by itself; `Natural`, which takes part of its gradient from the data as they are, gains by it
    where the likelihood is sharp and the regression's error is divided by a small variance.

    Arguments:
        estimate: the other one.
        points: how many fresh draws.

    Example: `alws.Settings(estimate=Centred(alws.estimates.Natural(), points=500))`.
    """

    estimate: Estimate
    points: int = eqx.field(static=True)

    def __init__(self, estimate: Estimate, points: int):
        instance("estimate", estimate, Estimate, "an estimate", "Use `alws.estimates.Natural()`.")
        at_least("points", points, 2)
        self.estimate = estimate
        self.points = points

    def weigh(
        self,
        model: AnyModel,
        smoother: Smoother | None,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> Weights:
        """The weights for the data, and for fresh draws."""
        if key is None:
            raise ValueError("`Centred.weigh` must be given a key for its fresh draws, got None.")
        fresh, _ = draw(model, key, self.points, condition)
        weights = self.estimate.weigh(model, smoother, sleep, x, condition)
        own = self.estimate.weigh(model, smoother, sleep, fresh.x, condition)
        return Weights(weights.mean, (weights.rest, own))

    def objective(
        self, model: AnyModel, sleep: Draws, weights: Weights, condition: PyTree | None
    ) -> Float[Array, ""]:
        """J̄ of the data, differentiated with that of the fresh draws taken off."""
        rest, own = weights.rest
        value = self.estimate.objective(model, sleep, Weights(weights.mean, rest), condition)
        centre = self.estimate.objective(model, sleep, own, condition)
        return value - centre + jax.lax.stop_gradient(centre)

    def predict(
        self,
        model: AnyModel,
        smoother: Smoother | None,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
    ) -> Float[Array, " points"]:
        """As the estimate predicts."""
        return self.estimate.predict(model, smoother, sleep, x, condition)


def direct_gradients(
    model: AnyModel, smoother: Smoother, sleep: Draws, x: PyTree, condition: PyTree | None = None
) -> PyTree[Array]:
    """Δ̂(x*_m) = Σ_n W_mn ∇_θ log p_θ(z_n, x_n) for every wake point: eq. (manual_loss).

    Returns θ's pytree with one more leading axis, the wake points. It holds N gradients at once.
    Their mean over the points is the gradient of `Joint`'s J̄.

    Arguments:
        model: any model that `alws.fit` takes.
        smoother: a regression fitted to the sleep samples.
        sleep: the draws (z_n, x_n).
        x: the wake points.
        condition: one condition, of all draws, if the model takes one.

    Example: `direct_gradients(model, KernelRidge(kernel).fit(sleep.x), sleep, x)`.
    """
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)

    def gradient(z: PyTree, observation: PyTree) -> PyTree:
        return jax.grad(lambda p: log_joint(eqx.combine(p, rest), z, observation, condition))(
            parameters
        )

    gradients = jax.vmap(gradient)(*sleep)
    weights = smoother.weights(x)
    return jax.tree.map(lambda g: jnp.tensordot(weights, g, axes=1), gradients)


def _rows(a: Array, chosen: Int[np.ndarray, "number each"]) -> Array:
    """The chosen entries of each row, all rows after one another."""
    return a[np.arange(len(chosen))[:, None], chosen].reshape(chosen.size, *a.shape[2:])


def _mean_weights(smoother: Smoother, x: PyTree) -> Float[Array, " sleep"]:
    return smoother.predict_vjp(x, _even(x))[:, 0]


def _even(x: PyTree[Array]) -> Float[Array, "points 1"]:
    leaves = jax.tree.leaves(x)
    points = leaves[0].shape[0]
    return jnp.full((points, 1), 1 / points, jnp.result_type(jnp.float32, *leaves))


def _parts(
    model: ExponentialFamilyModel, z: PyTree, condition: PyTree | None
) -> tuple[list[Array], list[Array]]:
    """The leaves of η(z), flattened, and the terms of Ψ(z)."""
    args = condition_arguments(condition)
    likelihood = model.likelihood(z, *args)
    natural = [jnp.ravel(eta) for eta in jax.tree.leaves(likelihood.natural_parameters())]
    return natural, [*likelihood.log_normaliser(), -model.log_prior(z, *args)]


class Part(NamedTuple):
    """A leaf of η or a term of Ψ: of each sleep sample, and what is known of each point exactly.

    Without conditions what is known is the same for all points, and given once.
    """

    regressed: Float[Array, "sleep ..."] | None
    exact: Float[Array, "points ..."] | None


def _natural(
    model: ExponentialFamilyModel, sleep: Draws, x: PyTree | None, condition: PyTree | None
) -> tuple[list[Part], list[Part]]:
    """The leaves of η and the terms of Ψ; x are the points, pairs if conditions are pooled."""
    latent = depends_on_latent(model, sleep, condition)
    if not isinstance(condition, Pooled):
        found = by_blocks(jax.vmap(lambda z: _parts(model, z, condition)), sleep.z)
        return jax.tree.map(
            lambda a, moves: Part(a, None) if moves else Part(None, a[:1]), found, latent
        )
    assert x is not None
    own = by_blocks(jax.vmap(lambda d: _parts(model, *d)), (sleep.z, sleep.x[0]))
    prior = jax.vmap(lambda c: _prior_means(model, c))
    return jax.tree.map(
        lambda a, mean, exact, moves: Part(a - mean if moves else None, exact),
        own,
        by_blocks(prior, sleep.x[0]),
        by_blocks(prior, x[0]),
        latent,
    )


def _prior_means(
    model: ExponentialFamilyModel, condition: PyTree
) -> tuple[list[Array], list[Array]]:
    """The leaves of η and the terms of Ψ under a condition, means over draws of z from its prior.

    Always with the same keys: they must be functions of the condition, and need not be exact.
    """
    keys = jax.random.split(jax.random.key(0), PRIOR_DRAWS)
    z = jax.lax.stop_gradient(jax.vmap(lambda k: model.sample_latent(k, condition))(keys))
    found = jax.vmap(lambda z: _parts(model, z, condition))(z)
    return jax.tree.map(lambda a: a.mean(axis=0), found)


def _statistics(
    model: ExponentialFamilyModel, sleep: Draws, x: PyTree, condition: PyTree | None
) -> tuple[list[Float[Array, "points entries"]], Float[Array, " points"]]:
    """The leaves of s(x), flattened, and log h(x), of every point."""
    first = jax.tree.map(lambda a: a[0], sleep.z)

    def statistics(point: PyTree) -> tuple[list[Array], Array]:
        x, own = separated(point, condition)
        likelihood = model.likelihood(first, *condition_arguments(own))
        leaves = jax.tree.leaves(likelihood.sufficient_statistics(x))
        return [jnp.ravel(s) for s in leaves], likelihood.log_base(x)

    return jax.lax.stop_gradient(jax.vmap(statistics)(x))


def depends_on_latent(
    model: ExponentialFamilyModel, sleep: Draws, condition: PyTree | None
) -> tuple[list[bool], list[bool]]:
    """Which leaves of η and which terms of Ψ depend on z, read off the traced program.

    Arguments:
        model: a model that gives a likelihood.
        sleep: draws from it.
        condition: their condition, if the model takes one.

    Example: `depends_on_latent(model, sleep, None)`.
    """
    z, x = jax.tree.map(lambda a: a[0], sleep)
    _, own = separated(x, condition)
    closed, shape = jax.make_jaxpr(lambda z: _parts(model, z, own), return_shape=True)(z)
    reached = set(closed.jaxpr.invars)
    for equation in closed.jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in reached for v in equation.invars):
            reached.update(equation.outvars)
    flags = [not isinstance(v, Literal) and v in reached for v in closed.jaxpr.outvars]
    return jax.tree.unflatten(jax.tree.structure(shape), flags)
