"""A data set whose true causal function is known."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

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
    """

    outcome: np.ndarray
    action: np.ndarray
    instruments: np.ndarray
    context: np.ndarray | None
    names: dict[str, list[str]]
    function: Callable[[np.ndarray, np.ndarray | None], np.ndarray]

    def roles(self) -> dict[str, Any]:
        """Keyword arguments for ``IVRegression.fit``."""
        roles = {"outcome": self.outcome, "action": self.action, "instruments": self.instruments}
        return roles if self.context is None else {**roles, "context": self.context}

    def truth(self, action: Any, context: Any = None) -> np.ndarray:
        """True effect of actions in contexts, without noise, shape (n,)."""
        action = np.asarray(action, dtype=float).reshape(-1, self.action.shape[1])
        if self.context is None:
            return self.function(action, None)
        context = np.asarray(context, dtype=float).reshape(-1, self.context.shape[1])
        n = max(len(action), len(context))
        return self.function(
            np.broadcast_to(action, (n, action.shape[1])), np.broadcast_to(context, (n, context.shape[1]))
        )

    def frame(self) -> "pd.DataFrame":
        """All columns as one pandas frame."""
        import pandas as pd

        columns: dict[str, np.ndarray] = {}
        for role, names in self.names.items():
            values = getattr(self, role)
            if values is not None:
                columns |= {name: values[:, j] for j, name in enumerate(names)}
        return pd.DataFrame(columns)
