"""A strided convolution, its transpose and its gradient, fast on every device.

All three are partial derivatives of one trilinear form,

    T(x, w, y) = Σ x[n, c, i, j] · w[c, o, k, l] · y[n, o, s·i + k − p, s·j + l − p]

with stride s and padding p: `∂T/∂y` takes x up to y (the transposed convolution), `∂T/∂x` takes y
down to x (the convolution), `∂T/∂w` is the gradient in the kernel. Each is the derivative of the
others, so that differentiation of any order, forwards or backwards, stays within the three.

On a CPU each is a matrix product over channels followed by overlap-add (or preceded by its
opposite, the gathering of patches), in chunks of examples so that the patches never exist all at
once. XLA's own transposed convolution is many times slower there; other devices use it.
`benchmarks/transposed_convolution.py` measures both.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

CHUNK = 2**20
"""How many numbers the patches of one chunk of examples may hold."""


def transposed_convolution(
    x: Float[Array, "n c h v"], w: Float[Array, "c o k k"], *, stride: int, padding: int
) -> Float[Array, "n o H V"]:
    """∂T/∂y: sides grow from h to (h − 1)·stride + k − 2·padding.

    Example: `transposed_convolution(x, w, stride=2, padding=1)` doubles them for k = 4.
    """
    return _up.bind(x, w, s=stride, p=padding)


def strided_convolution(
    y: Float[Array, "n o H V"], w: Float[Array, "c o k k"], *, stride: int, padding: int
) -> Float[Array, "n c h v"]:
    """∂T/∂x: sides shrink from H to (H + 2·padding − k)/stride + 1, which must be whole.

    Example: `strided_convolution(y, w, stride=2, padding=1)` halves them for k = 4.
    """
    if any((side + 2 * padding - w.shape[-1]) % stride for side in y.shape[2:]):
        raise ValueError(
            f"height and width + 2·{padding} − {w.shape[-1]} must be multiples of the stride "
            f"{stride}, got an image of {y.shape[2:]}. Pad or crop it."
        )
    return _down.bind(y, w, s=stride, p=padding)


# The matrix products. Kernel and image are cut into blocks of s×s: the kernel has r×r of them, one
# for each tap (a, b), and input pixel (i, j) meets block (i + a, j + b) of the output.


def _taps(w: Array, s: int) -> Float[Array, "c rrsso"]:
    """The kernel as one matrix, block beside block, its sides filled up to a multiple of s."""
    c, o, k, _ = w.shape
    r = -(-k // s)
    full = jnp.pad(w, ((0, 0), (0, 0), (0, r * s - k), (0, r * s - k)))
    return full.reshape(c, o, r, s, r, s).transpose(0, 2, 4, 3, 5, 1).reshape(c, -1)


def _up_some(x: Float[Array, "n c h v"], w: Array, s: int, p: int) -> Float[Array, "n o H V"]:
    """Overlap-add of x · w."""
    (n, _, h, v), (_, o, k, _) = x.shape, w.shape
    r = -(-k // s)
    products = (x.transpose(0, 2, 3, 1) @ _taps(w, s)).reshape(n, h, v, r, r, -1)
    total = jnp.zeros(())
    for a, b in product(range(r), repeat=2):
        edges = ((0, 0), (a, r - 1 - a), (b, r - 1 - b), (0, 0))
        total = total + jnp.pad(products[:, :, :, a, b], edges)
    blocks = total.reshape(n, h + r - 1, v + r - 1, s, s, o).transpose(0, 5, 1, 3, 2, 4)
    image = blocks.reshape(n, o, (h + r - 1) * s, (v + r - 1) * s)
    return image[:, :, p : (h - 1) * s + k - p, p : (v - 1) * s + k - p]


def _patches(y: Array, k: int, s: int, p: int) -> Float[Array, "pixels rrsso"]:
    """The blocks of the padded images that each pixel of x meets, side by side for all taps."""
    r = -(-k // s)
    far = p + r * s - k
    y = jnp.pad(y, ((0, 0), (0, 0), (p, far), (p, far)))
    n, o, height, width = y.shape
    blocks = y.reshape(n, o, height // s, s, width // s, s).transpose(0, 2, 4, 3, 5, 1)
    blocks = blocks.reshape(n, height // s, width // s, -1)
    h, v = height // s - r + 1, width // s - r + 1
    met = [blocks[:, a : a + h, b : b + v] for a, b in product(range(r), repeat=2)]
    return jnp.concatenate(met, axis=-1).reshape(n * h * v, -1)


def _down_some(y: Float[Array, "n o H V"], w: Array, s: int, p: int) -> Float[Array, "n c h v"]:
    """Patches of y · w."""
    c, _, k, _ = w.shape
    h, v = ((side + 2 * p - k) // s + 1 for side in y.shape[2:])
    pixels = _patches(y, k, s, p) @ _taps(w, s).T
    return pixels.reshape(len(y), h, v, c).transpose(0, 3, 1, 2)


def _kernel_some(x: Array, y: Array, k: int, s: int, p: int) -> Float[Array, "c o k k"]:
    """xᵀ · patches of y."""
    c, o, r = x.shape[1], y.shape[1], -(-k // s)
    pixels = x.transpose(1, 0, 2, 3).reshape(c, -1)
    taps = pixels @ _patches(y, k, s, p)
    full = taps.reshape(c, r, r, s, s, o).transpose(0, 5, 1, 3, 2, 4)
    return full.reshape(c, o, r * s, r * s)[:, :, :k, :k]


def _chunk(pixels: int, o: int, k: int) -> int:
    """How many examples' patches fit in a chunk, with so many pixels in x."""
    return max(1, CHUNK // (pixels * o * k * k))


def _cut(arrays: Any, size: int) -> tuple[Any, Any]:
    """Whole chunks of examples, stacked, and the rest; None where there are none."""
    whole, rest = divmod(len(jax.tree.leaves(arrays)[0]), size)
    chunks = jax.tree.map(lambda a: a[: whole * size].reshape(whole, size, *a.shape[1:]), arrays)
    return (chunks if whole else None), (
        jax.tree.map(lambda a: a[-rest:], arrays) if rest else None
    )


def _each(function: Callable[[Array], Array], x: Array, size: int) -> Array:
    """A function of some examples, for all of them, a chunk at a time."""
    chunks, rest = _cut(x, size)
    parts = [] if rest is None else [function(rest)]
    if chunks is not None:
        done = jax.lax.map(function, chunks)
        parts.insert(0, done.reshape(-1, *done.shape[2:]))
    return jnp.concatenate(parts)


def up_by_products(x: Array, w: Array, *, s: int, p: int) -> Float[Array, "n o H V"]:
    """∂T/∂y for examples x, by matrix products in chunks."""
    size = _chunk(x.shape[2] * x.shape[3], *w.shape[1:3])
    return _each(partial(_up_some, w=w, s=s, p=p), x, size)


def down_by_products(y: Array, w: Array, *, s: int, p: int) -> Float[Array, "n c h v"]:
    """∂T/∂x for examples y, by matrix products in chunks."""
    size = _chunk(-(-y.shape[2] // s) * -(-y.shape[3] // s), *w.shape[1:3])
    return _each(partial(_down_some, w=w, s=s, p=p), y, size)


def kernel_by_products(x: Array, y: Array, *, k: int, s: int, p: int) -> Float[Array, "c o k k"]:
    """∂T/∂w for examples x and y, by matrix products in chunks."""
    chunks, rest = _cut((x, y), _chunk(x.shape[2] * x.shape[3], y.shape[1], k))
    total = jnp.zeros((x.shape[1], y.shape[1], k, k), jnp.result_type(x, y))
    if chunks is not None:
        some = partial(_kernel_some, k=k, s=s, p=p)
        total, _ = jax.lax.scan(lambda t, xy: (t + some(*xy), None), total, chunks)
    return total if rest is None else total + _kernel_some(rest[0], rest[1], k, s, p)


# The same three by XLA's own convolution.


def up_by_xla(x: Array, w: Array, *, s: int, p: int) -> Float[Array, "n o H V"]:
    """∂T/∂y by XLA's transposed convolution."""
    edge = w.shape[-1] - 1 - p
    return jax.lax.conv_general_dilated(
        x,
        w[:, :, ::-1, ::-1],
        (1, 1),
        ((edge, edge), (edge, edge)),
        lhs_dilation=(s, s),
        dimension_numbers=("NCHW", "IOHW", "NCHW"),
    )


def down_by_xla(y: Array, w: Array, *, s: int, p: int) -> Float[Array, "n c h v"]:
    """∂T/∂x by XLA's convolution."""
    return jax.lax.conv_general_dilated(
        y, w, (s, s), ((p, p), (p, p)), dimension_numbers=("NCHW", "OIHW", "NCHW")
    )


def kernel_by_xla(x: Array, y: Array, *, k: int, s: int, p: int) -> Float[Array, "c o k k"]:
    """∂T/∂w by XLA's convolution."""
    like = jax.ShapeDtypeStruct((x.shape[1], y.shape[1], k, k), x.dtype)
    (gradient,) = jax.linear_transpose(lambda w: down_by_xla(y, w, s=s, p=p), like)(x)
    return gradient


# Three primitives, each bilinear and each the derivative of the others.


def _primitive(name: str, products: Callable, xla: Callable) -> Primitive:
    primitive = Primitive(name)
    primitive.def_impl(lambda a, b, **sizes: _compiled(primitive, **sizes)(a, b))
    primitive.def_abstract_eval(lambda a, b, **sizes: _shape(products, a, b, sizes))
    mlir.register_lowering(primitive, mlir.lower_fun(xla, multiple_results=False))
    mlir.register_lowering(
        primitive, mlir.lower_fun(products, multiple_results=False), platform="cpu"
    )
    batching.primitive_batchers[primitive] = partial(_batch, primitive, products)
    return primitive


@cache
def _compiled(primitive: Primitive, **sizes: int) -> Callable:
    return jax.jit(lambda a, b: primitive.bind(a, b, **sizes))


def _shape(function: Callable, a: Any, b: Any, sizes: dict[str, int]) -> ShapedArray:
    like = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (a, b)]
    out = jax.eval_shape(partial(function, **sizes), *like)
    return ShapedArray(out.shape, out.dtype)


def _batch(primitive: Primitive, products: Callable, args: tuple, axes: tuple, **sizes: int) -> Any:
    """One more axis of examples joins the first; kernels of their own go one by one."""
    (a, b), (i, j) = args, axes
    if primitive is not _kernel and j is None:
        a = jnp.moveaxis(a, i, 0)
        joined = primitive.bind(a.reshape(-1, *a.shape[2:]), b, **sizes)
        return joined.reshape(*a.shape[:2], *joined.shape[1:]), 0
    return jax.vmap(partial(products, **sizes), (i, j))(a, b), 0


_up = _primitive("transposed_convolution", up_by_products, up_by_xla)
_down = _primitive("strided_convolution", down_by_products, down_by_xla)
_kernel = _primitive("convolution_kernel", kernel_by_products, kernel_by_xla)

ad.defbilinear(
    _up,
    lambda y, x, w, s, p: _down.bind(y, w, s=s, p=p),
    lambda y, x, w, s, p: _kernel.bind(x, y, k=w.aval.shape[-1], s=s, p=p),
)
ad.defbilinear(
    _down,
    lambda x, y, w, s, p: _up.bind(x, w, s=s, p=p),
    lambda x, y, w, s, p: _kernel.bind(x, y, k=w.aval.shape[-1], s=s, p=p),
)
ad.defbilinear(
    _kernel,
    lambda w, x, y, k, s, p: _down.bind(y, w, s=s, p=p),
    lambda w, x, y, k, s, p: _up.bind(x, w, s=s, p=p),
)

__all__ = ["strided_convolution", "transposed_convolution"]
