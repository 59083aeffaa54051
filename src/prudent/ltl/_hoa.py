"""Automata as text: the Hanoi Omega-Automata format (HOA), version 1.

HOA has no epsilon moves. They are written so that any HOA tool can read the file: one more proposition, named by the
alias ``@epsilon``; edges labelled ``[@epsilon]`` are the epsilon moves, all others require its absence. Use
``Automaton.remove_epsilon().to_hoa()`` for an automaton over the original propositions. Reading is in
:mod:`prudent.ltl._hoa_reader`.
"""

from __future__ import annotations

from prudent.ltl._automaton import Automaton
from prudent.ltl._formula import TRUE, Formula

EPSILON_ALIAS = "@epsilon"


def write_hoa(automaton: Automaton) -> str:
    """See :meth:`Automaton.to_hoa`."""
    names = list(automaton.propositions)
    has_epsilon = automaton.n_epsilon > 0
    if has_epsilon:
        extra = "epsilon"
        while extra in names:
            extra += "_"
        names.append(extra)
    index = {name: i for i, name in enumerate(names)}
    n = automaton.n_sets
    lines = [
        "HOA: v1",
        f"States: {automaton.n_states}",
        f"Start: {automaton.initial}",
        " ".join([f"AP: {len(names)}", *(_quoted(name) for name in names)]),
        "acc-name: Buchi" if n == 1 else f"acc-name: generalized-Buchi {n}",
        f"Acceptance: {n} " + "&".join(f"Inf({i})" for i in range(n)),
        "properties: trans-labels explicit-labels trans-acc",
    ]
    if has_epsilon:
        lines.append(f"Alias: {EPSILON_ALIAS} {len(names) - 1}")
    lines.append("--BODY--")
    for q in range(automaton.n_states):
        lines.append(f"State: {q}" + (f" {_quoted(automaton.names[q])}" if automaton.names[q] else ""))
        for e in automaton.edges(q):
            label = _label(e.guard, index)
            if has_epsilon:
                label = f"!{EPSILON_ALIAS}" if e.guard is TRUE else f"!{EPSILON_ALIAS} & ({label})"
            marks = f" {{{' '.join(map(str, sorted(e.sets)))}}}" if e.sets else ""
            lines.append(f"[{label}] {e.target}{marks}")
        lines += [f"[{EPSILON_ALIAS}] {p}" for p in automaton.epsilon(q)]
    return "\n".join([*lines, "--END--", ""])


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _label(guard: Formula, index: dict[str, int]) -> str:
    if guard.name:
        return ("!" if guard.op == "not" else "") + str(index[guard.name])
    if guard.op in ("true", "false"):
        return "t" if guard is TRUE else "f"
    if guard.op == "iff":
        left, right = guard.args
        return _label((left & right) | (left.negate() & right.negate()), index)
    parts = [_label(arg, index) for arg in guard.args]
    if guard.op == "and":
        return " & ".join(f"({p})" if arg.op == "or" else p for p, arg in zip(parts, guard.args, strict=True))
    return " | ".join(parts)
