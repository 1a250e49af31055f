"""Products that sum over rows, AᵀB, as the gradient of a network's weights has them.

On the CPU, XLA has a quick matrix product that sums over the first matrix's columns and a slower
one for the rest. A transpose it folds into the product, and so takes the slower one. Here Aᵀ is
made first, if it is large, and kept: one pass over it, and the quick product.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.extend.core.primitives import dot_general_p, transpose_p
from jaxtyping import Array, PyTree

LARGE = 256
"""From how many rows, columns and summands on it is worth it."""


def transposing_first(function: Callable[[], PyTree[Array]]) -> PyTree[Array]:
    """`function()`, its large products AᵀB with Aᵀ made first; on the CPU, elsewhere as it is.

    Example: `transposing_first(lambda: pullback(cotangent))`.
    """
    if jax.default_backend() != "cpu":
        return function()
    closed, shape = jax.make_jaxpr(function, return_shape=True)()
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    used = {v for e in closed.jaxpr.eqns for v in e.invars if not isinstance(v, Literal)}
    used |= {v for v in closed.jaxpr.outvars if not isinstance(v, Literal)}
    transposed = set()
    for equation in closed.jaxpr.eqns:
        inputs = {v: values[v] for v in equation.invars if not isinstance(v, Literal)}
        if equation.primitive is transpose_p:
            transposed.add(equation.outvars[0])
        if _sums_over_rows(equation, transposed):
            values[equation.outvars[0]] = _product(equation, *(values[v] for v in equation.invars))
            continue
        kept = [v for v in equation.outvars if v in used]
        alone = closed.jaxpr.replace(constvars=[], invars=[*inputs], outvars=kept, eqns=[equation])
        outputs = jaxpr_as_fun(ClosedJaxpr(alone, ()))(*inputs.values())
        values.update(zip(kept, outputs, strict=True))
    leaves = [v.val if isinstance(v, Literal) else values[v] for v in closed.jaxpr.outvars]
    return jax.tree.unflatten(jax.tree.structure(shape), map(jnp.asarray, leaves))


def _sums_over_rows(equation: Any, transposed: set) -> bool:
    """Whether this is a large AᵀB once transposes are folded into it."""
    if equation.primitive is not dot_general_p:
        return False
    shapes = [v.aval.shape for v in equation.invars]
    if any(len(shape) != 2 or min(shape) < LARGE for shape in shapes):
        return False
    (axes, _), _ = equation.params["dimension_numbers"]
    return len(axes) == 1 and (axes[0] == 0) != (equation.invars[0] in transposed)


def _product(equation: Any, a: Array, b: Array) -> Array:
    """The same product, with A's rows and columns such that it sums over its columns."""
    ((axis,), summed), batch = equation.params["dimension_numbers"]
    a = jax.lax.optimization_barrier(a if axis == 1 else a.T)
    return dot_general_p.bind(
        a, b, **equation.params | {"dimension_numbers": (((1,), summed), batch)}
    )
