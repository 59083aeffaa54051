"""Exceptions of Prudent. Every message gives the rule, the value that broke it and the cure."""


class PrudentError(Exception):
    """Base class of all errors that Prudent raises on purpose."""


class DataError(PrudentError, ValueError):
    """The data do not fit the question: shapes, missing values, constant columns, too few rows."""


class RoleError(PrudentError, ValueError):
    """A column role is missing, doubled or names an unknown column."""


class NotFittedError(PrudentError, RuntimeError):
    """The object has to be fitted first."""


class ModelFileError(PrudentError, OSError):
    """A saved model cannot be read: absent, damaged, or written by a newer version."""
