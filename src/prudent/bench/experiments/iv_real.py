"""IHDP and PM-CMR: real covariates with a synthetic instrument, action and outcome (Wu et al., 2023)."""

from prudent.bench._definition import CPU_SECONDS, Experiment, Metric, Quick, Reference, Task
from prudent.bench.experiments._iv import ESTIMATORS, fit, published, target

_MODULE = "prudent.bench.experiments.iv_real"
_FIGURE = (
    "published values are medians read off the figures of the released DML-CMR code (±3 %), which measures on the "
    "validation split"
)


def run_cell(task: Task) -> dict[str, float]:
    """Fit on the training part of one repetition; error and reward on both held-out parts."""
    import numpy as np

    from prudent import datasets

    data = getattr(datasets, f"make_{task.budget['design']}")(seed=task.seed)
    model = fit(task, data)
    policy = model.policy(data.action_range)
    result = {}
    for name in ("validation", "test"):
        part = data.part(name)
        end = "" if name == "test" else "_validation"
        result[f"mse{end}"] = float(datasets.ihdp_error(model, data, split=name))
        result[f"reward{end}"] = float(np.mean(part.truth(policy.act(part.context), part.context)))
    return result


def _experiment(name: str, design: str, title: str, units: str, references: tuple[Reference, ...]) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        protocol=(
            f"{units}; an instrument of five values, split 63 / 27 / 10 %; mean squared error of f at the observed "
            "actions of the test split, and of the validation split, on which published figures were measured; rewards "
            "with actions in [-3, 5]."
        ),
        run_cell=f"{_MODULE}:run_cell",
        methods=tuple(ESTIMATORS.values()),
        runs=20,
        budget={"design": design},
        metrics=(
            Metric(name="mse", label="MSE, test split", better="lower", format=".3f"),
            Metric(name="mse_validation", label="MSE, validation split", better="lower", format=".3f"),
            Metric(name="reward", label="reward, test split", better="higher", format=".2f"),
            Metric(name="reward_validation", label="reward, validation split", better="higher", format=".2f"),
            CPU_SECONDS,
        ),
        references=references,
        quick=Quick(runs=1, methods=("kiv", "2sls")),
    )


def _references(
    dml: float, ce: float, deepgmm: float, deepiv: float, kiv: float, dfiv: float, *, reward: float, optimum: float
):
    mse = "mse_validation"
    return (
        target("dml-cmr", "published DML-IV", {"": dml}, _FIGURE, mse),
        target("ce-dml-cmr", "published CE-DML-IV", {"": ce}, _FIGURE, mse),
        target("dml-cmr", "published DML-IV", {"": dml}, _FIGURE, "mse"),
        published("DeepGMM", {"": deepgmm}, _FIGURE, mse, "deepgmm"),
        published("DeepIV", {"": deepiv}, _FIGURE, mse, "deepiv"),
        published("KIV", {"": kiv}, _FIGURE, mse, "kiv"),
        published("DFIV", {"": dfiv}, _FIGURE, mse, "dfiv"),
        published("DML-IV", {"": reward}, _FIGURE, "reward_validation"),
        Reference(
            label="optimum (t = 5 for every unit)",
            metric="reward_validation",
            values={"": optimum},
            role="known",
            source="the median over repetitions 0 to 19 of this design, computed from its true effect",
        ),
    )


ihdp = _experiment(
    "iv/ihdp",
    "ihdp",
    "IHDP with an instrument",
    "747 infants with six covariates",
    _references(0.194, 0.192, 0.179, 0.287, 0.240, 0.739, reward=1.94, optimum=2.68),
)
pm_cmr = _experiment(
    "iv/pm-cmr",
    "pm_cmr",
    "PM-CMR with an instrument",
    "2132 counties with six covariates (PRUDENT_DATA/pm_cmr_counties.csv)",
    _references(0.090, 0.104, 0.154, 0.139, 0.211, 0.491, reward=2.12, optimum=2.41),
)
