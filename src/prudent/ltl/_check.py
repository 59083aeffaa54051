"""Exact satisfaction probabilities: of a policy (``check``) and of the best policy (``optimum``)."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, overload

import numpy as np

from prudent.ltl._automaton import Automaton
from prudent.ltl._errors import CheckError
from prudent.ltl._evaluate import ACTION_MISSING, DONE, policy_value
from prudent.ltl._maximise import collapse, exact_values, maximal_values, rational_entries
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._policy import Policy, missing_action
from prudent.ltl._product import Goal, Product, as_automaton, as_formula, build_product, check_propositions
from prudent.ltl._unfold import unfold

BACKENDS = ("native", "storm", "prism")

# Exact arithmetic on larger systems takes minutes and gigabytes.
MAX_EXACT_UNKNOWNS = 3000


class Checker:
    """Exact checks of many policies against one goal on one model; the product is built once.

    Not for use from several threads at a time: it owns working memory.

    Examples
    --------
    >>> from prudent import envs
    >>> gate = envs.probabilistic_gate()
    >>> checker = Checker(gate, "(F G a) & (G !c)")
    >>> checker(Policy.memoryless(gate, [2 if len(gate.available(s)) == 1 else 1 for s in range(gate.n_states)]))
    0.0
    """

    def __init__(self, mdp: LabelledMDP, goal: Goal):
        self._start(build_product(mdp, as_automaton(goal)))

    @classmethod
    def of(cls, product: Product) -> Checker:
        """A checker on a product that exists already."""
        checker = cls.__new__(cls)
        checker._start(product)
        return checker

    def _start(self, product: Product) -> None:
        self.product = product
        self.mdp = product.mdp
        self.automaton = product.automaton
        self._memories: dict[Automaton, Product] = {product.automaton: product}
        self._index = np.full(0, -1, np.int64)

    def __call__(self, policy: Policy) -> float:
        policy.check_model(self.mdp)
        memory = self._memories.get(policy.automaton)
        if memory is None:
            memory = build_product(self.mdp, policy.automaton, strict=False)
            self._memories[policy.automaton] = memory
        status, value = self.evaluate(policy.table, memory)
        if status == ACTION_MISSING:
            raise missing_action(policy, memory)
        if status != DONE:
            return float(_chain_value(self.mdp, policy, self.automaton, exact=False))
        return value

    def evaluate(self, choices: np.ndarray, memory: Product) -> tuple[int, float]:
        """Status and value of a table of choices whose memory is the automaton of ``memory``."""
        judge = self.product
        size = self.mdp.n_states * memory.next_q.shape[1] * judge.next_q.shape[1]
        if len(self._index) < size:
            self._index = np.full(size, -1, np.int64)
        return policy_value(
            choices,
            judge.row_of,
            judge.row_start,
            judge.successor,
            judge.probability,
            memory.next_q,
            judge.next_q,
            judge.accepting,
            judge.epsilon,
            judge.first,
            judge.first_probability,
            memory.automaton.initial,
            judge.automaton.initial,
            judge.all_sets,
            self._index,
        )


@overload
def check(
    mdp: LabelledMDP, policy: Policy, goal: Goal, *, backend: str = "native", exact: Literal[False] = False
) -> float: ...
@overload
def check(
    mdp: LabelledMDP, policy: Policy, goal: Goal, *, backend: str = "native", exact: Literal[True]
) -> Fraction: ...
def check(
    mdp: LabelledMDP, policy: Policy, goal: Goal, *, backend: str = "native", exact: bool = False
) -> float | Fraction:
    """Probability that the path of ``policy`` in ``mdp`` satisfies ``goal``.

    Parameters
    ----------
    goal : str, Formula or Automaton
        An automaton must be good for MDPs, as those of ``ltl.translate`` are; Storm and PRISM need a formula.
    backend : {"native", "storm", "prism"}
    exact : bool
        Rational arithmetic; the result is a Fraction. Probabilities like 0.1 and 1/3 are read as those fractions.

    Raises
    ------
    CheckError
        If an external checker fails. It never becomes a number.
    """
    _check_backend(backend)
    if backend == "native":
        checker = Checker(mdp, goal)
        return _chain_value(mdp, policy, checker.automaton, exact=True) if exact else checker(policy)
    formula = _formula_for(goal, backend)
    check_propositions(mdp, formula.propositions)
    if backend == "storm":
        from prudent.ltl._storm import chain_probability

        return chain_probability(policy.induced_chain(mdp), formula, exact)
    from prudent.ltl._prism import run_prism

    return run_prism(policy.to_prism(mdp), f"P=? [ {formula.to_prism()} ]", exact)


@overload
def optimum(mdp: LabelledMDP, goal: Goal, *, backend: str = "native", exact: Literal[False] = False) -> float: ...
@overload
def optimum(mdp: LabelledMDP, goal: Goal, *, backend: str = "native", exact: Literal[True]) -> Fraction: ...
def optimum(mdp: LabelledMDP, goal: Goal, *, backend: str = "native", exact: bool = False) -> float | Fraction:
    """Largest probability of ``goal`` over all policies. Parameters as for :func:`check`.

    Examples
    --------
    >>> from prudent import envs
    >>> optimum(envs.probabilistic_gate(), "(F G a) & (G !c)", exact=True)
    Fraction(4, 5)
    """
    _check_backend(backend)
    if backend == "native":
        return _best_value(build_product(mdp, as_automaton(goal)), exact)
    formula = _formula_for(goal, backend)
    check_propositions(mdp, formula.propositions)
    if backend == "storm":
        from prudent.ltl._storm import maximal_probability

        return maximal_probability(mdp, formula, exact)
    from prudent.ltl._prism import run_prism

    quantity = "P" if mdp.is_chain else "Pmax"
    return run_prism(mdp.to_prism(), f"{quantity}=? [ {formula.to_prism()} ]", exact)


def _chain_value(mdp: LabelledMDP, policy: Policy, automaton: Automaton, exact: bool) -> float | Fraction:
    """Value of a policy by the general method: the optimum of its chain, where only the automaton has choices left."""
    return _best_value(build_product(policy.induced_chain(mdp), automaton, strict=False), exact)


def _best_value(product: Product, exact: bool) -> float | Fraction:
    quotient = collapse(unfold(product), product.all_sets)
    first = quotient.group[: len(product.first)]
    if not exact:
        values, _ = maximal_values(quotient)
        return float(product.first_probability @ values[first])
    n_unknown = int((quotient.value < 0).sum())
    if n_unknown > MAX_EXACT_UNKNOWNS:
        raise CheckError(
            f"exact arithmetic is for at most {MAX_EXACT_UNKNOWNS} undecided product states, here are {n_unknown}. "
            "Use exact=False: its error is near 1e-12."
        )
    table = product.mdp.transitions
    solved = exact_values(quotient, rational_entries(table.data, table.indptr))
    starts = rational_entries(product.first_probability, np.array([0, len(product.first)]))
    return sum((p * solved[i] for p, i in zip(starts, first, strict=False)), Fraction(0))


def _check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}.")


def _formula_for(goal: Goal, backend: str):
    if isinstance(goal, Automaton):
        raise TypeError(f"backend={backend!r} needs a formula, not an automaton. Use backend='native', or the formula.")
    return as_formula(goal)
