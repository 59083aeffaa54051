"""Wide roles (pictures) as their leading principal components."""

import dataclasses
from typing import Any

import numpy as np

from prudent.cmr._arrays import Matrix

# Roles with more columns than this are pictures: they are compressed.
WIDE = 128


@dataclasses.dataclass(frozen=True)
class Compression:
    """Columns centred and projected on principal directions; the mean and the directions come from the training rows.

    ``kept`` is the share of the variance that the components carry.
    """

    mean: np.ndarray
    directions: np.ndarray
    kept: float

    @classmethod
    def of(cls, matrix: Matrix, n_components: int, seed: int) -> "Compression":
        """The leading components, at most as many as there are rows or columns."""
        from sklearn.decomposition import PCA
        from threadpoolctl import threadpool_limits

        n_components = min(n_components, *matrix.shape)
        with threadpool_limits(1):
            fitted: Any = PCA(n_components, svd_solver="randomized", random_state=seed).fit(matrix)
        return cls(fitted.mean_, fitted.components_.T, float(fitted.explained_variance_ratio_.sum()))

    def __call__(self, matrix: Matrix) -> Matrix:
        return (matrix - self.mean) @ self.directions
