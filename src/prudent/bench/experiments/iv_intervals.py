"""Do intervals of policy values cover? Three designs, a learnt policy and the difference between two actions."""

from prudent.bench._definition import CPU_SECONDS, Experiment, Metric, Quick, Task
from prudent.bench.experiments._iv import CONTEXT_SEED, ESTIMATORS, fit

# Policies choose in the first range; the difference is between the two actions, both well among the data.
_DESIGNS = {
    "linear": ("make_linear_gaussian", (-1.0, 1.0), (-1.0, 1.0)),
    "demand": ("make_demand", (-1.5, 1.5), (-0.7, 0.7)),
    "pricing": ("make_pricing", (-1.5, 1.5), (-0.7, 0.7)),
}
_TITLES = {"value": "value of the learnt policy", "contrast": "difference of two actions"}
_KINDS = {
    "error": "error",
    "plug_in_error": "error of the plug-in",
    "standard_error": "standard error",
    "covers": "coverage",
}


def run_cell(task: Task) -> dict[str, float]:
    """Fit, ask for both values, and compare them with the truth in 20,000 fresh contexts."""
    import numpy as np

    from prudent import datasets

    name, actions, pair = _DESIGNS[str(task.point["design"])]
    make = getattr(datasets, name)
    data, fresh = make(task.budget["n"], seed=task.seed), make(task.budget["fresh"], seed=CONTEXT_SEED).context
    model = fit(task, data)

    def truth(chosen: object) -> float:
        return float(np.mean(data.truth(chosen, fresh)))

    policy = model.policy(actions)
    found = {"value": model.policy_value(policy), "contrast": model.policy_value(pair[1], baseline=pair[0])}
    true = {"value": truth(policy.act(fresh)), "contrast": truth(pair[1]) - truth(pair[0])}
    result = {}
    for key, value in found.items():
        result |= {
            f"{key}_error": value.value - true[key],
            f"{key}_plug_in_error": value.plug_in - true[key],
            f"{key}_standard_error": value.standard_error,
            f"{key}_covers": float(value.lower <= true[key] <= value.upper),
        }
    return result


intervals = Experiment(
    name="iv/intervals",
    title="Coverage of the intervals of policy values",
    protocol=(
        "the linear-Gaussian, demand and pricing designs, n = 1000; the value of the policy that was learnt from the "
        "same rows, and the difference between two constant actions; means of errors and standard errors, and the "
        "share of runs in which the 95 % interval covers the truth in 20,000 fresh contexts. plug-in: the mean of f, "
        "without correction."
    ),
    run_cell=f"{__name__}:run_cell",
    methods=(ESTIMATORS["2sls"], ESTIMATORS["kernel-cmr"], ESTIMATORS["dml-cmr"]),
    grid={"design": tuple(_DESIGNS)},
    runs=100,
    statistic="mean",
    budget={"n": 1000, "fresh": 20_000},
    metrics=(
        *(
            Metric(name=f"{key}_{kind}", label=f"{title}, {_TITLES[key]}", format=".3f")
            for key in _TITLES
            for kind, title in _KINDS.items()
        ),
        CPU_SECONDS,
    ),
    quick=Quick(runs=2, grid={"design": ("linear",)}, budget={"n": 500, "fresh": 2000}, methods=("2sls",)),
)
