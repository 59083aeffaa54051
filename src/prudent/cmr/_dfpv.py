"""DFPV: deep feature proxy variables (Xu, Kanagawa and Gretton, 2021); without columns in common it is DFIV.

Stage 1 is a ridge regression of features of the modelled columns W on products of features of the known columns A and
of the instruments V; stage 2 a ridge regression of y on products of other features of A and the predicted features of
W. Both are solved anew at every step. The features of stage 1 follow the gradient of its error, those of
stage 2 the gradient of the outcome's error, through both solutions. Features end without a rectifier, which could
die and take a whole product with it (Kompa et al., 2022).
"""

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._arrays import Scaler, as_matrix
from prudent.cmr._base import MomentEstimator
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._neural import read_problem
from prudent.cmr._problem import params_from_json, simple_params
from prudent.cmr._product_kernel import block_scaler, c_blocks, fit_ridge, out_of_fold_ridge, x_blocks
from prudent.errors import DataError

if TYPE_CHECKING:
    from prudent.nn import NetworkSpec, TrainConfig

PENALTIES = np.logspace(-6, 0, 13)


class DFPV(MomentEstimator):
    """Two ridge regressions on learnt features for E[Y - f(X) | C] = 0.

    f is linear in all products of (1, a, features of a) and (1, w, features of w), where a are the columns of x that
    are in c and w the others; raw columns are left out where they are more than ten.

    Parameters
    ----------
    network : NetworkSpec, optional
        Its last hidden layer gives the features. Default: :class:`prudent.nn.MLPSpec` with widths 32, 16, 8.
    known_network, modelled_network, instrument_network : NetworkSpec, optional
        In place of ``network`` for the columns in x and c (the treatment), the columns of x only (the outcome proxy)
        and the columns of c only (the treatment proxy); for example an ``ImageSpec``.
    n_functions : int, default=3
        Functions averaged; they differ in their initial features and in the order of rows.
    ridge : (float, float), default=(1e-2, 1e-2)
        Penalties of the two stages during training, per row and in standard units. The final regressions choose
        theirs by cross-validation.
    n_folds : int, default=5
        Folds of the final regressions.
    train : TrainConfig, optional
        Training of the features. A step uses half of its rows for each stage.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.

    Attributes
    ----------
    function_ : SecondStage
        The fitted ensemble; ``predict`` uses nothing else.
    penalties_ : tuple of (float, float)
        Chosen penalties of the final regressions, for every function.
    """

    def __init__(
        self,
        *,
        network: "NetworkSpec | None" = None,
        known_network: "NetworkSpec | None" = None,
        modelled_network: "NetworkSpec | None" = None,
        instrument_network: "NetworkSpec | None" = None,
        n_functions: int = 3,
        ridge: tuple[float, float] = (1e-2, 1e-2),
        n_folds: int = 5,
        train: "TrainConfig | None" = None,
        show_progress: bool | None = None,
    ):
        self.network = network
        self.known_network = known_network
        self.modelled_network = modelled_network
        self.instrument_network = instrument_network
        self.n_functions = n_functions
        self.ridge = ridge
        self.n_folds = n_folds
        self.train = train
        self.show_progress = show_progress

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays; columns of ``x`` that equal a column of ``c`` are known given c, exactly."""
        import equinox as eqx
        import jax
        import jax.numpy as jnp

        from prudent.cmr._deep_features import FeatureMaps, StageBuilder, TwoStageLoss
        from prudent.cmr._second_stage import SecondStage
        from prudent.nn import apply_in_blocks, fit_stack, stack_networks

        check_count("n_functions", self.n_functions)
        check_count("n_folds", self.n_folds, 2)
        first, second = self._ridge()
        problem = read_problem(self, y, x, c, seed, groups)
        if not problem.modelled:
            raise DataError("DFPV needs a column of x that is not in c, got none: this is a plain regression.")
        rng = np.random.default_rng(seed)
        x_scaler, y_scaler = block_scaler(problem.x, x_blocks(problem)), Scaler.of(problem.y)
        data = {
            "y": y_scaler.forward(problem.y),
            "x": x_scaler.forward(problem.x),
            "c": block_scaler(problem.c, c_blocks(problem)).forward(problem.c),
        }
        builder = StageBuilder(
            *self._networks(),
            known=tuple(problem.known),
            modelled=tuple(problem.modelled),
            known_in_c=tuple(problem.known_in_c),
            instruments=tuple(problem.instruments),
        )
        n_rows, n_columns, n_outcomes = len(problem.y), problem.x.shape[1], problem.y.shape[1]
        stack_seed = int(rng.integers(2**31 - 2))
        rows = [np.arange(n_rows)] * self.n_functions
        with Progress(self.show_progress) as progress:
            stages, _ = fit_stack(
                stack_networks(
                    lambda key: builder.stages(n_columns, n_outcomes, key=key),
                    self.n_functions,
                    jax.random.key(stack_seed),
                ),
                TwoStageLoss(first, second),
                data,
                rows,
                [r[:0] for r in rows],
                self.train or default_training(n_rows),
                seed=stack_seed,
                progress=progress,
                label="features",
            )
        folds = cross_fit_folds(n_rows, self.n_folds, rng, problem.groups)
        features = apply_in_blocks(FeatureMaps(stages), np.hstack([data["x"], data["c"]]))
        solutions = []
        for member in range(self.n_functions):
            known, modelled, given = (np.asarray(part[member], dtype=float) for part in features)
            solutions.append(_final_stages(known, modelled, given, data["y"], folds))
        self.penalties_ = tuple(penalties for _, penalties in solutions)
        coefficient = jnp.asarray(np.stack([solution for solution, _ in solutions]), jnp.float32)
        networks = eqx.tree_at(lambda f: f.coefficient, stages.function, coefficient)
        self.function_ = SecondStage(networks, x_scaler, y_scaler)
        self.builder_, self.n_columns_ = builder, n_columns
        return self

    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes), in the units of y."""
        self._check_fitted("function_")
        return self.function_.predict(as_matrix("x", x, n_columns=self.n_columns_))

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function."""
        self._check_fitted("function_")
        from prudent.cmr._second_stage import function_to_arrays

        record = {
            "kind": "DFPV",
            "params": simple_params(self.get_params()),
            "builder": self.builder_.to_json(),
            "n_columns": self.n_columns_,
        }
        return record, function_to_arrays(self.function_)

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "DFPV":
        """Rebuild a fitted estimator."""
        from prudent.cmr._deep_features import StageBuilder
        from prudent.cmr._second_stage import function_from_arrays

        model = cls(**params_from_json(record["params"]))
        model.builder_ = StageBuilder.from_json(record["builder"])
        model.n_columns_ = int(record["n_columns"])
        model.function_ = function_from_arrays(model.builder_.function, model.n_columns_, arrays)
        return model

    def _ridge(self) -> tuple[float, float]:
        penalties = np.asarray(self.ridge, dtype=float).reshape(-1)
        if len(penalties) != 2 or not np.all(penalties > 0):
            raise ValueError(f"ridge must be two positive numbers, got {self.ridge!r}.")
        return float(penalties[0]), float(penalties[1])

    def _networks(self) -> tuple[Any, Any, Any]:
        from prudent.nn import MLPSpec

        default = self.network or MLPSpec((32, 16, 8))
        given = (self.known_network, self.modelled_network, self.instrument_network)
        known, modelled, instruments = (spec or default for spec in given)
        return known, modelled, instruments


def default_training(n_rows: int) -> "TrainConfig":
    """Batches large enough for two regressions on about a hundred features each."""
    from prudent.nn import TrainConfig

    steps = int(np.clip(800 * (n_rows / 1000) ** 0.25, 600, 2000) // 100 * 100)
    return TrainConfig(batch_size=int(min(512, n_rows // 2 * 2)), max_steps=steps, evaluate_every=steps // 4)


def _final_stages(
    known: np.ndarray, modelled: np.ndarray, given: np.ndarray, y: np.ndarray, folds: list[np.ndarray]
) -> tuple[np.ndarray, tuple[float, float]]:
    """Coefficients of stage 2 on all rows, with stage-1 predictions from other folds; penalties by cross-validation."""
    target = modelled[:, 1:]  # The first feature is the constant.
    first = fit_ridge(given, target, folds, PENALTIES)
    expected = out_of_fold_ridge(given, target, folds, first.penalty)
    expected = np.hstack([np.ones((len(y), 1)), expected])
    products = np.einsum("ni,nj->nij", known, expected).reshape(len(y), -1)
    second = fit_ridge(products, np.asarray(y, dtype=float), folds, PENALTIES)
    return second.coefficient, (first.penalty, second.penalty)
