"""Policies: a design whose best action depends on the context, and bandits, which know no instruments."""

from dataclasses import replace

from prudent.bench._definition import CPU_SECONDS, Experiment, Figure, Method, Metric, Quick, Reference, Task
from prudent.bench.experiments._iv import CONTEXT_SEED, ESTIMATORS, by, fit

_MODULE = "prudent.bench.experiments.iv_policies"
_SIZES = (1000, 5000)


def _bandit(name: str, seconds: float, **quick: int) -> Method:
    return Method(
        name=name.lower(), label=name, settings={"bandit": name}, quick=quick, seconds=seconds, quick_seconds=1
    )


_BANDITS = (
    _bandit("LinLCB", 1),
    _bandit("KernLCB", 15, max_rows=200),
    _bandit("NeuraLCB", 20, n_steps=300),
    _bandit("NeuralLinLCB", 40, n_steps=300),
    _bandit("NeuralLinGreedy", 40, n_steps=300),
)
# The same that never see the instrument: given it, price and hidden demand of the pricing design are nearly one thing.
_BLIND = tuple(
    replace(
        bandit,
        name=f"{bandit.name}-without",
        label=f"{bandit.label}, without the instrument",
        settings=bandit.settings | {"instrument": False},
    )
    for bandit in _BANDITS
)
_GIVEN = tuple(replace(bandit, label=f"{bandit.label}, the instrument as context") for bandit in _BANDITS)
_RANDOM = Method(name="random", label="random action", settings={"bandit": "random"}, seconds=0.1, quick_seconds=0.1)


def run_context(task: Task) -> dict[str, float]:
    """Learn a policy from n rows of the pricing design; what it loses in fresh contexts, and in wealthier ones."""
    from prudent import datasets

    data = datasets.make_pricing(int(task.point["n"]), seed=task.seed)
    act = _policy(task, data)
    result = {}
    for end, shifted in (("", False), ("_ood", True)):
        result[f"suboptimality{end}"] = _loss(act, data, task, shifted).value
    return result


def run_bandit(task: Task) -> dict[str, float]:
    """Learn a policy from n rows of the demand design; its true sales in fresh contexts."""
    from prudent import datasets

    data = datasets.make_demand(int(task.point["n"]), seed=task.seed)
    act = _policy(task, data)
    judged = _loss(act, data, task, False)
    return {"reward": judged.reward, "suboptimality": judged.value}


def _loss(act, data, task: Task, shifted: bool):
    from prudent.iv import suboptimality

    contexts = data.contexts(int(task.budget["contexts"]), seed=CONTEXT_SEED, shifted=shifted)
    return suboptimality(act, data, contexts, actions=data.action_range)


def _policy(task: Task, data):
    """The learnt policy as a function of contexts.

    Bandits get the instrument as one more context (as in the thesis), in new contexts a fresh draw of it; or, where
    the settings say so, not at all.
    """
    import numpy as np

    from prudent import iv

    settings = dict(task.settings)
    name = settings.pop("bandit", None)
    low, high = data.action_range
    rng = np.random.default_rng(task.seed)
    if name is None:
        return fit(task, data).policy(data.action_range)
    if name == "random":
        return lambda contexts: rng.uniform(low, high, len(contexts))
    roles = data.roles()
    if not settings.pop("instrument", True):
        del roles["instruments"]
        return getattr(iv, name)(**settings, seed=task.seed).fit(**roles, actions=(low, high)).act
    bandit = getattr(iv, name)(**settings, seed=task.seed).fit(**roles, actions=(low, high))

    def act(contexts: np.ndarray) -> np.ndarray:
        # In both designs the instrument is N(0, 1), independent of the context.
        return bandit.act(contexts, rng.standard_normal((len(contexts), 1)))

    return act


def _by_size(*values: float) -> dict[str, float]:
    return by("n", _SIZES, values)


context = Experiment(
    name="iv/context",
    title="A best action that depends on the context",
    protocol=(
        "the pricing design of prudent.datasets; what the policy over prices in [-3, 3] loses against the best price "
        "of every context, in 2,000 fresh contexts and in 2,000 that are wealthier than the data. Bandits do not see "
        "the instrument, or take it for one more context, of which they get a fresh draw."
    ),
    run_cell=f"{_MODULE}:run_context",
    methods=(*ESTIMATORS.values(), *_BLIND, *_GIVEN, _RANDOM),
    grid={"n": _SIZES},
    runs=20,
    budget={"contexts": 2000},
    metrics=(
        Metric(name="suboptimality", label="suboptimality", better="lower", format=".3f"),
        Metric(name="suboptimality_ood", label="suboptimality, out of distribution", better="lower", format=".3f"),
        CPU_SECONDS,
    ),
    references=(
        Reference(
            label="limit of a regression that ignores the instrument",
            metric="suboptimality",
            values=_by_size(*[0.916] * len(_SIZES)),
            role="known",
            source="closed form, see prudent.datasets.make_pricing",
        ),
        Reference(
            label="limit of a regression on the instrument, too",
            metric="suboptimality",
            values=_by_size(*[3.229] * len(_SIZES)),
            role="known",
            source="p* + 1.835, kept in [-3, 3]; see prudent.datasets.make_pricing",
        ),
        Reference(
            label="best constant price",
            metric="suboptimality",
            values=_by_size(*[0.87] * len(_SIZES)),
            role="known",
            source="closed form, see prudent.datasets.make_pricing",
        ),
        Reference(
            label="below the best constant price",
            metric="suboptimality",
            values=_by_size(*[0.87] * len(_SIZES)),
            method="dml-cmr",
            role="target",
        ),
    ),
    figures=(Figure(kind="lines", x="n", y="suboptimality", log_x=True, log_y=True),),
    quick=Quick(
        runs=1,
        grid={"n": (1000,)},
        budget={"contexts": 300},
        methods=("kernel-cmr", "2sls", "linlcb", "linlcb-without", "random"),
    ),
)

bandit = Experiment(
    name="iv/bandit",
    title="Offline bandits without instruments on demand",
    protocol=(
        "the demand design; bandits see context and instrument and choose among 20 prices in [-3, 3]; true sales under "
        "the policy in 10,000 fresh contexts."
    ),
    run_cell=f"{_MODULE}:run_bandit",
    methods=(*_BANDITS, _RANDOM, ESTIMATORS["dml-cmr"]),
    grid={"n": _SIZES},
    runs=20,
    budget={"contexts": 10_000},
    metrics=(
        Metric(name="reward", label="reward", better="higher", format=".3f"),
        Metric(name="suboptimality", label="suboptimality", better="lower", format=".3f"),
        CPU_SECONDS,
    ),
    references=(
        Reference(
            label="optimum",
            metric="reward",
            values=_by_size(0.748, 0.748),
            role="known",
            source="the lowest price in every context",
        ),
    ),
    figures=(Figure(kind="boxes", x="n", y="reward"),),
    quick=Quick(runs=1, grid={"n": (1000,)}, budget={"contexts": 300}, methods=("linlcb", "kernlcb", "random")),
)
