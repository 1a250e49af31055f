"""The step as a user of PyTorch would write it: no `alws`, no JAX.

Distances by matrix product, one Cholesky factor for all wake points, in-place where that saves
memory. The generator is run forward once, its graph kept, and J̄ is differentiated by autograd with
the regression's weights held constant.
"""

from itertools import pairwise

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from sizes import BATCH, FEATURES, HIDDEN, LATENT, PIXELS, RIDGE, SLEEP


def gram(a, b, bandwidth):
    """exp(−‖a_i − b_j‖²/2σ²)."""
    centre = b.mean(dim=0)
    a, b = (a - centre) / bandwidth, (b - centre) / bandwidth
    squares = torch.addmm(a.square().sum(dim=1)[:, None] + b.square().sum(dim=1), a, b.T, alpha=-2)
    return squares.clamp_(min=0).mul_(-0.5).exp_()


@torch.no_grad()
def weights(sleep, wake, bandwidth, ridge):
    """W [wake, sleep] with rows that sum to one; wake features are drawn in to the sleep range."""
    wake = torch.clamp(wake, sleep.amin(dim=0), sleep.amax(dim=0))
    own = gram(sleep, sleep, bandwidth)
    own.diagonal().add_(ridge)
    plain = torch.cholesky_solve(gram(sleep, wake, bandwidth), torch.linalg.cholesky(own)).T
    return plain + (1 - plain.sum(dim=1, keepdim=True)) / plain.shape[1]


@torch.no_grad()
def features(x, projection):
    projected = x @ projection
    centred = projected - projected.mean(dim=0)
    return centred * torch.rsqrt(centred.square().mean(dim=0) + 1e-5)


def objective(mean, log_noise, wake, weights):
    """J̄ = (1/M) Σ_mn W_mn log N(x*_m; μ_n, σ²), up to a constant."""
    cotangents = weights.T @ wake / wake.shape[0]
    fit = (cotangents * mean).sum() - wake.square().sum() / wake.shape[0] / 2
    fit = fit - weights.mean(dim=0) @ mean.square().sum(dim=1) / 2
    return torch.exp(-2 * log_noise) * fit - wake.shape[1] * log_noise


def generator(*widths):
    """A network of ReLU units."""
    modules = []
    for inputs, outputs in pairwise(widths):
        modules += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


def backward(network, log_noise, projection, z, noise, wake, bandwidth, ridge):
    """Put the gradient of −J̄ into the parameters, given the random numbers."""
    mean = network(z)
    sleep = mean.detach() + log_noise.detach().exp() * noise
    found = weights(features(sleep, projection), features(wake, projection), bandwidth, ridge)
    (-objective(mean, log_noise, wake, found)).backward()


class ImageStep:
    """Simulate, regress, take a step of Adam; called for one step."""

    def __init__(self):
        torch.manual_seed(0)
        self.network = generator(LATENT, HIDDEN, HIDDEN, PIXELS)
        self.log_noise = torch.zeros((), requires_grad=True)
        self.projection = torch.randn(PIXELS, FEATURES) / PIXELS**0.5
        self.wake = torch.randn(BATCH, PIXELS)
        with torch.no_grad():
            first = self.network(torch.randn(1000, LATENT)) + torch.randn(1000, PIXELS)
        self.bandwidth = torch.pdist(features(first, self.projection)).median().item()
        self.optimiser = torch.optim.Adam([*self.network.parameters(), self.log_noise], lr=1e-3)

    def __call__(self):
        self.optimiser.zero_grad()
        numbers = torch.randn(SLEEP, LATENT), torch.randn(SLEEP, PIXELS)
        settings = self.wake, self.bandwidth, RIDGE
        backward(self.network, self.log_noise, self.projection, *numbers, *settings)
        self.optimiser.step()


def toy_gradient(b, noise, sleep, wake, bandwidth, ridge):
    """∇_b J̄ on the toy of `gradient_error.py`, for these sleep samples (z, x)."""
    z, x, wake, noise = (torch.tensor(np.array(a)) for a in (*sleep, wake, noise))
    b = torch.tensor(np.array(b), requires_grad=True)
    found = weights(x[:, None], wake[:, None], bandwidth, ridge)
    mean = torch.nn.functional.softplus(z @ b) - b @ b
    objective(mean[:, None], torch.log(noise), wake[:, None], found).backward()
    return b.grad.numpy()
