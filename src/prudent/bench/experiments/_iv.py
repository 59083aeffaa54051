"""What the IV experiments share: methods, the fit of a cell, and the judgement of policies."""

from typing import TYPE_CHECKING, Any

from prudent.bench._definition import Method, Reference, Scalar, Task

if TYPE_CHECKING:
    from prudent import IVRegression
    from prudent.cmr import MomentEstimator
    from prudent.datasets import Design

N_CONTEXTS = 10_000
# Seed of the contexts on which policies are judged: the same for all cells, and none of the runs' seeds.
CONTEXT_SEED = 10**6

# What quick runs show outside of iv/demand: every new shape of data compiles the networks again.
QUICK_METHODS = ("ce-dml-cmr", "kernel-cmr", "2sls")
_QUICK = {"brief": True, "contexts": 300}
# Estimator settings, seconds of a full and of a quick cell (n of a few thousand, one core).
ESTIMATORS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="dml-cmr",
            label="DML-CMR",
            settings={"estimator": "DMLCMR", "n_folds": 10},
            quick={"n_folds": 2, "n_repeats": 1, "n_functions": 1, **_QUICK},
            seconds=48,
            quick_seconds=25,
        ),
        Method(
            name="ce-dml-cmr",
            label="CE-DML-CMR",
            settings={"estimator": "DMLCMR", "n_folds": 1},
            quick={"n_repeats": 1, "n_functions": 1, **_QUICK},
            seconds=30,
            quick_seconds=13,
        ),
        Method(
            name="kernel-cmr",
            label="KernelCMR",
            settings={"estimator": "KernelCMR", "n_folds": 10},
            quick={"n_folds": 2, "n_landmarks": 200, **_QUICK},
            seconds=20,
            quick_seconds=6,
        ),
        Method(
            name="deepiv",
            label="DeepIV",
            settings={"estimator": "DeepIV"},
            quick={"n_repeats": 1, "n_functions": 1, **_QUICK},
            seconds=55,
            quick_seconds=8,
        ),
        Method(
            name="dfiv",
            label="DFIV",
            settings={"estimator": "DFIV"},
            quick={"n_functions": 1, **_QUICK},
            seconds=29,
            quick_seconds=11,
        ),
        Method(
            name="deepgmm",
            label="DeepGMM",
            settings={"estimator": "DeepGMM"},
            quick={"n_functions": 1, "learning_rates": [1e-3], **_QUICK},
            seconds=22,
            quick_seconds=6,
        ),
        Method(
            name="kiv",
            label="KernelIV",
            settings={"estimator": "KernelIV"},
            quick={"n_features": 200, **_QUICK},
            seconds=9,
            quick_seconds=3,
        ),
        Method(
            name="control",
            label="Control function",
            settings={"estimator": "ControlFunction"},
            quick={"n_landmarks": 200, **_QUICK},
            seconds=16,
            quick_seconds=6,
        ),
        Method(
            name="2sls",
            label="2SLS",
            settings={"estimator": "TwoStageLeastSquares"},
            quick=_QUICK,
            seconds=1,
            quick_seconds=1,
        ),
    )
}


def tree(name: str, label: str, seconds: float, **settings: str | int) -> Method:
    """A tree estimator; they have an experiment of their own and stand beside the others where time is compared."""
    return Method(
        name=name,
        label=label,
        settings={"estimator": "TreeCMR", **settings},
        quick={} if settings["n_folds"] == 1 else {"n_folds": 2},
        seconds=seconds,
        quick_seconds=3,
    )


def fit(task: Task, data: "Design", **changes: Any) -> "IVRegression":
    """Fit the cell's estimator on ``data``. ``changes`` are settings of its own."""
    from prudent import IVRegression

    return IVRegression(make_estimator(task.settings | changes), seed=task.seed).fit(**data.roles())


def make_estimator(settings: dict[str, Any]) -> "MomentEstimator":
    """The estimator that settings name; ``brief`` settings train its networks for a moment only."""
    from prudent import cmr

    # Settings come through JSON, which has no tuples.
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    settings.pop("contexts", None)
    kind = getattr(cmr, settings.pop("estimator"))
    if settings.pop("brief", False):
        from prudent.nn import TrainConfig

        training = TrainConfig(weight_decay=0.3, batch_size=64, max_steps=300, evaluate_every=100)
        settings |= {name: training for name in ("train", "function_train") if name in kind().get_params()}
    return kind(**settings)


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
