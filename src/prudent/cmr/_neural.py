"""What neural moment estimators share: reading the problem, default networks, prediction and saving."""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from prudent._checks import check_count
from prudent.cmr._arrays import Scaler, as_matrix, level_indicators, numeric_columns
from prudent.cmr._base import MomentEstimator
from prudent.cmr._folds import cross_fit_folds, held_out_splits
from prudent.cmr._problem import Problem, params_from_json, simple_params

if TYPE_CHECKING:
    from prudent._progress import Progress
    from prudent.cmr._second_stage import ScoreData, SecondStage
    from prudent.cmr._straight import StraightCorrection
    from prudent.nn import FitTask, FoldPlan, TrainConfig

# Embeddings multiply the inputs of the first layer; wide tables get plain inputs.
MAX_EMBEDDED = 12
# With fewer rows per embedded column waves fit noise: with six columns and 1343 rows they nearly doubled what is left
# of the outcome's variance, while with two or three and 1000 rows they pay.
MIN_ROWS_PER_WAVE = 250
# With fewer rows per level of the instruments they enter as numbers only.
MIN_ROWS_PER_LEVEL = 50


class Settings(NamedTuple):
    """A candidate of the tuner: network (None: the default) and training of one stage."""

    network: Any
    train: "TrainConfig"


def read_problem(estimator: MomentEstimator, y: Any, x: Any, c: Any, seed: Any, groups: Any) -> Problem:
    """Check what ``fit`` was given, and what networks and training the estimator has."""
    _check_kinds(estimator)
    return Problem.of(type(estimator).__name__, y, x, c, seed=seed, groups=groups)


def _check_kinds(estimator: MomentEstimator) -> None:
    """Raise unless every network is a specification and every training a TrainConfig, where they are given."""
    given = {name: value for name, value in estimator.get_params(deep=False).items() if value is not None}
    for name, value in given.items():
        if name.endswith("network") and (isinstance(value, type) or not callable(value)):
            raise TypeError(f"{name} must be a network such as prudent.nn.MLPSpec(...), got {value!r}.")
        if name.endswith("train"):
            from prudent.nn import TrainConfig

            if not isinstance(value, TrainConfig):
                raise TypeError(f"{name} must be a prudent.nn.TrainConfig(...), got {value!r}.")


def check_counts(estimator: Any, *names: str, optional: tuple[str, ...] = ()) -> None:
    """Raise unless the named parameters are whole numbers of at least 1; optional ones may be None."""
    for name in (*names, *optional):
        if name in names or getattr(estimator, name) is not None:
            check_count(name, getattr(estimator, name))


def positive_numbers(name: str, values: Any, *, count: int | None = None) -> np.ndarray:
    """The numbers in a parameter; raises unless they are finite, above zero and ``count`` (None: one or more)."""
    try:
        numbers = np.asarray(values, dtype=float).reshape(-1)
    except (TypeError, ValueError):
        numbers = np.empty(0)
    is_enough = len(numbers) > 0 if count is None else len(numbers) == count
    if not is_enough or not np.all((numbers > 0) & (numbers < np.inf)):
        raise ValueError(f"{name} must be {count or 'one or more'} finite numbers above 0, got {values!r}.")
    return numbers


def discrete_positions(discrete: Any, problem: Problem) -> Any:
    """The user's choice of discrete columns, counted among the modelled ones."""
    return tuple(problem.discrete(discrete))


class NuisanceInputs(NamedTuple):
    """What the networks of nuisances see: ``c`` in standard units, and which of its columns are instruments."""

    network: Any
    c: np.ndarray
    instruments: list[int]


def choose_network(spec: Any, embed: tuple[int, ...], n_rows: int) -> Any:
    """``spec``, or the default for tables, with the columns to be embedded filled in where it leaves them open."""
    from prudent.nn import TabularSpec

    spec = spec or TabularSpec()
    if isinstance(spec, TabularSpec) and spec.embed is None:
        pays = len(embed) <= MAX_EMBEDDED and n_rows >= MIN_ROWS_PER_WAVE * len(embed)
        return dataclasses.replace(spec, embed=embed if pays else ())
    return spec


def embed_beside_image(estimator: Any, x: np.ndarray, c: np.ndarray, n_features: int, n_actions: int) -> Any:
    """Networks for tables with image features: waves for the numeric columns, none for actions and features.

    Estimators left to themselves would count the features among the numeric columns, find too many, and embed none.
    """
    if not isinstance(estimator, NeuralEstimator):
        return estimator
    seen = {
        "x": tuple(j for j in numeric_columns(x[:, :-n_features]) if j >= n_actions),
        "context": numeric_columns(x[:, n_actions:-n_features]),
        "c": numeric_columns(c[:, :-n_features]),
    }
    networks = {
        name: choose_network(estimator.stage_network(name), seen[inputs], len(x))
        for name, inputs in estimator.network_inputs.items()
    }
    return estimator.set_params(**networks)


def single_fold_plan(problem: Problem, n_members: int, rng: np.random.Generator) -> "FoldPlan":
    """An ensemble without cross-fitting: every member is trained on all rows but its own held-out part."""
    from prudent.nn import FoldPlan

    rows = np.arange(problem.n_rows)
    return FoldPlan(
        n_rows=problem.n_rows,
        folds=cross_fit_folds(problem.n_rows, 1, rng, problem.groups),
        n_repeats=n_members,
        n_audit=0,
        member_splits=held_out_splits(rows, n_members, rng, problem.groups),
        pilot_splits=held_out_splits(rows, 3, rng, problem.groups),
    )


class NeuralEstimator(MomentEstimator):
    """A moment estimator whose f is an ensemble of networks.

    ``fit`` sets ``function_`` (the ensemble), ``network_`` (its specification) and ``n_columns_``; where f is learnt as
    the correction of a regression, also ``baseline_`` and ``baseline_network_``, and ``straight_`` where a part of the
    correction is linear in given terms.
    """

    function_: "SecondStage"
    network_: Any
    baseline_: "SecondStage | None" = None
    baseline_network_: Any = None
    straight_: "StraightCorrection | None" = None
    n_columns_: int
    discrete: Any
    n_components: int | None
    nuisance_network: Any
    # What the networks see that may embed columns: all of "x", all of "c", or the "context" (the known columns of x).
    network_inputs: ClassVar[dict[str, str]] = {"network": "x", "nuisance_network": "c"}
    # Fields of the training that the estimator sets itself, with what to do instead.
    own_fields: ClassVar[dict[str, str]] = {}

    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes), in the units of y."""
        self._check_fitted("function_")
        x = as_matrix("x", x, n_columns=self.n_columns_)
        parts = (self.baseline_, self.straight_)
        return sum((part.predict(x) for part in parts if part is not None), start=self.function_.predict(x))

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function."""
        self._check_fitted("function_")
        from prudent.cmr._second_stage import function_to_arrays
        from prudent.nn import spec_to_json

        record = {
            "kind": type(self).__name__,
            "params": simple_params(self.get_params()),
            "network": spec_to_json(self.network_),
            "n_columns": self.n_columns_,
        }
        arrays = function_to_arrays(self.function_)
        if self.baseline_ is not None:
            record["baseline_network"] = spec_to_json(self.baseline_network_)
            arrays |= {f"baseline.{name}": array for name, array in function_to_arrays(self.baseline_).items()}
        if self.straight_ is not None:
            arrays |= self.straight_.to_arrays()
        return record, arrays

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Rebuild a fitted estimator; it predicts, but its nuisances and training report are not kept."""
        from prudent.cmr._second_stage import function_from_arrays
        from prudent.cmr._straight import StraightCorrection
        from prudent.nn import spec_from_json

        model = cls(**params_from_json(record["params"]))
        model.network_ = spec_from_json(record["network"])
        model.n_columns_ = int(record["n_columns"])
        model.function_ = function_from_arrays(model.network_, model.n_columns_, arrays)
        if "baseline_network" in record:
            first = {k.removeprefix("baseline."): v for k, v in arrays.items() if k.startswith("baseline.")}
            model.baseline_network_ = spec_from_json(record["baseline_network"])
            model.baseline_ = function_from_arrays(model.baseline_network_, model.n_columns_, first)
        if "straight.weight" in arrays:
            model.straight_ = StraightCorrection.from_arrays(arrays)
        return model

    @abc.abstractmethod
    def train_configs(self, n_rows: int) -> "dict[str, TrainConfig]":
        """Training per stage ("nuisance", "function"), as given or by rule, where the tuner starts."""

    def stage_network(self, parameter: str) -> Any:
        """The network in a parameter, or the default in its place, where the tuner starts."""
        from prudent.nn import TabularSpec

        return getattr(self, parameter) or TabularSpec()

    def _law_tasks(self, problem: Problem) -> "list[FitTask]":
        from prudent.cmr._law import discrete_columns, law_tasks

        x = problem.x[:, problem.modelled]
        inputs = self._nuisance_inputs(problem)
        discrete = discrete_columns(x, discrete_positions(self.discrete, problem))
        return law_tasks(x, inputs.c, discrete, self.n_components, inputs.network)

    def _nuisance_inputs(self, problem: Problem) -> NuisanceInputs:
        """Network of the nuisances, and what it sees.

        Instruments of few values (the number of a judge, of a region) are given as indicators, too: nothing says that
        neighbouring numbers act alike. A network of another kind sees the columns as they are, whose places it knows.
        """
        from prudent.nn import MLPSpec, TabularSpec

        network = choose_network(self.nuisance_network, numeric_columns(problem.c), problem.n_rows)
        c, instruments = problem.c, list(problem.instruments)
        if isinstance(network, MLPSpec | TabularSpec):
            levels = np.hstack([c[:, :0], *(level_indicators(c[:, j]) for j in instruments)])
            if problem.n_rows >= MIN_ROWS_PER_LEVEL * levels.shape[1]:
                c = np.hstack([c, levels])
            instruments.extend(range(problem.c.shape[1], c.shape[1]))
        return NuisanceInputs(network, Scaler.for_network(c, network).forward(c), instruments)

    def _candidate_functions(
        self,
        candidates: list[Settings],
        problem: Problem,
        part: "ScoreData",
        split: tuple[np.ndarray, np.ndarray],
        seed: int,
        progress: "Progress | None",
        *,
        one_draw: bool = False,
    ) -> "list[SecondStage]":
        """Functions of candidates from one set of nuisances, for estimators that minimise the score of ``part``."""
        from prudent.cmr._second_stage import ScoreLoss, fit_function_candidates, score_arrays
        from prudent.nn import stack_groups

        settings = [(choose_network(c.network, problem.embedded_in_x, problem.n_rows), c.train) for c in candidates]
        found: dict[int, SecondStage] = {}
        for group in stack_groups(settings):
            # Candidates of one shape take the same columns as an image.
            scalers = Scaler.for_network(problem.x, group.network), Scaler.of(problem.y)
            functions = fit_function_candidates(
                group,
                ScoreLoss(problem.slots, part.nodes.is_exact, part.nodes.paired, one_draw),
                score_arrays([part], problem.slots, *scalers),
                split,
                scalers,
                seed=seed,
                progress=progress,
            )
            found |= dict(zip(group.places, functions, strict=True))
        return [found[place] for place in range(len(candidates))]
