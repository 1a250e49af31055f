"""Data: generators of the synthetic sets, and loaders of the real ones."""

from alws.data.blowfly import blowfly_counts
from alws.data.celeba import celeba, celeba_names
from alws.data.cifar import cifar10, read_cifar
from alws.data.files import DataError, DataFile, data_directory, fetch, locate, read
from alws.data.gabor import gabor, gabor_wavelets
from alws.data.images import Images, images
from alws.data.mnist import fashion_mnist, mnist, read_idx
from alws.data.natural import natural_patches
from alws.data.pinwheel import pinwheel
from alws.data.sinusoids import Sinusoids, sinusoids
from alws.data.tree import Tree, branching_diffusion

__all__ = [
    "DataError",
    "DataFile",
    "Images",
    "Sinusoids",
    "Tree",
    "blowfly_counts",
    "branching_diffusion",
    "celeba",
    "celeba_names",
    "cifar10",
    "data_directory",
    "fashion_mnist",
    "fetch",
    "gabor",
    "gabor_wavelets",
    "images",
    "locate",
    "mnist",
    "natural_patches",
    "pinwheel",
    "read",
    "read_cifar",
    "read_idx",
    "sinusoids",
]
