"""Ways to write J_θ(x*) = E[log p_θ(z, x*) | x*] as a regression on sleep samples, §3.2–3.3.

Each holds the regression's weights W at θ_t and gives J̄ = (1/M) Σ_m Ĵ(x*_m) as a function of θ,
whose gradient at θ_t estimates that of the mean log likelihood:

- `Joint`    J̄ = Σ_n w̄_n log p_θ(z_n, x_n), any model, one right-hand side however many data;
- `Natural`  J̄ = (1/M) Σ_mn W_mn [η_θ(z_n)·s(x*_m) − Ψ_θ(z_n)], exponential families;
- `Cross`    J̄ = (1/M) Σ_mn W_mn log p_θ(z_n, x*_m), any model, M×N densities.

`direct_gradients` regresses the vectors ∇_θ log p_θ(z_n, x_n) themselves, eq. (manual_loss); the
mean of its predictions is the gradient of `Joint`'s J̄.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array, Float, Key, PyTree

from alws.devices import by_blocks
from alws.model import (
    AnyModel,
    Draws,
    ExponentialFamilyModel,
    condition_arguments,
    draw,
    has_likelihood,
    log_joint,
    log_joints,
)
from alws.regressions.base import Smoother
from alws.values import at_least, instance


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
        """Ĵ(x) of every point, to be compared with log p(z, x) of held-out sleep samples."""


def choose(model: AnyModel) -> "Estimate":
    """`Natural` for a model that gives an exponential-family likelihood, `Joint` otherwise."""
    return Natural() if has_likelihood(model) else Joint()


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

    Leaves of η and terms of Ψ that do not depend on z enter exactly, without regression.
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
        """Cotangents Wᵀs(X*)/M for η, w̄ = Wᵀ1/M for Ψ, and the mean of s for z-free leaves."""
        statistics, base = _statistics(model, sleep, x, condition)
        latent, _ = depends_on_latent(model, sleep, condition)
        points = statistics[0].shape[0]
        regressed = [s / points for s, moves in zip(statistics, latent, strict=True) if moves]
        pulled, mean_weights = smoother.predict_vjp(x, (regressed, _even(x)))
        pieces = iter(pulled)
        cotangents = [
            next(pieces) if moves else s.mean(axis=0)
            for s, moves in zip(statistics, latent, strict=True)
        ]
        return Weights(mean_weights[:, 0], (cotangents, base.mean()))

    def objective(
        self,
        model: ExponentialFamilyModel,
        sleep: Draws,
        weights: Weights,
        condition: PyTree | None,
    ) -> Float[Array, ""]:
        """Σ_n η_θ(z_n)·(Wᵀs/M)_n − Σ_n w̄_n Ψ_θ(z_n)."""
        cotangents, base = weights.rest
        natural, terms = _natural(model, sleep, condition)
        in_eta, in_psi = depends_on_latent(model, sleep, condition)
        value = base
        for eta, cotangent, moves in zip(natural, cotangents, in_eta, strict=True):
            value += jnp.sum(cotangent * (eta if moves else eta[0]))
        for psi, moves in zip(terms, in_psi, strict=True):
            value -= weights.mean @ psi if moves else psi[0]
        return value

    def predict(
        self,
        model: ExponentialFamilyModel,
        smoother: Smoother,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
    ) -> Float[Array, " points"]:
        """Σ_n W_mn [η(z_n)·s(x_m) − Ψ(z_n)]."""
        statistics, value = _statistics(model, sleep, x, condition)
        natural, terms = _natural(model, sleep, condition)
        in_eta, in_psi = depends_on_latent(model, sleep, condition)
        regressed = jnp.zeros(())
        for eta, s, moves in zip(natural, statistics, in_eta, strict=True):
            if moves:
                regressed = regressed + s @ eta.T
            else:
                value = value + s @ eta[0]
        for psi, moves in zip(terms, in_psi, strict=True):
            if moves:
                regressed = regressed - psi
            else:
                value = value - psi[0]
        return value + (smoother.weights(x) * regressed).sum(axis=1)


class Centred(Estimate):
    """Another estimate with its mean gradient on `points` fresh draws taken off.

    The expected score of a model on its own draws is zero, but that of an imperfect regression of
    it is not. So the regression's gradient on fresh draws x' ~ p_θ is taken off that on the data,

        ∇_θ J̄ = mean over data of ∇_θ Ĵ(x*) − mean over fresh x' of ∇_θ Ĵ(x'),

    which is zero on average when the model is the truth, whatever the kernel. `Joint` is nearly so
    by itself; `Natural`, which takes part of its gradient from the data as they are, gains by it
    where the likelihood is sharp and the regression's error is divided by a small variance.

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
    """
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)

    def gradient(z: PyTree, observation: PyTree) -> PyTree:
        return jax.grad(lambda p: log_joint(eqx.combine(p, rest), z, observation, condition))(
            parameters
        )

    gradients = jax.vmap(gradient)(*sleep)
    weights = smoother.weights(x)
    return jax.tree.map(lambda g: jnp.tensordot(weights, g, axes=1), gradients)


def _mean_weights(smoother: Smoother, x: PyTree) -> Float[Array, " sleep"]:
    return smoother.predict_vjp(x, _even(x))[:, 0]


def _even(x: PyTree[Array]) -> Float[Array, "points 1"]:
    leaves = jax.tree.leaves(x)
    points = leaves[0].shape[0]
    return jnp.full((points, 1), 1 / points, jnp.result_type(jnp.float32, *leaves))


def _parts(
    model: ExponentialFamilyModel, condition: PyTree | None
) -> Callable[[PyTree], tuple[list, list]]:
    """z ↦ the leaves of η(z), flattened, and the terms of Ψ(z)."""
    args = condition_arguments(condition)

    def parts(z: PyTree) -> tuple[list[Array], list[Array]]:
        likelihood = model.likelihood(z, *args)
        natural = [jnp.ravel(eta) for eta in jax.tree.leaves(likelihood.natural_parameters())]
        return natural, [*likelihood.log_normaliser(), -model.log_prior(z, *args)]

    return parts


def _natural(
    model: ExponentialFamilyModel, sleep: Draws, condition: PyTree | None
) -> tuple[list[Float[Array, "sleep entries"]], list[Float[Array, " sleep"]]]:
    return by_blocks(jax.vmap(_parts(model, condition)), sleep.z)


def _statistics(
    model: ExponentialFamilyModel, sleep: Draws, x: PyTree, condition: PyTree | None
) -> tuple[list[Float[Array, "points entries"]], Float[Array, " points"]]:
    """The leaves of s(x), flattened, and log h(x), of every point."""
    first = jax.tree.map(lambda a: a[0], sleep.z)
    likelihood = model.likelihood(first, *condition_arguments(condition))

    def statistics(point: PyTree) -> tuple[list[Array], Array]:
        leaves = jax.tree.leaves(likelihood.sufficient_statistics(point))
        return [jnp.ravel(s) for s in leaves], likelihood.log_base(point)

    return jax.lax.stop_gradient(jax.vmap(statistics)(x))


def depends_on_latent(
    model: ExponentialFamilyModel, sleep: Draws, condition: PyTree | None
) -> tuple[list[bool], list[bool]]:
    """Which leaves of η and which terms of Ψ depend on z, read off the traced program."""
    first = jax.tree.map(lambda a: a[0], sleep.z)
    closed, shape = jax.make_jaxpr(_parts(model, condition), return_shape=True)(first)
    reached = set(closed.jaxpr.invars)
    for equation in closed.jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in reached for v in equation.invars):
            reached.update(equation.outvars)
    flags = [not isinstance(v, Literal) and v in reached for v in closed.jaxpr.outvars]
    return jax.tree.unflatten(jax.tree.structure(shape), flags)
