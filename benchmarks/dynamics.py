"""Seconds per step of the simulators, and how they grow with T and N, as JSON.

    python benchmarks/dynamics.py [--quick]

One Hodgkin–Huxley step has the gradient in all parameters and an adapted ridge. `growth` is the
ratio of seconds when T or N doubles, in one run: 2 is linear.
"""

import argparse
import json

import jax
import optax
from step import seconds_per_step

import alws
from alws.experiments import hodgkin_huxley
from alws.features import Network
from alws.kernels import DotProduct


def neuron(times, sleep_samples, repeats):
    current = hodgkin_huxley.training_current(jax.random.key(1), times)
    truth = hodgkin_huxley.HodgkinHuxley(hodgkin_huxley.TRUE)
    data = alws.draw(truth, jax.random.key(2), 1, alws.Given(current))[0].x
    settings = alws.Settings(
        gradient_model=alws.KernelRidge(DotProduct(Network(hodgkin_huxley.summaries)), ridge=0.07),
        estimate=alws.Joint(),
        optimiser=optax.adam(0.02),
        sleep_samples=sleep_samples,
        adapt=alws.Adapt(),
    )
    start = hodgkin_huxley.HodgkinHuxley(hodgkin_huxley.START)
    conditions = alws.Given(current[None])
    return seconds_per_step(start, data, settings, 1, repeats, conditions)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    quick = parser.parse_args().quick
    times, number, repeats = (200, 100, 3) if quick else (1000, 2000, 6)
    whole = neuron(times, number, repeats)
    half_times, half_number = (
        neuron(times // 2, number, repeats),
        neuron(times, number // 2, repeats),
    )
    report = {
        "hodgkin-huxley": {
            "times": times,
            "sleep_samples": number,
            "seconds": whole,
            "growth_with_times": whole / half_times,
            "growth_with_sleep_samples": whole / half_number,
        }
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
