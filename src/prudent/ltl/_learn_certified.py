"""``ltl.learn(..., method="certified")``: arguments, the loop of exploring and planning, and checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent._progress import Progress, Task
from prudent.ltl import _explore as ex
from prudent.ltl._automaton import Automaton
from prudent.ltl._book import N_OPEN, N_RESETS, Book
from prudent.ltl._certificate import Bounds, Certificate, CertifiedRun, CertifiedRuns, CertifiedSettings
from prudent.ltl._certified import Learner, Plan
from prudent.ltl._check import Checker
from prudent.ltl._evaluate import DONE
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._policy import Policy
from prudent.ltl._product import Goal, as_automaton, degeneralise, goal_text
from prudent.ltl._run import Curve
from prudent.ltl._source import EnvSource, LabelFunction, ModelSource

if TYPE_CHECKING:
    import gymnasium

DEFAULT_STEPS = 1_000_000
_VERSION = 3
# Double precision does not carry closer bounds.
MIN_EPSILON = 1e-6
# Arrays of a checkpoint beside its key and its book.
_PARTS = {
    "low",
    "high",
    "upper",
    "done_visits",
    "quota",
    "watch",
    "fresh_quota",
    "depth",
    "reach",
    "position",
    "rng",
    "trace",
}
# What reading a file that is something else may raise.
_UNREADABLE = (OSError, EOFError, KeyError, TypeError, AttributeError, ValueError, zipfile.BadZipFile, zlib.error)


def learn_certified(
    env: LabelledMDP | gymnasium.Env,
    goal: Goal,
    *,
    confidence: float = 0.95,
    p_min: float | None = None,
    epsilon: float = 0.05,
    gap: float | None = None,
    label: LabelFunction | None = None,
    resets: bool = True,
    steps: int | None = None,
    seed: int | Sequence[int] = 0,
    evaluate: bool = True,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> CertifiedRun | CertifiedRuns:
    """Learn a policy whose satisfaction probability is known with confidence.

    The environment is seen through reset and step only. The bounds hold at every step at once, so that the run may be
    stopped at any of them (by ``steps``, or by an interrupt from the keyboard).

    Parameters
    ----------
    env : LabelledMDP or gymnasium.Env
        A model used as a simulator, or an environment with discrete spaces; the latter needs ``label``.
    confidence : float
        Probability, over the draws of the environment, that all bounds hold.
    p_min : float
        A probability below which no possible transition lies. Bounds are worthless where it is too large.
    epsilon : float
        Stop when the policy's probability is known this closely, and
    gap : float, optional
        when no policy can be better than the lower bound by more than this. Default: ``epsilon``.
    label : callable
        Propositions that are true in an observation.
    resets : bool
        Whether the learner may reset at will. Without, one run has to do, and the certificate is for its first state;
        an environment whose episodes end is then reset only when they end.
    steps : int, optional
        Draws from the environment at most, resets included. Default: one million.
    seed : int or sequence of int
    evaluate : bool
        For a model, record the exact probability of the policy along the way (for reports; nothing depends on it).
    checkpoint : path, optional
        File for the state of the run, written at the end and on the way; ``resume=True`` continues from it.

    Returns
    -------
    CertifiedRun, or CertifiedRuns for a sequence of seeds.
    """
    settings = _settle(confidence, p_min, epsilon, gap, resets, steps)
    is_single = isinstance(seed, (int, np.integer))
    seeds: list[int] = [int(seed)] if isinstance(seed, (int, np.integer)) else [int(s) for s in seed]
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seed needs one or more distinct integers, got {seed!r}.")
    if checkpoint is not None and not is_single:
        raise ValueError(f"checkpoint is for one run, got {len(seeds)} seeds. Learn them one by one.")
    if resume and checkpoint is None:
        raise ValueError("resume=True needs a checkpoint to continue from, got none.")
    automaton = degeneralise(as_automaton(goal))
    runs = []
    with Progress(None if progress else False) as bars:
        task = bars.start(f"certified, {len(seeds)} runs", len(seeds) * settings.steps)
        for single in seeds:
            source = _source(env, label, automaton, single)
            store = _Store(Path(checkpoint), settings, automaton, source, single) if checkpoint is not None else None
            runs.append(_run(source, automaton, settings, single, evaluate, store, resume, task))
            runs[-1].policy.formula = goal_text(goal)
    return runs[0] if is_single else CertifiedRuns(tuple(runs))


def _settle(confidence, p_min, epsilon, gap, resets, steps) -> CertifiedSettings:
    if p_min is None:
        raise ValueError(
            "method='certified' needs p_min, a lower bound on every non-zero transition probability; got none. Without "
            "such knowledge no number of samples proves an LTL goal. For a model: p_min=mdp.minimum_probability."
        )
    gap = epsilon if gap is None else gap
    steps = DEFAULT_STEPS if steps is None else steps
    for name, value in (("p_min", p_min), ("confidence", confidence), ("epsilon", epsilon), ("gap", gap)):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise TypeError(f"{name} must be a number, got {value!r}.")
    if not 0.0 < p_min <= 1.0:
        raise ValueError(f"p_min must be in (0, 1], got {p_min}.")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be strictly between 0 and 1, got {confidence}.")
    for name, value in (("epsilon", epsilon), ("gap", gap)):
        if not MIN_EPSILON <= value < 1.0:
            raise ValueError(
                f"{name} must be below 1 and at least {MIN_EPSILON:g}, got {value}: floating-point numbers do not "
                "carry closer bounds. A probability of exactly 1 is found with any epsilon."
            )
    if not isinstance(steps, (int, np.integer)) or steps < 1:
        raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}.")
    return CertifiedSettings(
        confidence=float(confidence),
        p_min=float(p_min),
        epsilon=float(epsilon),
        gap=float(gap),
        resets=bool(resets),
        steps=int(steps),
    )


def _source(env: Any, label: LabelFunction | None, automaton: Automaton, seed: int) -> ModelSource | EnvSource:
    if isinstance(env, LabelledMDP):
        if label is not None:
            raise ValueError("label is for Gymnasium environments; a LabelledMDP has its labels. Leave it out.")
        return ModelSource(env, automaton, seed)
    from gymnasium.spaces import Discrete

    spaces = [getattr(env, name, None) for name in ("observation_space", "action_space")]
    if not all(isinstance(space, Discrete) for space in spaces):
        found = ", ".join(type(space).__name__ for space in spaces)
        raise TypeError(
            "certified learning needs a LabelledMDP, or a Gymnasium environment with Discrete observations and "
            f"actions; got {type(env).__name__} with spaces {found}. Discretise it with a wrapper."
        )
    if label is None:
        raise ValueError("a Gymnasium environment needs label=..., the function from observations to propositions.")
    return EnvSource(env, label, automaton, seed)


def _run(
    source: ModelSource | EnvSource,
    automaton: Automaton,
    settings: CertifiedSettings,
    seed: int,
    evaluate: bool,
    store: _Store | None,
    resume: bool,
    task: Task,
) -> CertifiedRun:
    learner = Learner(
        source,
        confidence=settings.confidence,
        p_min=settings.p_min,
        epsilon=settings.epsilon,
        gap=settings.gap,
        resets=settings.resets,
    )
    trace: list[tuple[float, ...]] = []
    if store is not None:
        trace = store.open(learner, resume)
    exact = _Exact(source) if evaluate and isinstance(source, ModelSource) else None
    reason, lost_at, plan = "", -1, None
    try:
        while True:
            before = learner.steps
            why = learner.explore(settings.steps)
            task.advance(steps=learner.steps - before)
            if why == ex.LOST:
                # Without resets some rows cannot be reached again. Take what can be had, then give up.
                if learner.steps == lost_at:
                    reason = "nothing that could narrow the bounds can be reached any more"
                    break
                learner.want_anything()
                lost_at = learner.steps
                continue
            plan = learner.plan()
            _keep(trace, learner, plan, exact)
            if store is not None:
                store.write(learner, trace, is_final=False)
            if plan.mode == "conflict":
                reason = "the data contradict p_min"
                break
            if plan.mode == "done":
                break
            if learner.steps >= settings.steps:
                reason = f"the budget of {settings.steps:,} steps is spent"
                break
    except KeyboardInterrupt:
        reason = "stopped from the keyboard"
    if plan is None or trace[-1][0] != learner.steps:
        plan = learner.plan()
        _keep(trace, learner, plan, exact)
    if plan.mode == "done":
        reason = f"the bounds are as close as asked ({settings.gap:g})"
    if store is not None:
        store.write(learner, trace, is_final=True)
    if isinstance(source, EnvSource) and plan.lower < 1.0 and source.unseen_propositions():
        names = ", ".join(sorted(source.unseen_propositions()))
        warnings.warn(f"true in no state seen: {names}. Does label return these names?", UserWarning, stacklevel=4)
    return _result(learner, plan, trace, reason, automaton, settings, seed, exact is not None)


def _keep(trace: list[tuple[float, ...]], learner: Learner, plan: Plan, exact: _Exact | None) -> None:
    value = exact(plan.choices) if exact is not None else np.nan
    trace.append((learner.steps, plan.lower, plan.upper, plan.policy_upper, value))


class _Exact:
    """Exact probability of policies on the true model; equal tables are computed once."""

    def __init__(self, source: ModelSource):
        self._source = source
        self._checker = Checker.of(source.product)
        self._last: tuple[bytes, float] = (b"", np.nan)

    def __call__(self, choices: np.ndarray) -> float:
        digest = hashlib.sha256(choices.tobytes()).digest()
        if digest != self._last[0]:
            product = self._source.product
            status, value = self._checker.evaluate(choices, product)
            if status != DONE:
                value = self._checker(Policy(product.automaton, product.mdp.actions, choices))
            self._last = (digest, value)
        return self._last[1]


def _result(
    learner: Learner,
    plan: Plan,
    trace: list[tuple[float, ...]],
    reason: str,
    automaton: Automaton,
    settings: CertifiedSettings,
    seed: int,
    has_curve: bool,
) -> CertifiedRun:
    source, book = learner.source, learner.book
    conflict = learner.conflict() if learner.has_conflict else None
    if conflict is not None:
        warnings.warn(conflict, UserWarning, stacklevel=4)
    columns = [np.array(column) for column in zip(*trace, strict=True)]
    steps = columns[0].astype(np.int64)
    n_states, n_actions = source.actions.shape
    first = None
    if not settings.resets:
        first = source.name(int(book.slot_state[book.head[-1]]))
    certificate = Certificate(
        lower=plan.lower,
        upper=plan.upper,
        policy_upper=plan.policy_upper,
        confidence=settings.confidence,
        epsilon=settings.epsilon,
        p_min=settings.p_min,
        steps=learner.steps,
        resets=int(book.tally[N_RESETS]),
        is_certified=plan.mode == "done",
        reason=reason,
        conflict=conflict,
        first_state=first,
    )
    n = source.n_observations
    return CertifiedRun(
        policy=Policy(automaton, source.action_names, plan.choices[:n]),
        certificate=certificate,
        bounds=Bounds(steps, *columns[1:4]),
        settings=settings,
        seed=seed,
        visits=book.visits[:-1].reshape(n_states, n_actions)[:n].copy(),
        curve=Curve(steps, columns[4]) if has_curve else None,
    )


class _Store:
    """A checkpoint: arrays in an ``.npz`` file, which is read without running code."""

    def __init__(
        self,
        path: Path,
        settings: CertifiedSettings,
        automaton: Automaton,
        source: ModelSource | EnvSource,
        seed: int,
    ):
        self.path = path
        # The budget may grow between runs; everything else decides what the counts mean.
        decisive = [settings.confidence, settings.p_min, settings.epsilon, settings.gap, settings.resets]
        parts = [_VERSION, decisive, automaton.to_hoa(), list(source.actions.shape), list(source.action_names)]
        parts += [source.identity, seed]
        self._key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        self._written = 0

    def open(self, learner: Learner, resume: bool) -> list[tuple[float, ...]]:
        """Fill the learner from the file where there is one; the trace so far."""
        if not self.path.exists():
            return []
        if not resume:
            raise ValueError(f"the checkpoint {self.path} exists. Continue it with resume=True, or remove it.")
        try:
            # An open file: np.load would not close one that is empty.
            with open(self.path, "rb") as file, np.load(file, allow_pickle=False) as stored:
                data = {name: stored[name] for name in stored.files}
            key = str(data["key"])
            book = Book(*(data[f"book_{name}"] for name in Book._fields))
            missing = _PARTS - data.keys()
            if missing:
                raise KeyError(f"it has no {min(missing)}")
        except _UNREADABLE as e:
            raise ValueError(f"{self.path} is not a checkpoint of certified learning ({e}). Remove it.") from e
        if key != self._key:
            raise ValueError(
                f"the checkpoint {self.path} belongs to another goal, environment, seed or settings. "
                "Use the same ones, or another file."
            )
        learner.book = book
        learner.low, learner.high, learner.upper = data["low"], data["high"], float(data["upper"])
        learner.done_visits = data["done_visits"]
        wishes = learner.wishes
        wishes.quota = data["quota"]
        wishes.watch, wishes.fresh_quota = bool(data["watch"]), int(data["fresh_quota"])
        wishes.depth, wishes.reach = data["depth"], float(data["reach"])
        book.tally[N_OPEN] = np.count_nonzero(wishes.quota)
        source = learner.source
        if isinstance(source, ModelSource):
            source.position[:], source.rng[:] = data["position"], data["rng"]
        else:
            source.relabel_seen(book)
            source.reseed(learner.steps)
        return [tuple(row) for row in data["trace"].tolist()]

    def write(self, learner: Learner, trace: list[tuple[float, ...]], *, is_final: bool) -> None:
        """Replace the file; on the way only when a tenth more steps were done."""
        if not is_final and learner.steps < 1.1 * self._written:
            return
        self._written = learner.steps
        wishes, source = learner.wishes, learner.source
        arrays: dict[str, Any] = {f"book_{name}": value for name, value in learner.book._asdict().items()}
        arrays |= {
            "key": np.array(self._key),
            "low": learner.low,
            "high": learner.high,
            "upper": np.array(learner.upper),
            "done_visits": learner.done_visits,
            "quota": wishes.quota,
            "watch": np.array(wishes.watch),
            "fresh_quota": np.array(wishes.fresh_quota),
            "depth": wishes.depth,
            "reach": np.array(wishes.reach),
            "position": source.position,
            "rng": source.rng,
            "trace": np.array(trace),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".partial")
        with open(partial, "wb") as file:
            np.savez_compressed(file, **arrays)
        os.replace(partial, self.path)
