"""The walk from root to leaf, compiled."""

import numpy as np
from numba import njit


@njit(cache=True)
def find_leaves(x, feature, threshold, left, right, roots):
    """Leaf of every row in every tree."""
    # scikit-learn compares single-precision inputs with double-precision thresholds; x is already rounded.
    found = np.empty((len(x), len(roots)), dtype=np.int64)
    for row in range(len(x)):
        for tree in range(len(roots)):
            node = roots[tree]
            while left[node] >= 0:
                node = left[node] if x[row, feature[node]] <= threshold[node] else right[node]
            found[row, tree] = node
    return found
