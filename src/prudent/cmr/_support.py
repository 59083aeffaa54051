"""Where there are data: whether rows are near rows that were seen."""

import dataclasses
from typing import Any

import numpy as np

from prudent.cmr._arrays import Matrix, Scaler
from prudent.cmr._pairs import evenly

# A row is without data if it is farther from all others than all but this share of them is from the next one.
FAR = 0.01
MAX_ASKED = 1000


@dataclasses.dataclass(frozen=True)
class Support:
    """A tree of rows in standard units, and how far nearly all of them are from the next one."""

    scaler: Scaler
    tree: Any
    reach: float

    @classmethod
    def of(cls, rows: Matrix) -> "Support":
        """From some rows."""
        from scipy.spatial import KDTree

        scaler = Scaler.of(rows)
        tree = KDTree((rows - scaler.mean) / scaler.scale)
        return cls(scaler, tree, float(np.quantile(tree.query(tree.data, k=2)[0][:, 1], 1 - FAR)))

    def share_outside(self, rows: Matrix) -> float:
        """Share of ``rows`` (of an even choice of them) that are near no row of this."""
        asked = (evenly(rows, MAX_ASKED) - self.scaler.mean) / self.scaler.scale
        return float(np.mean(self.tree.query(asked)[0] > self.reach))
