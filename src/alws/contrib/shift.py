"""Covariate shift, §3.5: how much each sleep sample should count where the data lie elsewhere.

The regression is fitted to x_n ~ p_θ and used at data x*_m ~ p*. Weights w_n ≈ p*(x_n)/p_θ(x_n)
make the squared error on sleep samples one on the data. Two ways to them, both on the device:

- `MeanMatching`, kernel mean matching (Gretton et al., 2009): the weighted sleep samples have the
  kernel mean of the data,

      min over w of ‖(1/N) Σ_n w_n k(x_n, ·) − (1/M) Σ_m k(x*_m, ·)‖², 0 ≤ w ≤ B, |mean w − 1| ≤ ε,

  a quadratic programme, by accelerated projected gradients;
- `DensityRatio`, binary classification: the log odds f of data against sleep samples,

      min over f of mean_m log(1 + exp −f(x*_m)) + mean_n log(1 + exp f(x_n)) + (λ/2)‖f‖²,

  have their minimum at f = log p*/p_θ; f is linear in Nyström's features of the kernel, and found
  by Newton's method.

Weights take bias off a regression that is too stiff for the data's place, and add variance: few
sleep samples then count. With a kernel that suits the problem and a small ridge there is no bias to
take off, and they do harm (`benchmarks/covariate_shift.py`).
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from alws.devices import by_blocks
from alws.kernels.base import Kernel
from alws.regressions.base import factorise, solve_factored
from alws.regressions.nystrom import whitened
from alws.values import at_least, number, positive

BISECTIONS = 40
HALVINGS = 8


class Shift(eqx.Module):
    """A way to weigh sleep samples."""

    @abstractmethod
    def __call__(
        self, kernel: Kernel, sleep: PyTree[Array], data: PyTree[Array]
    ) -> Float[Array, " sleep"]:
        """Weights of mean 1, none negative, of batches that the kernel has embedded."""


class MeanMatching(Shift):
    """Kernel mean matching. It holds the N×N kernel matrix of the sleep samples, once.

    Arguments:
        most: B, the largest weight.
        slack: ε; the mean weight is within so much of 1.
        iterations: of its solver.

    Example: `Reweighted(SquaredExponential(), by=MeanMatching(most=20.0))`.
    """

    most: float = eqx.field(static=True)
    slack: float = eqx.field(static=True)
    iterations: int = eqx.field(static=True)

    def __init__(self, *, most: float = 10.0, slack: float = 0.1, iterations: int = 300):
        _check_most(most)
        number("slack", slack, "at least 0 and less than 1", lambda s: 0 <= s < 1)
        at_least("iterations", iterations, 1)
        self.most = most
        self.slack = slack
        self.iterations = iterations

    def __call__(
        self, kernel: Kernel, sleep: PyTree[Array], data: PyTree[Array]
    ) -> Float[Array, " sleep"]:
        gram = kernel.evaluate(sleep, sleep)
        towards = kernel.evaluate(sleep, data).mean(axis=1)
        weights = match_means(gram, towards, self.most, self.slack, self.iterations)
        return weights / weights.mean()


def match_means(
    gram: Float[Array, "n n"],
    towards: Float[Array, " n"],
    most: float,
    slack: float,
    iterations: int,
) -> Float[Array, " n"]:
    """argmin of wᵀKw/2N − κᵀw with 0 ≤ w ≤ `most` and |mean w − 1| ≤ `slack`.

    Nesterov's accelerated gradients, started anew whenever a step turns back on the last.

    Example: `match_means(k(x, x), k(x, data).mean(axis=1), most=100.0, slack=0.1, iterations=300)`.
    """
    n = gram.shape[0]
    step = n / jnp.abs(gram).sum(axis=1).max()

    def project(v: Array) -> Array:
        return onto_box_and_mean(v, most, slack)

    def improve(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        w, ahead, t = carry
        new = project(ahead - step * (gram @ ahead / n - towards))
        back = (ahead - new) @ (new - w) > 0
        t = jnp.where(back, 1.0, t).astype(w.dtype)
        following = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        momentum = jnp.where(back, 0, (t - 1) / following)
        return new, new + momentum * (new - w), following

    start = jnp.ones_like(towards)
    carry = start, start, jnp.ones((), start.dtype)
    return jax.lax.fori_loop(0, iterations, improve, carry)[0]


def onto_box_and_mean(v: Float[Array, " n"], most: float, slack: float) -> Float[Array, " n"]:
    """The nearest w to v with 0 ≤ w ≤ `most` and |mean w − 1| ≤ `slack`: v − τ, cut to the box.

    Example: `onto_box_and_mean(jnp.array([3.0, -1.0]), 2.0, 0.0)` is `[2.0, 0.0]`.
    """

    def cut(shift: Array) -> Array:
        return jnp.clip(v - shift, 0, most)

    zero = jnp.zeros((), v.dtype)
    goal = jnp.clip(cut(zero).mean(), 1 - slack, 1 + slack)

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        above = cut(middle).mean() > goal
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    low, high = jax.lax.fori_loop(0, BISECTIONS, halve, (v.min() - most, v.max()))
    fine = cut(zero).mean() == goal
    return cut(jnp.where(fine, zero, (low + high) / 2))


class DensityRatio(Shift):
    """A learned density ratio, exp f cut at a largest weight and scaled to mean 1.

    f has Nyström features of the kernel, whose centres are half data and half sleep samples, and a
    constant.

    Arguments:
        features: how many of them.
        ridge: λ.
        most: the largest weight.
        iterations: of Newton's method.

    Example: `Reweighted(SquaredExponential(), by=DensityRatio(ridge=0.001))`.
    """

    features: int = eqx.field(static=True)
    ridge: float = eqx.field(static=True)
    most: float = eqx.field(static=True)
    iterations: int = eqx.field(static=True)

    def __init__(
        self,
        *,
        features: int = 100,
        ridge: float = 0.01,
        most: float = 10.0,
        iterations: int = 20,
    ):
        at_least("features", features, 2)
        why = (
            " Without it the odds of data that can be told from the sleep samples have no bound; "
            "0.0001 to 0.1 is usual."
        )
        positive("ridge", ridge, why)
        _check_most(most)
        at_least("iterations", iterations, 1)
        self.features = features
        self.ridge = ridge
        self.most = most
        self.iterations = iterations

    def __call__(
        self, kernel: Kernel, sleep: PyTree[Array], data: PyTree[Array]
    ) -> Float[Array, " sleep"]:
        log_ratio = self.log_ratio(kernel, sleep, data)
        weights = jnp.minimum(log_ratio.size * jax.nn.softmax(log_ratio), self.most)
        return weights / weights.mean()

    def log_ratio(
        self, kernel: Kernel, sleep: PyTree[Array], data: PyTree[Array]
    ) -> Float[Array, " sleep"]:
        """f = log p*/p_θ at the sleep samples."""
        centres = jax.tree.map(
            lambda a, b: jnp.concatenate([spaced(a, self.features), spaced(b, self.features)]),
            sleep,
            data,
        )
        features = whitened(kernel, centres)[0]

        def with_constant(batch: PyTree) -> Array:
            made = by_blocks(features, batch)
            return jnp.concatenate([made, jnp.ones((made.shape[0], 1), made.dtype)], axis=1)

        own, theirs = with_constant(sleep), with_constant(data)
        return own @ classify(own, theirs, self.ridge, self.iterations)


def classify(
    sleep: Float[Array, "n features"],
    data: Float[Array, "m features"],
    ridge: float,
    iterations: int,
) -> Float[Array, " features"]:
    """β of the log odds f = φ·β of data against sleep samples, each class with weight one in all.

    Newton's method; the last feature, a constant, is hardly penalised.

    Example: `sleep @ classify(sleep, data, 0.01, 20)` is log p*/p_θ at the sleep samples.
    """
    rows = jnp.concatenate([sleep, -data])
    sizes = jnp.repeat(
        jnp.array([1 / sleep.shape[0], 1 / data.shape[0]], rows.dtype),
        jnp.array([sleep.shape[0], data.shape[0]]),
        total_repeat_length=rows.shape[0],
    )
    penalty = jnp.full(rows.shape[1], ridge, rows.dtype).at[-1].set(1e-6)

    def loss(beta: Array) -> Array:
        return sizes @ jax.nn.softplus(rows @ beta) + penalty @ beta**2 / 2

    def improve(_: Array, beta: Array) -> Array:
        odds = jax.nn.sigmoid(rows @ beta)
        gradient = rows.T @ (sizes * odds) + penalty * beta
        curvature = (rows.T * (sizes * odds * (1 - odds))) @ rows + jnp.diag(penalty)
        floor = jnp.asarray(1e-6, rows.dtype)
        step = solve_factored(factorise(curvature, floor), gradient[:, None])[:, 0]
        tried = beta - 2.0 ** -jnp.arange(HALVINGS, dtype=rows.dtype)[:, None] * step
        tried = jnp.concatenate([tried, beta[None]])
        return tried[jnp.argmin(jax.vmap(loss)(tried))]

    return jax.lax.fori_loop(0, iterations, improve, jnp.zeros(rows.shape[1], rows.dtype))


def spaced(a: Array, number: int) -> Array:
    """At most `number`/2 evenly spaced rows.

    Example: `spaced(jnp.arange(10), 4)` is `[0, 5]`.
    """
    kept = min(max(1, number // 2), a.shape[0])
    return a[jnp.arange(kept) * a.shape[0] // kept]


def _check_most(most: float) -> None:
    why = " It bounds weights whose mean is 1; 10 to 1000 is usual."
    number("most", most, "greater than 1", lambda m: m > 1, why)
