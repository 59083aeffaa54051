"""Drawings of automata: Graphviz text, and a plain Matplotlib picture that needs nothing else.

States are placed in columns by distance from the initial state; the deterministic part that epsilon moves lead to lies
to the right of the states that jump. Accepting edges are thick and green, epsilon moves dashed, the trap is left out
unless asked for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from prudent.ltl._automaton import Automaton, Edge
from prudent.ltl._formula import disjunction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACCEPTING = "#1b7f3b"
_PLAIN = "#404040"
_JUMP = "#a04010"
_RADIUS = 0.2
_COLUMN, _ROW = 2.5, 1.7


def write_dot(automaton: Automaton, show_trap: bool = False) -> str:
    """See :meth:`Automaton.to_dot`."""
    lines = [
        "digraph automaton {",
        "  rankdir=LR;",
        "  node [shape=circle];",
        "  start [shape=point];",
        f"  start -> {automaton.initial};",
    ]
    for q in _visible(automaton, show_trap):
        label = f"{q}\\n{_escape(automaton.names[q])}" if automaton.names[q] else str(q)
        lines.append(f'  {q} [label="{label}"];')
        for e in automaton.edges(q):
            if not show_trap and automaton.is_trap(e.target) and e.target != automaton.initial:
                continue
            style = f' style=bold color="{_ACCEPTING}"' if e.sets else ""
            lines.append(f'  {q} -> {e.target} [label="{_escape(_edge_text(automaton, e))}"{style}];')
        for p in automaton.epsilon(q):
            lines.append(f'  {q} -> {p} [label="ε" style=dashed color="{_JUMP}"];')
    return "\n".join([*lines, "}", ""])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _visible(automaton: Automaton, show_trap: bool) -> list[int]:
    return [q for q in range(automaton.n_states) if show_trap or not automaton.is_trap(q) or q == automaton.initial]


def _edge_text(automaton: Automaton, edge: Edge) -> str:
    text = str(edge.guard)
    if automaton.n_sets > 1 and edge.sets:
        text += " {" + ", ".join(map(str, sorted(edge.sets))) + "}"
    return text


def plot_automaton(
    automaton: Automaton, ax: Axes | None = None, *, show_trap: bool = False, max_label: int = 28
) -> Axes:
    """See :meth:`Automaton.plot`.

    Parameters
    ----------
    ax : matplotlib Axes, optional
        Where to draw; a new figure of suitable size by default.
    show_trap : bool, default=False
        Whether to draw the trap and the edges into it.
    max_label : int, default=28
        Longer guards are cut.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Circle

    states = _visible(automaton, show_trap)
    position = _layout(automaton, states)
    width = max(x for x, _ in position.values()) + 1.8
    heights = [y for _, y in position.values()]
    if ax is None:
        _, ax = plt.subplots(figsize=(1.2 * width + 1, 1.2 * (max(heights) - min(heights)) + 2.4))
    arrows = _arrows(automaton, states, max_label)
    for (source, target), bundle in arrows.items():
        is_pair = (target, source) in arrows
        for k, (text, colour, is_jump, is_accepting) in enumerate(bundle):
            style = {"color": colour, "lw": 2.2 if is_accepting else 1.0, "ls": "--" if is_jump else "-"}
            if source == target:
                _draw_loop(ax, position[source], k, text, style)
            else:
                _draw_arrow(ax, position[source], position[target], 2 * k + 1 if is_pair else 2 * k, text, style)
    for q in states:
        x, y = position[q]
        ax.add_patch(Circle((x, y), _RADIUS, facecolor="white", edgecolor="black", lw=1.2, zorder=3))
        ax.text(x, y, str(q), ha="center", va="center", fontsize=10, zorder=4)
    x, y = position[automaton.initial]
    ax.annotate("", (x - _RADIUS, y), (x - 0.6, y), arrowprops={"arrowstyle": "-|>", "color": "black"})
    ax.set_xlim(-0.8, width - 0.4)
    ax.set_ylim(min(heights) - 0.9, max(heights) + 0.9)
    ax.set_aspect("equal")
    ax.axis("off")
    return ax


def _layout(automaton: Automaton, states: list[int]) -> dict[int, tuple[float, float]]:
    visible = set(states)
    column = {automaton.initial: 0}
    order = [automaton.initial]
    for q in order:
        for p in [*(e.target for e in automaton.edges(q)), *automaton.epsilon(q)]:
            if p in visible and p not in column:
                column[p] = column[q] + 1
                order.append(p)
    rows: dict[int, list[int]] = {}
    for q in order:
        rows.setdefault(column[q], []).append(q)
    place: dict[int, tuple[float, float]] = {}
    for x, members in rows.items():
        for i, q in enumerate(members):
            # Columns are shifted a little, so that arrows that pass a column do not run through its states.
            place[q] = (_COLUMN * x, _ROW * ((len(members) - 1) / 2 - i) + (0.3 if x % 2 and len(members) % 2 else 0.0))
    return place


def _arrows(
    automaton: Automaton, states: list[int], max_label: int
) -> dict[tuple[int, int], list[tuple[str, str, bool, bool]]]:
    visible = set(states)
    found: dict[tuple[int, int], list[tuple[str, str, bool, bool]]] = {}
    for q in states:
        grouped: dict[tuple[int, frozenset[int]], list[Edge]] = {}
        for e in automaton.edges(q):
            if e.target in visible:
                grouped.setdefault((e.target, e.sets), []).append(e)
        for (target, sets), edges in grouped.items():
            edge = Edge(disjunction(e.guard for e in edges), target, sets)
            text = _edge_text(automaton, edge)
            if len(text) > max_label:
                text = text[: max_label - 3] + "..."
            is_accepting = bool(sets)
            found.setdefault((q, target), []).append((text, _ACCEPTING if sets else _PLAIN, False, is_accepting))
        for target in automaton.epsilon(q):
            found.setdefault((q, target), []).append(("ε", _JUMP, True, False))
    return found


def _draw_loop(ax: Axes, centre: tuple[float, float], k: int, text: str, style: dict[str, Any]) -> None:
    from matplotlib.patches import FancyArrowPatch

    # The first loop is above the state, the second below.
    sign = 1 if k % 2 == 0 else -1
    x, y = centre
    size = 0.9 + 0.5 * (k // 2)
    start, end = (x - 0.1, y + sign * _RADIUS * 0.9), (x + 0.1, y + sign * _RADIUS * 0.9)
    ax.add_patch(
        FancyArrowPatch(
            start, end, connectionstyle=f"arc3,rad={-2.2 * sign * size}", arrowstyle="-|>", mutation_scale=12, **style
        )
    )
    ax.text(x, y + sign * (0.3 + 0.24 * size), text, ha="center", va="center", fontsize=8.5, color=str(style["color"]))


def _draw_arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], bend: int, text: str, style: dict[str, Any]
) -> None:
    from matplotlib.patches import FancyArrowPatch

    (x0, y0), (x1, y1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    # Long arrows and arrows inside a column bow, so that they pass beside the states in between and their loops.
    rad = 0.2 * bend if bend else (0.0 if abs(x1 - x0) > 0.5 and length < 1.4 * _COLUMN else -0.25)
    a = (x0 + _RADIUS * ux, y0 + _RADIUS * uy)
    b = (x1 - _RADIUS * ux, y1 - _RADIUS * uy)
    ax.add_patch(
        FancyArrowPatch(a, b, connectionstyle=f"arc3,rad={rad}", arrowstyle="-|>", mutation_scale=12, zorder=2, **style)
    )
    # Matplotlib's arc3 is a quadratic curve whose control point lies rad times the chord to the right of the middle.
    # The label sits before the middle: labels of arrows that cross, or run both ways, then stay apart.
    cx, cy = (a[0] + b[0]) / 2 + rad * (b[1] - a[1]), (a[1] + b[1]) / 2 - rad * (b[0] - a[0])
    t = 0.4 if bend < 2 else 0.25
    mx, my = ((1 - t) ** 2 * p + 2 * t * (1 - t) * c + t**2 * q for p, c, q in zip(a, (cx, cy), b, strict=True))
    ax.text(
        mx, my, text, ha="center", va="center", fontsize=8.5, color=str(style["color"]), zorder=5,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.9},
    )  # fmt: skip
