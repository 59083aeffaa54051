"""What the moment of DML-IL can reach on TicketPricing-v0, with ten times the demonstrations and the best ridge.

The policy is linear in Gaussian bumps over the states that it sees; their means given the history up to t - k come from
a kernel ridge regression (random features) on one half of the demonstrations, the moment is solved on the other half,
for many ridges, and the error to the expert's own action picks among them. Nobody can do that without the expert, so
this indicates what a policy of these states can learn from this moment at best.

    python benchmarks/ticket_pricing_moment.py
"""

import argparse
from typing import Any

import numpy as np
from sklearn.kernel_approximation import RBFSampler

from prudent import imitation
from prudent.imitation import history_windows

N_BUMPS, N_FEATURES = 60, 800
RIDGES = 10.0 ** np.arange(-6, 0)


def bumps(states: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Narrow and wide Gaussian bumps, and a constant."""
    distance = ((states[:, None] - centres) ** 2).sum(axis=2)
    return np.column_stack([np.exp(-2 * distance), np.exp(-distance / 4.5), np.ones(len(states))])


def ridge(features: np.ndarray, target: np.ndarray, penalty: float) -> np.ndarray:
    """Coefficients of a ridge regression with a penalty per row."""
    gram = features.T @ features / len(features) + penalty * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ target / len(features))


def errors(k: int, episodes: int, seed: int) -> list[float]:
    """Error of the best policy of the states, of cloning, and of the moment from zero and from cloning."""
    env: Any = imitation.make_env("TicketPricing-v0", noise_horizon=k)
    demonstrations = imitation.demonstrate(env, episodes=episodes, seed=seed)
    windows = history_windows(demonstrations, k + 3)
    noise = np.concatenate([t.hidden["u_e"].reshape(-1)[: len(t)] for t in demonstrations])
    real = windows.is_real.all(axis=1)
    states, actions = windows.states[real, ::-1, 0], windows.actions[real, ::-1, 0]
    action = actions[:, 0]
    wanted = action - env.unwrapped.action_noise * noise[real]
    seen = states[:, : 3 if k == 1 else 2]
    seen = seen / seen.std(axis=0)
    history = np.column_stack([states[:, k : k + 3], actions[:, k : k + 3]])
    rng = np.random.default_rng(seed)
    f = bumps(seen, seen[rng.choice(len(seen), N_BUMPS, replace=False)])
    sampler = RBFSampler(gamma=0.35, n_components=N_FEATURES, random_state=seed)
    given = sampler.fit_transform(history / history.std(axis=0))
    first = np.arange(len(f)) < len(f) // 2
    expected = given[~first] @ ridge(given[first], f[first], 1e-5)
    action, wanted, test = action[~first], wanted[~first], f[~first]

    def error(coefficients: np.ndarray) -> float:
        return float(np.mean((np.clip(test @ coefficients, -1, 1) - wanted) ** 2))

    cloned = ridge(test, action, 1e-6)
    from_zero = min(error(ridge(expected, action, r)) for r in RIDGES)
    from_cloning = min(error(cloned + ridge(expected, action - expected @ cloned, r)) for r in RIDGES)
    return [error(ridge(test, wanted, 1e-6)), error(cloned), from_zero, from_cloning]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--episodes", type=int, default=400, help="demonstrations of 500 steps")
    parser.add_argument("--seed", type=int, default=1000)
    arguments = parser.parse_args()
    print(f"{'':8}{'expert known':>14}{'cloning':>14}{'from zero':>14}{'from cloning':>14}")
    for k in (1, 5, 10, 20):
        found = errors(k, arguments.episodes, arguments.seed)
        print(f"{f'k = {k}':8}" + "".join(f"{value:14.3f}" for value in found), flush=True)


if __name__ == "__main__":
    main()
