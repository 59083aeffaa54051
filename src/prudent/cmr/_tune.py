"""Choice of hyper-parameters on held-out losses, stage by stage.

First the nuisances by their own held-out loss, then f by the moment error on held-out rows. No causal truth is needed
for either. Candidates that differ only in learning rate, weight decay and dropout are trained as one stack.
"""

import dataclasses
import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._base import MIN_UNITS, MomentEstimator, check_seed, residual_moment
from prudent.cmr._folds import cross_fit_folds
from prudent.cmr._names import check_estimator
from prudent.cmr._neural import NeuralEstimator, Problem, Settings, embed_beside_image, read_problem
from prudent.errors import DataError

# Where a stage keeps its network and its training, in estimators that have both stages.
STAGES = {"nuisance": ("nuisance_network", "train"), "function": ("network", "function_train")}
# Parameters of an estimator that its nuisances can be compared by: they change how the same thing is learnt.
NUISANCE_PARAMETERS = ("n_components", *STAGES["nuisance"])

# Bounds of moment errors that differ by at most this factor are known about as well as each other.
COMPARABLE = 3.0


@dataclasses.dataclass(frozen=True)
class Trial:
    """A candidate and what it reached on held-out rows, averaged over splits.

    Networks of nuisances are stopped on the rows that judge them, so their losses are a little too small, alike for all
    candidates that are evaluated equally often.
    ``score`` is compared (smaller is better): for nuisances the sum of their negative log-likelihoods per row, in which
    the outcome's squared error counts as that of a Gaussian; for f the moment error. ``losses`` has the parts.
    """

    stage: str
    settings: dict[str, Any]
    score: float
    standard_error: float
    losses: dict[str, float]

    @property
    def bound(self) -> float:
        """What the loss may still be: one standard error above the estimate, or above zero."""
        bound = max(self.score, 0.0) + self.standard_error
        return bound if np.isfinite(bound) else np.inf

    @property
    def is_rejected(self) -> bool:
        """Whether the loss is above zero by two standard errors."""
        return not self.score <= 2 * self.standard_error


def best_first(trials: list[Trial]) -> list[Trial]:
    """Candidates of one stage in order: nuisances by score, those for f by what their moment error may still be.

    The score alone would not do for f: a wild one has a moment error of huge noise, often far below zero. The bound
    alone would not, either: its noise grows with the residual, and of all functions the confounded regression has the
    smallest. So an f whose moment is clearly not zero comes after those that may satisfy it, known nearly as well.
    """

    def is_beaten(trial: Trial) -> bool:
        return trial.is_rejected and any(not t.is_rejected and t.bound <= COMPARABLE * trial.bound for t in trials)

    return sorted(trials, key=lambda t: (False, t.score) if t.stage == "nuisance" else (is_beaten(t), t.bound))


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Result of :func:`tune`; ``print`` shows all candidates as a table."""

    estimator: MomentEstimator
    """An unfitted copy with the best settings."""
    best: dict[str, Any]
    """The best settings, by ``stage.name``."""
    trials: tuple[Trial, ...]
    n_rows: int
    n_splits: int

    def stage(self, name: str) -> tuple[Trial, ...]:
        """Candidates of one stage ("nuisance" or "function"), best first."""
        found = [trial for trial in self.trials if trial.stage == name]
        return tuple(best_first(found)) if found else ()

    def __str__(self) -> str:
        lines = [f"{self.n_rows} rows, {self.n_splits} splits; best first"]
        for stage, title in (
            ("nuisance", "nuisances: held-out loss"),
            ("function", "function: moment error, by what it may still be; those clearly above zero come after others"),
        ):
            trials = self.stage(stage)
            if not trials:
                continue
            names = list(dict.fromkeys(name for trial in trials for name in trial.settings))
            parts = list(dict.fromkeys(name for trial in trials for name in trial.losses))
            parts = [part for part in parts if part != "moment error"] if len(parts) > 1 else []
            table = [[*names, "score", "standard error", *parts]]
            for trial in trials:
                table.append(
                    [
                        *(_text(trial.settings.get(name, "")) for name in names),
                        f"{trial.score:.4g}",
                        f"{trial.standard_error:.2g}",
                        *(f"{trial.losses[part]:.4g}" for part in parts),
                    ]
                )
            widths = [max(len(row[j]) for row in table) for j in range(len(table[0]))]
            lines += ["", title]
            lines += ["  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in table]
        return "\n".join(lines)


def tune(
    estimator: MomentEstimator,
    space: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    data: Any,
    *,
    n_splits: int = 3,
    seed: int = 0,
    metric: Callable[[Any], float] | None = None,
    show_progress: bool | None = None,
) -> Tuning:
    """Choose hyper-parameters of a moment estimator from data alone.

    Parameters
    ----------
    estimator : MomentEstimator
        Where the search starts; it is not changed.
    space : dict of lists, or list of dicts
        A grid, or the candidates themselves. Names are fields of :class:`prudent.nn.TrainConfig` (``learning_rate``,
        ``weight_decay``, ``max_steps``, ...), fields of the network (``dropout_rate``, ``widths``, ...) or parameters
        of the estimator. Fields are chosen for the nuisances first and then, again, for f; a prefix ``nuisance.`` or
        ``function.`` keeps a name to one stage. Parameters of the estimator belong to the stage of f; those that say
        how the nuisances are learnt (``n_components``, ``nuisance_network``, ``train``) may have the prefix
        ``nuisance.``.
    data : Design, dict of arrays by role, dict with y, x and c, or a tuple (y, x, c)
        A dict by role holds what ``IVRegression.fit`` takes: also ``groups`` and ``images``, and names of columns with
        ``data``, a frame.
    n_splits : int
        Folds; each is held out once.
    metric : callable, optional
        Another number of a fitted f (an object with ``predict``), such as its distance from a known truth. It is
        recorded for every candidate for f and plays no part in the choice.

    Returns
    -------
    Tuning
        With ``.estimator``, an unfitted copy of the best.

    Examples
    --------
    >>> from prudent import datasets, tune
    >>> from prudent.cmr import DMLCMR
    >>> grid = {"learning_rate": [5e-4, 2e-3], "dropout_rate": [0.0, 0.1], "function.weight_decay": [0.1, 0.3]}
    >>> result = tune(DMLCMR(n_folds=2), grid, datasets.make_demand(2000))   # doctest: +SKIP
    """
    check_seed(seed)
    if estimator is None:
        raise TypeError("estimator must be a moment estimator such as DMLCMR(), got None.")
    check_estimator(estimator, "Classes with an effect method of their own cannot be tuned.")
    check_count("n_splits", n_splits, 2)
    given = _read_data(data)
    started = estimator
    if given.n_features is not None:
        estimator = embed_beside_image(clone(estimator), given.x, given.c, given.n_features, given.n_actions)
    if given.discrete is not None and getattr(estimator, "discrete", None) == "auto":
        with_levels: Any = clone(estimator)
        estimator = with_levels.set_params(discrete=given.discrete)
    problem = read_problem(estimator, given.y, given.x, given.c, seed, given.groups)
    candidates = _expand(space)
    two_stages = hasattr(estimator, "nuisance_tasks")
    by_stage = {"nuisance": [], "function": []}
    for candidate in candidates:
        for stage, settings in _assign(estimator, candidate, two_stages).items():
            if settings not in by_stage[stage]:
                by_stage[stage].append(settings)
    # A moment is measured on every held-out part.
    _check_units(problem, n_splits, MIN_UNITS if by_stage["function"] else 2)
    rng = np.random.default_rng(seed)
    folds = cross_fit_folds(problem.n_rows, n_splits, rng, problem.groups)
    splits = [(np.setdiff1d(np.arange(problem.n_rows), held), held) for held in folds]
    best_estimator: Any = clone(estimator)
    # What the search has set for itself goes back to what it was: one bar at a time, and the levels of these rows.
    own = {
        name: value for name, value in started.get_params(deep=False).items() if name in ("show_progress", "discrete")
    }
    if "show_progress" in own:
        best_estimator.set_params(show_progress=False)
    best: dict[str, Any] = {}
    trials: list[Trial] = []
    with Progress(show_progress) as progress:
        for stage in STAGES:
            if not by_stage[stage]:
                continue
            if stage == "nuisance":
                found = _compare_nuisances(best_estimator, problem, by_stage[stage], splits, seed, progress)
            else:
                found = _compare_functions(best_estimator, problem, by_stage[stage], splits, seed, progress, metric)
            trials.extend(found)
            winner = best_first(found)[0]
            if not np.isfinite(winner.score):
                raise FloatingPointError(f"Every candidate of the {stage} stage diverged. Lower the learning rates.")
            best |= {f"{stage}.{name}": value for name, value in winner.settings.items()}
            best_estimator = apply_settings(best_estimator, stage, winner.settings, problem.n_rows)
    return Tuning(best_estimator.set_params(**own), best, tuple(trials), problem.n_rows, n_splits)


def apply_settings(estimator: Any, stage: str, settings: dict[str, Any], n_rows: int) -> Any:
    """An unfitted copy of ``estimator`` with settings of a stage; fields of its network and training are replaced."""
    chosen: Any = clone(estimator)
    direct = {name: value for name, value in settings.items() if name in chosen.get_params(deep=False)}
    chosen.set_params(**direct)
    fields = {name: value for name, value in settings.items() if name not in direct}
    if fields:
        network_name, train_name = _places(chosen, stage)
        network, train = _stage_settings(chosen, stage, fields, n_rows)
        changes = {train_name: train} if any(hasattr(train, name) for name in fields) else {}
        if any(hasattr(network, name) for name in fields):
            changes[network_name] = network
        chosen.set_params(**changes)
    return chosen


def _places(estimator: Any, stage: str) -> tuple[str, str]:
    return STAGES[stage] if hasattr(estimator, "nuisance_tasks") else ("network", "train")


def _stage_settings(estimator: Any, stage: str, fields: dict[str, Any], n_rows: int) -> Settings:
    """Network and training of a stage with some fields replaced."""
    train = estimator.train_configs(n_rows)[stage]
    network = estimator.stage_network(_places(estimator, stage)[0])
    in_train = {name: value for name, value in fields.items() if hasattr(train, name)}
    in_network = {name: value for name, value in fields.items() if name not in in_train}
    return Settings(
        dataclasses.replace(network, **in_network) if in_network else network, dataclasses.replace(train, **in_train)
    )


def _compare_nuisances(
    estimator: Any,
    problem: Problem,
    candidates: list[dict[str, Any]],
    splits: list[tuple[np.ndarray, np.ndarray]],
    seed: int,
    progress: Progress,
) -> list[Trial]:
    import jax

    from prudent.cmr._outcome import squared_loss
    from prudent.nn import candidate_losses, stack_groups

    trials: list[Trial | None] = [None] * len(candidates)
    # Candidates that differ in parameters of the estimator (such as n_components) learn different things.
    kinds: dict[str, list[int]] = {}
    prepared = []
    for place, settings in enumerate(candidates):
        model: Any = clone(estimator)
        direct = {name: value for name, value in settings.items() if name in model.get_params(deep=False)}
        model.set_params(**direct)
        fields = {name: value for name, value in settings.items() if name not in direct}
        prepared.append((model, _stage_settings(model, "nuisance", fields, problem.n_rows)))
        kinds.setdefault(repr(sorted(direct.items())), []).append(place)
    for places in kinds.values():
        for group in stack_groups([prepared[place][1] for place in places]):
            members = [places[p] for p in group.places]
            model = prepared[members[0]][0].set_params(nuisance_network=group.network)
            losses: dict[str, np.ndarray] = {}
            for task in model.nuisance_tasks(problem):
                held_out = candidate_losses(
                    task.build,
                    task.loss,
                    task.data,
                    splits,
                    group.config,
                    group.numbers,
                    target=task.target,
                    key=jax.random.key(seed),
                    seed=seed,
                    progress=progress,
                    label=f"candidates: {task.label}",
                )
                if task.loss is squared_loss:
                    # The likelihood of a Gaussian with that variance, so that both nuisances count in the same unit.
                    k = problem.y.shape[1]
                    held_out = k / 2 * np.log(np.maximum(held_out, 1e-300) / k)
                losses[task.label] = held_out
            total = np.sum(list(losses.values()), axis=0)
            for member, place in enumerate(members):
                trials[place] = Trial(
                    "nuisance",
                    candidates[place],
                    _finite_mean(total[member]),
                    float(np.std(total[member], ddof=1) / np.sqrt(len(splits))),
                    {label: float(values[member].mean()) for label, values in losses.items()},
                )
    return [trial for trial in trials if trial is not None]


def _compare_functions(
    estimator: Any,
    problem: Problem,
    candidates: list[dict[str, Any]],
    splits: list[tuple[np.ndarray, np.ndarray]],
    seed: int,
    progress: Progress,
    metric: Callable[[Any], float] | None,
) -> list[Trial]:
    y, x, c = problem.y, problem.x, problem.c
    # Moment error, its standard error and the user's metric.
    moments = np.full((len(candidates), len(splits), 3), np.nan)
    task = progress.start("moment errors", len(splits))
    for number, (train, held) in enumerate(splits):
        units = None if problem.groups is None else problem.groups[train]
        held_units = None if problem.groups is None else problem.groups[held]
        for place, f in _fit_functions(estimator, candidates, y[train], x[train], c[train], units, seed).items():
            residual = y[held] - f.predict(x[held])
            if np.isfinite(residual).all():
                moment = residual_moment(residual, c[held], seed=seed, groups=held_units)
                extra = np.nan if metric is None else float(metric(f))
                moments[place, number] = moment.value, moment.standard_error, extra
        task.advance()
    trials = []
    for settings, parts in zip(candidates, moments, strict=True):
        error = float(np.sqrt(np.sum(parts[:, 1] ** 2)) / len(splits))
        score = _finite_mean(parts[:, 0])
        losses = {"moment error": score} | ({} if metric is None else {"metric": float(parts[:, 2].mean())})
        trials.append(Trial("function", settings, score, error, losses))
    return trials


def _fit_functions(
    estimator: Any, candidates: list[dict[str, Any]], y: Any, x: Any, c: Any, groups: Any, seed: int
) -> dict[int, Any]:
    """Something with ``predict`` for every candidate; candidates that share nuisances are fitted together."""
    parameters = estimator.get_params(deep=False)
    together = [
        place
        for place, settings in enumerate(candidates)
        if hasattr(estimator, "fit_candidates") and not any(name in parameters for name in settings)
    ]
    fitted: dict[int, Any] = {}
    if together:
        settings = [_stage_settings(estimator, "function", candidates[place], len(x)) for place in together]
        fitted |= dict(
            zip(together, estimator.fit_candidates(y, x, c, settings, seed=seed, groups=groups), strict=True)
        )
    for place, candidate in enumerate(candidates):
        if place in fitted:
            continue
        model = apply_settings(estimator, "function", candidate, len(x))
        try:
            fitted[place] = model.fit(y, x, c, seed=seed, groups=groups)
        except FloatingPointError as cause:
            warnings.warn(f"candidate {candidate} was left out: {cause}", stacklevel=4)
    return fitted


def _expand(space: Any) -> list[dict[str, Any]]:
    if isinstance(space, Mapping):
        for name, values in space.items():
            if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or len(values) == 0:
                raise ValueError(f"space[{name!r}] must be a list of values to try, got {values!r}.")
        candidates = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    else:
        candidates = list(space) if np.iterable(space) else [space]
        if not all(isinstance(candidate, Mapping) for candidate in candidates):
            raise TypeError(
                "space must be a dict of lists, such as {'learning_rate': [5e-4, 2e-3]}, or a list of dicts, got "
                f"{space!r}."
            )
    if not candidates or not any(candidates):
        raise ValueError("space must have at least one candidate, got none. Give a dict of lists or a list of dicts.")
    # Widths, for one, are part of a network that has to be hashable.
    return [
        {name: tuple(value) if isinstance(value, list) else value for name, value in candidate.items()}
        for candidate in candidates
    ]


def _check_units(problem: Problem, n_splits: int, least: int) -> None:
    """Raise unless every held-out part can have the ``least`` number of units."""
    kind, units = ("rows", problem.x) if problem.groups is None else ("groups", np.unique(problem.groups))
    if len(units) < least * n_splits:
        raise DataError(
            f"n_splits={n_splits} needs at least {least * n_splits} {kind}, {least} in every split, got {len(units)}. "
            f"Lower n_splits or bring more {kind}."
        )


def _assign(estimator: Any, candidate: dict[str, Any], two_stages: bool) -> dict[str, dict[str, Any]]:
    """Settings of a candidate by stage; refuses names that mean nothing."""
    result: dict[str, dict[str, Any]] = {}
    stages = list(STAGES) if two_stages else ["function"]
    for name, value in candidate.items():
        prefix, _, bare = name.rpartition(".")
        known = bare in estimator.get_params(deep=False)
        if prefix and prefix not in stages:
            raise ValueError(
                f"{name!r}: {type(estimator).__name__} has no stage {prefix!r}. Use one of {stages}, or no prefix."
            )
        targets = [prefix] if prefix else ["function"] if known else stages
        own = getattr(estimator, "own_fields", {})
        if not known and bare in own:
            raise ValueError(f"{name!r} has no effect on {type(estimator).__name__}: {own[bare]}.")
        if known and prefix == "nuisance" and bare not in NUISANCE_PARAMETERS:
            raise ValueError(
                f"{name!r} has no effect on {type(estimator).__name__} by which its nuisances could be compared: it "
                f"leaves their held-out losses as they are, or makes them losses of something else. Tune {bare!r}, by "
                "the moment error of f."
            )
        for stage in targets:
            if not known and not _is_field(estimator, stage, bare):
                raise ValueError(
                    f"{name!r} is neither a parameter of {type(estimator).__name__} nor a field of its training or "
                    "network. See TrainConfig and the network specifications in prudent.nn."
                )
            result.setdefault(stage, {})[bare] = value
    # An empty candidate is the starting point, in every stage.
    return result or {stage: {} for stage in stages}


def _is_field(estimator: Any, stage: str, name: str) -> bool:
    from prudent.nn import TrainConfig

    if not isinstance(estimator, NeuralEstimator):
        return False
    network = estimator.stage_network(_places(estimator, stage)[0])
    fields = {f.name for f in dataclasses.fields(TrainConfig)}
    return name in fields or (
        dataclasses.is_dataclass(network) and name in {f.name for f in dataclasses.fields(network)}
    )


class _Data(NamedTuple):
    """Arrays of a problem; of data by role also the discrete columns, and the features of an image in the context."""

    y: Any
    x: Any
    c: Any
    groups: Any = None
    discrete: tuple[int, ...] | None = None
    n_features: int | None = None
    n_actions: int = 0


def _refuse_others(data: Mapping[str, Any], known: tuple[str, ...]) -> None:
    strange = [str(name) for name in data if name not in known]
    if strange:
        raise DataError(f"data has no use for {', '.join(strange)}. Its entries are {', '.join(known)}.")


def _read_data(data: Any) -> _Data:
    """What the search needs of the user's data, checked as a fit would check it."""
    if hasattr(data, "roles"):
        data = data.roles()
    if isinstance(data, Mapping):
        if {"y", "x", "c"} <= data.keys():
            _refuse_others(data, ("y", "x", "c", "groups"))
            return _Data(data["y"], data["x"], data["c"], data.get("groups"))
        if "outcome" in data:
            # Its questions rest on this package, which cannot import them first.
            from prudent.iv._table import read_table

            _refuse_others(data, tuple(inspect.signature(read_table).parameters))
            table = read_table(**{"action": None, "instruments": None, **data})
            n_features = None if table.image is None else table.image.n_features
            discrete, n_actions = tuple(sorted(table.discrete)), table.action.shape[1]
            return _Data(table.y, table.x, table.c, table.groups, discrete, n_features, n_actions)
    if isinstance(data, tuple) and len(data) == 3:
        return _Data(*data)
    raise DataError(
        f"data must be a Design, arrays by role (outcome, action, instruments, context), or (y, x, c), got "
        f"{type(data).__name__}. For a frame: dict(data=frame, outcome='y', action='a', instruments=['z'])."
    )


def _finite_mean(values: np.ndarray) -> float:
    """The mean; infinity where a candidate diverged on some split, so that it is never chosen."""
    return float(np.mean(values)) if np.isfinite(values).all() else float("inf")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
