"""Errors of exact checking."""

from prudent.errors import PrudentError


class CheckError(PrudentError, RuntimeError):
    """A probability could not be computed. It is raised where a guess would otherwise be returned."""
