"""How fast the error falls with n in a well-posed parametric design: n to the power -1/2 is the rate to see."""

from prudent.bench._definition import Experiment, Figure, Method, Metric, Quick, Task


def run_cell(task: Task) -> dict[str, float]:
    """Fit a linear f; root mean squared error over the actions and contexts of a fixed fresh sample."""
    import numpy as np

    from prudent import datasets, nn
    from prudent.bench.experiments._iv import fit

    data = datasets.make_linear_gaussian(int(task.point["n"]), seed=task.seed)
    model = fit(task, data, network=nn.MLPSpec(widths=()))
    # One evaluation sample for all cells, from a seed that no run uses.
    fresh = datasets.make_linear_gaussian(2000, seed=10**6)
    roles = fresh.roles()
    action, context = roles["action"], roles.get("context")
    error = np.ravel(model.effect(action, context)) - np.ravel(fresh.truth(action, context))
    return {"rmse": float(np.sqrt(np.mean(error**2)))}


rates = Experiment(
    name="rates",
    title="Error against sample size, linear-Gaussian design",
    protocol=(
        "linear f and Gaussian confounding with a strong instrument; root mean squared error of f over a fixed fresh "
        "sample of 2000 rows; the slope of log error on log n is fitted over all runs."
    ),
    run_cell="prudent.bench.experiments.rates:run_cell",
    methods=(
        Method(
            name="dml-cmr-linear",
            label="DML-CMR, linear f",
            settings={"estimator": "DMLCMR", "n_folds": 5},
            quick={"n_folds": 2, "n_repeats": 1, "brief": True},
            seconds=20,
            quick_seconds=10,
        ),
    ),
    grid={"n": (500, 1000, 2000, 4000, 8000)},
    runs=6,
    metrics=(Metric(name="rmse", label="RMSE of f", format=".4f", slope_over="n"),),
    figures=(Figure(kind="lines", x="n", y="rmse", log_x=True, log_y=True),),
    quick=Quick(runs=1, grid={"n": (500, 2000)}),
)
