"""Reader for LTL text, with Spot's operators and precedence, and errors that point at the character.

From weakest to strongest: ``-> <->`` (right to left), ``|``, ``^``, ``&``, ``U R W M`` (right to left), ``X F G !``.
``F``, ``G`` and ``X`` may be glued to what follows (``GFa``), hence a proposition that starts with one of these letters
must be quoted (``"Goal"``), unless a digit comes next (``F1``).
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from prudent.errors import PrudentError
from prudent.ltl._formula import FALSE, TRUE, Formula, conjunction, disjunction, equivalence, proposition, temporal


class FormulaError(PrudentError, ValueError):
    """Text that is not an LTL formula; the message shows the character."""


class _Token(NamedTuple):
    kind: str  # "name", "(", ")", "end", or an operator: ! & | ^ -> <-> X F G U R W M true false
    text: str
    start: int


_SYMBOLS = {
    "(": "(", ")": ")", "!": "!", "~": "!", "[]": "G", "<>": "F",
    "&": "&", "&&": "&", "/\\": "&", "|": "|", "||": "|", "\\/": "|", "^": "^",
    "->": "->", "=>": "->", "-->": "->", "<->": "<->", "<=>": "<->", "<-->": "<->",
}  # fmt: skip
_WORDS = {
    "true": "true", "True": "true", "TRUE": "true", "1": "true",
    "false": "false", "False": "false", "FALSE": "false", "0": "false",
    "U": "U", "R": "R", "V": "R", "W": "W", "M": "M", "xor": "^",
}  # fmt: skip
_SYMBOL = re.compile("|".join(re.escape(s) for s in sorted(_SYMBOLS, key=len, reverse=True)))
_WORD = re.compile(r"[A-Za-z_0-9][A-Za-z0-9_.]*")
_GLUED = re.compile(r"[FGX]+(?![0-9])")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)+)"|\'((?:[^\'\\]|\\.)+)\'', re.DOTALL)
_PREFIX = frozenset("!XFG")
_STRENGTH = {"->": 1, "<->": 1, "|": 2, "^": 3, "&": 4, "U": 5, "R": 5, "W": 5, "M": 5}
_GROUPS_RIGHT = (1, 5)
_MAX_DEPTH = 100  # Python's own stack allows about 1000 calls, and three are needed here for each level
_MAX_OPERATORS = 250  # printers and the translation walk formulae recursively
_SHOWN = 50  # characters shown on each side of an error


def parse(text: str) -> Formula:
    """Read an LTL formula.

    Parameters
    ----------
    text : str
        For example ``"(F G a) & (G !c)"``. Operators: ``true false ! & | -> <-> ^ X F G U R W M``, also ``&& || []
        <>``.

    Returns
    -------
    Formula
        In negation normal form, constants folded.

    Raises
    ------
    FormulaError
        If the text is not a formula.

    Examples
    --------
    >>> str(parse("!(a U Gb) -> c"))
    'a U G b | c'
    """
    if not isinstance(text, str):
        raise TypeError(f"parse needs a string, got {type(text).__name__}.")
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._scan()
        self.at = 0
        self.depth = 0

    def read(self) -> Formula:
        if self.tokens[0].kind == "end":
            self._fail(
                "a formula needs at least one proposition or constant, got empty text", 0, 'Write "true" or "a".'
            )
        formula = self._expression(0)
        token = self.tokens[self.at]
        if token.kind == ")":
            self._fail("every ')' needs a '(' before it, got an extra ')'", token.start, "Remove it, or open earlier.")
        if token.kind != "end":
            cure = "Put an operator such as & or | between the two."
            self._fail(f"two operands need an operator between them, got {token.text!r}", token.start, cure)
        if _depth(formula) > _MAX_OPERATORS:
            cure = "Name parts of the formula and combine them with & and |."
            self._fail(f"operators nest at most {_MAX_OPERATORS} deep, got {_depth(formula)}", 0, cure)
        return formula

    def _fail(self, rule: str, start: int, cure: str) -> NoReturn:
        begin = max(self.text.rfind("\n", 0, start) + 1, start - _SHOWN)
        line = self.text[begin : start + _SHOWN].split("\n", 1)[0].replace("\t", " ")
        caret = " " * (start - begin) + "^"
        raise FormulaError(f"{rule} at character {start + 1}. {cure}\n  {line}\n  {caret}")

    def _scan(self) -> list[_Token]:
        tokens: list[_Token] = []
        at, text = 0, self.text
        while at < len(text):
            if text[at].isspace():
                at += 1
            elif match := _SYMBOL.match(text, at):
                tokens.append(_Token(_SYMBOLS[match.group()], match.group(), at))
                at = match.end()
            elif text[at] in "\"'":
                at = self._scan_quoted(tokens, at)
            elif match := _WORD.match(text, at):
                self._scan_word(tokens, match.group(), at)
                at = match.end()
            else:
                cure = 'Names with special characters are written in quotes: "x-1".'
                self._fail(f"a formula has names, operators and parentheses only, got {text[at]!r}", at, cure)
        tokens.append(_Token("end", "the end", len(text)))
        return tokens

    def _scan_quoted(self, tokens: list[_Token], at: int) -> int:
        match = _QUOTED.match(self.text, at)
        if match is None:
            self._fail("a quoted name needs a character or more and a closing quote, got less", at, 'Write "name".')
        name = re.sub(r"\\(.)", r"\1", match.group(1) or match.group(2), flags=re.DOTALL)
        tokens.append(_Token("name", name, at))
        return match.end()

    def _scan_word(self, tokens: list[_Token], word: str, at: int) -> None:
        if glued := _GLUED.match(word):
            for i, letter in enumerate(glued.group()):
                tokens.append(_Token(letter, letter, at + i))
            word, at = word[glued.end() :], at + glued.end()
            if not word:
                return
        if word[0].isdigit() and word not in _WORDS:
            cure = 'Quote it: "1st". The digits 0 and 1 alone are the constants.'
            self._fail(f"a name starts with a letter or underscore, got {word!r}", at, cure)
        tokens.append(_Token(_WORDS.get(word, "name"), word, at))

    def _take(self, *kinds: str) -> _Token | None:
        token = self.tokens[self.at]
        if token.kind not in kinds:
            return None
        self.at += 1
        return token

    def _expression(self, weakest: int) -> Formula:
        """Read operands joined by operators that bind at least as strongly as ``weakest``."""
        left = self._prefix()
        while (level := _STRENGTH.get(self.tokens[self.at].kind, 0)) >= max(weakest, 1):
            op = self.tokens[self.at].kind
            self.at += 1
            # Operators that group to the right let their own kind through on the right.
            right = self._expression(level if level in _GROUPS_RIGHT else level + 1)
            left = self._combine(op, left, right)
        return left

    def _combine(self, op: str, left: Formula, right: Formula) -> Formula:
        if op == "&":
            return conjunction((left, right))
        if op == "|":
            return disjunction((left, right))
        if op == "->":
            return left.negate() | right
        if op in ("<->", "^"):
            return equivalence(left if op == "<->" else left.negate(), right)
        return temporal(op, left, right)

    def _prefix(self) -> Formula:
        prefixes = []
        while token := self._take(*_PREFIX):
            prefixes.append(token.kind)
        result = self._atom()
        for op in reversed(prefixes):
            result = result.negate() if op == "!" else temporal(op, result)
        return result

    def _atom(self) -> Formula:
        token = self.tokens[self.at]
        self.at += 1
        if token.kind == "name":
            return proposition(token.text)
        if token.kind in ("true", "false"):
            return TRUE if token.kind == "true" else FALSE
        if token.kind == "(":
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                cure = "Name parts of the formula and combine them with & and |."
                self._fail(f"parentheses nest at most {_MAX_DEPTH} deep", token.start, cure)
            inner = self._expression(0)
            self.depth -= 1
            if not self._take(")"):
                found = self.tokens[self.at]
                if found.kind == "end":
                    self._fail("every '(' needs a ')', got none", token.start, "Close it.")
                cure = "Close the parenthesis, or put an operator between the two."
                self._fail(f"an operator or ')' is needed here, got {found.text!r}", found.start, cure)
            return inner
        cure = "Write a proposition, a constant or '('."
        self._fail(f"an operator needs an operand, got {token.text!r}", token.start, cure)


def _depth(formula: Formula) -> int:
    depth: dict[Formula, int] = {}
    for node in formula.subformulas():
        depth[node] = 1 + max((depth[arg] for arg in node.args), default=0)
    return depth[formula]
