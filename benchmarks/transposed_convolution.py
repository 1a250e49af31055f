"""Transposed convolution: XLA's own against matrix products with overlap-add, as JSON.

    python benchmarks/transposed_convolution.py [--quick]

One layer, forward and backward (in the images and in the kernel), both ways in one run on the same
numbers; `ratio` is XLA's seconds over ours. `memory_mb` is what each needs beside its arguments and
results, ours with chunks and with all examples at once.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp

from alws_paper.shared import convolutions


def measure(function, x, w, repeats):
    """Best seconds of value and gradient, megabytes of temporary memory, and the gradient."""
    step = jax.jit(jax.value_and_grad(lambda x, w: jnp.sum(function(x, w) ** 2), (0, 1)))
    compiled = step.lower(x, w).compile()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        _, gradient = jax.block_until_ready(compiled(x, w))
        times.append(time.perf_counter() - began)
    return min(times), compiled.memory_analysis().temp_size_in_bytes / 1e6, gradient


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a small layer")
    quick = parser.parse_args().quick
    images, width = (20, 16) if quick else (200, 64)
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (images, 4 * width, 4, 4))
    w = 0.02 * jax.random.normal(keys[1], (4 * width, 2 * width, 4, 4))

    def ours(x, w):
        return convolutions.transposed_convolution(x, w, stride=2, padding=1)

    def native(x, w):
        return convolutions.up_by_xla(x, w, s=2, p=1)

    seconds, memory, gradient = measure(ours, x, w, 5)
    native_seconds, native_memory, native_gradient = measure(native, x, w, 2)
    convolutions.CHUNK, chunk = 2**60, convolutions.CHUNK
    jax.clear_caches()
    whole_seconds, whole_memory, _ = measure(ours, x, w, 5)
    convolutions.CHUNK = chunk
    gap = max(
        float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))
        for a, b in zip(gradient, native_gradient, strict=True)
    )
    result = {
        "images": images,
        "channels": [4 * width, 2 * width],
        "seconds": seconds,
        "native_seconds": native_seconds,
        "ratio": native_seconds / seconds,
        "unchunked_seconds": whole_seconds,
        "memory_mb": {"ours": memory, "unchunked": whole_memory, "native": native_memory},
        "largest_relative_gap_of_gradients": gap,
        "device": jax.default_backend(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
