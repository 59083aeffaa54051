"""Products of Gaussian kernels over blocks of columns, as finite features (Nystroem), and ridge regression on them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from prudent.cmr._arrays import Matrix, Scaler
from prudent.cmr._pairs import beside, pair_products
from prudent.cmr._problem import Problem

# Blocks wider than this are taken as images or their components: one scale for all columns, and no linear part.
MAX_TABULAR = 50
# Rows from whose distances a bandwidth is taken.
N_MEDIAN_ROWS = 1000
# Directions of the landmarks' kernel matrix below this share of the largest are rounding errors.
RANK_TOLERANCE = 1e-10


def x_blocks(problem: Problem) -> tuple[list[int], ...]:
    """Columns of x by kernel factor: those known given c, and the modelled ones."""
    return tuple(block for block in (problem.known, problem.modelled) if block)


def c_blocks(problem: Problem) -> tuple[list[int], ...]:
    """Columns of c by kernel factor: those that are in x, and the instruments."""
    return tuple(block for block in (problem.known_in_c, problem.instruments) if block)


def block_scaler(array: Matrix, blocks: Sequence[Sequence[int]]) -> Scaler:
    """Mean and standard deviation of the columns, but one scale for all columns of a wide block.

    A scale per pixel would blow up the noise of pixels that are almost always blank.
    """
    scaler = Scaler.of(array)
    for block in blocks:
        if len(block) > MAX_TABULAR:
            columns = list(block)
            scaler.scale[columns] = np.sqrt(np.mean(array[:, columns].var(axis=0))) or 1.0
    return scaler


@dataclasses.dataclass(frozen=True)
class ProductKernel:
    """k(u, v) = prod over blocks b of exp(-|u_b - v_b|^2 / (2 bandwidth_b^2)), in standard units of the columns."""

    blocks: tuple[tuple[int, ...], ...]
    mean: np.ndarray
    scale: np.ndarray
    bandwidth: np.ndarray

    @classmethod
    def median(
        cls, array: Matrix, blocks: Sequence[Sequence[int]], rng: np.random.Generator, factor: float = 1.0
    ) -> "ProductKernel":
        """Bandwidth of every block: ``factor`` times the median distance between rows."""
        scaler = block_scaler(array, blocks)
        parts = tuple(tuple(int(j) for j in block) for block in blocks if len(block))
        kernel = cls(parts, scaler.mean, scaler.scale, np.ones(len(parts)))
        rows = rng.choice(len(array), size=min(N_MEDIAN_ROWS, len(array)), replace=False)
        medians = [median_distance(kernel._block(array[rows], b)) for b in range(len(parts))]
        return dataclasses.replace(kernel, bandwidth=factor * np.array(medians))

    def scaled(self, factor: float) -> "ProductKernel":
        """The same kernel with wider (or narrower) bandwidths."""
        return dataclasses.replace(self, bandwidth=factor * self.bandwidth)

    def factor(self, b: int, u: Matrix, v: Matrix) -> np.ndarray:
        """The factor of block ``b`` between the rows of ``u`` and ``v`` (arrays with all columns)."""
        first, second = self._block(u, b) / self.bandwidth[b], self._block(v, b) / self.bandwidth[b]
        return gaussian(first, second)

    def __call__(self, u: Matrix, v: Matrix) -> np.ndarray:
        result = np.ones((len(u), len(v)))
        for b in range(len(self.blocks)):
            result *= self.factor(b, u, v)
        return result

    def whitened(self, array: Matrix) -> np.ndarray:
        """Columns divided by scale and bandwidth: the kernel is exp(-|u - v|^2 / 2) there."""
        width = np.ones(array.shape[1])
        for block, bandwidth in zip(self.blocks, self.bandwidth, strict=True):
            width[list(block)] = bandwidth
        return (array - self.mean) / (self.scale * width)

    def standard(self, array: Matrix) -> np.ndarray:
        """Columns in standard units."""
        return (array - self.mean) / self.scale

    def _block(self, array: Matrix, b: int) -> np.ndarray:
        columns = list(self.blocks[b])
        return (array[:, columns] - self.mean[columns]) / self.scale[columns]


def gaussian(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """exp(-|u_i - v_j|^2 / 2)."""
    return np.exp(-0.5 * squared_distances(u, v))


def squared_distances(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """|u_i - v_j|^2, never negative."""
    return np.maximum(np.sum(u**2, axis=1)[:, None] + np.sum(v**2, axis=1) - 2 * u @ v.T, 0.0)


def median_distance(u: np.ndarray) -> float:
    """Median distance between different rows; one where most rows coincide."""
    d = np.sqrt(squared_distances(u, u)[np.triu_indices(len(u), 1)])
    # Rounding leaves equal rows at a distance of about 1e-7.
    return float(np.median(d)) if d.size and np.median(d) > 1e-6 else 1.0


@dataclasses.dataclass(frozen=True)
class KernelBasis:
    """Features whose inner products are the kernel, exactly on the span of the landmarks, plus a linear kernel.

    The linear part (a constant and the standardised columns of narrow blocks) lets the function go on as a straight
    line where there are few rows; Gaussian kernels alone fall back to zero there.
    """

    kernel: ProductKernel
    landmarks: Matrix
    whitening: np.ndarray
    linear: tuple[int, ...]

    @classmethod
    def of(cls, kernel: ProductKernel, array: Matrix, n_landmarks: int, rng: np.random.Generator) -> "KernelBasis":
        """Landmarks are rows of ``array`` drawn without replacement (all of them, if there are not more)."""
        rows = np.sort(rng.choice(len(array), size=min(n_landmarks, len(array)), replace=False))
        landmarks = array[rows]
        value, vector = np.linalg.eigh(kernel(landmarks, landmarks))
        keep = value > RANK_TOLERANCE * value[-1]
        linear = tuple(j for block in kernel.blocks if len(block) <= MAX_TABULAR for j in block)
        return cls(kernel, landmarks, vector[:, keep] / np.sqrt(value[keep]), linear)

    def __call__(self, array: Matrix) -> np.ndarray:
        """Features (n, p)."""
        return self.lift(self.kernel(array, self.landmarks), self.linear_part(array))

    def pairs(self, first: Matrix, others: Matrix, coefficient: np.ndarray) -> np.ndarray:
        """Features at every row of ``first`` beside every row of ``others``, times ``coefficient`` (p, targets).

        Gaussian kernels are products over columns, and the linear part is a sum: (first, others, targets).
        """
        width, landmarks = first.shape[1], self.kernel.whitened(self.landmarks)
        left, right = beside(first, others[:1]), beside(first[:1], others)
        near_left = gaussian(self.kernel.whitened(left)[:, :width], landmarks[:, :width])
        near_right = gaussian(self.kernel.whitened(right)[:, width:], landmarks[:, width:])
        n_curved = self.whitening.shape[1]
        curved = pair_products(near_left, near_right, self.whitening @ coefficient[:n_curved])
        line_left, line_right = (self.linear_part(rows) @ coefficient[n_curved:] for rows in (left, right))
        # The first rows of both stand in both parts.
        return curved + line_left[:, None] + line_right - line_left[0]

    def lift(self, at_landmarks: np.ndarray, linear_part: np.ndarray) -> np.ndarray:
        """Features from kernel values at the landmarks and the linear part, or from means of these."""
        return np.hstack([at_landmarks @ self.whitening, linear_part])

    def linear_part(self, array: Matrix) -> np.ndarray:
        """A constant and the standardised narrow columns."""
        return np.hstack([np.ones((len(array), 1)), self.kernel.standard(array)[:, list(self.linear)]])

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays)."""
        record = {"blocks": [list(block) for block in self.kernel.blocks], "linear": list(self.linear)}
        arrays = {
            "kernel.mean": self.kernel.mean,
            "kernel.scale": self.kernel.scale,
            "kernel.bandwidth": self.kernel.bandwidth,
            "landmarks": self.landmarks,
            "whitening": self.whitening,
        }
        return record, arrays

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "KernelBasis":
        """Rebuild from :meth:`to_state`."""
        kernel = ProductKernel(
            tuple(tuple(block) for block in record["blocks"]),
            arrays["kernel.mean"],
            arrays["kernel.scale"],
            arrays["kernel.bandwidth"],
        )
        return cls(kernel, arrays["landmarks"], arrays["whitening"], tuple(record["linear"]))


def ridge_path(gram: np.ndarray, moment: np.ndarray, penalties: np.ndarray) -> np.ndarray:
    """(gram + penalty I)^-1 moment for every penalty: (penalties, p, targets)."""
    value, vector = np.linalg.eigh(gram)
    rotated = vector.T @ moment
    shrunk = rotated / (np.maximum(value, 0.0)[:, None] + penalties[:, None, None])
    return vector @ shrunk


@dataclasses.dataclass(frozen=True)
class RidgeFit:
    """Coefficients (p, targets), the chosen penalty per row, and its cross-validated squared error per row."""

    coefficient: np.ndarray
    penalty: float
    loss: float


def fit_ridge(features: np.ndarray, target: np.ndarray, folds: Sequence[np.ndarray], penalties: np.ndarray) -> RidgeFit:
    """Ridge regression with the penalty of the smallest cross-validated squared error, summed over targets."""
    n, penalties = len(features), np.asarray(penalties, dtype=float)
    gram, moment = features.T @ features, features.T @ target
    loss = np.zeros(len(penalties))
    for rows in folds:
        part, goal, n_train = features[rows], target[rows], n - len(rows)
        held_gram, held_moment = part.T @ part, part.T @ goal
        path = ridge_path((gram - held_gram) / n_train, (moment - held_moment) / n_train, penalties)
        # |goal - part b|^2 from the held-out products, which are smaller than the rows.
        for number, b in enumerate(path):
            loss[number] += np.sum(goal**2) - 2 * np.sum(b * held_moment) + np.sum(b * (held_gram @ b))
    best = int(np.argmin(loss))
    coefficient = ridge_path(gram / n, moment / n, penalties[best : best + 1])[0]
    return RidgeFit(coefficient, float(penalties[best]), float(loss[best]) / n)


def out_of_fold_ridge(
    features: np.ndarray, target: np.ndarray, folds: Sequence[np.ndarray], penalty: float
) -> np.ndarray:
    """Predictions of every row by the ridge regression (penalty per row) of the other folds."""
    gram, moment = features.T @ features, features.T @ target
    result = np.empty_like(target)
    for rows in folds:
        part, n_train = features[rows], len(features) - len(rows)
        ridge = gram - part.T @ part + n_train * penalty * np.eye(len(gram))
        result[rows] = part @ np.linalg.solve(ridge, moment - part.T @ target[rows])
    return result
