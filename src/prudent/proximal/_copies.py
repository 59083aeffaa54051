"""A variable in two roles."""

import numpy as np

from prudent.errors import DataError


def check_copies(blocks: dict[str, list[np.ndarray]]) -> None:
    """Raise where a column equals one of another role: such a proxy cannot do its work.

    ``blocks`` has the columns by role, a category as a block of indicators. Constant columns (a picture's border) say
    nothing.
    """
    seen: dict[int, str] = {}
    for role, columns in blocks.items():
        for number, block in enumerate(columns):
            if np.all(block == block[0]):
                continue
            key = hash(np.ascontiguousarray(block, dtype=float).tobytes())
            if seen.setdefault(key, role) != role:
                this, other = (name.replace("_", " ") for name in (role, seen[key]))
                raise DataError(
                    f"{this.capitalize()} column {number} equals a column of the {other}: a variable cannot stand in "
                    "two roles. Drop one of them."
                )
