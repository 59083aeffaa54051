"""Guards as decision diagrams: overlap, completion, and turning choices between edges into epsilon moves."""

from __future__ import annotations

from collections.abc import Sequence

from prudent.ltl._automaton import Automaton, Edge
from prudent.ltl._bdd import BDD
from prudent.ltl._formula import Formula, conjunction, disjunction, literal
from prudent.ltl._graph import components


class GuardSpace:
    """Boolean functions over a fixed list of propositions, and their formulae."""

    def __init__(self, propositions: Sequence[str], bdd: BDD | None = None) -> None:
        self.propositions = tuple(propositions)
        self.bdd = BDD() if bdd is None else bdd
        self._level = {name: i for i, name in enumerate(self.propositions)}
        self._functions: dict[Formula, int] = {}
        self._formulas: dict[int, Formula] = {}

    def function(self, guard: Formula) -> int:
        """Return the decision diagram of a formula without temporal operators."""
        for node in guard.subformulas():
            if node not in self._functions:
                self._functions[node] = self._combine(node)
        return self._functions[guard]

    def _combine(self, node: Formula) -> int:
        bdd, parts = self.bdd, [self._functions[arg] for arg in node.args]
        if node.name:
            variable = bdd.variable(self._level[node.name])
            return variable if node.op == "ap" else bdd.negate(variable)
        if node.op == "iff":
            return bdd.ite(parts[0], parts[1], bdd.negate(parts[1]))
        if node.op in ("and", "true"):
            result = 1
            for part in parts:
                result = bdd.conj(result, part)
            return result
        if node.op in ("or", "false"):
            result = 0
            for part in parts:
                result = bdd.disj(result, part)
            return result
        raise ValueError(f"guards have no temporal operators, got {node}.")

    def formula(self, function: int) -> Formula:
        """Return a short formula: an irredundant sum of products, or a product of sums where that is shorter."""
        if function not in self._formulas:
            sums = self.bdd.cubes(function)
            products = self.bdd.cubes(self.bdd.negate(function))
            if sum(map(len, products)) < sum(map(len, sums)):
                clauses = (disjunction(self._literal(x, not v) for x, v in sorted(p.items())) for p in products)
                self._formulas[function] = conjunction(clauses)
            else:
                terms = (conjunction(self._literal(x, v) for x, v in sorted(s.items())) for s in sums)
                self._formulas[function] = disjunction(terms)
        return self._formulas[function]

    def _literal(self, level: int, value: bool) -> Formula:
        return literal(self.propositions[level], value)


def choices_to_epsilon(automaton: Automaton) -> Automaton:
    """See :meth:`Automaton.choices_to_epsilon`."""
    space = GuardSpace(automaton.propositions)
    bdd = space.bdd
    component = components(
        [[e.target for e in automaton.edges(q)] + list(automaton.epsilon(q)) for q in range(automaton.n_states)]
    )
    rows: list[list[Edge]] = []
    epsilon = [automaton.epsilon(q) for q in range(automaton.n_states)]
    names = list(automaton.names)
    crossroads: dict[frozenset[int], int] = {}
    trap = -1
    for q in range(automaton.n_states):
        # Cut the letters into regions on which the set of available edges is constant.
        regions: dict[int, tuple[tuple[int, frozenset[int]], ...]] = {1: ()}
        for e in automaton.edges(q):
            guard = space.function(e.guard)
            # A mark on an edge that no cycle contains means nothing, and would stand in the way below.
            sets = e.sets if component[e.target] == component[q] else frozenset()
            cut: dict[int, tuple[tuple[int, frozenset[int]], ...]] = {}
            for region, moves in regions.items():
                for part, extended in (
                    (bdd.conj(region, guard), (*moves, (e.target, sets))),
                    (bdd.conj(region, bdd.negate(guard)), moves),
                ):
                    if part:
                        cut[part] = extended
            regions = cut
        merged: dict[tuple[int, frozenset[int]], int] = {}
        for region, moves in regions.items():
            if not moves:
                if trap < 0:
                    trap = _add_state(epsilon, names, (), "")
                move = (trap, frozenset())
            elif len(set(moves)) == 1:
                move = moves[0]
            else:
                marks = {sets for _, sets in moves}
                if len(marks) > 1:
                    raise ValueError(
                        f"edges that share a letter need the same acceptance sets, state {q} has several on "
                        f"{space.formula(region)}. Use an automaton with acceptance on states."
                    )
                targets = frozenset(target for target, _ in moves)
                if targets not in crossroads:
                    crossroads[targets] = _add_state(epsilon, names, tuple(sorted(targets)), "")
                move = (crossroads[targets], marks.pop())
            merged[move] = bdd.disj(merged.get(move, 0), region)
        rows.append([Edge(space.formula(guard), *move) for move, guard in merged.items()])
    everything = space.formula(1)
    if crossroads and trap < 0:
        trap = _add_state(epsilon, names, (), "")
    # A crossroads must be left by epsilon: reading a letter there would be a wasted choice.
    rows += [[Edge(everything, trap, frozenset())] for _ in range(len(epsilon) - len(rows))]
    return Automaton(automaton.propositions, automaton.initial, rows, epsilon, n_sets=automaton.n_sets, names=names)


def _add_state(epsilon: list[tuple[int, ...]], names: list[str], moves: tuple[int, ...], name: str) -> int:
    epsilon.append(moves)
    names.append(name)
    return len(epsilon) - 1
