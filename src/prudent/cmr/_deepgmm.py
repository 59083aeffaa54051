"""DeepGMM: f against a network that looks for violated moments (Bennett, Kallus and Schnabel, 2019).

f minimises and g maximises E[g(C) (Y - f(X))] - E[g(C)^2 (Y - f~(X))^2] / 4, with f~ the previous iterate, by
optimistic Adam. Candidates (learning rates) are trained as one stack; the iterate that is kept is the one in which
no critic of any candidate finds much on held-out rows, among those of the second half of training.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from prudent._progress import Progress
from prudent.cmr._arrays import Scaler, numeric_columns
from prudent.cmr._folds import held_out_splits
from prudent.cmr._neural import NeuralEstimator, check_counts, choose_network, positive_numbers, read_problem

if TYPE_CHECKING:
    from prudent.nn import NetworkSpec, TrainConfig


class DeepGMM(NeuralEstimator):
    """Adversarial generalised method of moments with networks, for E[Y - f(X) | C] = 0.

    Actions of every kind are treated alike: nothing is modelled but f and the critic.

    Parameters
    ----------
    learning_rates : tuple of float
        The candidates: peak rates of f; the critic's are ``critic_rate`` (in ``train``, default 5) times as large.
    n_functions : int, default=5
        Held-out parts. For each, all candidates are trained and one iterate is chosen; f is the mean of these.
    network, critic_network : NetworkSpec, optional
        Networks of f and of g. Default: :class:`prudent.nn.TabularSpec`, as in DML-CMR.
    train : TrainConfig, optional
        Training of the game; ``learning_rate`` is replaced by those of the candidates, ``patience`` and ``optimistic``
        are not used.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.

    Attributes
    ----------
    function_ : SecondStage
        The fitted ensemble.
    chosen_ : tuple of (learning rate, step, moment violation)
        What was chosen for every held-out part, among the iterates at the evaluations in the second half of training.
    """

    network_inputs: ClassVar[dict[str, str]] = {"network": "x", "critic_network": "c"}
    own_fields: ClassVar[dict[str, str]] = {
        "learning_rate": "its candidates are learning_rates, a tuple; tune that",
        "patience": "iterates are chosen by held-out moments after training",
        "optimistic": "the game is always trained by optimistic Adam",
    }

    def __init__(
        self,
        *,
        learning_rates: tuple[float, ...] = (5e-4, 1e-3),
        n_functions: int = 5,
        network: "NetworkSpec | None" = None,
        critic_network: "NetworkSpec | None" = None,
        train: "TrainConfig | None" = None,
        show_progress: bool | None = None,
    ):
        self.learning_rates = learning_rates
        self.n_functions = n_functions
        self.network = network
        self.critic_network = critic_network
        self.train = train
        self.show_progress = show_progress

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays."""
        import jax

        from prudent.cmr._games import Game, moment_game
        from prudent.cmr._second_stage import SecondStage, check_finite
        from prudent.nn import fit_stack, stack_networks

        problem = read_problem(self, y, x, c, seed, groups)
        check_counts(self, "n_functions")
        rates = positive_numbers("learning_rates", self.learning_rates)
        rng = np.random.default_rng(seed)
        splits = held_out_splits(np.arange(problem.n_rows), self.n_functions, rng, problem.groups)
        game_seed = int(rng.integers(2**31 - 2))
        self.network_ = choose_network(self.network, problem.embedded_in_x, problem.n_rows)
        critic_network = choose_network(self.critic_network, numeric_columns(problem.c), problem.n_rows)
        x_scaler, y_scaler = Scaler.for_network(problem.x, self.network_), Scaler.of(problem.y)
        data = {
            "y": y_scaler.forward(problem.y),
            "x": x_scaler.forward(problem.x),
            "c": Scaler.for_network(problem.c, critic_network).forward(problem.c),
        }
        n_outcomes = problem.y.shape[1]

        def build(key: Any) -> Game:
            function_key, critic_key = jax.random.split(key)
            return Game(
                self.network_(problem.x.shape[1], n_outcomes, key=function_key),
                critic_network(problem.c.shape[1], n_outcomes, key=critic_key),
                jax.numpy.zeros(2),
            )

        # Member = split x candidate.
        members = [split for split in splits for _ in rates]
        history = _History(data, [held for _, held in members])
        config = dataclasses.replace(self.train_configs(problem.n_rows)["function"], optimistic=True, patience=0)
        with Progress(self.show_progress) as progress:
            fit_stack(
                stack_networks(build, len(members), jax.random.key(game_seed)),
                moment_game,
                data,
                [train for train, _ in members],
                [held[:0] for _, held in members],
                config,
                seed=game_seed,
                learning_rate=np.tile(rates, len(splits)),
                evaluate=history.record,
                progress=progress,
                label="moment game",
            )
        networks, self.chosen_ = history.choose(rates, len(splits), config)
        check_finite(networks, "learning_rates")
        self.function_ = SecondStage(networks, x_scaler, y_scaler)
        self.n_columns_ = problem.x.shape[1]
        return self

    def train_configs(self, n_rows: int) -> "dict[str, TrainConfig]":
        """Training of the game, as given or by rule."""
        return {"function": self.train or _default_train(n_rows)}


def _default_train(n_rows: int) -> "TrainConfig":
    from prudent.nn import TrainConfig

    steps = int(np.clip(1500 * (n_rows / 1000) ** 0.25, 1000, 6000) // 100 * 100)
    return TrainConfig(
        weight_decay=float(np.clip((3000 / n_rows) ** 0.5, 0.2, 2.0)),
        batch_size=128,
        max_steps=steps,
        evaluate_every=steps // 20,
        critic_rate=5.0,
    )


class _History:
    """Iterates of every member, with what they say on the member's held-out rows."""

    def __init__(self, data: dict[str, np.ndarray], held: list[np.ndarray]):
        self.data, self.held = data, held
        # By member and evaluation: (stack of functions, place in it, residuals, critic's values).
        self.iterates: dict[int, list[tuple[Any, int, np.ndarray, np.ndarray]]] = {m: [] for m in range(len(held))}

    def record(self, games: Any, members: np.ndarray) -> np.ndarray:
        """Called by the training loop after every chunk."""
        from prudent.nn import apply_in_blocks

        f = apply_in_blocks(games.function, self.data["x"])
        g = apply_in_blocks(games.critic, self.data["c"])
        violation = np.zeros(len(members))
        for place, member in enumerate(int(m) for m in members):
            rows = self.held[member]
            residual, critic = self.data["y"][rows] - f[place][rows], g[place][rows]
            along = np.sum(residual * critic, axis=1)
            violation[place] = np.mean(along - along**2 / 4)
            # The last group of a large stack repeats members to be full.
            if place == int(np.flatnonzero(members == member)[0]):
                self.iterates[member].append((games.function, place, residual, critic))
        return violation

    def choose(
        self, rates: np.ndarray, n_splits: int, config: "TrainConfig"
    ) -> tuple[Any, tuple[tuple[float, int, float], ...]]:
        """One iterate per held-out part; returns the stack of functions and (rate, step, violation) of each.

        Early iterates do not compete: they are smooth because they are unfinished, and few critics object to them.
        """
        from prudent.cmr._games import choose_by_moments
        from prudent.nn import join_members, take_members

        kept, chosen = [], []
        for split in range(n_splits):
            own = range(split * len(rates), (split + 1) * len(rates))
            runs = [self.iterates[m] for m in own]
            late = len(runs[0]) // 2
            last = np.mean([run[-1][2] for run in runs], axis=0)
            candidates = [(rate, number) for rate in range(len(rates)) for number in range(late, len(runs[0]))]
            residual = np.stack([runs[rate][number][2] for rate, number in candidates])
            critic = np.stack([runs[rate][number][3] for rate, number in candidates])
            violation = choose_by_moments(residual, critic, last)
            violation = np.where(np.isfinite(violation), violation, np.inf)
            rate, number = candidates[int(np.argmin(violation))]
            stack, place, _, _ = runs[rate][number]
            kept.append(take_members(stack, np.array([place])))
            step = min((number + 1) * config.evaluate_every, config.max_steps)
            chosen.append((float(rates[rate]), step, float(violation.min())))
        return join_members(kept), tuple(chosen)
