"""Exact kernel ridge regression by conjugate gradients, without ever holding the N×N matrix.

(K + λI) v = b is solved for all right-hand sides at once by products with K alone, made tile by
tile. The preconditioner is that of m representatives (Nyström, see `alws.regressions.nystrom`),

    P = ΦΦᵀ + μI,   P⁻¹ r = (r − Φ(ΦᵀΦ + μI)⁻¹ Φᵀ r)/μ,

with μ the largest of λ, the least eigenvalue of ΦᵀΦ (what ΦΦᵀ leaves of K is of that size) and what
rounding leaves of the largest one. Iterations then grow as √(μ/λ), not as √(N/λ).

A preconditioner that cannot be factorised makes every solution NaN, and so the step is refused; how
far from solved the rest are is measured (`residual`), and must be little at the start (`check`).

Time grows as N² for each iteration, memory as N·m. The derivative is that of the linear system,
−A⁻¹ dA A⁻¹ b, by a second solve; what it needs of K is made again tile by tile.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from alws.devices import by_blocks, on_every_device
from alws.kernels.base import Kernel
from alws.regressions.base import (
    MOST_ESCALATIONS,
    Cost,
    KernelSmoother,
    Regression,
    SolveReport,
    bytes_of,
    check_kernel,
    check_ridge,
    factorise,
)
from alws.regressions.feature_ridge import ROWS
from alws.regressions.iterative import (
    Preconditioner,
    Solution,
    conjugate_gradients,
    product,
    symmetric_product,
)
from alws.regressions.nystrom import whitened
from alws.regressions.representatives import (
    check_number,
    check_selection,
    select_rows,
    share_outside,
    without_gradient,
)
from alws.validation import at_least, check_key, is_number, yes_or_no

SOLVED = 0.1
"""The largest residual with which a fit may begin, unless `tolerance` allows more."""

SOME = 10
"""How many points are looked at by themselves when the residual is measured."""


class ConjugateGradients(Regression):
    """Exact kernel ridge regression by conjugate gradients; its parameters are γ = (kernel, λ).

    Arguments:
        kernel: of the observations, with its bandwidth at the start.
        rank: the number m of representatives in the preconditioner.
        selection: which they are, as the inducing points of `Nystrom`.
        tolerance: a solve stops when every residual ‖b − (K + λI)v‖ is at most so many times ‖b‖,
        most_iterations: or after so many iterations.
        ridge: λ at the start, added to the diagonal of the kernel matrix as it is.
        intercept: whether the weights sum to one, so that what does not depend on x is predicted
            exactly instead of being shrunk.
        clip: whether data beyond the range of the sleep samples are moved to its edge, where the
            kernel can.
        key: decides what is chosen at random, the same at every step.

    Example: `ConjugateGradients(SquaredExponential(), rank=500, tolerance=1e-3)`.
    """

    kernel: Kernel
    log_ridge: Float[Array, ""]
    key: Key[Array, ""]
    rank: int = eqx.field(static=True)
    selection: str = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    most_iterations: int = eqx.field(static=True)
    intercept: bool = eqx.field(static=True)
    clip: bool = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        *,
        rank: int = 300,
        selection: str = "uniform",
        tolerance: float = 1e-3,
        most_iterations: int = 100,
        ridge: float = 0.01,
        intercept: bool = True,
        clip: bool = True,
        key: Key[Array, ""] | None = None,
    ):
        check_kernel(kernel)
        check_ridge(ridge)
        at_least("rank", rank, 1)
        yes_or_no("intercept", intercept)
        yes_or_no("clip", clip)
        if key is not None:
            check_key(key)
        at_least("most_iterations", most_iterations, 1)
        check_selection(selection)
        if not is_number(tolerance) or not 0 < tolerance < 1:
            raise ValueError(
                f"`tolerance` must lie between 0 and 1, got {tolerance}. It is the length of the "
                "residual over that of the right-hand side; 0.001 is usual."
            )
        self.kernel = kernel
        self.log_ridge = jnp.array(math.log(ridge), float)
        self.key = jax.random.key(0) if key is None else key
        self.rank = rank
        self.selection = selection
        self.tolerance = tolerance
        self.most_iterations = most_iterations
        self.intercept = intercept
        self.clip = clip

    def initialise(self, x: PyTree[Array]) -> "ConjugateGradients":
        """γ with the bandwidth set from a first batch of sleep observations."""
        return eqx.tree_at(lambda g: g.kernel, self, self.kernel.initialise(x))

    def check(self, x: PyTree[Array]) -> None:
        """Refuse a preconditioner that is singular on these observations, or solves that end early.

        Example: `regression.check(sleep.x)`, once, before a long fit.
        """
        measure = eqx.filter_jit(lambda g, x: on_every_device(g.fit(x).quality(x)))
        definite, residual = measure(self, x)
        if not bool(definite):
            raise ValueError(
                "the preconditioner of conjugate gradients must be positive definite on the "
                f"model's draws; with `rank` {self.rank} its factor is not finite after "
                f"{MOST_ESCALATIONS} escalations of the ridge. Check that the kernel is finite and "
                "positive definite there, use a larger `ridge`, or fewer representatives (`rank`)."
            )
        most = max(SOLVED, self.tolerance)
        if not float(residual) <= most:
            raise ValueError(
                f"conjugate gradients must come to a relative residual of {most:g} on the model's "
                f"draws; got {float(residual):.2g} in {self.most_iterations} iterations with "
                f"`rank` {self.rank}. Use a larger `ridge`, more iterations (`most_iterations`) or "
                "more representatives (`rank`), or `Nystrom`."
            )

    def cost(self, samples: int) -> Cost:
        """The preconditioner's basis, m for each sample, and products with K, N² each time."""
        operations = 2 * samples * self.rank**2 + 20 * samples**2
        return Cost(bytes_of(2 * samples * self.rank), operations)

    def bandwidths(self) -> list[Any]:
        return self.kernel.bandwidths()

    def ridges(self) -> list[Any]:
        return [self.log_ridge]

    def fit(
        self, x: PyTree[Array], wake: PyTree[Array] | None = None
    ) -> "FittedConjugateGradients":
        """Make the preconditioner; all solves come with the questions."""
        embedded = self.kernel.embed(x)
        kernel = self.kernel.scale_to(embedded)
        check_number("rank", self.rank, jax.tree.leaves(embedded)[0].shape[0])
        ridge = jnp.exp(self.log_ridge)
        rows = select_rows(kernel, embedded, self.rank, self.selection, ridge, self.key)
        own, sleep, ridge = without_gradient((kernel, embedded, ridge))
        features, _, within = whitened(own, jax.tree.map(lambda a: a[rows], sleep))
        basis = by_blocks(features, sleep, ROWS)
        gram = basis.T @ basis
        spectrum = jnp.linalg.eigvalsh(gram)
        floor = jnp.maximum(spectrum[0], 100 * jnp.finfo(gram.dtype).eps * spectrum[-1])
        factor = factorise(gram, jnp.maximum(ridge.astype(gram.dtype), floor))
        return FittedConjugateGradients(
            kernel=kernel,
            embedded=embedded,
            ridge=jnp.exp(self.log_ridge).astype(gram.dtype),
            preconditioner=Preconditioner(basis, factor),
            raised=within.escalations,
            tolerance=self.tolerance,
            most_iterations=self.most_iterations,
            intercept=self.intercept,
            clip=self.clip,
        )


class FittedConjugateGradients(KernelSmoother):
    """The regression on one set of sleep samples: a linear smoother, prediction = W·targets."""

    kernel: Kernel
    embedded: PyTree[Array]
    ridge: Float[Array, ""]
    preconditioner: Preconditioner
    raised: Array
    tolerance: float = eqx.field(static=True)
    most_iterations: int = eqx.field(static=True)
    intercept: bool = eqx.field(static=True)
    clip: bool = eqx.field(static=True)

    def solve(self, b: Float[Array, "sleep targets"]) -> Solution:
        """(K + λI)⁻¹ b, differentiable, with the residual reached and the iterations it took.

        Example: `smoother.solve(targets).residual` is ‖b − (K + λI)v‖/‖b‖ of every column.
        """
        kernel, embedded, ridge = without_gradient((self.kernel, self.embedded, self.ridge))

        def quick(v: Array) -> Array:
            return symmetric_product(kernel, embedded, v) + ridge * v

        def iterate(b: Array) -> tuple[Array, tuple[Array, Array]]:
            found = conjugate_gradients(
                quick, b, self.preconditioner, self.tolerance, self.most_iterations
            )
            return found.value, (found.residual, found.iterations)

        def differentiable(v: Array) -> Array:
            return product(self.kernel, self.embedded, self.embedded, v) + self.ridge * v

        value, (residual, iterations) = jax.lax.custom_linear_solve(
            differentiable, b, lambda _, b: iterate(b), symmetric=True, has_aux=True
        )
        return Solution(value, residual, iterations)

    def residual(self, x: PyTree[Array]) -> Float[Array, ""]:
        """The worst ‖b − (K + λI)v‖/‖b‖ of the solves for some points and for the mean of all."""
        points = self._points(x)
        number = jax.tree.leaves(points)[0].shape[0]
        mean = jnp.full((number, 1), 1 / number, self.ridge.dtype)
        some = self.kernel.evaluate(self.embedded, jax.tree.map(lambda a: a[:SOME], points))
        asked = product(self.kernel, self.embedded, points, mean)
        b = jnp.concatenate([asked, some], axis=1)
        v = self.solve(b).value
        left = b - product(self.kernel, self.embedded, self.embedded, v) - self.ridge * v
        size = jnp.maximum(jnp.linalg.norm(b, axis=0), jnp.finfo(b.dtype).tiny)
        return (jnp.linalg.norm(left, axis=0) / size).max()

    def quality(self, x: PyTree[Array]) -> tuple[Bool[Array, ""], Float[Array, ""]]:
        """Whether the preconditioner is finite, and the residual at these points."""
        definite = self.preconditioner.factor.finite
        definite &= jnp.isfinite(self.preconditioner.basis).all()
        return definite, self.residual(x)

    def plain_weights(self, points: PyTree[Array]) -> Float[Array, "points sleep"]:
        """W = k(X*, X)(K + λI)⁻¹, one solve column for each point."""
        return self.solve(self.kernel.evaluate(self.embedded, points)).value.T

    def plain_predict(
        self, points: PyTree[Array], targets: Float[Array, "sleep targets"]
    ) -> Float[Array, "points targets"]:
        """k(X*, X)(K + λI)⁻¹·targets."""
        return product(self.kernel, points, self.embedded, self.solve(targets).value)

    def plain_predict_vjp(
        self, points: PyTree[Array], cotangents: Float[Array, "points targets"]
    ) -> Float[Array, "sleep targets"]:
        """(K + λI)⁻¹ k(X, X*)·cotangents."""
        return self.solve(product(self.kernel, self.embedded, points, cotangents)).value

    def outside(self, x: PyTree[Array]) -> Float[Array, ""]:
        """The share of points farther from the nearest sleep sample than 99 % of these are."""
        return share_outside(self.kernel, self.embedded, self.kernel.embed(x))

    def report(self, x: PyTree[Array]) -> SolveReport:
        """The ridge; the escalations are those of the preconditioner's matrices."""
        escalations = self.preconditioner.factor.escalations + self.raised
        return SolveReport(self.ridge, escalations, self.residual(x))
