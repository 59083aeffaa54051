"""Markov decision processes whose states carry sets of atomic propositions.

The transition table is one sparse matrix with a row per *choice* (an action available in a state), the rows of one
state next to each other. A Markov chain is the special case of one choice a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numba import njit

from prudent.ltl._task import Task

if TYPE_CHECKING:
    import gymnasium

# Rows may miss one by this much (rounded text files do); they are then rescaled so that errors do not accumulate.
ROW_SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class LabelledMDP:
    """A finite MDP with labelled states. Build it with ``from_arrays`` or another ``from_*`` method.

    Attributes
    ----------
    transitions : scipy.sparse.csr_array, shape (n_choices, n_states)
        Probability of each successor; the choices of a state are consecutive rows.
    choice_start : int32 array, shape (n_states + 1,)
        State ``s`` owns rows ``choice_start[s]`` to ``choice_start[s + 1]``.
    choice_action : int32 array, shape (n_choices,)
        Index into ``actions``.
    actions, propositions : tuple of str
    letters : tuple of frozenset of str
        The distinct label sets; ``letter_of[s]`` is the index of the set that holds in ``s``.
    letter_of : int32 array, shape (n_states,)
    initial : float array, shape (n_states,)
        Distribution of the first state.
    state_names : tuple of str or None
    task : Task or None
        Default goal and protocol of a benchmark model.
    shape : (rows, columns) or None
        For grids: ``state_cells[s]`` is the (row, column) of state ``s``.
    state_cells : int array, shape (n_states, 2), or None
    """

    transitions: sp.csr_array
    choice_start: np.ndarray
    choice_action: np.ndarray
    actions: tuple[str, ...]
    propositions: tuple[str, ...]
    letters: tuple[frozenset[str], ...]
    letter_of: np.ndarray
    initial: np.ndarray
    state_names: tuple[str, ...] | None = None
    task: Task | None = None
    shape: tuple[int, int] | None = None
    state_cells: np.ndarray | None = None

    def __post_init__(self):
        _check(self)
        sums = self.transitions.sum(axis=1)
        scale = np.repeat(1.0 / sums, np.diff(self.transitions.indptr))
        scaled = sp.csr_array(
            (self.transitions.data * scale, self.transitions.indices, self.transitions.indptr),
            shape=self.transitions.shape,
        )
        object.__setattr__(self, "transitions", scaled)
        for array in (scaled.data, scaled.indices, scaled.indptr, self.choice_start, self.choice_action):
            array.setflags(write=False)
        self.letter_of.setflags(write=False)
        self.initial.setflags(write=False)

    @property
    def n_states(self) -> int:
        return len(self.choice_start) - 1

    @property
    def n_choices(self) -> int:
        return len(self.choice_action)

    @property
    def n_actions(self) -> int:
        return len(self.actions)

    @property
    def is_chain(self) -> bool:
        """Whether every state has exactly one choice."""
        return self.n_choices == self.n_states

    @property
    def goal(self) -> str:
        """The formula of the model's task."""
        if self.task is None:
            raise ValueError("this model has no task, so no default goal; give a formula.")
        return self.task.formula

    @property
    def minimum_probability(self) -> float:
        """The smallest non-zero probability of a transition or of a first state (p_min in the thesis)."""
        return float(min(self.transitions.data.min(), self.initial[self.initial > 0].min()))

    def labels(self, state: int) -> frozenset[str]:
        """Propositions that hold in ``state``."""
        return self.letters[self.letter_of[state]]

    def available(self, state: int) -> tuple[int, ...]:
        """Indices of the actions that exist in ``state``."""
        return tuple(int(a) for a in self.choice_action[self.choice_start[state] : self.choice_start[state + 1]])

    def row(self, state: int, action: int) -> int:
        """Index of the choice of ``action`` in ``state``."""
        start, stop = self.choice_start[state], self.choice_start[state + 1]
        found = np.flatnonzero(self.choice_action[start:stop] == action)
        if len(found) == 0:
            raise ValueError(
                f"action {action} does not exist in state {self.name(state)}; available are {self.available(state)}."
            )
        return int(start + found[0])

    def successors(self, state: int, action: int) -> dict[int, float]:
        """Successor states with their probabilities."""
        row = self.row(state, action)
        start, stop = self.transitions.indptr[row], self.transitions.indptr[row + 1]
        return {
            int(s): float(p)
            for s, p in zip(self.transitions.indices[start:stop], self.transitions.data[start:stop], strict=True)
        }

    def name(self, state: int) -> str:
        """The state's name, or its number where it has none."""
        return self.state_names[state] if self.state_names else str(state)

    def reachable(self) -> np.ndarray:
        """States that some policy reaches from the initial ones, in increasing order."""
        return np.flatnonzero(
            _reach(self.choice_start, self.transitions.indptr, self.transitions.indices, self.initial > 0)
        )

    def restrict(self, states: np.ndarray) -> LabelledMDP:
        """The model on ``states`` alone, numbered in that order; no choice may lead out of them."""
        number = np.full(self.n_states, -1)
        number[states] = np.arange(len(states))
        lengths = np.diff(self.choice_start)[states]
        ends = np.cumsum(lengths)
        rows = np.repeat(self.choice_start[states] - (ends - lengths), lengths) + np.arange(ends[-1])
        kept = sp.csr_array(self.transitions[rows])
        if number[kept.indices].min() < 0:
            raise ValueError("restrict needs states that no choice leaves, like those of reachable().")
        return replace(
            self,
            transitions=sp.csr_array((kept.data, number[kept.indices], kept.indptr), shape=(len(rows), len(states))),
            choice_start=np.concatenate([[0], ends]).astype(np.int32),
            choice_action=self.choice_action[rows],
            letter_of=self.letter_of[states],
            initial=self.initial[states],
            state_names=tuple(self.state_names[s] for s in states) if self.state_names else None,
            state_cells=self.state_cells[states] if self.state_cells is not None else None,
        )

    def as_grid(self, shape: tuple[int, int], cells: np.ndarray, task: Task | None) -> LabelledMDP:
        """The same model with the place of each state on a grid, so that it can be drawn."""
        return replace(self, shape=shape, state_cells=cells, task=task)

    def __repr__(self) -> str:
        kind = "chain" if self.is_chain else "MDP"
        return (
            f"<labelled {kind}: {self.n_states} states, {self.n_choices} choices, {self.transitions.nnz} transitions, "
            f"propositions {', '.join(self.propositions) or 'none'}>"
        )

    @classmethod
    def from_arrays(
        cls,
        transitions: Any,
        labels: Mapping[str, Iterable[int]] | Sequence[Iterable[str]],
        *,
        initial: int | Sequence[float] | np.ndarray = 0,
        propositions: Sequence[str] | None = None,
        actions: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
    ) -> LabelledMDP:
        """Build a model from arrays.

        Parameters
        ----------
        transitions : array, shape (n_states, n_actions, n_states), or sequence of n_actions sparse (n_states, n_states)
            An all-zero row says that the action does not exist in that state.
        labels : mapping from proposition to states, or sequence of sets of propositions, one a state
        initial : int or array, shape (n_states,)
            The first state, or its distribution.
        propositions : sequence of str, optional
            All propositions; needed only to declare some that hold nowhere, or to catch misspelt labels.
        actions, state_names : sequence of str, optional

        Examples
        --------
        >>> mdp = LabelledMDP.from_arrays([[[0.2, 0.8]], [[0, 1]]], {"goal": [1]})
        >>> mdp.labels(1), mdp.successors(0, 0)
        (frozenset({'goal'}), {0: 0.2, 1: 0.8})
        """
        slabs = _as_slabs(transitions)
        n_actions, n_states = len(slabs), len(slabs[0].indptr) - 1
        stacked = sp.csr_array(sp.vstack(slabs))  # row a * n_states + s
        order = np.arange(n_actions * n_states).reshape(n_actions, n_states).T.ravel()
        stacked = sp.csr_array(stacked[order])  # row s * n_actions + a
        present = np.diff(stacked.indptr) > 0
        counts = present.reshape(n_states, n_actions).sum(axis=1)
        letters, letter_of, names = _index_labels(labels, n_states, propositions)
        return cls(
            transitions=sp.csr_array(stacked[present]),
            choice_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            choice_action=np.tile(np.arange(n_actions, dtype=np.int32), n_states)[present],
            actions=tuple(actions) if actions is not None else tuple(f"a{i}" for i in range(n_actions)),
            propositions=names,
            letters=letters,
            letter_of=letter_of,
            initial=_as_distribution(initial, n_states),
            state_names=tuple(state_names) if state_names is not None else None,
        )

    @classmethod
    def from_gymnasium(
        cls, env: gymnasium.Env, label: Callable[[int], Iterable[str]], *, propositions: Sequence[str] | None = None
    ) -> LabelledMDP:
        """Read the table ``P`` of a toy-text environment; ``label`` maps a state to its propositions."""
        from prudent.ltl._gymnasium import model_from_table

        return model_from_table(env, label, propositions)

    @classmethod
    def from_prism(cls, source: str | Path, *, constants: str = "") -> LabelledMDP:
        """Read a PRISM model (a file, or its text) through stormpy; ``constants`` is like ``"N=3,p=0.5"``."""
        from prudent.ltl._storm import model_from_prism

        return model_from_prism(source, constants)

    def to_prism(self) -> str:
        """The model in the PRISM language, with its labels."""
        from prudent.ltl._prism import model_text

        return model_text(self)


@njit(cache=True)
def _reach(choice_start, row_start, successor, seen):
    queue = np.empty(len(seen), np.int64)
    n_queue, at = 0, 0
    for s in range(len(seen)):
        if seen[s]:
            queue[n_queue] = s
            n_queue += 1
    while at < n_queue:
        s = queue[at]
        at += 1
        for e in range(row_start[choice_start[s]], row_start[choice_start[s + 1]]):
            if not seen[successor[e]]:
                seen[successor[e]] = True
                queue[n_queue] = successor[e]
                n_queue += 1
    return seen


def _as_slabs(transitions: Any) -> list[sp.csr_array]:
    """One (n_states, n_states) matrix for each action."""
    is_sparse_list = isinstance(transitions, (list, tuple)) and len(transitions) > 0 and sp.issparse(transitions[0])
    if is_sparse_list:
        slabs = [sp.csr_array(matrix, dtype=float) for matrix in transitions]
        shapes = {tuple(matrix.shape) for matrix in transitions}
        if len(shapes) != 1 or any(rows != columns for rows, columns in shapes):
            raise ValueError(f"transitions need one square matrix for each action, all of one size; got {shapes}.")
    else:
        dense = np.asarray(transitions, dtype=float)
        if dense.ndim != 3 or dense.shape[0] != dense.shape[2] or dense.size == 0:
            raise ValueError(
                f"transitions must have shape (n_states, n_actions, n_states), got {dense.shape}. "
                "For a chain, insert an axis: P[:, None, :]."
            )
        slabs = [sp.csr_array(dense[:, a, :]) for a in range(dense.shape[1])]
    for matrix in slabs:
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    return slabs


def _as_distribution(initial: Any, n_states: int) -> np.ndarray:
    if np.ndim(initial) == 0:
        state = int(initial)
        if not 0 <= state < n_states:
            raise ValueError(f"initial state must be in 0..{n_states - 1}, got {state}.")
        distribution = np.zeros(n_states)
        distribution[state] = 1.0
        return distribution
    return np.array(initial, dtype=float)


def _index_labels(labels, n_states, propositions):
    """Distinct label sets, the index of each state's set, and all propositions in order."""
    sets: list[set[str]] = [set() for _ in range(n_states)]
    if isinstance(labels, Mapping):
        seen = list(labels)
        for proposition, states in labels.items():
            for state in states:
                if not 0 <= int(state) < n_states:
                    raise ValueError(
                        f"label {proposition!r} is given to state {state}, but the states are 0..{n_states - 1}."
                    )
                sets[int(state)].add(proposition)
    else:
        if len(labels) != n_states:
            raise ValueError(f"labels need one set for each of the {n_states} states, got {len(labels)}.")
        for state, names in enumerate(labels):
            if isinstance(names, str):
                raise TypeError(
                    f"labels of state {state} are the string {names!r}; give a set of propositions, like {{{names!r}}}."
                )
            sets[state] = set(names)
        seen = sorted(set().union(*sets))
    declared = tuple(propositions) if propositions is not None else tuple(seen)
    unknown = sorted(set(seen) - set(declared))
    if unknown:
        raise ValueError(f"labels {unknown} are not among the propositions {list(declared)}; declare or correct them.")
    index: dict[frozenset[str], int] = {}
    letter_of = np.array([index.setdefault(frozenset(s), len(index)) for s in sets], dtype=np.int32)
    return tuple(index), letter_of, declared


def _check(mdp: LabelledMDP) -> None:
    """Refuse a table that is not an MDP."""
    P, n = mdp.transitions, mdp.n_states
    if P.shape != (mdp.n_choices, n):
        raise ValueError(f"transitions must have shape (n_choices, n_states) = {(mdp.n_choices, n)}, got {P.shape}.")
    if not np.all(np.isfinite(P.data)) or (P.nnz and P.data.min() < 0):
        raise ValueError("transition probabilities must be finite and not negative.")
    stuck = np.flatnonzero(np.diff(mdp.choice_start) == 0)
    if len(stuck):
        raise ValueError(
            f"state {mdp.name(int(stuck[0]))} has no action ({len(stuck)} such states). "
            "Every state needs one; give a final state a self-loop."
        )
    sums = np.asarray(P.sum(axis=1)).ravel()
    wrong = np.flatnonzero(np.abs(sums - 1.0) > ROW_SUM_TOLERANCE)
    if len(wrong):
        row = int(wrong[0])
        state = int(np.searchsorted(mdp.choice_start, row, side="right") - 1)
        action = mdp.actions[mdp.choice_action[row]]
        raise ValueError(
            f"transition rows must sum to 1; state {mdp.name(state)}, action {action!r} sums to {sums[row]:.12g} "
            f"({len(wrong)} such rows). An action that does not exist needs an all-zero row."
        )
    if mdp.initial.shape != (n,) or mdp.initial.min() < 0 or abs(mdp.initial.sum() - 1.0) > ROW_SUM_TOLERANCE:
        raise ValueError(
            f"initial must be a state or a distribution over {n} states, got an array of shape {mdp.initial.shape} "
            f"that sums to {mdp.initial.sum():.12g}."
        )
    if len(set(mdp.actions)) != mdp.n_actions or mdp.choice_action.max() >= mdp.n_actions:
        raise ValueError(f"actions need one distinct name each, got {mdp.actions}.")
    if mdp.state_names is not None and len(mdp.state_names) != n:
        raise ValueError(f"state_names need one name for each of the {n} states, got {len(mdp.state_names)}.")
