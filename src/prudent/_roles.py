"""Columns in their roles: from frames or arrays to numbers, and the same way again at prediction time."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from prudent.cmr._arrays import as_groups, as_matrix, as_number, row_label
from prudent.cmr._problem import MIN_ROWS
from prudent.errors import DataError, RoleError

# Words for the roles of data with instruments, and those that must be given.
IV_TITLES = {"outcome": "Outcome", "action": "Action", "instruments": "Instruments", "context": "Context"}
IV_REQUIRED = ("outcome", "action", "instruments")
MAX_LEVELS = 1000
# Text of so few different values may be labels even if they look like numbers.
MAX_LABELS = 10
# How dates begin in files.
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")
# Of more columns than this one usually lies outside the range that was observed.
MAX_RANGES = 10


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a role: its name, and its levels if it is categorical."""

    name: str
    levels: tuple[Any, ...] | None = None

    @property
    def width(self) -> int:
        """Number of numeric columns it becomes."""
        return 1 if self.levels is None else len(self.levels)


@dataclasses.dataclass(frozen=True)
class Role:
    """All columns of a role, and how they are turned into a matrix."""

    title: str
    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        """Columns of the encoded matrix."""
        return sum(column.width for column in self.columns)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    @property
    def encoded_names(self) -> tuple[str, ...]:
        """Names of the columns of the encoded matrix: ``dose``, ``arm=drug``."""
        return tuple(
            column.name if column.levels is None else f"{column.name}={level}"
            for column in self.columns
            for level in column.levels or ("",)
        )

    @property
    def is_categorical(self) -> bool:
        """Whether the role is one categorical column."""
        return len(self.columns) == 1 and self.columns[0].levels is not None

    @property
    def categorical_positions(self) -> set[int]:
        """Columns of the encoded matrix that are indicators of levels."""
        starts = np.cumsum([0, *(column.width for column in self.columns)])
        return {
            int(start) + k
            for start, column in zip(starts, self.columns, strict=False)
            if column.levels is not None
            for k in range(column.width)
        }

    def encode(self, value: Any) -> np.ndarray:
        """Matrix of ``value``: a frame or mapping with these columns, an array, or a scalar."""
        frame = as_frame(value)
        if isinstance(value, Mapping) and frame is None:
            frame = pd.DataFrame({k: np.atleast_1d(v) for k, v in value.items()})
        if frame is not None:
            for name in self.names:
                _check_column(self.title, name, frame)
            return np.hstack([self._encode_column(c, frame[c.name].to_numpy(), frame.index) for c in self.columns])
        if any(column.levels is not None for column in self.columns):
            array = np.asarray(value, dtype=object)
            array = array.reshape(-1, len(self.columns)) if array.ndim < 2 else array
            if array.shape[1] != len(self.columns):
                raise DataError(f"{self.title} must have {len(self.columns)} columns as in fit, got {array.shape[1]}.")
            return np.hstack([self._encode_column(c, array[:, j]) for j, c in enumerate(self.columns)])
        array = np.asarray(value)
        # One row of several columns may be given flat; anything else flat is one column.
        if array.ndim == 0 or (array.ndim == 1 and len(self.columns) > 1):
            array = array.reshape(1, -1)
        return as_matrix(self.title, array, n_columns=self.width)

    def outside(self, observed: np.ndarray, matrix: np.ndarray) -> str | None:
        """A sentence on encoded rows outside the ``observed`` (2, columns) ranges; None if there are none."""
        if self.width > MAX_RANGES:
            return None
        slack = 1e-9 * (observed[1] - observed[0])
        beyond = (matrix < observed[0] - slack) | (matrix > observed[1] + slack)
        if not beyond.any():
            return None
        ranges = [
            f"{name} {low:g} to {high:g}"
            for name, low, high, is_left in zip(self.encoded_names, *observed, beyond.any(axis=0), strict=True)
            if is_left
        ]
        count = int(beyond.any(axis=1).sum())
        return (
            f"{count} of {len(matrix)} {self.title.lower()}s {'lies' if count == 1 else 'lie'} outside the observed "
            f"range ({', '.join(ranges)}); what is said there is extrapolated."
        )

    def _encode_column(self, column: Column, values: np.ndarray, index: pd.Index | None = None) -> np.ndarray:
        if column.levels is None:
            return as_matrix(f"{self.title} column {column.name!r}", values, index=index)
        # By text, too: a command line has no booleans, and reads the level "3" as a number.
        place = {str(level): k for k, level in enumerate(column.levels)}
        place |= {level: k for k, level in enumerate(column.levels)}
        plain = [v.item() if isinstance(v, np.generic) else v for v in values]
        plain = [f"{v:g}" if isinstance(v, int | float) and v not in place else v for v in plain]
        unknown = sorted({str(v) for v in plain if v not in place})
        if unknown:
            raise DataError(
                f"{self.title} column {column.name!r} has levels {_some(column.levels)}, got {unknown[0]!r}. "
                "Use a level that the model has seen."
            )
        return np.eye(len(column.levels))[[place[v] for v in plain]]

    def to_json(self) -> dict[str, Any]:
        """Plain record."""
        return {
            "title": self.title,
            "columns": [[c.name, None if c.levels is None else list(c.levels)] for c in self.columns],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Role":
        """From the record of :meth:`to_json`."""
        columns = (Column(name, None if levels is None else tuple(levels)) for name, levels in record["columns"])
        return cls(record["title"], tuple(columns))


def _some(levels: tuple[Any, ...]) -> str:
    return str(list(levels[:10])) + (f" and {len(levels) - 10} more" if len(levels) > 10 else "")


def as_frame(data: Any) -> pd.DataFrame | None:
    """``data`` as a pandas frame if it is a pandas or polars frame, else None."""
    if isinstance(data, pd.DataFrame):
        return data
    if type(data).__module__.split(".")[0] == "polars":
        data = data.to_frame() if hasattr(data, "to_frame") else data
        return pd.DataFrame({name: _from_polars(data[name]) for name in data.columns})
    return None


def _from_polars(column: Any) -> Any:
    """Values of a polars column; an Enum keeps the order of its levels."""
    if type(column.dtype).__name__ == "Enum":
        return pd.Categorical(column.to_list(), categories=column.dtype.categories.to_list(), ordered=True)
    return column.to_list()


def role_from_frame(title: str, frame: pd.DataFrame, names: Any) -> Role:
    """The role that ``names`` (one name or several) play in a frame."""
    names = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    for name in names:
        if not isinstance(name, str):
            raise RoleError(
                f"{title} must be the name of a column as text, got {name!r}. Rename the columns, such as by "
                "frame.columns = frame.columns.astype(str)."
            )
        _check_column(title, name, frame)
    if len(set(names)) < len(names):
        raise RoleError(f"{title} names a column twice: {names}.")
    return Role(title, tuple(Column(name, _levels(title, pd.Series(frame[name]))) for name in names))


def _check_column(title: str, name: Any, frame: pd.DataFrame) -> None:
    """Raise unless the frame has exactly one column of this name."""
    count = list(frame.columns).count(name)
    if count > 1:
        raise RoleError(f"{title} column {name!r} stands in the data {count} times. Rename all but one.")
    if count == 0:
        known = list(map(str, frame.columns))
        alike = difflib.get_close_matches(str(name), known, n=1)
        cure = f" Do you mean {alike[0]!r}?" if alike else ""
        raise RoleError(f"{title} column {name!r} is not in the data; it has {known}.{cure}")


def role_from_array(title: str, value: Any) -> Role:
    """The role of an array; text or boolean columns become categorical."""
    array = (
        np.asarray(value) if not isinstance(value, Sequence) or isinstance(value, str) else _from_sequence(title, value)
    )
    if array.ndim > 2 or array.ndim == 0:
        raise DataError(f"{title} must have one row per unit (1-D or 2-D), got shape {array.shape}.")
    array = array[:, None] if array.ndim == 1 else array
    name = title.lower().rstrip("s") if array.shape[1] == 1 else title.lower()
    names = [name] if array.shape[1] == 1 else [f"{name}_{j}" for j in range(array.shape[1])]
    if isinstance(value, pd.Series) and isinstance(value.dtype, pd.CategoricalDtype):
        return Role(title, (Column(name, _levels(title, value.rename(name))),))
    return Role(title, tuple(Column(n, _levels(title, pd.Series(array[:, j], name=n))) for j, n in enumerate(names)))


def read_roles(
    data: Any, given: Mapping[str, Any], titles: Mapping[str, str], required: Sequence[str]
) -> tuple[dict[str, Role], dict[str, np.ndarray]]:
    """Roles and encoded matrices of a frame with column names per role (``data``), or of arrays per role (None).

    ``titles`` has the words for a role in messages; roles in ``required`` must be given.
    """
    for name in required:
        if _is_absent(given[name]):
            raise RoleError(f"{name} is missing. Name its column(s), or give an array.")
    given = {name: value for name, value in given.items() if not _is_absent(value)}
    roles: dict[str, Role] = {}
    values: dict[str, Any] = {}
    if data is None:
        for name, value in given.items():
            if isinstance(value, str):
                raise _name_without_frame(name, value)
            frame = as_frame(value)
            values[name] = value if frame is None else frame
            roles[name] = (
                role_from_array(titles[name], value)
                if frame is None
                else role_from_frame(titles[name], frame, list(frame.columns))
            )
    else:
        frame = require_frame(data)
        roles = {name: role_from_frame(titles[name], frame, columns) for name, columns in given.items()}
        values = dict.fromkeys(roles, frame)
        _check_distinct(roles)
    matrices = {name: role.encode(values[name]) for name, role in roles.items()}
    _check_lengths(matrices, titles)
    return roles, matrices


def encode_roles(roles: Mapping[str, Role], data: Any, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Encoded matrices of new rows in the roles of a fit: a frame with its columns (``data``), or an array per role."""
    given = {name: value for name, value in given.items() if not _is_absent(value)}
    if data is None:
        missing = [name for name in roles if name not in given]
        if missing:
            raise RoleError(f"{missing[0]} is missing. Give a frame with the columns of the fit, or an array per role.")
        strange = [name for name in given if name not in roles]
        if strange:
            raise RoleError(f"This model was fitted without {strange[0]}, but one was given. Leave it out.")
        for name, value in given.items():
            if isinstance(value, str):
                raise _name_without_frame(name, value)
    elif given:
        raise RoleError(
            f"{next(iter(given))} was given beside a frame; its columns are those of the fit. Give the frame alone, or "
            "arrays by role."
        )
    frame = None if data is None else require_frame(data)
    matrices = {name: role.encode(given[name] if frame is None else frame) for name, role in roles.items()}
    _check_lengths(matrices, {name: role.title for name, role in roles.items()})
    return matrices


def _check_lengths(matrices: Mapping[str, np.ndarray], titles: Mapping[str, str]) -> None:
    n = len(matrices["outcome"])
    for name, matrix in matrices.items():
        if len(matrix) != n:
            raise DataError(f"{titles[name]} must have {n} rows like the outcome, got {len(matrix)}.")


def read_groups(data: Any, groups: Any, n_rows: int) -> np.ndarray | None:
    """The unit of every row: a column of ``data`` if ``groups`` names one, else ``groups`` itself."""
    if isinstance(groups, Sequence) and not isinstance(groups, str) and len(groups) == 1 and n_rows > 1:
        (groups,) = groups
    if isinstance(groups, str):
        if data is None:
            raise _name_without_frame("groups", groups)
        frame = require_frame(data)
        _check_column("Groups", groups, frame)
        groups = frame[groups].to_numpy()
    groups = as_groups(groups, n_rows)
    if groups is not None:
        missing = np.flatnonzero(pd.isna(groups))
        if len(missing):
            raise DataError(
                f"groups has {len(missing)} missing values, the first at position {missing[0]}. Give every row its "
                "group, or drop those rows."
            )
    return groups


def check_enough(n_rows: int) -> None:
    """Raise where there are too few rows for folds and standard errors to mean anything."""
    if n_rows < MIN_ROWS:
        raise DataError(f"A fit needs at least {MIN_ROWS} rows, got {n_rows}. Bring more data.")


def check_varying(
    roles: Mapping[str, Role], matrices: Mapping[str, np.ndarray], names: Sequence[str], *, wide: int | None = None
) -> None:
    """Raise unless the outcome is numeric and the columns of the roles in ``names`` vary.

    Of more than ``wide`` columns, which are pictures with perhaps a blank border, only some need to.
    """
    if any(column.levels is not None for column in roles["outcome"].columns):
        raise DataError(
            f"Outcome must be numeric, got text, categories or booleans in {roles['outcome'].names}. Code it as "
            "numbers, such as 0 and 1."
        )
    for name in names:
        if wide is not None and matrices[name].shape[1] > wide and np.any(np.ptp(matrices[name], axis=0) > 0):
            continue
        start = 0
        for column in roles[name].columns:
            block = matrices[name][:, start : start + column.width]
            start += column.width
            if np.all(block == block[0]):
                raise DataError(
                    f"{roles[name].title} column {column.name!r} is constant: data in which it never varies cannot "
                    "answer the question. Drop it, or bring data in which it varies."
                )
            if np.all(block.var(axis=0) == 0):
                raise DataError(
                    f"{roles[name].title} column {column.name!r} varies by {np.ptp(block):g}, too little to compute "
                    "with. Change its unit."
                )


def require_frame(data: Any) -> pd.DataFrame:
    """``data`` as a pandas frame, or an error."""
    frame = as_frame(data)
    if frame is None:
        raise TypeError(
            f"data must be a pandas or polars frame, got {type(data).__name__}. Pass arrays by role instead."
        )
    return frame


def _name_without_frame(role: str, name: str) -> RoleError:
    return RoleError(f"{role}={name!r} is a column name, but no data frame was given. Pass it first.")


def _is_absent(value: Any) -> bool:
    return value is None or (isinstance(value, Sequence) and len(value) == 0)


def _check_distinct(roles: Mapping[str, Role]) -> None:
    seen: dict[str, str] = {}
    for name, role in roles.items():
        for column in role.names:
            if column in seen:
                raise RoleError(
                    f"Column {column!r} has two roles, {seen[column]} and {name}. Give every column one role."
                )
            seen[column] = name


def _from_sequence(title: str, value: Sequence) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        raise DataError(f"{title} must be rectangular, got rows of different lengths.") from None


def _levels(title: str, series: pd.Series) -> tuple[Any, ...] | None:
    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
        return None
    name = f"{title} column {series.name!r}"
    if series.isna().any():
        first = row_label(series.index, int(np.argmax(series.isna())))
        raise DataError(
            f"{name} must not have missing values, got {int(series.isna().sum())} (first: {first}). Drop or impute "
            "these rows."
        )
    if pd.api.types.is_datetime64_any_dtype(series):
        raise DataError(f"{name} holds dates. Turn it into a number (e.g. days) first.")
    values = [v.item() if isinstance(v, np.generic) else v for v in series.tolist()]
    is_category = isinstance(series.dtype, pd.CategoricalDtype)
    if not is_category and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return None
    strange = [v for v in values if not isinstance(v, str | bool | int | float)]
    if strange:
        raise DataError(f"{name} holds {type(strange[0]).__name__} values. Turn them into numbers or text.")
    if not is_category:
        _check_words(name, values, series.index)
    levels = tuple(sorted(set(values), key=lambda v: (str(type(v)), v)))
    if is_category and series.cat.ordered:
        # In the user's order, as far as they occur.
        present = set(levels)
        levels = tuple(level for level in series.cat.categories.tolist() if level in present)
    limit = min(MAX_LEVELS, max(20, len(values) // 2))
    if len(levels) > limit:
        raise DataError(
            f"{name} is text with {len(levels)} different values in {len(values)} rows (first: {values[0]!r}); at most "
            f"{limit} can be encoded. Is it an identifier? Leave it out."
        )
    return levels


def _check_words(name: str, values: list[Any], index: pd.Index) -> None:
    """Raise where a column of text is mostly numbers: one bad cell would turn every number into a category.

    A few different values, such as 0, 1 and 3+, are labels.
    """
    if len(set(values)) <= MAX_LABELS:
        return
    if all(isinstance(v, str) and DATE.match(v) for v in values):
        raise DataError(
            f"{name} is text that holds dates (first: {values[0]!r}). Turn it into a number (e.g. days) first."
        )
    is_number = [not isinstance(v, bool) and as_number(v) is not None for v in values]
    has_comma = [
        not ok and as_number(str(v).replace(",", ".")) is not None for v, ok in zip(values, is_number, strict=True)
    ]
    if 2 * (sum(is_number) + sum(has_comma)) <= len(values):
        return
    if all(is_number):
        raise DataError(
            f"{name} is text that holds numbers (first: {values[0]!r}). Convert it with pandas.to_numeric, or to a "
            "pandas category if the numbers are labels."
        )
    first = is_number.index(False)
    cure = (
        "Write decimals with a point (pandas.read_csv has decimal=',')."
        if has_comma[first]
        else "Mend these values or drop their rows; if all values are labels, make the column a pandas category."
    )
    raise DataError(
        f"{name} is text: {len(values) - sum(is_number)} of {len(values)} values are no numbers, first "
        f"{values[first]!r} ({row_label(index, first)}). {cure}"
    )
