"""How near the gradients of scikit-learn's and PyTorch's step are to this library's, as JSON.

    python benchmarks/same_gradient.py [--quick]

Both are to be the same computation, so that the table compares like with like: on the toy and on a
small image problem, with the same random numbers and in float64, the largest difference of an entry
of the gradient over the largest entry. null stands for a library that is not installed.
"""

import argparse
import importlib.util
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gradient_error import Toy
from models import Generator, estimated_gradient

import alws
from alws.features import Linear
from alws.kernels import SquaredExponential


def gap(found, exact):
    """The largest difference of any array's entries, relative to its largest."""
    pairs = zip(found, exact, strict=True)
    return max(float(np.abs(np.asarray(a) - b).max() / np.abs(b).max()) for a, b in pairs)


@eqx.filter_jit
def our_gradient(model, regression, sleep, wake):
    return estimated_gradient(model, regression.fit(sleep.x), sleep, wake)


def toy_problem():
    """Toy, sleep samples, data, bandwidth and ridge, and this library's gradient."""
    toy = Toy(jnp.array([0.75, 1.75]), jnp.array(0.3))
    sleep, wake = alws.draw(toy, jax.random.key(4), 150)[0], jnp.linspace(-4.0, 3.0, 20)
    kernel = SquaredExponential(bandwidth=0.6, track=False)
    exact = our_gradient(toy, alws.regressions.KernelRidge(kernel, ridge=0.01), sleep, wake)
    return (toy.b, toy.noise, sleep, wake, 0.6, 0.01), [exact.b]


def image_problem():
    """A small generator with all its random numbers, and this library's gradient in layers."""
    keys = jax.random.split(jax.random.key(3), 5)
    model = Generator(eqx.nn.MLP(2, 6, 5, 2, key=keys[0]), jnp.array(-0.5))
    z, noise = jax.random.normal(keys[1], (80, 2)), jax.random.normal(keys[2], (80, 6))
    wake, projection = jax.random.normal(keys[3], (9, 6)), jax.random.normal(keys[4], (6, 4))
    x = jax.vmap(model.network)(z) + jnp.exp(model.log_noise) * noise
    kernel = SquaredExponential(Linear(projection, True), bandwidth=2.0, track=False)
    regression = alws.regressions.KernelRidge(kernel, ridge=0.1)
    exact = our_gradient(model, regression, alws.Draws(z, x), wake)
    return model, (projection, z, noise, wake), [exact.log_noise, *of_layers(exact.network.layers)]


def of_layers(layers):
    return [array for layer in layers for array in (layer.weight, layer.bias)]


def with_scikit_learn():
    import with_scikit_learn as theirs

    known, exact = toy_problem()
    toy = gap([theirs.toy_gradient(*known)], exact)
    model, known, exact = image_problem()
    network, noise = theirs.image_gradient(model.network, model.log_noise, *known, 2.0, 0.1)
    return {"toy": toy, "images": gap([noise, *of_layers(network.layers)], exact)}


def with_pytorch():
    import torch
    import with_pytorch as theirs

    known, exact = toy_problem()
    toy = gap([theirs.toy_gradient(*known)], exact)
    model, known, exact = image_problem()
    network = theirs.generator(2, 5, 5, 6)
    for linear, layer in zip(network[::2], model.network.layers, strict=True):
        linear.weight.data = torch.tensor(np.array(layer.weight))
        linear.bias.data = torch.tensor(np.array(layer.bias))
    noise = torch.tensor(np.array(model.log_noise), requires_grad=True)
    theirs.backward(network, noise, *(torch.tensor(np.array(a)) for a in known), 2.0, 0.1)
    down = [noise.grad, *(a.grad for linear in network[::2] for a in (linear.weight, linear.bias))]
    return {"toy": toy, "images": gap([-a.numpy() for a in down], exact)}


OTHERS = {"sklearn": with_scikit_learn, "torch": with_pytorch}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same: it takes seconds")
    parser.parse_args()
    with jax.enable_x64(True):
        report = {
            name: compare() if importlib.util.find_spec(name) else None
            for name, compare in OTHERS.items()
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
