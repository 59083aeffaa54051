"""Files that a user has: the folder that ``PRUDENT_DATA`` names."""

import os
from pathlib import Path

from prudent.errors import DataError


def data_file(*parts: str, what: str, cure: str) -> Path:
    """The file ``PRUDENT_DATA/parts``, or an error that says what it is and where to get it."""
    folder = os.environ.get("PRUDENT_DATA", "")
    if not folder:
        raise DataError(f"{what} is read from the folder that PRUDENT_DATA names, and PRUDENT_DATA is not set. {cure}")
    path = Path(folder, *parts)
    if not path.is_file():
        raise DataError(f"{what} is read from {path}, and there is no such file. {cure}")
    return path
