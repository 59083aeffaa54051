"""ResiduIL (Swamy, Choudhury, Bagnell and Wu, 2022): a moment game with a past state as instrument.

min over pi, max over f of E[2 (a_t - pi(s_t)) f(s_{t-k}) - f(s_{t-k})^2]; with the best f the value is the squared
conditional moment. The authors take lag 1; with noise of horizon k the lag must be k. Policy and critic are two parts
of one network here, stepped together by optimistic Adam, so that the one training loop serves.

Where s_{t-k} hardly moves s_t, the game drives the policy far out for the sake of chance correlations of the sample. The
weights that are kept are therefore those whose moment is smallest on held-out episodes; they start at zero.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from prudent._progress import Progress
from prudent.cmr._arrays import Scaler
from prudent.cmr._folds import held_out_splits
from prudent.cmr._second_stage import SecondStage
from prudent.errors import DataError
from prudent.imitation._base import NetworkImitator, check_count
from prudent.imitation._windows import View, Windows
from prudent.nn import (
    MLPSpec,
    Network,
    NetworkSpec,
    TrainConfig,
    apply_in_blocks,
    fit_stack,
    stack_networks,
    take_members,
)

# The authors' weights of the size of the critic and, on robots, of the squared weights of both networks (not biases).
CRITIC_WEIGHT = 1e-3
SQUARE_WEIGHT = 5e-3
TRAIN = TrainConfig(
    learning_rate=5e-4, weight_decay=0.0, batch_size=128, max_steps=6000, evaluate_every=200, optimistic=True
)
# Test functions of the held-out moment.
N_TESTS = 100


class Game(eqx.Module):
    """A policy and its critic."""

    policy: Network
    critic: Network


class GameLoss(eqx.Module):
    """Loss of a game. Static fields only, so that equal settings reuse a compiled program."""

    cloning_weight: float = eqx.field(static=True)

    def __call__(self, game: Game, batch: Any, key: Any) -> jax.Array:
        """Per row: what the policy makes small, and what the critic makes large, with its sign turned."""
        stop = jax.lax.stop_gradient
        residual = batch["a"] - game.policy(batch["x"], key=key)
        f = game.critic(batch["z"], key=key)
        policy = jnp.sum(2 * residual * stop(f) + self.cloning_weight * residual**2, axis=-1)
        norm = jnp.sqrt(jnp.mean(f**2) + 1e-12)
        critic = jnp.sum(2 * stop(residual) * f - f**2, axis=-1) - CRITIC_WEIGHT * norm
        # A part of the loss, as theirs is, and not of the step: only so can it outweigh a moment that says little.
        weights = [leaf for leaf in jax.tree.leaves(eqx.filter(game, eqx.is_inexact_array)) if leaf.ndim > 1]
        return policy - critic + SQUARE_WEIGHT / 2 * sum(jnp.sum(leaf**2) for leaf in weights)


class HeldOutMoment:
    """Squared moments of residuals with smooth functions of z, summed over pairs of rows from different episodes.

    Pairs of one episode are left out: they share noise, which would count as a moment.
    """

    def __init__(self, z: np.ndarray, episode: np.ndarray, seed: int):
        from sklearn.kernel_approximation import Nystroem

        smooth = Nystroem(gamma=1 / (2 * z.shape[1]), n_components=min(N_TESTS, len(z)), random_state=seed)
        tests = np.hstack([np.ones((len(z), 1)), z, smooth.fit_transform(z)])
        self._tests = tests / np.sqrt(np.mean(tests**2, axis=0))
        self._first_rows = np.flatnonzero(np.diff(episode, prepend=-1))

    def __call__(self, residual: np.ndarray) -> float:
        by_episode = np.stack(
            [np.add.reduceat(self._tests * r[:, None], self._first_rows, axis=0) for r in residual.T], axis=-1
        )
        pairs = np.sum(by_episode.sum(axis=0) ** 2) - np.sum(by_episode**2)
        return float(pairs / len(residual) ** 2)


class ResiduIL(NetworkImitator):
    """History-free policy from the moment E[a_t - pi(s_t) | s_{t-k}] = 0, solved as a game.

    Parameters
    ----------
    noise_horizon : int
        Lag k of the instrument.
    cloning_weight : float, default=0
        Weight of plain cloning in the policy's loss. The authors have 0 on robots and 0.05 elsewhere; where s_{t-k}
        says little about s_t, what the moment leaves open is then filled by cloning, noise and all.
    relative, network, n_networks, train, seed, show_progress
        As for :class:`BehaviourCloning`; networks are 128-128 with rectifiers (the authors' are twice as wide).
    """

    def __init__(
        self,
        *,
        noise_horizon: int,
        cloning_weight: float = 0.0,
        relative: tuple[int, ...] = (),
        network: NetworkSpec | None = None,
        n_networks: int = 2,
        train: TrainConfig | None = None,
        seed: int = 0,
        show_progress: bool | None = None,
    ):
        self.noise_horizon = noise_horizon
        self.cloning_weight = cloning_weight
        self.relative = tuple(relative)
        self.network = network
        self.n_networks = n_networks
        self.train = train
        self.seed = seed
        self.show_progress = show_progress

    def _check_settings(self) -> None:
        check_count("noise_horizon", self.noise_horizon, 1)
        check_count("n_networks", self.n_networks, 1)
        if not 0 <= self.cloning_weight < np.inf:
            raise DataError(f"cloning_weight must be a number of at least 0, got {self.cloning_weight!r}.")

    def _policy_view(self) -> View:
        return View(1, 0, relative=self.relative)

    def _instrument_view(self) -> View:
        return View(1, 0, newest=self.noise_horizon, relative=self.relative)

    def _window_length(self) -> int:
        return self._instrument_view().length

    def _first_step(self) -> int:
        # What precedes it carries its noise; a padded window up to t - k does not.
        return self.noise_horizon

    def _learn(self, windows: Windows, x: np.ndarray) -> None:
        y = windows.actions[:, -1]
        z = self._instrument_view().columns(windows.states, windows.actions)
        x_scaler, y_scaler, z_scaler = Scaler.of(x), Scaler.of(y), Scaler.of(z)
        self.network_ = self.network or MLPSpec((128, 128), "relu", linear=False)
        rng = np.random.default_rng(self.seed)

        def build(key: jax.Array) -> Game:
            first, second = jax.random.split(key)
            return Game(
                self.network_(x.shape[1], y.shape[1], key=first), self.network_(z.shape[1], y.shape[1], key=second)
            )

        data = {"x": x_scaler.forward(x), "a": y_scaler.forward(y), "z": z_scaler.forward(z)}
        splits = held_out_splits(np.arange(len(x)), self.n_networks, rng, windows.episode)
        moments = [HeldOutMoment(data["z"][held], windows.episode[held], int(self.seed)) for _, held in splits]

        def evaluate(games: Game, members: np.ndarray) -> np.ndarray:
            values = []
            for place, member in enumerate(members):
                held = splits[int(member)][1]
                acted = apply_in_blocks(take_members(games.policy, np.array([place])), data["x"][held])[0]
                values.append(moments[int(member)](data["a"][held] - acted))
            return np.array(values)

        with Progress(self.show_progress) as progress:
            games, self.log_ = fit_stack(
                stack_networks(build, self.n_networks, jax.random.key(int(rng.integers(2**31 - 1)))),
                GameLoss(float(self.cloning_weight)),
                data,
                [train for train, _ in splits],
                [np.empty(0, dtype=int)] * self.n_networks,
                self.train or TRAIN,
                seed=int(rng.integers(2**31 - 1)),
                evaluate=evaluate,
                progress=progress,
                label="ResiduIL",
            )
        self.function_ = SecondStage(games.policy, x_scaler, y_scaler)

    def _settings(self) -> dict[str, Any]:
        names = ("noise_horizon", "cloning_weight", "relative", "n_networks", "seed")
        return {name: getattr(self, name) for name in names}
