"""The demand design of Hartford et al. (2017), normalised convention: errors, rewards, weak instruments, trees, images.

Policies choose among 61 prices from -3 to 3 (normalised) and are judged by the true sales in 10,000 fresh contexts. The
lowest price is best in every context of the design, so that rewards say little; ``iv/context`` says more.
"""

from dataclasses import replace

from prudent.bench._definition import CPU_SECONDS, Experiment, Figure, Metric, Quick, Reference, Task
from prudent.bench.experiments._iv import (
    CONTEXT_SEED,
    ESTIMATORS,
    QUICK_METHODS,
    by,
    fit,
    n_contexts,
    published,
    target,
    tree,
)

_SIZES = (1000, 2000, 5000, 10000)
_FIGURE = "published values are medians read off the figures of the released DML-CMR code (±3 %)"
_TABLE = "published values are means over 20 runs, from tables of the thesis (Shao, 2025)"
_MODULE = "prudent.bench.experiments.iv_demand"
_MSE = Metric(name="mse", label="MSE", better="lower", format=".3f")


def run_cell(task: Task) -> dict[str, float]:
    """Fit on n rows drawn with the cell's seed; error on the 20 x 20 x 7 test grid, and the rewards of the policy."""
    from prudent import datasets

    data = datasets.make_demand(int(task.point["n"]), seed=task.seed)
    model = fit(task, data)
    return {
        "mse": float(datasets.demand_error(model)),
        "reward": _reward(model, data, n_contexts(task), shifted=False),
        "reward_ood": _reward(model, data, n_contexts(task), shifted=True),
    }


def run_weak(task: Task) -> dict[str, float]:
    """As `run_cell`, with an instrument of another strength; without rewards."""
    from prudent import datasets

    strength = float(task.point["iv_strength"])
    data = datasets.make_demand(task.budget["n"], seed=task.seed, iv_strength=strength)
    model = fit(task, data)
    return {"mse": float(datasets.demand_error(model))}


def run_plain(task: Task) -> dict[str, float]:
    """As `run_cell`, without rewards."""
    from prudent import datasets

    model = fit(task, datasets.make_demand(int(task.point["n"]), seed=task.seed))
    return {"mse": float(datasets.demand_error(model))}


def run_images(task: Task) -> dict[str, float]:
    """Fit on n rows with MNIST images; error on the grid with test images."""
    from prudent import datasets

    data = datasets.make_demand_images(int(task.point["n"]), seed=task.seed, images=task.budget["images"])
    model = fit(task, data)
    return {"mse": float(datasets.demand_images_error(model, images=task.budget["images"]))}


def _reward(model, data, count: int, *, shifted: bool) -> float:
    import numpy as np

    contexts = data.contexts(count, seed=CONTEXT_SEED, shifted=shifted)
    low, high = data.action_range
    policy = model.policy(list(np.linspace(low, high, 61)))
    return float(np.mean(data.truth(policy.act(contexts), contexts)))


def _by_size(*values: float) -> dict[str, float]:
    return by("n", _SIZES, values)


def _with_goal(method: str, name: str, *values: float) -> tuple[Reference, Reference]:
    """The published medians as a target, and half of them as a goal."""
    first = target(method, f"published {name}", _by_size(*values), _FIGURE)
    halves = _by_size(*(value / 2 for value in values))
    return first, replace(first, label=f"half of published {name}", values=halves, role="goal")


def _floor(method: str, name: str, *values: float) -> Reference:
    """A baseline may be worse than its published medians by 15 %, not more."""
    limits = _by_size(*(round(1.15 * value, 4) for value in values))
    return target(method, f"published {name} + 15 %", limits, _FIGURE)


demand = Experiment(
    name="iv/demand",
    title="Demand with an instrument",
    protocol=(
        "Hartford's demand design, normalised convention, rho 0.9; mean squared error of f on the grid of 20 prices x "
        "20 times x 7 customer types; rewards are true sales under the policy over 61 prices in [-3, 3], in 10,000 "
        "fresh contexts with T ~ U(0, 10), and with T ~ U(1, 11) out of distribution."
    ),
    run_cell=f"{_MODULE}:run_cell",
    methods=tuple(ESTIMATORS.values()),
    grid={"n": _SIZES},
    runs=20,
    metrics=(
        _MSE,
        CPU_SECONDS,
        Metric(name="reward", label="reward", better="higher", format=".3f"),
        Metric(name="reward_ood", label="reward, out of distribution", better="higher", format=".3f"),
    ),
    references=(
        *_with_goal("dml-cmr", "DML-IV", 0.207, 0.130, 0.062, 0.037),
        *_with_goal("ce-dml-cmr", "CE-DML-IV", 0.221, 0.135, 0.071, 0.043),
        _floor("dfiv", "DFIV", 0.225, 0.183, 0.105, 0.061),
        _floor("kiv", "KIV", 0.270, 0.255, 0.233, 0.186),
        _floor("deepiv", "DeepIV", 0.275, 0.240, 0.116, 0.072),
        _floor("deepgmm", "DeepGMM", 0.348, 0.361, 0.253, 0.118),
        Reference(
            label="optimum",
            metric="reward",
            values=_by_size(*[0.748] * 4),
            role="known",
            source="the lowest price, T ~ U(0, 10); published rewards were made with another, unreleased range",
        ),
    ),
    figures=(Figure(kind="boxes", x="n", y="mse", log_y=True), Figure(kind="boxes", x="n", y="reward")),
    quick=Quick(runs=1, grid={"n": (1000,)}, methods=tuple(name for name in ESTIMATORS if name != "dml-cmr")),
)

_STRENGTHS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.01)


def _by_strength(*values: float) -> dict[str, float]:
    return by("iv_strength", _STRENGTHS, values)


weak = Experiment(
    name="iv/weak",
    title="Demand with a weak instrument",
    protocol=(
        "as iv/demand at n = 5000, with price 25 + (strength Z + 3) psi(T) + v; mean squared error of f on the same "
        "grid, on which most of the error at small strength is extrapolation."
    ),
    run_cell=f"{_MODULE}:run_weak",
    methods=tuple(ESTIMATORS.values()),
    grid={"iv_strength": _STRENGTHS},
    runs=20,
    statistic="mean",
    budget={"n": 5000},
    metrics=(_MSE, CPU_SECONDS),
    references=(
        target("dml-cmr", "published DML-CMR", _by_strength(0.0676, 0.0984, 0.1295, 0.1859, 0.2899, 0.4872), _TABLE),
        target(
            "ce-dml-cmr", "published CE-DML-CMR", _by_strength(0.0765, 0.1064, 0.1514, 0.2070, 0.3194, 0.5302), _TABLE
        ),
        target("deepiv", "published DeepIV", _by_strength(0.1213, 0.2039, 0.3051, 0.4476, 0.6891, 0.9293), _TABLE),
        target("dfiv", "published DFIV", _by_strength(0.1124, 0.1586, 0.3080, 0.8117, 0.9622, 1.6503), _TABLE),
        target("deepgmm", "published DeepGMM", _by_strength(0.2699, 0.3330, 0.4762, 0.8666, 1.0056, 2.0218), _TABLE),
        target("kiv", "published KIV", _by_strength(0.2312, 0.3149, 0.4275, 0.6646, 0.8099, 1.226), _TABLE),
    ),
    figures=(Figure(kind="lines", x="iv_strength", y="mse", log_y=True),),
    quick=Quick(runs=1, grid={"iv_strength": (1.0, 0.2)}, budget={"n": 1000}, methods=QUICK_METHODS),
)

_TREE_SIZES = (2000, 5000, 10000)


def _by_tree_size(*values: float) -> dict[str, float]:
    return by("n", _TREE_SIZES, values)


trees = Experiment(
    name="iv/trees",
    title="Demand with forests and boosting",
    protocol=(
        "as iv/demand, with trees as nuisances and as f; mean squared error of f on the same grid. Without folds "
        "(CE-DML-CMR, DeepIV) the nuisances predict every row out of bag, by trees that have not seen it."
    ),
    run_cell=f"{_MODULE}:run_plain",
    methods=(
        tree("forest-dml", "DML-CMR, forests", 50, model="forest", n_folds=10),
        tree("forest-ce", "CE-DML-CMR, forests", 60, model="forest", n_folds=1),
        tree("forest-deepiv", "DeepIV, forests", 60, model="forest", n_folds=1, score="deepiv"),
        tree("boosting-dml", "DML-CMR, boosting", 20, model="boosting", n_folds=10),
        tree("boosting-ce", "CE-DML-CMR, boosting", 60, model="boosting", n_folds=1),
        tree("boosting-deepiv", "DeepIV, boosting", 60, model="boosting", n_folds=1, score="deepiv"),
    ),
    grid={"n": _TREE_SIZES},
    runs=20,
    statistic="mean",
    metrics=(_MSE, CPU_SECONDS),
    references=(
        target("forest-dml", "published DML-CMR, forests", _by_tree_size(0.1689, 0.1067, 0.0657), _TABLE),
        target("forest-ce", "published CE-DML-CMR, forests", _by_tree_size(0.1733, 0.1154, 0.0721), _TABLE),
        target("forest-deepiv", "published DeepIV, forests", _by_tree_size(0.2642, 0.1626, 0.1106), _TABLE),
        target("boosting-dml", "published DML-CMR, boosting", _by_tree_size(0.1301, 0.0632, 0.0482), _TABLE),
        target("boosting-ce", "published CE-DML-CMR, boosting", _by_tree_size(0.1329, 0.0699, 0.0523), _TABLE),
        target("boosting-deepiv", "published DeepIV, boosting", _by_tree_size(0.2052, 0.1020, 0.1017), _TABLE),
    ),
    figures=(Figure(kind="boxes", x="n", y="mse", log_y=True),),
    quick=Quick(runs=1, grid={"n": (500,)}, methods=("forest-ce", "boosting-ce")),
)

_IMAGE_METHODS = ("dml-cmr", "ce-dml-cmr", "kernel-cmr", "deepiv", "dfiv", "deepgmm", "kiv", "control")

images = Experiment(
    name="iv/images",
    title="Demand with images",
    protocol=(
        "as iv/demand, with an MNIST digit in place of the customer type (pixels / 255; training images from its "
        "training part, one test image for every point of the grid); every method sees the same 16 features of the "
        "image, which are made without outcomes."
    ),
    run_cell=f"{_MODULE}:run_images",
    methods=tuple(replace(ESTIMATORS[name], seconds=1.5 * ESTIMATORS[name].seconds) for name in _IMAGE_METHODS),
    grid={"n": _SIZES},
    runs=20,
    budget={"images": "mnist"},
    metrics=(_MSE, CPU_SECONDS),
    references=(
        target("dml-cmr", "published DML-IV", _by_size(0.48, 0.42, 0.35, 0.29), _FIGURE),
        target("ce-dml-cmr", "published CE-DML-IV", _by_size(0.64, 0.53, 0.38, 0.31), _FIGURE),
        published("DeepIV", _by_size(0.71, 0.58, 0.44, 0.35), _FIGURE, method="deepiv"),
        published("DFIV", _by_size(0.81, 0.70, 0.52, 0.42), _FIGURE, method="dfiv"),
        published("KIV", _by_size(0.89, 0.84, 0.80, 0.76), _FIGURE, method="kiv"),
        published("DeepGMM", _by_size(1.19, 1.07, 0.75, 0.69), _FIGURE, method="deepgmm"),
    ),
    figures=(Figure(kind="boxes", x="n", y="mse", log_y=True),),
    quick=Quick(runs=1, grid={"n": (500,)}, budget={"images": "digits"}, methods=("kernel-cmr",)),
)
