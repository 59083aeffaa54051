"""A table with instruments: columns in their roles, checked, and the arrays of the moment problem."""

import dataclasses
import warnings
from typing import Any

import numpy as np

from prudent._roles import IV_REQUIRED, IV_TITLES, Role, check_enough, check_varying, read_groups, read_roles
from prudent.cmr import ImageFeatures
from prudent.cmr._arrays import Matrix, is_discrete, shared_columns
from prudent.errors import RoleError

# Correlation of an instrument with the action beyond which it hardly comes from outside.
NEARLY_THE_ACTION = 0.999


@dataclasses.dataclass(frozen=True)
class IVTable:
    """The arrays of E[Y - f(A, C) | Z, C] = 0, with ``x`` = (action, context) and ``c`` = (instruments, context).

    ``discrete`` are the columns of the action that have levels, ``likeness`` says how close the instruments come to
    being the action: see :func:`_check_instruments`.
    """

    roles: dict[str, Role]
    y: Matrix
    action: Matrix
    context: Matrix
    x: Matrix
    c: Matrix
    groups: np.ndarray | None
    image: ImageFeatures | None
    discrete: set[int]
    likeness: float

    @property
    def modelled(self) -> list[int]:
        """Columns of the action that need instruments; others stand among the instruments themselves."""
        shared = shared_columns(self.x, self.c)
        return [j for j in range(self.action.shape[1]) if j not in shared]

    @property
    def instruments(self) -> list[int]:
        """Columns of ``c`` that are not in ``x``."""
        shared = set(shared_columns(self.x, self.c).values())
        return [j for j in range(self.c.shape[1]) if j not in shared]


def read_table(
    data: Any = None,
    *,
    outcome: Any,
    action: Any,
    instruments: Any,
    context: Any = None,
    groups: Any = None,
    images: Any = None,
) -> IVTable:
    """What ``IVRegression.fit`` is given, checked: a frame with names of columns per role, or arrays per role."""
    given = {"outcome": outcome, "action": action, "instruments": instruments, "context": context}
    roles, matrices = read_roles(data, given, IV_TITLES, IV_REQUIRED)
    n_rows = len(matrices["outcome"])
    groups = read_groups(data, groups, n_rows)
    check_enough(n_rows)
    check_varying(roles, matrices, IV_REQUIRED)
    _check_outcome(roles, matrices)
    likeness = _check_instruments(roles, matrices)
    seen = matrices.get("context", np.empty((n_rows, 0)))
    image = None
    if images is not None:
        if not seen.shape[1]:
            raise RoleError("images describes the last columns of the context, but no context was given.")
        image = ImageFeatures.of_last(seen, images)
        seen = image.replace_last(seen)
    # Indicators of a categorical action are discrete however rare a level is.
    discrete = {j for j in range(roles["action"].width) if is_discrete(matrices["action"][:, j])}
    return IVTable(
        roles=roles,
        y=matrices["outcome"],
        action=matrices["action"],
        context=seen,
        x=np.hstack([matrices["action"], seen]),
        c=np.hstack([matrices["instruments"], seen]),
        groups=groups,
        image=image,
        discrete=discrete | roles["action"].categorical_positions,
        likeness=likeness,
    )


def _check_outcome(roles: dict[str, Role], matrices: dict[str, np.ndarray]) -> None:
    """Refuse an outcome that stands in another role in other units."""
    outcomes = matrices["outcome"]
    for role in ("action", "instruments", "context"):
        for name, column in zip(roles[role].encoded_names, matrices[role].T, strict=True) if role in roles else ():
            if np.ptp(column) == 0:
                continue
            for number, outcome in enumerate(outcomes.T):
                if abs(np.corrcoef(column, outcome)[0, 1]) > 1 - 1e-9:
                    other = roles["outcome"].names[number]
                    raise RoleError(
                        f"{roles[role].title} column {name!r} is the outcome {other!r} in other units. Give every "
                        "variable one role."
                    )


def _check_instruments(roles: dict[str, Role], matrices: dict[str, np.ndarray]) -> float:
    """Refuse instruments that are the action itself, and warn of those that cannot tell its columns apart.

    Returns how close they come to the action: the largest correlation of the column that is least like any of them.
    """
    action, z = matrices["action"], matrices["instruments"]
    likeness = np.abs(np.corrcoef(action.T, z.T)[: action.shape[1], action.shape[1] :])
    # One column that nothing confounds may instrument itself, and a level may be taken by all who are assigned to it.
    # All columns are what makes it a plain regression.
    weakest = int(np.argmin(likeness.max(axis=1)))
    nearest = int(np.argmax(likeness[weakest]))
    name, instrument = roles["action"].encoded_names[weakest], roles["instruments"].encoded_names[nearest]
    closest = float(likeness[weakest, nearest])
    if closest > 1 - 1e-9:
        raise RoleError(
            f"The instrument {instrument!r} is the action {name!r} in other units, so that this would be a plain "
            "regression, confounded as ever. Name something that moves the action from outside; if nothing confounds "
            "the action, an ordinary regression is enough."
        )
    if closest > NEARLY_THE_ACTION:
        warnings.warn(
            f"the instrument {instrument!r} is nearly the action {name!r} (correlation {closest:.5f}): what confounds "
            "the action confounds it, too, unless the action was all but assigned.",
            stacklevel=4,
        )
    needed = sum(column.width - (column.levels is not None) for column in roles["action"].columns)
    n_values = len(np.unique(z, axis=0))
    if n_values <= needed:
        warnings.warn(
            f"the instruments take {n_values} different values, which identify {n_values - 1} of the action's {needed} "
            "effects at most, however strong each one's F is. Bring more instruments, or fewer actions.",
            stacklevel=4,
        )
    return closest
