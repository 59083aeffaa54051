"""DML-IL: imitation from confounded demonstrations, with the older history as instrument.

Hidden noise of horizon k is shared by s_t and a_t, but not by anything up to step t - k. So the policy f solves
E[a_t - f(w_t) | c_t] = 0, where c_t is the part of the window up to t - k (Shao, 2025, chapter 4). What is newer than
t - k in w_t is modelled given c_t, all of it jointly: s_{t-1} and a_{t-1} carry the noise of t when k > 1.

What f sees. If f saw all of c_t, the moment would say nothing: E[a_t | c_t], plain cloning of the window and the policy
that is wanted all satisfy it. The history must move the state through variation that f does not see. So f sees the
newest ``policy_states`` states, enough to infer what only the expert sees, and c_t has more steps and actions besides.
Past actions are left out of f: at test time they are its own, which carry none of the expert's noise.

The first k steps of an episode have no history up to t - k. They are learnt from, since f acts there, too, with their
number as the only instrument. Where f sees a part of c_t (k = 1), it sees the mean of that part there, as c_t has it: a
padded window would show it s_0 as history, which carries the noise of these steps.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from prudent._checks import check_count
from prudent.cmr import DMLCMR, MomentEstimator
from prudent.cmr._arrays import shared_columns
from prudent.cmr._base import MIN_UNITS, regress_out_of_fold
from prudent.cmr._names import check_estimator
from prudent.cmr._report import WEAK_F, FitReport, Strength, partial_strength
from prudent.errors import DataError
from prudent.imitation._base import Imitator, default_network
from prudent.imitation._diagnosis import ImitationDiagnosis
from prudent.imitation._innovations import Innovations
from prudent.imitation._windows import View, Windows, column_means, instrument_columns

# States that the policy sees by default, from each noise horizon on: a straight correction wants the innovations of
# several, as long as the history moves them.
STATES = {"network": {1: 3, 2: 2}, "straight": {1: 4, 2: 6, 10: 3}}
# Share of the steps that must not look back to the reset for a straight correction.
MIN_SETTLED = 0.5
# Steps of the window that lie up to t - k by default.
INSTRUMENT_STEPS = 3
# Optimiser steps of the roll-out model and of the policy at most, by default.
MAX_STEPS, MAX_FUNCTION_STEPS = 2000, 3000
# Share of the action that the older history must explain for the action itself to be matched, measured on so many rows.
OBSERVED_R2, EXPLAINED_ROWS = 0.25, 5000


class CausalImitation(Imitator):
    """Policy learner for demonstrations in which hidden noise moves states and actions together.

    Parameters
    ----------
    estimator : MomentEstimator, default=DMLCMR(n_folds=10)
        How the moment restriction is solved; with DMLCMR this is DML-IL. Whole episodes go to one fold. What a DMLCMR
        leaves open is filled in for demonstrations: it corrects cloning, unless nothing speaks against that
        (``start="tested"``; :meth:`diagnose` tells), the recorded action itself is matched
        (``outcome="observed"``) where the older history explains a quarter of it, ten networks in all model the
        roll-outs, training is brief.
    noise_horizon : int
        Number of steps k over which the hidden noise is correlated; an upper bound does, at a cost in strength.
    policy_states : int, optional
        Newest states that the policy sees; 1 if the expert has no private knowledge. By default two, and with k = 1
        three: there the older ones are given and need no model.
    policy_actions : int, default=0
        Past actions that the policy sees.
    window : int, optional
        Steps of the window; k + 3 by default, so that three states and three actions up to t - k are instruments, and
        more where the policy sees more. It may not end before what the policy sees.
    correction : {"network", "straight"}, default="network"
        What corrects cloning, where the moment speaks against it. "straight" tries first a correction that is linear in
        the states and in their innovations, what a state has that the three states before it do not predict: a few
        numbers, where the noise adds to the state. Only where the moment is still not zero by two standard errors a
        network follows. It needs a DMLCMR that starts from cloning, with folds; the policy then sees six states by
        default, four with k = 1, and three from k = 10 on.
    relative : tuple of int
        Columns of the observation that enter as differences from step to step, as an odometer should.
    seed : int, default=0
        Decides every random choice.

    Attributes
    ----------
    estimator_ : MomentEstimator
        The fitted estimator. What can be said against the fit, :meth:`diagnose` says.
    """

    def __init__(
        self,
        estimator: MomentEstimator | None = None,
        *,
        noise_horizon: int,
        policy_states: int | None = None,
        policy_actions: int = 0,
        window: int | None = None,
        correction: str = "network",
        relative: tuple[int, ...] = (),
        seed: int = 0,
    ):
        self.estimator = estimator
        self.noise_horizon = noise_horizon
        self.policy_states = policy_states
        self.policy_actions = policy_actions
        self.window = window
        self.correction = correction
        self.relative = relative
        self.seed = seed

    def _described(self) -> str:
        return f"{self.estimator or DMLCMR()}, noise_horizon={self.noise_horizon}"

    def _check_settings(self) -> None:
        check_count("noise_horizon", self.noise_horizon, 1)
        if self.policy_states is not None:
            check_count("policy_states", self.policy_states, 1)
        check_count("policy_actions", self.policy_actions, 0)
        if self.correction not in list(STATES):
            raise DataError(f"correction must be one of {', '.join(STATES)}, got {self.correction!r}.")
        check_estimator(self.estimator, "Classes of prudent.imitation are fitted by themselves.")
        if isinstance(self.estimator, DMLCMR):
            # Before its fit: what it leaves open is filled in by the number of folds.
            check_count("n_folds", self.estimator.n_folds, 1)
            if self.estimator.correction_terms is not None:
                raise DataError(
                    "correction_terms of DMLCMR are not for demonstrations: a policy with them cannot be saved. Leave "
                    "them out; correction='straight' brings its own."
                )
        if self.correction == "straight":
            self._check_straight(DMLCMR() if self.estimator is None else self.estimator)
        if self.window is not None:
            check_count("window", self.window, self.noise_horizon + 1)
            least = self.noise_horizon + self._steps_seen(at_least=1)
            if self.window < least:
                view = self._policy_view()
                raise DataError(
                    f"window must reach as far back as the policy sees: at least {least} with policy_states="
                    f"{view.n_states} and policy_actions={view.n_actions}, got {self.window}. Raise window, or let "
                    "the policy see less."
                )

    def _check_straight(self, estimator: MomentEstimator) -> None:
        rule = "correction='straight' is for a DMLCMR that starts from cloning, with two folds or more"
        if not isinstance(estimator, DMLCMR):
            raise DataError(f"{rule}; the estimator is {type(estimator).__name__}. Leave correction out.")
        if estimator.start not in (None, "tested") or estimator.n_folds < 2:
            found = f"start={estimator.start!r} and n_folds={estimator.n_folds}"
            raise DataError(f"{rule}; it has {found}. Leave start out, and raise n_folds.")
        if self.policy_states == 1:
            raise DataError("correction='straight' needs policy_states of 2 or more: one state has no innovation.")

    def _steps_seen(self, *, at_least: int) -> int:
        """Steps of the instrument that cover all of the older history that the policy sees, which then is given."""
        policy = self._policy_view()
        return max(policy.n_states - self.noise_horizon, policy.n_actions - self.noise_horizon + 1, at_least)

    @property
    def _instrument_view(self) -> View:
        default = self._steps_seen(at_least=INSTRUMENT_STEPS)
        steps = default if self.window is None else self.window - self.noise_horizon
        return View(steps, steps, newest=self.noise_horizon, relative=tuple(self.relative))

    def _policy_view(self) -> View:
        rule = STATES[self.correction]
        n_states = self.policy_states or rule[max(start for start in rule if start <= self.noise_horizon)]
        return View(n_states, self.policy_actions, relative=tuple(self.relative))

    def _window_length(self) -> int:
        return max(self._instrument_view.length, self._policy_view().length)

    def _prepare(self, windows: Windows) -> None:
        seen = self.view_.columns(windows.states, windows.actions)
        self.mean_seen_ = column_means(seen[windows.step >= self.noise_horizon])

    def _columns(self, states: np.ndarray, actions: np.ndarray, step: np.ndarray) -> np.ndarray:
        x = super()._columns(states, actions, step)
        history = self.view_.is_history(self.noise_horizon, states.shape[2], actions.shape[2])
        early = np.flatnonzero(step < self.noise_horizon)
        x[np.ix_(early, history)] = self.mean_seen_[history]
        return x

    def _learn(self, windows: Windows, x: np.ndarray) -> None:
        c = instrument_columns(windows, self._instrument_view)
        varies = np.ptp(c, axis=0) > 0
        # Beside the history, c has the number of the first steps.
        n_history = np.count_nonzero(varies[: self._instrument_view.width(self.n_observed_, self.n_acted_)])
        c = c[:, varies]
        if n_history == 0:
            raise DataError("the history up to t - k never varies, so that it cannot serve as instrument.")
        if len(shared_columns(x, c[:, :n_history])) == n_history:
            raise DataError(
                "the policy must not see all of the instrument, or plain cloning satisfies the moment, too; with "
                f"policy_states={self.view_.n_states} and policy_actions={self.view_.n_actions} it does. Lower them, "
                f"or raise window (now {self.noise_horizon + self._instrument_view.n_states})."
            )
        y = windows.actions[:, -1]
        estimator: Any = DMLCMR() if self.estimator is None else clone(self.estimator)
        n_episodes, n_folds = len(np.unique(windows.episode)), getattr(estimator, "n_folds", 1)
        if isinstance(n_folds, int | np.integer) and n_folds > 1 and n_episodes < 2 * n_folds:
            raise DataError(
                f"n_folds={n_folds} needs at least two episodes per fold, got {n_episodes} episodes. Lower n_folds "
                f"to at most {n_episodes // 2}, or bring more episodes."
            )
        if isinstance(estimator, DMLCMR):
            _fill_in(estimator, *x.shape, explained=lambda: _explained(y, c, windows.episode))
        more: dict[str, Any] = {}
        if self.correction == "straight":
            columns = self._columns(windows.states, windows.actions, windows.step)
            # The steps that look back to the reset differ from all others, and have little history to judge by.
            before = windows.states.shape[1]
            settled = np.flatnonzero(windows.step >= before)
            n_long = len(np.unique(windows.episode[settled]))
            # Its moment is measured on so many units; and more than a fold has, so that they are not all in one.
            least = max(MIN_UNITS, -(-n_episodes // n_folds) + 1)
            if len(settled) < MIN_SETTLED * len(windows) or n_long < least:
                warnings.warn(
                    f"no straight correction: only {len(settled)} of {len(windows)} steps, in {n_long} episodes, have "
                    f"{before} before them in their episode; {MIN_SETTLED:.0%} of the steps and {least} episodes are "
                    "needed. Bring longer episodes.",
                    stacklevel=4,
                )
            else:
                estimator.correction_terms = Innovations.fit(
                    windows, columns, self.view_, seed=int(self.seed), show_progress=estimator.show_progress
                )
                more["correction_rows"] = settled
        fitted: Any = estimator.fit(y, x, c, seed=int(self.seed), groups=windows.episode, **more)
        self.estimator_ = fitted
        report = getattr(fitted, "report_", None)
        if isinstance(report, FitReport):
            found = _strengths(x, list(report.modelled), c, windows, self.noise_horizon)
            fitted.report_ = replace(report, strength=found)
            self._warn_if_weak([part.effective_f for part in found])
        self.diagnosis_ = ImitationDiagnosis.of(fitted, len(x), n_episodes)
        if self.diagnosis_.correction == "not needed" and self.diagnosis_.has_power is False:
            warnings.warn(
                "this policy is plain cloning, for want of evidence: the moment does not even tell a constant action "
                f"from the expert (squared moment {self.diagnosis_.moment_of_mean}). Bring more episodes.",
                stacklevel=4,
            )

    def diagnose(self) -> ImitationDiagnosis:
        """Strength of the older history, what was done to cloning, and the moment; prints as a table."""
        self._check_fitted()
        return self.diagnosis_

    def _warn_if_weak(self, strength: list[float]) -> None:
        known = [f for f in strength if not np.isnan(f)]
        if strength and not known:
            warnings.warn(
                f"the strength of the instrument is unknown: fewer than {MIN_UNITS} episodes have steps beyond "
                f"{self.noise_horizon}. Bring more or longer episodes.",
                stacklevel=5,
            )
        weak = [f for f in known if f < WEAK_F]
        if weak:
            warnings.warn(
                f"weak instrument: the history up to t - {self.noise_horizon} hardly moves {len(weak)} of the "
                f"{len(known)} columns that the policy sees and the history does not hold (smallest effective F "
                f"{min(weak):.1f}, below {WEAK_F:.0f}). The policy may be far off; is a smaller noise_horizon safe?",
                stacklevel=5,
            )

    def _evaluate(self, x: np.ndarray) -> np.ndarray:
        return self.estimator_.predict(x)

    def _settings(self) -> dict[str, Any]:
        names = ("noise_horizon", "policy_states", "policy_actions", "window", "correction", "relative", "seed")
        return {name: getattr(self, name) for name in names}

    def _learnt_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        record, arrays = self.estimator_.to_state()
        learnt = {"estimator": record, "diagnosis": self.diagnosis_.to_json()}
        straight = getattr(self.estimator_, "straight_", None)
        if straight is not None:
            learnt["innovations"], extra = straight.terms.to_state()
            arrays |= {f"innovations.{name}": array for name, array in extra.items()}
        return learnt, {**arrays, "mean_seen": self.mean_seen_}

    def _restore(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        from prudent.cmr import estimator_from_state

        self.mean_seen_ = arrays.pop("mean_seen")
        extra = {name: arrays.pop(name) for name in list(arrays) if name.startswith("innovations.")}
        self.estimator_ = estimator_from_state(record["estimator"], arrays)
        if "innovations" in record:
            found = {name.removeprefix("innovations."): array for name, array in extra.items()}
            terms = Innovations.from_state(record["innovations"], found)
            restored: Any = self.estimator_
            restored.straight_ = replace(restored.straight_, terms=terms)
        self.diagnosis_ = ImitationDiagnosis.from_json(record["diagnosis"])
        self.estimator = self.estimator_


def _fill_in(estimator: DMLCMR, n_rows: int, n_columns: int, explained: Callable[[], float]) -> None:
    """What imitation prefers where the user leaves it open.

    The moment ties the policy down only where the older history moves the state. Elsewhere something has to be
    preferred, and cloning, corrected as far as the moment asks for it, is a better guess than nothing. Where it asks
    for nothing, a correction would be noise.

    Where the older history explains much of the action, the action itself is matched: its mean given c, the policy
    after some steps of the dynamics, is harder to learn than the policy. Where it explains little, the noise would
    weigh more than the error of a fitted mean. Ten networks in all for the roll-outs, without a pilot for their weight
    decay, and fewer steps: demonstrations are many and alike, and nothing was lost by it.
    """
    rule = estimator.train_configs(n_rows)
    nuisance, function = rule["nuisance"], rule["function"]
    steps = min(nuisance.max_steps, MAX_STEPS)
    defaults = {
        "start": lambda: "tested",
        "network": lambda: default_network(n_columns),
        "outcome": lambda: "observed" if explained() > OBSERVED_R2 else "fitted",
        "n_repeats": lambda: -(-10 // estimator.n_folds),
        "train": lambda: replace(
            nuisance,
            weight_decay=nuisance.weight_decay / 2,
            batch_size=256,
            max_steps=steps,
            evaluate_every=max(1, steps // 25),
        ),
        "function_train": lambda: replace(function, max_steps=min(function.max_steps, MAX_FUNCTION_STEPS)),
    }
    missing = {name: value for name, value in defaults.items() if getattr(estimator, name) is None}
    estimator.set_params(**{name: value() for name, value in missing.items()})


def _strengths(x: np.ndarray, modelled: list[int], c: np.ndarray, windows: Windows, k: int) -> tuple[Strength, ...]:
    """How strongly the history up to t - k moves the modelled columns, in the steps that have one.

    The first k steps of all episodes differ from later ones, and from each other, by their number alone, which says
    nothing about how the history moves the state. NaN where there are too few episodes to tell, and of columns that do
    not vary in these steps.
    """
    unknown = Strength(float("nan"), float("nan"))
    rows = np.flatnonzero(windows.step >= k)
    rows = rows[:: max(1, -(-len(rows) // EXPLAINED_ROWS))]
    episode = windows.episode[rows]
    if len(np.unique(episode)) < MIN_UNITS:
        return (unknown,) * len(modelled)
    actual, c = x[rows][:, modelled], c[rows]
    shared = list(shared_columns(x[rows], c).values())
    regress = partial(regress_out_of_fold, seed=0, n_folds=2, groups=episode)
    expected = regress(actual, c)
    # What the policy sees of the history itself is given.
    without = regress(actual, c[:, shared]) if shared else np.zeros_like(actual)
    columns = zip(actual.T, expected.T, without.T, strict=True)
    return tuple(partial_strength(*parts, groups=episode) if np.ptp(parts[0]) else unknown for parts in columns)


def _explained(y: np.ndarray, c: np.ndarray, episode: np.ndarray) -> float:
    """Share of the actions' variance that c explains, out of fold, by a kernel regression on some of the rows."""
    rows = np.arange(0, len(y), -(-len(y) // EXPLAINED_ROWS))
    if len(np.unique(episode[rows])) < MIN_UNITS:
        return 0.0
    fitted = regress_out_of_fold(y[rows], c[rows], seed=0, n_folds=2, groups=episode[rows])
    return float(np.mean(1 - np.mean((y[rows] - fitted) ** 2, axis=0) / np.maximum(y[rows].var(axis=0), 1e-300)))
