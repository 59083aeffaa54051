"""Labelled grid worlds from a text map.

Moves are up, down, right, left; a move into a wall or off the grid stays. Kinds of cell:

====  =====================================================================================
``.``  free: moves are certain
``~``  slippery: the intended move with probability p, each sideways move with (1 - p) / 2
``#``  wall: not a state
``T``  absorbing
``>``  (also ``<``, ``^``, ``v``) only that move exists, and it is certain
``%``  gate: whatever the action, right with probability p, down with 1 - p
====  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import scipy.sparse as sp

from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._task import Task

ACTIONS = ("up", "down", "right", "left")
_MOVES = ((-1, 0), (1, 0), (0, 1), (0, -1))
_SIDEWAYS = ((2, 3), (2, 3), (0, 1), (0, 1))
_ONE_WAY = {"^": 0, "v": 1, ">": 2, "<": 3}
_KINDS = ".~#T%" + "".join(_ONE_WAY)

Cell = tuple[int, int]


def grid(
    map: str | Sequence[str],
    labels: Mapping[str, Iterable[Cell]],
    *,
    start: Cell = (0, 0),
    p: float = 0.8,
    task: Task | None = None,
) -> LabelledMDP:
    """Labelled MDP of a text map.

    Parameters
    ----------
    map : str or sequence of str
        One line for each row of cells; blanks between cells are ignored.
    labels : mapping from proposition to cells (row, column), origin top left
    start : (row, column)
    p : float
        Probability of the intended move on slippery cells, and of going right at a gate.

    Examples
    --------
    >>> mdp = grid("~ T", {"goal": [(0, 1)]}, p=0.5)
    >>> mdp.successors(0, 2), mdp.labels(1)
    ({0: 0.5, 1: 0.5}, frozenset({'goal'}))
    """
    rows = _parse(map)
    if not 0.0 < p <= 1.0:
        raise ValueError(f"p must be in (0, 1], got {p}.")
    height, width = len(rows), len(rows[0])
    cells = [(r, c) for r in range(height) for c in range(width) if rows[r][c] != "#"]
    index = {cell: i for i, cell in enumerate(cells)}

    def state_at(what: str, cell: Cell) -> int:
        row, column = cell
        if (row, column) not in index:
            raise ValueError(f"{what} is at {(row, column)}, which is a wall or outside the {height} x {width} map.")
        return index[row, column]

    def move(cell: Cell, action: int) -> int:
        target = (cell[0] + _MOVES[action][0], cell[1] + _MOVES[action][1])
        return index.get(target, index[cell])

    sources: list[list[int]] = [[] for _ in ACTIONS]
    targets: list[list[int]] = [[] for _ in ACTIONS]
    weights: list[list[float]] = [[] for _ in ACTIONS]
    for cell, state in index.items():
        kind = rows[cell[0]][cell[1]]
        for action in range(4):
            if kind in _ONE_WAY and action != _ONE_WAY[kind]:
                continue
            if kind == "T":
                outcome = [(state, 1.0)]
            elif kind == "%":
                outcome = [(move(cell, 2), p), (move(cell, 1), 1.0 - p)]
            elif kind == "~":
                sideways = [(move(cell, side), (1.0 - p) / 2) for side in _SIDEWAYS[action]]
                outcome = [(move(cell, action), p), *sideways]
            else:
                outcome = [(move(cell, action), 1.0)]
            for target, weight in outcome:
                sources[action].append(state)
                targets[action].append(target)
                weights[action].append(weight)
    n = len(cells)
    slabs = [sp.csr_array((weights[a], (sources[a], targets[a])), shape=(n, n)) for a in range(4)]
    model = LabelledMDP.from_arrays(
        slabs,
        {name: [state_at(f"label {name!r}", cell) for cell in where] for name, where in labels.items()},
        initial=state_at("start", start),
        actions=ACTIONS,
        state_names=[f"({r},{c})" for r, c in cells],
    )
    return model.as_grid((height, width), np.array(cells), task)


def _parse(text: str | Sequence[str]) -> list[str]:
    lines = text.splitlines() if isinstance(text, str) else list(text)
    rows = ["".join(line.split()) for line in lines]
    rows = [row for row in rows if row]
    if not rows or len({len(row) for row in rows}) != 1:
        raise ValueError(f"a map needs rows of equal length, got lengths {[len(row) for row in rows]}.")
    for r, row in enumerate(rows):
        for c, kind in enumerate(row):
            if kind not in _KINDS:
                raise ValueError(f"unknown kind of cell {kind!r} at {(r, c)}; known are {' '.join(_KINDS)}.")
    return rows
