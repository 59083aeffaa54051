"""The meaning of LTL on ultimately periodic words: the judge for everything else.

A word ``prefix cycle cycle ...`` has finitely many positions up to repetition. The positions at which a sub-formula
holds are the bits of one integer; temporal operators are fixpoints over "the next position".
"""

from __future__ import annotations

from prudent.ltl._formula import Formula, Word


def holds(formula: Formula, prefix: Word, cycle: Word) -> bool:
    """See :meth:`Formula.holds`."""
    if len(cycle) == 0:
        raise ValueError("the cycle of an ultimately periodic word needs at least one letter, got none.")
    for letter in [*prefix, *cycle]:
        if isinstance(letter, str):
            raise TypeError(f"a letter is a set of propositions, got the string {letter!r}. Write {{{letter!r}}}.")
    return bool(_Positions(prefix, cycle).satisfying(formula) & 1)


class _Positions:
    def __init__(self, prefix: Word, cycle: Word) -> None:
        self._loop = len(prefix)
        self._last = len(prefix) + len(cycle) - 1
        self._all = (1 << (self._last + 1)) - 1
        self._where: dict[str, int] = {}
        for i, letter in enumerate([*prefix, *cycle]):
            for name in letter:
                self._where[name] = self._where.get(name, 0) | 1 << i

    def _before(self, bits: int) -> int:
        """Return the positions whose successor is in ``bits``; the last position is followed by the loop."""
        return bits >> 1 | (bits >> self._loop & 1) << self._last

    def satisfying(self, formula: Formula) -> int:
        value: dict[Formula, int] = {}
        for node in formula.subformulas():
            value[node] = self._evaluate(node, [value[arg] for arg in node.args])
        return value[formula]

    def _evaluate(self, node: Formula, args: list[int]) -> int:
        op = node.op
        if node.name:
            bits = self._where.get(node.name, 0)
            return bits if op == "ap" else self._all & ~bits
        if op in ("and", "true"):
            bits = self._all
            for arg in args:
                bits &= arg
            return bits
        if op in ("or", "false"):
            bits = 0
            for arg in args:
                bits |= arg
            return bits
        if op == "iff":
            return self._all & ~(args[0] ^ args[1])
        return self._before(args[0]) if op == "X" else self._fixpoint(op, args)

    def _fixpoint(self, op: str, args: list[int]) -> int:
        # Every operator is a fixpoint of  now | (stay & next): least for F U M, greatest for G R W.
        if op in "FG":
            now, stay = (args[0], self._all) if op == "F" else (0, args[0])
        elif op in "UW":
            now, stay = args[1], args[0]
        else:
            now, stay = args[0] & args[1], args[1]
        bits = 0 if op in "FUM" else self._all
        while True:
            following = now | (stay & self._before(bits))
            if following == bits:
                return bits
            bits = following
