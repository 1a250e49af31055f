"""Seconds per step of the simulators, and how they grow with T and N, as JSON.

    python benchmarks/dynamics.py [--quick]

One Hodgkin–Huxley step has the gradient in all parameters and an adapted ridge; one blowfly step
is that of the `desk` preset, with as many sleep samples as the paper's. `growth` is the ratio of
seconds when T or N doubles, in one run: 2 is linear.
"""

import argparse
import json

import jax
import jax.numpy as jnp
import optax
from models import seconds_per_step

import alws
from alws.features import Network
from alws.kernels import DotProduct
from alws_paper.blowflies import experiment as ecology
from alws_paper.blowflies.data import blowfly_counts
from alws_paper.blowflies.features import summaries
from alws_paper.neuron import experiment as hodgkin_huxley


def seconds(start, data, settings, repeats, conditions=None):
    def prepare():
        return alws.prepare(
            start,
            data,
            key=jax.random.key(0),
            steps=10,
            settings=settings,
            conditions=conditions,
            batch_size=1,
        )

    return seconds_per_step(prepare, repeats)[0]


def neuron(times, sleep_samples, repeats):
    current = hodgkin_huxley.training_current(jax.random.key(1), times)
    truth = hodgkin_huxley.HodgkinHuxley(hodgkin_huxley.TRUE)
    data = alws.draw(truth, jax.random.key(2), 1, alws.Given(current))[0].x
    settings = alws.Settings(
        regression=alws.regressions.KernelRidge(
            DotProduct(Network(hodgkin_huxley.summaries)), ridge=0.07
        ),
        estimate=alws.estimates.Joint(),
        optimiser=optax.adam(0.02),
        sleep_samples=sleep_samples,
        adapt=alws.Adapt(),
        conditions="separate",
    )
    start = hodgkin_huxley.HodgkinHuxley(hodgkin_huxley.START)
    return seconds(start, data, settings, repeats, conditions=alws.Given(current[None]))


def blowflies(times, sleep_samples, repeats):
    counts = jnp.tile(jnp.asarray(blowfly_counts(), jnp.float32), 2)[:times]
    data = counts / counts.max()
    desk = ecology.EXPERIMENT.presets["desk"]
    settings = alws.Settings(
        regression=alws.regressions.LinearReadout(Network(summaries(data)), ridge=desk.ridge),
        estimate=alws.estimates.Joint(),
        optimiser=ecology.optimiser(desk),
        sleep_samples=sleep_samples,
        adapt=alws.ALWS_F,
        measure_every=10,
    )
    return seconds(ecology.begin(times), data[None], settings, repeats)


def measure(step, times, sleep_samples, repeats):
    whole = step(times, sleep_samples, repeats)
    return {
        "times": times,
        "sleep_samples": sleep_samples,
        "seconds": round(whole, 4),
        "growth_with_times": round(whole / step(times // 2, sleep_samples, repeats), 3),
        "growth_with_sleep_samples": round(whole / step(times, sleep_samples // 2, repeats), 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    quick = parser.parse_args().quick
    repeats = 3 if quick else 8
    report = {
        "ecology": measure(blowflies, 180, 200 if quick else 2000, repeats),
        "hodgkin-huxley": measure(neuron, *((200, 100) if quick else (1000, 2000)), repeats),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
