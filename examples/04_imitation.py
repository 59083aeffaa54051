"""An expert's actions are recorded with hidden noise that moved the state, too: clone them, or imitate the expert?

A pricing expert sees the season (u_o). Cost fluctuations (u_e), which nobody sees, move the state and the recorded
price together. Cloning of the history predicts recorded prices best and prices worst; DML-IL takes the older history as
an instrument. PRUDENT_EXAMPLE_ROWS makes the example smaller.
"""

import os

import matplotlib

matplotlib.use("Agg")

import prudent
from prudent import CausalImitation, imitation
from prudent.cmr import DMLCMR


def main() -> None:
    rows = int(os.environ.get("PRUDENT_EXAMPLE_ROWS", "10000"))
    env = imitation.make_env("TicketPricing-v0", noise_horizon=1)
    episodes = max(6, rows // 500)
    demonstrations = imitation.demonstrate(env, episodes=episodes, steps=min(500, max(30, rows // episodes)), seed=0)

    causal = CausalImitation(DMLCMR(n_folds=2, n_repeats=1, n_functions=2), noise_horizon=1, seed=0)
    models = {
        "cloning": imitation.BehaviourCloning(n_networks=1, seed=0),
        "cloning of the history": imitation.SequenceCloning(window=4, n_networks=1, seed=0),
        "DML-IL": causal,
    }
    fresh = imitation.demonstrate(env, episodes=5, steps=200, seed=1)
    result = None
    for name, model in models.items():
        model.fit(demonstrations)
        result = imitation.evaluate(model.policy(), env, episodes=10, steps=200, seed=0, beside=result)
        print(f"{name}: error of recorded actions {model.action_error(fresh):.2f}, of the expert's {result.mse:.2f}")
    print(result)

    policy = causal.policy(env.action_space)
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        observation, *_ = env.step(policy.act(observation).astype("float32"))

    imitation.plot_rollout({name: model.policy() for name, model in models.items()}, env).savefig("rollout.png")
    causal.save("pricing-policy")
    prudent.load("pricing-policy").policy()


if __name__ == "__main__":
    main()
