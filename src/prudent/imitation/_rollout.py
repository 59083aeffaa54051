"""Episodes side by side: environments in batches, and demonstrations by an expert."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from prudent.cmr._base import check_seed
from prudent.envs import (
    ConfoundedLocomotion,
    EpisodeBatch,
    TicketPricing,
    TicketPricingBatch,
    load_expert,
    ticket_expert,
)
from prudent.errors import DataError
from prudent.imitation._base import check_count
from prudent.imitation._trajectory import Trajectory

Expert = Callable[[np.ndarray], np.ndarray]
# Which stream of seeds is meant: demonstrations, evaluation, or the fit of reference policies.
DEMONSTRATION, EVALUATION, REFERENCE = 0, 1, 2


def make_env(env: Any, **settings: Any) -> gymnasium.Env:
    """The environment of an id such as ``"TicketPricing-v0"``; an environment is returned as it is."""
    if not isinstance(env, str):
        return env
    with warnings.catch_warnings():
        # Versions of a confounded environment differ in their equations: v0 is not out of date.
        warnings.filterwarnings("ignore", message=".*is out of date.*")
        try:
            return gymnasium.make(env, **settings)
        except gymnasium.error.Error as cause:
            raise DataError(f"no environment {env!r} ({cause}). Give the id of a confounded environment.") from None


def batches(env: gymnasium.Env, episodes: int) -> Iterator[Any]:
    """Batches that together run ``episodes`` episodes: one, where copies can be made, else one episode each."""
    plain = env.unwrapped
    limit = None if env.spec is None else env.spec.max_episode_steps
    if isinstance(plain, TicketPricing):
        yield TicketPricingBatch(
            episodes,
            closed_loop=plain.closed_loop,
            noise_horizon=plain.noise_horizon,
            noise=plain.noise,
            max_episode_steps=limit,
        )
        return
    if env.spec is not None:
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


def episode_seeds(seed: int, stream: int, episodes: int) -> list[int]:
    """One seed per episode. Runs with neighbouring seeds share none, as they would with seed + i."""
    return [int(s) for s in np.random.SeedSequence([seed, stream]).generate_state(episodes)]


def find_expert(env: gymnasium.Env, expert: Expert | None) -> Expert:
    """The expert that is given, or the one that the environment brings."""
    if expert is not None:
        return expert
    plain = env.unwrapped
    if isinstance(plain, TicketPricing):
        return ticket_expert
    if isinstance(plain, ConfoundedLocomotion):
        return load_expert(plain.robot.name)
    raise DataError("this environment brings no expert. Give expert=, a function of info['expert_obs'].")


def demonstrate(
    env: Any, expert: Expert | None = None, *, episodes: int = 40, steps: int = 500, seed: int = 0
) -> list[Trajectory]:
    """Demonstrations by an expert in a confounded environment, with the noise that it does not know of.

    Parameters
    ----------
    env : gymnasium.Env or str
        A confounded environment or its id.
    expert : callable, optional
        Actions from ``info["expert_obs"]``, for a batch; by default the environment's own.
    episodes, steps : int
        How many, and how long at most; an episode that ends before is shorter.
    seed : int
        Decides everything.
    """
    check_seed(seed)
    check_count("episodes", episodes, 1)
    check_count("steps", steps, 1)
    env = make_env(env)
    expert = find_expert(env, expert)
    seeds = episode_seeds(seed, DEMONSTRATION, episodes)
    trajectories: list[Trajectory] = []
    for batch in batches(env, episodes):
        n = batch.num_envs
        obs, info = batch.reset(seed=seeds[len(trajectories) : len(trajectories) + n])
        seen, acted, lengths = [obs], [], np.zeros(n, int)
        hidden = {name: [values] for name, values in info["hidden"].items()}
        for _ in range(steps):
            lengths += batch.running
            recorded, executed = batch.demonstrate(expert(info["expert_obs"]))
            obs, _, _, _, info = batch.step(executed)
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
                )
            )
    return trajectories
