"""Deep models of images, §4.7: generators, graphs with discrete latents, methods that fit them."""

from alws_paper.images import architectures, experiment, length, others
from alws_paper.images.amortised import Amortised
from alws_paper.images.bench import bench_images
from alws_paper.images.curves import Compared, Curve, Point, compare
from alws_paper.images.data.images import Images, images
from alws_paper.images.encoders import Architecture, connected, convolutional
from alws_paper.images.generators import (
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
from alws_paper.images.graphs import GRAPHS, Direct, Feedback, Merged
from alws_paper.images.grid import Finished, run_cell, run_grid
from alws_paper.images.length import bench_length
from alws_paper.images.likelihood import refit_noise
from alws_paper.images.methods import METHODS
from alws_paper.images.plan import DATASETS, GENERATORS, Cell, Plan
from alws_paper.images.protocol import Method, MethodState
from alws_paper.images.scorer import Scorer
from alws_paper.images.scores.lenet import LOADERS, save_lenet, train_lenet
from alws_paper.images.trainer import Trained, train

EXPERIMENTS = (
    architectures.EXPERIMENT,
    experiment.EXPERIMENT,
    length.EXPERIMENT,
    others.EXPERIMENT,
)

__all__ = [
    "DATASETS",
    "DCGAN",
    "EXPERIMENTS",
    "GENERATORS",
    "GRAPHS",
    "LOADERS",
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
    "Images",
    "Merged",
    "Method",
    "MethodState",
    "Output",
    "Plan",
    "Point",
    "Scorer",
    "Trained",
    "Unbounded",
    "bench_images",
    "bench_length",
    "compare",
    "connected",
    "convolutional",
    "images",
    "pictures",
    "refit_noise",
    "run_cell",
    "run_grid",
    "save_lenet",
    "scored_pictures",
    "train",
    "train_lenet",
]
