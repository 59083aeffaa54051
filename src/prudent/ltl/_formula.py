"""LTL formulae as immutable, hash-consed trees in negation normal form.

Negation is pushed to the propositions on construction, so a formula is built from literals, ``&``, ``|``, ``<->`` and
the temporal operators ``X F G U R W M``; ``->`` and ``^`` are rewritten. Equal trees are one object: ``==`` is ``is``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias
from weakref import WeakValueDictionary

Word: TypeAlias = Sequence[Iterable[str]]

# Strength of binding, as in Spot: -> and <-> weakest, then |, ^, &, the binary temporal operators, the prefixes.
_BINDING = {"iff": 1, "or": 2, "and": 4, "U": 5, "R": 5, "W": 5, "M": 5, "X": 6, "F": 6, "G": 6}
_DUAL = {"and": "or", "or": "and", "X": "X", "F": "G", "G": "F", "U": "R", "R": "U", "W": "M", "M": "W"}
_PLAIN_NAME = re.compile(r"[A-EH-WYZa-z_][A-Za-z0-9_]*\Z")
_RESERVED = frozenset(["true", "false", "True", "False", "TRUE", "FALSE", "xor", "U", "R", "V", "W", "M"])


class Formula:
    """An LTL formula. Build one with :func:`prudent.ltl.parse` or combine two with ``&``, ``|`` and ``~``.

    Attributes
    ----------
    op : str
        ``"true"``, ``"false"``, ``"ap"``, ``"not"`` (of a proposition only), ``"and"``, ``"or"``, ``"iff"``, or one of
        the letters ``X F G U R W M``.
    args : tuple of Formula
        Operands; conjunctions and disjunctions have two or more.
    name : str
        The proposition's name for ``"ap"`` and ``"not"``, otherwise empty.
    """

    __slots__ = ("__weakref__", "_negation", "_propositions", "args", "name", "op")

    op: str
    args: tuple[Formula, ...]
    name: str
    _negation: Formula | None
    _propositions: tuple[str, ...] | None

    def __init__(self) -> None:
        raise TypeError('a Formula is not constructed directly. Use ltl.parse("G F a").')

    def __setattr__(self, key: str, value: object) -> None:
        raise AttributeError("a Formula is immutable. Build a new one with ltl.parse, &, | or ~.")

    def __reduce__(self) -> tuple[Callable[..., Formula], tuple[str, tuple[Formula, ...], str]]:
        return _make, (self.op, self.args, self.name)

    def __and__(self, other: Formula) -> Formula:
        return conjunction((self, other)) if isinstance(other, Formula) else NotImplemented

    def __or__(self, other: Formula) -> Formula:
        return disjunction((self, other)) if isinstance(other, Formula) else NotImplemented

    def __invert__(self) -> Formula:
        return self.negate()

    def __repr__(self) -> str:
        return f"ltl.parse({str(self)!r})"

    def __str__(self) -> str:
        return _infix(self, 0)

    @property
    def propositions(self) -> tuple[str, ...]:
        """Names of the propositions that occur, sorted."""
        if self._propositions is None:
            if self.name:
                found: set[str] = {self.name}
            else:
                found = {name for arg in self.args for name in arg.propositions}
            object.__setattr__(self, "_propositions", tuple(sorted(found)))
        return self._propositions  # type: ignore[return-value]

    def subformulas(self) -> tuple[Formula, ...]:
        """Return every distinct sub-formula, operands before operators; the formula itself comes last."""
        order: dict[Formula, None] = {}
        stack: list[tuple[Formula, bool]] = [(self, False)]
        while stack:
            node, is_done = stack.pop()
            if node in order:
                continue
            if is_done:
                order[node] = None
            else:
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))
        return tuple(order)

    def negate(self) -> Formula:
        """Return the negation, again in negation normal form."""
        if self._negation is None:
            for node in self.subformulas():  # operands first: no deep recursion
                if node._negation is None:
                    other = _negate_node(node)
                    object.__setattr__(node, "_negation", other)
                    object.__setattr__(other, "_negation", node)
        return self._negation  # type: ignore[return-value]

    def holds(self, prefix: Word, cycle: Word) -> bool:
        """Say whether the word ``prefix cycle cycle cycle ...`` satisfies the formula.

        Parameters
        ----------
        prefix, cycle : sequence of sets of str
            Letters: the propositions that are true at each instant. ``cycle`` has at least one letter.
        """
        from prudent.ltl._semantics import holds

        return holds(self, prefix, cycle)

    def to_infix(self, parenthesised: bool = False) -> str:
        """Return the formula as text that :func:`parse` reads back; ``parenthesised`` leaves nothing to precedence."""
        return _full(self, str) if parenthesised else str(self)

    def to_prism(self) -> str:
        """Return text for PRISM and Storm: fully parenthesised, quoted labels, only ``! & | X F G U``.

        PRISM and Storm bind prefix operators weaker than ``&``, and do not both know R, W, M and the arrows.
        """
        return _full(_only_until(self), lambda name: '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')


_TABLE: WeakValueDictionary[tuple[object, ...], Formula] = WeakValueDictionary()


def _make(op: str, args: tuple[Formula, ...] = (), name: str = "") -> Formula:
    key = (op, args, name)
    node = _TABLE.get(key)
    if node is None:
        node = object.__new__(Formula)
        for slot, value in (("op", op), ("args", args), ("name", name), ("_negation", None), ("_propositions", None)):
            object.__setattr__(node, slot, value)
        _TABLE[key] = node
    return node


TRUE = _make("true")
FALSE = _make("false")


def proposition(name: str) -> Formula:
    """Return the formula that holds where ``name`` is in the letter."""
    if not name:
        raise ValueError("a proposition needs a name of at least one character, got ''.")
    return _make("ap", (), name)


def literal(name: str, positive: bool) -> Formula:
    """Return the proposition or its negation."""
    return _make("ap" if positive else "not", (), name)


def _nary(op: str, unit: Formula, zero: Formula, args: Iterable[Formula]) -> Formula:
    kept: dict[Formula, None] = {}
    for arg in args:
        for part in arg.args if arg.op == op else (arg,):
            if part is zero:
                return zero
            if part is unit:
                continue
            if part.name and _make("not" if part.op == "ap" else "ap", (), part.name) in kept:
                return zero
            kept[part] = None
    if len(kept) > 1:
        return _make(op, tuple(kept))
    return next(iter(kept), unit)


def conjunction(args: Iterable[Formula]) -> Formula:
    """Return the conjunction: flat, without repetition, constants folded; ``true`` when there is no operand."""
    return _nary("and", TRUE, FALSE, args)


def disjunction(args: Iterable[Formula]) -> Formula:
    """Return the disjunction: flat, without repetition, constants folded; ``false`` when there is no operand."""
    return _nary("or", FALSE, TRUE, args)


def equivalence(left: Formula, right: Formula) -> Formula:
    """Return ``left <-> right``."""
    if left is right:
        return TRUE
    if left is right.negate():
        return FALSE
    for one, other in ((left, right), (right, left)):
        if one is TRUE:
            return other
        if one is FALSE:
            return other.negate()
    return _make("iff", (left, right))


def temporal(op: str, *args: Formula) -> Formula:
    """Return ``op`` applied to ``args``; constants fold, and ``F F``, ``true U``, ``false R`` and the like contract."""
    last = args[-1]
    if len(args) == 1:
        if last in (TRUE, FALSE) or (op in "FG" and last.op == op):
            return last
        return _make(op, args)
    left, right = args
    if op in "UM" and right is FALSE:
        return FALSE
    if op in "RW" and right is TRUE:
        return TRUE
    if op in "UW":
        if right is TRUE or (op == "W" and left is TRUE):
            return TRUE
        if left is FALSE or left is right:
            return right
        if op == "W" and right is FALSE:
            return temporal("G", left)
        return temporal("F", right) if left is TRUE else _make(op, args)
    if right is FALSE or (op == "M" and left is FALSE):
        return FALSE
    if left is TRUE or left is right:
        return right
    if op == "M" and right is TRUE:
        return temporal("F", left)
    return temporal("G", right) if left is FALSE else _make(op, args)


def rebuild(node: Formula, args: Sequence[Formula]) -> Formula:
    """Return ``node`` with its operands replaced, through the simplifying constructors."""
    if node.op == "and":
        return conjunction(args)
    if node.op == "or":
        return disjunction(args)
    if node.op == "iff":
        return equivalence(*args)
    return temporal(node.op, *args) if node.args else node


def expand_equivalences(formula: Formula) -> Formula:
    """Return the formula without ``<->``."""
    done: dict[Formula, Formula] = {}
    for node in formula.subformulas():
        args = [done[arg] for arg in node.args]
        if node.op == "iff":
            left, right = args
            done[node] = (left & right) | (left.negate() & right.negate())
        else:
            done[node] = rebuild(node, args)
    return done[formula]


def _negate_node(node: Formula) -> Formula:
    if node.op in ("true", "false"):
        return FALSE if node is TRUE else TRUE
    if node.name:
        return literal(node.name, node.op == "not")
    if node.op == "iff":
        return _make("iff", (node.args[0].negate(), node.args[1]))
    return _make(_DUAL[node.op], tuple(arg.negate() for arg in node.args))


def _quote(name: str) -> str:
    if _PLAIN_NAME.match(name) and name not in _RESERVED:
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _infix(node: Formula, context: int) -> str:
    if not node.args:
        return ("!" if node.op == "not" else "") + (_quote(node.name) if node.name else node.op)
    binding = _BINDING[node.op]
    if node.op in ("and", "or"):
        text = (" & " if node.op == "and" else " | ").join(_infix(arg, binding + 1) for arg in node.args)
    elif len(node.args) == 1:
        text = f"{node.op} {_infix(node.args[0], binding)}"
    else:
        symbol = "<->" if node.op == "iff" else node.op
        left = _infix(node.args[0], binding + 1)
        # Binary operators associate to the right; parentheses are kept there because few readers know that.
        text = f"{left} {symbol} {_infix(node.args[1], binding + 1)}"
    return f"({text})" if binding < context else text


def _full(node: Formula, name_of: Callable[[str], str]) -> str:
    if not node.args:
        text = (_quote(node.name) if name_of is str else name_of(node.name)) if node.name else node.op
        return f"(!{text})" if node.op == "not" else text
    parts = [_full(arg, name_of) for arg in node.args]
    if len(parts) == 1:
        return f"({node.op} {parts[0]})"
    symbol = {"and": "&", "or": "|", "iff": "<->"}.get(node.op, node.op)
    text = parts[0]
    for part in parts[1:]:
        text = f"({text} {symbol} {part})"
    return text


def _only_until(formula: Formula) -> Formula:
    done: dict[Formula, Formula] = {}
    formula = expand_equivalences(formula)
    for node in formula.subformulas():
        args = [done[arg] for arg in node.args]
        if node.op == "W":
            done[node] = temporal("U", *args) | temporal("G", args[0])
        elif node.op == "R":
            done[node] = temporal("U", args[1], args[0] & args[1]) | temporal("G", args[1])
        elif node.op == "M":
            done[node] = temporal("U", args[1], args[0] & args[1])
        else:
            done[node] = rebuild(node, args)
    return done[formula]
