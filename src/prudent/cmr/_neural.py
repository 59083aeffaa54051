"""What neural moment estimators share: reading the problem, default networks, prediction and saving."""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from prudent.cmr._arrays import Scaler, as_matrix, numeric_columns
from prudent.cmr._base import MomentEstimator
from prudent.cmr._folds import cross_fit_folds, held_out_splits
from prudent.cmr._problem import Problem, check_count

if TYPE_CHECKING:
    from prudent._progress import Progress
    from prudent.cmr._second_stage import ScoreData, SecondStage
    from prudent.nn import FitTask, FoldPlan, TrainConfig

# Embeddings multiply the inputs of the first layer; wide tables get plain inputs.
MAX_EMBEDDED = 12


class Settings(NamedTuple):
    """A candidate of the tuner: network (None: the default) and training of one stage."""

    network: Any
    train: "TrainConfig"


def read_problem(estimator: MomentEstimator, y: Any, x: Any, c: Any, seed: Any, groups: Any) -> Problem:
    """Check what ``fit`` was given."""
    return Problem.of(type(estimator).__name__, y, x, c, seed=seed, groups=groups)


def check_counts(estimator: Any, *names: str) -> None:
    """Raise unless the named parameters are whole numbers of at least 1."""
    for name in names:
        check_count(name, getattr(estimator, name))


def discrete_positions(discrete: Any, problem: Problem) -> Any:
    """The user's choice of discrete columns, counted among the modelled ones."""
    return discrete if isinstance(discrete, str) else tuple(problem.discrete(discrete))


def choose_network(spec: Any, embed: tuple[int, ...]) -> Any:
    """``spec``, or the default for tables, with the columns to be embedded filled in where it leaves them open."""
    from prudent.nn import TabularSpec

    spec = spec or TabularSpec()
    if isinstance(spec, TabularSpec) and spec.embed is None:
        return dataclasses.replace(spec, embed=embed if len(embed) <= MAX_EMBEDDED else ())
    return spec


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

    ``fit`` sets ``function_`` (the ensemble), ``network_`` (its specification) and ``n_columns_``.
    """

    function_: "SecondStage"
    network_: Any
    n_columns_: int
    discrete: Any
    n_components: int
    nuisance_network: Any
    # What the networks see that may embed columns: all of "x", all of "c", or the "context" (the known columns of x).
    network_inputs: ClassVar[dict[str, str]] = {"network": "x", "nuisance_network": "c"}

    def predict(self, x: Any) -> np.ndarray:
        """f(x), shape (n, outcomes), in the units of y."""
        self._check_fitted("function_")
        return self.function_.predict(as_matrix("x", x, n_columns=self.n_columns_))

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(record for JSON, arrays) from which :meth:`from_state` rebuilds the fitted function."""
        self._check_fitted("function_")
        from prudent.cmr._second_stage import function_to_arrays
        from prudent.nn import spec_to_json

        simple = {k: v for k, v in self.get_params().items() if isinstance(v, int | float | str | None)}
        record = {
            "kind": type(self).__name__,
            "params": simple,
            "network": spec_to_json(self.network_),
            "n_columns": self.n_columns_,
        }
        return record, function_to_arrays(self.function_)

    @classmethod
    def from_state(cls, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Rebuild a fitted estimator; it predicts, but its nuisances and training report are not kept."""
        from prudent.cmr._second_stage import function_from_arrays
        from prudent.nn import spec_from_json

        model = cls(**record["params"])
        model.network_ = spec_from_json(record["network"])
        model.n_columns_ = int(record["n_columns"])
        model.function_ = function_from_arrays(model.network_, model.n_columns_, arrays)
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
        return law_tasks(
            x,
            Scaler.of(problem.c).forward(problem.c),
            discrete_columns(x, discrete_positions(self.discrete, problem)),
            self.n_components,
            choose_network(self.nuisance_network, numeric_columns(problem.c)),
        )

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

        scalers = Scaler.of(problem.x), Scaler.of(problem.y)
        settings = [(choose_network(c.network, problem.embedded_in_x), c.train) for c in candidates]
        return fit_function_candidates(
            stack_groups(settings),
            ScoreLoss(problem.slots, part.nodes.is_exact, part.nodes.paired, one_draw),
            score_arrays([part], problem.slots, *scalers),
            split,
            scalers,
            seed=seed,
            progress=progress,
        )
