"""Latents on manifolds, §4.2: spheres and hyperbolic space, with priors that can be learnt.

A distribution has `sample(key)` and `log_prob(z)` for one point; a model calls them from its
`sample_latent` and `log_prior`. The density is one in the area or volume of the manifold.
"""

from alws_paper.hyperbolic.manifolds import poincare
from alws_paper.hyperbolic.manifolds.bessel import log_scaled_bessel
from alws_paper.hyperbolic.manifolds.poincare import Gyroplanes
from alws_paper.hyperbolic.manifolds.quadrature import Nodes, disk_nodes, plane_nodes, sphere_nodes
from alws_paper.hyperbolic.manifolds.sphere import UniformSphere, VonMisesFisher, log_area
from alws_paper.hyperbolic.manifolds.wrapped_normal import WrappedNormal

__all__ = [
    "Gyroplanes",
    "Nodes",
    "UniformSphere",
    "VonMisesFisher",
    "WrappedNormal",
    "disk_nodes",
    "log_area",
    "log_scaled_bessel",
    "plane_nodes",
    "poincare",
    "sphere_nodes",
]
