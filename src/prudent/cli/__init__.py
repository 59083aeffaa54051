"""The ``prudent`` command. Heavy modules are imported by the commands that need them."""

import sys
import warnings

import typer

from prudent.cli import _bench, _demo, _experts, _imitate, _iv, _ltl, _proximal

app = typer.Typer(
    name="prudent",
    help="Learn decision policies that come with a number you can trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(_iv.app, name="iv")
app.add_typer(_proximal.app, name="proximal")
app.add_typer(_imitate.app, name="imitate")
app.add_typer(_ltl.app, name="ltl")
app.add_typer(_experts.app, name="experts")
app.add_typer(_bench.app, name="bench")
app.command(name="demo")(_demo.demo)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        from prudent import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point: our own errors become one line and exit code 2, never a traceback."""
    from prudent.errors import PrudentError

    warnings.showwarning = _show_warning
    try:
        app()
    except OSError as error:
        sys.stderr.write(f"prudent: {_plain_os_error(error)}\n")
        sys.exit(2)
    except (PrudentError, ValueError, ImportError) as error:  # The last: an optional extra is missing.
        sys.stderr.write(f"prudent: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("prudent: interrupted\n")
        sys.exit(130)


def _show_warning(message: Warning | str, *_: object) -> None:
    sys.stderr.write(f"prudent: warning: {message}\n")


def _plain_os_error(error: OSError) -> str:
    """What is wrong with a file or folder, without the system's number for it."""
    if error.filename is None or error.strerror is None:
        return str(error)
    cures = {
        IsADirectoryError: "is a folder; give a file.",
        FileExistsError: "is a file; give a folder.",
        NotADirectoryError: "lies in something that is not a folder.",
        FileNotFoundError: "does not exist.",
    }
    return f"{error.filename} {cures.get(type(error), f'cannot be used: {error.strerror.lower()}.')}"


__all__ = ["app", "main"]
