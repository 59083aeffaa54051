"""Errors of exact checking."""


class CheckError(RuntimeError):
    """A probability could not be computed. It is raised where a guess would otherwise be returned."""
