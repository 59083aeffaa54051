"""Rewriting LTL formulae into equivalent ones that translate into fewer states.

The rules bring out sub-formulae whose truth does not depend on finite prefixes (``G F a``, ``F G a``), which need not
be followed letter by letter; turn U, R, W, M under F or G into simpler operators; and drop operands that others imply.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from prudent.ltl._after import is_suspendable
from prudent.ltl._formula import FALSE, TRUE, Formula, conjunction, disjunction, rebuild, temporal


def simplify(formula: Formula) -> Formula:
    """Return an equivalent formula; ``<->`` must have been expanded."""
    for node in formula.subformulas():  # operands first: the recursion below then finds them in its cache
        _simplified(node)
    return _simplified(formula)


@lru_cache(maxsize=16384)
def _simplified(formula: Formula) -> Formula:
    if not formula.args:
        return formula
    args = [_simplified(arg) for arg in formula.args]
    result = _rewrite(rebuild(formula, args))
    return result if result is formula else _simplified(result)


def _rewrite(node: Formula) -> Formula:
    if node.op in ("and", "or"):
        return _connective(node.op, node.args)
    if node.op == "X":
        return node.args[0] if is_suspendable(node.args[0]) else node
    if node.op == "F":
        return _finally(node.args[0])
    if node.op == "G":
        # G is the dual of F: one set of rules serves both.
        return _finally(node.args[0].negate()).negate()
    if node.op in ("U", "W", "R", "M"):
        return _binary(node)
    return node


def _finally(inner: Formula) -> Formula:
    """Simplify ``F inner``."""
    if inner in (TRUE, FALSE) or inner.op == "F" or is_suspendable(inner):
        return inner
    if inner.op == "X":
        return temporal("X", temporal("F", inner.args[0]))
    if inner.op == "U":
        return temporal("F", inner.args[1])
    if inner.op == "M":
        return temporal("F", inner.args[0] & inner.args[1])
    if inner.op == "W":
        return temporal("F", inner.args[1]) | temporal("F", temporal("G", inner.args[0]))
    if inner.op == "R":
        return temporal("F", inner.args[0] & inner.args[1]) | temporal("F", temporal("G", inner.args[1]))
    if inner.op == "or":
        apart = [arg for arg in inner.args if is_suspendable(arg) or arg.op in ("F", "U", "M", "W", "R", "G")]
        if apart:
            rest = disjunction(arg for arg in inner.args if arg not in apart)
            return disjunction([temporal("F", rest), *(temporal("F", arg) for arg in apart)])
        if all(arg.op == "X" for arg in inner.args):
            return temporal("X", temporal("F", disjunction(arg.args[0] for arg in inner.args)))
    if inner.op == "and":
        apart = [arg for arg in inner.args if is_suspendable(arg)]
        if apart:
            return conjunction([*apart, temporal("F", conjunction(arg for arg in inner.args if arg not in apart))])
        if all(arg.op == "X" for arg in inner.args):
            return temporal("X", temporal("F", conjunction(arg.args[0] for arg in inner.args)))
    if inner.op == "G":
        return _finally_globally(inner.args[0])
    return temporal("F", inner)


def _finally_globally(inner: Formula) -> Formula:
    """Simplify ``F G inner``."""
    if inner.op == "X":
        return temporal("F", temporal("G", inner.args[0]))
    if inner.op == "or":
        # Under F G, an operand G psi can be split off: once it holds, it holds for ever.
        apart = [arg for arg in inner.args if _without_next(arg).op == "G"]
        if apart:
            rest = disjunction(arg for arg in inner.args if arg not in apart)
            return disjunction(temporal("F", temporal("G", arg)) for arg in [rest, *map(_without_next, apart)])
    if inner.op == "and":
        apart = [arg for arg in inner.args if _without_next(arg).op == "F"]
        if apart:
            rest = conjunction(arg for arg in inner.args if arg not in apart)
            parts = [temporal("G", _without_next(arg)) for arg in apart]
            return conjunction([temporal("F", temporal("G", rest)), *parts])
    return temporal("F", temporal("G", inner))


def _without_next(formula: Formula) -> Formula:
    while formula.op == "X":
        formula = formula.args[0]
    return formula


def _binary(node: Formula) -> Formula:
    left, right = node.args
    op = node.op
    if is_suspendable(right):
        if op in ("U", "R"):
            return right
        return temporal("G", left) | right if op == "W" else temporal("F", left) & right
    if is_suspendable(left):
        if op == "U":
            return right | (left & temporal("F", right))
        if op == "W":
            return left | right
        if op == "R":
            return (left & right) | temporal("G", right)
        return left & right
    if (op in ("U", "W") and implies(left, right)) or (op in ("R", "M") and implies(right, left)):
        return right
    if left.op == "X" and right.op == "X":
        return temporal("X", temporal(op, left.args[0], right.args[0]))
    # a U (b | a U c) and the like collapse when the inner formula repeats the outer one.
    if op == "U" and right.op == "F":
        return right
    if op == "R" and right.op == "G":
        return right
    if op == "W" and right.op == "F" and implies(left.negate(), right.args[0]):
        return TRUE
    return node


def _connective(op: str, args: Sequence[Formula]) -> Formula:
    is_and = op == "and"
    kept: list[Formula] = []
    for i, arg in enumerate(args):
        others = [*kept, *args[i + 1 :]]
        if any((implies(other, arg) if is_and else implies(arg, other)) for other in others):
            continue
        kept.append(arg)
    contrary = any(
        (implies(a, b.negate()) if is_and else implies(a.negate(), b))
        for i, a in enumerate(kept)
        for b in kept[i + 1 :]
    )
    if contrary:
        return FALSE if is_and else TRUE
    return _join(op, kept)


def _join(op: str, args: list[Formula]) -> Formula:
    """Combine ``F G a & F G b`` into ``F G (a & b)``, and ``G F a | G F b`` into ``G F (a | b)``."""
    outer, inner = ("F", "G") if op == "and" else ("G", "F")
    combine = conjunction if op == "and" else disjunction
    found = [arg for arg in args if arg.op == outer and arg.args[0].op == inner]
    if len(found) > 1:
        joined = temporal(outer, temporal(inner, combine(arg.args[0].args[0] for arg in found)))
        args = [arg for arg in args if arg not in found] + [joined]
    return combine(args)


@lru_cache(maxsize=65536)
def implies(f: Formula, g: Formula) -> bool:
    """Say whether ``f`` implies ``g`` for a simple syntactic reason."""
    if f is g or f is FALSE or g is TRUE:
        return True
    if g.op == "and":
        return all(implies(f, arg) for arg in g.args)
    if f.op == "or":
        return all(implies(arg, g) for arg in f.args)
    if g.op == "or" and any(implies(f, arg) for arg in g.args):
        return True
    if f.op == "and" and any(implies(arg, g) for arg in f.args):
        return True
    return _implies_temporal(f, g)


def _implies_temporal(f: Formula, g: Formula) -> bool:
    a, b = f.args, g.args
    if g.op == "F" and implies(f, b[0]):
        return True
    if f.op == "G" and implies(a[0], g):
        return True
    if g.op in ("U", "W") and implies(f, b[1]):
        return True
    if f.op in ("R", "M") and implies(a[1], g):
        return True
    if f.op == g.op == "X":
        return implies(a[0], b[0])
    if f.op == g.op and f.op in ("F", "G"):
        return implies(a[0], b[0])
    if f.op == "G" and g.op == "X":
        return implies(f, b[0])
    if f.op == "X" and g.op == "F":
        return implies(a[0], g)
    if f.op == "G" and g.op in ("R", "W"):
        return implies(a[0], b[1] if g.op == "R" else b[0])
    if f.op in ("U", "M") and g.op == "F":
        return implies(a[1], b[0]) or (f.op == "M" and implies(a[0], b[0]))
    if f.op in ("U", "W") and g.op in ("U", "W") and (f.op, g.op) != ("W", "U"):
        return implies(a[0], b[0]) and implies(a[1], b[1])
    if f.op in ("R", "M") and g.op in ("R", "M") and (f.op, g.op) != ("R", "M"):
        return implies(a[0], b[0]) and implies(a[1], b[1])
    return False
