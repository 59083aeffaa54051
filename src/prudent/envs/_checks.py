"""Checks that all environments share."""

from typing import Any

import numpy as np

from prudent.errors import DataError


def check_count(name: str, value: Any, least: int) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def check_started(has_started: bool) -> None:
    """Refuse a step before the first reset, which draws the noise."""
    if not has_started:
        raise DataError("an environment must be reset before its first step, and was not. Call reset(seed=...) first.")
