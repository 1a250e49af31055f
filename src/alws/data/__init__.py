"""Data: generators of the synthetic sets, and loaders of the real ones."""

from alws.data.blowfly import blowfly_counts
from alws.data.files import DataError, DataFile, data_directory, fetch, locate, read
from alws.data.gabor import gabor, gabor_wavelets
from alws.data.mnist import fashion_mnist, mnist, read_idx
from alws.data.natural import natural_patches
from alws.data.pinwheel import pinwheel
from alws.data.sinusoids import Sinusoids, sinusoids
from alws.data.tree import Tree, branching_diffusion

__all__ = [
    "DataError",
    "DataFile",
    "Sinusoids",
    "Tree",
    "blowfly_counts",
    "branching_diffusion",
    "data_directory",
    "fashion_mnist",
    "fetch",
    "gabor",
    "gabor_wavelets",
    "locate",
    "mnist",
    "natural_patches",
    "pinwheel",
    "read",
    "read_idx",
    "sinusoids",
]
