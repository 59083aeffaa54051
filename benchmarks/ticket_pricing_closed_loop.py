"""What cloning of noise-free actions reaches in the closed loop of TicketPricing-v1.

Regressions of the expert's own action, without any noise, on the last states (and actions): what an offline imitator
would reach if confounding were no problem at all. Scores: random actions 0, the expert 1.

    python benchmarks/ticket_pricing_closed_loop.py --episodes 200
"""

import argparse
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from prudent import imitation
from prudent.envs import ticket_expert
from prudent.imitation import HistoryPolicy, View, history_windows

SEEN = ((1, 0), (2, 0), (3, 0), (3, 2))


class Regression:
    """A regressor with what :class:`HistoryPolicy` asks of a model. Actions are those of the space, [-1, 1]."""

    n_observed_ = n_acted_ = 1

    def __init__(self, model: HistGradientBoostingRegressor):
        self.model = model

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.clip(self.model.predict(x), -1, 1)[:, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--episodes", type=int, default=200, help="demonstrations of 500 steps")
    parser.add_argument("--test-episodes", type=int, default=50, help="roll-outs of 500 steps")
    parser.add_argument("--horizon", type=int, default=1)
    parser.add_argument("--seed", type=int, default=2000)
    arguments = parser.parse_args()
    env = imitation.make_env("TicketPricing-v1", noise_horizon=arguments.horizon)
    demonstrations = imitation.demonstrate(env, episodes=arguments.episodes, seed=arguments.seed)
    u_o = np.concatenate([t.hidden["u_o"][:-1] for t in demonstrations])
    print(f"{'states, past actions':24}{'score':>8}{'(se)':>8}{'mse':>8}")
    result: Any = None
    for n_states, n_actions in SEEN:
        view = View(n_states, n_actions)
        windows = history_windows(demonstrations, view.length)
        clean = ticket_expert(np.column_stack([windows.states[:, -1, 0], u_o]))[:, 0]
        x = view.columns(windows.states, np.clip(windows.actions, -1, 1))
        model: Any = Regression(HistGradientBoostingRegressor(max_iter=200, random_state=0).fit(x, clean))
        result = imitation.evaluate(
            HistoryPolicy(model, view), env, episodes=arguments.test_episodes, seed=arguments.seed
        )
        print(f"{f'{n_states}, {n_actions}':24}{result.score:8.2f}{result.score_se:8.2f}{result.mse:8.2f}", flush=True)
    for name, line in result.references.items():
        print(f"{name:24}{line.score:8.2f}{line.score_se:8.2f}{line.mse:8.2f}")


if __name__ == "__main__":
    main()
