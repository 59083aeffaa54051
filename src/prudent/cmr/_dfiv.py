"""DFIV: two ridge regressions on learnt features (Xu et al., 2021).

First stage: features of the action are predicted from features of c. Second stage: the outcome is regressed on the
predicted features, multiplied with features of the context (columns of x that are in c). Both regressions are solved
in closed form within each step, with their penalties in the loss, and gradients reach the features through the
solutions.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from prudent._progress import Progress
from prudent.cmr._arrays import Scaler, numeric_columns
from prudent.cmr._folds import held_out_splits
from prudent.cmr._neural import (
    NeuralEstimator,
    Problem,
    check_counts,
    choose_network,
    positive_numbers,
    read_problem,
)
from prudent.errors import DataError

if TYPE_CHECKING:
    from prudent.nn import NetworkSpec, TrainConfig

# The second penalty is chosen among these multiples on held-out rows once the features are there.
PENALTY_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)


class DFIV(NeuralEstimator):
    """Deep feature instrumental variable regression for E[Y - f(X) | C] = 0.

    f is linear in the context and in all products of (1, action, learnt features of it) with (1, learnt features of the
    context): the last hidden layers of two networks. Discrete actions enter as numbers; code several levels as
    indicators.

    Parameters
    ----------
    network, context_network, instrument_network : NetworkSpec, optional
        Networks of the action, of the context and of c; the last hidden layer gives the features. Default:
        :class:`prudent.nn.TabularSpec` with last widths 2 (24 without context), 4 and 24.
    ridge : (float, float), default=(1e-3, 3e-3)
        Penalties of the two regressions, per observation and in standard units. The second is the one of training;
        in the end the best of several multiples on held-out rows is used.
    n_functions : int, default=10
        Functions averaged, each with its own held-out part.
    train : TrainConfig, optional
        Training of the features. A step uses half of its rows for each of the two regressions.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.

    Attributes
    ----------
    function_ : SecondStage
        The fitted ensemble.
    ridge_ : float
        Second-stage penalty that was used.
    """

    network_inputs: ClassVar[dict[str, str]] = {"context_network": "context", "instrument_network": "c"}

    def __init__(
        self,
        *,
        network: "NetworkSpec | None" = None,
        context_network: "NetworkSpec | None" = None,
        instrument_network: "NetworkSpec | None" = None,
        ridge: tuple[float, float] = (1e-3, 3e-3),
        n_functions: int = 10,
        train: "TrainConfig | None" = None,
        show_progress: bool | None = None,
    ):
        self.network = network
        self.context_network = context_network
        self.instrument_network = instrument_network
        self.ridge = ridge
        self.n_functions = n_functions
        self.train = train
        self.show_progress = show_progress

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays; columns of ``x`` that equal a column of ``c`` are the context."""
        import equinox as eqx
        import jax
        import jax.numpy as jnp

        from prudent.cmr._games import Game, solve_stack, two_regressions
        from prudent.cmr._second_stage import SecondStage, check_finite, diverged
        from prudent.nn import fit_stack, stack_networks

        problem = read_problem(self, y, x, c, seed, groups)
        check_counts(self, "n_functions")
        penalty = positive_numbers("ridge", self.ridge, count=2).astype(np.float32)
        if not problem.modelled:
            raise DataError("DFIV needs a column of x that is not in c, got none: this is a plain regression.")
        rng = np.random.default_rng(seed)
        splits = held_out_splits(np.arange(problem.n_rows), self.n_functions, rng, problem.groups)
        stack_seed = int(rng.integers(2**31 - 2))
        self.network_, instrument_network = self._networks(problem)
        x_scaler, y_scaler = Scaler.for_network(problem.x, self.network_), Scaler.of(problem.y)
        data = {
            "y": y_scaler.forward(problem.y),
            "x": x_scaler.forward(problem.x),
            "c": Scaler.for_network(problem.c, instrument_network).forward(problem.c),
        }

        def build(key: Any) -> Game:
            function_key, critic_key = jax.random.split(key)
            return Game(
                self.network_(problem.x.shape[1], problem.y.shape[1], key=function_key),
                instrument_network(problem.c.shape[1], 1, key=critic_key),
                jnp.asarray(penalty),
            )

        train, held = (list(rows) for rows in zip(*splits, strict=True))
        penalties = penalty[1] * np.array(PENALTY_FACTORS)

        def solve(games: Any, members: Any, penalties: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            try:
                return solve_stack(games, data, [train[m] for m in members], [held[m] for m in members], penalties)
            except ValueError as cause:
                # From the solver: features have overflowed, or have run off too far for it.
                raise diverged(f"its regressions cannot be solved: {cause}", "the learning rate in train") from None

        def evaluate(games: Any, members: np.ndarray) -> np.ndarray:
            return solve(games, members, penalty[1:])[1][:, 0]

        with Progress(self.show_progress) as progress:
            games, _ = fit_stack(
                stack_networks(build, len(splits), jax.random.key(stack_seed)),
                two_regressions,
                data,
                train,
                [rows[:0] for rows in held],
                self.train_configs(problem.n_rows)["function"],
                seed=stack_seed,
                evaluate=evaluate,
                progress=progress,
                label="features",
            )
        outer, error = solve(games, range(len(splits)), penalties)
        # One penalty for all: a single held-out part is too small to choose by.
        best = int(np.argmin(error.mean(axis=0)))
        networks = eqx.tree_at(lambda f: f.free_weight, games.function, jnp.asarray(outer[:, best], jnp.float32))
        check_finite(networks, "the learning rate in train")
        self.ridge_ = float(penalties[best])
        self.function_ = SecondStage(networks, x_scaler, y_scaler)
        self.n_columns_ = problem.x.shape[1]
        return self

    def train_configs(self, n_rows: int) -> "dict[str, TrainConfig]":
        """Training of the features, as given or by rule."""
        return {"function": self.train or _default_train(n_rows)}

    def stage_network(self, parameter: str) -> Any:
        """The network in a parameter, or the default in its place; with context, the action has few features."""
        from prudent.nn import TabularSpec

        defaults = {
            "network": TabularSpec(widths=(32, 2), dropout_rate=0.0, embed=()),
            "context_network": TabularSpec(widths=(64, 4), dropout_rate=0.0),
            "instrument_network": TabularSpec(widths=(64, 24), dropout_rate=0.0),
        }
        return getattr(self, parameter) or defaults[parameter]

    def _networks(self, problem: Problem) -> tuple[Any, Any]:
        from prudent.nn import ProductSpec, TabularSpec

        action = self.stage_network("network")
        if self.network is None and not problem.known:
            action = TabularSpec(widths=(64, 24), dropout_rate=0.0, embed=())
        others = [j for j in range(problem.x.shape[1]) if j not in problem.modelled]
        product = ProductSpec(
            action,
            choose_network(
                self.stage_network("context_network"), numeric_columns(problem.x[:, others]), problem.n_rows
            ),
            tuple(problem.modelled),
        )
        return product, choose_network(
            self.stage_network("instrument_network"), numeric_columns(problem.c), problem.n_rows
        )


def _default_train(n_rows: int) -> "TrainConfig":
    from prudent.nn import TrainConfig

    steps = int(np.clip(500 * (n_rows / 1000) ** 0.25, 300, 1500) // 20 * 20)
    return TrainConfig(
        learning_rate=3e-3,
        weight_decay=float(np.clip((3000 / n_rows) ** 0.5, 0.2, 2.0)),
        batch_size=512,
        max_steps=steps,
        evaluate_every=steps // 10,
        critic_rate=2.0,
    )
