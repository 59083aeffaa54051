"""Checks of settings that several packages share."""

from typing import Any

import numpy as np

from prudent.errors import DataError


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataError(f"{name} must be a whole number of at least {least}, got {value!r}.")
