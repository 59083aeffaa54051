"""Sprites: a picture as treatment, another as proxy (after the dSprites design of Xu, Kanagawa and Gretton, 2021).

A heart has one of 6 scales, 40 orientations and 32 x 32 positions. The treatment A is its 64 x 64 picture with noise
N(0, 0.1) on every pixel; the treatment proxy V has the scale, orientation and horizontal position; the outcome proxy W
is a picture of the heart at the same height, with fixed scale, orientation and horizontal position, again with noise.
Only the height is hidden:

    Y = f(A) (height - 15.5)^2 / 85.25 + N(0, 0.5),  f(A) = ((sum_ij |32 - j| / 32 A_ij)^2 - 3000) / 500

(i counts rows, j columns; height in 0..31, so that the factor has mean 1.) This is the second version of the design;
errors are not comparable with published ones, since the hearts are drawn here. ``source="official"`` uses the
pictures of the dSprites file where the user has it.
"""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from prudent.datasets._design import generator
from prudent.datasets._proximal import ProximalDesign
from prudent.errors import DataError

SIZE = 64
N_SCALES, N_ORIENTATIONS, N_POSITIONS = 6, 40, 32
OFFICIAL_NAME = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
HEART = 2  # number of the shape in the official file
# Side of the square inside the largest heart, in pixels: the heart's area is side^2 (1 + pi / 4), 380 pixels.
SIDE = 14.6
PIXEL_NOISE, OUTCOME_NOISE = 0.1, 0.5
BLOCK = 256


def draw_hearts(scale: Any, orientation: Any, x: Any, y: Any, *, size: int = SIZE) -> np.ndarray:
    """Pictures (n, size, size) in [0, 1] of hearts with smooth edges.

    Parameters
    ----------
    scale : (n,) in (0, 1]
        Length relative to the largest heart.
    orientation : (n,)
        Angle in radians, anti-clockwise.
    x, y : (n,) in [0, 1]
        Place of the centre, from a quarter to three quarters of the picture; y = 0 is the top.
    """
    scale, angle, x, y = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(v, dtype=np.float32)) for v in (scale, orientation, x, y))
    )
    pixel = np.arange(size, dtype=np.float32) + np.float32(0.5)
    pictures = np.empty((len(scale), size, size), dtype=np.float32)
    for start in range(0, len(scale), BLOCK):
        rows = slice(start, start + BLOCK)
        side = (SIDE * size / SIZE * scale[rows])[:, None, None]
        dx = pixel[None, None, :] - (size / 4 + size / 2 * x[rows])[:, None, None]
        dy = (size / 4 + size / 2 * y[rows])[:, None, None] - pixel[None, :, None]
        # The frame of the square, which stands on a corner: hence the 45 degrees.
        turn = angle[rows, None, None] + np.float32(np.pi / 4)
        cos, sin = np.cos(turn), np.sin(turn)
        u, v = cos * dx + sin * dy, cos * dy - sin * dx
        half = side / 2
        square = np.maximum(np.abs(u), np.abs(v)) - half
        # The lobes are discs on the two upper sides.
        right = np.hypot(u - half, v) - half
        left = np.hypot(u, v - half) - half
        distance = np.minimum(square, np.minimum(right, left))
        # Coverage of a pixel by a straight edge at this distance from its centre.
        pictures[rows] = np.clip(np.float32(0.5) - distance, 0, 1)
    return pictures


def make_sprites(n: int, *, seed: int = 0, source: str = "rendered") -> ProximalDesign:
    """Draw ``n`` rows of the sprites design; see the module's text.

    Parameters
    ----------
    source : {"rendered", "official"}
        Who drew the hearts: this module, or the dSprites file in the folder that PRUDENT_DATA names.
    """
    pictures = _source(source)
    rng = generator(seed, n=n)
    x, y = rng.integers(0, N_POSITIONS, n), rng.integers(0, N_POSITIONS, n)
    scale, orientation = rng.integers(0, N_SCALES, n), rng.integers(0, N_ORIENTATIONS, n)
    treatment = _noisy(pictures(scale, orientation, x, y), rng)
    heights = pictures(*(np.full(N_POSITIONS, k) for k in (3, 0, 16)), np.arange(N_POSITIONS))
    proxy = _noisy(heights[y], rng)
    outcome = _structural(treatment) * (y - 15.5) ** 2 / 85.25 + OUTCOME_NOISE * rng.standard_normal(n)
    return ProximalDesign(
        outcome=outcome[:, None],
        treatment=treatment,
        outcome_proxy=proxy,
        treatment_proxy=_latents(scale, orientation, x),
        names={
            "outcome": ["y"],
            "treatment": [f"pixel_{k}" for k in range(SIZE**2)],
            "outcome_proxy": [f"view_{k}" for k in range(SIZE**2)],
            "treatment_proxy": ["scale", "orientation", "x"],
        },
        function=_structural,
    )


def sprites_grid(source: str = "rendered") -> tuple[np.ndarray, np.ndarray]:
    """The test set: 588 noise-free pictures (588, 4096) on a 7 x 7 x 3 x 4 sub-lattice, and their true effect."""
    positions = np.arange(0, N_POSITIONS, 5)
    mesh = np.meshgrid(positions, positions, [0, 3, 5], [0, 10, 20, 30], indexing="ij")
    x, y, scale, orientation = (axis.ravel() for axis in mesh)
    pictures = _source(source)(scale, orientation, x, y).reshape(len(x), -1).astype(float)
    return pictures, _structural(pictures)


def sprites_error(model: Any, *, source: str = "rendered") -> float:
    """Mean squared error of ``model.effect`` on the 588 test pictures."""
    pictures, truth = sprites_grid(source)
    return float(np.mean((np.asarray(model.effect(pictures)).reshape(-1) - truth) ** 2))


def _structural(pictures: np.ndarray) -> np.ndarray:
    weight = np.abs(SIZE / 2 - np.arange(SIZE)) / (SIZE / 2)
    return ((pictures.reshape(-1, SIZE, SIZE).sum(axis=1) @ weight) ** 2 - 3000) / 500


def _noisy(pictures: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return pictures.reshape(len(pictures), -1) + PIXEL_NOISE * rng.standard_normal((len(pictures), SIZE**2))


def _latents(scale: np.ndarray, orientation: np.ndarray, x: np.ndarray) -> np.ndarray:
    values = (
        np.linspace(0.5, 1, N_SCALES)[scale],
        np.linspace(0, 2 * np.pi, N_ORIENTATIONS)[orientation],
        np.linspace(0, 1, N_POSITIONS)[x],
    )
    return np.column_stack(values)


def _source(source: str) -> Any:
    if source == "rendered":
        return _rendered
    if source == "official":
        hearts = _official(os.environ.get("PRUDENT_DATA", ""))
        return lambda scale, orientation, x, y: hearts[scale, orientation, x, y]
    raise ValueError(f"source must be 'rendered' or 'official', got {source!r}.")


def _rendered(scale: np.ndarray, orientation: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    latents = _latents(scale, orientation, x)
    return draw_hearts(latents[:, 0], latents[:, 1], latents[:, 2], np.linspace(0, 1, N_POSITIONS)[y])


@functools.lru_cache(maxsize=1)
def _official(folder: str) -> np.ndarray:
    """The hearts of the official file: (scale, orientation, x, y, 64, 64)."""
    path = Path(folder) / OFFICIAL_NAME
    if not folder or not path.is_file():
        raise DataError(
            f"The official pictures need {OFFICIAL_NAME} in the folder that PRUDENT_DATA names, got "
            f"{folder or 'none'}. "
            "Download it from github.com/google-deepmind/dsprites-dataset, or use source='rendered'."
        )
    with np.load(path) as archive:
        pictures = archive["imgs"]
    lattice = (N_SCALES, N_ORIENTATIONS, N_POSITIONS, N_POSITIONS, SIZE, SIZE)
    if pictures.shape != (3 * np.prod(lattice[:4]), SIZE, SIZE):
        raise DataError(f"{path} must hold 737280 pictures of 64 x 64, got shape {pictures.shape}. Download it again.")
    return pictures.reshape(3, *lattice)[HEART].copy()  # A view would keep all three shapes in memory.
