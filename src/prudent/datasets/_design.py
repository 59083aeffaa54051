"""A data set whose true causal function is known."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.cmr._arrays import as_matrix
from prudent.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class Design:
    """Arrays with their roles, and the function that made the outcome.

    Attributes
    ----------
    outcome, action, instruments, context : (n, columns) arrays
    names : dict
        Column names per role.
    function : callable
        ``function(action, context) -> (n,)``, the true E[Y | do(action), context].
    action_range : (low, high), optional
        Actions among which a policy chooses.
    draw_contexts : callable, optional
        ``draw_contexts(n, rng, shifted) -> (n, columns)``; see :meth:`contexts`.
    images : (height, width), optional
        The last columns of the context are pixels of such images.
    """

    outcome: np.ndarray
    action: np.ndarray
    instruments: np.ndarray
    context: np.ndarray | None
    names: dict[str, list[str]]
    function: Callable[[np.ndarray, np.ndarray | None], np.ndarray]
    action_range: tuple[float, float] | None = None
    draw_contexts: Callable[[int, np.random.Generator, bool], np.ndarray] | None = None
    images: tuple[int, int] | None = None

    def roles(self) -> dict[str, Any]:
        """Keyword arguments for ``IVRegression.fit``."""
        roles: dict[str, Any] = {"outcome": self.outcome, "action": self.action, "instruments": self.instruments}
        if self.context is not None:
            roles["context"] = self.context
        return roles if self.images is None else {**roles, "images": self.images}

    def truth(self, action: Any, context: Any = None) -> np.ndarray:
        """True effect of actions in contexts, without noise, shape (n,). One action or context serves for all rows."""
        action = as_rows("action", action, self.action.shape[1])
        if self.context is None:
            return self.function(action, None)
        if context is None:
            raise DataError(
                f"The effect in this design depends on a context of {self.context.shape[1]} columns, got none. Give "
                "context=..., such as design.context."
            )
        context = as_rows("context", context, self.context.shape[1])
        if len(action) != len(context) and 1 not in (len(action), len(context)):
            raise DataError(
                f"action and context must have equally many rows (or one), got {len(action)} and {len(context)}."
            )
        n = max(len(action), len(context))
        return self.function(
            np.broadcast_to(action, (n, action.shape[1])), np.broadcast_to(context, (n, context.shape[1]))
        )

    def contexts(self, n: int, *, seed: int, shifted: bool = False) -> np.ndarray:
        """Fresh contexts for judging policies; ``shifted`` draws them from outside the training distribution."""
        if self.draw_contexts is None:
            raise ValueError("This design draws no fresh contexts. Judge policies on rows of its own, design.context.")
        return self.draw_contexts(n, generator(seed, n=n), shifted)

    def frame(self) -> "pd.DataFrame":
        """All columns as one pandas frame."""
        import pandas as pd

        columns: dict[str, np.ndarray] = {}
        for role, names in self.names.items():
            values = getattr(self, role)
            if values is not None:
                columns |= {name: values[:, j] for j, name in enumerate(names)}
        return pd.DataFrame(columns)


@dataclasses.dataclass(frozen=True)
class SplitDesign(Design):
    """A design with a fixed population: its own arrays are the training part, beside them two held-out parts."""

    validation: Design | None = None
    test: Design | None = None

    def part(self, name: str) -> Design:
        """The part called ``name``: "train", "validation" or "test"."""
        parts = {"train": self, "validation": self.validation, "test": self.test}
        part = parts.get(name)
        if part is None:
            raise ValueError(f"split must be one of {tuple(parts)}, got {name!r}.")
        return part


def as_rows(name: str, value: Any, width: int) -> np.ndarray:
    """``value`` as rows of ``width`` columns; of several columns one row may be given flat."""
    array = np.asarray(value)
    if array.ndim == 0 or (array.ndim == 1 and width > 1):
        array = array.reshape(1, -1)
    rows = as_matrix(name, array)
    if rows.shape[1] != width:
        raise DataError(f"{name} must have {width} columns as in the design, got {rows.shape[1]}.")
    return rows


def generator(seed: Any, *, n: Any = 1) -> np.random.Generator:
    """The generator of a design's random numbers; raises unless ``seed`` and the number ``n`` of rows make sense."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n must be a whole number of at least 1, got {n!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}.")
    return np.random.default_rng(seed)
