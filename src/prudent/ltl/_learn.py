"""Learning from an LTL goal. Here is Q-learning: six methods, one loop, exact evaluation on the way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from prudent._progress import Progress, Task
from prudent.ltl._check import Checker
from prudent.ltl._evaluate import DONE
from prudent.ltl._kernels import (
    UNSTARTED,
    Rates,
    greedy_actions,
    make_q,
    make_tables,
    run_counter,
    run_hahn,
    run_hasanbeig,
)
from prudent.ltl._mdp import LabelledMDP
from prudent.ltl._policy import Policy
from prudent.ltl._product import Goal, Product, as_automaton, build_product, degeneralise, goal_text, thin_acceptance
from prudent.ltl._rewards import reward_table, sufficient_bounds
from prudent.ltl._rng import seed_state
from prudent.ltl._run import Curve, LearningRun, LearningRuns, Settings

if TYPE_CHECKING:
    from prudent.ltl._certificate import CertifiedRun, CertifiedRuns

METHODS = ("kc", "cf", "cf+kc", "bozkurt", "hahn", "hasanbeig")
_WITHOUT_COUNTER = ("cf", "bozkurt")


@overload
def learn(env: Any, goal: Goal, *, method: Literal["certified"], seed: int = 0, **settings: Any) -> CertifiedRun: ...
@overload
def learn(
    env: Any, goal: Goal, *, method: Literal["certified"], seed: Sequence[int], **settings: Any
) -> CertifiedRuns: ...
@overload
def learn(env: LabelledMDP, goal: Goal, *, seed: int = 0, **settings: Any) -> LearningRun: ...
@overload
def learn(env: LabelledMDP, goal: Goal, *, seed: Sequence[int], **settings: Any) -> LearningRuns: ...
def learn(env: Any, goal: Goal, *, method: str = "cf+kc", **settings: Any) -> Any:
    """Learn a policy that satisfies ``goal``, without using the transition probabilities of ``env``.

    Parameters
    ----------
    env : LabelledMDP, or for ``certified`` also a gymnasium.Env
    goal : str, Formula or Automaton
    method : {"certified", "kc", "cf", "cf+kc", "bozkurt", "hahn", "hasanbeig"}
        ``certified`` learns a model with intervals and proves what it says (:func:`learn_certified`); the others are
        Q-learners (:func:`q_learn`).
    **settings
        Those of the method: ``help(ltl.learn_certified)``, ``help(ltl.q_learn)``.

    Returns
    -------
    CertifiedRun or LearningRun; for a sequence of seeds CertifiedRuns or LearningRuns.
    """
    if method == "certified":
        from prudent.ltl._learn_certified import learn_certified

        return learn_certified(env, goal, **settings)
    if not isinstance(env, LabelledMDP):
        raise TypeError(
            f"method={method!r} needs a LabelledMDP, got {type(env).__name__}. An environment is learnt from by "
            "method='certified' with label=..., or made into a model by LabelledMDP.from_gymnasium."
        )
    return q_learn(env, goal, method=method, **settings)


def q_learn(
    mdp: LabelledMDP,
    goal: Goal,
    *,
    method: str = "cf+kc",
    steps: int | None = None,
    seed: int | Sequence[int] = 0,
    reward: str = "linear",
    U: float | str = 0.1,
    gamma: float | str = 0.99,
    discount_rewarded: bool = False,
    K: int | None = None,
    alpha: float = 0.1,
    epsilon: float = 0.1,
    zeta: float | None = None,
    patience: int | None = -1,
    episode_length: int | None = None,
    evaluate_every: int = 10_000,
    n_jobs: int | None = None,
    progress: bool = True,
) -> LearningRun | LearningRuns:
    """Learn by tabular Q-learning on the product, without using the transition probabilities of ``mdp``.

    The automaton loses the acceptance marks that its language does not need (fewer rewards on paths that end badly),
    and one with several acceptance sets gets a level counter, except for ``hasanbeig``, which has its own.

    Parameters
    ----------
    goal : str, Formula or Automaton
    method : {"kc", "cf", "cf+kc", "bozkurt", "hahn", "hasanbeig"}
        K-counter rewards, counterfactual imagining, both (Shao and Kwiatkowska, 2023), and the three methods that they
        compare with.
    steps : int, optional
        Steps of the product: moves of the environment, and epsilon moves. Default: the task's budget, or one million.
    seed : int or sequence of int
        A sequence gives one run for each seed, in parallel.
    reward : {"linear", "constant", "exponential", "decreasing"}
        How the reward of an acceptance depends on the counter.
    U, gamma : float or "auto"
        Largest reward, and discount of steps without reward. ``"auto"`` takes the thesis's sufficient bounds with
        |S| / p_min and |S| (see :mod:`prudent.ltl._rewards`).
    discount_rewarded : bool
        Discount a rewarded step by gamma (1 - R) and not by 1 - R. With it the published curves of the gate come out,
        although the theory, here and there, has 1 - R; it makes a few early rewards nearly as good as rewards for ever.
    K, zeta, patience, episode_length : optional
        Default: those of the model's task. ``patience`` is the number of steps without acceptance after which an
        episode is cut; None never cuts, -1 is the default (the task's, or 300).
    alpha, epsilon : float
        Learning rate and exploration rate.
    evaluate_every : int
        Steps between exact evaluations of the greedy policy.
    n_jobs : int, optional
        Threads for several seeds; default: all cores. The results do not depend on it.

    Returns
    -------
    LearningRun, or LearningRuns for a sequence of seeds.
    """
    seeds = [seed] if isinstance(seed, (int, np.integer)) else list(seed)
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seed needs one or more distinct integers, got {seed!r}.")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, certified, got {method!r}.")
    for name, value in (("U", U), ("gamma", gamma)):
        if isinstance(value, str) and value != "auto":
            raise ValueError(f"{name} must be a number or 'auto', got {value!r}.")
    task = mdp.task
    bounds = sufficient_bounds(mdp.n_states, mdp.minimum_probability)
    settings = Settings(
        method=method,
        steps=int(_first(steps, task and task.steps, 1_000_000)),
        reward=reward,
        U=bounds.U if isinstance(U, str) else float(U),
        gamma=bounds.gamma if isinstance(gamma, str) else float(gamma),
        discount_rewarded=discount_rewarded,
        K=0 if method in _WITHOUT_COUNTER else int(_first(K, task and task.counter, 10)),
        alpha=float(alpha),
        epsilon=float(epsilon),
        zeta=float(_first(zeta, task and task.zeta, 0.99)),
        patience=(task.patience if task else 300) if patience == -1 else patience,
        episode_length=int(_first(episode_length, task and task.episode_length, 1000)),
        evaluate_every=int(evaluate_every),
        sufficient_gamma=bounds.gamma,
    )
    _check(settings)
    automaton = as_automaton(goal)
    if method != "hasanbeig":
        automaton = degeneralise(automaton)
    product = build_product(mdp, thin_acceptance(automaton))
    workers = min(len(seeds), n_jobs or os.cpu_count() or 1)
    with Progress(None if progress else False) as bars:
        task = bars.start(f"{method}, {len(seeds)} runs", len(seeds) * settings.steps)

        def one(single: int) -> LearningRun:
            return _run(product, settings, int(single), goal_text(goal), task)

        if workers == 1:
            runs = tuple(one(s) for s in seeds)
        else:
            with ThreadPoolExecutor(workers) as pool:
                runs = tuple(pool.map(one, seeds))
    return runs[0] if isinstance(seed, (int, np.integer)) else LearningRuns(runs)


def _first(*values: float | None) -> float:
    """The first that is given: by the caller, by the task, by default."""
    return next(value for value in values if value is not None)


def _check(settings: Settings) -> None:
    """Refuse what makes no sense."""
    for name in ("steps", "episode_length", "evaluate_every"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}.")
    for name in ("gamma", "alpha"):
        if not 0.0 < getattr(settings, name) <= 1.0:
            raise ValueError(f"{name} must be in (0, 1], got {getattr(settings, name)}.")
    for name in ("epsilon", "zeta"):
        if not 0.0 <= getattr(settings, name) <= 1.0:
            raise ValueError(f"{name} must be in [0, 1], got {getattr(settings, name)}.")
    if settings.patience is not None and settings.patience < 1:
        raise ValueError(f"patience must be at least 1, or None for no limit; got {settings.patience}.")
    reward_table(settings.reward, settings.U, settings.K)


def _run(product: Product, settings: Settings, seed: int, formula: str | None, task: Task) -> LearningRun:
    mdp, automaton = product.mdp, product.automaton
    checker = Checker.of(product)
    tables = make_tables(product)
    has_initial_value = settings.method in ("kc", "cf", "cf+kc", "bozkurt")
    q_table, best = make_q(product, 2 * settings.U if has_initial_value else 0.0)
    position = np.array([UNSTARTED, 0, 0, 0, 0], np.int64)
    rng = seed_state(seed)
    rates = Rates(
        alpha=settings.alpha,
        explore=settings.epsilon,
        gamma=settings.gamma,
        gamma_rewarded=settings.gamma if settings.discount_rewarded else 1.0,
        episode_length=settings.episode_length,
        patience=-1 if settings.patience is None else settings.patience,
    )
    rewards = reward_table(settings.reward, settings.U, settings.K)
    is_counterfactual = settings.method in ("cf", "cf+kc")
    choices = np.zeros(product.next_q.shape, np.int32)

    def evaluate() -> float:
        greedy_actions(q_table, product.epsilon, mdp.n_actions, choices)
        status, value = checker.evaluate(choices, product)
        return value if status == DONE else checker(Policy(automaton, mdp.actions, choices))

    marks = [0, *range(settings.evaluate_every, settings.steps, settings.evaluate_every), settings.steps]
    values = [evaluate()]
    for before, after in pairwise(marks):
        n = after - before
        if settings.method == "hahn":
            run_hahn(n, tables, rates, q_table, best, position, rng, settings.zeta)
        elif settings.method == "hasanbeig":
            run_hasanbeig(n, tables, rates, q_table, best, position, rng)
        else:
            run_counter(n, tables, rates, q_table, best, position, rng, rewards, is_counterfactual)
        values.append(evaluate())
        task.advance(steps=n)
    return LearningRun(
        policy=Policy(automaton, mdp.actions, choices, formula=formula),
        curve=Curve(np.array(marks), np.array(values)),
        settings=settings,
        seed=seed,
    )
