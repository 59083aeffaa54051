"""Wide roles (pictures) as their leading principal components."""

import dataclasses
from typing import Any

import numpy as np

from prudent.cmr._arrays import Matrix

# Roles with more columns than this are pictures: they are compressed.
WIDE = 128


@dataclasses.dataclass(frozen=True)
class Compression:
    """Columns centred and projected on the span of the principal directions, all from the training rows.

    The span has a basis in which all coordinates vary equally: estimators scale columns one by one, and the
    principal components, scaled so, would give noise the weight of what varies most. ``kept`` is the share of the
    variance in the span.
    """

    mean: np.ndarray
    directions: np.ndarray
    kept: float

    @classmethod
    def of(cls, matrix: Matrix, n_components: int, seed: int) -> "Compression":
        """Span of the leading components: ``n_components``, or the largest power of two that rows and columns allow."""
        from scipy.linalg import hadamard
        from sklearn.decomposition import PCA
        from threadpoolctl import threadpool_limits

        n_components = 2 ** int(np.log2(min(n_components, *matrix.shape)))
        with threadpool_limits(1):
            fitted: Any = PCA(n_components, svd_solver="randomized", random_state=seed).fit(matrix)
        # Entries of one size: every coordinate has an equal part of every component.
        turn = hadamard(n_components) / np.sqrt(n_components)
        return cls(fitted.mean_, fitted.components_.T @ turn, float(fitted.explained_variance_ratio_.sum()))

    def __call__(self, matrix: Matrix) -> Matrix:
        return (matrix - self.mean) @ self.directions
