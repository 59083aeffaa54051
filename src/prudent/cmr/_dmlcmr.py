"""DML-CMR: double machine learning for conditional moment restrictions E[Y - f(X) | C] = 0.

Nuisances s(c) = E[Y|c] and the law of X given c are cross-fitted over K folds; f minimises the Neyman-orthogonal
score (s_k(c) - E_k[f(X)|c])^2 over the rows of every fold k (Shao, 2025, chapter 3). ``n_folds=1`` trains the
nuisances once on all rows (CE-DML-CMR).
"""

import dataclasses
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler
from prudent.cmr._base import MIN_UNITS, MomentError, residual_moment
from prudent.cmr._folds import cross_fit_folds, held_out_splits
from prudent.cmr._neural import (
    NeuralEstimator,
    Problem,
    Settings,
    check_counts,
    choose_network,
    discrete_positions,
    read_problem,
)
from prudent.cmr._report import MAX_SPREAD, FitReport, is_weak, measure_moment, moment_of_mean, r_squared, strengths

if TYPE_CHECKING:
    from prudent.cmr._second_stage import SecondStage
    from prudent.cmr._straight import Terms
    from prudent.nn import FitTask, FoldPlan, NetworkSpec, TrainConfig

# Folds on which the moment is measured with functions that had nothing to do with them.
N_AUDIT = 2


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Settings chosen from the number of rows and folds; every one can be overridden in :class:`DMLCMR`.

    Networks see a row about 60 times at n = 1000 and 16 times at n = 10,000; repeats per fold average out the noise of
    initial weights and held-out parts. Training longer, or stopping before the learning rate has come down, was worse.
    """

    n_repeats: int
    nuisance_steps: int
    function_steps: int
    batch_size: int
    decay_guess: float

    @classmethod
    def of(cls, n_rows: int, n_folds: int) -> "Defaults":
        """The rule."""
        return cls(
            # About 30 networks at K = 10, and 10 at the least: they come in groups of ten.
            n_repeats=max(3, -(-10 // n_folds)) if n_rows < 20_000 else 1 if n_folds > 1 else 4,
            nuisance_steps=int(np.clip(1000 * (n_rows / 1000) ** 0.4, 750, 10_000) // 50 * 50),
            function_steps=int(np.clip(2000 * (n_rows / 1000) ** 0.25, 1500, 6000) // 100 * 100),
            batch_size=64 if n_rows < 20_000 else 256,
            decay_guess=float(np.clip((3000 / n_rows) ** 0.5, 0.2, 2.0)),
        )


@dataclasses.dataclass(frozen=True)
class NeuralReport(FitReport):
    """Facts about a fit of DMLCMR.

    With one fold, strength and fit are measured on the rows that some network was stopped on, by that network alone.
    ``moment`` is measured on two audited folds, each with one network for f that was fitted without the fold, by
    nuisances that have not seen it (the fold's own, used on the rows they were trained on); None with one fold, or
    with fewer than four units a fold. It speaks of that fit, which is a little worse than the one that is returned.
    With ``start="regression"`` the outcome of which ``outcome_r2`` speaks is what the regression leaves, and the moment
    leaks a little: the regressions of other folds have seen the audited rows. ``correction``, with
    ``start="tested"``, says whether the regression was corrected: "made", "straight" (linear in the given terms),
    "not needed" (or c is seen to move none of these terms) or "diverged". Where no network corrects it, ``moment`` is
    that of what is returned, out of fold on all rows.
    """

    correction: str | None
    weight_decay: dict[str, tuple[float, ...]]
    settings: Defaults


class DMLCMR(NeuralEstimator):
    """Cross-fitted, Neyman-orthogonal estimator of f in E[Y - f(X) | C] = 0.

    Parameters
    ----------
    n_folds : int, default=10
        Cross-fitting folds (K). 1 trains the nuisances once on all rows: faster, no rate guarantee.
    network : NetworkSpec, optional
        Network of f. Default: :class:`prudent.nn.TabularSpec`, with embeddings of the columns that pass through.
    nuisance_network : NetworkSpec, optional
        Network of both nuisances. Default: :class:`prudent.nn.TabularSpec` on all columns of C.
    outcome_model : scikit-learn regressor, optional
        Used for s(c) in place of networks; cloned for every fold.
    discrete : "auto" or sequence of int
        Which columns of x (counted in x) are discrete. "auto": at most 10 values, each seen twice or more.
    n_components : int, optional
        Gaussian components of the mixture for continuous columns. Default: 10, for more than eight columns 3.
    n_repeats, n_functions : int, optional
        Networks averaged per fold (default by rule, :class:`Defaults`), and for f (4).
    train, function_train : TrainConfig, optional
        Training of the nuisances and of f. By default steps and batch come from :class:`Defaults` and the weight
        decay of the nuisances from a pilot on held-out loss.
    start : {"zero", "regression", "tested", "context"}, optional
        "regression" solves for the correction of a plain regression of y on x. It pays where x says more about y than
        c does, as in proximal learning, which has it by default. "tested" does the same unless the moment of the
        regression is not above zero by a standard error: then f is the regression. (With one fold, and with fewer than
        four groups, there is no such test.) Its predictions are held within twice the range of y. Imitation has it by
        default. "context" solves for the correction of a regression on the columns of x that
        are in c: no effect of an action, unless the instruments ask for one. Otherwise the default is "context" where
        the instruments are weak (F below 10), and else "zero".
    outcome : {"fitted", "observed"}, optional
        Target of the second stage: the fitted s(c), or the outcome itself, which has the same mean given c and more
        noise, but no error of a fit. With "observed" s is not fitted. Imitation chooses; otherwise the default is
        "fitted".
    correction_terms : callable, optional
        With ``start="tested"`` and two folds or more: maps rows of x to the terms (n, terms) in which a correction is
        tried first that is linear in them. If the moment of that is not above zero by two standard errors, it is all
        the correction there is. Imitation has the states and their innovations.
    draws : {2, 1}, default=2
        2 is the unbiased loss. 1 puts one draw of X inside the square, as the published code does; f is then shrunk.
        For comparisons only.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.

    Attributes
    ----------
    function_, baseline_ : SecondStage
        The fitted ensemble, and the regression that it corrects (or None); ``predict`` adds them.
    straight_ : StraightCorrection
        A correction that is linear in ``correction_terms`` (or None), which ``predict`` adds, too.
    report_ : NeuralReport
        Out-of-fold facts about the fit.
    """

    def __init__(
        self,
        n_folds: int = 10,
        *,
        network: "NetworkSpec | None" = None,
        nuisance_network: "NetworkSpec | None" = None,
        outcome_model: Any = None,
        discrete: Any = "auto",
        n_components: int | None = None,
        n_repeats: int | None = None,
        n_functions: int = 4,
        train: "TrainConfig | None" = None,
        function_train: "TrainConfig | None" = None,
        start: str | None = None,
        outcome: str | None = None,
        correction_terms: "Terms | None" = None,
        draws: int = 2,
        show_progress: bool | None = None,
    ):
        self.n_folds = n_folds
        self.network = network
        self.nuisance_network = nuisance_network
        self.outcome_model = outcome_model
        self.discrete = discrete
        self.n_components = n_components
        self.n_repeats = n_repeats
        self.n_functions = n_functions
        self.train = train
        self.function_train = function_train
        self.start = start
        self.outcome = outcome
        self.correction_terms = correction_terms
        self.draws = draws
        self.show_progress = show_progress

    def fit(
        self, y: Any, x: Any, c: Any, *, seed: int, groups: Any = None, correction_rows: np.ndarray | None = None
    ) -> Self:
        """Fit f on arrays; columns of ``x`` that equal a column of ``c`` pass through exactly.

        ``correction_rows`` are the rows that speak for a correction in ``correction_terms``; by default all.
        """
        self._fit(y, x, c, seed, groups, correction_rows=correction_rows)
        return self

    def fit_candidates(
        self, y: Any, x: Any, c: Any, candidates: list[Settings], *, seed: int, groups: Any = None
    ) -> "list[SecondStage]":
        """One function per candidate (network and training of f), all from the same nuisances."""
        return self._fit(y, x, c, seed, groups, candidates)

    def _fit(
        self,
        y: Any,
        x: Any,
        c: Any,
        seed: int,
        groups: Any,
        candidates: list[Settings] | None = None,
        correction_rows: np.ndarray | None = None,
    ) -> "list[SecondStage]":
        from prudent.cmr._baseline import fit_baseline, fit_context, widened_range
        from prudent.cmr._law import LawSettings, discrete_columns, fit_law
        from prudent.cmr._outcome import fit_outcome, observed_outcome
        from prudent.cmr._second_stage import ScoreData, fit_second_stage
        from prudent.cmr._straight import fit_straight

        problem = read_problem(self, y, x, c, seed, groups)
        check_counts(self, "n_folds", "n_functions", optional=("n_components", "n_repeats"))
        self._check_choices()
        y, x, c, groups = problem.y, problem.x, problem.c, problem.groups
        modelled = problem.modelled
        rng = np.random.default_rng(seed)
        defaults = Defaults.of(len(x), self.n_folds)
        plan = self._plan(len(x), defaults, rng, groups)
        train, function_train = (self.train_configs(len(x))[stage] for stage in ("nuisance", "function"))
        decay_guess = None if self.train else defaults.decay_guess
        seeds = [int(s) for s in rng.integers(2**31 - 2, size=3)]

        nuisance_network, c_standard, instruments = self._nuisance_inputs(problem)
        law_settings = LawSettings(nuisance_network, train, decay_guess, self.n_components)
        discrete = discrete_columns(x[:, modelled], discrete_positions(self.discrete, problem))
        network, observed = choose_network(self.network, problem.embedded_in_x, len(x)), y
        # Candidates are compared without it: they differ in what they learn, not in where they start.
        has_first = self.start in ("regression", "tested") and candidates is None
        first = int(rng.integers(2**31 - 2)) if has_first else None

        def fit_target() -> "tuple[SecondStage | None, bool, Matrix, Any, MomentError | None, Any]":
            """The regression to start from (and whether it is linear), what it leaves of y, the fit of that, and the
            moment of the regression, if it is to be tested; and a correction that is linear in terms of x, if any."""
            baseline, is_linear, left, moment, straight = None, False, y, None, None
            if first is not None:
                baseline, fitted, is_linear = fit_baseline(
                    y,
                    x,
                    plan,
                    network=network,
                    config=train,
                    seed=first,
                    progress=progress,
                    bounds=widened_range(y) if self.start == "tested" else None,
                )
                left = y - fitted
                if self.start == "tested" and self.n_folds > 1:
                    moment = measure_moment(left, c, groups, seed)
                if self.correction_terms is not None and _speaks_against(moment, 1):
                    rows = np.arange(len(x)) if correction_rows is None else np.unique(correction_rows)
                    straight, rest = fit_straight(
                        left, x, c, plan.folds, self.correction_terms, rows, groups=groups, seed=seed
                    )
                    left = left - straight.predict(x)
                    moment = measure_moment(rest, c[rows], None if groups is None else groups[rows], seed)
            outcome = (observed_outcome if self.outcome == "observed" else fit_outcome)(
                left,
                c,
                c_standard,
                plan,
                network=nuisance_network,
                config=train,
                decay_guess=decay_guess,
                outcome_model=self.outcome_model,
                seed=seeds[0],
                progress=progress,
            )
            return baseline, is_linear, left, outcome, moment, straight

        with Progress(self.show_progress) as progress, ThreadPoolExecutor(2) as threads:
            # The law has nothing to do with the outcome, and one compiled program keeps about one core busy.
            target_job = threads.submit(fit_target)
            law = fit_law(
                x[:, modelled],
                c_standard,
                plan,
                law_settings,
                discrete=discrete,
                instruments=instruments,
                groups=groups,
                seed=seeds[1],
                progress=progress,
            )
            baseline, is_linear, y, outcome, moment, straight = target_job.result()
            # Where there is nothing to find the measure is below zero, by what the search for it costs. What has been
            # corrected already is left alone unless it is clearly wrong: a network adds noise of its own.
            is_plain = moment is not None and not _speaks_against(moment, 1 if straight is None else 2)
            # Where c is seen to move none of the terms, only the mean is corrected.
            is_straight = straight is not None and straight.weight.any()
            correction = None
            if self.start == "tested":
                correction = "made" if not is_plain else "straight" if is_straight else "not needed"
            baseline_network = network if baseline is not None else None
            actual = x[plan.unseen.rows][:, modelled]
            unseen_groups = None if groups is None else groups[plan.unseen.rows]
            strength = strengths(actual, law.expected, law.without_instruments, unseen_groups)
            outcome_r2 = () if self.outcome == "observed" else r_squared(y[plan.unseen.rows], outcome.unseen)
            from_context = self.start == "context" or (self.start is None and is_weak(strength))
            if from_context and problem.known and candidates is None:
                baseline, baseline_network, fitted = fit_context(
                    y, problem, plan, network=self.nuisance_network, config=train, seed=seeds[0], progress=progress
                )
                # What is known given C goes out of the expectation.
                y, outcome = y - fitted, outcome.less(fitted, plan)
            parts = [
                ScoreData(s, nodes, x[part.rows][:, problem.known])
                for s, nodes, part in zip(
                    (outcome.prediction, *outcome.audit), (law.nodes, *law.audit), plan.all_parts, strict=True
                )
            ]
            if candidates is not None:
                everything = np.arange(len(x)), np.empty(0, dtype=int)
                return self._candidate_functions(candidates, problem, parts[0], everything, seeds[2], progress)
            function: Any = baseline
            if not is_plain:
                function, audits = fit_second_stage(
                    parts,
                    problem.slots,
                    x,
                    y,
                    network,
                    function_train,
                    n_functions=self.n_functions,
                    seed=seeds[2],
                    progress=progress,
                    one_draw=self.draws == 1,
                    # What confounding does to a straight line is straight, too.
                    linear_rows=[part.rows for part in plan.all_parts] if is_linear else None,
                )
                audited = [(rows, y[rows] - f.predict(x[rows])) for rows, f in zip(plan.folds, audits, strict=False)]
                if self.start == "tested" and _has_run_off(function.predict(x), y):
                    warnings.warn(
                        "the correction of the plain regression diverged and is left out, although something speaks "
                        f"against the regression: it varies more than {MAX_SPREAD:g} times as much as what it is to "
                        "explain. Are some rows or groups unlike all others?",
                        stacklevel=3,
                    )
                    function, is_plain, correction = baseline, True, "straight" if is_straight else "diverged"
                else:
                    moment = _audited_moment(audited, c, groups, seed)
        self.network_, self.function_, self.straight_ = network, function, straight
        self.baseline_, self.baseline_network_ = (None, None) if is_plain else (baseline, baseline_network)
        self.n_columns_ = x.shape[1]
        self.report_ = NeuralReport(
            n_rows=len(x),
            n_folds=self.n_folds,
            outcome_r2=outcome_r2,
            modelled_r2=r_squared(actual, law.expected),
            modelled=tuple(modelled),
            strength=strength,
            moment=moment,
            moment_of_mean=moment_of_mean(observed, c, groups, seed),
            correction=correction,
            weight_decay={"outcome": outcome.decays, "action": law.decays},
            discrete=tuple(modelled[j] for j in law.discrete),
            settings=defaults,
        )
        return []

    def train_configs(self, n_rows: int) -> "dict[str, TrainConfig]":
        """Training of the nuisances and of f, as given or by rule."""
        from prudent.nn import TrainConfig

        defaults = Defaults.of(n_rows, self.n_folds)
        # Patience of 10 evaluations out of 25: most members live to see the end of the cosine, where they gain most.
        nuisance = self.train or TrainConfig(
            weight_decay=defaults.decay_guess,
            batch_size=defaults.batch_size,
            max_steps=defaults.nuisance_steps,
            evaluate_every=defaults.nuisance_steps // 25,
        )
        function = self.function_train or TrainConfig(
            weight_decay=0.3, batch_size=128, max_steps=defaults.function_steps, evaluate_every=250
        )
        return {"nuisance": nuisance, "function": function}

    def nuisance_tasks(self, problem: Problem) -> "list[FitTask]":
        """The regressions behind a fit: the law, and the outcome unless another model predicts it."""
        from prudent.cmr._outcome import outcome_task

        tasks = self._law_tasks(problem)
        if self.outcome_model is None:
            inputs = self._nuisance_inputs(problem)
            tasks.append(outcome_task(Scaler.of(problem.y).forward(problem.y), inputs.c, inputs.network))
        return tasks

    def _check_choices(self) -> None:
        for name, allowed in (
            ("start", (None, "zero", "regression", "tested", "context")),
            ("outcome", (None, "fitted", "observed")),
            ("draws", (1, 2)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}.")
        if self.correction_terms is not None and (self.start != "tested" or self.n_folds < 2):
            raise ValueError(
                "correction_terms are tried with start='tested' and two folds or more, which tell whether a correction "
                f"is asked for; got start={self.start!r} and n_folds={self.n_folds}. Set these, or leave "
                "correction_terms out."
            )

    def _plan(self, n_rows: int, defaults: Defaults, rng: np.random.Generator, groups: Any) -> "FoldPlan":
        from prudent.nn import FoldPlan

        folds = cross_fit_folds(n_rows, self.n_folds, rng, groups)
        n_repeats = self.n_repeats or defaults.n_repeats
        plan = FoldPlan(
            n_rows=n_rows,
            folds=folds,
            n_repeats=n_repeats,
            n_audit=min(N_AUDIT, len(folds)) if len(folds) > 1 else 0,
            member_splits=[],
            pilot_splits=held_out_splits(np.arange(n_rows), 3, rng, groups),
        )
        for fold in range(len(folds)):
            plan.member_splits.extend(held_out_splits(plan.training_rows(fold), n_repeats, rng, groups))
        return plan


def _speaks_against(moment: MomentError | None, errors: float) -> bool:
    """Whether a moment was measured and is above zero by so many standard errors."""
    return moment is not None and moment.value > errors * moment.standard_error


def _has_run_off(f: Matrix, y: Matrix) -> bool:
    """Whether a correction varies much more than the residuals ``y`` that it is to explain in the mean."""
    varies = np.ptp(y, axis=0) > 0
    return not np.all(f[:, varies].std(axis=0) <= MAX_SPREAD * y[:, varies].std(axis=0))


def _audited_moment(
    audited: list[tuple[np.ndarray, Matrix]], c: Matrix, groups: np.ndarray | None, seed: int
) -> MomentError | None:
    """Moment of every audited fold by itself (functions of other folds have seen its rows), then pooled.

    None where a fold has too few units (episodes) to measure it.
    """
    n_units = [len(rows) if groups is None else len(np.unique(groups[rows])) for rows, _ in audited]
    if not audited or min(n_units) < MIN_UNITS:
        return None
    parts = [
        residual_moment(e, c[rows], seed=seed, groups=None if groups is None else groups[rows]) for rows, e in audited
    ]
    n = sum(part.n_rows for part in parts)
    value = sum(part.value * part.n_rows for part in parts) / n
    error = np.sqrt(sum((part.standard_error * part.n_rows) ** 2 for part in parts)) / n
    return MomentError(float(value), float(error), n)
