"""ResiduIL (Swamy, Choudhury, Bagnell and Wu, 2022): a moment game with a past state as instrument.

min over pi, max over f of E[2 (a_t - pi(s_t)) f(s_{t-k}) - f(s_{t-k})^2]; with the best f the value is the squared
conditional moment. The authors take lag 1; with noise of horizon k the lag must be k. Policy and critic are two parts
of one network here, stepped together by optimistic Adam, so that the one training loop serves.

Where s_{t-k} hardly moves s_t, the game drives the policy far out for the sake of chance correlations of the sample,
so that the policy needs a regulariser. The authors' is a share of the cloning loss, which fills what the moment leaves
open with cloned noise; by default it is here a share of the size of the action (in standard units).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._arrays import Scaler
from prudent.cmr._second_stage import SecondStage
from prudent.errors import DataError
from prudent.imitation._base import NetworkImitator
from prudent.imitation._windows import View, Windows, instrument_columns
from prudent.nn import MLPSpec, Network, NetworkSpec, TrainConfig, fit_stack, stack_networks

# Weights of the authors: regulariser of the policy, size of the critic.
POLICY_WEIGHT = 5e-2
CRITIC_WEIGHT = 1e-3
TRAIN = TrainConfig(
    learning_rate=5e-4, weight_decay=1e-3, batch_size=128, max_steps=6000, evaluate_every=500, optimistic=True
)


class Game(eqx.Module):
    """A policy and its critic."""

    policy: Network
    critic: Network


class GameLoss(eqx.Module):
    """Loss of a game. Static fields only, so that equal settings reuse a compiled program."""

    towards: str = eqx.field(static=True)

    def __call__(self, game: Game, batch: Any, key: Any) -> jax.Array:
        """Per row: what the policy makes small, and what the critic makes large, with its sign turned."""
        stop = jax.lax.stop_gradient
        action = game.policy(batch["x"], key=key)
        residual = batch["a"] - action
        f = game.critic(batch["z"], key=key)
        size = residual if self.towards == "cloning" else action
        policy = jnp.sum(2 * residual * stop(f) + POLICY_WEIGHT * size**2, axis=-1)
        norm = jnp.sqrt(jnp.mean(f**2) + 1e-12)
        critic = jnp.sum(2 * stop(residual) * f - f**2, axis=-1) - CRITIC_WEIGHT * norm
        return policy - critic


class ResiduIL(NetworkImitator):
    """History-free policy from the moment E[a_t - pi(s_t) | s_{t-k}] = 0, solved as a game.

    Parameters
    ----------
    noise_horizon : int
        Lag k of the instrument.
    towards : {"mean", "cloning"}, default="mean"
        Where the regulariser pulls the policy: to the mean action, or to cloning, as the authors do.
    relative, network, n_networks, train, seed, show_progress
        As for :class:`BehaviourCloning`; networks are 128-128 with rectifiers (the authors' are twice as wide).
    """

    def __init__(
        self,
        *,
        noise_horizon: int,
        towards: str = "mean",
        relative: tuple[int, ...] = (),
        network: NetworkSpec | None = None,
        n_networks: int = 2,
        train: TrainConfig | None = None,
        seed: int = 0,
        show_progress: bool | None = None,
    ):
        self.noise_horizon = noise_horizon
        self.towards = towards
        self.relative = relative
        self.network = network
        self.n_networks = n_networks
        self.train = train
        self.seed = seed
        self.show_progress = show_progress

    def _check_settings(self) -> None:
        check_count("noise_horizon", self.noise_horizon, 1)
        check_count("n_networks", self.n_networks, 1)
        if self.towards not in ("mean", "cloning"):
            raise DataError(f"towards must be 'mean' or 'cloning', got {self.towards!r}.")

    def _policy_view(self) -> View:
        return View(1, 0, relative=tuple(self.relative))

    def _instrument_view(self) -> View:
        return View(1, 0, newest=self.noise_horizon, relative=tuple(self.relative))

    def _window_length(self) -> int:
        return self._instrument_view().length

    def _learn(self, windows: Windows, x: np.ndarray) -> None:
        y = windows.actions[:, -1]
        z = instrument_columns(windows, self._instrument_view())
        x_scaler, y_scaler, z_scaler = Scaler.of(x), Scaler.of(y), Scaler.of(z)
        self.network_ = self.network or MLPSpec((128, 128), "relu")
        rng = np.random.default_rng(self.seed)

        def build(key: jax.Array) -> Game:
            first, second = jax.random.split(key)
            return Game(
                self.network_(x.shape[1], y.shape[1], key=first), self.network_(z.shape[1], y.shape[1], key=second)
            )

        data = {"x": x_scaler.forward(x), "a": y_scaler.forward(y), "z": z_scaler.forward(z)}
        with Progress(self.show_progress) as progress:
            games, self.log_ = fit_stack(
                stack_networks(build, self.n_networks, jax.random.key(int(rng.integers(2**31 - 1)))),
                GameLoss(self.towards),
                data,
                [np.arange(len(x))] * self.n_networks,
                [np.empty(0, dtype=int)] * self.n_networks,
                self.train or TRAIN,
                seed=int(rng.integers(2**31 - 1)),
                progress=progress,
                label="ResiduIL",
            )
        self.function_ = SecondStage(games.policy, x_scaler, y_scaler)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "noise_horizon": self.noise_horizon, "towards": self.towards}
