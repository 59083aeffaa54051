"""What all imitators share: columns from windows, prediction, policy, saving."""

import abc
import copy
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from prudent._checks import check_count
from prudent.cmr._arrays import as_matrix
from prudent.cmr._base import check_seed
from prudent.errors import DataError, NotFittedError
from prudent.imitation._policy import HistoryPolicy
from prudent.imitation._trajectory import check_trajectories
from prudent.imitation._windows import View, Windows, history_windows

if TYPE_CHECKING:
    from prudent.cmr._second_stage import SecondStage
    from prudent.nn import TrainConfig


class Imitator(abc.ABC):
    """A learner of policies from demonstrations.

    Subclasses name what the policy sees (:meth:`_policy_view`) and learn a function of it (:meth:`_learn`).
    """

    seed: int
    relative: tuple[int, ...]
    # Steps over which the noise is correlated, for learners that know of it.
    noise_horizon: int = 0

    def fit(self, trajectories: Any) -> Self:
        """Learn from demonstrations: a sequence of :class:`Trajectory`."""
        # In a copy: a fit that fails leaves an earlier one as it was.
        fitted = copy.copy(self)
        fitted._fit(trajectories)
        vars(self).update(vars(fitted))
        return self

    def _fit(self, trajectories: Any) -> None:
        check_seed(self.seed)
        found = check_trajectories(trajectories)
        self.n_observed_ = found[0].observations.shape[1]
        self.n_acted_ = found[0].actions.shape[1]
        check_relative(self.relative, self.n_observed_)
        self._check_settings()
        n_long, k = sum(len(t) > self.noise_horizon for t in found), self.noise_horizon
        if n_long < 2:
            rule = "at least two episodes" + (f" of more than {k} steps" if k else "")
            cure = "Bring more episodes." if len(found) < 2 or not k else "Lower the horizon, or bring longer episodes."
            longest = max(len(t) for t in found)
            raise DataError(f"{rule} are needed, got {n_long} among {len(found)} (longest: {longest} steps). {cure}")
        self.view_ = self._policy_view()
        windows = history_windows(found, self._window_length())
        self._prepare(windows)
        # A policy starts with a padded window, so it learns from such windows, too.
        x = self._columns(windows.states, windows.actions, windows.step)
        varying = varying_columns(x)
        if len(varying) == 0:
            raise DataError("observations never vary, so no policy can be learnt from them.")
        if len(varying_columns(np.vstack([t.actions for t in found]))) == 0:
            raise DataError("the recorded actions never vary: there is nothing to learn from them. Are they recorded?")
        self._learn(windows, x[:, varying])
        self.varying_ = varying

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._described()}), {'fitted' if hasattr(self, 'varying_') else 'not fitted'}"

    def _described(self) -> str:
        """Settings to be shown."""
        shown = {name: value for name, value in self._settings().items() if value and not isinstance(value, dict)}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    @property
    def policy_view(self) -> View:
        """What the fitted policy sees of a window."""
        self._check_fitted()
        return self.view_

    def predict(self, x: Any) -> np.ndarray:
        """Actions (n, a) for columns of ``policy_view`` (n, columns): the newest state first."""
        self._check_fitted()
        width = self.view_.width(self.n_observed_, self.n_acted_)
        return self._evaluate(as_matrix("x", x, n_columns=width)[:, self.varying_])

    def predict_windows(self, windows: Windows) -> np.ndarray:
        """Actions (n, a) for windows of demonstrations."""
        self._check_fitted()
        if windows.states.shape[1] < self.view_.length:
            raise DataError(
                f"this policy needs windows of at least {self.view_.length} steps, got {windows.states.shape[1]}."
            )
        found, expected = (windows.states.shape[2], windows.actions.shape[2]), (self.n_observed_, self.n_acted_)
        if found != expected:
            raise DataError(
                f"this policy was learnt from {expected[0]} observed and {expected[1]} action columns, got {found[0]} "
                f"and {found[1]}. Give demonstrations of the same environment."
            )
        return self.predict(self._columns(windows.states, windows.actions, windows.step))

    def action_error(self, trajectories: Any) -> float:
        """Mean squared error of predicted *recorded* actions: the held-out loss that looks fine and says little."""
        self._check_fitted()
        windows = history_windows(trajectories, self.view_.length)
        return float(np.mean((self.predict_windows(windows) - windows.actions[:, -1]) ** 2))

    def policy(self, action_space: Any = None) -> HistoryPolicy:
        """An agent with its own history: ``act(observation)``, ``reset()``. ``action_space`` clips its actions."""
        self._check_fitted()
        return HistoryPolicy(self, self.view_, action_space, columns=self._columns)

    def save(self, folder: str | Path) -> Path:
        """Write the model as ``model.json`` and ``weights.safetensors``; read it with :func:`prudent.load`."""
        self._check_fitted()
        from prudent._storage import save_model

        learnt, arrays = self._learnt_state()
        record = {
            "settings": self._settings(),
            "view": dataclasses.asdict(self.view_),
            "n_observed": self.n_observed_,
            "n_acted": self.n_acted_,
            "learnt": learnt,
        }
        return save_model(folder, type(self).__name__, record, {**arrays, "varying": self.varying_})

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Rebuild from what :meth:`save` wrote."""
        model = cls(**cls._read_settings(record["settings"]))
        model.view_ = View(**_with_tuples(record["view"]))
        model.n_observed_, model.n_acted_ = int(record["n_observed"]), int(record["n_acted"])
        model.varying_ = arrays.pop("varying")
        model._restore(record["learnt"], arrays)
        return model

    @abc.abstractmethod
    def _policy_view(self) -> View:
        """What the policy sees of a window."""

    @abc.abstractmethod
    def _window_length(self) -> int:
        """Steps of the windows that are learnt from."""

    def _prepare(self, windows: Windows) -> None:  # noqa: B027 (most learners have nothing to prepare)
        """Learn what :meth:`_columns` needs."""

    def _columns(self, states: np.ndarray, actions: np.ndarray, step: np.ndarray) -> np.ndarray:
        """What the policy sees of windows that end at ``step`` (n,) of their episodes."""
        return self.view_.columns(states, actions)

    @abc.abstractmethod
    def _learn(self, windows: Windows, x: np.ndarray) -> None:
        """Learn from complete windows and the columns that the policy sees of them."""

    @abc.abstractmethod
    def _evaluate(self, x: np.ndarray) -> np.ndarray:
        """The learnt function."""

    @abc.abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Constructor arguments, as JSON."""

    @classmethod
    def _read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Inverse of :meth:`_settings`."""
        return _with_tuples(settings)

    @abc.abstractmethod
    def _learnt_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What :meth:`_restore` needs."""

    @abc.abstractmethod
    def _restore(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Inverse of :meth:`_learnt_state`."""

    @abc.abstractmethod
    def _check_settings(self) -> None:
        """Raise where a setting makes no sense."""

    def _check_fitted(self) -> None:
        if not hasattr(self, "varying_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted. Call fit(trajectories) first.")


class NetworkImitator(Imitator):
    """An imitator whose learnt function is an ensemble of networks."""

    network: Any
    n_networks: int
    train: "TrainConfig | None"
    function_: "SecondStage"

    def _evaluate(self, x: np.ndarray) -> np.ndarray:
        return self.function_.predict(x)

    def _settings(self) -> dict[str, Any]:
        train = None if self.train is None else dataclasses.asdict(self.train)
        return {"relative": self.relative, "n_networks": self.n_networks, "train": train, "seed": self.seed}

    @classmethod
    def _read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        from prudent.nn import TrainConfig

        settings = super()._read_settings(settings)
        if settings.get("train") is not None:
            settings["train"] = TrainConfig(**settings["train"])
        return settings

    def _learnt_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        from prudent.cmr._second_stage import function_to_arrays
        from prudent.nn import spec_to_json

        return {"network": spec_to_json(self.network_)}, function_to_arrays(self.function_)

    def _restore(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        from prudent.cmr._second_stage import function_from_arrays
        from prudent.nn import spec_from_json

        self.network_ = self.network = spec_from_json(record["network"])
        self.function_ = function_from_arrays(self.network_, len(self.varying_), arrays)


def _with_tuples(record: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}


def varying_columns(x: np.ndarray) -> np.ndarray:
    """Columns to learn from. One that never varies says nothing, and would only be amplified where it does."""
    return np.flatnonzero(np.ptp(x, axis=0) > 0)


def check_relative(relative: Any, width: int) -> None:
    """Raise unless ``relative`` is a sequence of column numbers of observations of ``width`` columns."""
    if not isinstance(relative, tuple | list):
        raise DataError(f"relative must be a tuple of column numbers, got {relative!r}. For one column: (0,)")
    for column in relative:
        check_count("every column in relative", column, 0)
        if column >= width:
            raise DataError(f"relative names column {column}, but observations have columns 0 to {width - 1}.")


def default_network(n_columns: int) -> Any:
    """Embeddings for a narrow input: states are asked for where there are demonstrations, so waves do no harm."""
    from prudent.cmr._neural import MAX_EMBEDDED
    from prudent.nn import TabularSpec

    return TabularSpec(embed=tuple(range(n_columns)) if n_columns <= MAX_EMBEDDED else ())
