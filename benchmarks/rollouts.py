"""One roll-out of cloning and of DML-IL in each of the four environments, as pictures for the documentation.

``python benchmarks/rollouts.py --out docs/images``; about ten minutes on two cores. Fitted models are kept in
``--models`` and used again.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import prudent
from prudent import CausalImitation, imitation
from prudent.cmr import DMLCMR

K = 5
# Name of the picture: environment, columns that enter as differences, states that a policy sees, steps to show.
CASES = {
    "ticket-pricing": ("TicketPricing-v0", (), None, 100),
    "half-cheetah": ("ConfoundedHalfCheetah-v0", (0,), 2, 200),
    "hopper": ("ConfoundedHopper-v0", (0,), 2, 200),
    "ant": ("ConfoundedAnt-v0", (0,), 2, 200),
}


def main() -> None:
    """Fit what is missing, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}; none: all")
    parser.add_argument("--out", type=Path, default=Path("rollouts"), help="folder of the pictures")
    parser.add_argument("--models", type=Path, default=Path("rollouts/models"), help="folder of the fitted models")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or CASES:
        env_name, relative, states, steps = CASES[name]
        env = imitation.make_env(env_name, noise_horizon=K)
        learners = {
            "cloning": imitation.BehaviourCloning(relative=relative, seed=0),
            "DML-IL": CausalImitation(DMLCMR(), noise_horizon=K, relative=relative, policy_states=states, seed=0),
        }
        policies = {}
        for label, learner in learners.items():
            folder = arguments.models / f"{name}-{label}"
            if not folder.exists():
                learner.fit(imitation.demonstrate(env, episodes=40, steps=500, seed=0)).save(folder)
            policies[label] = prudent.load(folder).policy()
        path = arguments.out / f"rollout-{name}.png"
        imitation.plot_rollout(policies, env, steps=steps).savefig(path, dpi=90)
        print(path, flush=True)


if __name__ == "__main__":
    main()
