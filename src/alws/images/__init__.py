"""Deep models of images, §4.7: generators, graphs with discrete latents, methods that fit them."""

from alws.images.generators import (
    DCGAN,
    Binary,
    Bounded,
    Connected,
    ImageModel,
    Output,
    Unbounded,
    pictures,
)
from alws.images.graphs import GRAPHS, Direct, Feedback, Merged

__all__ = [
    "DCGAN",
    "GRAPHS",
    "Binary",
    "Bounded",
    "Connected",
    "Direct",
    "Feedback",
    "ImageModel",
    "Merged",
    "Output",
    "Unbounded",
    "pictures",
]
