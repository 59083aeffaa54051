"""NMMR: neural maximum moment restriction (Kompa, Bellamy, Kolokotrones, Robins and Beam, 2022).

f is a network that minimises sum over pairs of r_i k(c_i, c_j) r_j with residuals r = y - f(x), the squared largest
moment over the unit ball of a kernel space. The U-statistic leaves out i = j and is unbiased; the V-statistic keeps
these terms, which add the mean squared residual with weight 1/n. On a finite sample the U-statistic may have no
minimum: residuals of opposite sign at neighbouring c make it as negative as they are large. A fit that runs off in this
way is made again with the V-statistic.
"""

import warnings
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._arrays import Scaler, as_matrix
from prudent.cmr._base import MomentEstimator
from prudent.cmr._neural import read_problem
from prudent.cmr._problem import Problem, check_choice, check_positive, simple_params
from prudent.cmr._product_kernel import MAX_TABULAR, ProductKernel, block_scaler, c_blocks, x_blocks
from prudent.cmr._report import MAX_SPREAD

if TYPE_CHECKING:
    from prudent.nn import NetworkSpec, TrainConfig

# A column further from zero than this, in standard deviations, would swamp the others.
MAX_OFFSET = 10.0


class NMMR(MomentEstimator):
    """Neural estimator of f in E[Y - f(X) | C] = 0 by maximum moment restriction.

    Parameters
    ----------
    statistic : "u" or "v", default="u"
        Whether pairs of a row with itself are left out (U, unbiased) or counted (V).
    network : NetworkSpec, optional
        Network of f. Default: :class:`prudent.nn.MLPSpec` with three rectified layers of 80.
    bandwidth : float, default=0.2
        Bandwidth of the kernel of c, in multiples of the median distance between rows.
    n_networks : int, optional
        Networks that are averaged; they differ in initial weights and batches. Default: 5, or 2 for wide inputs.
    train : TrainConfig, optional
        Training; by default steps grow slowly with the number of rows. A batch is a sample of pairs.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.

    Attributes
    ----------
    function_ : SecondStage
        The fitted ensemble; ``predict`` uses nothing else.
    statistic_ : str
        The statistic that was minimised: "v" also where the U-statistic had no minimum.
    """

    def __init__(
        self,
        statistic: str = "u",
        *,
        network: "NetworkSpec | None" = None,
        bandwidth: float = 0.2,
        n_networks: int | None = None,
        train: "TrainConfig | None" = None,
        show_progress: bool | None = None,
    ):
        self.statistic = statistic
        self.network = network
        self.bandwidth = bandwidth
        self.n_networks = n_networks
        self.train = train
        self.show_progress = show_progress

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays ``y (n, outcomes)``, ``x (n, d)``, ``c (n, m)``."""
        import jax

        from prudent.cmr._pair_loss import PairLoss
        from prudent.cmr._second_stage import SecondStage
        from prudent.nn import MLPSpec, fit_stack, stack_networks

        check_choice("statistic", self.statistic, ("u", "v"))
        check_positive("bandwidth", self.bandwidth)
        if self.n_networks is not None:
            check_count("n_networks", self.n_networks)
        problem = read_problem(self, y, x, c, seed, groups)
        rng = np.random.default_rng(seed)
        kernel = ProductKernel.median(problem.c, c_blocks(problem), rng, self.bandwidth)
        x_scaler, y_scaler = anchored_scaler(problem), Scaler.of(problem.y)
        n_rows, is_wide = len(problem.y), problem.x.shape[1] > MAX_TABULAR
        data = {
            "x": x_scaler.forward(problem.x),
            "y": y_scaler.forward(problem.y),
            "c": kernel.whitened(problem.c).astype(np.float32),
        }
        unit = None if problem.groups is None else np.unique(problem.groups, return_inverse=True)[1].reshape(-1)
        self.network_ = self.network or MLPSpec((80, 80, 80), activation="relu")
        n_networks = self.n_networks or (2 if is_wide else 5)
        stack_seed = int(rng.integers(2**31 - 2))
        rows = [np.arange(n_rows)] * n_networks

        def minimise(statistic: str, progress: Progress) -> SecondStage:
            own: dict[str, np.ndarray] = {"own": np.full(n_rows, 0.0 if statistic == "u" else 1.0 / n_rows, np.float32)}
            if unit is not None and statistic == "u":
                # Two rows of one unit share noise: their product has not the moment as its mean.
                own["unit"] = unit.astype(np.int32)
            networks, _ = fit_stack(
                stack_networks(
                    lambda key: self.network_(problem.x.shape[1], problem.y.shape[1], key=key),
                    n_networks,
                    jax.random.key(stack_seed),
                ),
                PairLoss(),
                data | own,
                rows,
                # A held-out moment is too noisy to stop on: it stops long before the dependence on x is learnt.
                [r[:0] for r in rows],
                self.train or default_training(n_rows, is_wide),
                seed=stack_seed,
                progress=progress,
                label="causal function",
            )
            return SecondStage(networks, x_scaler, y_scaler)

        with Progress(self.show_progress) as progress:
            self.statistic_, self.function_, self.notes_ = self.statistic, minimise(self.statistic, progress), ()
            spread = self.function_.predict(problem.x).std(axis=0) / y_scaler.scale
            if self.statistic == "u" and not np.max(spread) < MAX_SPREAD:
                text = (
                    "the U-statistic has no minimum on these rows (the fitted function varies "
                    f"{np.max(spread):.3g} times as much as the outcome); NMMR used the V-statistic instead."
                )
                warnings.warn(text, stacklevel=2)
                self.notes_ = (text,)
                self.statistic_, self.function_ = "v", minimise("v", progress)
        self.n_columns_ = problem.x.shape[1]
        return self

    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes), in the units of y."""
        self._check_fitted("function_")
        return self.function_.predict(as_matrix("x", x, n_columns=self.n_columns_))

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function."""
        self._check_fitted("function_")
        from prudent.cmr._second_stage import function_to_arrays
        from prudent.nn import spec_to_json

        record = {
            "kind": "NMMR",
            "params": simple_params(self.get_params()),
            "network": spec_to_json(self.network_),
            "n_columns": self.n_columns_,
            "statistic": self.statistic_,
        }
        return record, function_to_arrays(self.function_)

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> "NMMR":
        """Rebuild a fitted estimator."""
        from prudent.cmr._second_stage import function_from_arrays
        from prudent.nn import spec_from_json

        model = cls(**record["params"])
        model.network_ = spec_from_json(record["network"])
        model.n_columns_, model.statistic_ = int(record["n_columns"]), record["statistic"]
        model.function_ = function_from_arrays(model.network_, model.n_columns_, arrays)
        return model


def default_training(n_rows: int, is_wide: bool) -> "TrainConfig":
    """Steps grow slowly with n: a larger sample carries finer detail, but a batch sees as many pairs as before."""
    from prudent.nn import TrainConfig

    steps = int(np.clip(1500 * (n_rows / 1000) ** 0.25, 1000, 4000) // 100 * 100)
    if is_wide:
        steps = min(steps, 1000)
    return TrainConfig(
        learning_rate=1e-2, weight_decay=0.03, batch_size=256, max_steps=steps, evaluate_every=steps // 10
    )


def anchored_scaler(problem: Problem) -> Scaler:
    """Scales of the columns of x without centring, except for columns whose mean is far from zero beside their spread.

    Rectifiers start with their kinks through the origin. With the origin of the data's own units, as in the authors'
    code, f bends less within the data and goes on more flatly outside than with the origin amid the data.
    """
    scaler = block_scaler(problem.x, x_blocks(problem))
    return Scaler(np.where(np.abs(scaler.mean) <= MAX_OFFSET * scaler.scale, 0.0, scaler.mean), scaler.scale)
