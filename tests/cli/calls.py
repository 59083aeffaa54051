"""The command, called in this process: a new one would spend seconds on imports."""

import contextlib
import io
import sys
from unittest import mock

import pytest

from prudent.cli import main


def fail(*arguments: object) -> str:
    """The line of a command that must end with exit code 2."""
    errors = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["prudent", *map(str, arguments)]),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as stop,
    ):
        main()
    assert stop.value.code == 2, errors.getvalue()
    (line,) = errors.getvalue().splitlines()
    assert line.startswith("prudent: ")
    return line
