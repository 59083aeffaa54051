"""Reading tables from files and showing tables on the terminal."""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from prudent._roles import Role

READERS = {".csv": "read_csv", ".parquet": "read_parquet", ".tsv": "read_table"}


def read_table(path: Path, *, min_columns: int = 2) -> "pd.DataFrame":
    """A CSV, TSV or Parquet file as a frame; its index gives the rows the names that messages call them by."""
    import pandas as pd

    if not path.is_file():
        raise DataError(f"{path} is not a file. Give a CSV, TSV or Parquet file.")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path} must end in one of {sorted(READERS)}, got {path.suffix!r}.")
    try:
        frame = getattr(pd, reader)(path)
    except Exception as cause:  # Readers raise many kinds; all of them mean that this is not such a file.
        first_line = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise DataError(
            f"{path} cannot be read as {path.suffix[1:].upper()} ({first_line}). Is it that format?"
        ) from None
    is_text = path.suffix.lower() != ".parquet"
    if frame.empty or frame.shape[1] < min_columns:
        cure = "Is it comma separated?"
        if is_text and any(";" in str(name) for name in frame.columns):
            cure = "It looks separated by semicolons: write commas, and decimals with a point."
        raise DataError(f"{path} has {frame.shape[0]} rows and {frame.shape[1]} columns; a table needs more. {cure}")
    if is_text:
        # Pandas would rename the second of two columns, and whoever names it would get the first.
        header = getattr(pd, reader)(path, header=None, nrows=1, dtype=str).iloc[0].dropna().tolist()
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise DataError(f"{path} has more than one column {twice[0]!r}. Rename all but one.")
    # Without blank lines and line breaks in quotes, data begin in line 2.
    has_plain_lines = is_text and len(path.read_bytes().splitlines()) == len(frame) + 1
    frame.index = pd.RangeIndex(2, len(frame) + 2) if has_plain_lines else pd.RangeIndex(1, len(frame) + 1)
    frame.index.name = "line" if has_plain_lines else "data row"
    return frame


def split_names(text: str | None) -> list[str]:
    """``"a,b"`` as a list of names."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def parse_values(text: str | None, option: str, role: "Role | None") -> dict[str, Any]:
    """``"time=5,customer=3"``, given as ``option``, as a dict of columns of a role; numbers where they look like it."""
    values: dict[str, Any] = {}
    for part in split_names(text):
        name, separator, value = (piece.strip() for piece in part.partition("="))
        if not separator:
            raise DataError(f"Expected name=value, got {part!r}. Example: time=5,customer=3")
        if role is not None and name not in role.names:
            raise DataError(f"{option} must name the {role.title.lower()} {role.names}, got {name!r}.")
        if name in values:
            raise DataError(f"{option} names {name!r} twice: {text!r}. Give it one value.")
        try:
            values[name] = float(value)
        except ValueError:
            values[name] = value
    return values


def parse_list(text: str | None, what: str = "action") -> list[Any]:
    """``"10,12.5"`` or ``"red,blue"`` as a list; ``what`` is the option's name in the message."""
    values: list[Any] = []
    for part in split_names(text):
        try:
            values.append(float(part))
        except ValueError:
            values.append(part)
    if not values:
        raise DataError(f"Give {what}s, as --grid name=low:high:count or --{what} 10,12.5.")
    return values


def parse_grid(text: str, role: "Role") -> "np.ndarray":
    """``"price=10:25:50"`` as 50 values of the role's only column."""
    import numpy as np

    name, _, numbers = text.partition("=")
    if name not in role.names:
        raise DataError(f"--grid must name the {role.title.lower()} {role.names}, got {name!r}.")
    try:
        low, high, count = numbers.split(":")
        return np.linspace(float(low), float(high), int(count))
    except ValueError:
        raise DataError(f"--grid must be name=low:high:count, got {text!r}. Example: price=10:25:50") from None


def pair_rows(inputs: Any, *values: "np.ndarray") -> list[list[Any]]:
    """Rows (input, value, ...) of plain numbers; a single input serves for all values."""
    import numpy as np

    def plain(v: Any) -> Any:
        return v.tolist() if isinstance(v, np.ndarray) else v.item() if isinstance(v, np.generic) else v

    inputs = list(inputs) * (len(values[0]) if len(inputs) == 1 else 1)
    return [[plain(v) for v in row] for row in zip(inputs, *values, strict=True)]


def warn_outside(role: "Role", observed: "np.ndarray", inputs: Any) -> None:
    """A note on standard error where inputs lie outside the ``observed`` (2, columns) range."""
    text = role.outside(observed, role.encode(inputs))
    if text is not None:
        sys.stderr.write(f"prudent: warning: {text}\n")


def finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they become null."""
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, dict):
        return {name: finite(v) for name, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool) -> None:
    """A Rich table, or one JSON object per row."""
    rows = [list(row) for row in rows]
    if as_json:
        named = [dict(zip(header, finite(row), strict=True)) for row in rows]
        print(json.dumps(named, indent=1, default=str))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Plain text throughout: Rich would read E[...] as markup.
    table = Table(title=Text(title), title_justify="left")
    for name in header:
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*(Text(f"{v:.5g}" if isinstance(v, float) else str(v)) for v in row))
    Console().print(table)
