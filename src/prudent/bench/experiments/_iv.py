"""What the IV experiments share: methods, the fit of a cell, and the judgement of policies."""

from typing import TYPE_CHECKING, Any

from prudent.bench._definition import Method, Reference, Scalar, Task

if TYPE_CHECKING:
    from prudent import IVRegression
    from prudent.datasets import Design

N_CONTEXTS = 10_000
# Seed of the contexts on which policies are judged: the same for all cells, and none of the runs' seeds.
CONTEXT_SEED = 10**6

_DML_QUICK = {"n_folds": 2, "n_repeats": 1, "contexts": 300}
# Estimator settings, seconds of a full and of a quick cell (n of a few thousand, one core).
ESTIMATORS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="dml-cmr",
            label="DML-CMR",
            settings={"estimator": "DMLCMR", "n_folds": 10},
            quick=_DML_QUICK,
            seconds=90,
            quick_seconds=25,
        ),
        Method(
            name="ce-dml-cmr",
            label="CE-DML-CMR",
            settings={"estimator": "DMLCMR", "n_folds": 1},
            quick={"n_repeats": 2, "contexts": 300},
            seconds=45,
            quick_seconds=15,
        ),
        Method(
            name="kernel-cmr",
            label="KernelCMR",
            settings={"estimator": "KernelCMR", "n_folds": 10},
            quick={"n_folds": 2, "n_landmarks": 200, "contexts": 300},
            seconds=40,
            quick_seconds=5,
        ),
        Method(
            name="deepiv",
            label="DeepIV",
            settings={"estimator": "DeepIV"},
            quick={"n_repeats": 1, "n_functions": 1, "contexts": 300},
            seconds=40,
            quick_seconds=15,
        ),
        Method(
            name="dfiv",
            label="DFIV",
            settings={"estimator": "DFIV"},
            quick={"n_functions": 1, "contexts": 300},
            seconds=60,
            quick_seconds=20,
        ),
        Method(
            name="deepgmm",
            label="DeepGMM",
            settings={"estimator": "DeepGMM"},
            quick={"n_functions": 1, "learning_rates": [1e-3], "contexts": 300},
            seconds=60,
            quick_seconds=20,
        ),
        Method(
            name="kiv",
            label="KernelIV",
            settings={"estimator": "KernelIV"},
            quick={"n_features": 200, "contexts": 300},
            seconds=30,
            quick_seconds=5,
        ),
        Method(
            name="control",
            label="Control function",
            settings={"estimator": "ControlFunction"},
            quick={"n_landmarks": 200, "contexts": 300},
            seconds=30,
            quick_seconds=5,
        ),
        Method(
            name="2sls",
            label="2SLS",
            settings={"estimator": "TwoStageLeastSquares"},
            quick={"contexts": 300},
            seconds=5,
            quick_seconds=2,
        ),
    )
}


def fit(task: Task, data: "Design", **changes: Any) -> "tuple[IVRegression, float]":
    """Fit the cell's estimator on ``data``; the model and the seconds it took. ``changes`` are settings of its own."""
    import time

    from prudent import IVRegression, cmr

    # Settings come through JSON, which has no tuples.
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in (task.settings | changes).items()}
    settings.pop("contexts", None)
    estimator = getattr(cmr, settings.pop("estimator"))(**settings)
    start = time.perf_counter()
    model = IVRegression(estimator, seed=task.seed).fit(**data.roles())
    return model, time.perf_counter() - start


def n_contexts(task: Task) -> int:
    """Contexts on which a cell judges its policy."""
    return int(task.settings.get("contexts", N_CONTEXTS))


def by(axis: str, values: tuple[Scalar, ...], numbers: tuple[float, ...]) -> dict[str, float]:
    """Numbers by grid point."""
    return {f"{axis}={value}": number for value, number in zip(values, numbers, strict=True)}


def published(label: str, values: dict[str, float], source: str, metric: str = "mse", method: str = "") -> Reference:
    """A number of others."""
    return Reference(label=f"published {label}", metric=metric, values=values, source=source, method=method)


def target(method: str, label: str, values: dict[str, float], source: str, metric: str = "mse") -> Reference:
    """A number of others that ``method`` has to reach."""
    return Reference(label=label, metric=metric, values=values, source=source, method=method, role="target")
