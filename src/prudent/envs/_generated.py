"""Random labelled MDPs and slippery grids of any size, for tests and timing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from prudent.envs._grids import grid
from prudent.ltl._mdp import LabelledMDP


def random_mdp(
    n_states: int,
    n_actions: int,
    propositions: Sequence[str],
    seed: int,
    *,
    n_successors: int = 3,
    density: float = 0.3,
    availability: float = 0.8,
    absorbing: float = 0.2,
) -> LabelledMDP:
    """A random MDP with probabilities that are multiples of 1/16, so that exact arithmetic stays small.

    Parameters
    ----------
    n_successors : int
        Largest number of distinct successors of a choice.
    density : float
        Probability that a proposition holds in a state.
    availability : float
        Probability that an action other than the first exists in a state.
    absorbing : float
        Probability that a state other than the first only loops; without such states most goals have value 0 or 1.
    """
    if n_states < 1 or n_actions < 1 or not 1 <= n_successors <= 16:
        raise ValueError(
            "random_mdp needs n_states >= 1, n_actions >= 1 and 1 <= n_successors <= 16, "
            f"got {n_states}, {n_actions} and {n_successors}."
        )
    rng = np.random.default_rng(seed)
    is_final = rng.random(n_states) < absorbing
    is_final[0] = False
    slabs = []
    for action in range(n_actions):
        rows, columns, values = [], [], []
        for state in range(n_states):
            if action > 0 and rng.random() > availability:
                continue
            if is_final[state]:
                rows.append(state)
                columns.append(state)
                values.append(1.0)
                continue
            n = int(rng.integers(1, min(n_successors, n_states) + 1))
            cuts = np.sort(rng.choice(np.arange(1, 16), size=n - 1, replace=False))
            parts = np.diff(np.concatenate([[0], cuts, [16]])) / 16
            rows += [state] * n
            columns += list(rng.choice(n_states, size=n, replace=False))
            values += list(parts)
        slabs.append(sp.csr_array((values, (rows, columns)), shape=(n_states, n_states)))
    holds = rng.random((n_states, len(propositions))) < density
    labels = {name: np.flatnonzero(holds[:, i]).tolist() for i, name in enumerate(propositions)}
    return LabelledMDP.from_arrays(slabs, labels, initial=0)


def slippery_grid(
    size: int, propositions: Sequence[str] = ("a", "b"), *, holes: float = 0.05, p: float = 0.8, seed: int = 0
) -> LabelledMDP:
    """A ``size`` x ``size`` slippery grid: each proposition in one random cell, label ``h`` on absorbing random holes.

    The start (top left) and the labelled cells are never holes.
    """
    if size < 2 or len(propositions) >= size * size or "h" in propositions:
        raise ValueError(
            f"slippery_grid needs size >= 2, fewer propositions than cells, and keeps 'h' for holes; "
            f"got size={size}, propositions={tuple(propositions)}."
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.arange(1, size * size))
    places = {name: [(int(i) // size, int(i) % size)] for name, i in zip(propositions, order, strict=False)}
    hollow = order[len(propositions) : len(propositions) + int(holes * size * size)]
    cells = np.full(size * size, "~")
    cells[hollow] = "T"
    text = ["".join(row) for row in cells.reshape(size, size)]
    places["h"] = [(int(i) // size, int(i) % size) for i in hollow]
    return grid(text, places, p=p)
