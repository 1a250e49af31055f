"""Many standard normal numbers from one key, made quickly on the CPU.

Threefry turns a key and two counters into two random words. XLA keeps its twenty rounds as a loop
over arrays in memory, joins the two halves in a pass of its own and cuts erf⁻¹ into three more.
Here the rounds are written out, both words of a pair leave the loop as one complex number, and

    n = √2 erf⁻¹(u),  u uniform on (−1, 1),

is one more loop, by the polynomials of M. Giles, *Approximating the erfinv function* (GPU Computing
Gems, 2011). The numbers are those of `jax.random.normal` with
`jax_threefry_partitionable` off, up to rounding; in the tails they are nearer to the exact ones,
for log(1 − u²) is taken of (1 − u)(1 + u).
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Key, UInt32

MANY = 256
"""How many numbers of one key are worth a longer program."""

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)

CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 2.1858087e-04,
    -1.25372503e-03, -4.17768164e-03, 0.246640727, 1.50140941,
)  # fmt: skip
TAIL = (
    -2.00214257e-04, 1.00950558e-04, 1.34934322e-03, -3.67342844e-03, 5.73950773e-03,
    -7.6224613e-03, 9.43887047e-03, 1.00167406, 2.83297682,
)  # fmt: skip


def normal(
    key: Key[Array, ""], shape: Sequence[int], dtype: DTypeLike = float
) -> Float[Array, "..."]:
    """Independent standard normal numbers, as `jax.random.normal` gives them.

    Example: `self.mean + self.scale * normal(key, self.mean.shape, self.mean.dtype)`.
    """
    size = math.prod(shape)
    if size < MANY or not _quick(key, dtype):
        return jax.random.normal(key, shape, dtype)
    half = -(-size // 2)
    counters = jnp.arange(half, dtype=jnp.uint32)
    others = counters + np.uint32(half)
    if size % 2:  # one past the last number; it is zero in JAX
        others = jnp.where(others < size, others, np.uint32(0))
    first, second = _threefry(jax.random.key_data(key), counters, others)
    pair = jax.lax.complex(_as_float(first), _as_float(second))
    pair = jax.lax.optimization_barrier(pair)  # or the rounds are done for each half anew
    is_first = np.arange(2)[:, None] == 0
    words = jnp.where(is_first, _as_word(pair.real), _as_word(pair.imag))
    return _to_normal(words).reshape(2 * half)[:size].reshape(shape)


def _quick(key: Key[Array, ""], dtype: DTypeLike) -> bool:
    """Whether this is the case the module is written for: threefry, float32, the CPU."""
    return (
        jax.default_backend() == "cpu"
        and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        and str(jax.random.key_impl(key)) == "threefry2x32"
        and jax.dtypes.canonicalize_dtype(dtype) == jnp.float32
    )


def _threefry(
    key: UInt32[Array, "2"], a: UInt32[Array, " half"], b: UInt32[Array, " half"]
) -> tuple[UInt32[Array, " half"], UInt32[Array, " half"]]:
    """Threefry-2x32 with twenty rounds (Salmon et al., 2011)."""
    keys = key[0], key[1], key[0] ^ key[1] ^ PARITY
    a, b = a + keys[0], b + keys[1]
    for i in range(5):
        for by in ROTATIONS[i % 2]:
            a = a + b
            b = a ^ (b << np.uint32(by) | b >> np.uint32(32 - by))
        a = a + keys[(i + 1) % 3]
        b = b + keys[(i + 2) % 3] + np.uint32(i + 1)
    return a, b


def _to_normal(words: UInt32[Array, "*n"]) -> Float[Array, "*n"]:
    """√2 erf⁻¹(u) with u from the upper 23 bits of each word, as in JAX."""
    lowest = np.nextafter(np.float32(-1), np.float32(0))
    mantissa = _as_float(words >> np.uint32(9) | np.uint32(0x3F800000)) - 1
    u = jnp.maximum(lowest, mantissa * (1 - lowest) + lowest)
    w = -jnp.log((1 - u) * (1 + u))
    central = w < 5
    v = jnp.where(central, w - 2.5, jnp.sqrt(w) - 3)
    polynomial = jnp.zeros_like(v)
    for near, far in zip(CENTRE, TAIL, strict=True):
        polynomial = polynomial * v + jnp.where(central, np.float32(near), np.float32(far))
    return np.float32(math.sqrt(2)) * polynomial * u


def _as_float(words: UInt32[Array, "*n"]) -> Float[Array, "*n"]:
    return jax.lax.bitcast_convert_type(words, jnp.float32)


def _as_word(numbers: Float[Array, "*n"]) -> UInt32[Array, "*n"]:
    return jax.lax.bitcast_convert_type(numbers, jnp.uint32)
