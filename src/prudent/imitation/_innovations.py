"""What newer states have that the states before do not predict: where hidden noise shows.

Noise that moves the state and the action together enters the state as something that its past does not say. A policy
that reads it off the newest states, as cloning does, follows the noise. Innovations, s_t less what s_{t-1} to s_{t-m}
predict of it, are the terms in which that can be taken away: linear in them, where the noise adds to the state.
"""

import dataclasses
from typing import Any

import numpy as np

from prudent._progress import Progress
from prudent.cmr._second_stage import SecondStage, function_from_arrays, function_to_arrays
from prudent.imitation._base import default_network, varying_columns
from prudent.imitation._cloning import TRAIN, fit_networks
from prudent.imitation._windows import View, Windows

# States before that predict one; fewer where the policy sees fewer.
MEMORY = 3
N_NETWORKS = 4


@dataclasses.dataclass(frozen=True)
class Innovations:
    """From columns of a policy's view (newest state first) to the same columns and the innovations of newer states.

    ``function`` predicts a state from the ``memory`` states before it, ``n_observed`` columns each. The view's columns
    that never vary are left out of x: ``varying`` are the places of the others, ``fixed`` has the view's values.
    """

    function: SecondStage
    network: Any
    n_observed: int
    n_states: int
    memory: int
    varying: np.ndarray
    fixed: np.ndarray

    @classmethod
    def fit(
        cls, windows: Windows, columns: np.ndarray, view: View, *, seed: int, show_progress: bool | None = None
    ) -> "Innovations":
        """Learn to predict states from the steps that have as many before them; ``columns`` are all of the view's."""
        d, varying = windows.states.shape[2], varying_columns(columns)
        memory = min(MEMORY, view.n_states - 1)
        rows = np.flatnonzero(windows.step >= memory)
        newest, before = columns[rows, :d], columns[rows, d : (1 + memory) * d]
        network = default_network(before.shape[1])
        with Progress(show_progress) as progress:
            function, _ = fit_networks(
                newest,
                before,
                windows.episode[rows],
                network=network,
                n_networks=N_NETWORKS,
                config=TRAIN,
                seed=seed,
                progress=progress,
                label="innovations",
            )
        return cls(function, network, d, view.n_states, memory, varying, columns[0])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(n, columns of x and innovations): of every state that has ``memory`` states before it in the view."""
        full = np.tile(self.fixed, (len(x), 1))
        full[:, self.varying] = x
        d, parts = self.n_observed, [x]
        for lag in range(self.n_states - self.memory):
            before = full[:, (lag + 1) * d : (lag + 1 + self.memory) * d]
            parts.append(full[:, lag * d : (lag + 1) * d] - self.function.predict(before))
        return np.hstack(parts)

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds it."""
        from prudent.nn import spec_to_json

        names = ("n_observed", "n_states", "memory")
        record = {"network": spec_to_json(self.network), **{name: getattr(self, name) for name in names}}
        return record, {**function_to_arrays(self.function), "varying": self.varying, "fixed": self.fixed}

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "Innovations":
        """What :meth:`to_state` wrote."""
        from prudent.nn import spec_from_json

        network = spec_from_json(record["network"])
        sizes = {name: int(record[name]) for name in ("n_observed", "n_states", "memory")}
        function = function_from_arrays(network, sizes["memory"] * sizes["n_observed"], arrays)
        return cls(function, network, varying=arrays["varying"], fixed=arrays["fixed"], **sizes)
