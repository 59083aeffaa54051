"""Checks that all environments share."""

from prudent.errors import DataError


def check_started(has_started: bool) -> None:
    """Refuse a step before the first reset, which draws the noise."""
    if not has_started:
        raise DataError("an environment must be reset before its first step, and was not. Call reset(seed=...) first.")
