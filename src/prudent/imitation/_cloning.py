"""Behaviour cloning: regression of recorded actions on what was seen, without regard to hidden noise."""

from typing import Any

import jax
import numpy as np

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._arrays import Scaler
from prudent.cmr._folds import held_out_splits
from prudent.cmr._outcome import squared_loss
from prudent.cmr._second_stage import SecondStage
from prudent.imitation._base import NetworkImitator, default_network
from prudent.imitation._windows import View, Windows
from prudent.nn import NetworkSpec, TrainConfig, TrainLog, fit_stack, stack_networks

TRAIN = TrainConfig(weight_decay=0.1, batch_size=256, max_steps=3000, evaluate_every=150)


def fit_networks(
    y: np.ndarray,
    x: np.ndarray,
    episode: np.ndarray,
    *,
    network: NetworkSpec,
    n_networks: int,
    config: TrainConfig,
    seed: int,
    progress: Progress | None,
    label: str,
) -> tuple[SecondStage, TrainLog]:
    """A regression of y on x by networks that stop on held-out episodes."""
    x_scaler, y_scaler = Scaler.of(x), Scaler.of(y)
    rng = np.random.default_rng(seed)
    splits = held_out_splits(np.arange(len(x)), n_networks, rng, episode)
    key = jax.random.key(int(rng.integers(2**31 - 1)))
    networks = stack_networks(lambda k: network(x.shape[1], y.shape[1], key=k), n_networks, key)
    networks, log = fit_stack(
        networks,
        squared_loss,
        {"c": x_scaler.forward(x), "y": y_scaler.forward(y)},
        [train for train, _ in splits],
        [held for _, held in splits],
        config,
        seed=int(rng.integers(2**31 - 1)),
        progress=progress,
        label=label,
    )
    return SecondStage(networks, x_scaler, y_scaler), log


class BehaviourCloning(NetworkImitator):
    """E[a_t | s_t] by networks that stop on held-out episodes.

    Parameters
    ----------
    relative : tuple of int
        Columns that enter as differences from step to step.
    network : NetworkSpec, optional
        By default that of the other neural estimators.
    n_networks : int, default=4
        Networks that are averaged.
    train : TrainConfig, optional
    seed : int, default=0
    show_progress : bool, optional
        Bars on standard error; by default only on a terminal.
    """

    def __init__(
        self,
        *,
        relative: tuple[int, ...] = (),
        network: NetworkSpec | None = None,
        n_networks: int = 4,
        train: TrainConfig | None = None,
        seed: int = 0,
        show_progress: bool | None = None,
    ):
        self.relative = relative
        self.network = network
        self.n_networks = n_networks
        self.train = train
        self.seed = seed
        self.show_progress = show_progress

    def _check_settings(self) -> None:
        check_count("n_networks", self.n_networks, 1)

    def _policy_view(self) -> View:
        return View(1, 0, relative=tuple(self.relative))

    def _window_length(self) -> int:
        return self._policy_view().length

    def _learn(self, windows: Windows, x: np.ndarray) -> None:
        self.network_ = self.network or default_network(x.shape[1])
        with Progress(self.show_progress) as progress:
            self.function_, self.log_ = fit_networks(
                windows.actions[:, -1],
                x,
                windows.episode,
                network=self.network_,
                n_networks=self.n_networks,
                config=self.train or TRAIN,
                seed=self.seed,
                progress=progress,
                label="cloning",
            )


class SequenceCloning(BehaviourCloning):
    """E[a_t | window]: cloning with history (BC-SEQ), which imitates the noise best of all.

    Parameters
    ----------
    window : int
        Steps of the window, s_t included; the protocol's is k + 3.
    use_actions : bool, default=True
        Whether the policy sees past actions.
    """

    def __init__(self, *, window: int, use_actions: bool = True, **settings: Any):
        super().__init__(**settings)
        self.window = window
        self.use_actions = use_actions

    def _check_settings(self) -> None:
        super()._check_settings()
        check_count("window", self.window, 1)

    def _policy_view(self) -> View:
        return View(self.window, self.window - 1 if self.use_actions else 0, relative=tuple(self.relative))

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "window": self.window, "use_actions": self.use_actions}
