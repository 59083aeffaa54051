"""Imitation from confounded demonstrations: trajectories, learners, roll-out evaluation."""

from prudent.imitation._base import Imitator
from prudent.imitation._causal import CausalImitation
from prudent.imitation._cloning import BehaviourCloning, SequenceCloning
from prudent.imitation._diagnosis import ImitationDiagnosis
from prudent.imitation._evaluate import Evaluation, Result, evaluate
from prudent.imitation._horizon import HorizonReport, suggest_horizon
from prudent.imitation._plots import plot_rollout
from prudent.imitation._policy import HistoryPolicy
from prudent.imitation._residuil import ResiduIL
from prudent.imitation._rollout import demonstrate, make_env
from prudent.imitation._trajectory import (
    Trajectory,
    from_arrays,
    from_minari,
    load_trajectories,
    save_trajectories,
    to_minari,
)
from prudent.imitation._windows import View, Windows, history_windows

__all__ = [
    "BehaviourCloning",
    "CausalImitation",
    "Evaluation",
    "HistoryPolicy",
    "HorizonReport",
    "ImitationDiagnosis",
    "Imitator",
    "ResiduIL",
    "Result",
    "SequenceCloning",
    "Trajectory",
    "View",
    "Windows",
    "demonstrate",
    "evaluate",
    "from_arrays",
    "from_minari",
    "history_windows",
    "load_trajectories",
    "make_env",
    "plot_rollout",
    "save_trajectories",
    "suggest_horizon",
    "to_minari",
]
