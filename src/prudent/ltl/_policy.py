"""Policies with finite memory: an action for every pair of environment state and automaton state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prudent.errors import PrudentError
from prudent.ltl._automaton import Automaton, Edge
from prudent.ltl._evaluate import ACTION_MISSING, expand, resolve_memory
from prudent.ltl._formula import TRUE
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._product import Product, build_product

_FORMAT = "prudent-ltl-policy"
_VERSION = 1


class PolicyFileError(PrudentError, ValueError):
    """A policy file that cannot be read."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A simulated path: one state more than actions; ``memory[t]`` is the memory on reaching ``states[t]``."""

    states: np.ndarray
    actions: np.ndarray
    memory: np.ndarray
    letters: tuple[frozenset[str], ...]


class Policy:
    """A deterministic policy whose memory is the state of an automaton.

    Parameters
    ----------
    automaton : Automaton
        Moves the memory on the labels of the state that is left.
    actions : tuple of str
        Names of the environment's actions.
    choices : int array, shape (n_states, automaton.n_states)
        An action's index, or ``len(actions) + q`` for the epsilon move to automaton state ``q``, which takes no time.
    formula : str, optional
        The goal that it was made for, kept with the policy.

    Examples
    --------
    >>> from prudent import envs
    >>> policy = Policy.memoryless(envs.probabilistic_gate(), [2] * 22)
    >>> policy.act(0, {"a"})
    2
    """

    def __init__(
        self, automaton: Automaton, actions: Iterable[str], choices: np.ndarray, *, formula: str | None = None
    ):
        self.automaton = automaton
        self.formula = formula
        self.actions = tuple(actions)
        self._table = np.array(choices, dtype=np.int32)
        # Users see a read-only view; kernels take the array itself, or Numba would compile them a second time.
        self.choices = self._table.view()
        self.choices.setflags(write=False)
        self._check()
        self.reset()

    def _check(self) -> None:
        if self.choices.ndim != 2 or self.choices.shape[1] != self.automaton.n_states:
            raise ValueError(
                f"choices need one column for each of the {self.automaton.n_states} automaton states, "
                f"got shape {self.choices.shape}."
            )
        n_actions = len(self.actions)
        if self.choices.size and (self.choices.min() < 0 or self.choices.max() >= n_actions + self.automaton.n_states):
            raise ValueError(
                f"choices must be actions 0..{n_actions - 1} or epsilon moves "
                f"{n_actions}..{n_actions + self.automaton.n_states - 1}."
            )
        for q in range(self.automaton.n_states):
            moves = {int(c) - n_actions for c in np.unique(self.choices[:, q]) if c >= n_actions}
            missing = moves - set(self.automaton.epsilon(q))
            if missing:
                raise ValueError(f"choices use an epsilon move from {q} to {min(missing)}, which the automaton lacks.")

    @classmethod
    def memoryless(cls, mdp: LabelledMDP, actions: Iterable[int]) -> Policy:
        """A policy without memory: one action for each state."""
        automaton = Automaton((), 0, [[Edge(TRUE, 0, frozenset([0]))]], [()])
        return cls(automaton, mdp.actions, np.asarray(list(actions), np.int32)[:, None])

    @property
    def table(self) -> np.ndarray:
        """The choices for the kernels; not to be written."""
        return self._table

    @property
    def n_states(self) -> int:
        return self.choices.shape[0]

    def reset(self) -> None:
        """Start a new episode: the memory goes back to the automaton's initial state."""
        self.memory = self.automaton.initial

    def act(self, state: int, labels: Iterable[str]) -> int:
        """The action in ``state``, whose true propositions are ``labels``; the memory moves on."""
        if not 0 <= state < self.n_states:
            raise ValueError(f"state must be in 0..{self.n_states - 1}, got {state}.")
        acting = resolve_memory(self._table, len(self.actions), state, self.memory)
        if acting < 0:
            raise ValueError(f"the policy's epsilon moves in state {state} never end; it has no action there.")
        self.memory, _ = self.automaton.step(acting, frozenset(labels))
        return int(self.choices[state, acting])

    def simulate(self, mdp: LabelledMDP, steps: int, *, seed: int = 0) -> Trajectory:
        """Follow the policy in ``mdp`` for ``steps`` steps from a random first state."""
        self.check_model(mdp)
        rng = np.random.default_rng(seed)
        self.reset()
        states = [int(rng.choice(mdp.n_states, p=mdp.initial))]
        actions, memory = [], [self.memory]
        for _ in range(steps):
            action = self.act(states[-1], mdp.labels(states[-1]))
            outcome = mdp.successors(states[-1], action)
            states.append(int(rng.choice(list(outcome), p=list(outcome.values()))))
            actions.append(action)
            memory.append(self.memory)
        self.reset()
        return Trajectory(np.array(states), np.array(actions), np.array(memory), tuple(mdp.labels(s) for s in states))

    def check_model(self, mdp: LabelledMDP) -> None:
        """Refuse a model with other states or actions."""
        if mdp.n_states != self.n_states or mdp.actions != self.actions:
            raise ValueError(
                f"the policy is for {self.n_states} states and actions {', '.join(self.actions)}; "
                f"the model has {mdp.n_states} states and actions {', '.join(mdp.actions)}."
            )

    def induced_chain(self, mdp: LabelledMDP) -> LabelledMDP:
        """The Markov chain over pairs of state and memory; epsilon moves take no time and are not states of it."""
        return self.unfold_chain(mdp)[0]

    def unfold_chain(self, mdp: LabelledMDP) -> tuple[LabelledMDP, np.ndarray, np.ndarray]:
        """The induced chain, with the environment state and the memory of each of its states."""
        self.check_model(mdp)
        product = build_product(mdp, self.automaton, strict=False)
        codes, start, target, weight = self._expand(product)
        n_memory = self.automaton.n_states
        states, memory = codes // n_memory, codes % n_memory
        stuck = np.flatnonzero(np.diff(start) == 0)
        if len(stuck):
            raise ValueError(
                f"the policy's epsilon moves in state {mdp.name(int(states[stuck[0]]))} never end; no chain."
            )
        import scipy.sparse as sp

        initial = np.zeros(len(codes))
        initial[: len(product.first)] = product.first_probability
        chain = LabelledMDP(
            transitions=sp.csr_array((weight, target, start), shape=(len(codes), len(codes))),
            choice_start=np.arange(len(codes) + 1, dtype=np.int32),
            choice_action=np.zeros(len(codes), np.int32),
            actions=("ac",),
            propositions=mdp.propositions,
            letters=mdp.letters,
            letter_of=mdp.letter_of[states],
            initial=initial,
            state_names=tuple(f"{mdp.name(int(s))}|{m}" for s, m in zip(states, memory, strict=True)),
        )
        return chain, states, memory

    def _expand(self, product: Product) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        # A judge with one state leaves nodes (state, memory).
        n_states, n_memory = product.next_q.shape
        status, codes, start, target, weight = expand(
            self._table,
            product.row_of,
            product.row_start,
            product.successor,
            product.probability,
            product.next_q,
            np.zeros((n_states, 1), np.int32),
            np.empty((1, 0), np.int32),
            product.first,
            self.automaton.initial,
            0,
            np.full(n_states * n_memory, -1, np.int64),
        )
        if status == ACTION_MISSING:
            raise missing_action(self, product)
        return codes, start, target, weight

    def to_prism(self, mdp: LabelledMDP) -> str:
        """The induced chain in the PRISM language: ``m`` is the environment's state, ``a`` the automaton's."""
        from prudent.ltl._prism import chain_text

        return chain_text(self, mdp)

    def save(self, path: str | Path) -> None:
        """Write the policy as JSON; the automaton is stored in HOA format."""
        record = {
            "format": _FORMAT,
            "version": _VERSION,
            "actions": list(self.actions),
            "automaton": self.automaton.to_hoa(),
            "choices": self.choices.tolist(),
            "formula": self.formula,
        }
        Path(path).write_text(json.dumps(record) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy written by ``save``."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise PolicyFileError(f"{path} is not a policy file: not valid JSON ({error}).") from error
        if not isinstance(record, dict) or record.get("format") != _FORMAT:
            raise PolicyFileError(f"{path} is not a policy file: its 'format' is not {_FORMAT!r}.")
        if record.get("version") != _VERSION:
            raise PolicyFileError(
                f"{path} has policy version {record.get('version')!r}, this release reads version {_VERSION}. "
                "Save the policy again, or use the release that wrote it."
            )
        try:
            automaton = Automaton.from_hoa(record["automaton"])
            choices = np.array(record["choices"], dtype=np.int32)
            return cls(automaton, record["actions"], choices, formula=record.get("formula"))
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyFileError(f"{path} is a corrupt policy file: {error}") from error


def missing_action(policy: Policy, product: Product) -> ValueError:
    """The error for a policy that takes an action where it does not exist."""
    exists = np.pad(product.row_of >= 0, ((0, 0), (0, policy.automaton.n_states)), constant_values=True)
    bad = np.argwhere(~np.take_along_axis(exists, policy.choices, axis=1))
    state, memory = (int(i) for i in bad[0])
    return ValueError(
        f"the policy takes {policy.actions[policy.choices[state, memory]]!r} in state {product.mdp.name(state)} "
        f"with memory {memory}, where only {[product.mdp.actions[a] for a in product.mdp.available(state)]} exist."
    )
