"""DATA SETS: local files as samples for `Batches`; if a file is missing, the error says where to put it."""

from detent.training.datasets.cifar10 import cifar10
from detent.training.datasets.idx import FASHION_MNIST, MNIST, idx_images, read_idx
from detent.training.datasets.image_folder import ImageFolder
from detent.training.datasets.images import Images, Normalization, crop_and_flip
from detent.training.datasets.listed_images import ListedImages
from detent.training.datasets.made_up import made_up
from detent.training.datasets.npz import Npz

__all__ = [
    "FASHION_MNIST",
    "MNIST",
    "ImageFolder",
    "Images",
    "ListedImages",
    "Normalization",
    "Npz",
    "cifar10",
    "crop_and_flip",
    "idx_images",
    "made_up",
    "read_idx",
]
