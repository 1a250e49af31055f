"""Kinds that ask for something else each: shares, choices, counts twice over, long simulations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.nn import log_sigmoid, log_softmax
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from known_maxima.base import (
    Exact,
    Problem,
    array,
    best_of,
    by_scipy,
    gaussian,
    jitter,
    normal_grid,
)

CHOICES = 15


class Shares(eqx.Module):
    """z ~ Dirichlet(e^a), fifteen choices x by these shares."""

    a: Float[Array, " kinds"]

    def sample(self, key):
        share_key, choice_key = jax.random.split(key)
        z = jax.random.dirichlet(share_key, jnp.exp(self.a))
        return z, dist.Multinomial(CHOICES, z).sample(choice_key).astype(float)

    def log_joint(self, z, x):
        return dist.Dirichlet(jnp.exp(self.a)).log_prob(z) + dist.Multinomial(CHOICES, z).log_prob(
            x
        )


def shares_log_marginal(model: Shares, x: Array) -> Array:
    """The Dirichlet-multinomial distribution."""
    a = jnp.exp(model.a)
    ways = gammaln(CHOICES + 1.0) - gammaln(x + 1).sum()
    whole = gammaln(a.sum()) - gammaln(a.sum() + CHOICES)
    return ways + whole + (gammaln(a + x) - gammaln(a)).sum()


def shares(seed: int) -> Problem:
    """What three hundred customers chose of four kinds: latents that sum to one."""
    rng = np.random.default_rng(2)
    each = rng.dirichlet([1.0, 2.0, 0.6, 3.0], 300)
    data = np.stack([rng.multinomial(CHOICES, p) for p in each]).astype(float)
    exact = Exact(shares_log_marginal, data)

    def make(seed: int) -> Shares:
        return Shares(array(jitter(seed, 4, scale=0.3 if seed else 0.0)))

    return Problem(
        name="shares",
        start=make(seed),
        data=data,
        parameters=4,
        log_likelihood=exact,
        maximum=-1797.891436,
        rival=by_scipy(exact, make(0), "closed form"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Choices(eqx.Module):
    """Eight choices among three by a person's utilities, two correlated normal effects in them."""

    means: Float[Array, " 2"]
    log_scales: Float[Array, " 2"]
    slope: Float[Array, ""]

    def logits(self, z):
        scales = jnp.exp(self.log_scales)
        effects = jnp.stack([scales[0] * z[0], self.slope * z[0] + scales[1] * z[1]])
        return jnp.concatenate([jnp.zeros(1), self.means + effects])

    def sample(self, key):
        z_key, choice_key = jax.random.split(key)
        z = jax.random.normal(z_key, (2,))
        return z, jax.random.categorical(choice_key, self.logits(z), shape=(8,)).astype(float)

    def log_joint(self, z, x):
        return norm.logpdf(z).sum() + log_softmax(self.logits(z))[x.astype(int)].sum()


def choices_log_marginal(model: Choices, x: Array) -> Array:
    """The trapezoidal rule in both effects."""
    z, weights = normal_grid(81, 7.0)
    pairs = jnp.stack(jnp.meshgrid(z, z, indexing="ij"), axis=-1).reshape(-1, 2)
    both = (weights[:, None] + weights).ravel()
    each = jax.vmap(lambda z: log_softmax(model.logits(z)))(pairs)
    return logsumexp(both + each[:, x.astype(int)].sum(axis=1))


def choices(seed: int) -> Problem:
    """Three hundred people who chose among three, eight times each: mixed multinomial logit."""
    rng = np.random.default_rng(5)
    effects = rng.standard_normal((300, 2)) @ np.array([[1.5, 0.8], [0.0, 1.2]])
    utilities = np.column_stack([np.zeros(300), np.array([0.5, -0.5]) + effects])
    gumbel = rng.gumbel(size=(300, 8, 3))
    data = (utilities[:, None] + gumbel).argmax(axis=2).astype(float)
    exact = Exact(choices_log_marginal, data)

    def make(seed: int) -> Choices:
        n = jitter(seed, 5, scale=0.2 if seed else 0.0)
        return Choices(array(n[:2]), array(-0.5 + n[2:4]), array(n[4]))

    return Problem(
        name="choices",
        start=make(seed),
        data=data,
        parameters=5,
        log_likelihood=exact,
        maximum=-2313.414318,
        rival=by_scipy(exact, make(0), "quadrature"),
        source="simulated",
        recompute=best_of(exact, make, 2),
    )


class Catches(eqx.Module):
    """No catch at all with some probability, else Poisson counts at a rate that is Gamma."""

    logit: Float[Array, ""]
    log_shape: Float[Array, ""]
    log_mean: Float[Array, ""]

    def sample(self, key):
        on_key, rate_key, count_key = jax.random.split(key, 3)
        on = jax.random.bernoulli(on_key, jax.nn.sigmoid(self.logit))
        shape = jnp.exp(self.log_shape)
        rate = jax.random.gamma(rate_key, shape) * jnp.exp(self.log_mean) / shape
        x = jnp.where(on, jax.random.poisson(count_key, rate), 0)
        return (on.astype(int), rate), x.astype(float)

    def log_joint(self, z, x):
        on, rate = z
        shape = jnp.exp(self.log_shape)
        prior = jnp.where(on > 0, log_sigmoid(self.logit), log_sigmoid(-self.logit))
        counted = x * jnp.log(rate) - rate - gammaln(x + 1)
        none = jnp.where(x == 0, 0.0, -jnp.inf)
        latent = dist.Gamma(shape, shape / jnp.exp(self.log_mean)).log_prob(rate)
        return prior + latent + jnp.where(on > 0, counted, none)


def catches_log_marginal(model: Catches, x: Array) -> Array:
    """A zero-inflated negative binomial distribution."""
    a, mean = jnp.exp(model.log_shape), jnp.exp(model.log_mean)
    counted = gammaln(a + x) - gammaln(a) - gammaln(x + 1) + a * jnp.log(a / (a + mean))
    counted = counted + x * jnp.log(mean / (a + mean))
    none = jnp.where(x == 0, log_sigmoid(-model.logit), -jnp.inf)
    return jnp.logaddexp(log_sigmoid(model.logit) + counted, none)


def catches(seed: int) -> Problem:
    """Five hundred catches, two fifths of them from boats that did not fish."""
    rng = np.random.default_rng(3)
    rates = rng.gamma(1.5, 4 / 1.5, 500)
    data = (rng.poisson(rates) * (rng.random(500) < 0.6)).astype(float)
    exact = Exact(catches_log_marginal, data)

    def make(seed: int) -> Catches:
        n = jitter(seed, 3, scale=0.2 if seed else 0.0)
        return Catches(array(n[0]), array(n[1]), array(0.5 + n[2]))

    return Problem(
        name="catches",
        start=make(seed),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-980.037382,
        rival=by_scipy(exact, make(0), "closed form"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Visits(eqx.Module):
    """N ~ Poisson(e^λ) animals live at a site, each is seen with some probability at each visit."""

    log_abundance: Float[Array, ""]
    logit: Float[Array, ""]

    def sample(self, key):
        number_key, seen_key = jax.random.split(key)
        z = jax.random.poisson(number_key, jnp.exp(self.log_abundance))
        p = jax.nn.sigmoid(self.logit)
        return z, jax.random.binomial(seen_key, z.astype(float), p, shape=(4,))

    def log_joint(self, z, x):
        enough = (x <= z).all()
        n = jnp.where(enough, z * 1.0, x.max())
        number = n * self.log_abundance - jnp.exp(self.log_abundance) - gammaln(n + 1)
        ways = gammaln(n + 1) - gammaln(x + 1) - gammaln(n - x + 1)
        seen = x * log_sigmoid(self.logit) + (n - x) * log_sigmoid(-self.logit)
        return jnp.where(enough, number + (ways + seen).sum(), -jnp.inf)


def visits_log_marginal(model: Visits, x: Array) -> Array:
    """The sum over up to 400 animals."""
    return logsumexp(jax.vmap(lambda z: model.log_joint(z, x))(jnp.arange(400)))


def visits(seed: int) -> Problem:
    """Counts at 150 sites, four visits each: a binomial mixture, its index unbounded."""
    rng = np.random.default_rng(15)
    animals = rng.poisson(12, 150)
    data = rng.binomial(animals[:, None], 0.4, (150, 4)).astype(float)
    exact = Exact(visits_log_marginal, data)

    def make(seed: int) -> Visits:
        n = jitter(seed, 2, scale=0.2 if seed else 0.0)
        return Visits(array(2 + n[0]), array(n[1]))

    return Problem(
        name="visits",
        start=make(seed),
        data=data,
        parameters=2,
        log_likelihood=exact,
        maximum=-1259.433160,
        rival=by_scipy(exact, make(0), "sums"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Probits(eqx.Module):
    """Two classes of people and a normal effect in each answer to six questions."""

    logit: Float[Array, ""]
    levels: Float[Array, "2 6"]
    log_scale: Float[Array, ""]

    def sample(self, key):
        class_key, effect_key, answer_key = jax.random.split(key, 3)
        kind = jax.random.bernoulli(class_key, jax.nn.sigmoid(self.logit)).astype(int)
        effect = jax.random.normal(effect_key)
        pull = self.levels[kind] + jnp.exp(self.log_scale) * effect
        x = pull + jax.random.normal(answer_key, (6,)) > 0
        return {"kind": kind, "effect": effect}, x.astype(float)

    def log_joint(self, z, x):
        pull = self.levels[z["kind"]] + jnp.exp(self.log_scale) * z["effect"]
        prior = jnp.where(z["kind"] > 0, log_sigmoid(self.logit), log_sigmoid(-self.logit))
        answers = norm.logcdf(jnp.where(x > 0, pull, -pull)).sum()
        return prior + norm.logpdf(z["effect"]) + answers


def probits_log_marginal(model: Probits, x: Array) -> Array:
    """The sum of the trapezoidal rules of both classes."""
    effects, weights = normal_grid(401)

    def of(kind: int) -> Array:
        def one(effect: Array) -> Array:
            joint = model.log_joint({"kind": kind, "effect": effect}, x)
            return joint - norm.logpdf(effect)

        return logsumexp(weights + jax.vmap(one)(effects))

    return jnp.logaddexp(of(0), of(1))


def probits(seed: int) -> Problem:
    """Five hundred people of two classes, answering by a threshold: latents of both kinds."""
    rng = np.random.default_rng(7)
    levels = np.array([[-1.0, -1, -0.5, 0, 0.5, 0], [1.0, 0.3, 1, 1.5, -0.5, 1]])
    kind = (rng.random(500) < 0.57).astype(int)
    pull = levels[kind] + 0.6 * rng.standard_normal((500, 1))
    data = (pull + rng.standard_normal((500, 6)) > 0).astype(float)
    exact = Exact(probits_log_marginal, data)

    def make(seed: int) -> Probits:
        levels = np.array([[-0.3] * 6, [0.3] * 6]) + jitter(seed, 2, 6, scale=0.1 if seed else 0.0)
        return Probits(array(0.0), array(levels), array(-1.0))

    return Problem(
        name="probits",
        start=make(seed),
        data=data,
        parameters=14,
        log_likelihood=exact,
        maximum=-1828.062842,
        rival=by_scipy(exact, make(0), "quadrature"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Loop(eqx.Module):
    """An angle z, three trigonometric polynomials of degree two in it, and noise."""

    first: Float[Array, "3 3"]
    second: Float[Array, "2 3"]
    log_noise: Float[Array, ""]

    def mean(self, z):
        once = jnp.stack([jnp.ones_like(z), jnp.cos(z), jnp.sin(z)])
        twice = jnp.stack([jnp.cos(2 * z), jnp.sin(2 * z)])
        return once @ self.first + twice @ self.second

    def sample(self, key):
        angle_key, noise_key = jax.random.split(key)
        z = jax.random.uniform(angle_key, minval=0.0, maxval=2 * jnp.pi)
        return z, self.mean(z) + jnp.exp(self.log_noise) * jax.random.normal(noise_key, (3,))

    def log_joint(self, z, x):
        return -jnp.log(2 * jnp.pi) + norm.logpdf(x, self.mean(z), jnp.exp(self.log_noise)).sum()


def loop_log_marginal(model: Loop, x: Array) -> Array:
    """The trapezoidal rule over the circle, exact to rounding."""
    z = jnp.arange(720) * (2 * jnp.pi / 720)
    terms = jax.vmap(lambda z: model.log_joint(z, x))(z)
    return logsumexp(terms) + jnp.log(2 * jnp.pi / 720)


def loop(seed: int) -> Problem:
    """Three hundred points along a closed curve in space, several angles near to each."""
    rng = np.random.default_rng(8)
    z = rng.uniform(0, 2 * np.pi, 300)
    curve = np.stack([1 + 2 * np.cos(z), 0.5 + 1.5 * np.sin(z), np.cos(2 * z)], axis=1)
    data = curve + 0.2 * rng.standard_normal((300, 3))
    exact = Exact(loop_log_marginal, data)

    def make(seed: int) -> Loop:
        n = jitter(seed, 5, 3, scale=0.1 if seed else 0.0)
        first = np.array([[0.8, 0.3, 0.8], [1.0, 0.3, 0.1], [0.2, 1.0, 0.1]]) + n[:3]
        second = np.array([[0.1, 0.1, 0.5], [0.0, 0.0, 0.2]]) + n[3:]
        return Loop(array(first), array(second), array(0.0))

    return Problem(
        name="loop",
        start=make(seed),
        data=data,
        parameters=15,  # sixteen, less one for the origin of the angle
        log_likelihood=exact,
        maximum=-661.701458,
        rival=by_scipy(exact, make(0), "quadrature"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


SEEN = np.array([300, 600, 1000])


class LongWalk(eqx.Module):
    """A walk of a thousand steps, seen three times through noise."""

    log_step: Float[Array, ""]
    level: Float[Array, ""]
    log_noise: Float[Array, ""]

    def sample(self, key):
        steps_key, noise_key = jax.random.split(key)
        z = jnp.exp(self.log_step) * jax.random.normal(steps_key, (1000,))
        noise = jnp.exp(self.log_noise) * jax.random.normal(noise_key, (3,))
        return z, self.level + jnp.cumsum(z)[SEEN - 1] / 10 + noise

    def log_joint(self, z, x):
        mean = self.level + jnp.cumsum(z)[SEEN - 1] / 10
        steps = norm.logpdf(z, 0.0, jnp.exp(self.log_step)).sum()
        return steps + norm.logpdf(x, mean, jnp.exp(self.log_noise)).sum()


def long_walk_log_marginal(model: LongWalk, x: Array) -> Array:
    """A normal distribution."""
    walked = jnp.minimum(SEEN[:, None], SEEN) / 100 * jnp.exp(2 * model.log_step)
    covariance = walked + jnp.exp(2 * model.log_noise) * jnp.eye(3)
    return gaussian(x, jnp.full(3, model.level), covariance)


def long_walk(seed: int) -> Problem:
    """Three hundred walks of a thousand steps: next to nothing of the latents shows in x."""
    rng = np.random.default_rng(13)
    path = np.cumsum(rng.standard_normal((300, 1000)), axis=1)[:, SEEN - 1] / 10
    data = 1.0 + path + rng.standard_normal((300, 3))
    exact = Exact(long_walk_log_marginal, data)

    def make(seed: int) -> LongWalk:
        n = jitter(seed, 3, scale=0.2 if seed else 0.0)
        return LongWalk(array(-1 + n[0]), array(n[1]), array(0.5 + n[2]))

    return Problem(
        name="long_walk",
        start=make(seed),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-1961.202811,
        rival=by_scipy(exact, make(0), "closed form"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Coins(eqx.Module):
    """A thousand coins, whose heads are counted with an error."""

    logit: Float[Array, ""]
    log_noise: Float[Array, ""]

    def sample(self, key):
        coin_key, noise_key = jax.random.split(key)
        z = jax.random.bernoulli(coin_key, jax.nn.sigmoid(self.logit), (1000,)).astype(int)
        return z, z.sum() + jnp.exp(self.log_noise) * jax.random.normal(noise_key)

    def log_joint(self, z, x):
        heads = z.sum()
        coins = heads * log_sigmoid(self.logit) + (1000 - heads) * log_sigmoid(-self.logit)
        return coins + norm.logpdf(x, heads, jnp.exp(self.log_noise))


def coins_log_marginal(model: Coins, x: Array) -> Array:
    """The sum over the number of heads."""
    n = jnp.arange(1001.0)
    ways = gammaln(1001.0) - gammaln(n + 1) - gammaln(1001 - n)
    coins = n * log_sigmoid(model.logit) + (1000 - n) * log_sigmoid(-model.logit)
    return logsumexp(ways + coins + norm.logpdf(x, n, jnp.exp(model.log_noise)))


def coins(seed: int) -> Problem:
    """Four hundred counts of a thousand coins each: two to the thousandth latents."""
    rng = np.random.default_rng(14)
    data = rng.binomial(1000, 0.2, 400) + 15 * rng.standard_normal(400)
    exact = Exact(coins_log_marginal, data)

    def make(seed: int) -> Coins:
        n = jitter(seed, 2, scale=0.2 if seed else 0.0)
        return Coins(array(-1 + n[0]), array(1 + n[1]))

    return Problem(
        name="coins",
        start=make(seed),
        data=data,
        parameters=2,
        log_likelihood=exact,
        maximum=-1737.655689,
        rival=by_scipy(exact, make(0), "sums"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Animals(eqx.Module):
    """z ~ Poisson(exp(log_rate)) animals at a place, each seen with one chance on four visits."""

    log_rate: Float[Array, ""]
    logit: Float[Array, ""]

    def sample(self, key):
        animals_key, visits_key = jax.random.split(key)
        z = jax.random.poisson(animals_key, jnp.exp(self.log_rate))
        return z, dist.Binomial(z, logits=self.logit).sample(visits_key, (4,))

    def log_joint(self, z, x):
        seen = dist.Binomial(z, logits=self.logit).log_prob(x).sum()
        return z * self.log_rate - jnp.exp(self.log_rate) - gammaln(z + 1.0) + seen


def animals_log_marginal(model: Animals, x: Array) -> Array:
    """The sum over up to a thousand animals."""
    n = jnp.arange(1000.0)
    enough = n >= x.max()
    m = jnp.where(enough, n, x.max())[:, None]
    ways = gammaln(m + 1) - gammaln(x + 1) - gammaln(m - x + 1)
    seen = ways + x * log_sigmoid(model.logit) + (m - x) * log_sigmoid(-model.logit)
    there = n * model.log_rate - jnp.exp(model.log_rate) - gammaln(n + 1)
    return logsumexp(jnp.where(enough, there + seen.sum(axis=1), -jnp.inf))


def animals(seed: int) -> Problem:
    """A hundred places with sixty animals, and a start that expects one: no draw explains any."""
    rng = np.random.default_rng(15)
    data = rng.binomial(rng.poisson(60.0, 100)[:, None], 0.5, (100, 4))
    exact = Exact(animals_log_marginal, data)

    def make(seed: int) -> Animals:
        n = jitter(seed, 2, scale=0.2 if seed else 0.0)
        return Animals(array(n[0]), array(2 + n[1]))

    return Problem(
        name="animals",
        start=make(seed),
        data=data,
        parameters=2,
        log_likelihood=exact,
        maximum=-1170.414856,
        rival=by_scipy(exact, make(0), "sums"),
        source="simulated",
        recompute=best_of(exact, lambda s: Animals(array(4.0 + 0.2 * s), array(0.2 * s)), 3),
    )


class Directions(eqx.Module):
    """z uniform on the unit sphere in space, x = offset + matrix z + noise."""

    matrix: Float[Array, "4 3"]
    offset: Float[Array, " 4"]
    log_noise: Float[Array, ""]

    def sample(self, key):
        z_key, noise_key = jax.random.split(key)
        z = jax.random.normal(z_key, (3,))
        z = z / jnp.linalg.norm(z)
        noise = jnp.exp(self.log_noise) * jax.random.normal(noise_key, (4,))
        return z, self.offset + self.matrix @ z + noise

    def log_joint(self, z, x):
        seen = norm.logpdf(x, self.offset + self.matrix @ z, jnp.exp(self.log_noise))
        return seen.sum() - jnp.log(4 * jnp.pi)


def sphere_grid(number: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log weights on the unit sphere: Gauss and Legendre's by equal angles."""
    height, weight = np.polynomial.legendre.leggauss(number)
    angle = np.arange(2 * number) * np.pi / number
    wide = np.sqrt(1 - height**2)[:, None]
    z = [wide * np.cos(angle), wide * np.sin(angle), height[:, None] + 0 * angle]
    return np.stack(z, axis=-1).reshape(-1, 3), np.log(np.repeat(weight, 2 * number) / 4 / number)


def directions_log_marginal(model: Directions, x: Array) -> Array:
    """log ∫ p(x | z) dz/4π over the sphere."""
    z, weights = sphere_grid()
    means = z @ model.matrix.T + model.offset
    return logsumexp(weights + norm.logpdf(x, means, jnp.exp(model.log_noise)).sum(axis=1))


def directions(seed: int) -> Problem:
    """Three hundred points near an ellipsoid in four dimensions; latents are unit vectors."""
    rng = np.random.default_rng(8)
    matrix = 1.5 * rng.standard_normal((4, 3))
    z = rng.standard_normal((300, 3))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    data = 1 + z @ matrix.T + 0.4 * rng.standard_normal((300, 4))
    exact = Exact(directions_log_marginal, data)

    def make(seed: int) -> Directions:
        return Directions(array(jitter(seed, 4, 3, scale=0.5)), array(np.zeros(4)), array(0.0))

    return Problem(
        name="directions",
        start=make(seed),
        data=data,
        parameters=14,  # seventeen, less three for the rotations of the sphere
        log_likelihood=exact,
        maximum=-1765.145302,
        rival=by_scipy(exact, make(0), "quadrature"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )


class Folded(eqx.Module):
    """z ~ N(0, 1), x = offset + slope z² + noise beside plain noise: posteriors of two modes."""

    offset: Float[Array, ""]
    slope: Float[Array, ""]
    log_noise: Float[Array, ""]

    def sample(self, key):
        z_key, noise_key = jax.random.split(key)
        z = jax.random.normal(z_key)
        noise = jnp.exp(self.log_noise) * jax.random.normal(noise_key, (2,))
        return z, jnp.stack([self.offset + self.slope * z**2, 0.0]) + noise

    def log_joint(self, z, x):
        mean = jnp.stack([self.offset + self.slope * z**2, 0.0])
        return norm.logpdf(z) + norm.logpdf(x, mean, jnp.exp(self.log_noise)).sum()


def folded_log_marginal(model: Folded, x: Array) -> Array:
    """log ∫ N(z; 0, 1) p(x | z) dz by the trapezoidal rule."""
    z, weights = normal_grid(6001)
    noise = jnp.exp(model.log_noise)
    seen = norm.logpdf(x[0], model.offset + model.slope * z**2, noise)
    return logsumexp(weights + seen) + norm.logpdf(x[1], 0.0, noise)


def folded(seed: int) -> Problem:
    """Three hundred points that tell the size of a latent and not its sign."""
    rng = np.random.default_rng(27)
    z = rng.standard_normal(300)
    data = np.stack([1 + 2 * z**2, np.zeros(300)], axis=1) + 0.3 * rng.standard_normal((300, 2))
    exact = Exact(folded_log_marginal, data)

    def make(seed: int) -> Folded:
        n = jitter(seed, 3, scale=0.2 if seed else 0.0)
        return Folded(array(n[0]), array(1 + n[1]), array(n[2]))

    return Problem(
        name="folded",
        start=make(seed),
        data=data,
        parameters=3,
        log_likelihood=exact,
        maximum=-639.356932,
        rival=by_scipy(exact, make(0), "quadrature"),
        source="simulated",
        recompute=best_of(exact, make, 3),
    )
