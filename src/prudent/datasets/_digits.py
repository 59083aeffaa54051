"""Images of handwritten digits: MNIST from the IDX files that a user has, or the digits that come with scikit-learn."""

import dataclasses
import functools
import gzip
import os
from pathlib import Path

import numpy as np

from prudent.datasets._files import data_file
from prudent.errors import DataError

SOURCES = ("mnist", "digits")
_MNIST_FILES = {"train": "train", "test": "t10k"}
# Of the 1797 images of scikit-learn, the last 540 (about 30 %) are for testing.
_N_TEST_DIGITS = 540


@dataclasses.dataclass(frozen=True, eq=False)
class DigitImages:
    """Images (n, height, width) of bytes and their labels, in a training and a test part.

    ``brightest`` is the byte of a white pixel; pixels are given to models divided by it.
    """

    source: str
    shape: tuple[int, int]
    brightest: int
    images: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]

    def pixels(self, part: str, rows: np.ndarray) -> np.ndarray:
        """Pixels in [0, 1], (rows, height * width)."""
        return self.images[part][rows].reshape(len(rows), -1) / self.brightest

    def draw(self, part: str, digits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A random image of every digit; images of a digit are used again only when all have been used."""
        rows = np.empty(len(digits), dtype=int)
        for digit in np.unique(digits):
            wanted = np.flatnonzero(digits == digit)
            stock = np.flatnonzero(self.labels[part] == digit)
            rounds = -(-len(wanted) // len(stock))
            rows[wanted] = np.concatenate([rng.permutation(stock) for _ in range(rounds)])[: len(wanted)]
        return self.pixels(part, rows)

    def read(self, pixels: np.ndarray) -> np.ndarray:
        """Labels of images that stand in this collection (there is no recognition here)."""
        table = self._table
        codes = np.rint(np.asarray(pixels) * self.brightest).astype(np.uint8)
        try:
            return np.array([table[row.tobytes()] for row in codes], dtype=float)
        except KeyError:
            raise DataError(
                f"An image is not one of the {self.source} images, so its digit is unknown. Take contexts from the "
                "design: data.context or data.contexts(...)."
            ) from None

    @functools.cached_property
    def _table(self) -> dict[bytes, int]:
        return {
            image.tobytes(): int(label)
            for part in ("train", "test")
            for image, label in zip(self.images[part], self.labels[part], strict=True)
        }


def digit_images(source: str = "auto") -> DigitImages:
    """The collection ``source``: "mnist", "digits", or "auto" for MNIST where PRUDENT_DATA has it, else digits."""
    if source == "auto":
        folder = os.environ.get("PRUDENT_DATA", "")
        return _load("mnist" if folder and _mnist_path(Path(folder), "train", "images") else "digits", folder)
    if source not in SOURCES:
        raise ValueError(f"images must be 'auto' or one of {SOURCES}, got {source!r}.")
    return _load(source, os.environ.get("PRUDENT_DATA", ""))


@functools.cache
def _load(source: str, folder: str) -> DigitImages:
    # The folder is part of the key: another PRUDENT_DATA means other files.
    if source == "digits":
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        images = np.asarray(pixels).reshape(-1, 8, 8).astype(np.uint8)
        labels = np.asarray(labels)
        cut = len(images) - _N_TEST_DIGITS
        return DigitImages(
            "digits",
            (8, 8),
            16,
            {"train": images[:cut], "test": images[cut:]},
            {"train": labels[:cut], "test": labels[cut:]},
        )
    parts = {
        kind: {part: _read_idx(_find_mnist(part, kind), ndim) for part in _MNIST_FILES}
        for kind, ndim in (("images", 3), ("labels", 1))
    }
    for part in _MNIST_FILES:
        if len(parts["images"][part]) != len(parts["labels"][part]):
            raise DataError(f"MNIST has different numbers of {part} images and labels. Fetch its files again.")
    return DigitImages("mnist", (28, 28), 255, parts["images"], parts["labels"])


def _mnist_path(folder: Path, part: str, kind: str) -> Path | None:
    name = f"{_MNIST_FILES[part]}-{kind}-idx{3 if kind == 'images' else 1}-ubyte"
    return next((path for end in (".gz", "") if (path := folder / "mnist" / (name + end)).is_file()), None)


def _find_mnist(part: str, kind: str) -> Path:
    found = _mnist_path(Path(os.environ.get("PRUDENT_DATA", "") or "."), part, kind)
    name = f"{_MNIST_FILES[part]}-{kind}-idx{3 if kind == 'images' else 1}-ubyte.gz"
    return found or data_file(
        "mnist", name, what="MNIST", cure="Put its four IDX files there, or use images='digits', which needs no files."
    )


def _read_idx(path: Path, ndim: int) -> np.ndarray:
    """An array of bytes from an IDX file: magic number, sizes (big-endian), data."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError) as cause:
        raise DataError(f"{path} cannot be read ({cause}). Fetch it again.") from None
    shape = tuple(int(size) for size in np.frombuffer(content[4 : 4 + 4 * ndim], dtype=">i4"))
    if content[:4] != bytes([0, 0, 8, ndim]) or len(content) != 4 + 4 * ndim + int(np.prod(shape)):
        raise DataError(f"{path} is not an IDX file of bytes with {ndim} axes, or is truncated. Fetch it again.")
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * ndim).reshape(shape)
