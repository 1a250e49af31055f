"""Deep models of images, §4.7: generators, graphs with discrete latents, methods that fit them."""

from alws.images.amortised import Amortised
from alws.images.curves import Compared, Curve, Point, compare
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
    scored_pictures,
)
from alws.images.graphs import GRAPHS, Direct, Feedback, Merged
from alws.images.grid import Finished, run_cell, run_grid
from alws.images.likelihood import refit_noise
from alws.images.methods import METHODS
from alws.images.plan import DATASETS, GENERATORS, Cell, Plan
from alws.images.protocol import Method, MethodState
from alws.images.scorer import Scorer
from alws.images.trainer import Trained, train

__all__ = [
    "DATASETS",
    "DCGAN",
    "GENERATORS",
    "GRAPHS",
    "METHODS",
    "Amortised",
    "Architecture",
    "Binary",
    "Bounded",
    "Cell",
    "Compared",
    "Connected",
    "Curve",
    "Direct",
    "Feedback",
    "Finished",
    "ImageModel",
    "Merged",
    "Method",
    "MethodState",
    "Output",
    "Plan",
    "Point",
    "Scorer",
    "Trained",
    "Unbounded",
    "compare",
    "connected",
    "convolutional",
    "pictures",
    "refit_noise",
    "run_cell",
    "run_grid",
    "scored_pictures",
    "train",
]
