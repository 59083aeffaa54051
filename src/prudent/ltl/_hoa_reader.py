"""Reader for HOA automata (version 1) with acceptance ``Inf(0)&Inf(1)&...``, ``t`` or ``f``, on states or edges.

Epsilon moves are the edges labelled ``@epsilon``, as :mod:`prudent.ltl._hoa` writes them, or edges without a label
beside labelled ones, as other translators write them. Missing letters lead to a trap.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import NamedTuple, NoReturn

from prudent.errors import PrudentError
from prudent.ltl._automaton import Automaton, Edge
from prudent.ltl._formula import FALSE, TRUE, Formula, conjunction, disjunction, literal
from prudent.ltl._guard import GuardSpace
from prudent.ltl._hoa import EPSILON_ALIAS


class HOAError(PrudentError, ValueError):
    """Text that is not a HOA automaton this library can use; the message gives the line."""


class _Token(NamedTuple):
    kind: str  # header, string, int, alias, word, symbol, end
    text: str
    line: int


_TOKENS = re.compile(
    r"""(?P<space>\s+|/\*.*?\*/)
      | (?P<marker>--BODY--|--END--|--ABORT--)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<header>[A-Za-z_][A-Za-z0-9_-]*:)
      | (?P<alias>@[A-Za-z0-9_-]+)
      | (?P<int>[0-9]+)
      | (?P<word>[A-Za-z_][A-Za-z0-9_-]*)
      | (?P<symbol>[][(){}!&|])""",
    re.VERBOSE | re.DOTALL,
)
_HEADERS_WITH_MEANING = frozenset(["HOA:", "States:", "Start:", "AP:", "Alias:", "Acceptance:"])


class _Move(NamedTuple):
    label: Formula | None
    target: int
    sets: frozenset[int]
    line: int


def read_hoa(text: str) -> Automaton:
    """See :meth:`Automaton.from_hoa`."""
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens = self._scan(text)
        self.at = 0
        self.names: list[str] = []
        self.aliases: dict[str, Formula] = {}
        self.starts: list[int] = []
        self.start_lines: list[int] = []
        self.n_states: int | None = None
        self.n_sets = 0
        self.used_sets: list[int] | None = None
        self.accepts_all = False
        self.is_implicit = False

    def _scan(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        at, line = 0, 1
        while at < len(text):
            match = _TOKENS.match(text, at)
            if match is None:
                raise HOAError(f"line {line}: HOA has no such character as {text[at]!r} here. Check the file.")
            kind = match.lastgroup or ""
            if kind != "space":
                tokens.append(_Token(kind, match.group(), line))
            line += match.group().count("\n")
            at = match.end()
        tokens.append(_Token("end", "the end of the text", line))
        return tokens

    def _fail(self, rule: str, cure: str, token: _Token | None = None) -> NoReturn:
        token = self.tokens[self.at] if token is None else token
        raise HOAError(f"line {token.line}: {rule}, got {token.text!r}. {cure}")

    def _peek(self) -> _Token:
        return self.tokens[self.at]

    def _take(self, kind: str, text: str | None = None) -> _Token | None:
        token = self.tokens[self.at]
        if token.kind != kind or (text is not None and token.text != text):
            return None
        self.at += 1
        return token

    def _need(self, kind: str, what: str, text: str | None = None) -> _Token:
        token = self._take(kind, text)
        if token is None:
            self._fail(f"{what} is needed here", "Compare with the HOA specification, version 1.")
        return token

    def read(self) -> Automaton:
        first = self._take("header", "HOA:")
        if first is None:
            self._fail('a HOA text starts with "HOA: v1"', "Is this an automaton file?")
        if not self._take("word", "v1"):
            self._fail("only version v1 of HOA is known", "Convert the file, for example with autfilt.")
        while not self._take("marker", "--BODY--"):
            self._header()
        if self.used_sets is None:
            cure = "Add, for example, 'Acceptance: 1 Inf(0)'."
            self._fail("the header needs an Acceptance line before the body", cure, self.tokens[self.at - 1])
        moves, names = self._body()
        return self._assemble(moves, names)

    def _header(self) -> None:
        token = self._need("header", "a header line or --BODY--")
        name = token.text
        if name == "States:":
            self.n_states = int(self._need("int", "the number of states").text)
        elif name == "Start:":
            self.start_lines.append(self._peek().line)
            self.starts.append(int(self._need("int", "a state number").text))
            if self._peek().text == "&":
                self._fail("alternating automata cannot be used", "Convert the file, for example with autfilt.")
        elif name == "AP:":
            count = int(self._need("int", "the number of propositions").text)
            while string := self._take("string"):
                self.names.append(_unquoted(string.text))
            if len(self.names) != count:
                self._fail(
                    f"the AP line announces {count} propositions and names {len(self.names)}", "Correct it.", token
                )
        elif name == "Alias:":
            alias = self._need("alias", "a name that starts with @").text
            self.aliases[alias] = self._label()
        elif name == "Acceptance:":
            self._acceptance()
        else:
            # By the specification, unknown headers may be ignored when they start with a lower-case letter.
            if name[0].isupper() and name not in _HEADERS_WITH_MEANING:
                self._fail(
                    "headers with a capital letter must be understood", "Remove the line if it is harmless.", token
                )
            while self._peek().kind not in ("header", "marker", "end"):
                self.is_implicit |= self._peek().text == "implicit-labels"
                self.at += 1

    def _acceptance(self) -> None:
        self.n_sets = int(self._need("int", "the number of acceptance sets").text)
        start = self._peek()
        text = ""
        while self._peek().kind not in ("header", "marker", "end"):
            text += self._peek().text
            self.at += 1
        text = text.replace("(", "").replace(")", "")
        if text == "t":
            self.used_sets, self.accepts_all = [], True
        elif text == "f":
            self.used_sets = []
        elif re.fullmatch(r"Inf\d+(&Inf\d+)*", text):
            self.used_sets = sorted({int(part[3:]) for part in text.split("&")})
        else:
            cure = "Convert the automaton, for example with 'autfilt --gba'."
            self._fail("acceptance must be Buechi or generalised Buechi (Inf(0)&Inf(1)&...)", cure, start)

    def _label(self) -> Formula:
        parts = [self._label_product()]
        while self._take("symbol", "|"):
            parts.append(self._label_product())
        return disjunction(parts)

    def _label_product(self) -> Formula:
        parts = [self._label_atom()]
        while self._take("symbol", "&"):
            parts.append(self._label_atom())
        return conjunction(parts)

    def _label_atom(self) -> Formula:
        if self._take("symbol", "!"):
            return self._label_atom().negate()
        if self._take("symbol", "("):
            inner = self._label()
            self._need("symbol", "')'", ")")
            return inner
        if token := self._take("alias"):
            if token.text not in self.aliases:
                self._fail("an alias is defined in the header before it is used", "Add an Alias line.", token)
            return self.aliases[token.text]
        if token := self._take("int"):
            if int(token.text) >= len(self.names):
                self._fail(f"propositions are numbered 0 to {len(self.names) - 1}", "Correct the AP line.", token)
            return literal(self.names[int(token.text)], True)
        if self._take("word", "t"):
            return TRUE
        if self._take("word", "f"):
            return FALSE
        self._fail("a label has proposition numbers, aliases, t, f, !, & and | only", "Correct the label.")

    def _sets(self) -> frozenset[int]:
        found: set[int] = set()
        if self._take("symbol", "{"):
            while token := self._take("int"):
                if int(token.text) >= self.n_sets:
                    self._fail(f"acceptance sets are numbered 0 to {self.n_sets - 1}", "Correct the mark.", token)
                found.add(int(token.text))
            self._need("symbol", "'}'", "}")
        return frozenset(found)

    def _optional_label(self) -> Formula | None:
        if not self._take("symbol", "["):
            return None
        label = self._label()
        self._need("symbol", "']'", "]")
        return label

    def _body(self) -> tuple[dict[int, list[_Move]], dict[int, str]]:
        moves: dict[int, list[_Move]] = {}
        names: dict[int, str] = {}
        while not self._take("marker", "--END--"):
            head = self._take("header", "State:")
            if head is None:
                self._fail("'State:' or '--END--' is needed here", "Is the file complete?")
            state_label = self._optional_label()
            number = self._need("int", "a state number")
            q = int(number.text)
            if q in moves:
                self._fail("a state is described once", "Merge the two descriptions.", number)
            if string := self._take("string"):
                names[q] = _unquoted(string.text)
            state_sets = self._sets()
            moves[q] = []
            while self._peek().kind not in ("header", "marker", "end"):
                line = self._peek().line
                label = self._optional_label()
                target = int(self._need("int", "the number of the edge's target").text)
                if self._peek().text == "&":
                    self._fail("alternating automata cannot be used", "Convert the file, for example with autfilt.")
                label = state_label if label is None else label
                moves[q].append(_Move(label, target, state_sets | self._sets(), line))
        return moves, names

    def _assemble(self, moves: dict[int, list[_Move]], names: dict[int, str]) -> Automaton:
        mentioned = [*self.starts, *moves, *(m.target for row in moves.values() for m in row)]
        n = self.n_states if self.n_states is not None else max(mentioned, default=-1) + 1
        for q, line in zip(self.starts, self.start_lines, strict=True):
            if q >= n:
                raise HOAError(
                    f"line {line}: states are numbered 0 to {n - 1}, got start state {q}. Correct the header."
                )
        for q, row in moves.items():
            for m in row:
                if m.target >= n or q >= n:
                    raise HOAError(
                        f"line {m.line}: states are numbered 0 to {n - 1}, got {max(q, m.target)}. Correct it."
                    )
        epsilon_name = self._epsilon_name()
        propositions = [name for name in self.names if name != epsilon_name]
        is_implicit = self.is_implicit or not any(m.label is not None for row in moves.values() for m in row)
        rank = {s: i for i, s in enumerate(self.used_sets or [])}
        edges: list[list[Edge]] = [[] for _ in range(n)]
        epsilon: list[list[int]] = [[] for _ in range(n)]
        for q, row in moves.items():
            if is_implicit:
                row = self._implicit(row)
            for m in row:
                sets = frozenset([0]) if self.accepts_all else frozenset(rank[s] for s in m.sets if s in rank)
                present, absent = _split(m.label, epsilon_name)
                if absent is not FALSE:
                    edges[q].append(Edge(absent, m.target, sets))
                if present:
                    epsilon[q].append(m.target)
        labels = [names.get(q, "") for q in range(n)]
        initial = self.starts[0] if self.starts else 0
        if len(self.starts) != 1:  # several starts are a choice, none is the empty language
            initial = n
            edges.append([])
            epsilon.append(list(self.starts))
            labels.append("")
        return _completed(propositions, initial, edges, epsilon, max(len(rank), 1), labels)

    def _epsilon_name(self) -> str | None:
        alias = self.aliases.get(EPSILON_ALIAS)
        return alias.name if alias is not None and alias.op == "ap" else None

    def _implicit(self, row: list[_Move]) -> list[_Move]:
        if len(row) != 2 ** len(self.names):
            line = row[0].line if row else self.tokens[-1].line
            raise HOAError(
                f"line {line}: a state without labels needs one edge for each of the {2 ** len(self.names)} letters, "
                f"got {len(row)}. Write labels."
            )
        result = []
        # The i-th edge reads the letter whose bit j, counted from the lowest, is the value of proposition j.
        letters = product([False, True], repeat=len(self.names))
        for m, bits in zip(row, letters, strict=True):
            label = conjunction(literal(name, value) for name, value in zip(self.names, reversed(bits), strict=True))
            result.append(m._replace(label=label))
        return result


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)


def _split(label: Formula | None, epsilon_name: str | None) -> tuple[bool, Formula]:
    """Return whether an edge can be an epsilon move, and its guard as an ordinary edge."""
    if label is None:
        return True, FALSE
    if epsilon_name is None:
        return False, label
    return _assign(label, epsilon_name, True) is not FALSE, _assign(label, epsilon_name, False)


def _assign(guard: Formula, name: str, value: bool) -> Formula:
    if guard.name == name:
        return TRUE if (guard.op == "ap") == value else FALSE
    if not guard.args:
        return guard
    combine: Callable[..., Formula] = conjunction if guard.op == "and" else disjunction
    return combine(_assign(arg, name, value) for arg in guard.args)


def _completed(
    propositions: list[str],
    initial: int,
    edges: list[list[Edge]],
    epsilon: list[list[int]],
    n_sets: int,
    names: list[str],
) -> Automaton:
    space = GuardSpace(propositions)
    trap = len(edges)
    for row in edges[:trap]:
        missing = space.bdd.negate(space.function(disjunction(e.guard for e in row)))
        if missing:
            row.append(Edge(space.formula(missing), trap, frozenset()))
    if any(e.target == trap for row in edges for e in row):
        edges.append([Edge(TRUE, trap, frozenset())])
        epsilon.append([])
        names.append("")
    return Automaton(propositions, initial, edges, epsilon, n_sets=n_sets, names=names)
