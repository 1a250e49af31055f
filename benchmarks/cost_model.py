"""Seconds per step on 8 GPUs and on 64 hosts, worked out from a step measured here, as a table.

    python benchmarks/cost_model.py [--quick] [--gpu-peak 19.5e12 --gpu-bandwidth 300e9 ...]

No GPU and no cluster was measured. What is measured, on this machine: the peak of a matrix product,
the seconds of one step on one device, and the share of the peak that it reaches. What is counted,
by the compiler, in the step's own program for one device and for eight: floating-point operations
F₁ and F₈ of one device, and the bytes B that a device hands to collectives. LAPACK's work, which
the compiler does not see, is added by formula; it is the same on every device. Then

    divided = (F₁ − F₈)·8/7,   repeated = F₁ − divided + LAPACK,
    seconds(D) = (divided/D + repeated)/(peak·efficiency) + 2·B·(D − 1)/(D·bandwidth)
                 + 2·C·log₂(D)·latency,

with C collectives a step. Assumed: the efficiency measured here holds everywhere; collectives do
not overlap with arithmetic, move each byte at most twice (a ring) and take log₂ D rounds; devices
are equal. Peaks, bandwidths and latencies are arguments; their defaults are round figures for one
GPU with its own links and for this machine's processor on 10 Gbit/s Ethernet, not measurements.
"""

import argparse
import math
import os
import re
import time
from functools import partial

VIRTUAL = 8
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={VIRTUAL}"
)

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
from models import image_step  # noqa: E402
from sizes import BATCH, HELD_OUT, PIXELS  # noqa: E402
from step import peak  # noqa: E402

import alws  # noqa: E402
from alws.devices import device_put, make_mesh, on_every_device, over_devices, using  # noqa: E402
from alws.regressions.base import one_lapack_thread  # noqa: E402

WAVES = 500
SIZES = {"exact": (1000, 4000), "random features": (1000, 4000, 16_000)}
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f64": 8, "s64": 8, "u64": 8}
COLLECTIVE = re.compile(
    r"= (\(?[^=]*?\)?) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)"
    r"(?:-start)?\("
)


REGRESSIONS = {
    "exact": alws.regressions.KernelRidge,
    "random features": partial(alws.regressions.RandomFeatures, frequencies=WAVES),
}


def lapack(name, sleep):
    """Factorisation and triangular solves: a blocked factor of the exact one is XLA's own."""
    n = sleep if name == "exact" else 2 * WAVES
    if n > 1024:
        return 0.0
    pulled = BATCH if name == "exact" else PIXELS + 1
    return n**3 / 3 + 2 * n**2 * (pulled + 2 * HELD_OUT)


def program(name, sleep, devices):
    """The compiled step with its arguments, on one device (None) or on several."""
    prepared = image_step(
        REGRESSIONS[name],
        BATCH - BATCH % VIRTUAL,
        sleep_samples=sleep,
        validation_samples=HELD_OUT,
        measure_every=1,
        devices=devices,
    )
    mesh = make_mesh(devices)
    problem = prepared.problem.on(mesh)

    def step(state, data, key):
        x = over_devices(data[: problem.batch_size])
        return on_every_device(prepared.algorithm.step(state, x, key))

    arguments = prepared.state, problem.data, device_put(prepared.key, mesh)
    with using(mesh):
        return eqx.filter_jit(step).lower(*arguments).compile(), arguments


def flops(step):
    return step.compiled.cost_analysis()["flops"]


def collectives(step):
    """How many collectives the program has, and the bytes they give to one device."""
    count, total = 0, 0
    for shapes, _ in COLLECTIVE.findall(step.compiled.as_text()):
        count += 1
        for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
            entries = math.prod(int(size) for size in sizes.split(",") if size)
            total += entries * BYTES.get(kind, 4)
    return count, total


def seconds(step, arguments, repeats):
    times = []
    with one_lapack_thread():
        for _ in range(repeats):
            began = time.perf_counter()
            jax.block_until_ready(step(*arguments)[1])
            times.append(time.perf_counter() - began)
    return min(times[1:])


def predicted(divided, repeated, exchange, devices, rate, bandwidth, latency):
    """Seconds of arithmetic, and of exchange."""
    count, size = exchange
    sent = 2 * size * (devices - 1) / devices / bandwidth
    return (divided / devices + repeated) / rate, sent + 2 * count * math.log2(devices) * latency


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="N = 1,000 only, two repeats")
    parser.add_argument("--sizes", nargs="+", type=int, help="numbers of sleep samples")
    parser.add_argument("--gpu-peak", type=float, default=19.5e12, help="flop/s of one GPU")
    parser.add_argument("--gpu-bandwidth", type=float, default=300e9, help="bytes/s between GPUs")
    parser.add_argument("--gpu-latency", type=float, default=5e-6, help="s for each round")
    parser.add_argument("--host-peak", type=float, help="flop/s of one host; default: as here")
    parser.add_argument(
        "--host-bandwidth", type=float, default=1.25e9, help="bytes/s between hosts"
    )
    parser.add_argument("--host-latency", type=float, default=50e-6, help="s for each round")
    chosen = parser.parse_args()
    here = peak()
    places = {
        "GPU": (chosen.gpu_peak, chosen.gpu_bandwidth, chosen.gpu_latency, (1, 8)),
        "host": (
            chosen.host_peak or here,
            chosen.host_bandwidth,
            chosen.host_latency,
            (1, 8, 64),
        ),
    }
    print(f"matrix-product peak here: {here / 1e9:.1f} Gflop/s")
    for kind, (rate, bandwidth, latency, _) in places.items():
        print(
            f"assumed {kind}: {rate:.3g} flop/s, {bandwidth:.3g} bytes/s, {latency:.1e} s a round"
        )
    for name, sizes in SIZES.items():
        for sleep in sizes[:1] if chosen.quick else chosen.sizes or sizes:
            one, arguments = program(name, sleep, None)
            eight, _ = program(name, sleep, VIRTUAL)
            taken = seconds(one, arguments, 2 if chosen.quick else 5)
            total, share, hidden = flops(one), flops(eight), lapack(name, sleep)
            divided = (total - share) * VIRTUAL / (VIRTUAL - 1)
            repeated = total - divided + hidden
            efficiency = (total + hidden) / taken / here
            exchange = collectives(eight)
            print(
                f"\n{name}, N = {sleep}: {taken:.3f} s here, {(total + hidden) / 1e9:.1f} Gflop "
                f"({divided / 1e9:.1f} divided, {repeated / 1e9:.1f} repeated), efficiency "
                f"{efficiency:.2f}, {exchange[0]} collectives of {exchange[1] / 1e6:.2f} MB"
            )
            print("| devices | arithmetic, s | exchange, s | step, s | speed-up |")
            print("|---|---|---|---|---|")
            for kind, (rate, bandwidth, latency, numbers) in places.items():
                alone = (divided + repeated) / (rate * efficiency)
                for number in numbers:
                    work, sent = predicted(
                        divided, repeated, exchange, number, rate * efficiency, bandwidth, latency
                    )
                    step = work + sent
                    print(
                        f"| {number} {kind} | {work:.4g} | {sent:.4g} | {step:.4g} | "
                        f"{alone / step:.1f} |"
                    )


if __name__ == "__main__":
    main()
