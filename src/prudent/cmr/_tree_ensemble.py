"""Decision trees as plain arrays: what a saved model holds, and what predicts."""

import dataclasses
from typing import Any

import numpy as np

from prudent.cmr._arrays import Matrix


@dataclasses.dataclass(frozen=True)
class TreeEnsemble:
    """A sum of trees with leaves that are constant or linear in some columns.

    ``left`` and ``right`` are node numbers in the whole ensemble, -1 in leaves; ``value (nodes, 1 + slopes, outcomes)``
    holds the constants and then the slopes in the columns ``slope_columns``, centred and scaled as given.
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    roots: np.ndarray
    value: np.ndarray

    @classmethod
    def empty(cls, n_terms: int, n_outcomes: int) -> "TreeEnsemble":
        """The sum of no trees."""
        integers = np.empty(0, dtype=np.int64)
        return cls(integers, np.empty(0), integers, integers, integers, np.empty((0, n_terms, n_outcomes)))

    @classmethod
    def of(cls, trees: list[Any], values: list[np.ndarray]) -> "TreeEnsemble":
        """From fitted scikit-learn trees (``tree_``) and the values of their nodes."""
        counts = [tree.node_count for tree in trees]
        roots = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(tree, name) for tree in trees])

        def shifted(name: str) -> np.ndarray:
            return np.concatenate(
                [
                    np.where(getattr(tree, name) >= 0, getattr(tree, name) + root, -1)
                    for tree, root in zip(trees, roots, strict=True)
                ]
            ).astype(np.int64)

        return cls(
            joined("feature").astype(np.int64),
            joined("threshold"),
            shifted("children_left"),
            shifted("children_right"),
            roots,
            np.concatenate(values),
        )

    def predict(self, x: Matrix, slopes: np.ndarray) -> np.ndarray:
        """The sum over trees, (n, outcomes); ``slopes (n, terms)`` multiplies the leaf's values (ones first)."""
        total = np.zeros((len(x), self.value.shape[2]))
        if len(self.roots) == 0:
            return total
        from prudent.cmr._tree_walk import find_leaves

        rounded = np.ascontiguousarray(x, dtype=np.float32)
        for part in np.array_split(np.arange(len(x)), -(-len(x) // 4096)):
            at = find_leaves(rounded[part], self.feature, self.threshold, self.left, self.right, self.roots)
            for tree in range(at.shape[1]):
                total[part] += np.einsum("nt,nto->no", slopes[part], self.value[at[:, tree]])
        return total

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays."""
        return {f"trees.{field.name}": getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "TreeEnsemble":
        """From what :meth:`to_arrays` gave; raises where a tree could send a row astray."""
        ensemble = cls(**{field.name: arrays[f"trees.{field.name}"] for field in dataclasses.fields(cls)})
        n = len(ensemble.feature)
        inner = np.flatnonzero(ensemble.left >= 0)
        # Children come after their parents, so that no walk can go on for ever or leave the arrays.
        for side in (ensemble.left[inner], ensemble.right[inner]):
            if np.any(side <= inner) or np.any(side >= n):
                raise ValueError("the nodes of a tree are out of order")
        if np.any(ensemble.roots >= n) or np.any(ensemble.roots < 0) or len(ensemble.value) != n:
            raise ValueError("a tree has a root or a value that is not among its nodes")
        if len(inner) and ensemble.feature[inner].min() < 0:
            raise ValueError("a tree asks for a column that does not exist")
        return ensemble
