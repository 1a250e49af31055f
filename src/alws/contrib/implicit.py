"""A network as gradient model, differentiated implicitly: appendix, "Alternative gradient models".

A network f_w is trained on sleep samples to regress y_n = log p_θ(z_n, x_n) on x_n,

    L(θ, w) = ½ Σ_n (f_w(x_n) − y_n)² + (λ/2)‖w‖²,   0 = ∂L/∂w at w(θ),

so that w depends on θ through the targets. With ḡ = (1/M) Σ_m ∂f_w(x*_m)/∂w and H = ∂²L/∂w∂w,

    ∇_θ (1/M) Σ_m f_w(x*_m) = −ḡᵀ H⁻¹ ∂²L/∂w∂θ = Σ_n a_n ∇_θ y_n,  a_n = ∂f_w(x_n)/∂w·(H + δI)⁻¹ḡ:

once w is found, the network is a linear smoother near its own targets, with weights a_n that one
solve gives for all data. The solve is by conjugate gradients on products H v, damped by δ. The H of
a network that is not at its minimum may not be positive; where the solve fails for that, the
Gauss–Newton matrix Σ_n ∂f_w(x_n)/∂w ∂f_w(x_n)/∂wᵀ + λI, which is, stands in for it. For f linear in
w both are the same, and the whole is ridge regression.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from alws.estimates import Estimate, Weights
from alws.features import Features, Identity, check_features
from alws.model import AnyModel, Draws, log_joints
from alws.regressions.base import Smoother
from alws.regressions.iterative import Solution, conjugate_gradients
from alws.values import at_least, number, positive

SOLVED = 1e-3
"""The relative residual up to which a solve has done its work."""


class Trained(NamedTuple):
    """A network's weights after training, and how it reads x and writes its targets."""

    weights: Float[Array, " weights"]
    location: Float[Array, " features"]
    scale: Float[Array, " features"]
    mean: Float[Array, ""]
    spread: Float[Array, ""]


class ImplicitNetwork(Estimate):
    """Regress log p_θ(z_n, x_n) on x_n by a network, trained anew from its start at every step.

    Targets are standardised for it, and what is constant is predicted exactly. Training is Adam
    with a cosine decay on all sleep samples, then damped Gauss–Newton steps. λ and δ are added to
    Σ_n, not to a mean.

    Arguments:
        network: of one vector of features, standardised over the sleep samples, to a scalar or to
            one number.
        features: of the observation, by default x itself.
        ridge: λ.
        damping: δ of the Gauss–Newton steps.
        steps, learning_rate: of Adam.
        newton: how many Gauss–Newton steps follow.
        iterations: the most of conjugate gradients in each of these.
        reach: data whose features lie more than so many standard deviations out are moved in to
            that distance.

    Example: `ImplicitNetwork(eqx.nn.MLP(5, "scalar", 32, 2, jnp.tanh, key=key), ridge=0.1)`.
    """

    regresses: ClassVar[bool] = False

    network: Any
    features: Features
    ridge: float = eqx.field(static=True)
    damping: float = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    newton: int = eqx.field(static=True)
    learning_rate: float = eqx.field(static=True)
    iterations: int = eqx.field(static=True)
    reach: float = eqx.field(static=True)

    def __init__(
        self,
        network: Callable[[Float[Array, " features"]], Array],
        features: Features | None = None,
        *,
        ridge: float = 0.01,
        damping: float = 0.01,
        steps: int = 300,
        newton: int = 5,
        learning_rate: float = 0.01,
        iterations: int = 100,
        reach: float = 5.0,
    ):
        if not jax.tree.leaves(eqx.filter(network, eqx.is_inexact_array)):
            raise ValueError(
                f"`network` must have floating-point arrays to train, got {network!r}. Make it an "
                "Equinox module, for example `eqx.nn.MLP`."
            )
        for name, value in (("ridge", ridge), ("learning_rate", learning_rate), ("reach", reach)):
            positive(name, value)
        number("damping", damping, "at least 0", lambda d: 0 <= d < math.inf)
        at_least("steps", steps, 0)
        at_least("newton", newton, 0)
        at_least("iterations", iterations, 1)
        self.network = network
        self.features = Identity() if features is None else features
        check_features(self.features)
        self.ridge = ridge
        self.damping = damping
        self.steps = steps
        self.newton = newton
        self.learning_rate = learning_rate
        self.iterations = iterations
        self.reach = reach

    def train(self, x: PyTree[Array], targets: Float[Array, " sleep"]) -> Trained:
        """w(θ): the network trained on these sleep observations and targets."""
        plain = self.features(x)
        location, scale = plain.mean(axis=0), plain.std(axis=0)
        mean, spread = targets.mean(), targets.std() + jnp.finfo(targets.dtype).tiny
        start = ravel_pytree(eqx.filter(self.network, eqx.is_inexact_array))[0]
        frame = Trained(start, location, jnp.where(scale > 0, scale, 1.0), mean, spread)
        inputs, standard = self._place(frame, x, math.inf), (targets - mean) / spread

        def objective(w: Array) -> Array:
            return self._loss(w, inputs, standard)

        schedule = optax.cosine_decay_schedule(self.learning_rate, max(self.steps, 1))
        optimiser = optax.adam(schedule)

        def improve(_: Array, carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
            w, state = carry
            updates, state = optimiser.update(jax.grad(objective)(w) / len(inputs), state)
            return w + updates, state  # pyright: ignore

        w, _ = jax.lax.fori_loop(0, self.steps, improve, (start, optimiser.init(start)))
        damping = jnp.asarray(self.damping, w.dtype)

        def newton(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            w, value, damping = carry
            outputs, push = jax.linearize(lambda w: self._outputs(w, inputs), w)
            pull = jax.linear_transpose(push, w)
            gradient = pull(outputs - standard)[0] + self.ridge * w

            def curvature(v: Array) -> Array:
                return pull(push(v))[0] + (self.ridge + damping) * v

            tried = w - self._solve(curvature, gradient).value[:, 0]
            new = objective(tried)
            better = new <= value
            damping = jnp.where(better, damping / 4, 10 * damping + 1e-3)
            return jnp.where(better, tried, w), jnp.where(better, new, value), damping

        w, *_ = jax.lax.fori_loop(0, self.newton, newton, (w, objective(w), damping))
        return frame._replace(weights=w)

    def predicted(self, trained: Trained, x: PyTree[Array]) -> Float[Array, " points"]:
        """f_w(x) in the targets' own units."""
        outputs = self._outputs(trained.weights, self._place(trained, x, self.reach))
        return trained.mean + trained.spread * outputs

    def pull_back(
        self,
        trained: Trained,
        x: PyTree[Array],
        targets: Float[Array, " sleep"],
        points: PyTree[Array],
        cotangents: Float[Array, " points"],
    ) -> Float[Array, " sleep"]:
        """a: what the points ask of each sleep sample, through the trained weights."""
        w, inputs = trained.weights, self._place(trained, x, math.inf)
        theirs = self._place(trained, points, self.reach)
        standard = (targets - trained.mean) / trained.spread
        _, pullback = jax.vjp(lambda w: self._outputs(w, theirs), w)
        gradient = jax.grad(lambda w: self._loss(w, inputs, standard))

        def hessian(v: Array) -> Array:
            return jax.jvp(gradient, (w,), (v,))[1] + self.damping * v

        _, push = jax.linearize(lambda w: self._outputs(w, inputs), w)
        transposed = jax.linear_transpose(push, w)

        def gauss_newton(v: Array) -> Array:
            return transposed(push(v))[0] + (self.ridge + self.damping) * v

        asked = pullback(cotangents)[0]
        found = self._solve(hessian, asked)
        found = jax.lax.cond(
            found.residual[0] <= SOLVED, lambda: found, lambda: self._solve(gauss_newton, asked)
        )
        plain = push(found.value[:, 0])
        return plain + (cotangents.sum() - plain.sum()) / plain.shape[0]

    def weigh(
        self,
        model: AnyModel,
        smoother: Smoother | None,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
        key: Key[Array, ""] | None = None,
    ) -> Weights:
        """Train, then a for the mean over the wake batch, and Ĵ's mean."""
        targets = log_joints(model, sleep, condition)
        trained = self.train(sleep.x, targets)
        predicted = self.predicted(trained, x)
        cotangents = jnp.full_like(predicted, 1 / len(predicted))
        weights = self.pull_back(trained, sleep.x, targets, x, cotangents)
        return Weights(weights, (targets, predicted.mean()))

    def objective(
        self, model: AnyModel, sleep: Draws, weights: Weights, condition: PyTree | None
    ) -> Float[Array, ""]:
        """Ĵ's mean at θ_t and, to first order, Σ_n a_n (y_n(θ) − y_n(θ_t)) more."""
        targets, value = weights.rest
        change = log_joints(model, sleep, condition) - targets
        return value + weights.mean @ change

    def predict(
        self,
        model: AnyModel,
        smoother: Smoother | None,
        sleep: Draws,
        x: PyTree,
        condition: PyTree | None,
    ) -> Float[Array, " points"]:
        """f_w(x), trained on log p(z, x)."""
        return self.predicted(self.train(sleep.x, log_joints(model, sleep, condition)), x)

    def _place(self, frame: Trained, x: PyTree[Array], reach: float) -> Float[Array, "n features"]:
        standard = (self.features(x) - frame.location) / frame.scale
        return jnp.clip(standard, -reach, reach)

    def _outputs(
        self, w: Float[Array, " weights"], inputs: Float[Array, "n features"]
    ) -> Float[Array, " n"]:
        parameters, rest = eqx.partition(self.network, eqx.is_inexact_array)
        network = eqx.combine(ravel_pytree(parameters)[1](w), rest)
        return jax.vmap(network)(inputs).reshape(inputs.shape[0])

    def _loss(
        self, w: Float[Array, " weights"], inputs: Array, standard: Float[Array, " n"]
    ) -> Float[Array, ""]:
        errors = self._outputs(w, inputs) - standard
        return (errors @ errors + self.ridge * (w @ w)) / 2

    def _solve(self, product: Callable[[Array], Array], b: Float[Array, " weights"]) -> Solution:
        tolerance = math.sqrt(jnp.finfo(b.dtype).eps) / 100
        return conjugate_gradients(
            lambda v: product(v[:, 0])[:, None], b[:, None], lambda r: r, tolerance, self.iterations
        )
