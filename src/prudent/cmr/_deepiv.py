"""DeepIV: the law of X given C by networks, then f by least squares on Y - E[f(X)|C] (Hartford et al., 2017).

The published loss needs E[f(X)|c] inside a square. Two independent sets of draws and the product of their residuals
keep its gradient unbiased; one draw (``draws=1``) adds Var(f(X)|c) to the loss and shrinks f.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from prudent._progress import Progress
from prudent.cmr._arrays import Scaler
from prudent.cmr._neural import (
    NeuralEstimator,
    Problem,
    Settings,
    check_counts,
    choose_network,
    discrete_positions,
    read_problem,
    single_fold_plan,
)
from prudent.cmr._report import FitReport, is_weak, moment_of_mean, r_squared, strengths

if TYPE_CHECKING:
    from prudent.cmr._second_stage import SecondStage
    from prudent.nn import FitTask, NetworkSpec, TrainConfig


@dataclasses.dataclass(frozen=True)
class DeepIVDefaults:
    """Settings chosen from the number of rows; every one can be overridden in :class:`DeepIV`."""

    law_steps: int
    function_steps: int
    batch_size: int
    law_decay: float
    function_decay: float

    @classmethod
    def of(cls, n_rows: int) -> "DeepIVDefaults":
        """The rule: the law as in DML-CMR; f sees the noise of the outcome itself, so it is decayed more."""
        return cls(
            law_steps=int(np.clip(1000 * (n_rows / 1000) ** 0.4, 750, 10_000) // 50 * 50),
            function_steps=int(np.clip(1000 * (n_rows / 1000) ** 0.4, 750, 10_000) // 50 * 50),
            batch_size=64 if n_rows < 20_000 else 256,
            law_decay=float(np.clip((3000 / n_rows) ** 0.5, 0.2, 2.0)),
            function_decay=float(np.clip((3000 / n_rows) ** 0.5, 0.2, 2.0)),
        )


class DeepIV(NeuralEstimator):
    """Two-stage network regression for E[Y - f(X) | C] = 0.

    Parameters
    ----------
    draws : {2, 1}, default=2
        2: two independent sets of draws and the unbiased product gradient. 1: one draw inside the square, as in common
        implementations; f is then shrunk by the conditional variance of f(X). Expectations over a discrete
        action are exact sums either way.
    network, nuisance_network : NetworkSpec, optional
        Networks of f and of the law. Default: :class:`prudent.nn.TabularSpec`, as in DML-CMR.
    discrete : "auto" or sequence of int
        Which columns of x are discrete. "auto": at most 10 values, each seen twice or more.
    n_components : int, optional
        Gaussian components of the mixture for continuous columns. Default: 10, for more than eight columns 3.
    n_repeats, n_functions : int, default=10 and 4
        Networks averaged for the law, and for f (as many as in DML-CMR); each is stopped on its own held-out part.
    train, function_train : TrainConfig, optional
        Training of the law and of f. By default steps come from :class:`DeepIVDefaults` and weight decays from a
        pilot on held-out loss.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.

    Attributes
    ----------
    function_ : SecondStage
        The fitted ensemble.
    weight_decay_ : dict
        Decays of the law and of f, chosen or given.
    report_ : FitReport
        Fit of the law and strength of the instruments, on rows that a network was stopped on, by that network alone.
    """

    def __init__(
        self,
        *,
        draws: int = 2,
        network: "NetworkSpec | None" = None,
        nuisance_network: "NetworkSpec | None" = None,
        discrete: Any = "auto",
        n_components: int | None = None,
        n_repeats: int = 10,
        n_functions: int = 4,
        train: "TrainConfig | None" = None,
        function_train: "TrainConfig | None" = None,
        show_progress: bool | None = None,
    ):
        self.draws = draws
        self.network = network
        self.nuisance_network = nuisance_network
        self.discrete = discrete
        self.n_components = n_components
        self.n_repeats = n_repeats
        self.n_functions = n_functions
        self.train = train
        self.function_train = function_train
        self.show_progress = show_progress

    def fit(self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None) -> Self:
        """Fit f on arrays; columns of ``x`` that equal a column of ``c`` pass through exactly."""
        self._fit(y, x, c, seed, groups)
        return self

    def fit_candidates(
        self, y: Any, x: Any, c: Any, candidates: list[Settings], *, seed: int, groups: Any = None
    ) -> "list[SecondStage]":
        """One function per candidate (network and training of f), all from the same law."""
        return self._fit(y, x, c, seed, groups, candidates)

    def _fit(
        self, y: Any, x: Any, c: Any, seed: int, groups: Any, candidates: list[Settings] | None = None
    ) -> "list[SecondStage]":
        from prudent.cmr._baseline import fit_context
        from prudent.cmr._law import LawSettings, discrete_columns, fit_law
        from prudent.cmr._second_stage import ScoreData, ScoreLoss, SecondStage, check_finite, score_arrays
        from prudent.nn import fit_folds

        problem = read_problem(self, y, x, c, seed, groups)
        check_counts(self, "n_repeats", "n_functions", optional=("n_components",))
        if self.draws not in (1, 2):
            raise ValueError(f"draws must be 1 or 2, got {self.draws!r}.")
        y, x, c = problem.y, problem.x, problem.c
        discrete = discrete_columns(x[:, problem.modelled], discrete_positions(self.discrete, problem))
        rng = np.random.default_rng(seed)
        defaults = DeepIVDefaults.of(problem.n_rows)
        configs = self.train_configs(problem.n_rows)
        law_plan = single_fold_plan(problem, self.n_repeats, rng)
        function_plan = single_fold_plan(problem, self.n_functions, rng)
        law_seed, function_seed = (int(s) for s in rng.integers(2**31 - 2, size=2))
        nuisance_network, c_standard, instruments = self._nuisance_inputs(problem)
        with Progress(self.show_progress) as progress:
            law = fit_law(
                x[:, problem.modelled],
                c_standard,
                law_plan,
                LawSettings(
                    nuisance_network,
                    configs["nuisance"],
                    None if self.train else defaults.law_decay,
                    self.n_components,
                ),
                discrete=discrete,
                instruments=instruments,
                groups=problem.groups,
                seed=law_seed,
                progress=progress,
            )
            unseen = law_plan.unseen.rows
            actual = x[unseen][:, problem.modelled]
            unseen_groups = None if problem.groups is None else problem.groups[unseen]
            strength = strengths(actual, law.expected, law.without_instruments, unseen_groups)
            baseline, baseline_network, left = None, None, y
            if problem.known and candidates is None and is_weak(strength):
                baseline, baseline_network, fitted = fit_context(
                    y,
                    problem,
                    law_plan,
                    network=self.nuisance_network,
                    config=configs["nuisance"],
                    seed=law_seed,
                    progress=progress,
                )
                left = y - fitted
            part = ScoreData(left, law.nodes, x[:, problem.known])
            one_draw = self.draws == 1
            if candidates is not None:
                split = function_plan.member_splits[0]
                return self._candidate_functions(
                    candidates, problem, part, split, function_seed, progress, one_draw=one_draw
                )
            network = choose_network(self.network, problem.embedded_in_x, len(x))
            x_scaler, y_scaler = Scaler.for_network(x, network), Scaler.of(left)
            networks, _, decay = fit_folds(
                lambda key: network(x.shape[1], y.shape[1], key=key),
                ScoreLoss(problem.slots, part.nodes.is_exact, part.nodes.paired, one_draw),
                score_arrays([part], problem.slots, x_scaler, y_scaler),
                function_plan,
                configs["function"],
                decay_guess=None if self.function_train else defaults.function_decay,
                seed=function_seed,
                progress=progress,
                label="causal function",
            )
        check_finite(networks)
        self.network_, self.baseline_, self.baseline_network_ = network, baseline, baseline_network
        self.function_ = SecondStage(networks, x_scaler, y_scaler)
        self.n_columns_ = x.shape[1]
        self.weight_decay_ = {"action": law.decays, "function": (decay,)}
        self.report_ = FitReport(
            n_rows=problem.n_rows,
            n_folds=1,
            outcome_r2=(),
            modelled_r2=r_squared(actual, law.expected),
            modelled=tuple(problem.modelled),
            strength=strength,
            moment=None,
            moment_of_mean=moment_of_mean(y, c, problem.groups, seed),
            discrete=tuple(problem.modelled[j] for j in law.discrete),
        )
        return []

    def train_configs(self, n_rows: int) -> "dict[str, TrainConfig]":
        """Training of the law and of f, as given or by rule."""
        from prudent.nn import TrainConfig

        defaults = DeepIVDefaults.of(n_rows)

        def by_rule(steps: int, decay: float) -> TrainConfig:
            return TrainConfig(
                weight_decay=decay, batch_size=defaults.batch_size, max_steps=steps, evaluate_every=steps // 25
            )

        return {
            "nuisance": self.train or by_rule(defaults.law_steps, defaults.law_decay),
            "function": self.function_train or by_rule(defaults.function_steps, defaults.function_decay),
        }

    def nuisance_tasks(self, problem: Problem) -> "list[FitTask]":
        """What is learnt before f: the law."""
        return self._law_tasks(problem)
