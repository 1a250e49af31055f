"""Deep models of images, §4.7: generators, graphs with discrete latents, methods that fit them."""

from alws.images.amortised import Amortised
from alws.images.encoders import Architecture, connected, convolutional
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
from alws.images.methods import METHODS
from alws.images.protocol import Method, MethodState
from alws.images.trainer import Trained, train

__all__ = [
    "DCGAN",
    "GRAPHS",
    "METHODS",
    "Amortised",
    "Architecture",
    "Binary",
    "Bounded",
    "Connected",
    "Direct",
    "Feedback",
    "ImageModel",
    "Merged",
    "Method",
    "MethodState",
    "Output",
    "Trained",
    "Unbounded",
    "connected",
    "convolutional",
    "pictures",
    "train",
]
