"""Plain regressions of the outcome on treatment and proxies: what one gets without a bridge, for reference.

E[Y | A, W] averaged over W adjusts for the proxy as if it were the confounder, and is biased where it is not.
"""

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler
from prudent.cmr._folds import held_out_splits
from prudent.cmr._pairs import all_pairs, even_choice, mean_over_others
from prudent.cmr._problem import check_choice
from prudent.cmr._product_kernel import block_scaler
from prudent.proximal._direct import DirectEffect, Proxies, column_blocks

if TYPE_CHECKING:
    from prudent.nn import NetworkSpec, TrainConfig


class PlainRegression(DirectEffect):
    """Mean over units of a regression of the outcome on treatment, proxies and context.

    Parameters
    ----------
    proxies : "outcome" or "both", default="outcome"
        Whether the regression sees (A, W) or (A, W, V), each with the context.
    model : "network", "linear" or a scikit-learn regressor, default="network"
        The regression.
    network : NetworkSpec, optional
        Network of ``model="network"``. Default: :class:`prudent.nn.MLPSpec`.
    n_networks : int, default=3
        Networks that are averaged, each stopped on its own held-out rows.
    train : TrainConfig, optional
        Training of the networks.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.
    """

    def __init__(
        self,
        proxies: str = "outcome",
        *,
        model: Any = "network",
        network: "NetworkSpec | None" = None,
        n_networks: int = 3,
        train: "TrainConfig | None" = None,
        show_progress: bool | None = None,
    ):
        self.proxies = proxies
        self.model = model
        self.network = network
        self.n_networks = n_networks
        self.train = train
        self.show_progress = show_progress

    def _fit(self, data: Proxies, seed: int) -> None:
        check_choice("proxies", self.proxies, ("outcome", "both"))
        check_count("n_networks", self.n_networks)
        if isinstance(self.model, str):
            check_choice("model", self.model, ("network", "linear"))
        others = [data.outcome_proxy, data.context]
        if self.proxies == "both":
            others.insert(1, data.treatment_proxy)
        self.others_ = np.hstack(others)
        x = np.hstack([data.treatment, self.others_])
        # Has ``predict``.
        self.function_: Any
        if isinstance(self.model, str) and self.model == "network":
            blocks = column_blocks([data.treatment, *others])
            self.function_ = self._fit_networks(data.outcome, x, blocks, seed)
        else:
            self.function_ = _fit_sklearn(self.model, data.outcome, x, seed)

    def _effect(self, treatment: Matrix) -> Matrix:
        pairs = functools.partial(all_pairs, self.function_.predict)
        return mean_over_others(pairs, treatment, even_choice(self.others_, len(treatment)))

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        if not isinstance(self.model, str):
            raise TypeError(
                f"A PlainRegression with {type(self.model).__name__} cannot be saved. Use model='network' or "
                "model='linear', or keep the fitted object in memory."
            )
        if self.model == "linear":
            coefficient, intercept = np.atleast_2d(self.function_.coef_), np.atleast_1d(self.function_.intercept_)
            return {}, {"others": self.others_, "coefficient": coefficient, "intercept": intercept}
        from prudent.cmr._second_stage import function_to_arrays
        from prudent.nn import spec_to_json

        return {"network": spec_to_json(self.network_)}, {"others": self.others_, **function_to_arrays(self.function_)}

    def _restore(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.others_ = arrays.pop("others")
        if self.model == "linear":
            from sklearn.linear_model import LinearRegression

            self.function_ = LinearRegression()
            self.function_.coef_, self.function_.intercept_ = arrays["coefficient"], arrays["intercept"]
            return
        from prudent.cmr._second_stage import function_from_arrays
        from prudent.nn import spec_from_json

        self.network_ = spec_from_json(record["network"])
        self.function_ = function_from_arrays(self.network_, self.n_treatments_ + self.others_.shape[1], arrays)

    def _fit_networks(self, y: Matrix, x: Matrix, blocks: list[range], seed: int) -> Any:
        import jax

        from prudent.cmr._outcome import squared_loss
        from prudent.cmr._second_stage import SecondStage
        from prudent.nn import MLPSpec, TrainConfig, fit_stack, stack_networks

        rng = np.random.default_rng(seed)
        splits = held_out_splits(np.arange(len(x)), self.n_networks, rng)
        x_scaler, y_scaler = block_scaler(x, blocks), Scaler.of(y)
        self.network_ = self.network or MLPSpec()
        stack_seed = int(rng.integers(2**31 - 2))
        with Progress(self.show_progress) as progress:
            networks, _ = fit_stack(
                stack_networks(
                    lambda key: self.network_(x.shape[1], y.shape[1], key=key), len(splits), jax.random.key(stack_seed)
                ),
                squared_loss,
                {"c": x_scaler.forward(x), "y": y_scaler.forward(y)},
                [train for train, _ in splits],
                [held for _, held in splits],
                self.train or TrainConfig(batch_size=64, max_steps=2000, evaluate_every=80),
                seed=stack_seed,
                progress=progress,
                label="plain regression",
            )
        return SecondStage(networks, x_scaler, y_scaler)


def _fit_sklearn(model: Any, y: Matrix, x: Matrix, seed: int) -> Any:
    from sklearn.base import clone
    from sklearn.linear_model import LinearRegression

    model = LinearRegression() if isinstance(model, str) else clone(model)
    # A forest that draws from a global generator would break "one seed decides everything".
    unset = {k: seed for k, v in model.get_params().items() if k.split("__")[-1] == "random_state" and v is None}
    return model.set_params(**unset).fit(x, y[:, 0] if y.shape[1] == 1 else y)
