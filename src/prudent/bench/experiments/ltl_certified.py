"""Learning from LTL goals with a certificate: how many samples, are the bounds true, how large may the model be.

``p_min`` is the environment's true smallest probability, or half of it where the name says so. The true one can help
more than it will in practice: at the gate, whose two outcomes have probabilities 0.2 and 0.8, it bounds the optimum by
0.8 before any sample. Steps are draws from the environment: moves and resets.
"""

from typing import TYPE_CHECKING, Any

from prudent.bench._definition import Experiment, Figure, Method, Metric, Quick, Reference, Task

if TYPE_CHECKING:
    from prudent.ltl import LabelledMDP

_MAKERS = {"gate": "probabilistic_gate", "lake": "frozen_lake", "office": "office_world"}

# Specifications from the repositories of reinforcement learning with LTL (rl-from-ltl, csrl, mungojerrie, psg-mit).
SPECIFICATIONS = (
    "((F G a) | (F G b)) & (G !c)",
    "(F G a) & (G !c)",
    "((G F a) | (G F b)) & (G !h)",
    "((F (l & (X ((G F t) & (G F w))))) | ((G F a) & (G F b))) & (G !o)",
    "(G F t) & (G F l) & (G F a) & (G !o)",
    "((F (l & (X ((G F t) & (G F a))))) | (F G b)) & (G !o)",
    "(G F (a & (X F b))) & (G !c)",
    "(G F (a & (X F b))) | (F G c)",
    "G(!d & ((b & X!b) -> X(!b U (a | c))) & ((!b & Xb & XX!b) -> (!a U b)) & (c -> (!a U b)) & ((b & X b) -> F a))",
    "GFb & GFc & (FGd | FGe)",
    "GFb & GFc & (FGd | FGe) & G!a",
    "F(n & X(n & X(k & XF k)))",
    "GFb & GFc & FGf",
    "F(b & F(c & F(d & Fe))) & G!a",
    "GFb & FGc & G!(d & Xd)",
    "((FGw & GFc & GFr) | FGc) & G!d",
    "(G(Fg & (g -> (Xt | XXt))) | (FGw & GFc & GFr)) & G!d",
    "((GFg & GFb & FGk) | GF(g & b)) & G!r",
    "FG(r & !k) | F(r & g) | F(r & b) | GF(g & b & !r)",
    "(FG x) | (GF y)",
    "F h",
    "G g",
)


def run_samples(task: Task) -> dict[str, Any]:
    """One certified run on a task: steps until the policy is optimal, until it is known, until it is certified."""
    from prudent import envs, ltl

    mdp = getattr(envs, _MAKERS[str(task.point["task"])])()
    best = ltl.optimum(mdp, mdp.goal)
    settings = dict(task.settings)
    run = ltl.learn(
        mdp,
        mdp.goal,
        method="certified",
        p_min=mdp.minimum_probability * settings.pop("p_min_factor", 1.0),
        steps=task.budget["steps"],
        seed=task.seed,
        progress=False,
        **settings,
    )
    curve, bounds, end = run.curve, run.bounds, run.certificate
    assert curve is not None
    limit = float(task.budget["steps"])
    epsilon = end.epsilon
    return {
        "optimal": float(_or(curve.steps_to(best - 1e-9), limit)),
        "known": float(_or(bounds.steps_to(epsilon, of="policy"), limit)),
        "certified": float(end.steps if end.is_certified else limit),
        "lower": end.lower,
        "upper": end.upper,
        "wrong": float(is_wrong(end.lower, curve.final, end.policy_upper, best, end.upper)),
        "steps": [int(x) for x in bounds.steps],
        "lowers": [round(float(x), 6) for x in bounds.lower],
        "uppers": [round(float(x), 6) for x in bounds.upper],
    }


def _or(value: int | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)


def is_wrong(lower: float, policy: float, policy_upper: float, best: float, upper: float) -> bool:
    """Whether the truth leaves the bounds by more than the rounding of the exact checker."""
    tolerance = 1e-7
    return policy < lower - tolerance or policy > policy_upper + tolerance or best > upper + tolerance


def run_validity(task: Task) -> dict[str, Any]:
    """A batch of random models and specifications; the share of runs whose bounds miss the truth.

    Of four models one has several first states, one is learnt in two parts from a checkpoint, one without resets.
    """
    import tempfile
    import warnings
    from dataclasses import replace
    from pathlib import Path

    import numpy as np

    from prudent import ltl

    rng = np.random.default_rng([task.seed, 5])
    wrong, certified, width, n = 0, 0, 0.0, int(task.budget["models"])
    for number in range(n):
        kind = ("plain", "several first states", "continued", "without resets")[number % 4]
        mdp, goal = random_case(rng)
        if kind == "several first states":
            chosen = rng.choice(mdp.n_states, size=int(rng.integers(2, 4)), replace=False)
            mdp = replace(mdp, initial=np.isin(np.arange(mdp.n_states), chosen) / len(chosen))
        limit = int(task.budget["steps"])
        # Every other run is stopped at a random time instead of by its own rule.
        steps = int(np.exp(rng.uniform(np.log(10), np.log(limit)))) if rng.random() < 0.5 else limit
        settings = {"p_min": mdp.minimum_probability, "resets": kind != "without resets", **task.settings}
        settings |= {"seed": int(rng.integers(2**31)), "evaluate": False, "progress": False}
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            if kind == "continued":
                settings["checkpoint"] = Path(folder) / "run.npz"
                ltl.learn(mdp, goal, method="certified", steps=max(1, steps // 2), **settings)
                settings["resume"] = True
            run = ltl.learn(mdp, goal, method="certified", steps=steps, **settings)
            end = run.certificate
            if end.first_state is not None:
                names = [mdp.name(state) for state in range(mdp.n_states)]
                mdp = replace(mdp, initial=np.eye(mdp.n_states)[names.index(end.first_state)])
            best, policy = ltl.optimum(mdp, goal), ltl.check(mdp, run.policy, goal)
        wrong += is_wrong(end.lower, policy, end.policy_upper, best, end.upper) or end.conflict is not None
        certified += end.is_certified
        width += end.upper - end.lower
    return {"failures": wrong / n, "certified": certified / n, "width": width / n}


def random_case(rng: Any) -> "tuple[LabelledMDP, str]":
    """A random model of 3 to 30 states with the propositions of a random specification."""
    from prudent import envs, ltl

    goal = SPECIFICATIONS[int(rng.integers(len(SPECIFICATIONS)))]
    names = ltl.parse(goal).propositions
    n_states = int(rng.integers(3, 31))
    n_actions = int(rng.integers(1, 4))
    return envs.random_mdp(n_states, n_actions, sorted(names), int(rng.integers(2**31))), goal


def run_scale(task: Task) -> dict[str, Any]:
    """A large building: samples to the optimum, and the time of planning and of interval iteration."""
    import resource
    import time

    import numpy as np

    from prudent import ltl
    from prudent.ltl._certified import Learner
    from prudent.ltl._interval import build_arena, robust_values, tabulate
    from prudent.ltl._product import degeneralise
    from prudent.ltl._source import ModelSource

    size, limit = int(task.budget["size"]), int(task.budget["steps"])
    mdp = patrol_grid(size, task.seed)
    began = time.process_time()
    run = ltl.learn(
        mdp,
        PATROL,
        method="certified",
        p_min=mdp.minimum_probability,
        confidence=0.95,
        epsilon=0.05,
        steps=limit,
        seed=task.seed,
        progress=False,
    )
    seconds = time.process_time() - began
    curve, end = run.curve, run.certificate
    assert curve is not None
    draws = run.visits.sum(axis=1)
    # Every row of a model of that size is known, and no value is decided by the graph.
    fragile = fragile_grid(size)
    automaton = degeneralise(ltl.translate(FRAGILE))
    learner = Learner(
        ModelSource(fragile, automaton, task.seed),
        confidence=0.95,
        p_min=fragile.minimum_probability,
        epsilon=0.05,
        gap=0.05,
        resets=True,
    )
    fill_book(learner, fragile, int(task.budget["visits"]), task.seed)
    began = time.process_time()
    plan = learner.plan()
    planning = time.process_time() - began
    arena = build_arena(tabulate(learner.book, learner.source.actions, True), learner.source.automata)
    n_groups = len(arena.quotient.value)
    began = time.process_time()
    robust_values(arena, np.zeros(n_groups), -1)
    robust_values(arena, np.ones(n_groups), 1)
    iterating = time.process_time() - began
    return {
        "optimal": _or(curve.steps_to(1.0 - 1e-9), limit),
        "certified": float(end.steps if end.is_certified else limit),
        "lower": end.lower,
        "exact": curve.final,
        "sampled": float((draws > 0).mean()),
        "proven": float((draws >= 50).mean()),
        "learning_seconds": seconds,
        "plannings": float(len(run.bounds.steps)),
        "planning_seconds": planning,
        "iteration_seconds": iterating,
        "nodes": float(len(arena.model.state)),
        "gap": plan.upper - plan.lower,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


PATROL = "(G F a) & (G F b) & (G F c) & (G !h)"
FRAGILE = "(F a) & (F b)"


def patrol_grid(size: int, seed: int) -> "LabelledMDP":
    """A building of slippery rooms, the start in a corner room, and three goals to patrol in rooms of its quarter.

    Rooms are 9 x 9 cells, neighbours share a wall with one door at a random place, and 5 % of the cells are traps, none
    of them next to a door, a goal or the start. A slip through a door can be avoided (move straight away from it), so
    one can stay in a few rooms for ever, while in the open whatever one does a slip may lead farther out.
    """
    import numpy as np

    from prudent import envs, ltl

    pitch = 10
    rng = np.random.default_rng(seed)
    n_rooms = size // pitch
    walls = np.arange(pitch - 1, size - 1, pitch)
    while True:
        kinds = np.where(rng.random((size, size)) < 0.05, "T", "~")
        doors = []
        for wall in walls:
            for corner in range(0, n_rooms * pitch, pitch):
                doors += [(wall, corner + rng.integers(pitch - 1)), (corner + rng.integers(pitch - 1), wall)]
        near = (n_rooms + 1) // 2
        rooms = np.stack(np.divmod(rng.choice(near * near, size=3, replace=False), near), axis=1)
        goals = pitch * rooms + rng.integers(pitch - 1, size=(3, 2))
        kept = [(0, 0), *map(tuple, goals), *doors]
        for row, column in kept:
            kinds[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = "~"
        kinds[walls] = kinds[:, walls] = "#"
        for cell in doors:
            kinds[cell] = "~"
        places = {name: [(int(row), int(column))] for name, (row, column) in zip("abc", goals, strict=True)}
        places["h"] = [(int(row), int(column)) for row, column in np.argwhere(kinds == "T")]
        mdp = envs.grid(["".join(row) for row in kinds], places, p=0.8)
        # Traps may still close a room.
        if ltl.optimum(mdp, PATROL) == 1.0:
            return mdp


def fragile_grid(size: int) -> "LabelledMDP":
    """A slippery square where every move breaks the walker with probability 0.01: the graph decides no value."""
    import scipy.sparse as sp

    from prudent import envs, ltl

    whole = envs.grid(["~" * size] * size, {}, p=0.8)
    n, half = whole.n_states, size // 2
    slabs = []
    for a in range(whole.n_actions):
        moves = 0.99 * whole.transitions[a :: whole.n_actions]
        slabs.append(sp.csr_array(sp.block_array([[moves, sp.csr_array([[0.01]] * n)], [None, sp.csr_array([[1.0]])]])))
    return ltl.LabelledMDP.from_arrays(slabs, {"a": [half * size], "b": [half]})


def fill_book(learner: Any, mdp: "LabelledMDP", visits: int, seed: int) -> None:
    """Sample every row ``visits`` times: each successor that came up is entered once, the rest of its count added."""
    import numpy as np

    from prudent.ltl._book import N_SLOTS, grow, record

    rng = np.random.default_rng(seed)
    n_actions = mdp.n_actions
    rows = [(s * n_actions + a, mdp.successors(s, a)) for s in range(mdp.n_states) for a in mdp.available(s)]
    first = {int(s): float(mdp.initial[s]) for s in np.flatnonzero(mdp.initial)}
    for row, outcome in [*rows, (len(learner.book.visits) - 1, first)]:
        counts = rng.multinomial(visits, list(outcome.values()))
        came = [(target, int(count)) for target, count in zip(outcome, counts, strict=True) if count]
        while learner.book.tally[N_SLOTS] + len(came) >= len(learner.book.slot_row):
            learner.book = grow(learner.book)
        book = learner.book
        slot = int(book.tally[N_SLOTS])
        for target, _ in came:
            record(book, row, target)
        for i, (_, count) in enumerate(came):
            book.slot_count[slot + i] += count - 1
        book.visits[row] = visits
        book.certified[row] = visits >= book.needed[book.n_seen[row]]


_FACT_SOURCE = "facts of the LTL chapter: steps until CF+KC's greedy policy is exactly optimal; it never is on the lake"

samples = Experiment(
    name="ltl/certified-samples",
    title="LTL: samples until the policy is optimal, known and certified",
    protocol=(
        "confidence 0.95, epsilon 0.05, p_min the true smallest probability; steps are moves and resets; optimal: from "
        "then on the exact probability of the policy is the optimum; known: the policy's own bounds are within 0.05; "
        "certified: the optimum's bounds are, too. A run that does not get there counts as the whole budget."
    ),
    run_cell="prudent.bench.experiments.ltl_certified:run_samples",
    methods=(
        Method(name="certified", label="certified", settings={}, seconds=3, quick_seconds=2),
        Method(
            name="half-p_min",
            label="certified, half of p_min",
            settings={"p_min_factor": 0.5},
            seconds=3,
            quick_seconds=2,
        ),
    ),
    grid={"task": tuple(_MAKERS)},
    runs=20,
    budget={"steps": 200_000},
    metrics=(
        Metric(name="optimal", label="steps until optimal", better="lower", format=",.0f"),
        Metric(name="known", label="steps until known within 0.05", better="lower", format=",.0f"),
        Metric(name="certified", label="steps until certified", better="lower", format=",.0f"),
        Metric(name="lower", label="lower bound at the end", better="higher", format=".4f"),
        Metric(name="upper", label="upper bound of the optimum at the end", format=".4f"),
        Metric(name="wrong", label="bounds that miss the truth", better="lower", format=".2f"),
        Metric(name="steps", in_tables=False),
        Metric(name="lowers", label="lower bound", in_tables=False),
        Metric(name="uppers", label="upper bound", in_tables=False),
    ),
    references=(
        Reference(
            label="target",
            metric="optimal",
            method="certified",
            role="target",
            values={"task=gate": 1000, "task=lake": 10_000, "task=office": 20_000},
        ),
        Reference(
            label="target",
            metric="certified",
            method="certified",
            role="target",
            values={"task=gate": 10_000, "task=lake": 50_000, "task=office": 200_000},
        ),
        Reference(
            label="CF+KC",
            metric="optimal",
            values={"task=gate": 650_000, "task=office": 750_000},
            source=_FACT_SOURCE,
        ),
    ),
    figures=(Figure(kind="curves", x="steps", y="lowers"), Figure(kind="curves", x="steps", y="uppers")),
    quick=Quick(runs=1, budget={"steps": 20_000}, methods=("certified",)),
)
validity = Experiment(
    name="ltl/certified-validity",
    title="LTL: how often certified bounds miss the truth",
    protocol=(
        "random models of 3 to 30 states with 22 specifications, 50 in each run; confidence 0.9, epsilon 0.05, p_min "
        "the true smallest probability; every other one stopped at a random step; of four models one has several first "
        "states, one is continued from a checkpoint, one learnt without resets; a failure is a policy or an optimum "
        "outside its bounds."
    ),
    run_cell="prudent.bench.experiments.ltl_certified:run_validity",
    version=2,
    methods=(Method(name="certified", settings={"confidence": 0.9}, seconds=20, quick_seconds=3),),
    runs=10,
    budget={"models": 50, "steps": 20_000},
    statistic="mean",
    metrics=(
        Metric(name="failures", label="share of failures", better="lower", format=".3f"),
        Metric(name="certified", label="share certified", format=".2f"),
        Metric(name="width", label="mean width", better="lower", format=".3f"),
    ),
    references=(Reference(label="allowed", metric="failures", method="certified", role="target", values={"": 0.1}),),
    quick=Quick(runs=1, budget={"models": 5, "steps": 2000}),
)
scale = Experiment(
    name="ltl/certified-scale",
    title="LTL: certified learning in a large slippery building",
    protocol=(
        "100 x 100 cells: slippery rooms (p = 0.8) of 9 x 9 cells with a door between neighbours and 5 % traps, three "
        f"goals to patrol in the quarter of the start, {PATROL}; confidence 0.95, epsilon 0.05. Learning includes the "
        "exact evaluation of the policy after each planning. Planning and interval iteration are timed on a slippery "
        "square of that size where every move breaks the walker with probability 0.01, all rows sampled 2,000 times: "
        "no value is 0 or 1 by the graph. Seconds of one core."
    ),
    run_cell="prudent.bench.experiments.ltl_certified:run_scale",
    methods=(Method(name="certified", settings={}, seconds=150, quick_seconds=20),),
    runs=3,
    budget={"size": 100, "steps": 3_000_000, "visits": 2000},
    metrics=(
        Metric(name="optimal", label="steps until optimal", better="lower", format=",.0f"),
        Metric(name="certified", label="steps until certified", better="lower", format=",.0f"),
        Metric(name="lower", label="lower bound", better="higher", format=".4f"),
        Metric(name="exact", label="exact probability", better="higher", format=".4f"),
        Metric(name="sampled", label="share of states sampled", better="lower", format=".3f"),
        Metric(name="proven", label="share of states sampled 50 times", better="lower", format=".3f"),
        Metric(name="learning_seconds", label="seconds to learn", better="lower", format=".1f"),
        Metric(name="plannings", label="plannings", format=",.0f"),
        Metric(name="planning_seconds", label="seconds to plan", better="lower", format=".2f"),
        Metric(name="iteration_seconds", label="seconds of interval iteration", better="lower", format=".2f"),
        Metric(name="nodes", label="product states of the square", format=",.0f"),
        Metric(name="gap", label="gap on the square", format=".3f"),
        Metric(name="memory", label="peak memory, MB", better="lower", format=",.0f"),
    ),
    quick=Quick(runs=1, budget={"size": 30, "steps": 100_000, "visits": 2000}),
)
