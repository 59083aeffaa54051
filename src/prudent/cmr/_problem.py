"""The arrays of a moment problem after their checks, with the roles of their columns."""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from prudent.cmr._arrays import Matrix, as_groups, as_matrix, is_discrete, numeric_columns, shared_columns
from prudent.cmr._base import check_seed
from prudent.cmr._folds import cross_fit_folds
from prudent.errors import DataError

# Below it, folds and standard errors mean nothing.
MIN_ROWS = 20
# More modelled columns than this are coordinates of one thing, such as a picture.
MAX_OWN = 8


@dataclasses.dataclass(frozen=True)
class Problem:
    """Arrays ``y``, ``x``, ``c`` and what their columns are.

    Columns of x that stand in c are ``known`` given c (at ``known_in_c``), the others are ``modelled``; columns of c
    that are not in x are the ``instruments``.
    """

    y: Matrix
    x: Matrix
    c: Matrix
    groups: np.ndarray | None
    modelled: list[int]
    known: list[int]
    known_in_c: list[int]
    instruments: list[int]

    @classmethod
    def of(cls, name: str, y: Any, x: Any, c: Any, *, seed: Any, groups: Any) -> "Problem":
        """Check the arrays for the estimator ``name`` and sort their columns."""
        check_seed(seed)
        x = as_matrix("x", x)
        y, c = as_matrix("y", y, n_rows=len(x)), as_matrix("c", c, n_rows=len(x))
        if len(x) < MIN_ROWS:
            raise DataError(f"{name} needs at least {MIN_ROWS} rows, got {len(x)}. Bring more data.")
        groups = as_groups(groups, len(x))
        shared = shared_columns(x, c)
        modelled = [j for j in range(x.shape[1]) if j not in shared]
        for j in modelled:
            if np.ptp(x[:, j]) == 0:
                raise DataError(
                    f"Column {j} of x is constant ({x[0, j]:g}): data in which it never varies say nothing about its "
                    "effect. Drop it, or bring data in which it varies."
                )
        known = sorted(shared)
        return cls(
            y=y,
            x=x,
            c=c,
            groups=groups,
            modelled=modelled,
            known=known,
            known_in_c=[shared[j] for j in known],
            instruments=[j for j in range(c.shape[1]) if j not in shared.values()],
        )

    @property
    def n_rows(self) -> int:
        return len(self.x)

    @property
    def slots(self) -> tuple[int, ...]:
        """Position in (modelled, known) of every column of x."""
        return tuple(int(p) for p in np.argsort(self.modelled + self.known))

    @property
    def embedded_in_x(self) -> tuple[int, ...]:
        """Columns of x for which waves pay: those with many values that pass through, never an action."""
        return tuple(j for j in numeric_columns(self.x) if j in self.known)

    def inner_folds(self, n_folds: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Folds for choices inside a fit: ``n_folds`` of them, or fewer where there are few units."""
        n_units = len(self.x) if self.groups is None else len(np.unique(self.groups))
        user = "Choices inside a fit are made on held-out units, for which it"
        return cross_fit_folds(len(self.x), max(2, min(n_folds, n_units // 2)), rng, self.groups, user=user)

    def discrete(self, setting: Any) -> list[int]:
        """Positions in ``modelled`` of its discrete columns, from the data ("auto") or as the user says."""
        if isinstance(setting, str) and setting == "auto":
            return [p for p, j in enumerate(self.modelled) if is_discrete(self.x[:, j])]
        width = self.x.shape[1]
        columns = np.asarray(list(setting) if isinstance(setting, Collection) else setting)
        is_valid = columns.ndim == 1 and (len(columns) == 0 or np.issubdtype(columns.dtype, np.integer))
        if isinstance(setting, str) or not is_valid or np.any((columns < 0) | (columns >= width)):
            raise DataError(
                f"discrete must be 'auto' or a list of column numbers of x (0 to {width - 1}), got {setting!r}. "
                "Name the columns by number, () for none."
            )
        return [p for p, j in enumerate(self.modelled) if j in {int(k) for k in columns}]


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of the ``allowed`` words."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}.")


def check_positive(name: str, value: Any) -> None:
    """Raise unless ``value`` is a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < np.inf:
        raise ValueError(f"{name} must be a number above 0, got {value!r}.")


def check_candidates(name: str, values: Any) -> None:
    """Raise unless ``values`` is None (a default) or a sequence of one or more numbers above zero."""
    if values is None:
        return
    if isinstance(values, str) or not isinstance(values, Iterable) or not list(values):
        raise ValueError(f"{name} must be a sequence of one or more numbers above 0, got {values!r}.")
    for value in values:
        check_positive(f"every one of {name}", value)


def simple_params(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters that JSON can hold; sequences as lists."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple | list | np.ndarray):
            return [plain(v) for v in value]
        return value.item() if isinstance(value, np.generic) else value

    simple = {k: plain(v) for k, v in params.items()}
    return {k: v for k, v in simple.items() if isinstance(v, bool | int | float | str | list | None)}


def params_from_json(params: dict[str, Any]) -> dict[str, Any]:
    """What :func:`simple_params` wrote, with sequences as tuples again."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in params.items()}
