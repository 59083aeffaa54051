"""Episodes side by side: environments in batches, and demonstrations by an expert."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from prudent._checks import check_count
from prudent.cmr._base import check_seed
from prudent.envs import (
    ConfoundedLocomotion,
    ConfoundedWrapper,
    EpisodeBatch,
    TicketPricing,
    TicketPricingBatch,
    load_expert,
)
from prudent.envs._confounded import check_confounded
from prudent.errors import DataError
from prudent.imitation._trajectory import Trajectory

# Maps a batch of info["expert_obs"], (n, d), to actions (n, a).
Expert = Callable[[np.ndarray], np.ndarray]
# Steps of an episode, unless a time limit cuts it before.
STEPS = 500
# Which stream of seeds is meant: demonstrations, evaluation, or the fit of reference policies.
DEMONSTRATION, EVALUATION, REFERENCE = 0, 1, 2
# What gymnasium.make puts around every environment.
STANDARD_WRAPPERS = (TimeLimit, OrderEnforcing, PassiveEnvChecker)
# Wrappers that an episode leaves as it found them. Others may have learnt something, which a copy would not know.
STATELESS_WRAPPERS = (*STANDARD_WRAPPERS, ConfoundedWrapper)


def make_env(env: Any, **settings: Any) -> gymnasium.Env:
    """The environment of an id such as ``"TicketPricing-v0"``; an environment is returned as it is.

    Its action space must be a ``Box``.
    """
    made = _make(env, settings) if isinstance(env, str) else env
    if not isinstance(made, gymnasium.Env):
        raise DataError(f"env must be an environment of Gymnasium or the id of one, got {type(env).__name__}.")
    if settings and made is env:
        raise DataError(f"settings ({', '.join(settings)}) are for ids; {env} is made already. Make it with them.")
    if not isinstance(made.action_space, gymnasium.spaces.Box):
        raise DataError(f"the action space must be a Box, got {made.action_space}.")
    return made


def _make(env: str, settings: dict[str, Any]) -> gymnasium.Env:
    with warnings.catch_warnings():
        # Versions of a confounded environment differ in their equations: v0 is not out of date.
        warnings.filterwarnings("ignore", message=".*is out of date.*")
        try:
            return gymnasium.make(env, **settings)
        except DataError:
            raise
        except TypeError as cause:
            if not settings:
                raise
            raise DataError(
                f"{env} cannot be made with {', '.join(settings)} ({cause}). If it is not a confounded environment, "
                f"wrap it: prudent.envs.ConfoundedWrapper(gymnasium.make({env!r}), ...)."
            ) from None
        except (gymnasium.error.Error, ValueError, ImportError) as cause:
            raise DataError(f"no environment {env!r} ({cause}). Give the id of a confounded environment.") from None


def batches(env: gymnasium.Env, episodes: int) -> Iterator[Any]:
    """Batches that together run ``episodes`` episodes: one, where copies can be made, else one episode each."""
    tickets = plain_tickets(env)
    if tickets is not None:
        yield TicketPricingBatch(
            episodes,
            closed_loop=tickets.closed_loop,
            noise_horizon=tickets.noise_horizon,
            noise=tickets.noise,
            max_episode_steps=time_limit(env),
        )
        return
    if env.spec is not None and _has_only(env, STATELESS_WRAPPERS):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is out of date.*")
            try:
                batch = EpisodeBatch([gymnasium.make(env.spec) for _ in range(episodes)])
            except ValueError:  # A wrapper around it cannot be made again.
                batch = None
        if batch is not None:
            yield batch
            batch.close()
            return
    for _ in range(episodes):
        yield EpisodeBatch([env])


def _wrappers(env: gymnasium.Env) -> Iterator[gymnasium.Wrapper]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _has_only(env: gymnasium.Env, kinds: tuple[type, ...]) -> bool:
    """Whether all wrappers of an environment are of the given kinds."""
    return all(type(w) in kinds for w in _wrappers(env))


def plain_tickets(env: gymnasium.Env) -> TicketPricing | None:
    """The ticket pricing inside, if nothing around it changes what it does."""
    plain = env.unwrapped
    if type(plain) is TicketPricing and _has_only(env, STANDARD_WRAPPERS):
        return plain
    return None


def time_limit(env: gymnasium.Env) -> int | None:
    """Steps after which an episode is cut, if it is."""
    limits = [w._max_episode_steps for w in _wrappers(env) if isinstance(w, TimeLimit)]
    return min(limits, default=None)


def check_steps(env: gymnasium.Env, steps: int | None) -> int:
    """Steps of an episode: as given, or by default; at most the time limit."""
    limit = time_limit(env)
    if steps is None:
        return STEPS if limit is None else min(STEPS, limit)
    check_count("steps", steps, 1)
    if limit is not None and steps > limit:
        raise DataError(
            f"steps={steps} is beyond the time limit of {limit}, at which episodes are cut. Lower steps, or make the "
            "environment with max_episode_steps."
        )
    return int(steps)


def episode_seeds(seed: int, stream: int, episodes: int) -> list[int]:
    """One seed per episode. Runs with neighbouring seeds share none, as they would with seed + i."""
    return [int(s) for s in np.random.SeedSequence([seed, stream]).generate_state(episodes)]


def find_expert(env: gymnasium.Env, expert: Expert | None) -> Expert:
    """The expert that is given, or the one that the environment brings."""
    check_confounded(env)
    if expert is not None:
        if not callable(expert):
            raise DataError(
                f"expert must be a function of info['expert_obs'], got {type(expert).__name__} {expert!r}. Leave it "
                "out for the environment's own."
            )
        return expert
    plain = env.unwrapped
    # A wrapper that confounds changes what is right to do, and what the expert is told.
    is_confounded_again = any(isinstance(w, ConfoundedWrapper) for w in _wrappers(env))
    if isinstance(plain, TicketPricing) and not is_confounded_again:
        return plain.expert
    if isinstance(plain, ConfoundedLocomotion) and not is_confounded_again:
        return load_expert(plain.robot.name)
    raise DataError(
        "this environment brings no expert. Give expert=, a function of a batch of info['expert_obs']; "
        "env.expert(policy) of a ConfoundedWrapper makes it from a policy of the plain environment."
    )


def expert_actions(expert: Expert, expert_obs: np.ndarray, batch: Any) -> np.ndarray:
    """What the expert wants in every episode of a batch, (n, a).

    An expert written for one observation would give one action, which NumPy would spread over all episodes.
    """
    wanted = np.asarray(expert(expert_obs), dtype=float)
    # What it says of an episode that has ended is not asked for.
    if wanted.shape != batch.action_space.shape or not np.isfinite(wanted[batch.running]).all():
        what = wanted.shape if wanted.shape != batch.action_space.shape else "NaN or infinity"
        raise DataError(
            f"the expert must give finite actions of shape {batch.action_space.shape} for observations of shape "
            f"{expert_obs.shape}, got {what}. Write it for a batch: obs[..., :1] in place of obs[0]."
        )
    return np.where(batch.running[:, None], wanted, 0.0)


def demonstrate(
    env: Any, expert: Expert | None = None, *, episodes: int = 40, steps: int | None = None, seed: int = 0
) -> list[Trajectory]:
    """Demonstrations by an expert in a confounded environment, with the noise that it does not know of.

    Parameters
    ----------
    env : gymnasium.Env or str
        A confounded environment or its id.
    expert : callable, optional
        Actions (n, a) from ``info["expert_obs"]`` of a batch, (n, d); by default the environment's own.
    episodes, steps : int
        How many, and how long (500 by default, or the time limit if that is less); an episode that ends by itself is
        shorter.
    seed : int
        Decides everything.
    """
    check_seed(seed)
    check_count("episodes", episodes, 1)
    env = make_env(env)
    expert = find_expert(env, expert)
    steps = check_steps(env, steps)
    seeds = episode_seeds(seed, DEMONSTRATION, episodes)
    trajectories: list[Trajectory] = []
    for batch in batches(env, episodes):
        n = batch.num_envs
        obs, info = batch.reset(seed=seeds[len(trajectories) : len(trajectories) + n])
        seen, acted, lengths, fell = [obs], [], np.zeros(n, int), np.zeros(n, bool)
        hidden = {name: [values] for name, values in info["hidden"].items()}
        for _ in range(steps):
            lengths += batch.running
            recorded, executed = batch.demonstrate(expert_actions(expert, info["expert_obs"], batch))
            obs, _, terminated, _, info = batch.step(executed)
            fell |= terminated
            seen.append(obs)
            acted.append(recorded)
            for name, values in info["hidden"].items():
                hidden[name].append(values)
            if not batch.running.any():
                break
        for i, length in enumerate(lengths):
            trajectories.append(
                Trajectory(
                    np.stack([o[i] for o in seen[: length + 1]]),
                    np.stack([a[i] for a in acted[:length]]),
                    {name: np.array([v[i] for v in values[: length + 1]]) for name, values in hidden.items()},
                    terminated=bool(fell[i]),
                )
            )
    return trajectories
