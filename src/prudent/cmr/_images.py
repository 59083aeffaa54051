"""A few numbers that describe an image: what it shows where, without looking at outcomes.

Histograms of edge directions (Dalal and Triggs, 2005) in a grid of 7 x 7 overlapping cells, and the mean brightness of
every cell, reduced to leading principal components. They are learnt from the images alone, so that cross-fitting is not
needed for them, and a network on top of them learns from fewer noisy outcomes than one on pixels.
"""

import dataclasses
from typing import Any, Self

import numpy as np

from prudent.cmr._arrays import Matrix
from prudent.errors import DataError

N_DIRECTIONS = 8
N_CELLS = 7
N_FEATURES = 16
# Images per block: the filters need about ten copies of a block.
_BLOCK = 2000


@dataclasses.dataclass(frozen=True, eq=False)
class ImageFeatures:
    """Fitted map from pixels (n, height * width * channels), row by row and channels last, to features (n, k)."""

    shape: tuple[int, int, int]
    mean: np.ndarray
    components: np.ndarray

    @classmethod
    def fit(cls, pixels: Matrix, shape: Any, *, n_features: int = N_FEATURES) -> Self:
        """Leading principal components of the descriptors of ``pixels``: ``n_features``, or fewer if they are simple.

        The components are turned so that all have the same variance. Estimators standardise columns, and would
        else blow up the last components, which are noise, to the size of the first.
        """
        from scipy.linalg import hadamard

        shape = check_shape(shape, pixels.shape[1])
        _check_width(pixels, shape)
        described = _describe(pixels, shape)
        mean = described.mean(axis=0)
        centred = described - mean
        values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
        values, vectors = values[::-1], vectors[:, ::-1]
        rank = int(np.sum(values > 1e-10 * max(float(np.mean(described**2)), 1e-300)))
        if rank == 0:
            raise DataError(f"All {len(pixels)} images are equal: they say nothing about the context. Leave them out.")
        # Entries of a Hadamard matrix are +-1: every column gets the mean of the variances. Its size is a power of 2.
        size = 2 ** int(np.log2(min(rank, n_features)))
        # A fixed sign for every component, so that two machines give the same features.
        vectors = vectors[:, :size] * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(values))][:size])
        return cls(shape, mean, vectors @ hadamard(size) / size**0.5)

    @classmethod
    def of_last(cls, context: Matrix, shape: Any) -> Self:
        """Fit to the images that are the last columns of a context."""
        return cls.fit(context[:, -int(np.prod(check_shape(shape, context.shape[1]))) :], shape)

    @property
    def n_pixels(self) -> int:
        """Columns that an image takes."""
        return int(np.prod(self.shape))

    @property
    def n_features(self) -> int:
        """Columns that it becomes."""
        return self.components.shape[1]

    def replace_last(self, matrix: Matrix) -> Matrix:
        """``matrix`` with the pixels that are its last columns replaced by their features."""
        cut = matrix.shape[1] - self.n_pixels
        return np.hstack([matrix[:, :cut], self(matrix[:, cut:])])

    def __call__(self, pixels: Matrix) -> Matrix:
        """Features of images."""
        _check_width(pixels, self.shape)
        return (_describe(pixels, self.shape) - self.mean) @ self.components


def check_shape(shape: Any, n_columns: int) -> tuple[int, int, int]:
    """``shape`` as (height, width, channels), or an error if it is none or needs more columns than there are."""
    sizes = tuple(int(size) for size in np.atleast_1d(shape))
    sizes = (*sizes, 1) if len(sizes) == 2 else sizes
    if len(sizes) != 3 or min(sizes) < 1 or sizes[0] < 4 or sizes[1] < 4:
        raise DataError(
            f"The shape of images must be (height, width) or (height, width, channels) of at least 4 x 4 pixels, "
            f"got {shape!r}."
        )
    if int(np.prod(sizes)) > n_columns:
        raise DataError(f"Images of shape {sizes} take {int(np.prod(sizes))} columns, got {n_columns}.")
    return sizes


def _check_width(pixels: Matrix, shape: tuple[int, int, int]) -> None:
    n_pixels = int(np.prod(shape))
    if pixels.shape[1] != n_pixels:
        raise DataError(
            f"Images of shape {shape} take {n_pixels} columns, got {pixels.shape[1]}. Give the columns of the pixels "
            "only."
        )


def _describe(pixels: Matrix, shape: tuple[int, int, int]) -> Matrix:
    blocks = [_describe_block(pixels[start : start + _BLOCK], shape) for start in range(0, len(pixels), _BLOCK)]
    return np.concatenate(blocks)


def _describe_block(pixels: Matrix, shape: tuple[int, int, int]) -> Matrix:
    from scipy.ndimage import gaussian_filter

    image = pixels.reshape(-1, *shape).astype(np.float32)
    step = [size / N_CELLS if size >= N_CELLS else 1.0 for size in shape[:2]]
    places = [
        np.unique(((np.arange(N_CELLS) + 0.5) * s).astype(int).clip(0, n - 1))
        for s, n in zip(step, shape, strict=False)
    ]
    around = (0.0, step[0] / 2, step[1] / 2)

    def cells(plane: np.ndarray) -> np.ndarray:
        return gaussian_filter(plane, around)[:, places[0]][:, :, places[1]].reshape(len(plane), -1)

    # A little smoothing first: edges of single pixels are noise.
    smooth = gaussian_filter(image, (0.0, step[0] / 6, step[1] / 6, 0.0))
    down, right = np.gradient(smooth, axis=(1, 2))
    strength = np.hypot(down, right)
    # Direction of an edge, not of its brighter side, in units of a histogram bin.
    direction = np.mod(np.arctan2(down, right), np.pi) * (N_DIRECTIONS / np.pi)
    parts = []
    for number in range(N_DIRECTIONS):
        away = np.abs(direction - number)
        share = np.maximum(0.0, 1.0 - np.minimum(away, N_DIRECTIONS - away))
        # The root evens out strong and faint edges.
        parts.append(np.sqrt(np.maximum(cells((share * strength).sum(axis=-1)), 0.0)))
    parts += [cells(image[..., channel]) for channel in range(shape[2])]
    return np.hstack(parts).astype(float)
