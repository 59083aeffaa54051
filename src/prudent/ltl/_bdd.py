"""Reduced ordered binary decision diagrams in plain Python: small, exact, enough for formulae with dozens of variables.

Nodes are integers of one manager, 0 is false and 1 is true; equal functions have equal numbers. Variables are levels,
the smallest at the top.
"""

from __future__ import annotations

from collections.abc import Callable

_TERMINAL = 1 << 60


class BDD:
    """A manager of decision diagrams over integer levels."""

    def __init__(self, tick: Callable[[], None] | None = None) -> None:
        self.tick = tick  # called every few thousand new nodes: where a budget is checked
        self.level = [_TERMINAL, _TERMINAL]
        self.low = [0, 1]
        self.high = [0, 1]
        self._unique: dict[tuple[int, int, int], int] = {}
        self._and: dict[tuple[int, int], int] = {}
        self._not: dict[int, int] = {0: 1, 1: 0}
        self._ite: dict[tuple[int, int, int], int] = {}

    def node(self, level: int, low: int, high: int) -> int:
        if low == high:
            return low
        key = (level, low, high)
        found = self._unique.get(key)
        if found is None:
            found = len(self.level)
            if self.tick is not None and not found & 4095:
                self.tick()
            self._unique[key] = found
            self.level.append(level)
            self.low.append(low)
            self.high.append(high)
        return found

    def variable(self, level: int) -> int:
        return self.node(level, 0, 1)

    def negate(self, f: int) -> int:
        found = self._not.get(f)
        if found is None:
            found = self.node(self.level[f], self.negate(self.low[f]), self.negate(self.high[f]))
            self._not[f] = found
            self._not[found] = f
        return found

    def conj(self, f: int, g: int) -> int:
        if f == g or g == 1:
            return f
        if f == 1:
            return g
        if f == 0 or g == 0:
            return 0
        key = (f, g) if f < g else (g, f)
        found = self._and.get(key)
        if found is None:
            a, b = self.level[f], self.level[g]
            if a == b:
                found = self.node(a, self.conj(self.low[f], self.low[g]), self.conj(self.high[f], self.high[g]))
            elif a < b:
                found = self.node(a, self.conj(self.low[f], g), self.conj(self.high[f], g))
            else:
                found = self.node(b, self.conj(f, self.low[g]), self.conj(f, self.high[g]))
            self._and[key] = found
        return found

    def disj(self, f: int, g: int) -> int:
        if f == g or g == 0:
            return f
        if f == 0:
            return g
        if f == 1 or g == 1:
            return 1
        return self.negate(self.conj(self.negate(f), self.negate(g)))

    def ite(self, test: int, then: int, other: int) -> int:
        if test == 1 or then == other:
            return then
        if test == 0:
            return other
        if then == 1:
            return self.disj(test, other)
        if other == 0:
            return self.conj(test, then)
        key = (test, then, other)
        found = self._ite.get(key)
        if found is None:
            level, low, high = self.level, self.low, self.high
            top = min(level[test], level[then], level[other])
            test0, test1 = (low[test], high[test]) if level[test] == top else (test, test)
            then0, then1 = (low[then], high[then]) if level[then] == top else (then, then)
            other0, other1 = (low[other], high[other]) if level[other] == top else (other, other)
            found = self.node(top, self.ite(test0, then0, other0), self.ite(test1, then1, other1))
            self._ite[key] = found
        return found

    def compose(self, f: int, image: Callable[[int], int], memo: dict[int, int]) -> int:
        """Replace every variable of ``f`` by ``image(level)``; ``memo`` is kept by the caller for one ``image``."""
        if f < 2:
            return f
        found = memo.get(f)
        if found is None:
            test = image(self.level[f])
            found = self.ite(test, self.compose(self.high[f], image, memo), self.compose(self.low[f], image, memo))
            memo[f] = found
        return found

    def support(self, f: int) -> set[int]:
        """Return the levels that ``f`` depends on."""
        seen: set[int] = set()
        levels: set[int] = set()
        stack = [f]
        while stack:
            g = stack.pop()
            if g > 1 and g not in seen:
                seen.add(g)
                levels.add(self.level[g])
                stack += (self.low[g], self.high[g])
        return levels

    def leaves_above(self, f: int, limit: int) -> dict[int, int]:
        """Split ``f`` at level ``limit``: map each function below it to the condition above that leads there."""
        conditions: dict[int, dict[int, int]] = {}

        def visit(g: int) -> dict[int, int]:
            if self.level[g] >= limit:
                return {g: 1}
            found = conditions.get(g)
            if found is None:
                found = {}
                for child, is_high in ((self.low[g], False), (self.high[g], True)):
                    for leaf, condition in visit(child).items():
                        part = (
                            self.node(self.level[g], 0, condition)
                            if is_high
                            else self.node(self.level[g], condition, 0)
                        )
                        found[leaf] = self.disj(found.get(leaf, 0), part)
                conditions[g] = found
            return found

        return visit(f)

    def cubes(self, f: int) -> list[dict[int, bool]]:
        """Return an irredundant sum of products for ``f`` (Minato and Morreale): one dict level -> value a product."""
        memo: dict[tuple[int, int], tuple[int, tuple[tuple[tuple[int, bool], ...], ...]]] = {}

        def between(lower: int, upper: int) -> tuple[int, tuple[tuple[tuple[int, bool], ...], ...]]:
            if lower == 0:
                return 0, ()
            if upper == 1:
                return 1, ((),)
            key = (lower, upper)
            if key not in memo:
                top = min(self.level[lower], self.level[upper])
                low0, low1 = self._cofactors(lower, top)
                up0, up1 = self._cofactors(upper, top)
                f0, products0 = between(self.conj(low0, self.negate(up1)), up0)
                f1, products1 = between(self.conj(low1, self.negate(up0)), up1)
                rest0, rest1 = self.conj(low0, self.negate(f0)), self.conj(low1, self.negate(f1))
                shared, products = between(self.disj(rest0, rest1), self.conj(up0, up1))
                covered = self.disj(shared, self.node(top, f0, f1))
                memo[key] = (
                    covered,
                    tuple(((top, False), *p) for p in products0)
                    + tuple(((top, True), *p) for p in products1)
                    + products,
                )
            return memo[key]

        return [dict(product) for product in between(f, f)[1]]

    def _cofactors(self, f: int, level: int) -> tuple[int, int]:
        return (self.low[f], self.high[f]) if self.level[f] == level else (f, f)
