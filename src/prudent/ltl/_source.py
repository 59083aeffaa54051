"""Where samples come from: a labelled MDP used as a simulator, or a Gymnasium environment.

The learner sees states, labels, which actions exist, and draws. It never reads a probability.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.ltl import _explore as ex
from prudent.ltl._automaton import Automaton
from prudent.ltl._book import CONFLICT_KIND, N_OPEN, N_RESETS, N_SLOTS, N_STEPS, NO_CONFLICT, Book, see
from prudent.ltl._interval import Automata
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._product import build_product
from prudent.ltl._rng import seed_state

if TYPE_CHECKING:
    import gymnasium

    from prudent.ltl._certified import Wishes

LabelFunction = Callable[[Any], Iterable[str]]


class ModelSource:
    """A :class:`LabelledMDP` as a simulator."""

    def __init__(self, mdp: LabelledMDP, automaton: Automaton, seed: int):
        product = build_product(mdp, automaton)
        self.mdp = mdp
        self.product = product
        self.action_names = mdp.actions
        self.actions = product.row_of >= 0
        self.automata = _automata(product.next_q, product.accepting, product.epsilon, automaton)
        self.rng = seed_state(seed)
        self.position = np.array([-1], np.int64)

    @property
    def n_observations(self) -> int:
        return self.mdp.n_states

    @property
    def identity(self) -> str:
        """Tells models apart, so that a checkpoint is not continued on another one; nothing is learnt from it."""
        mdp = self.mdp
        arrays = (mdp.transitions.data, mdp.transitions.indices, mdp.choice_start, mdp.letter_of, mdp.initial)
        letters = repr([sorted(letter) for letter in mdp.letters])
        return hashlib.sha256(b"".join(a.tobytes() for a in arrays) + letters.encode()).hexdigest()

    def name(self, state: int) -> str:
        return self.mdp.name(state)

    def explore(self, book: Book, wishes: Wishes, stop_at: int, patience: int, may_reset: bool) -> int:
        """Draw samples until there is a reason to plan; the reason."""
        product = self.product
        return ex.explore_model(
            stop_at,
            patience,
            wishes.watch,
            wishes.fresh_quota,
            wishes.depth,
            wishes.reach,
            book,
            self.actions,
            wishes.quota,
            may_reset,
            wishes.scratch,
            self.position,
            self.rng,
            product.row_of,
            product.row_start,
            product.successor,
            product.cumulative,
            product.first,
            product.first_cumulative,
        )


class EnvSource:
    """A Gymnasium environment with discrete spaces, used through reset and step only.

    Observations are numbered from 0. A path of an LTL model never ends, so that a step that terminates the episode
    leads to a copy of its target, which keeps the labels and loops for ever (that much is known, not sampled).
    """

    def __init__(self, env: gymnasium.Env, label: LabelFunction, automaton: Automaton, seed: int):
        self.env: Any = env
        self.label = label
        self.n_observations = int(self.env.observation_space.n)
        n_actions = int(self.env.action_space.n)
        self.action_names = tuple(f"a{i}" for i in range(n_actions))
        self.actions = np.ones((2 * self.n_observations, n_actions), np.bool_)
        self.actions[self.n_observations :, 1:] = False
        n = 2 * self.n_observations
        n_q = automaton.n_states
        width = max((len(automaton.epsilon(q)) for q in range(n_q)), default=0)
        epsilon = np.full((n_q, width), -1, np.int32)
        for q in range(n_q):
            epsilon[q, : len(automaton.epsilon(q))] = automaton.epsilon(q)
        blank = np.zeros((n, n_q), np.int32)
        self.automaton = automaton
        self.automata = _automata(blank, blank.astype(np.uint64), epsilon, automaton)
        self._letters: dict[frozenset[str], tuple[np.ndarray, np.ndarray]] = {}
        self._labelled = np.zeros(n, np.bool_)
        self.rng = np.zeros(4, np.uint64)
        self.position = np.array([-1], np.int64)
        self._seed: int | None = seed

    @property
    def identity(self) -> str:
        """Tells environments apart as far as their names do."""
        return str(getattr(self.env.spec, "id", type(self.env).__name__))

    def reseed(self, steps: int) -> None:
        """Other random numbers than those of the first ``steps`` steps, which are not to be counted twice."""
        self._seed = int(np.random.SeedSequence([self._seed or 0, steps]).generate_state(1)[0])

    def unseen_propositions(self) -> set[str]:
        """Propositions of the goal that were true in no state seen."""
        return set(self.automaton.propositions) - set().union(*self._letters)

    def name(self, state: int) -> str:
        return str(state) if state < self.n_observations else f"{state - self.n_observations} (over)"

    def explore(self, book: Book, wishes: Wishes, stop_at: int, patience: int, may_reset: bool) -> int:
        """Draw samples until there is a reason to plan; the reason."""
        reset_row = len(book.visits) - 1
        n_actions = self.actions.shape[1]
        surprised = False
        first_action = int(getattr(self.env.action_space, "start", 0))
        while True:
            tally = book.tally
            if tally[CONFLICT_KIND] != NO_CONFLICT:
                return ex.CONFLICT
            if tally[N_STEPS] >= stop_at:
                return ex.BUDGET
            if tally[N_OPEN] == 0:
                return ex.SATISFIED
            if surprised and tally[N_STEPS] >= patience:
                return ex.SURPRISE
            if tally[N_SLOTS] + 2 >= len(book.slot_row):
                return ex.POOL_FULL
            s = int(self.position[0])
            if s < 0:
                observation, _ = self.env.reset(seed=self._seed)
                self._seed = None
                self.position[0] = self._state(book, observation, False)
                tally[N_RESETS] += 1
                see(book, int(self.position[0]))
                if may_reset or book.visits[reset_row] == 0:
                    surprised |= self._note(book, reset_row, wishes)
                continue
            if s >= self.n_observations:
                # The episode is over: the environment itself asks for a reset.
                self.position[0] = -1
                continue
            action = ex.decide(book, self.actions, wishes.quota, may_reset, wishes.scratch, s)
            if action == ex.STUCK:
                return ex.LOST
            if action == ex.RESET:
                self.position[0] = -1
                continue
            observation, _, terminated, truncated, _ = self.env.step(first_action + int(action))
            self.position[0] = self._state(book, observation, bool(terminated))
            surprised |= self._note(book, s * n_actions + int(action), wishes)
            if truncated and not terminated:
                self.position[0] = -1

    def _note(self, book: Book, row: int, wishes: Wishes) -> bool:
        state, fresh = int(self.position[0]), wishes.fresh_quota
        is_new = ex.note(book, self.actions, wishes.quota, row, state, fresh, wishes.depth, wishes.reach)
        return bool(is_new) and wishes.watch

    def _state(self, book: Book, observation: Any, is_over: bool) -> int:
        """Number of a state; its labels are read when it is seen first."""
        start = int(getattr(self.env.observation_space, "start", 0))
        state = int(observation) - start
        if not 0 <= state < self.n_observations:
            raise ValueError(
                f"observations must be in {start}..{start + self.n_observations - 1}, got {observation}. "
                "Correct the environment's observation_space."
            )
        if is_over:
            state += self.n_observations
        if not self._labelled[state]:
            self.relabel(state, observation)
            if is_over:
                _know_loop(book, state * self.actions.shape[1], state)
        return state

    def relabel(self, state: int, observation: Any) -> None:
        """Enter the automaton's moves on leaving ``state``."""
        names = self.label(observation)
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise TypeError(
                f"label must return the propositions that are true, as in {{'goal'}}; for observation {observation} it "
                f"returned {names!r}."
            )
        letter = frozenset(names) & frozenset(self.automaton.propositions)
        if letter not in self._letters:
            table, accepting = self.automaton.tabulate([letter])
            self._letters[letter] = (np.asarray(table, np.int32)[:, 0], np.asarray(accepting, np.uint64)[:, 0])
        self.automata.next_q[state], self.automata.accepting[state] = self._letters[letter]
        self._labelled[state] = True

    def relabel_seen(self, book: Book) -> None:
        """Labels of the states of a book that was read from a file."""
        start = int(getattr(self.env.observation_space, "start", 0))
        for state in np.flatnonzero(book.is_seen):
            self.relabel(int(state), start + int(state) % self.n_observations)


def _know_loop(book: Book, row: int, state: int) -> None:
    """A row that is known to stay: certified without a draw."""
    slot = book.tally[N_SLOTS]
    book.tally[N_SLOTS] += 1
    book.slot_row[slot], book.slot_state[slot], book.slot_place[slot] = row, state, 1
    book.slot_count[slot], book.slot_low[slot], book.slot_high[slot] = 1, 1.0, 1.0
    book.head[row], book.n_seen[row], book.visits[row] = slot, 1, 1
    book.certified[row] = True


def _automata(next_q: np.ndarray, accepting: np.ndarray, epsilon: np.ndarray, automaton: Automaton) -> Automata:
    """Tables with two more states, the sink and the start, which leave the automaton where it is."""
    still = np.arange(automaton.n_states, dtype=np.int32)
    return Automata(
        next_q=np.ascontiguousarray(np.vstack([next_q, still, still])),
        accepting=np.ascontiguousarray(np.vstack([accepting, np.zeros((2, automaton.n_states), np.uint64)])),
        epsilon=epsilon,
        initial=automaton.initial,
        all_sets=np.uint64((1 << automaton.n_sets) - 1),
        is_trap=np.array([automaton.is_trap(q) for q in range(automaton.n_states)]),
    )
