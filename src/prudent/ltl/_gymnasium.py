"""Labelled MDPs from Gymnasium environments that expose their transition table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from prudent.ltl._mdp import LabelledMDP

if TYPE_CHECKING:
    import gymnasium


def model_from_table(
    env: gymnasium.Env, label: Callable[[int], Iterable[str]], propositions: Sequence[str] | None
) -> LabelledMDP:
    """Model of a toy-text environment.

    A path of an LTL model never ends, so that a transition that ends the episode leads to an absorbing copy of its
    target with the same labels (or to the target itself where that is absorbing already).
    """
    base: Any = env.unwrapped
    table = getattr(base, "P", None)
    if not isinstance(table, dict):
        raise TypeError(
            f"{type(base).__name__} has no transition table P[state][action]; only such (toy-text) environments can be "
            "read as a model. Wrap others with ltl.ProductEnv."
        )
    n_states, n_actions = len(table), len(table[0])
    absorbing = {s for s in table if all(target == s for a in table[s] for _, target, _, _ in table[s][a])}
    copies: dict[int, int] = {}
    rows: list[tuple[list[int], list[int], list[float]]] = [([], [], []) for _ in range(n_actions)]
    for s in range(n_states):
        for a in range(n_actions):
            for p, target, _, is_over in table[s][a]:
                if is_over and target not in absorbing:
                    target = copies.setdefault(target, n_states + len(copies))
                rows[a][0].append(s)
                rows[a][1].append(int(target))
                rows[a][2].append(float(p))
    n = n_states + len(copies)
    for copy in copies.values():
        for a in range(n_actions):
            rows[a][0].append(copy)
            rows[a][1].append(copy)
            rows[a][2].append(1.0)
    slabs = [sp.csr_array((p, (source, target)), shape=(n, n)) for source, target, p in rows]
    labels = [set(label(s)) for s in range(n_states)]
    labels += [labels[original] for original in copies]
    start = np.zeros(n)
    start[:n_states] = np.asarray(getattr(base, "initial_state_distrib", np.eye(n_states)[0]), float)
    names = [str(s) for s in range(n_states)] + [f"{original} (over)" for original in copies]
    return LabelledMDP.from_arrays(
        slabs, labels, initial=start / start.sum(), propositions=propositions, state_names=names
    )
